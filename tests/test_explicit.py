"""Explicit weights and the way back: the two directions of the theorem that the parameterization is complete."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from lbdn.bounds import lmi_blocks, lmi_matrix, with_slack
from lbdn.cayley import cayley, inverse_cayley
from lbdn.explicit import Explicit, direct, explicit, linear_factors
from lbdn.layers import OrthogonalFc, OrthogonalLin, SandwichFc, SandwichLin, freeze
from lbdn.networks import Network, build_network
from lbdn.verify import proves_lipschitz_bound
from tests.oracles import perturb

GAMMA = 3.0
WIDTHS = [(3, 6, 4, 5, 2), (1, 8, 8, 1), (5, 2, 6, 3), (4, 3, 7), (2, 1, 1, 2)]


class Sloped(nn.Module):
    """A leaky rectifier that neither its name nor its state tells from another."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return torch.maximum(x, self.slope * x)


def sandwich(*widths: int) -> Network:
    """A network whose every parameter is random."""
    pairs = list(pairwise(widths))
    layers = [SandwichFc(p, q, scale=math.sqrt(GAMMA) if k == 0 else 1.0) for k, (p, q) in enumerate(pairs[:-1])]
    layers.append(SandwichLin(*pairs[-1], scale=math.sqrt(GAMMA)))
    return perturb(Network(layers, outputs=widths[-1], gamma=GAMMA).double(), spread=0.5)


def dense_lmi(weights, multipliers, gamma: float) -> np.ndarray:
    """H of the paper's theorem, with U, W, Y and Lambda of its compact form, by NumPy."""
    weights, hidden = [np.asarray(W) for W in weights], [len(m) for m in multipliers]
    Lambda = np.diag(np.concatenate([np.asarray(m) for m in multipliers]))
    n, n0, outputs = sum(hidden), weights[0].shape[1], len(weights[-1])
    U, W, Y = np.zeros((n, n0)), np.zeros((n, n)), np.zeros((outputs, n))
    U[: hidden[0]], Y[:, n - hidden[-1] :] = weights[0], weights[-1]
    starts = np.cumsum([0, *hidden])
    for k, inner in enumerate(weights[1:-1]):
        W[starts[k + 1] : starts[k + 2], starts[k] : starts[k + 1]] = inner
    return np.block(
        [
            [gamma * np.eye(n0), -U.T @ Lambda, np.zeros((n0, outputs))],
            [-Lambda @ U, 2 * Lambda - Lambda @ W - W.T @ Lambda, -Y.T],
            [np.zeros((outputs, n0)), -Y, gamma * np.eye(outputs)],
        ]
    )


def smallest_eigenvalue(form: Explicit) -> float:
    return float(np.linalg.eigvalsh(dense_lmi(form.weights, form.multipliers, form.gamma))[0])


def on_the_boundary(*widths: int, seed: int = 0) -> Explicit:
    """Random weights and multipliers, the weights scaled until the LMI just holds: not from any Sandwich network."""
    rng = np.random.default_rng(seed)
    weights = [torch.tensor(rng.normal(size=(q, p))) for p, q in pairwise(widths)]
    multipliers = [torch.tensor(rng.uniform(0.2, 5, size=n)) for n in widths[1:-1]]
    biases = [torch.tensor(rng.normal(size=len(W))) for W in weights]

    def scaled(factor: float) -> Explicit:
        return Explicit([factor * W for W in weights], biases, multipliers, GAMMA, torch.nn.ReLU())

    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if smallest_eigenvalue(scaled(middle)) >= 0 else (low, middle)
    return scaled(low)


def times(form: Explicit, factor: float) -> Explicit:
    return Explicit([factor * W for W in form.weights], form.biases, form.multipliers, form.gamma, form.activation)


def assert_same_weights(actual: Explicit, expected: Explicit, atol: float = 1e-10) -> None:
    for name in ("weights", "biases", "multipliers"):
        for a, b in zip(getattr(actual, name), getattr(expected, name), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=atol)
    assert actual.gamma == expected.gamma


@pytest.mark.parametrize("family", ["plain", "aol", "orthogonal", "sandwich"])
def test_plain_layers_compute_what_the_network_computes(family):
    network = perturb(build_network("mlp", family, gamma=2.0, input_shape=(1, 3, 3), outputs=4).double(), spread=0.3)
    x = 2 * torch.rand(7, 1, 3, 3, dtype=torch.float64)
    form = explicit(network)
    torch.testing.assert_close(form.plain()(x.flatten(1)), network(x), rtol=1e-10, atol=1e-10)
    assert {type(layer) for layer in form.plain()[::2]} == {torch.nn.Linear}
    assert form.gamma == (None if family == "plain" else 2.0)
    assert (form.multipliers is None) == (family != "sandwich")


@pytest.mark.parametrize("family", ["plain", "aol", "orthogonal", "sandwich"])
def test_explicit_weights_are_in_float64_and_leave_the_network_as_it_was(family):
    network = build_network("mlp", family, gamma=2.0, input_shape=(1, 2, 2), outputs=3)
    x = torch.rand(2, 1, 2, 2)
    expected = network(x)
    assert {W.dtype for W in explicit(network).weights} == {torch.float64}
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert torch.equal(network(x), expected)


def test_the_activation_of_the_layers_is_kept():
    layers = [SandwichFc(3, 4, activation=torch.tanh), SandwichLin(4, 2)]
    network = Network(layers, outputs=2, gamma=1.0).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(explicit(network).plain()(x), network(x))


@pytest.mark.parametrize(
    "layers",
    [
        [SandwichFc(4, 4), SandwichFc(4, 4)],
        [OrthogonalFc(4, 4), OrthogonalFc(4, 4)],
        [OrthogonalFc(4, 4), OrthogonalLin(4, 4), OrthogonalLin(4, 4)],
        [OrthogonalLin(4, 4), OrthogonalFc(4, 4), OrthogonalLin(4, 4)],
        [SandwichFc(4, 4, activation=nn.Tanh()), SandwichFc(4, 4), SandwichLin(4, 4)],
        [*(SandwichFc(4, 4, activation=nn.PReLU(init=slope)) for slope in (0.1, 0.2)), SandwichLin(4, 4)],
        [SandwichFc(4, 4, activation=torch.tanh), SandwichFc(4, 4, activation=torch.sin), SandwichLin(4, 4)],
        [*(SandwichFc(4, 4, activation=Sloped(slope)) for slope in (0.0, 0.9)), SandwichLin(4, 4)],
        [nn.Flatten()],
    ],
    ids=lambda layers: "-".join(type(layer).__name__ for layer in layers),
)
def test_a_network_whose_activations_come_otherwise_has_no_explicit_form(layers):
    assert explicit(Network(layers, outputs=4, gamma=1.0)) is None


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_every_sandwich_network_satisfies_the_lmi(widths):
    form = explicit(sandwich(*widths))
    assert smallest_eigenvalue(form) > -1e-12
    assert smallest_eigenvalue(times(form, 1.5)) < -1e-3


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_direct_parameters_of_explicit_weights_give_the_same_network(widths):
    network = sandwich(*widths)
    again = direct(explicit(network))
    assert_same_weights(explicit(again), explicit(network))
    x = torch.randn(9, widths[0], dtype=torch.float64)
    torch.testing.assert_close(again(x), network(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("slack", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_any_weights_for_which_the_lmi_holds_are_those_of_a_sandwich_network(widths, slack):
    form = times(on_the_boundary(*widths), slack)
    # On the boundary some A_k is singular up to the rounding of the search for it.
    assert_same_weights(explicit(direct(form)), form, atol=1e-10 if slack < 1 else 3e-7)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_weights_for_which_the_lmi_does_not_hold_are_refused(widths):
    with pytest.raises(ValueError, match="the multipliers don't prove gamma 3"):
        direct(times(on_the_boundary(*widths), 1.001))


def test_weights_may_be_zero():
    form = on_the_boundary(3, 4, 5, 2)
    for k in range(3):
        weights = [torch.zeros_like(W) if j == k else W for j, W in enumerate(form.weights)]
        zeroed = Explicit(weights, form.biases, form.multipliers, GAMMA, form.activation)
        assert_same_weights(explicit(direct(times(zeroed, 0.9))), times(zeroed, 0.9))


def test_a_layer_that_uses_its_whole_bound_may_be_followed_by_nothing_or_by_what_it_leaves():
    """A_0 is zero, or singular: its rows with B of norm one leave nothing for the layer after."""
    multipliers = [torch.tensor([1.0, 4.0, 0.25], dtype=torch.float64)]
    psi = multipliers[0].sqrt()
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    biases = [torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]
    for singular in ([1.0, 1.0, 1.0], [1.0, 0.5, 1.0], [1.0, 0.6, 0.0]):
        first = math.sqrt(2 * GAMMA) / psi[:, None] * torch.diag(torch.tensor(singular, dtype=torch.float64)) @ turn
        left = torch.tensor([math.sqrt(1 - s * s) for s in singular], dtype=torch.float64)  # A_0
        last = math.sqrt(2 * GAMMA) * torch.tensor([[0.3, 0.5, 0.4], [0.2, -0.6, 0.1]]).double() * left * psi
        form = Explicit([first, last], biases, multipliers, GAMMA, torch.nn.ReLU())
        assert smallest_eigenvalue(form) > -1e-12
        assert_same_weights(explicit(direct(form)), form)
    beyond = Explicit([first, last + 0.01], biases, multipliers, GAMMA, torch.nn.ReLU())
    assert smallest_eigenvalue(beyond) < -1e-6
    with pytest.raises(ValueError, match="don't prove"):
        direct(beyond)


def test_what_proves_nothing_is_refused():
    with pytest.raises(ValueError, match="positive multipliers"):
        direct(explicit(build_network("mlp", "orthogonal", input_shape=(3,), outputs=2)))
    with pytest.raises(ValueError, match=r"direct takes explicit\(network\).*got Network"):
        direct(sandwich(3, 4, 2))
    form = explicit(sandwich(3, 4, 2))
    negative = Explicit(form.weights, form.biases, [-form.multipliers[0]], GAMMA, form.activation)
    with pytest.raises(ValueError, match="positive multipliers"):
        direct(negative)
    # Multipliers of 1e30 prove something of weights of 1e-30, but no layer holds a Psi of 1e15.
    weights = [1e-30 * form.weights[0], form.weights[1]]
    with pytest.raises(ValueError, match="layers hold gains up to"):
        direct(Explicit(weights, form.biases, [1e30 * form.multipliers[0]], GAMMA, form.activation))


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("kind", ["inside", "norm one", "orthogonal", "low rank", "zero"])
def test_every_matrix_of_norm_at_most_one_is_twice_a_product_of_cayley_blocks(shape, kind):
    W = torch.randn(*shape, dtype=torch.float64)
    W = W / torch.linalg.matrix_norm(W, 2)
    if kind == "orthogonal":
        U, _, Vh = torch.linalg.svd(W, full_matrices=False)
        W = U @ Vh
    elif kind == "low rank":
        W = W[:, :1] @ W[:1] / torch.linalg.matrix_norm(W[:, :1] @ W[:1], 2)
    else:
        W = W * {"inside": 0.7, "norm one": 1.0, "zero": 0.0}[kind]
    A, B = linear_factors(W)
    torch.testing.assert_close(2 * A.mT @ B, W, rtol=0, atol=1e-14)
    torch.testing.assert_close(A @ A.mT + B @ B.mT, torch.eye(len(W), dtype=W.dtype), rtol=0, atol=1e-14)
    A_star, B_star = cayley(inverse_cayley(A.mT, B.mT))
    torch.testing.assert_close(2 * A_star @ B_star.mT, W, rtol=0, atol=1e-13)


def test_a_matrix_of_larger_norm_has_no_such_factors():
    with pytest.raises(ValueError, match=r"norm at most 1, got 1\.2"):
        linear_factors(torch.diag(torch.tensor([1.2, 0.3], dtype=torch.float64)))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_the_lmis_matrix_is_that_of_the_theorem(widths):
    form = explicit(sandwich(*widths))
    np.testing.assert_allclose(lmi_matrix(form), dense_lmi(form.weights, form.multipliers, GAMMA), atol=1e-14)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_the_lmis_blocks_add_up_to_it_and_are_semi_definite_exactly_when_it_is(widths):
    form = on_the_boundary(*widths)
    for factor, holds in ((0.99, True), (1.01, False)):
        blocks = lmi_blocks(times(form, factor))
        total, start = np.zeros((sum(widths), sum(widths))), 0
        for block, width in zip(blocks, widths, strict=False):
            total[start : start + len(block), start : start + len(block)] += block.numpy()
            start += width
        scaled = times(form, factor)
        np.testing.assert_allclose(total, dense_lmi(scaled.weights, scaled.multipliers, GAMMA), atol=1e-10)
        smallest = min(float(np.linalg.eigvalsh(block)[0]) for block in blocks)
        assert (smallest > -1e-10) == holds == (smallest_eigenvalue(scaled) > -1e-10)


def test_the_blocks_of_a_sandwich_network_are_those_of_the_proof():
    network = sandwich(3, 6, 4, 2)
    blocks = lmi_blocks(explicit(network))
    for layer, block in zip(network.body[:-1], blocks[1:], strict=True):
        P = layer.gain * layer.stacked / layer.stacked.norm()
        A_star, _ = cayley(P)
        psi = layer.log_psi.exp()
        expected = 2 * psi[:, None] * (A_star.mH @ A_star) * psi  # 2 Psi A A^T Psi
        torch.testing.assert_close(block[: len(psi), : len(psi)], expected.detach(), rtol=1e-9, atol=1e-9)


def test_the_lmi_asks_for_a_bound_and_multipliers():
    form = explicit(build_network("mlp", "plain", input_shape=(3,), outputs=2))
    for function in (lmi_matrix, lmi_blocks):
        with pytest.raises(ValueError, match="multipliers that prove it"):
            function(form)


@pytest.mark.parametrize("epsilon", [1e-2, 1e-6, 1e-9])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_slack_proves_a_slightly_larger_bound_by_a_margin(widths, epsilon):
    form = on_the_boundary(*widths)
    assert abs(smallest_eigenvalue(form)) < 1e-10
    loose = with_slack(form, epsilon)
    assert loose.gamma == pytest.approx(GAMMA / (1 - epsilon) ** (len(widths) - 2), rel=1e-12)
    assert smallest_eigenvalue(loose) > 0.01 * epsilon
    assert all(torch.equal(a, b) for a, b in zip(loose.weights, form.weights, strict=True))


def test_networks_with_rounded_weights_are_proved_by_the_checker():
    """The float32 weights of a 784-64-64-10 network, whose own multipliers hold by nothing."""
    form = explicit(sandwich(784, 64, 64, 10))
    rounded = [W.float().double() for W in form.weights]
    loose = with_slack(form, 1e-5)
    multipliers = [m.numpy() for m in loose.multipliers]
    assert loose.gamma < GAMMA * (1 + 3e-5)
    assert proves_lipschitz_bound([W.numpy() for W in rounded], multipliers, loose.gamma)
    assert not proves_lipschitz_bound([1.01 * W.numpy() for W in rounded], multipliers, loose.gamma)


def test_slack_is_between_zero_and_one():
    form = explicit(sandwich(2, 3, 1))
    for epsilon in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            with_slack(form, epsilon)


@pytest.mark.parametrize("logarithm", [-20.5, 21.0])
def test_multipliers_saturate_where_the_layer_does(logarithm):
    network = sandwich(3, 4, 2)
    network.body[0].log_psi.data[0] = logarithm
    form = explicit(network)
    assert float(form.multipliers[0].log()[0]) == pytest.approx(math.copysign(40, logarithm))


def test_a_frozen_network_has_the_form_of_the_network():
    network = sandwich(3, 4, 2)
    assert_same_weights(explicit(freeze(network)), explicit(network))
