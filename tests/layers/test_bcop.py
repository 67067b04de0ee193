import numpy as np
import pytest
import torch
from torch import nn

from lbdn.layers import BcopConv, BcopFc, BcopLin
from lbdn.layers.bcop import block_convolution
from tests.oracles import circular_convolution, dense_operator, perturb, spectral_norm

WIDTHS = [(3, 6), (5, 4), (6, 3), (1, 5), (5, 1)]
SIZES = [(4, 5), (3, 3), (2, 1)]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)


def linear_part(layer):
    layer.activation = nn.Identity()
    return perturb(layer.double())


def is_semi_orthogonal(W, tolerance=0.003) -> bool:
    smaller = W @ W.mT if W.shape[0] <= W.shape[1] else W.mT @ W
    identity = torch.eye(len(smaller), dtype=W.dtype)
    return torch.allclose(smaller, identity, rtol=0, atol=tolerance) and spectral_norm(W) <= 1 + 1e-12


@pytest.mark.parametrize(("p", "q"), WIDTHS)
@pytest.mark.parametrize("layer", [BcopFc, BcopLin])
def test_dense_layers_are_the_nearest_semi_orthogonal_matrices(layer, p, q):
    layer = linear_part(layer(p, q, bias=False))
    U, _, V = np.linalg.svd(layer.weight.detach(), full_matrices=False)
    np.testing.assert_allclose(dense_operator(layer, (p,)), U @ V, atol=0.02)


@pytest.mark.parametrize(("p", "q"), [(2, 3), (3, 5), (5, 3), (1, 4), (1, 1)])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@sizes
def test_convolutions_are_semi_orthogonal(p, q, size, k):
    assert is_semi_orthogonal(dense_operator(linear_part(BcopConv(p, q, k, bias=False)), (p, *size)))


@pytest.mark.parametrize(("p", "q"), [(1, 3), (1, 6), (2, 3)])
@pytest.mark.parametrize("k", [3, 5])
def test_strided_convolutions_are_semi_orthogonal(p, q, k):
    assert is_semi_orthogonal(dense_operator(linear_part(BcopConv(p, q, k, stride=2, bias=False)), (p, 4, 6)))


def test_a_free_kernel_is_flagged():
    kernel = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    kernel /= spectral_norm(dense_operator(lambda x: circular_convolution(x, kernel), (2, 4, 5)))
    assert not is_semi_orthogonal(dense_operator(lambda x: circular_convolution(x, kernel), (2, 4, 5)))


@pytest.mark.parametrize("k", [2, 3])
@sizes
def test_the_block_convolution_is_a_product_of_projections_and_shifts(k, size):
    H = torch.randn(4, 3, 1, 1, dtype=torch.float64)
    factors, _ = torch.linalg.qr(torch.randn(2 * (k - 1), 4, 2, dtype=torch.float64))

    def product(x):
        x = torch.einsum("oc,ncij->noij", H[:, :, 0, 0], x)
        for i, Y in enumerate(factors):
            projected = torch.einsum("oc,ncij->noij", Y @ Y.mT, x)
            x = projected + torch.roll(x - projected, 1, dims=-2 if i % 2 == 0 else -1)
        return torch.roll(x, (-(k // 2), -(k // 2)), dims=(-2, -1))

    kernel = block_convolution(H, factors)
    assert kernel.shape == (4, 3, k, k)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(circular_convolution(x, kernel), product(x))


@pytest.mark.parametrize("largest", [0.3, 1, 1.5])
def test_the_norm_is_at_most_one_for_factors_of_norm_at_most_one_and_no_more(largest):
    H, _ = torch.linalg.qr(torch.randn(4, 3, dtype=torch.float64))
    factors, _ = torch.linalg.qr(torch.randn(4, 4, 2, dtype=torch.float64))
    kernel = block_convolution(H[:, :, None, None], factors * torch.tensor([largest, 0.2]))
    norm = spectral_norm(dense_operator(lambda x: circular_convolution(x, kernel), (3, 4, 4)))
    assert (norm <= 1 + 1e-12) == (largest <= 1)


@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_the_size_of_the_parameters_plays_no_role(factor):
    layer = linear_part(BcopConv(2, 3))
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64)
    before = layer(x)
    layer.weight.data.mul_(factor)
    layer.factors.data[1].mul_(factor)
    torch.testing.assert_close(layer(x), before)


def test_convolutions_see_their_whole_kernel():
    layer = linear_part(BcopConv(2, 3, bias=False))
    image = torch.zeros(1, 2, 7, 7, dtype=torch.float64)
    image[0, 0, 3, 3] = 1
    reached = layer(image).abs().sum(dim=(0, 1)) > 1e-9
    assert reached[2:5, 2:5].all()
    assert reached.sum() == 9
