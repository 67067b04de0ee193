import numpy as np
import pytest
import torch
from torch import nn

from lbdn.layers import AolConv, AolFc, AolLin
from tests.oracles import dense_operator, perturb, spectral_norm


def linear_part(layer):
    layer.activation = nn.Identity()
    return perturb(layer.double())


def rescaled_columns(V):
    gram = np.abs(V.T @ V).sum(axis=0)
    return V / np.sqrt(gram)


@pytest.mark.parametrize(("p", "q"), [(3, 6), (4, 4), (6, 3), (1, 5), (5, 1)])
@pytest.mark.parametrize("layer", [AolFc, AolLin])
def test_the_matrix_is_the_weight_with_rescaled_columns(layer, p, q):
    layer = linear_part(layer(p, q, bias=False, scale=1.5))
    W = dense_operator(layer, (p,))
    np.testing.assert_allclose(W, 1.5 * rescaled_columns(layer.weight.detach().numpy()), atol=1e-12)
    assert spectral_norm(W) <= 1.5 * (1 + 1e-12)


@pytest.mark.parametrize(("p", "q"), [(2, 3), (3, 3), (3, 1), (1, 4)])
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("size", [(5, 6), (3, 3), (2, 1)], ids=str)
def test_the_norm_of_a_convolution_is_at_most_one(p, q, k, size):
    layer = linear_part(AolConv(p, q, k, bias=False))
    assert spectral_norm(dense_operator(layer, (p, *size))) <= 1 + 1e-12


def test_a_convolution_without_rescaling_is_flagged():
    class Raw(AolConv):
        def operators(self, *size):
            return (self.weight,)

    assert spectral_norm(dense_operator(linear_part(Raw(2, 3, bias=False)), (2, 5, 6))) > 1.1


@pytest.mark.parametrize("k", [1, 3])
def test_a_convolution_is_rescaled_by_the_rows_of_the_gram_matrix_of_an_infinite_image(k):
    layer, size = linear_part(AolConv(2, 3, k, bias=False)), 7
    kernel = layer.weight.detach()
    V = dense_operator(lambda x: nn.functional.conv2d(x, kernel, padding=k - 1), (2, size, size))
    sums = (V.mT @ V).abs().sum(dim=1).reshape(2, size, size)[:, size // 2, size // 2]
    x = torch.randn(3, 2, 5, 6, dtype=torch.float64)
    expected = nn.functional.conv2d(x, kernel / sums.sqrt()[:, None, None], padding="same")
    torch.testing.assert_close(layer(x), expected)


def test_an_input_channel_of_zeros_stays_zero():
    layer = linear_part(AolConv(2, 3, bias=False))
    layer.weight.data[:, 1] = 0
    W = dense_operator(layer, (2, 4, 5))
    assert not W[:, 20:].any()
    assert W[:, :20].any(dim=0).all()
