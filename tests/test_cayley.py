import numpy as np
import pytest
import torch

from lbdn.cayley import cayley, cayley_for, inverse_cayley
from tests.oracles import dense_cayley, tolerance

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(5, 5), (6, 5), (8, 4), (9, 3), (4, 1), (1, 1), (7, 6)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))


def gram(blocks):
    return sum(block.mH @ block for block in blocks)


def has_orthonormal_columns(blocks) -> bool:
    actual = gram(blocks)
    return torch.allclose(actual, torch.eye(actual.shape[-1], dtype=actual.dtype), rtol=0, atol=tolerance(actual.dtype))


@shapes
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1e-20, 1, 30])
def test_cayley_has_orthonormal_columns(shape, dtype, size):
    blocks = cayley(size * torch.randn(2, 3, *shape, dtype=dtype))
    assert [block.shape[-2] for block in blocks] == [shape[1], shape[0] - shape[1]]
    assert has_orthonormal_columns(blocks)


def test_a_transform_without_the_skew_part_is_flagged():
    X, Y = torch.randn(2, 4, 4, dtype=torch.float64)
    inverse = torch.linalg.inv(torch.eye(4) + X + Y.mT @ Y)
    assert not has_orthonormal_columns((2 * inverse - torch.eye(4), -2 * Y @ inverse))


@shapes
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_cayley_equals_the_papers_definition(shape, dtype):
    stacked = torch.randn(*shape, dtype=dtype)
    for actual, expected in zip(cayley(stacked), dense_cayley(stacked), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-12)


@shapes
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_inverse_cayley_inverts_cayley(shape, dtype):
    blocks = cayley(torch.randn(3, *shape, dtype=dtype))
    stacked = inverse_cayley(*blocks)
    assert stacked.shape == (3, *shape)
    for actual, expected in zip(cayley(stacked), blocks, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_the_inverse_of_another_matrix_is_flagged():
    A_star, B_star = cayley(torch.randn(5, 3, dtype=torch.float64))
    assert not torch.allclose(cayley(inverse_cayley(A_star, -B_star))[1], B_star)


def test_inverse_cayley_rejects_the_eigenvalue_minus_one():
    with pytest.raises(ValueError, match="eigenvalue -1"):
        inverse_cayley(-torch.eye(2), torch.zeros(1, 2))


def test_cayley_rejects_fewer_rows_than_columns():
    with pytest.raises(ValueError, match="got 2 x 3"):
        cayley(torch.zeros(2, 3))


@shapes
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_of_cayley_equal_automatic_ones(shape, dtype):
    stacked = torch.randn(2, *shape, dtype=dtype, requires_grad=True)
    q = shape[1]
    X, Y, identity = stacked[:, :q], stacked[:, q:], torch.eye(q, dtype=dtype)
    Z = X - X.mH + Y.mH @ Y
    inverse = torch.linalg.inv(identity + Z)
    expected = inverse @ (identity - Z), -2 * Y @ inverse
    weights = [torch.randn_like(block) for block in expected]
    torch.testing.assert_close(
        *(torch.autograd.grad(blocks, stacked, weights) for blocks in (cayley(stacked), expected)), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(("rows", "few"), [((), True), ((2,), True), ((2, 2), True), ((5,), False)])
def test_cayley_for_gives_the_product_and_its_gradients(rows, few):
    x = torch.randn(*rows, 40, dtype=torch.float64, requires_grad=True)
    stacked = torch.randn(43, 3, dtype=torch.float64, requires_grad=True)
    reduced, A_star, factor = cayley_for(x, stacked)
    assert factor.shape == ((3, 3) if few else (40, 3))
    actual = A_star, reduced @ factor
    expected = cayley(stacked)[0], x @ cayley(stacked)[1]
    torch.testing.assert_close(actual, expected)
    weights = [torch.randn_like(block) for block in expected]
    torch.testing.assert_close(*(torch.autograd.grad(blocks, (x, stacked), weights) for blocks in (actual, expected)))


def test_cayley_for_keeps_the_digits_of_large_parameters():
    x, stacked = torch.randn(2, 40), 1e3 * torch.randn(42, 2, dtype=torch.float64)
    reduced, _, B_star = cayley_for(x, stacked)
    torch.testing.assert_close(reduced @ B_star.float(), (x.double() @ cayley(stacked)[1]).float())
