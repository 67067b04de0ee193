"""Certified radii: the formula, exactness where it can be exact, and nothing certified without a reason."""

import math

import numpy as np
import pytest
import torch

from lbdn import build_network
from lbdn.certify import certified_accuracy, certified_radius, check_labels
from lbdn.layers import LastLayerNormalization
from lbdn.networks import Network

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(40, 5))
LABELS = np.where(RNG.random(40) < 0.7, LOGITS.argmax(1), RNG.integers(0, 5, 40))


def radii(logits, labels, gamma) -> list[float]:
    return certified_radius(torch.tensor(np.asarray(logits)), torch.tensor(labels), gamma).tolist()


def formula(logits, labels, pairs) -> list[float]:
    """Return min over j of (f_y - f_j) / pairs[y][j], or 0 if it isn't positive."""
    result = []
    for f, y in zip(logits, labels, strict=True):
        smallest = min((f[y] - f[j]) / pairs[y][j] for j in range(len(f)) if j != y)
        result.append(max(smallest, 0.0))
    return result


@pytest.mark.parametrize("gamma", [0.1, 1, 7.5])
def test_the_radius_is_the_margin_over_root_two_gamma(gamma):
    expected = formula(LOGITS, LABELS, np.full((5, 5), math.sqrt(2) * gamma))
    assert radii(LOGITS, LABELS, gamma) == pytest.approx(expected, rel=1e-12)
    assert 0 < sum(r > 0 for r in expected) < len(expected)


def test_with_bounds_of_pairs_the_smallest_ratio_counts_not_the_smallest_margin():
    pairs = RNG.uniform(0.5, 2, size=(5, 5))
    pairs = pairs + pairs.T
    np.fill_diagonal(pairs, 0)
    assert radii(LOGITS, LABELS, torch.tensor(pairs)) == pytest.approx(formula(LOGITS, LABELS, pairs), rel=1e-12)
    logits, bounds = [[3.0, 1.0, 2.0]], torch.tensor([[0.0, 4, 1], [4, 0, 1], [1, 1, 0]])
    assert radii(logits, [0], bounds) == [0.5]


def test_radii_are_computed_in_float64_and_without_gradients():
    logits = torch.tensor(LOGITS, dtype=torch.float32, requires_grad=True)
    result = certified_radius(logits, torch.tensor(LABELS), 1.0)
    given = logits.detach().double().numpy()
    assert result.tolist() == pytest.approx(formula(given, LABELS, np.full((5, 5), 2**0.5)), rel=1e-12)
    assert result.dtype == torch.float64
    assert not result.requires_grad


@pytest.mark.parametrize(
    "logits",
    [
        [1.0, 2.0, 0.0],
        [1.0, 1.0, 0.0],
        [math.nan, 0.0, 0.0],
        [9.0, math.nan, 0.0],
        [9.0, 0.0, math.nan],
        [math.inf, 0.0, 0.0],
        [9.0, -math.inf, 0.0],
        [9.0, 0.0, -math.inf],
        [-math.inf, -math.inf, -math.inf],
    ],
)
@pytest.mark.parametrize("gamma", [2**-0.5, torch.ones(3, 3) - torch.eye(3)])
def test_wrong_tied_and_infinite_logits_are_never_certified(logits, gamma):
    assert radii([logits, [9.0, 0.0, 0.0]], [0, 0], gamma) == [0, pytest.approx(9)]
    assert certified_accuracy(certified_radius(torch.tensor([logits]), torch.tensor([0]), gamma), 0.0) == 0


@pytest.mark.parametrize("gamma", [0, -1.0, math.nan, math.inf, torch.zeros(5, 5), -torch.ones(5, 5)])
def test_a_bound_that_is_none_is_an_error(gamma):
    with pytest.raises(ValueError, match="positive, finite Lipschitz bounds, got"):
        radii(LOGITS, LABELS, gamma)


@pytest.mark.parametrize("shape", [(1,), (5,), (5, 1), (1, 5), (4, 4), (1, 5, 5)])
def test_a_bound_that_is_neither_a_number_nor_a_matrix_of_pairs_is_an_error(shape):
    with pytest.raises(ValueError, match=r"a number or a matrix \(5, 5\), got shape ") as caught:
        radii(LOGITS, LABELS, torch.ones(shape))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("shape", [(5,), (40, 5, 1)])
def test_logits_of_another_shape_are_an_error(shape):
    with pytest.raises(ValueError, match=r"logits take shape \(n, classes\), got") as caught:
        certified_radius(torch.ones(shape), torch.tensor(LABELS), 1.0)
    assert str(shape) in str(caught.value)


WRONG_LABELS = {
    "one class": (torch.zeros(3, dtype=torch.int64), 1, "at least two classes, got 1"),
    "floats": (torch.zeros(3), 5, r"int64 of shape \(3,\), got torch.float32"),
    "int32": (torch.zeros(3, dtype=torch.int32), 5, r"int64 of shape \(3,\), got torch.int32"),
    "too few": (torch.tensor([0, 1]), 5, r"int64 of shape \(3,\), got torch.int64 of shape \(2,\)"),
    "too many": (torch.tensor([0, 1, 2, 3]), 5, r"shape \(3,\), got torch.int64 of shape \(4,\)"),
    "one-hot": (torch.eye(3, dtype=torch.int64), 3, r"shape \(3,\), got torch.int64 of shape \(3, 3\)"),
    "too large": (torch.tensor([0, 5, 2]), 5, "0 to 4, got 0 to 5"),
    "negative": (torch.tensor([0, -1, 2]), 5, "0 to 4, got -1 to 2"),
}


@pytest.mark.parametrize(("labels", "classes", "message"), WRONG_LABELS.values(), ids=WRONG_LABELS)
def test_labels_that_are_no_classes_of_the_images_are_an_error(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        check_labels(labels, 3, classes)
    with pytest.raises(ValueError, match=message):
        certified_radius(torch.rand(3, classes), labels, 1.0)


def test_labels_may_be_every_class_and_none_at_all():
    check_labels(torch.arange(5), 5, 5)
    assert len(certified_radius(torch.empty(0, 5), torch.empty(0, dtype=torch.int64), 1.0)) == 0


def test_a_positive_margin_between_outputs_of_equal_rows_bounds_no_radius():
    pairs = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 2.0], [2.0, 2.0, 0.0]])
    assert radii([[3.0, 1.0, 1.0], [1.0, 3.0, 0.0], [1.0, 1.0, 0.0]], [0, 0, 0], pairs) == [1, 0, 0]


def test_a_network_without_a_bound_cannot_be_certified():
    network = build_network("mlp", "plain", input_shape=(4,), outputs=3)
    for bound in (network.gamma, network.pixel_gamma, network.pair_gamma()):
        with pytest.raises(ValueError, match="without a Lipschitz bound can't be certified"):
            radii(LOGITS, LABELS, bound)


def exact_radii(x: np.ndarray, W: np.ndarray, b: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return the distance of each x from the nearest point where another class ties with its label."""
    f = x @ W.T + b
    distances = [
        min((f[i, y] - f[i, j]) / np.linalg.norm(W[y] - W[j]) for j in range(len(W)) if j != y)
        for i, y in enumerate(labels)
    ]
    return np.maximum(distances, 0).tolist()


def test_a_linear_classifiers_certified_radius_is_at_most_its_exact_one():
    W, b, x = RNG.normal(size=(4, 6)), RNG.normal(size=4), RNG.normal(size=(50, 6))
    logits = x @ W.T + b
    labels = logits.argmax(1)
    gamma = float(np.linalg.norm(W, 2))
    exact, certified = np.array(exact_radii(x, W, b, labels)), np.array(radii(logits, labels, gamma))
    assert (certified > 0).all()
    assert (certified <= exact * (1 + 1e-12)).all()
    assert (np.array(radii(logits, labels, gamma / 3)) > exact).any()


@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_the_radius_is_exact_where_the_rows_of_a_linear_classifier_are_orthogonal(gamma):
    W = gamma * np.linalg.qr(RNG.normal(size=(6, 4)))[0].T
    b, x = RNG.normal(size=4), RNG.normal(size=(50, 6))
    logits = x @ W.T + b
    labels = logits.argmax(1)
    assert radii(logits, labels, gamma) == pytest.approx(exact_radii(x, W, b, labels), rel=1e-10)


def test_the_radius_by_pairs_is_exact_for_a_linear_classifier_with_last_layer_normalisation():
    layer = LastLayerNormalization(6, 4, scale=3.0)
    network = Network([layer], outputs=layer.outputs, gamma=3.0).double()
    W = layer.weight.detach().numpy()
    W = 3 * W / np.linalg.norm(W, axis=1, keepdims=True)
    x = RNG.normal(size=(50, 6)) * 3
    logits = network(torch.tensor(x)).detach()
    labels = logits.argmax(1).numpy()
    exact = exact_radii(x, W, layer.bias.detach().numpy(), labels)
    assert radii(logits.tolist(), labels, network.pair_gamma()) == pytest.approx(exact, rel=1e-9)
    blunt = np.array(radii(logits.tolist(), labels, network.gamma))
    assert (blunt <= np.array(exact) * (1 + 1e-9)).all()


def test_without_last_layer_normalisation_the_pairs_bound_is_root_two_times_the_pixel_bound():
    network = build_network(
        "kwlarge", "sandwich", size="tiny", gamma=2.0, input_shape=(1, 8, 8), outputs=5,
        normalization=([0.3], [0.25]),
    )  # fmt: skip
    logits, labels = torch.tensor(LOGITS), torch.tensor(LABELS)
    by_pairs = certified_radius(logits, labels, network.pair_gamma().expand(5, 5))
    torch.testing.assert_close(by_pairs, certified_radius(logits, labels, network.pixel_gamma), rtol=1e-12, atol=0)


def test_certified_accuracy_falls_with_the_radius_from_the_correct_to_none():
    r = torch.tensor(radii(LOGITS, LABELS, 1.0))
    grid = [0.0, *torch.linspace(0, float(r.max()), 50).tolist()]
    accuracies = [certified_accuracy(r, eps) for eps in grid]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[0] == (LOGITS.argmax(1) == LABELS).mean()
    assert certified_accuracy(r, float(r.max())) == 0
    assert accuracies[25] == (r > grid[25]).sum().item() / len(r)
