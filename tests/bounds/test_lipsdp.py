"""The least bound that diagonal multipliers prove, against the semi-definite program as the theorem writes it."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from lbdn import build_network
from lbdn.bounds import empirical_lower_bound, lipsdp, spectral_product
from lbdn.explicit import Explicit, direct, explicit
from lbdn.layers import PlainFc, PlainLin
from lbdn.networks import Network
from lbdn.verify import proves_lipschitz_bound

cp = pytest.importorskip("cvxpy")


def plain(*widths: int, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    pairs = list(pairwise(widths))
    return Network(
        [*(PlainFc(p, q) for p, q in pairs[:-1]), PlainLin(*pairs[-1])], outputs=widths[-1], gamma=None
    ).double()


def least_gamma(form: Explicit) -> float:
    """Minimise gamma over H(gamma, Lambda) >= 0, the whole matrix at once, in the theorem's compact form."""
    weights, hidden = [W.numpy() for W in form.weights], [len(W) for W in form.weights[:-1]]
    n, inputs, outputs = sum(hidden), weights[0].shape[1], len(weights[-1])
    U, W, Y = torch.zeros(n, inputs).numpy(), torch.zeros(n, n).numpy(), torch.zeros(outputs, n).numpy()
    U[: hidden[0]], Y[:, n - hidden[-1] :] = weights[0], weights[-1]
    start = 0
    for k, inner in enumerate(weights[1:-1]):
        W[start + hidden[k] : start + hidden[k] + hidden[k + 1], start : start + hidden[k]] = inner
        start += hidden[k]
    gamma, diagonal = cp.Variable(), cp.Variable(n, nonneg=True)
    Lambda = cp.diag(diagonal)
    H = cp.bmat(
        [
            [gamma * torch.eye(inputs).numpy(), -U.T @ Lambda, torch.zeros(inputs, outputs).numpy()],
            [-Lambda @ U, 2 * Lambda - Lambda @ W - W.T @ Lambda, -Y.T],
            [torch.zeros(outputs, inputs).numpy(), -Y, gamma * torch.eye(outputs).numpy()],
        ]
    )
    cp.Problem(cp.Minimize(gamma), [(H + H.T) / 2 >> 0]).solve(solver=cp.CLARABEL)
    return float(gamma.value)


@pytest.mark.parametrize("widths", [(3, 4, 2), (2, 5, 5, 1), (4, 3, 2, 3, 4), (9, 3, 8)], ids=str)
def test_it_is_the_least_bound_of_the_whole_program(widths):
    form = explicit(plain(*widths))
    assert lipsdp(form).gamma == pytest.approx(least_gamma(form), rel=1e-5)


@pytest.mark.parametrize("widths", [(3, 4, 2), (2, 5, 5, 1), (9, 12, 12, 8)], ids=str)
def test_it_lies_between_the_lower_bound_and_the_product_of_norms_and_is_proved(widths):
    network = plain(*widths)
    proved = lipsdp(explicit(network))
    lower = empirical_lower_bound(network, torch.randn(50, widths[0]), steps=25, pairs=16).ratio
    assert lower <= proved.gamma <= spectral_product(network) * (1 + 1e-5)
    weights, multipliers = ([t.numpy() for t in tensors] for tensors in (proved.weights, proved.multipliers))
    assert proves_lipschitz_bound(weights, multipliers, proved.gamma)
    assert not proves_lipschitz_bound(weights, multipliers, 0.99 * proved.gamma)


def test_a_chain_of_single_neurons_has_the_product_of_its_weights():
    weights = [torch.tensor([[w]], dtype=torch.float64) for w in (0.5, -3.0, 2.0)]
    biases = [torch.zeros(1, dtype=torch.float64)] * 3
    form = Explicit(weights, biases, None, None, torch.nn.ReLU())
    assert lipsdp(form).gamma == pytest.approx(3.0, rel=1e-5)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_it_scales_with_the_weights(factor):
    form = explicit(plain(3, 5, 4, 2))
    scaled = replace(form, weights=[factor * form.weights[0], *form.weights[1:]])
    assert lipsdp(scaled).gamma == pytest.approx(factor * lipsdp(form).gamma, rel=1e-5)


def test_any_network_becomes_a_sandwich_network_of_that_bound():
    network = plain(3, 6, 5, 2)
    proved = lipsdp(explicit(network))
    sandwich = direct(proved)
    x = torch.randn(20, 3, dtype=torch.float64)
    torch.testing.assert_close(sandwich(x), network(x), rtol=1e-6, atol=1e-8)
    assert sandwich.gamma == proved.gamma


def test_networks_that_need_no_program_are_refused():
    form = explicit(plain(3, 4, 2))
    with pytest.raises(ValueError, match="at least one hidden layer"):
        lipsdp(replace(form, weights=form.weights[:1]))
    with pytest.raises(ValueError, match="aren't zero"):
        lipsdp(replace(form, weights=[0 * form.weights[0], form.weights[1]]))


def test_what_is_no_explicit_form_is_refused_by_name():
    network = plain(3, 4, 2)
    with pytest.raises(ValueError, match=r"lipsdp takes explicit\(network\).*got Network"):
        lipsdp(network)
    with pytest.raises(ValueError, match="only fully connected networks have, got NoneType"):
        lipsdp(explicit(build_network("mlp", "sll", input_shape=(3,), outputs=2)))


def test_it_goes_where_an_interior_point_method_does_not():
    form = explicit(plain(200, 48, 48, 10))
    proved = lipsdp(form)
    assert proved.gamma < 0.6 * math.prod(float(torch.linalg.matrix_norm(W, 2)) for W in form.weights)
    weights, multipliers = ([t.numpy() for t in tensors] for tensors in (proved.weights, proved.multipliers))
    assert proves_lipschitz_bound(weights, multipliers, proved.gamma)


def test_a_neuron_that_does_nothing_changes_nothing():
    form = explicit(plain(3, 5, 4, 2))
    dead = [W.clone() for W in form.weights]
    dead[1][2], dead[2][:, 2] = 0, 0
    without = [dead[0], torch.cat([dead[1][:2], dead[1][3:]]), torch.cat([dead[2][:, :2], dead[2][:, 3:]], 1)]
    biases = [torch.zeros(len(W)).double() for W in without]
    expected = lipsdp(replace(form, weights=without, biases=biases)).gamma
    assert lipsdp(replace(form, weights=dead)).gamma == pytest.approx(expected, rel=1e-4)
