import numpy as np
import pytest
import torch

from lbdn.layers import norms
from lbdn.layers.norms import gram_bound, norm_bound, normalized, polar
from tests.oracles import tolerance

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(5, 5), (6, 3), (3, 6), (1, 4), (4, 1), (1, 1), (40, 30)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def singular_values(matrices) -> np.ndarray:
    return np.linalg.svd(matrices.detach().resolve_conj().numpy(), compute_uv=False)


def schatten(values, p) -> float:
    """The p-norm of singular values."""
    return float(values.max() * ((values / values.max()) ** p).sum() ** (1 / p))


def with_singular_values(values, rows, columns, dtype=torch.float64):
    U, _ = torch.linalg.qr(torch.randn(rows, len(values), dtype=dtype))
    V, _ = torch.linalg.qr(torch.randn(columns, len(values), dtype=dtype))
    return U * torch.as_tensor(values, dtype=dtype) @ V.mH


def is_upper_bound(bound, matrices) -> bool:
    return float(bound) >= singular_values(matrices).max() * (1 - 10 * torch.finfo(matrices.dtype).eps)


@shapes
@dtypes
@pytest.mark.parametrize("size", [1e-4, 1, 1e4])
def test_the_bound_is_a_schatten_norm(shape, dtype, size):
    matrix = size * torch.randn(*shape, dtype=dtype)
    bound = norm_bound(matrix)
    assert is_upper_bound(bound, matrix)
    assert float(bound) == pytest.approx(schatten(singular_values(matrix), 1024), rel=tolerance(dtype))
    rough = gram_bound(matrix @ matrix.mH, 3)
    assert float(rough) == pytest.approx(schatten(singular_values(matrix), 32), rel=tolerance(dtype))


def test_the_bound_is_loosest_for_orthogonal_matrices():
    assert float(norm_bound(torch.eye(640))) == pytest.approx(640 ** (1 / 1024), rel=1e-5)
    assert 640 ** (1 / 1024) < 1.007


def test_power_iteration_is_flagged():
    matrix = with_singular_values([1, 0.99, 0.98], 5, 4)
    vector = torch.ones(4, dtype=torch.float64)
    for _ in range(5):
        vector = matrix.mT @ (matrix @ vector)
        vector = vector / vector.norm()
    assert not is_upper_bound((matrix @ vector).norm(), matrix)


def test_one_bound_serves_a_batch():
    matrices = torch.randn(7, 2, 3, 4, dtype=torch.complex128) * torch.logspace(-9, 0, 7)[:, None, None, None]
    assert norm_bound(matrices).shape == ()
    assert is_upper_bound(norm_bound(matrices), matrices)
    assert float(norm_bound(matrices)) == pytest.approx(max(float(norm_bound(m)) for m in matrices.flatten(0, 1)))


@pytest.mark.parametrize("function", [norm_bound, normalized, polar])
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (2, 3, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradients_are_those_of_finite_differences(function, shape, dtype):
    matrices = torch.randn(*shape, dtype=dtype, requires_grad=True)
    matrices.data.view(-1)[0] = 4  # the largest, whatever the step
    assert torch.autograd.gradcheck(function, matrices)


def test_the_gradient_of_the_bound_is_that_of_the_largest_singular_value():
    matrix = with_singular_values([3, 2, 1], 5, 4).requires_grad_()
    norm_bound(matrix).backward()
    U, _, V = np.linalg.svd(matrix.detach().numpy())
    np.testing.assert_allclose(matrix.grad, np.outer(U[:, 0], V[0]), atol=1e-12)


@shapes
@dtypes
@pytest.mark.parametrize("function", [normalized, polar])
@pytest.mark.parametrize("size", [1e-20, 1, 1e20])
def test_results_have_norm_at_most_one_and_near_one(function, shape, dtype, size):
    result = function(size * torch.randn(*shape, dtype=dtype))
    assert result.shape == shape
    assert 0.99 < singular_values(result).max() <= 1 + 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("function", [norm_bound, normalized, polar])
def test_zero_stays_zero_with_finite_gradients(function):
    matrices = torch.zeros(2, 3, 4, requires_grad=True)
    result = function(matrices)
    result.sum().backward()
    assert not result.any()
    assert matrices.grad.isfinite().all()


@pytest.mark.parametrize("size", [1e-15, 1e-19, 1e-22, 1e-30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_gradients_are_finite_where_squares_underflow(size, dtype):
    sizes = torch.tensor([1, size])[:, None, None]
    matrices = (sizes * torch.ones(2, 1, 1, dtype=dtype)).requires_grad_()
    norm_bound(matrices).backward()
    assert matrices.grad.isfinite().all()


@pytest.mark.parametrize(("rows", "columns"), [(5, 8), (8, 5), (6, 6)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_polar_has_the_singular_vectors_and_the_values_one(rows, columns, dtype):
    matrix = with_singular_values(np.linspace(0.03, 3, min(rows, columns)), rows, columns, dtype)
    U, _, V = np.linalg.svd(matrix.numpy(), full_matrices=False)
    np.testing.assert_allclose(polar(matrix).resolve_conj(), U @ V, atol=1e-4)


def test_polar_takes_all_but_the_smallest_values_close_to_one():
    values = np.geomspace(1e-9, 1, 40)
    result = singular_values(polar(with_singular_values(values, 40, 60)))[::-1]
    reached = values > 1.2 * norms.SMALLEST  # the upper bound is not the norm
    assert (result[reached] > 0.9999).all()
    assert result.max() <= 1 + 1e-14
    assert result[0] < 1e-6


@pytest.mark.parametrize("steps", range(1, 10))
@dtypes
def test_polar_has_norm_at_most_one_after_any_number_of_steps(monkeypatch, steps, dtype):
    monkeypatch.setattr(norms, "STEPS", steps)
    for values in ([1] * 9, np.geomspace(1e-4, 1, 9), np.linspace(0, 1, 9), [1, *[0] * 8]):
        result = polar(with_singular_values(values, 9, 40, dtype))
        assert singular_values(result).max() <= 1 + 10 * torch.finfo(dtype).eps


def test_an_iteration_that_starts_above_one_is_flagged(monkeypatch):
    monkeypatch.setattr(norms, "gram_bound", lambda gram, _: 0.3 * gram_bound(gram))
    assert not polar(torch.randn(9, 40)).norm() <= 3
