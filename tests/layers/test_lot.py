import numpy as np
import pytest
import torch
from torch import nn

from lbdn.layers import LotConv, LotFc, LotLin
from tests.oracles import circular_convolution, dense_operator, perturb, spectral_norm

WIDTHS = [(3, 6), (5, 4), (6, 3), (1, 5), (5, 1)]


def linear_part(layer):
    layer.activation = nn.Identity()
    return perturb(layer.double())


def orthogonalized(V, exponent=-0.5):
    """(V V^T)^(-1/2) V by an eigendecomposition; transposed where there are more rows than columns."""
    V = np.asarray(V)
    if V.shape[0] > V.shape[1]:
        return orthogonalized(V.T, exponent).T
    values, vectors = np.linalg.eigh(V @ V.T)
    return vectors @ np.diag(values**exponent) @ vectors.T @ V


def near(W, expected) -> bool:
    return np.allclose(W, expected, atol=0.003) and spectral_norm(torch.as_tensor(W)) <= 1 + 1e-12


@pytest.mark.parametrize(("p", "q"), WIDTHS)
@pytest.mark.parametrize("layer", [LotFc, LotLin])
def test_dense_layers_are_the_inverse_root_times_the_weight(layer, p, q):
    layer = linear_part(layer(p, q, bias=False))
    assert near(dense_operator(layer, (p,)), orthogonalized(layer.weight.detach()))


@pytest.mark.parametrize(("p", "q"), [(2, 4), (4, 2), (1, 4)])
@pytest.mark.parametrize("size", [(4, 5), (3, 3), (2, 1)], ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_convolutions_are_the_inverse_root_times_the_block_circulant_matrix(p, q, size, k):
    layer = linear_part(LotConv(p, q, k, bias=False))
    V = dense_operator(lambda x: circular_convolution(x, layer.weight.detach()), (p, *size))
    assert near(dense_operator(layer, (p, *size)), orthogonalized(V))


@pytest.mark.parametrize(("p", "q"), [(1, 3), (1, 6), (2, 3)])
@pytest.mark.parametrize("k", [3, 5])
def test_strided_convolutions_are_semi_orthogonal(p, q, k):
    W = dense_operator(linear_part(LotConv(p, q, k, stride=2, bias=False)), (p, 4, 6))
    smaller = W @ W.mT if W.shape[0] <= W.shape[1] else W.mT @ W
    torch.testing.assert_close(smaller, torch.eye(len(smaller), dtype=W.dtype), rtol=0, atol=0.003)


def test_the_exponent_of_the_papers_text_is_flagged():
    layer = linear_part(LotLin(5, 3, bias=False))
    assert not near(dense_operator(layer, (5,)), orthogonalized(layer.weight.detach(), exponent=-1))
    assert not near(orthogonalized(layer.weight.detach(), exponent=-1), orthogonalized(layer.weight.detach()))


def test_scaling_the_weight_changes_nothing():
    layer = linear_part(LotConv(2, 3))
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64)
    before = layer(x)
    layer.weight.data.mul_(1e-8)
    torch.testing.assert_close(layer(x), before)
