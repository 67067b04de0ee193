r"""A proof checker for Lipschitz bounds, in NumPy alone: it trusts nothing of the rest of this library.

A feedforward network :math:`W_L \sigma(\dots \sigma(W_0 x + b_0) \dots) + b_L`, with an activation whose slopes lie in
[0, 1], is :math:`\gamma`-Lipschitz if positive diagonal multipliers :math:`\Lambda_0, \dots, \Lambda_{L-1}` make the
matrix of the LMI positive semi-definite (Fazlyab et al. 2019; Wang and Manchester 2023, theorem on the LMI condition).
Eliminating its corners :math:`\gamma I` leaves a matrix over the hidden units alone: :math:`2\Lambda_k` on its
diagonal, :math:`-\Lambda_k W_k` beside it, less :math:`\Lambda_0 W_0 W_0^T \Lambda_0 / \gamma` in its first block and
:math:`W_L^T W_L / \gamma` in its last.

The numbers that come in are taken as they are, exact binary fractions; every rounding error of the check is bounded and
counted against the claim. What is proved holds in real arithmetic for the network with exactly these weights.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

UNIT = 2.0**-53  # relative rounding error of one operation in float64
SAFETY = 1.01  # covers the rounding of the error bounds themselves, which is far below a hundredth of them


def proves_lipschitz_bound(weights: Sequence[np.ndarray], multipliers: Sequence[np.ndarray], gamma: float) -> bool:
    """Return True only if the multipliers prove that the network with these weights is gamma-Lipschitz.

    False means "not proved": the bound may be wrong, or hold by less than the rounding errors of the check.

    Args:
        weights: the matrices of a network with at least one hidden layer, float32 or float64.
        multipliers: the diagonals of Lambda, one vector a hidden layer.
        gamma: the claimed bound.

    Raises:
        ValueError: if shapes don't fit, or a number isn't finite, or is so large or small that products may overflow.
    """
    weights = [np.asarray(W, dtype=np.float64) for W in weights]
    multipliers = [np.asarray(m, dtype=np.float64) for m in multipliers]
    _check(weights, multipliers, gamma)
    if not (gamma > 0 and all((m > 0).all() for m in multipliers)):
        return False
    return is_positive_semidefinite(*_reduced_lmi(weights, multipliers, gamma))


def is_positive_semidefinite(matrix: np.ndarray, error: np.ndarray) -> bool:
    r"""Return True only if every symmetric matrix within ``error``, entry by entry, of a symmetric one is PSD.

    If the floating-point Cholesky factorization of :math:`M - cI` runs to its end, then :math:`M - cI` differs from
    an exactly semi-definite matrix by at most :math:`\frac{g}{1-g}\,\mathrm{tr}(M)` with
    :math:`g = (n+1) u / (1 - (n+1) u)` (Demmel 1989; Rump 2006), so M and its neighbours are PSD if c is that, plus the
    largest row sum of the errors, plus the rounding of the subtraction. The matrix is scaled to about a unit diagonal
    first, by powers of two, which is exact.
    """
    n = len(matrix)
    diagonal = matrix.diagonal()
    if not (np.isfinite(matrix).all() and np.isfinite(error).all() and (diagonal > 0).all()):
        return False
    scale = np.ldexp(1.0, -np.round(np.log2(diagonal) / 2).astype(int))
    scaled = scale[:, None] * matrix * scale
    g = _accumulated(n + 1)
    factorization = g / (1 - g) * np.trace(scaled)
    entries = (scale[:, None] * error * scale).sum(axis=1).max()
    subtraction = 2 * UNIT * scaled.diagonal().max()
    shift = SAFETY * (factorization + entries + subtraction)
    if not shift < 1:
        return False
    try:
        np.linalg.cholesky(scaled - shift * np.eye(n))
    except np.linalg.LinAlgError:
        return False
    return True


def _reduced_lmi(
    weights: list[np.ndarray], multipliers: list[np.ndarray], gamma: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix over the hidden units, and a bound of the rounding error of each entry."""
    starts = np.cumsum([0, *(len(m) for m in multipliers)])
    matrix = np.zeros((starts[-1], starts[-1]))
    error = np.zeros_like(matrix)
    np.fill_diagonal(matrix, 2 * np.concatenate(multipliers))
    for k in range(1, len(multipliers)):
        coupling = multipliers[k][:, None] * weights[k]
        rows, columns = slice(starts[k], starts[k + 1]), slice(starts[k - 1], starts[k])
        matrix[rows, columns], matrix[columns, rows] = -coupling, -coupling.T
        error[rows, columns], error[columns, rows] = UNIT * np.abs(coupling), UNIT * np.abs(coupling.T)
    first, last = slice(0, starts[1]), slice(starts[-2], starts[-1])
    for block, factor in ((first, multipliers[0][:, None] * weights[0]), (last, weights[-1].T)):
        gram, sizes = factor @ factor.T, np.abs(factor) @ np.abs(factor).T
        matrix[block, block] -= gram / gamma
        # The factor's two roundings, the sums', the division's; then that of the subtraction.
        error[block, block] += _accumulated(factor.shape[1] + 4) * sizes / gamma + UNIT * np.abs(matrix[block, block])
    return (matrix + matrix.T) / 2, SAFETY * (error + error.T) / 2 + UNIT * np.abs(matrix)


def _accumulated(n: int) -> float:
    """Return n u / (1 - n u), the bound of n accumulated relative errors."""
    return n * UNIT / (1 - n * UNIT)


def _check(weights: list[np.ndarray], multipliers: list[np.ndarray], gamma: float) -> None:
    shapes = [W.shape for W in weights]
    fits = (
        len(weights) == len(multipliers) + 1 >= 2
        and all(W.ndim == 2 for W in weights)
        and all(before[0] == after[1] for before, after in pairwise(shapes))
        and all(m.shape == (W.shape[0],) for m, W in zip(multipliers, weights, strict=False))
    )
    if not fits:
        raise ValueError(
            f"takes matrices that can be multiplied and one multiplier a hidden unit, got matrices of shapes {shapes} "
            f"and multipliers of shapes {[m.shape for m in multipliers]}"
        )
    for numbers in (*weights, *multipliers, np.array([gamma])):
        sizes = np.abs(numbers[numbers != 0])
        if not np.isfinite(numbers).all() or (sizes.size and not (sizes.min() > 1e-60 and sizes.max() < 1e60)):
            raise ValueError(
                "takes finite numbers between 1e-60 and 1e60 in size, and zeros: products must not underflow"
            )
