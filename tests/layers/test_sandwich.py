import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from lbdn.explicit import explicit
from lbdn.layers import SandwichConv, SandwichFc, SandwichLin
from lbdn.networks import Network, build_network
from tests.oracles import circular_convolution, dense_cayley, dense_operator, jacobian, perturb

GAMMA = 3.0


def network(*widths, gamma=GAMMA):
    """A Sandwich network in float64 with random parameters."""
    *dense, last = pairwise(widths)
    ends = {0: math.sqrt(gamma)}
    layers = [SandwichFc(p, q, scale=ends.get(k, 1.0)) for k, (p, q) in enumerate(dense)]
    layers.append(SandwichLin(*last, scale=math.sqrt(gamma)))
    return perturb(Network(layers, outputs=layers[-1].outputs, gamma=gamma).double())


def direct_parameters(layer):
    """(A^T, B^T, Psi) of a layer from its parameters, with NumPy."""
    stacked = layer.stacked.detach().numpy()
    A_T, B_T = dense_cayley(layer.gain.item() * stacked / np.linalg.norm(stacked))
    psi = np.exp(layer.log_psi.detach().numpy()) if hasattr(layer, "log_psi") else None
    return A_T, B_T, psi


def product_form(network, weights):
    """W_L relu(... relu(W_0 x + b_0) ...) + b_L."""
    biases = [layer.bias.detach() for layer in network.body if hasattr(layer, "bias")]

    def forward(x):
        for W, b in zip(weights[:-1], biases[:-1], strict=True):
            x = torch.relu(x @ W.mT + b)
        return x @ weights[-1].mT + biases[-1]

    return forward


@pytest.mark.parametrize("gamma", [0.5, 10])
def test_the_product_form_of_the_toy_equals_its_layer_form(gamma):
    toy = perturb(build_network("toy", "sandwich", gamma=gamma, input_shape=(2,), outputs=3).double(), spread=0.3)
    x = 3 * torch.randn(20, 2, dtype=torch.float64)
    weights = explicit(toy).weights
    torch.testing.assert_close(product_form(toy, weights)(x), toy(x), rtol=1e-9, atol=1e-9)
    weights[4] = 1.01 * weights[4]
    assert not torch.allclose(product_form(toy, weights)(x), toy(x))


def test_explicit_weights_equal_the_papers_formulas():
    sandwich = network(3, 6, 4, 5, 2)
    (A0, B0, psi0), *inner, (_, B_last, _) = [direct_parameters(layer) for layer in sandwich.body]
    expected = [math.sqrt(2 * GAMMA) * np.diag(1 / psi0) @ B0.T]
    A_T, psi = A0, psi0
    for A_next, B_next, psi_next in inner:
        expected.append(2 * np.diag(1 / psi_next) @ B_next.T @ A_T @ np.diag(psi))
        A_T, psi = A_next, psi_next
    expected.append(math.sqrt(2 * GAMMA) * B_last.T @ A_T @ np.diag(psi))
    actual = explicit(sandwich).weights
    assert len(actual) == len(expected)
    for W, W_expected in zip(actual, expected, strict=True):
        np.testing.assert_allclose(W, W_expected, atol=1e-11)


def test_a_linear_sandwich_layer_can_be_an_isometry():
    layer = SandwichLin(4, 4, bias=False, scale=2.0).double()
    layer.stacked.data = torch.cat([torch.zeros(4, 4), torch.eye(4)]).double()
    layer.gain.data = torch.tensor(2.0, dtype=torch.float64)
    torch.testing.assert_close(dense_operator(layer, (4,)), -2 * torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize(("p", "q"), [(3, 6), (4, 4), (5, 2), (1, 3)])
def test_the_layer_equals_the_papers_equation(p, q):
    layer = perturb(SandwichFc(p, q, scale=1.5, activation=torch.tanh).double())
    A_T, B_T, psi = direct_parameters(layer)
    x = np.random.default_rng(0).normal(size=(7, p))
    hidden = np.tanh(math.sqrt(2) * 1.5 * x @ B_T @ np.diag(1 / psi) + layer.bias.detach().numpy())
    expected = math.sqrt(2) * hidden @ np.diag(psi) @ A_T.T
    np.testing.assert_allclose(layer(torch.from_numpy(x)).detach(), expected, atol=1e-11)


def dense_sandwich_convolution(layer, images):
    """The layer by block-circulant matrices: the Cayley transform of the dense operator of P."""
    p, q, (height, width) = layer.inputs, layer.outputs, images.shape[2:]
    kernel = (layer.gain * layer.stacked / layer.stacked.norm()).detach()
    pixels = height * width
    A_T, B_T = dense_cayley(dense_operator(lambda x: circular_convolution(x, kernel), (q, height, width)))
    assert B_T.shape == (p * pixels, q * pixels)
    psi = np.repeat(np.exp(layer.log_psi.detach().numpy()), pixels)
    bias = np.repeat(layer.bias.detach().numpy(), pixels)
    x = layer.scale * images.flatten(1).numpy()
    hidden = np.maximum(math.sqrt(2) * x @ B_T / psi + bias, 0)
    return (math.sqrt(2) * (hidden * psi) @ A_T.T).reshape(len(x), q, height, width)


@pytest.mark.parametrize(("p", "q"), [(2, 3), (3, 2), (1, 1)])
@pytest.mark.parametrize("size", [(4, 4), (5, 3), (4, 5), (2, 1)], ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_the_convolution_equals_dense_block_circulant_matrices(p, q, size, k):
    layer = perturb(SandwichConv(p, q, k, scale=0.8).double())
    images = torch.randn(3, p, *size, dtype=torch.float64)
    np.testing.assert_allclose(layer(images).detach(), dense_sandwich_convolution(layer, images), atol=1e-10)


def test_a_flipped_kernel_is_flagged():
    layer = perturb(SandwichConv(2, 3).double())
    images = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    expected = dense_sandwich_convolution(layer, images)
    layer.stacked.data = layer.stacked.data.flip(-1)
    assert not np.allclose(layer(images).detach(), expected)


def test_a_strided_convolution_is_the_dense_layer_on_blocks_of_pixels():
    convolution = perturb(SandwichConv(2, 3, stride=2, scale=0.8).double())
    dense = SandwichFc(8, 3, scale=0.8).double()
    parameters = convolution.state_dict()
    parameters["stacked"] = parameters["stacked"][:, :, 0, 0]
    dense.load_state_dict(parameters)
    images = torch.randn(4, 2, 4, 6, dtype=torch.float64)
    result = convolution(images)
    assert result.shape == (4, 3, 2, 3)
    for i in range(2):
        for j in range(3):
            block = images[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten(1)
            torch.testing.assert_close(result[:, :, i, j], dense(block))


def test_the_layer_commutes_with_shifts_of_the_image():
    layer, images = perturb(SandwichConv(2, 3).double()), torch.randn(1, 2, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(images.roll((1, 2), (2, 3))), layer(images).roll((1, 2), (2, 3)))


def test_log_psi_does_not_change_a_linear_network():
    layer, x = SandwichFc(3, 4, bias=False, activation=nn.Identity()).double(), torch.randn(3).double()
    before = jacobian(layer, x)
    layer.log_psi.data.normal_(std=3)
    torch.testing.assert_close(jacobian(layer, x), before)
