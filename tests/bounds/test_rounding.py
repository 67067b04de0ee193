"""Layers as they run: constants of stored numbers, and rounding errors, against what running them gives."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from lbdn.architectures import Selection, ZeroPadding
from lbdn.bounds.constants import sandwich_excess, zero_padded_norm
from lbdn.bounds.maps import Matrix, Spectral
from lbdn.bounds.rounding import Affine
from lbdn.bounds.stored import steps
from lbdn.circular import _basis, convolve, kernel_spectrum, real_form
from lbdn.layers import (
    AolConv,
    AolFc,
    AolLin,
    InputNormalization,
    LastLayerNormalization,
    OrthogonalConv,
    OrthogonalFc,
    OrthogonalLin,
    PlainFc,
    SandwichConv,
    SandwichFc,
    SandwichLin,
    SllConv,
    SllFc,
    freeze,
)
from lbdn.layers.bcop import BcopConv, BcopLin
from lbdn.layers.cpl import CplConv, CplFc
from lbdn.layers.lot import LotConv
from lbdn.layers.soc import SocConv, SocFc
from lbdn.networks import Network
from tests.oracles import circular_convolution, dense_operator, jacobian_norm, perturb, spectral_norm

IMAGES, VECTORS = (3, 8, 8), (24,)
LAYERS = {
    "aol fc": (lambda: AolFc(24, 17, scale=2.0), VECTORS),
    "aol lin": (lambda: AolLin(24, 30), VECTORS),
    "aol conv": (lambda: AolConv(3, 5, scale=0.5), IMAGES),
    "orthogonal fc": (lambda: OrthogonalFc(24, 30, scale=2.0), VECTORS),
    "orthogonal lin": (lambda: OrthogonalLin(24, 5), VECTORS),
    "orthogonal conv": (lambda: OrthogonalConv(3, 4), IMAGES),
    "orthogonal stride": (lambda: OrthogonalConv(3, 4, stride=2, scale=3.0), IMAGES),
    "sandwich fc": (lambda: SandwichFc(24, 17, scale=2.0), VECTORS),
    "sandwich lin": (lambda: SandwichLin(24, 5, scale=0.1), VECTORS),
    "sandwich conv": (lambda: SandwichConv(3, 4), IMAGES),
    "sandwich stride": (lambda: SandwichConv(3, 4, stride=2, scale=2.0), IMAGES),
    "sll fc": (lambda: SllFc(24, 40, scale=2.0), VECTORS),
    "sll conv": (lambda: SllConv(3, 4), IMAGES),
    "cpl fc": (lambda: CplFc(24, 40, scale=2.0), VECTORS),
    "cpl fc of rank one": (lambda: CplFc(24, 1), VECTORS),
    "cpl conv": (lambda: CplConv(3, 4, scale=0.5), IMAGES),
    "cpl conv of one pixel": (lambda: CplConv(3, 4, 1), IMAGES),
    "soc fc": (lambda: SocFc(24, 17), VECTORS),
    "soc conv": (lambda: SocConv(3, 4), IMAGES),
    "bcop lin": (lambda: BcopLin(24, 10), VECTORS),
    "bcop conv": (lambda: BcopConv(3, 4), IMAGES),
    "lot stride": (lambda: LotConv(3, 4, stride=2, scale=3.0), IMAGES),
    "normalised rows": (lambda: LastLayerNormalization(24, 10, scale=2.0), VECTORS),
    "selection": (lambda: Selection(24, 5, scale=0.3), VECTORS),
    "padding": (lambda: ZeroPadding(7, dim=-3), IMAGES),
    "pooling": (lambda: nn.AvgPool2d(4, divisor_override=4), IMAGES),
}
layers = pytest.mark.parametrize("name", list(LAYERS))


def network(name: str) -> tuple[Network, tuple[int, ...]]:
    make, shape = LAYERS[name]
    layer = make()
    if not isinstance(layer, SandwichLin | OrthogonalLin):
        perturb(layer, 0.3)
    return Network([layer], outputs=5, gamma=1.0).requires_grad_(False), shape


def run(chain, x: torch.Tensor, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor, float, float]:
    """The exact output, the bound of its error, how much it grows, and the Lipschitz bound, of steps in a row."""
    error, spread, lipschitz = torch.zeros(len(x), dtype=torch.float64), 0.0, 1.0
    for step in chain:
        x, own = step.run(x, dtype)
        spread = step.lipschitz * spread + step.spread(dtype) * lipschitz
        error, lipschitz = step.lipschitz * error + own, step.lipschitz * lipschitz
    return x, error, spread, lipschitz


@layers
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_what_runs_is_within_the_bound_of_the_exact_map_of_the_stored_numbers(name, size):
    net, shape = network(name)
    x = size * torch.randn(20, *shape)
    computed = freeze(net)(x).double()
    exact, error, _, _ = run(steps(net, x[:1]), x.double())
    off = (computed - exact).flatten(1).norm(dim=1)
    assert (off <= error).all()
    assert name == "padding" or (error > 0).all()
    # Bounds of any order are above what one order gives, but not by orders of magnitude more than the sums' lengths.
    assert (error <= 1e-3 * (exact.flatten(1).norm(dim=1) + x.flatten(1).norm(dim=1) + 1)).all()


@layers
def test_the_bound_of_the_error_grows_no_faster_than_its_spread(name):
    net, shape = network(name)
    chain = steps(net, torch.randn(1, *shape))
    for distance in (1e-2, 1.0, 100.0):
        x = torch.randn(10, *shape, dtype=torch.float64)
        direction = torch.randn_like(x)
        y = x + distance * direction / direction.flatten(1).norm(dim=1).view(-1, *(1,) * len(shape))
        (_, at_x, spread, _), (_, at_y, _, _) = run(chain, x), run(chain, y)
        assert (at_y <= at_x + spread * distance * (1 + 1e-9)).all()


@layers
def test_the_constant_is_above_every_jacobian_and_by_no_more_than_rounding(name):
    net, shape = network(name)
    example = torch.randn(1, *shape)
    _, _, _, constant = run(steps(net, example), example.double())
    frozen = freeze(net)
    for _ in range(10):
        assert jacobian_norm(frozen, torch.randn(*shape)) <= constant * (1 + 1e-6)  # the Jacobian is rounded, too
    scale = getattr(net.body[0], "scale", 1.0)
    if name != "normalised rows":
        assert scale <= constant <= scale * (1 + 3e-5)


def test_sandwich_constants_hold_for_all_slopes_and_see_operators_that_are_off():
    layer = perturb(SandwichFc(4, 3, scale=2.0), 0.5).double().requires_grad_(False)
    inner, outer = layer.operators()
    psi, unit = layer.log_psi.exp(), 2.0**-53
    slopes = [torch.tensor(s, dtype=torch.float64) for s in np.ndindex(2, 2, 2)]

    def largest(inner, outer):
        return max(float(torch.linalg.matrix_norm(outer * s @ inner, 2)) for s in slopes)

    assert largest(inner, outer) <= 2.0 * sandwich_excess(inner, outer, psi, 2.0, unit) <= 2.0 * (1 + 1e-8)
    for broken in ((1.01 * inner, outer), (inner, 1.01 * outer), (inner.flip(0), outer), (inner, outer.flip(1))):
        assert sandwich_excess(*broken, psi, 2.0, unit) > 1.001
        assert largest(*broken) <= 2.0 * sandwich_excess(*broken, psi, 2.0, unit)


@pytest.mark.parametrize("make", [SandwichFc, SllFc, CplFc])
def test_operators_that_are_off_make_a_larger_constant(make, monkeypatch):
    layer = make(6, 4)
    operators = type(layer).operators
    net = Network([layer], outputs=4, gamma=1.0)
    x = torch.randn(1, 6)
    (sound,) = steps(net, x)
    monkeypatch.setattr(type(layer), "operators", lambda self, *s: tuple(1.01 * o for o in operators(self, *s)))
    (broken,) = steps(net, x)
    assert sound.lipschitz < 1.0001 < 1.005 < broken.lipschitz


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("size", [(4, 5), (3, 3), (2, 1), (1, 1)])
@pytest.mark.parametrize("factor", [1e-20, 1.0, 1e20])
def test_the_norm_of_zero_padded_convolutions_is_that_with_a_margin_and_never_below_the_dense_one(k, size, factor):
    kernel = factor * torch.randn(3, 2, k, k, dtype=torch.float64)
    larger = tuple(pixels + k // 2 for pixels in size)
    circular = dense_operator(lambda x: circular_convolution(x, kernel), (2, *larger))
    padded = dense_operator(lambda x: nn.functional.conv2d(x, kernel, padding="same"), (2, *size))
    bound = zero_padded_norm(kernel, *size)
    assert spectral_norm(padded) <= bound
    assert spectral_norm(circular) <= bound <= spectral_norm(circular) * (1 + 1e-8)


@pytest.mark.parametrize("longer", [1.5, 3.0])
def test_a_convex_potential_layer_with_a_step_too_long_gets_its_true_constant(longer, monkeypatch):
    layer = CplFc(6, 4, activation=nn.ReLU()).requires_grad_(False)
    scaled, step = layer.double().operators()
    layer.bias.fill_(1e3)  # all units are active
    monkeypatch.setattr(CplFc, "operators", lambda self, *size: (scaled, longer * step))
    net = Network([layer], outputs=6, gamma=1.0)
    (broken,) = steps(net, torch.zeros(1, 6, dtype=torch.float64))
    assert broken.lipschitz == pytest.approx(jacobian_norm(net, torch.randn(6, dtype=torch.float64)), rel=1e-8)
    assert broken.lipschitz > 1.4


def sequential(weights: np.ndarray, x: np.ndarray) -> np.float32:
    """Sum products from the first to the last, rounding each time."""
    total = np.float32(0)
    for w, value in zip(weights, x, strict=True):
        total = np.float32(total + np.float32(w * value))
    return total


@pytest.mark.parametrize("n", [2, 30, 1000])
def test_no_order_of_summation_is_outside_the_bound_and_one_comes_near_to_it(n):
    unit = 2.0**-24
    ones, x = np.ones(n, np.float32), np.full(n, unit, np.float32)
    x[0] = 1  # each addition of u to 1 is rounded to 1: n - 1 errors of u
    step = Affine(Matrix(torch.ones(1, n)), None, False, math.sqrt(n))
    exact, error = step.run(torch.tensor(x)[None].double(), torch.float32)
    off = abs(float(exact) - float(sequential(ones, x)))
    assert off == pytest.approx((n - 1) * unit)
    assert off <= float(error) <= 1.01 * (n + 4) * unit
    random = np.random.default_rng(0)
    for _ in range(20):
        w, x = random.normal(size=(2, n)).astype(np.float32)
        orders = [np.arange(n), np.argsort(w * x), np.argsort(-w * x), np.argsort(np.abs(w * x)), random.permutation(n)]
        exact, error = Affine(Matrix(torch.tensor(w)[None]), None, False, 1.0).run(
            torch.tensor(x)[None].double(), torch.float32
        )
        assert all(abs(float(exact) - float(sequential(w[o], x[o]))) <= float(error) for o in orders)


def test_where_terms_cancel_the_bound_is_half_of_the_usual_one_and_still_above_the_worst_order():
    n, unit = 2000, 2.0**-24
    x = np.ones(n, np.float32)
    w = np.where(np.arange(n) < n // 2, 1.0, -1.0).astype(np.float32)
    w *= 1 + np.random.default_rng(0).uniform(0, 1e-3, n).astype(np.float32)
    step = Affine(Matrix(torch.tensor(w)[None]), None, False, 1.0)
    exact, error = step.run(torch.tensor(x)[None].double(), torch.float32)
    off = abs(float(exact) - float(sequential(w, x)))
    assert off <= float(error) <= 0.51 * (n + 8) * unit * float(np.abs(w).sum())


def test_numbers_lost_to_underflow_are_counted():
    tiny = torch.full((1, 50), 1e-30)
    step = Affine(Matrix(1e-30 * torch.ones(3, 50)), None, False, 1.0)
    exact, error = step.run(tiny.double(), torch.float32)
    assert float((tiny @ (1e-30 * torch.ones(3, 50)).mT).abs().max()) == 0
    assert float(error) >= float(exact.norm()) > 0


@pytest.mark.parametrize("size", [(8, 8), (5, 6), (9, 7), (2, 1)])
def test_spectral_maps_are_circular_convolutions_and_their_errors_cover_what_runs(size):
    kernel, bias = torch.randn(4, 3, 3, 3), torch.randn(4)
    matrices = real_form(kernel_spectrum(kernel.double(), *size)).float()
    spectral, x = Spectral(matrices, *size), torch.randn(6, 3, *size)
    norm = max(float(torch.linalg.matrix_norm(m.double(), 2)) for m in matrices) * 1.0001
    exact, error = spectral.run(x.double(), bias.double(), torch.float32, norm)
    expected = circular_convolution(x.double(), kernel.double()) + bias.double()[:, None, None]
    torch.testing.assert_close(exact, expected, rtol=1e-5, atol=1e-5)
    computed = convolve(x, matrices) + bias[:, None, None]
    off = (computed.double() - exact).flatten(1).norm(dim=1)
    assert (off <= error).all()
    assert (error < 1e-3 * exact.flatten(1).norm(dim=1)).all()
    weights = torch.tensor([1.0, 100.0, 0.01, 1.0]).double()
    _, heavy = spectral.run(x.double(), bias.double(), torch.float32, 100 * norm, rows=weights)
    assert ((weights[:, None, None] * (computed.double() - exact)).flatten(1).norm(dim=1) <= heavy).all()


def test_no_order_of_summation_in_the_transform_of_a_spectral_map_is_outside_the_bound():
    n, unit = 256, 2.0**-24
    wave, x = np.full(n, 1 / 16, np.float32), np.full(n, unit, np.float32)
    x[0] = 1
    off = abs(math.fsum(wave * x) - float(sequential(wave, x)))
    assert off == pytest.approx((n - 1) * unit / 16)
    identity = Spectral(real_form(kernel_spectrum(torch.ones(1, 1, 1, 1), 1, n)), 1, n)
    _, error = identity.run(torch.tensor(x).double().view(1, 1, 1, n), None, torch.float32, 1.0)
    assert off <= float(error)


def test_the_rounding_of_a_residual_layers_scaled_input_counts_even_if_nothing_is_taken_from_it():
    layer, x = CplFc(24, 4, scale=1 / 3).requires_grad_(False), torch.randn(20, 24)
    layer.weight.zero_()
    (step,) = steps(Network([layer], outputs=24, gamma=1.0), x[:1])
    exact, error = step.run(x.double(), torch.float32)
    off = (layer(x).double() - exact).norm(dim=1)
    assert (off > 0).all()
    assert (off <= error).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 7, 8, 32])
def test_waves_are_within_what_is_assumed_of_them(dtype, size):
    x = np.arange(size)
    pairs = [[math.sqrt(2) * f(2 * math.pi * (k * j % size) / size) for j in x] for f in (math.cos, math.sin)
             for k in range(1, (size + 1) // 2)]  # fmt: skip
    alone = [[1.0] * size] if size % 2 else [[1.0] * size, [(-1.0) ** j for j in x]]
    exact = np.abs(np.array([*alone, *pairs]) / math.sqrt(size))
    basis = _basis(size, False, dtype, torch.device("cpu")).double().abs().numpy()
    allowed = torch.finfo(dtype).eps / 2 * exact + 64 * 2**-53 * math.sqrt(2 / size)
    assert (np.abs(basis - exact) <= allowed).all()


def test_normalised_input_is_within_its_bound():
    norm = InputNormalization([0.1, 0.5, 0.9], [0.3, 0.2, 0.25])
    net = Network([nn.Flatten(), AolLin(3 * 64, 2)], outputs=2, gamma=1.0, normalization=norm).requires_grad_(False)
    x = torch.rand(10, 3, 8, 8)
    first = steps(net, x[:1])[0]
    exact, error = first.run(x.double(), torch.float32)
    assert ((norm(x).double() - exact).flatten(1).norm(dim=1) <= error).all()
    assert first.lipschitz == pytest.approx(1 / 0.2, rel=1e-6)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: SandwichFc(4, 3, activation=torch.tanh), "take ReLU, got"),
        (lambda: AolFc(4, 3, activation=nn.Sigmoid()), "take ReLU, got"),
        (lambda: nn.Linear(4, 3), "rounding of layers of type Linear"),
        (lambda: PlainFc(4, 3), "rounding of layers of type PlainFc"),
    ],
)
def test_layers_about_which_nothing_is_known_are_an_error(layer, message):
    with pytest.raises(ValueError, match=message):
        steps(Network([layer()], outputs=3, gamma=1.0), torch.zeros(1, 4))


def test_pooling_that_is_not_one_lipschitz_is_an_error():
    for pool in (nn.AvgPool2d(2), nn.AvgPool2d(2, stride=1, divisor_override=2)):
        with pytest.raises(ValueError, match="takes average pooling of k x k pixels"):
            steps(Network([pool], outputs=3, gamma=1.0), torch.zeros(1, 3, 8, 8))


def test_networks_without_a_bound_or_of_several_precisions_are_an_error():
    with pytest.raises(ValueError, match="without a Lipschitz bound can't be certified"):
        steps(Network([AolLin(4, 3)], outputs=3, gamma=None), torch.zeros(1, 4))
    net = Network([AolLin(4, 3)], outputs=3, gamma=1.0)
    with pytest.raises(ValueError, match=r"in one precision, got torch\.float32, torch\.float64"):
        steps(net, torch.zeros(1, 4).double())
    with pytest.raises(ValueError, match=r"float32 or float64, got torch\.bfloat16"):
        steps(copy.deepcopy(net).bfloat16(), torch.zeros(1, 4).bfloat16())
    assert math.isfinite(steps(copy.deepcopy(net).double(), torch.zeros(1, 4).double())[0].lipschitz)
