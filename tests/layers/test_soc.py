import math

import numpy as np
import pytest
import torch
from torch import nn

from lbdn.layers import SocConv, SocFc, SocLin, soc
from lbdn.layers.soc import TERMS, exponential_columns
from tests.oracles import circular_convolution, dense_operator, perturb, spectral_norm

WIDTHS = [(3, 6), (4, 4), (6, 3), (1, 5), (5, 1)]


def linear_part(layer):
    layer.activation = nn.Identity()
    layer = perturb(layer.double(), spread=0.1)
    layer.weight.data *= 0.3  # no layer at its limit
    return layer


def exponential(S) -> np.ndarray:
    """exp(S) of a skew-Hermitian S by the eigenvalues of i S."""
    angles, vectors = np.linalg.eigh(1j * np.asarray(S))
    return vectors * np.exp(-1j * angles) @ vectors.conj().T


def skew(X, Y) -> np.ndarray:
    X, Y = np.asarray(X), np.asarray(Y)
    return np.block([[X - X.conj().T, -Y.conj().T], [Y, np.zeros((len(Y), len(Y)))]])


def columns(V) -> np.ndarray:
    """The first columns of exp([[X - X*, -Y*], [Y, 0]]), V = [X; Y]; transposed for more columns than rows."""
    V = np.asarray(V)
    if V.shape[0] < V.shape[1]:
        return columns(V.conj().T).conj().T
    q = V.shape[1]
    return exponential(skew(V[:q], V[q:]))[:, :q]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(5, 5), (6, 5), (8, 4), (9, 3), (4, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("size", [0, 1e-20, 0.01, 0.06])
def test_the_columns_are_those_of_the_exponential(shape, dtype, size):
    stacked = size * torch.randn(*shape, dtype=dtype)
    norm = np.linalg.norm(skew(*stacked.split([shape[1], shape[0] - shape[1]])), 2)
    remainder = 1 / math.factorial(TERMS + 1)
    assert norm < 0.8
    np.testing.assert_allclose(exponential_columns(stacked).numpy(), columns(stacked), atol=2 * remainder)


@pytest.mark.parametrize("Y", [torch.zeros(4, 3), torch.ones(4, 3), torch.eye(4, 3) * torch.tensor([1, 1e-9, 0])])
def test_a_lower_block_without_full_rank_is_like_any_other(Y):
    stacked = torch.cat([torch.randn(3, 3), Y]).double() / 20
    np.testing.assert_allclose(exponential_columns(stacked).numpy(), columns(stacked), atol=1e-5)


@pytest.mark.parametrize(("p", "q"), WIDTHS)
@pytest.mark.parametrize("layer", [SocFc, SocLin])
def test_dense_layers_are_exponentials(layer, p, q):
    layer = linear_part(layer(p, q, bias=False))
    np.testing.assert_allclose(dense_operator(layer, (p,)), columns(layer.weight.detach()).real, atol=1e-4)


@pytest.mark.parametrize(("p", "q"), [(2, 3), (3, 3), (3, 2), (1, 4)])
@pytest.mark.parametrize("size", [(4, 5), (3, 3), (2, 1)], ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_convolutions_are_exponentials_of_block_circulant_matrices(p, q, size, k):
    layer = linear_part(SocConv(p, q, k, bias=False))
    V = dense_operator(lambda x: circular_convolution(x, layer.weight.detach()), (p, *size))
    np.testing.assert_allclose(dense_operator(layer, (p, *size)), columns(V).real, atol=1e-4)


@pytest.mark.parametrize(("p", "q"), [(1, 3), (1, 4), (1, 6), (2, 3)])
@pytest.mark.parametrize("k", [3, 5])
def test_strided_convolutions_are_semi_orthogonal(p, q, k):
    W = dense_operator(linear_part(SocConv(p, q, k, stride=2, bias=False)), (p, 4, 6))
    smaller = W @ W.mT if W.shape[0] <= W.shape[1] else W.mT @ W
    torch.testing.assert_close(smaller, torch.eye(len(smaller), dtype=W.dtype), rtol=0, atol=1e-3)


@pytest.mark.parametrize("terms", [2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("size", [1, 1e4])
@pytest.mark.parametrize("shape", [(5, 5), (8, 4), (2, 2)], ids=str)
def test_the_norm_is_at_most_one_after_any_number_of_terms(monkeypatch, terms, size, shape):
    monkeypatch.setattr(soc, "TERMS", terms)
    assert spectral_norm(exponential_columns(size * torch.randn(*shape, dtype=torch.float64))) <= 1 + 1e-12


def test_a_series_cut_without_its_remainder_is_flagged():
    S = torch.tensor([[0, -1], [1, 0]], dtype=torch.float64)
    assert spectral_norm(torch.eye(2) + S + S @ S / 2) > 1.1


def test_large_weights_turn_by_one_radian():
    rotation = exponential_columns(torch.tensor([[0, -1e6], [0, 0]], dtype=torch.float64))
    expected = [[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]]
    np.testing.assert_allclose(rotation, expected, atol=0.02)  # the rough bound is 1 % above the norm


def test_a_large_symmetric_part_plays_no_role():
    stacked = torch.randn(6, 3)
    moved = stacked + 1e3 * torch.eye(6, 3)
    torch.testing.assert_close(exponential_columns(moved), exponential_columns(stacked), rtol=1e-3, atol=1e-3)
    huge = torch.cat([1e30 * torch.eye(3), stacked[3:]])
    assert spectral_norm(exponential_columns(huge)) <= 1 + 1e-5
