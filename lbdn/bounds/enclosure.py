r"""Bounds of norms that hold for the numbers as they are stored: every rounding error of computing them is counted.

Computed in float64. A product of matrices comes with a bound of its entries' errors (Higham 2002, section 3.5: n
accumulated relative errors of size u are at most :math:`\gamma_n = n u / (1 - n u)`, in any order of summation, with or
without fused multiply-add), and an eigenvalue is bounded by a Cholesky factorization that runs to its end.
"""

import math

import numpy as np
import torch
from torch import Tensor

from lbdn.verify import is_positive_semidefinite
from lbdn.verify.layers import RECOMPUTED as RECOMPUTED

# Products and sums of up to a million non-negative numbers in float64 are below their exact value by less than this.
UPWARD = 1 + 1e-9
DOWNWARD = 1 - 1e-9
UNIT = 2.0**-53  # of float64
WEIGHTED = 8  # roundings in float64 of two entries that have been multiplied by weights


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return u, the largest relative error of one rounding.

    Raises:
        ValueError: for types other than float32 and float64, in which nothing is certified.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"certificates that hold in floating point take a network in float32 or float64, got {dtype}")
    return torch.finfo(dtype).eps / 2


def accumulated(count: int, unit: float) -> float:
    """Return the bound of ``count`` accumulated relative errors; infinite where there is none.

    >>> accumulated(2, 0.25)
    1.0
    """
    return count * unit / (1 - count * unit) if count * unit < 1 else math.inf


def spectral_norm(matrix: Tensor, unit: float) -> float:
    """Return an upper bound of the spectral norm of a matrix, and of all that differ from it by a recomputation.

    Args:
        matrix: two-dimensional; its stored entries may have been multiplied by weights, in float64.
        unit: of the precision in which the matrix is stored.
    """
    matrix = matrix.detach().double().cpu()
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    relative = accumulated(matrix.shape[1] + WEIGHTED, UNIT) + accumulated(2 * RECOMPUTED, unit)
    gram, sizes = matrix @ matrix.mT, matrix.abs() @ matrix.abs().mT
    return math.sqrt(largest_eigenvalue(gram, UPWARD * relative * sizes)) * UPWARD


def largest_eigenvalue(matrix: Tensor, error: Tensor) -> float:
    r"""Return an upper bound of the eigenvalues of all symmetric matrices within ``error``, entry by entry.

    The computed eigenvalue and a little more, so much that the Cholesky factorization of :math:`c I - M` proves it; and
    the largest row sum of the errors.
    """
    symmetric, allowed = ((part + part.mT).double().cpu().numpy() / 2 for part in (matrix, error))
    if not (np.isfinite(symmetric).all() and np.isfinite(allowed).all()):
        return math.inf
    computed = float(np.linalg.eigvalsh(symmetric)[-1])
    more = max(1e-14 * float(np.abs(symmetric).sum(axis=1).max()), np.finfo(float).tiny)
    for _ in range(60):
        bound = max(computed + more, more)
        difference = bound * np.eye(len(symmetric)) - symmetric
        if is_positive_semidefinite(difference, 4 * UNIT * (np.abs(difference) + np.abs(symmetric))):
            return (bound + float(allowed.sum(axis=1).max())) * UPWARD
        more *= 2
    return math.inf


def norm_of_sizes(matrix: Tensor) -> float:
    r"""Return an upper bound of the spectral norm of :math:`|M|`: the root of its largest row and column sums."""
    sizes = matrix.detach().double().abs()
    return math.sqrt(float(sizes.sum(0).max()) * float(sizes.sum(1).max())) * UPWARD


def norms(x: Tensor) -> Tensor:
    """Return an upper bound of each image's Euclidean norm, whatever the number of dimensions behind the first."""
    return torch.linalg.vector_norm(x.flatten(1).double(), dim=1) * UPWARD
