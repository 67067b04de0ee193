"""Products of spectral norms, against NumPy."""

import copy
import math

import numpy as np
import pytest
import torch

from lbdn import build_network
from lbdn.bounds import empirical_lower_bound, layer_norms, spectral_product, weighted_norms
from lbdn.explicit import explicit
from lbdn.layers import PlainFc, PlainLin
from lbdn.networks import Network
from tests.oracles import dense_cayley

GAMMA = 3.0
SHAPE = {"input_shape": (6,), "outputs": 4}


def network(family: str, gamma: float = GAMMA):
    result = build_network("mlp", family, gamma=gamma, **SHAPE)
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if name.endswith("log_psi"):
                parameter.normal_(std=0.3)
            if name.endswith("gain"):
                parameter.mul_(2)
    return result


def array(parameter: torch.Tensor) -> np.ndarray:
    return parameter.detach().double().numpy()


def sandwich_weights(body) -> list[np.ndarray]:
    """Return the paper's W_0 .. W_L, with Psi_{-1} = sqrt(gamma / 2) I and Psi_L = sqrt(2 / gamma) I."""
    directions = [array(layer.stacked) / np.linalg.norm(array(layer.stacked)) for layer in body]
    transforms = [dense_cayley(array(layer.gain) * P) for layer, P in zip(body, directions, strict=True)]
    psi = [np.exp(array(layer.log_psi)) for layer in body[:-1]]
    weights = [math.sqrt(2 * GAMMA) * transforms[0][1].T / psi[0][:, None]]
    for k in range(1, len(psi)):
        weights.append(2 * transforms[k][1].T / psi[k][:, None] @ transforms[k - 1][0] * psi[k - 1])
    weights.append(math.sqrt(2 * GAMMA) * transforms[-1][1].T @ transforms[-2][0] * psi[-1])
    return weights


def matrices(family: str, body) -> list[np.ndarray]:
    if family == "sandwich":
        return sandwich_weights(body)
    weights = [array(layer.weight) for layer in body]
    if family == "aol":
        weights = [W / np.sqrt(np.abs(W.T @ W).sum(axis=0)) for W in weights]
    ends = {0, len(weights) - 1} if family != "plain" else set()
    return [W * (math.sqrt(GAMMA) if k in ends else 1) for k, W in enumerate(weights)]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (5, 3), (40, 40)])
def test_a_layers_norm_is_its_largest_singular_value(shape):
    W = np.random.default_rng(0).normal(size=shape)
    expected = np.linalg.svd(W, compute_uv=False)[0]
    assert layer_norms([torch.tensor(W), torch.tensor(2 * W)]) == pytest.approx([expected, 2 * expected], rel=1e-12)


@pytest.mark.parametrize("family", ["plain", "aol", "sandwich"])
def test_the_product_is_that_of_the_weights_spectral_norms(family):
    subject = network(family)
    product = math.prod(np.linalg.norm(W, 2) for W in matrices(family, subject.body[1:]))
    assert spectral_product(subject) == pytest.approx(product, rel=1e-5)


def test_scales_of_unconstrained_layers_count():
    subject = Network([PlainFc(6, 5, scale=2.0), PlainLin(5, 4, scale=3.0)], outputs=4, gamma=None)
    product = math.prod(np.linalg.norm(array(layer.weight), 2) for layer in subject.body)
    assert spectral_product(subject) == pytest.approx(6 * product, rel=1e-6)


def test_the_product_of_orthogonal_weights_is_gamma():
    assert spectral_product(network("orthogonal")) == pytest.approx(GAMMA, rel=1e-6)


@pytest.mark.parametrize("family", ["plain", "aol", "orthogonal", "sandwich"])
def test_the_product_is_no_smaller_than_an_empirical_lower_bound(family):
    subject = network(family)
    lower = empirical_lower_bound(copy.deepcopy(subject), torch.randn(20, 6), steps=20, pairs=16).ratio
    assert 0 < lower <= spectral_product(subject) * (1 + 1e-9)


@pytest.mark.parametrize("family", ["plain", "aol", "orthogonal", "sandwich"])
def test_the_product_leaves_the_network_as_it_was(family):
    subject = network(family)
    before = {name: tensor.clone() for name, tensor in subject.state_dict().items()}
    spectral_product(subject)
    after = subject.state_dict()
    assert {name: tensor.dtype for name, tensor in after.items()} == {name: t.dtype for name, t in before.items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("architecture", "family", "shape"),
    [("kwlarge", "sandwich", (1, 8, 8)), ("kwlarge", "plain", (1, 8, 8)), ("mlp", "sll", (6,))],
)
def test_convolutions_and_residual_blocks_have_no_product(architecture, family, shape):
    size = "tiny" if architecture == "kwlarge" else "small"
    assert spectral_product(build_network(architecture, family, size=size, input_shape=shape, outputs=4)) is None


def sandwich_form(gamma: float, seed: int = 0):
    torch.manual_seed(seed)
    subject = build_network("mlp", "sandwich", size="7-5-6", gamma=gamma, input_shape=(4,), outputs=3).double()
    with torch.no_grad():
        for parameter in subject.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return explicit(subject)


@pytest.mark.parametrize("gamma", [0.5, 3.0])
def test_weighted_norms_are_at_most_one_where_spectral_norms_are_not(gamma):
    form = sandwich_form(gamma)
    first, *inner, last = weighted_norms(form)
    assert first <= math.sqrt(gamma) * (1 + 1e-6)
    assert all(norm <= 1 + 1e-6 for norm in inner)
    assert last <= math.sqrt(gamma) * (1 + 1e-6)
    assert math.prod(layer_norms(form.weights)) > 1.05 * first * math.prod(inner) * last


def test_weighted_norms_are_those_of_the_formula_by_numpy():
    form = sandwich_form(2.0)
    W, multipliers = [w.numpy() for w in form.weights], [m.numpy() for m in form.multipliers]
    A, before, norms = np.eye(4), np.full(4, math.sqrt(2.0 / 2)), []
    for k, weight in enumerate(W):
        psi = np.sqrt(multipliers[k]) if k < len(multipliers) else np.full(3, math.sqrt(2 / 2.0))
        B = (psi[:, None] * weight / before / 2) @ np.linalg.pinv(A.T)
        scaled = np.linalg.pinv(B) @ (psi[:, None] * weight / before / 2) @ np.linalg.pinv(A.T)
        norms.append(np.linalg.norm(B if k == len(W) - 1 else scaled, 2))
        values, vectors = np.linalg.eigh(np.eye(len(B)) - B @ B.T)
        A, before = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T, psi
    # The formula's scaling at both ends: the first has sqrt(gamma) as a factor, so has the last.
    expected = [math.sqrt(2.0) * norms[0], *norms[1:-1], math.sqrt(2.0) * norms[-1]]
    assert weighted_norms(form) == pytest.approx(expected, rel=1e-5)
