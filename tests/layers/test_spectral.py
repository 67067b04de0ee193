import numpy as np
import pytest
import torch
from torch import nn

from lbdn.circular import real_form
from lbdn.layers import SpectralConv, SpectralFc, SpectralLin
from tests.oracles import circular_convolution, dense_operator, perturb, spectral_norm

WIDTHS = [(3, 6), (4, 4), (6, 3), (1, 5), (5, 1)]
SIZES = [(4, 5), (3, 3), (2, 1)]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)


def linear_part(layer):
    layer.activation = nn.Identity()
    return perturb(layer.double())


def has_norm_one(W) -> bool:
    return 0.99 < spectral_norm(W) <= 1 + 1e-12


@pytest.mark.parametrize(("p", "q"), WIDTHS)
@pytest.mark.parametrize("layer", [SpectralFc, SpectralLin])
def test_dense_layers_divide_the_weight_by_its_norm(layer, p, q):
    layer = linear_part(layer(p, q, bias=False, scale=0.5))
    V = layer.weight.detach().numpy()
    np.testing.assert_allclose(dense_operator(layer, (p,)), 0.5 * V / np.linalg.norm(V, 2), rtol=0.01)


@pytest.mark.parametrize(("p", "q"), [(2, 3), (3, 3), (3, 2), (1, 4)])
@pytest.mark.parametrize("k", [2, 3])
@sizes
def test_convolutions_divide_the_kernel_by_the_norm_of_the_circular_convolution(p, q, size, k):
    layer = linear_part(SpectralConv(p, q, k, bias=False))
    V = dense_operator(lambda x: circular_convolution(x, layer.weight.detach()), (p, *size))
    W = dense_operator(layer, (p, *size))
    assert has_norm_one(W)
    torch.testing.assert_close(W, V / spectral_norm(V), rtol=0.01, atol=1e-12)


@pytest.mark.parametrize(("p", "q"), [(1, 3), (2, 3)])
@pytest.mark.parametrize("k", [3, 5])
def test_strided_convolutions_have_norm_one(p, q, k):
    assert has_norm_one(dense_operator(linear_part(SpectralConv(p, q, k, stride=2, bias=False)), (p, 4, 6)))


def test_the_norm_of_the_reshaped_kernel_is_flagged():
    class Reshaped(SpectralConv):
        def operators(self, *size):
            kernel = self.weight / torch.linalg.matrix_norm(self.weight.flatten(1), 2)
            return (real_form(self.matrices(kernel, *size)),)

    assert not has_norm_one(dense_operator(linear_part(Reshaped(2, 2, bias=False)), (2, 8, 8)))
