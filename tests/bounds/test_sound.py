"""Radii that hold in floating point: an attack by rounding fails against them, and breaks those that ignore it."""

import copy
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from lbdn import build_network
from lbdn.bounds import SoundNetwork, pair_bounds, plain_sums
from lbdn.bounds.rounding import Step
from lbdn.cayley import inverse_cayley
from lbdn.certify import certified_radius
from lbdn.layers import (
    AolLin,
    BcopLin,
    LastLayerNormalization,
    LotLin,
    OrthogonalLin,
    SandwichFc,
    SandwichLin,
    SocLin,
    SpectralLin,
    freeze,
)
from lbdn.networks import Network
from tests.oracles import perturb

SHAPES = {"mlp": (1, 6, 6), "kwlarge": (1, 8, 8)}
FAMILIES = ("aol", "bcop", "cpl", "lot", "orthogonal", "sandwich", "sll", "soc", "spectral")
NETWORKS = [("mlp", f) for f in FAMILIES] + [("kwlarge", f) for f in FAMILIES]


def network(architecture: str, family: str, dtype=torch.float32, **options) -> Network:
    size = {"size": "tiny"} if architecture == "kwlarge" else {}
    arguments = {"gamma": 2.0, "normalization": ([0.3], [0.4])} | options
    net = build_network(architecture, family, input_shape=SHAPES[architecture], outputs=5, **size, **arguments)
    return perturb(net, 0.05).to(dtype).requires_grad_(False).eval()


def images(net: Network, shape, count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(count, *shape).to(next(net.parameters()).dtype)
    return x, net(x).argmax(1)


@pytest.mark.parametrize(("architecture", "family"), NETWORKS)
@pytest.mark.parametrize(("dtype", "cost"), [(torch.float32, 1e-3), (torch.float64, 1e-7)])
def test_the_sound_radius_is_below_that_of_real_arithmetic_by_what_rounding_costs(architecture, family, dtype, cost):
    net = network(architecture, family, dtype)
    x, labels = images(net, SHAPES[architecture])
    with plain_sums():
        sound = SoundNetwork(net, x[:1]).radius(x, labels)
    real = certified_radius(net(x), labels, pair_bounds(net))
    assert (sound < real).all()
    assert (sound >= real - cost).all()  # in pixel units, of radii of about a hundredth
    assert (sound > 0).sum() > 25


@pytest.mark.parametrize("layer", [AolLin, OrthogonalLin, SandwichLin, LastLayerNormalization])
def test_the_sound_radius_of_a_linear_classifier_is_next_to_its_exact_one(layer):
    last = layer(30, 4, scale=2.0)
    net = Network([last], outputs=4, gamma=2.0).double().requires_grad_(False)
    x = torch.randn(50, 30, dtype=torch.float64)
    logits, (W,) = net(x), last.operators()
    labels = logits.argmax(1)
    exact = (logits.gather(1, labels[:, None]) - logits) / torch.cdist(W, W)[labels]
    exact = exact.nan_to_num(nan=math.inf).scatter(1, labels[:, None], math.inf).amin(1)
    sound = SoundNetwork(net, x[:1]).radius(x, labels)
    assert (sound < exact).all()
    torch.testing.assert_close(sound, exact, rtol=1e-8, atol=1e-11)


def orders(terms: np.ndarray, count: int, random: np.random.Generator):
    """Orders of summation, for each row its own."""
    yield np.tile(np.arange(terms.shape[1]), (2, 1))
    yield np.argsort(terms, axis=1)
    yield np.argsort(-terms, axis=1)
    for _ in range(count):
        yield np.stack([random.permutation(terms.shape[1]) for _ in range(2)])


def predicts(terms: np.ndarray, b: np.ndarray, order: np.ndarray) -> int:
    """The prediction in the type of the terms, summed one after the other."""
    ordered = np.take_along_axis(terms, order, axis=1)
    return int((np.cumsum(ordered, axis=1, dtype=terms.dtype)[:, -1] + b).argmax())


def attack(net: Network, x: torch.Tensor, label: int, radius: float, tries: int = 100) -> bool:
    """Whether rounding changes the prediction of a linear classifier at a floating-point input within the radius."""
    W, b = (t.detach().numpy() for t in (*net.body[0].operators(), net.body[0].bias))
    exact = W.astype(np.float64)
    toward = exact[1 - label] - exact[label]
    toward /= np.linalg.norm(toward)
    start, random, digits = x.numpy(), np.random.default_rng(0), math.log10(torch.finfo(x.dtype).eps)
    for _ in range(tries):
        noise = random.normal(size=start.shape)
        noise *= radius * 10 ** random.uniform(digits, -2) / np.linalg.norm(noise)
        moved = (start + (radius * toward + noise) * (1 - 10 ** random.uniform(digits, -3))).astype(start.dtype)
        inside = np.linalg.norm(moved.astype(np.longdouble) - start.astype(np.longdouble)) < radius
        if inside and any(predicts(W * moved, b, order) != label for order in orders(W * moved, 5, random)):
            return True
    return False


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_attack_by_rounding_breaks_real_radii_and_no_sound_ones(dtype):
    net = Network([OrthogonalLin(784, 2)], outputs=2, gamma=1.0).to(dtype).requires_grad_(False)
    x = torch.rand(400, 784, dtype=dtype)
    labels = net(x).argmax(1)
    sound_network = SoundNetwork(net, x[:1])
    sound, real = sound_network.radius(x, labels), certified_radius(net(x), labels, pair_bounds(net))
    near = real.argsort()[:25]
    broken = [attack(net, x[i], int(labels[i]), float(real[i])) for i in near]
    assert sum(broken) > 5
    certified = [i for i in range(len(x)) if sound[i] > 0]
    closest = sorted(certified, key=lambda i: float(sound[i]))[:25]
    assert not any(attack(net, x[i], int(labels[i]), float(sound[i])) for i in closest)
    if dtype == torch.float32:  # a radius that counts only a part of what rounding costs is broken, too
        barely = real - (real - sound) / 200
        assert any(attack(net, x[i], int(labels[i]), float(barely[i])) for i in near if barely[i] > 0)


@pytest.mark.parametrize(("architecture", "family"), NETWORKS)
def test_nothing_within_the_sound_radius_changes_the_prediction_of_the_float32_network(architecture, family):
    net = network(architecture, family)
    x, labels = images(net, SHAPES[architecture])
    with plain_sums():
        radius = SoundNetwork(net, x[:1]).radius(x, labels)
        frozen = freeze(net)
        moved = x.clone().requires_grad_()
        logits = frozen(moved)
        runner_up = logits.scatter(1, labels[:, None], -math.inf).argmax(1)
        margin = (logits.gather(1, labels[:, None]) - logits.gather(1, runner_up[:, None])).sum()
        gradient = torch.autograd.grad(margin, moved)[0]
        direction = -gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        for part in (0.5, 0.99, 1.0):
            assert (
                frozen(x + part * 0.999999 * radius.float().view(-1, 1, 1, 1) * direction).argmax(1) == labels
            ).all()


@pytest.mark.parametrize(("architecture", "family"), NETWORKS)
@pytest.mark.parametrize(("distance", "share"), [(0.0, 1e-6), (0.3, 1e-6), (30.0, 1e-6), (3e4, 1e-7)])
def test_no_input_within_a_distance_has_a_larger_rounding_error_than_the_bound(architecture, family, distance, share):
    net = network(architecture, family)
    x, _ = images(net, SHAPES[architecture], 20)
    with plain_sums():
        sound, frozen = SoundNetwork(net, x[:1]), freeze(net)
        _, inexact, own = sound.evaluate(x.double())
        bound = sound.error_within(torch.full((20,), distance, dtype=torch.float64), inexact, own)
        for _ in range(10):
            direction = torch.randn_like(x)
            moved = x + 0.9999 * distance * direction / direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            exact, inexact_there, _ = sound.evaluate(moved.double())
            off = (frozen(moved).double() - exact).norm(dim=1)
            assert (off <= bound + inexact_there[-1]).all()
        assert (off > share * bound).any()  # not of another order of magnitude altogether


class Off(Step):
    """A multiplication whose error is ``own``, and ``growth`` more for an input that is one away."""

    def __init__(self, factor: float, own: float, growth: float) -> None:
        super().__init__(lambda x: factor * x, factor)
        self.own, self.growth = own, growth

    def run(self, x, dtype):
        return self.layer(x), x.new_full((len(x),), self.own)

    def spread(self, dtype):
        return self.growth


def test_the_radius_counts_each_steps_error_where_it_is_largest_times_the_constants_behind():
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)  # the errors of evaluating in float64 are those of running
    sound, slope = SoundNetwork(Network([AolLin(2, 2)], outputs=2, gamma=6.0).double(), x), 6 * math.sqrt(2)
    sound.steps, sound.pairs = [Off(2.0, 1e-3, 1e-2), Off(3.0, 2e-3, 3e-2)], torch.full_like(sound.pairs, slope)
    farthest = 6 / slope
    first = 1e-3 + 1e-2 * farthest
    second = 2e-3 + 3e-2 * (2 * farthest + first + 1e-3)
    evaluated = 3 * 1e-3 + 2e-3
    expected = (6 - math.sqrt(2) * (3 * first + second + evaluated)) / slope
    assert float(sound.radius(x, torch.tensor([0]))) == pytest.approx(expected, rel=1e-7)


def test_pairs_are_never_worse_than_root_two_times_the_bound_and_hold_for_the_network():
    for layer in (AolLin, BcopLin, LotLin, OrthogonalLin, SandwichLin, SocLin, SpectralLin):
        body = perturb(layer(6, 4, scale=3.0), 0.0 if layer is not AolLin else 0.5)
        net = Network([body], outputs=4, gamma=3.0).double().requires_grad_(False)
        bounds, blunt, (W,) = pair_bounds(net), net.pair_gamma(), body.operators()
        assert (bounds <= blunt).all()
        for i in range(4):
            for j in range(4):
                assert float(bounds[i, j]) == pytest.approx(min(float((W[i] - W[j]).norm()), float(blunt[i, j])))
    assert (pair_bounds(Network([AolLin(6, 4)], outputs=4, gamma=1.0)) < 0.95 * 2**0.5).all()


def test_pairs_of_other_networks_are_root_two_times_the_bound():
    assert pair_bounds(build_network("mlp", "plain", input_shape=(4,), outputs=3)) is None
    for family, options in (("sll", {}), ("sandwich", {"last_layer_normalization": True})):
        net = network("mlp", family, **options)
        assert torch.equal(pair_bounds(net), net.pair_gamma())
    frozen = freeze(network("mlp", "aol"))
    assert (pair_bounds(frozen) < frozen.pair_gamma()).any()


def test_modules_of_another_kind_are_refused_by_name():
    linear, x = torch.nn.Linear(4, 3), torch.rand(1, 4)
    for function in (pair_bounds, lambda module: SoundNetwork(module, x)):
        with pytest.raises(ValueError, match="takes a network of build_network or load_run, got Linear"):
            function(linear)


@pytest.mark.parametrize("labels", [torch.zeros(9, dtype=torch.int64), torch.zeros(10), torch.arange(10) - 5])
def test_labels_that_are_no_classes_of_the_images_are_refused(labels):
    net = network("mlp", "sandwich")
    x, right = images(net, SHAPES["mlp"], 10)
    sound = SoundNetwork(net, x[:1])
    with pytest.raises(ValueError, match="labels take"):
        sound.radius(x, labels, batch_size=5)
    assert len(sound.radius(x, right, batch_size=5)) == 10


def test_wrong_predictions_and_inputs_that_are_not_finite_have_no_radius():
    net = network("mlp", "sandwich")
    x, labels = images(net, SHAPES["mlp"], 4)
    sound = SoundNetwork(net, x[:1])
    assert (sound.radius(x, (labels + 1) % 5) == 0).all()
    x[0, 0, 0, 0], x[1, 0, 0, 0], x[2, 0, 0, 0] = math.nan, math.inf, 1e38
    assert sound.radius(x, labels)[:3].tolist() == [0, 0, 0]
    assert sound.radius(x, labels)[3] > 0


def test_pixels_are_certified_as_the_floats_that_the_network_gets():
    net = network("mlp", "orthogonal")
    pixels = torch.randint(0, 256, (20, 1, 6, 6), dtype=torch.uint8)
    x = pixels / 255
    sound, labels = SoundNetwork(net, x[:1]), net(x).argmax(1)
    assert torch.equal(sound.radius(pixels, labels), sound.radius(x, labels))
    torch.testing.assert_close(sound.radius(x, labels, batch_size=7), sound.radius(x, labels))


@pytest.mark.parametrize(
    ("shape", "batches"), [((1, 28, 28), [500, 100]), ((3, 32, 32), [500, 100]), ((3, 64, 64), [125] * 4 + [100])]
)
def test_fewer_large_images_than_small_ones_are_taken_at_once(monkeypatch, shape, batches):
    taken = []
    net = network("mlp", "orthogonal")
    sound = SoundNetwork(net, torch.zeros(1, 1, 6, 6))
    monkeypatch.setattr(sound, "_radius", lambda x, y: taken.append(len(x)) or x.new_zeros(len(x)))
    sound.radius(torch.zeros(sum(batches), *shape), torch.zeros(sum(batches), dtype=torch.int64))
    assert taken == batches


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_reduced_precision_is_refused_and_switched_off_where_asked(precision):
    net = network("mlp", "sandwich")
    x, _ = images(net, SHAPES["mlp"], 1)
    torch.set_float32_matmul_precision(precision)
    try:
        with pytest.raises(ValueError, match="in TF32 or bfloat16"):
            SoundNetwork(net, x)
        with plain_sums():
            SoundNetwork(net, x)
            assert not torch.backends.cudnn.enabled
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def set_to(backend, precision):
    backend.fp32_precision = precision
    try:
        yield
    finally:
        backend.fp32_precision = "none"


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_winograds_algorithm_is_refused_and_switched_off_where_asked():
    net = network("mlp", "sandwich")
    x, _ = images(net, SHAPES["mlp"], 1)
    with torch.backends.mkldnn.flags(enabled=False):
        with pytest.raises(ValueError, match="that aren't sums of products"):
            SoundNetwork(net, x)
        with plain_sums():
            SoundNetwork(net, x)


@pytest.mark.parametrize("backend", [torch.backends, torch.backends.mkldnn.conv], ids=["all", "convolutions"])
def test_reduced_precision_by_the_newer_settings_is_refused(backend):
    net = network("mlp", "sandwich")
    x, _ = images(net, SHAPES["mlp"], 1)
    with set_to(backend, "bf16"), pytest.raises(ValueError, match="without another `fp32_precision`"):
        SoundNetwork(net, x)
    SoundNetwork(net, x)


def test_autocast_and_half_precision_are_refused():
    net = network("mlp", "sandwich")
    x, _ = images(net, SHAPES["mlp"], 1)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="autocast computes in less"):
        SoundNetwork(net, x)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(ValueError, match="take a network in float32 or float64"):
            SoundNetwork(copy.deepcopy(net).to(dtype), x.to(dtype))


def test_a_network_whose_operators_are_off_gets_larger_bounds_not_a_false_certificate(monkeypatch):
    net = Network([OrthogonalLin(6, 3)], outputs=3, gamma=1.0).requires_grad_(False)
    x = torch.rand(1, 6)
    sound = SoundNetwork(net, x).pairs
    operators = OrthogonalLin.operators
    monkeypatch.setattr(OrthogonalLin, "operators", lambda self: (1.5 * operators(self)[0],))
    broken = SoundNetwork(net, x)
    torch.testing.assert_close(broken.pairs, 1.5 * sound, rtol=1e-5, atol=0)


def test_a_layer_that_occurs_twice_counts_twice():
    layer = perturb(SandwichFc(8, 8, scale=2.0))
    net = Network([layer, layer, SandwichLin(8, 3)], outputs=3, gamma=4.0).requires_grad_(False)
    x = torch.randn(200, 8)
    sound = SoundNetwork(net, x[:1])
    assert [step.name for step in sound.steps] == ["body.0", "body.1", "body.2"]
    assert (sound.pairs >= pair_bounds(net)).all()
    labels = freeze(net)(x).argmax(1)
    assert (sound.radius(x, labels) <= certified_radius(freeze(net)(x), labels, pair_bounds(net))).all()


def test_pairs_say_no_more_than_a_bound_that_the_scales_do_not_make():
    first, last = SandwichLin(2, 2).double(), SandwichLin(2, 2).double()
    for layer, norms in ((first, [1.0, 0.1]), (last, [0.1, 1.0])):
        B = torch.diag(torch.tensor(norms, dtype=torch.float64))
        A = torch.diag((1 - B.diagonal() ** 2).sqrt())
        layer.stacked.data = inverse_cayley(A, B)
        layer.gain.data = layer.stacked.data.norm()
    net = Network([first, last], outputs=2, gamma=0.1000001).requires_grad_(False)
    found = (last.operators()[0] @ first.operators()[0]).detach()
    assert float(torch.linalg.matrix_norm(found, 2)) == pytest.approx(0.1)
    assert float(pair_bounds(net)[0, 1]) >= float((found[0] - found[1]).norm())
