import pytest
import torch
from torch import nn

from lbdn.layers import OrthogonalConv, OrthogonalFc, OrthogonalLin
from tests.oracles import circular_convolution, dense_cayley, dense_operator, perturb

WIDTHS = [(3, 6), (4, 4), (6, 3), (1, 5), (5, 1)]


def is_semi_orthogonal(W) -> bool:
    smaller = W @ W.mT if W.shape[0] <= W.shape[1] else W.mT @ W
    return torch.allclose(smaller, torch.eye(len(smaller), dtype=W.dtype), rtol=0, atol=1e-10)


def linear_part(layer):
    layer.activation = nn.Identity()
    return perturb(layer.double())


@pytest.mark.parametrize(("p", "q"), WIDTHS)
@pytest.mark.parametrize("layer", [OrthogonalFc, OrthogonalLin])
def test_dense_layers_are_semi_orthogonal(layer, p, q):
    assert is_semi_orthogonal(dense_operator(linear_part(layer(p, q, bias=False)), (p,)))


@pytest.mark.parametrize(("p", "q"), [(2, 3), (3, 3), (3, 2), (1, 4)])
@pytest.mark.parametrize("size", [(4, 5), (3, 3), (2, 1)], ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_convolutions_are_semi_orthogonal(p, q, size, k):
    assert is_semi_orthogonal(dense_operator(linear_part(OrthogonalConv(p, q, k, bias=False)), (p, *size)))


@pytest.mark.parametrize(("p", "q"), [(1, 3), (1, 4), (1, 6), (2, 3)])
@pytest.mark.parametrize("k", [3, 5])
def test_strided_convolutions_are_semi_orthogonal(p, q, k):
    layer = linear_part(OrthogonalConv(p, q, k, stride=2, bias=False))
    assert is_semi_orthogonal(dense_operator(layer, (p, 4, 6)))


def test_a_layer_without_the_cayley_transform_is_flagged():
    class Raw(OrthogonalLin):
        def operators(self, *size):
            return (self.weight,)

    assert not is_semi_orthogonal(dense_operator(linear_part(Raw(3, 6, bias=False)), (3,)))


@pytest.mark.parametrize(("p", "q"), WIDTHS)
def test_the_matrix_stacks_the_blocks_of_the_cayley_transform(p, q):
    layer = linear_part(OrthogonalLin(p, q, bias=False, scale=0.5))
    V = (layer.gain * layer.weight / layer.weight.norm()).detach()
    tall = torch.cat([torch.from_numpy(block) for block in dense_cayley(V if q >= p else V.mT)])
    torch.testing.assert_close(dense_operator(layer, (p,)), 0.5 * (tall if q >= p else tall.mT))


@pytest.mark.parametrize(("p", "q"), [(2, 3), (3, 2)])
def test_the_convolution_is_the_cayley_transform_of_the_block_circulant_matrix(p, q):
    layer = linear_part(OrthogonalConv(p, q, bias=False))
    kernel = (layer.gain * layer.weight / layer.weight.norm()).detach()
    V = dense_operator(lambda x: circular_convolution(x, kernel), (p, 4, 5))
    tall = torch.cat([torch.from_numpy(block) for block in dense_cayley(V if q >= p else V.mT)])
    torch.testing.assert_close(dense_operator(layer, (p, 4, 5)), tall if q >= p else tall.mT)


def test_orthogonal_layers_keep_gradients():
    layer = linear_part(OrthogonalConv(3, 3, bias=False))
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x).norm(), x.norm())
