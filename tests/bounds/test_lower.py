"""Empirical lower bounds: below the Lipschitz constant, close to it where it is known, with a witness."""

import copy

import pytest
import torch
from torch import nn

from lbdn import build_network
from lbdn.bounds import empirical_lower_bound, layer_lower_bounds, lower
from lbdn.layers import AolLin, InputNormalization, OrthogonalFc, OrthogonalLin, SandwichFc, SandwichLin, freeze
from lbdn.networks import Network

ROUNDING = 1 + 1e-9
QUICK = {"steps": 10, "pairs": 16}


class Function(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def ratio_in_float64(network: nn.Module, x1: torch.Tensor, x2: torch.Tensor) -> float:
    exact = copy.deepcopy(network).double().eval()
    with torch.no_grad():
        return float((exact(x2[None]) - exact(x1[None])).norm() / (x2 - x1).norm())


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (1, 6), (6, 1), (8, 5), (5, 8)])
def test_the_search_finds_the_spectral_norm_of_a_linear_map_and_no_more(inputs, outputs):
    layer = nn.Linear(inputs, outputs)
    norm = float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))
    found = empirical_lower_bound(layer, torch.randn(10, inputs), steps=20, pairs=16).ratio
    assert 0.99 * norm <= found <= norm * ROUNDING


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (lambda x: torch.relu(5 * x), 5),
        (torch.sin, 1),
        (lambda x: x.abs() - 3 * torch.relu(x - 1), 2),
        (lambda x: 0.1 * x + 2 * torch.relu(x - 1) - 2 * torch.relu(x - 1.3), 2.1),
    ],
)
def test_the_search_finds_the_steepest_slope_of_a_curve_and_no_more(function, constant):
    inputs = torch.linspace(-2, 2, 50)[:, None]
    found = empirical_lower_bound(Function(function), inputs, steps=20, pairs=32).ratio
    assert 0.99 * constant <= found <= constant * ROUNDING


def test_a_constant_has_the_lower_bound_zero():
    assert empirical_lower_bound(Function(lambda x: 0 * x), torch.randn(5, 3), **QUICK).ratio == 0


FAMILIES = ["aol", "orthogonal", "sll", "sandwich"]


@pytest.mark.parametrize("gamma", [0.5, 10.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_bounded_networks_lower_bound_is_positive_and_never_above_its_upper_bound(family, gamma):
    network = build_network("mlp", family, gamma=gamma, input_shape=(6,), outputs=4)
    for seed in range(2):
        found = empirical_lower_bound(network, torch.randn(20, 6), seed=seed, **QUICK).ratio
        assert 0 < found <= gamma * ROUNDING


def test_on_pixels_the_bound_of_pixels_holds_and_that_of_normalised_input_does_not():
    body = [nn.Flatten(), OrthogonalLin(4, 4)]
    network = Network(body, outputs=body[-1].outputs, gamma=1.0, normalization=InputNormalization([0.5], [0.2]))
    found = empirical_lower_bound(network, torch.rand(20, 1, 2, 2), **QUICK).ratio
    assert network.gamma == 1
    assert 0.99 * 5 < found <= network.pixel_gamma * ROUNDING


def test_a_layer_that_breaks_its_promise_is_found_out():
    layer = SandwichLin(6, 4)
    with torch.no_grad():
        layer.stacked.mul_(5)
        layer.gain.mul_(5)
    assert empirical_lower_bound(layer, torch.randn(9, 6), **QUICK).ratio <= ROUNDING
    promised, layer.scale = layer.scale, 1.5
    assert empirical_lower_bound(layer, torch.randn(9, 6), **QUICK).ratio > promised * 1.1


@pytest.mark.parametrize("shape", [(6,), (1, 8, 8)])
def test_the_witness_reproduces_the_ratio_in_float64(shape):
    architecture = "mlp" if shape == (6,) else "kwlarge"
    size = "small" if shape == (6,) else "tiny"
    network = build_network(architecture, "sandwich", size=size, gamma=3.0, input_shape=shape, outputs=4)
    found = empirical_lower_bound(network, torch.rand(20, *shape), steps=10, pairs=4)
    assert (found.x1.dtype, found.x1.shape, found.x2.shape) == (torch.float64, shape, shape)
    assert ratio_in_float64(network, found.x1, found.x2) == pytest.approx(found.ratio, rel=1e-9)


def test_the_search_takes_a_fifth_of_the_forward_passes_of_ten_restarts_of_fifty_steps_on_64_pairs():
    layer, passes = nn.Linear(6, 4), []
    layer.register_forward_hook(lambda _module, inputs, _output: passes.append(len(inputs[0])))
    empirical_lower_bound(layer, torch.randn(20, 6))
    assert 0 < sum(passes) <= 10 * 51 * 64 * 2 / 5


def test_a_round_has_half_of_the_pairs_and_twice_the_steps_of_the_one_before():
    layer, passes = nn.Linear(6, 4), []
    layer.register_forward_hook(lambda _module, inputs, _output: passes.append(len(inputs[0])))
    empirical_lower_bound(layer, torch.randn(20, 6), pairs=16, steps=3)
    first = passes.index(32)
    assert passes[first : first + 93] == [32] * 3 + [16] * 6 + [8] * 12 + [4] * 24 + [2] * 48


def curved(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.sin(3 * x).sum(1, keepdim=True), x.square().sum(1, keepdim=True), x[:, :1] * x[:, 1:2]], 1)


def ratio(function, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    return (function(x2) - function(x1)).norm(dim=1) / (x2 - x1).norm(dim=1)


def test_bisection_never_loses_slope_and_ends_near_the_steepest_point_of_a_convex_rise():
    x1 = torch.randn(50, 4, dtype=torch.float64)
    x2 = x1 + torch.randn(50, 4, dtype=torch.float64)
    near1, near2 = lower._bisect(curved, x1, x2, 1e-6)
    assert (ratio(curved, near1, near2) >= ratio(curved, x1, x2) * (1 - 1e-9)).all()
    assert (ratio(curved, near1, near2) > 1.05 * ratio(curved, x1, x2)).sum() > 25
    other = (x1 + x2) / 2, (x1 + x2) / 2 + 1e-4 * (x2 - x1)  # any other piece may lose
    assert not (ratio(curved, *other) >= ratio(curved, x1, x2) * (1 - 1e-9)).all()
    assert ((near2 - near1).norm(dim=1) >= 1e-6).all()
    ends = lower._bisect(lambda x: x.square(), torch.zeros(1, 1), torch.ones(1, 1), 1e-6)
    assert ends[1].item() == 1


def test_no_piece_is_shorter_than_the_shortest():
    x1, x2 = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    near1, near2 = lower._bisect(lambda x: x.square(), x1, x2, 0.2)
    assert (near2 - near1).item() == 0.25


def test_power_iteration_finds_the_spectral_norm_of_the_jacobian_of_a_piecewise_linear_network():
    network = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 5)).double()
    x = torch.randn(8, 6, dtype=torch.float64)
    delta = 1e-6 * torch.randn(8, 6, dtype=torch.float64)
    jacobians = [torch.autograd.functional.jacobian(network, point) for point in x]
    norms = torch.stack([torch.linalg.matrix_norm(jacobian, 2) for jacobian in jacobians])
    steep = lower._steepest(network, x, delta, 200)
    assert torch.allclose(steep.norm(dim=1), delta.norm(dim=1))
    assert torch.allclose(ratio(network, x, x + steep), norms, rtol=1e-6)
    assert not torch.allclose(ratio(network, x, x + delta), norms, rtol=0.05)
    assert torch.equal(lower._steepest(lambda z: 0 * z, x, delta, 3), delta)


@pytest.mark.parametrize(
    ("function", "inputs", "constant"),
    [
        pytest.param(lambda x: torch.relu(x) - torch.relu(x - 0.01), torch.zeros(1, 1), 1, id="bisection"),
        pytest.param(lambda x: x * torch.tensor([1] + 19 * [0.8]).to(x), torch.zeros(1, 20), 1, id="last turns"),
        # Steeper on the positive side, but in one direction of a hundred only.
        pytest.param(
            lambda x: torch.where(x[:, :1] > 0, 2 * x * torch.eye(100)[0].to(x), x),
            torch.tensor([[100.0], [-100.0]]).expand(2, 100),
            2,
            id="first turns",
        ),
    ],
)
def test_each_part_of_the_search_finds_what_the_others_miss(function, inputs, constant):
    """At a learning rate of next to nothing, where ascent can't make up for a part that is missing."""
    found = empirical_lower_bound(Function(function), inputs, pairs=32, steps=1, learning_rate=1e-9).ratio
    assert found == pytest.approx(constant, rel=1e-4)


def test_rounding_is_not_taken_for_slope():
    noise = Function(lambda x: x + 1e-9 * torch.frac(1e12 * x))
    found = empirical_lower_bound(noise, torch.linspace(0, 1, 20)[:, None], pairs=64, steps=50, radius=0.05)
    assert (found.x2 - found.x1).norm() >= 1e-4 * 0.05 * 0.99
    assert found.ratio <= 1 + 1e-9 / (1e-4 * 0.05) * 1.01


def test_what_was_found_is_kept_when_the_search_leaves_it():
    ramp = Function(lambda x: 0.1 * x + torch.relu(x) - torch.relu(x - 1))
    inputs = torch.linspace(0.2, 0.8, 20)[:, None]
    found = empirical_lower_bound(ramp, inputs, steps=30, pairs=8, learning_rate=1000).ratio
    assert found == pytest.approx(1.1, rel=1e-6)


def snapshot(network: nn.Module) -> list:
    tensors = [t.clone() for t in [*network.parameters(), *network.buffers()]]
    flags = [(p.requires_grad, p.dtype, None if p.grad is None else p.grad.clone()) for p in network.parameters()]
    return [tensors, flags, [(name, module.training) for name, module in network.named_modules()]]


def same(first: list, second: list) -> bool:
    tensors = all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    flags = all(
        a[:2] == b[:2] and ((a[2] is None) == (b[2] is None)) and (a[2] is None or torch.equal(a[2], b[2]))
        for a, b in zip(first[1], second[1], strict=True)
    )
    return tensors and flags and first[2] == second[2]


def test_the_search_leaves_network_inputs_and_random_state_as_they_were():
    network = nn.Sequential(SandwichFc(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), AolLin(5, 3))
    network[0].bias.requires_grad_(False)
    network(torch.randn(7, 4)).sum().backward()
    network[1].eval()
    inputs = torch.randn(6, 4, requires_grad=True)
    inputs.grad = torch.ones(6, 4)
    before, copied, state = snapshot(network), inputs.detach().clone(), torch.get_rng_state()
    empirical_lower_bound(network, inputs, **QUICK)
    assert same(snapshot(network), before)
    assert torch.equal(inputs, copied)
    assert torch.equal(inputs.grad, torch.ones(6, 4))
    assert inputs.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    network[2].train(False)
    assert not same(snapshot(network), before)


def test_the_search_depends_on_its_seed_alone():
    network, inputs = SandwichFc(4, 5), torch.randn(20, 4)
    torch.manual_seed(1)
    first = empirical_lower_bound(network, inputs, steps=3, pairs=4, seed=7)
    torch.manual_seed(2)
    again = empirical_lower_bound(network, inputs, steps=3, pairs=4, seed=7)
    other = empirical_lower_bound(network, inputs, steps=3, pairs=4, seed=8)
    assert (first.ratio, first.x1.tolist()) == (again.ratio, again.x1.tolist())
    assert first.x1.tolist() != other.x1.tolist()


def test_the_search_works_where_gradients_are_switched_off():
    layer = OrthogonalLin(4, 4)
    expected = empirical_lower_bound(layer, torch.ones(2, 4), **QUICK).ratio
    with torch.no_grad():
        assert empirical_lower_bound(layer, torch.ones(2, 4), **QUICK).ratio == expected


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_network_that_is_not_finite_is_refused(number):
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.fill_(number)
    with pytest.raises(ValueError, match="no pair with a finite ratio"):
        empirical_lower_bound(layer, torch.randn(5, 3), **QUICK)


def test_no_inputs_are_an_error():
    with pytest.raises(ValueError, match="at least one input"):
        empirical_lower_bound(nn.Linear(3, 2), torch.empty(0, 3), **QUICK)


@pytest.mark.parametrize("pairs", [0, -1])
def test_no_pairs_are_an_error(pairs):
    with pytest.raises(ValueError, match=f"pairs takes a positive whole number, got {pairs}"):
        empirical_lower_bound(nn.Linear(3, 2), torch.randn(5, 3), pairs=pairs)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_layers_lower_bound_is_at_most_its_scale(family):
    network = build_network("mlp", family, gamma=4.0, input_shape=(6,), outputs=4)
    ratios = layer_lower_bounds(network, torch.randn(20, 6), **QUICK)
    assert len(ratios) == (3 if family == "sll" else 4)
    assert all(0 < ratio <= ROUNDING for ratio in ratios)


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_orthogonal_layers_reach_their_scale_and_a_broken_one_exceeds_it(scale):
    network = Network([OrthogonalFc(6, 5, scale=scale), OrthogonalLin(5, 4, scale=scale)], outputs=4, gamma=scale**2)
    with torch.no_grad():
        network.body[0].bias.fill_(100)  # far from the kinks
    ratios = layer_lower_bounds(network, torch.randn(20, 6), steps=20, pairs=16)
    assert ratios == pytest.approx([1, 1], rel=0.01)
    network.body[1].transform = lambda x, *operators: 1.1 * x
    assert layer_lower_bounds(network, torch.randn(20, 6), **QUICK)[1] == pytest.approx(1.1 / scale)


def test_each_layers_search_starts_from_what_reaches_it_behind_the_normalisation():
    network = build_network("mlp", "orthogonal", input_shape=(1, 2, 2), outputs=4, normalization=([0.5], [0.01]))
    seen = []
    network.body[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    images = torch.rand(20, 1, 2, 2)
    layer_lower_bounds(network, images, steps=1, pairs=4)
    reaching = network.normalization(images).flatten(1)
    assert any(torch.equal(x, reaching) for x in seen)


@pytest.mark.parametrize(("size", "radius"), [(255, 1e-3), (6e4, 0.15), (1e6, 1.0)])
def test_rounding_of_large_inputs_is_not_taken_for_slope(size, radius):
    layer = OrthogonalLin(8, 8)
    found = empirical_lower_bound(layer, size * torch.rand(20, 8), radius=radius, **QUICK).ratio
    assert 0.99 <= found <= 1 + 1e-8


def test_a_radius_below_what_inputs_resolve_is_an_error():
    with pytest.raises(ValueError, match=r"raise radius, now 0\.15"):
        empirical_lower_bound(OrthogonalLin(8, 8), 1e12 * torch.rand(20, 8), **QUICK)


def test_a_frozen_network_has_the_bounds_of_the_network():
    network = build_network("mlp", "orthogonal", input_shape=(1, 3, 3), outputs=2)
    x = torch.rand(4, 1, 3, 3)
    frozen = freeze(network)
    frozen(x)
    for search in (empirical_lower_bound, layer_lower_bounds):
        expected, actual = (search(n, x, steps=2, pairs=4) for n in (network, frozen))
        assert getattr(actual, "ratio", actual) == pytest.approx(getattr(expected, "ratio", expected), rel=1e-6)
