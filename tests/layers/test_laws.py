"""What every layer with a bound promises, whatever its family."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from lbdn.layers import (
    AolConv,
    AolFc,
    AolLin,
    BcopConv,
    BcopFc,
    BcopLin,
    CplConv,
    CplFc,
    LotConv,
    LotFc,
    LotLin,
    OrthogonalConv,
    OrthogonalFc,
    OrthogonalLin,
    PlainConv,
    SandwichConv,
    SandwichFc,
    SandwichLin,
    SllConv,
    SllFc,
    SocConv,
    SocFc,
    SocLin,
    SpectralConv,
    SpectralFc,
    SpectralLin,
)
from tests.oracles import assert_lipschitz, perturb, ratios

DENSE = [SandwichFc, SandwichLin, OrthogonalFc, OrthogonalLin, AolFc, AolLin]
DENSE += [SpectralFc, SpectralLin, BcopFc, BcopLin, SocFc, SocLin, LotFc, LotLin]
RESIDUAL = [SllFc, CplFc]
WIDTHS = [(3, 6), (4, 4), (6, 3), (1, 5), (5, 1)]
STRIDED = [SandwichConv, OrthogonalConv, SpectralConv, BcopConv, SocConv, LotConv]
CONVOLUTIONS = [*STRIDED, AolConv]
RESIDUAL_CONVOLUTIONS = [SllConv, CplConv]
CHANNELS = [(2, 3), (3, 3), (3, 2), (1, 3)]

LAYERS = (
    {f"{layer.__name__}-{p}x{q}": (partial(layer, p, q), (p,)) for layer in DENSE + RESIDUAL for p, q in WIDTHS}
    | {
        f"{layer.__name__}-{p}x{q}": (partial(layer, p, q), (p, 3, 2))
        for layer in CONVOLUTIONS + RESIDUAL_CONVOLUTIONS
        for p, q in CHANNELS
    }
    | {
        f"{layer.__name__}-{p}x{q}-stride2": (partial(layer, p, q, k, stride=2), (p, 4, 2))
        for layer in STRIDED
        for p, q, k in [(1, 6, 3), (1, 3, 3), (2, 3, 5)]
    }
)
FIRST = {case[0].func: name for name, case in reversed(LAYERS.items())}
ONE_EACH = {name: LAYERS[name] for name in FIRST.values()}
WITH_ACTIVATION = {name: case for name, case in LAYERS.items() if "Lin" not in name}
IMAGES = {name: case for name, case in LAYERS.items() if "Conv" in name}
WITH_GAIN = {name: case for name, case in LAYERS.items() if name.startswith(("Sandwich", "Orthogonal"))}


def each(layers):
    return pytest.mark.parametrize(("build", "shape"), layers.values(), ids=list(layers))


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def weights(layer):
    return layer.stacked if hasattr(layer, "stacked") else layer.weight


def fill(values):
    def change(layer, shape):
        for parameter in layer.parameters():
            parameter.fill_(values)

    return change


def zero_weights(layer, shape):
    weights(layer).zero_()


def zero_filters(layer, shape):
    weights(layer)[0] = 0
    weights(layer)[:, -1] = 0


def multiply_weights(factor):
    def change(layer, shape):
        weights(layer).mul_(factor)

    return change


def spread_diagonals(layer, shape):
    for name, parameter in layer.named_parameters():
        if name in ("log_psi", "log_q"):
            parameter.normal_(std=3)


def train(layer, shape):
    """Train with a large learning rate, to break the bound."""
    for _ in training(layer, shape, steps=6):
        pass


@torch.enable_grad()
def training(layer, shape, steps):
    dtype = next(layer.parameters()).dtype
    optimizer = torch.optim.Adam(layer.parameters(), lr=1.0)
    for _ in range(steps):
        x, y = torch.randn(2, 8, *shape, dtype=dtype)
        optimizer.zero_grad()
        (-ratios(layer, x, y).sum()).backward()
        optimizer.step()
        yield layer


STATES = {
    "initial": lambda layer, shape: None,
    "perturbed": lambda layer, shape: perturb(layer),
    "trained": train,
    "zero": fill(0),
    "one": fill(1),
    "zero weights": zero_weights,
    "zero filters": zero_filters,
    "weights times 1e4": multiply_weights(1e4),
    "weights times 1e-20": multiply_weights(1e-20),
    "spread diagonals": spread_diagonals,
}


@pytest.fixture(params=STATES)
def change(request):
    return torch.no_grad()(STATES[request.param])


@each(LAYERS)
@dtypes
def test_a_layer_of_scale_s_is_s_lipschitz_for_all_parameters(build, shape, dtype, change):
    layer = build(scale=1.5).to(dtype)
    change(layer, shape)
    assert_lipschitz(layer, shape, 1.5, dtype)


@each(LAYERS)
def test_a_layer_with_another_scale_is_flagged(build, shape):
    layer = build().double()
    layer.scale *= 5
    with pytest.raises(AssertionError, match="above 1"):
        assert_lipschitz(layer, shape, 1)


@each(LAYERS)
@pytest.mark.parametrize("scale", [0.3, 7])
def test_the_bound_is_the_scale(build, shape, scale):
    layer = perturb(build(scale=scale).double())
    assert_lipschitz(layer, shape, scale)


@each(LAYERS)
def test_the_bound_holds_after_every_optimizer_step(build, shape):
    for layer in training(build(), shape, steps=4):
        assert_lipschitz(layer, shape, 1, torch.float32)


@each(WITH_GAIN)
@dtypes
@pytest.mark.parametrize("gain", [1e2, 1e4])
def test_the_bound_holds_for_a_large_gain(build, shape, dtype, gain):
    for _ in range(3):
        layer = build().to(dtype)
        layer.gain.data.fill_(gain)
        assert_lipschitz(layer, shape, 1, dtype)


@each(WITH_ACTIVATION)
@pytest.mark.parametrize(
    "activation", [torch.tanh, nn.LeakyReLU(0.1), nn.Identity()], ids=["tanh", "leaky ReLU", "identity"]
)
def test_the_bound_holds_for_other_activations(build, shape, activation):
    assert_lipschitz(perturb(build(activation=activation).double()), shape, 1)


@each({name: case for name, case in ONE_EACH.items() if name in WITH_ACTIVATION})
def test_an_activation_that_is_not_1_lipschitz_is_flagged(build, shape):
    with pytest.raises(AssertionError, match="above 1"):
        assert_lipschitz(build(activation=lambda x: -20 * x).double(), shape, 1)


@each(IMAGES)
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (5, 5), (6, 3)])
def test_the_bound_holds_at_every_image_size(build, shape, size):
    layer = perturb(build().double())
    stride = getattr(layer, "stride", 1)
    assert_lipschitz(layer, (shape[0], *(stride * pixels for pixels in size)), 1)


@each(ONE_EACH)
def test_evaluation_mode_changes_nothing(build, shape):
    layer, x = build(), torch.randn(3, *shape)
    assert torch.equal(layer.train()(x), layer.eval()(x))


@each(LAYERS)
def test_a_copy_a_loaded_layer_and_a_layer_in_float64_agree_and_keep_the_bound(build, shape):
    layer, fresh, x = perturb(build()), build(), torch.randn(3, *shape)
    fresh.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert torch.equal(fresh(x), layer(x))
    torch.testing.assert_close(copy.deepcopy(layer).double()(x.double()).float(), layer(x), rtol=1e-3, atol=1e-3)
    assert_lipschitz(fresh, shape, 1, torch.float32)


def assert_no_hidden_state(layer, shape):
    x = torch.randn(3, *shape)
    other = torch.randn(2, *shape) if len(shape) == 1 else torch.randn(2, shape[0], *(2 * s for s in shape[1:]))
    first = layer(x)
    assert torch.equal(first, layer(x))
    layer(other)
    assert torch.equal(first, layer(x))


@each(LAYERS)
def test_a_layer_has_no_hidden_state(build, shape):
    assert_no_hidden_state(build(), shape)


def test_a_running_mean_is_flagged():
    class Running(AolFc):
        mean = 0.0

        def transform(self, x, *operators):
            self.mean = 0.9 * self.mean + 0.1 * x.mean()
            return super().transform(x - self.mean, *operators)

    with pytest.raises(AssertionError):
        assert_no_hidden_state(Running(3, 4), (3,))


def assert_all_parameters_are_trained(layer, shape):
    before = dict(layer.named_parameters())
    layer(torch.randn(3, *shape)).square().sum().backward()
    after = dict(layer.named_parameters())
    assert before.keys() == after.keys() == layer.state_dict().keys()
    for name, parameter in after.items():
        assert parameter is before[name]
        assert parameter.requires_grad
        assert parameter.grad is not None, name


@each(ONE_EACH)
@pytest.mark.parametrize("bias", [True, False])
def test_all_parameters_exist_from_the_constructor_on_and_are_trained(build, shape, bias):
    assert_all_parameters_are_trained(build(bias=bias), shape)


def test_a_parameter_made_late_and_one_without_gradient_are_flagged():
    class Lazy(AolFc):
        def operators(self, *size):
            self.late = nn.Parameter(torch.ones(()))
            return super().operators(*size)

    class Idle(AolFc):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.idle = nn.Parameter(torch.ones(()))

    for broken in (Lazy, Idle):
        with pytest.raises(AssertionError):
            assert_all_parameters_are_trained(broken(3, 4), (3,))


def assert_finite_gradients(layer, shape):
    layer.zero_grad()
    x = torch.randn(3, *shape, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad.isfinite().all()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name


@each(LAYERS)
@pytest.mark.parametrize("state", [state for state in STATES if state != "weights times 1e-20"])
def test_gradients_are_finite(build, shape, state):
    layer = build()
    torch.no_grad()(STATES[state])(layer, shape)
    assert_finite_gradients(layer, shape)


def test_a_division_by_the_norm_of_a_zero_filter_is_flagged():
    class Careless(AolLin):
        def operators(self, *size):
            return (self.weight / self.weight.norm(dim=0),)

    layer = Careless(3, 4)
    with torch.no_grad():
        zero_weights(layer, (3,))
    with pytest.raises(AssertionError):
        assert_finite_gradients(layer, (3,))


@each(ONE_EACH)
def test_inputs_of_another_size_are_value_errors_that_say_so(build, shape):
    layer = build()
    channels = torch.randn(3, shape[0] + 1, *shape[1:])
    with pytest.raises(ValueError, match=rf"takes .*\b{shape[0]}\b.*got .*\b{shape[0] + 1}\b"):
        layer(channels)
    if len(shape) == 3:
        with pytest.raises(ValueError, match="takes images"):
            layer(torch.randn(*shape))


@pytest.mark.parametrize("layer", STRIDED)
@pytest.mark.parametrize("size", [(3, 4), (4, 3)])
def test_odd_images_are_value_errors_at_stride_2(layer, size):
    with pytest.raises(ValueError, match=f"even height and width, got {size[0]} x {size[1]}"):
        layer(1, 2, stride=2)(torch.randn(1, 1, *size))


@each(ONE_EACH)
@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), "1", None])
def test_a_scale_that_is_not_positive_and_finite_is_a_value_error(build, shape, scale):
    with pytest.raises(ValueError, match=f"scale takes .*got {scale!r}"):
        build(scale=scale)


@pytest.mark.parametrize("layer", [*DENSE, *RESIDUAL, *CONVOLUTIONS, *RESIDUAL_CONVOLUTIONS])
@pytest.mark.parametrize("sizes", [(0, 2), (2, -1), (2.0, 2)])
def test_layer_sizes_that_are_not_positive_whole_numbers_are_value_errors(layer, sizes):
    with pytest.raises(ValueError, match="takes a positive whole number, got"):
        layer(*sizes)


@pytest.mark.parametrize("layer", [PlainConv, AolConv, SllConv, CplConv])
def test_an_even_kernel_of_a_zero_padded_convolution_is_a_value_error(layer):
    with pytest.raises(ValueError, match=r"odd number.*got 4"):
        layer(2, 2, 4)


@pytest.mark.parametrize("layer", STRIDED)
def test_a_stride_other_than_1_and_2_is_a_value_error(layer):
    with pytest.raises(ValueError, match="stride takes 1 or 2, got 3"):
        layer(2, 2, stride=3)
