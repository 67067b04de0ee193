"""Bounds of norms in floating point, against matrices whose norms are known exactly."""

import math

import numpy as np
import pytest
import torch

from lbdn.bounds.enclosure import accumulated, largest_eigenvalue, norm_of_sizes, norms, spectral_norm, unit_roundoff

HALF = 2.0**-53


def hadamard(n: int) -> torch.Tensor:
    """Orthogonal but for a factor: every product and sum with it is exact."""
    return torch.ones(1, 1) if n == 1 else torch.kron(torch.tensor([[1.0, 1], [1, -1]]), hadamard(n // 2))


@pytest.mark.parametrize("n", [1, 2, 16, 128])
def test_the_norm_of_a_matrix_known_exactly_is_bounded_from_above_and_closely(n):
    matrix = hadamard(n)[:, : max(n // 2, 1)]
    exact = math.sqrt(n)
    for shape in (matrix, matrix.mT):
        bound = spectral_norm(shape, HALF)
        assert exact < bound < exact * (1 + 1e-8)
        assert spectral_norm(3 * shape, HALF) == pytest.approx(3 * bound)


def test_norms_bound_those_of_all_recomputed_matrices():
    unit, matrix = 2.0**-24, torch.randn(6, 9, dtype=torch.float64)
    bound = spectral_norm(matrix, unit)
    for _ in range(50):
        other = matrix * (1 + 2 * unit * torch.randint(-1, 2, matrix.shape))
        assert float(torch.linalg.matrix_norm(other, 2)) <= bound
    worst = torch.ones(4, 4, dtype=torch.float64)  # all entries can grow together
    assert spectral_norm(worst, unit) >= 4 * (1 + 2 * unit)
    assert spectral_norm(worst, unit) < 4 * (1 + 3 * unit)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_the_largest_eigenvalue_counts_the_errors_of_the_entries(size):
    matrix = size * torch.diag(torch.tensor([3.0, -7.0, 2.0], dtype=torch.float64))
    error = size * 0.1 * torch.ones(3, 3, dtype=torch.float64)
    exact = float(torch.linalg.eigvalsh(matrix + error)[-1])
    bound = largest_eigenvalue(matrix, error)
    assert exact <= bound <= exact + 0.7 * size  # at most two times the errors' row sum above the computed one
    assert largest_eigenvalue(matrix, 0 * error) == pytest.approx(3 * size, rel=3e-9)


def test_what_is_not_finite_has_an_infinite_bound_and_zero_a_small_one():
    assert largest_eigenvalue(torch.tensor([[math.nan]]), torch.zeros(1, 1)) == math.inf
    assert spectral_norm(torch.tensor([[math.inf, 1.0]]), HALF) == math.inf
    assert 0 <= spectral_norm(torch.zeros(3, 2), HALF) < 1e-100


def test_the_norm_of_sizes_is_that_of_the_absolute_values_or_more():
    for shape in ((5, 3), (1, 7), (4, 4)):
        matrix = torch.randn(*shape, dtype=torch.float64)
        assert np.linalg.norm(matrix.abs().numpy(), 2) <= norm_of_sizes(matrix)
    assert norm_of_sizes(-torch.ones(4, 9)) == pytest.approx(6)


def test_norms_of_images_are_those_of_their_vectors():
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    exact = x.flatten(1).norm(dim=1)
    assert (exact < norms(x)).all()
    torch.testing.assert_close(norms(x), exact, rtol=1e-8, atol=0)


def test_errors_accumulate_as_gamma_n_and_without_bound_once_they_are_one():
    assert accumulated(784, 2.0**-24) == pytest.approx(784 / (2**24 - 784), rel=1e-15)
    assert accumulated(2**24, 2.0**-24) == math.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_there_are_two_precisions_to_certify_in(dtype):
    assert (unit_roundoff(torch.float32), unit_roundoff(torch.float64)) == (2.0**-24, 2.0**-53)
    with pytest.raises(ValueError, match="take a network in float32 or float64, got torch"):
        unit_roundoff(dtype)
