r"""Operators of fully connected layers from their parameters, and proofs of Lipschitz constants of the rounded ones.

Written once more, from the formulas, in NumPy. A network runs with operators that are computed in float64 and rounded
to its own precision; the proofs here hold for these and for all that differ from them by ``RECOMPUTED`` units of
roundoff in each entry, so that it doesn't matter on which machine they are computed.
"""

import math
from collections.abc import Mapping

import numpy as np

from lbdn.verify.lmi import SAFETY, UNIT, is_positive_semidefinite

RECOMPUTED = 2  # units of roundoff: two roundings of nearly the same number
MAX_GAIN, MAX_LOGARITHM = 1e5, 20.0  # where layers saturate
SLACK = 1 + 2**-48  # covers the few roundings of a claimed constant on its way
UNITS = {"float32": 2.0**-24, "float64": UNIT}

Tensors = Mapping[str, np.ndarray]


class NotCoveredError(Exception):
    """A part of a network about which this program proves nothing."""


def operators(kind: str, tensors: Tensors, scale: float) -> list[np.ndarray]:
    r"""Return a layer's matrices in float64, before they are rounded.

    For "SandwichFc" :math:`s \sqrt2 \Psi^{-1} B` and :math:`\sqrt2 A^T \Psi`; for the others the one that multiplies
    the input.

    Raises:
        NotCoveredError: for other layers.
    """
    if kind in ("SandwichFc", "SandwichLin"):
        A_star, B_star = cayley(normalized(tensors["stacked"], tensors["gain"]))
        if kind == "SandwichLin":
            return [scale * B_star.T]
        return [math.sqrt(2) * scale * B_star.T / diagonal(tensors)[:, None], math.sqrt(2) * A_star * diagonal(tensors)]
    if kind in ("OrthogonalFc", "OrthogonalLin"):
        weight = normalized(tensors["weight"], tensors["gain"])
        wide = weight.shape[0] < weight.shape[1]
        orthogonal = np.concatenate(cayley(weight.T if wide else weight))
        return [scale * (orthogonal.T if wide else orthogonal)]
    if kind in ("AolFc", "AolLin"):
        V = tensors["weight"].astype(np.float64)
        V = V / (np.abs(V).max() or 1.0)
        sums = np.abs(V.T @ V).sum(axis=0)
        return [scale * V * np.where(sums > 0, 1 / np.sqrt(np.where(sums > 0, sums, 1)), 0)]
    raise NotCoveredError(f"layers of type {kind}")


def constant_holds(
    matrices: list[np.ndarray], psi: np.ndarray | None, scale: float, constant: float, precision: str
) -> bool:
    r"""Return True only if a layer with these operators, rounded, is proved to be ``constant``-Lipschitz.

    A matrix W is if :math:`c^2 I - W W^T` is positive semi-definite. A Sandwich layer :math:`V \sigma(U x + b)` with
    slopes of :math:`\sigma` in [0, 1] is :math:`s \tau`-Lipschitz, :math:`\tau \ge 1`, if
    :math:`\tau I - \tfrac12 \Psi^{-1} V^T V \Psi^{-1} - \tfrac{1}{2 s^2} \Psi U U^T \Psi` is: by the multipliers
    :math:`T = \tau \Psi^2`, for which :math:`2 T - V^T V - T U U^T T / (s \tau)^2` has to be.

    Args:
        matrices: as ``operators`` returns them.
        psi: the diagonal of Psi, any positive numbers; None for a matrix alone.
        scale: s.
        constant: claimed.
        precision: "float32" or "float64".
    """
    rounded = [W.astype(precision).astype(np.float64) for W in matrices]
    if psi is None:
        (W,) = rounded
        return _gram_at_most(W if W.shape[0] <= W.shape[1] else W.T, constant**2 / SLACK, UNITS[precision])
    inner, outer = rounded
    tau = constant / scale / SLACK
    stacked = np.concatenate([(outer / psi).T, psi[:, None] / scale * inner], axis=1) / math.sqrt(2)
    return tau >= 1 and _gram_at_most(stacked, tau, UNITS[precision])


def _gram_at_most(matrix: np.ndarray, bound: float, unit: float) -> bool:
    r"""Return True only if :math:`M M^T \preceq c I` for a matrix and for all recomputed ones."""
    if not (np.isfinite(matrix).all() and math.isfinite(bound)):
        return False
    # Entries are products of numbers that weights, with their own roundings, have multiplied; then these are summed up.
    relative = SAFETY * ((matrix.shape[1] + 10) * UNIT + 2 * RECOMPUTED * unit)
    rest = bound - SAFETY * relative * (np.abs(matrix) @ np.abs(matrix).T).sum(axis=1).max()
    gram = matrix @ matrix.T
    difference = rest * np.eye(len(matrix)) - (gram + gram.T) / 2
    return is_positive_semidefinite(difference, 4 * UNIT * (np.abs(difference) + np.abs(gram)))


def normalized(direction: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Return the gain times the direction over its Frobenius norm."""
    direction = direction.astype(np.float64)
    scaled = direction / (np.abs(direction).max() or 1.0)
    return float(np.clip(gain, -MAX_GAIN, MAX_GAIN)) * scaled / (np.linalg.norm(scaled) or 1.0)


def cayley(stacked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return :math:`A^T = (I + Z)^{-1} (I - Z)` and :math:`B^T = -2 Y (I + Z)^{-1}`, :math:`Z = X - X^T + Y^T Y`."""
    q = stacked.shape[1]
    X, Y = stacked[:q], stacked[q:]
    inverse = np.linalg.inv(np.eye(q) + X - X.T + Y.T @ Y)
    return 2 * inverse - np.eye(q), -2 * Y @ inverse


def diagonal(tensors: Tensors) -> np.ndarray:
    """Return the diagonal of Psi."""
    return np.exp(np.clip(tensors["log_psi"].astype(np.float64), -MAX_LOGARITHM, MAX_LOGARITHM))
