import numpy as np
import pytest
import torch
from torch import nn

from lbdn.circular import kernel_spectrum
from lbdn.layers import CplConv, CplFc
from lbdn.layers.norms import norm_bound
from tests.oracles import circular_convolution, dense_operator, perturb, spectral_norm

SIZES = [(4, 5), (3, 3), (2, 1), (1, 1)]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)


def inner_operator(layer, shape):
    """The dense W^T of the zero-padded convolution."""
    weight = layer.weight.detach()
    return dense_operator(lambda x: nn.functional.conv2d(x, weight, padding="same"), shape)


def squared_bound(layer, size):
    """beta^2, from what multiplies a hidden unit: 2 W / beta^2, in two factors."""
    scaled, step = (operator.detach() for operator in layer.operators(*size))
    return float(2 * layer.weight.detach().abs().max() / scaled.abs().max() / step)


@pytest.mark.parametrize(("features", "inner"), [(3, 6), (4, 4), (6, 3), (1, 5), (5, 1)])
def test_the_dense_layer_equals_its_formula(features, inner):
    layer = perturb(CplFc(features, inner, scale=0.7).double())
    W, b = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
    x = np.random.default_rng(0).normal(size=features)
    expected = 0.7 * x - 2 / np.linalg.norm(W, 2) ** 2 * W @ np.maximum(W.T @ (0.7 * x) + b, 0)
    np.testing.assert_allclose(layer(torch.from_numpy(x)).detach().numpy(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("k", [1, 3, 5])
@sizes
def test_the_convolution_equals_its_dense_formula(k, size):
    layer, pixels = perturb(CplConv(2, 3, k, scale=0.7).double()), size[0] * size[1]
    W_T, x = inner_operator(layer, (2, *size)), torch.randn(3, 2, *size, dtype=torch.float64)
    flat = 0.7 * x.flatten(1)
    hidden = torch.relu(flat @ W_T.mT + layer.bias.detach().repeat_interleave(pixels))
    expected = flat - 2 / squared_bound(layer, size) * hidden @ W_T
    torch.testing.assert_close(layer(x).flatten(1), expected)


@pytest.mark.parametrize(("channels", "inner"), [(2, 3), (3, 1), (1, 4)])
@pytest.mark.parametrize("k", [1, 3, 5])
@sizes
def test_the_bound_is_the_norm_on_an_image_with_a_margin_and_above_that_with_zero_padding(channels, inner, k, size):
    layer = perturb(CplConv(channels, inner, k).double())
    larger = tuple(pixels + k // 2 for pixels in size)
    circular = dense_operator(lambda x: circular_convolution(x, layer.weight.detach()), (channels, *larger))
    bound = squared_bound(layer, size) ** 0.5
    assert spectral_norm(circular) <= bound * (1 + 1e-12)
    assert bound <= 1.01 * spectral_norm(circular)
    assert spectral_norm(inner_operator(layer, (channels, *size))) <= bound * (1 + 1e-12)


def test_the_norm_of_the_circular_convolution_without_a_margin_is_flagged():
    layer = CplConv(1, 1).double()
    layer.weight.data.zero_()
    layer.weight.data[0, 0, 1] = torch.tensor([1, 0, -1])  # cancels when two pixels wrap around
    assert norm_bound(kernel_spectrum(layer.weight, 1, 2)) < 1e-9
    assert spectral_norm(inner_operator(layer, (1, 1, 2))) == pytest.approx(1)
    assert squared_bound(layer, (1, 2)) >= 1


@pytest.mark.parametrize(("build", "shape"), [(CplFc, (3,)), (CplConv, (3, 4, 5))])
def test_filters_of_zero_add_nothing(build, shape):
    layer, x = build(3, 4), torch.randn(2, *shape)
    layer.weight.data.zero_()
    assert torch.equal(layer(x), x)
