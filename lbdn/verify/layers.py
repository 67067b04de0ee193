r"""Operators of layers from their parameters, and proofs of Lipschitz constants of the rounded ones.

Written once more, from the formulas, in NumPy. A network runs with operators that are computed in float64 and rounded
to its own precision; the proofs here hold for these and for all that differ from them by ``RECOMPUTED`` units of
roundoff in each entry, so that it doesn't matter on which machine they are computed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lbdn.verify.lmi import SAFETY, UNIT, is_positive_semidefinite
from lbdn.verify.matrices import (
    SHARP,
    adjoint,
    block_convolution,
    cayley,
    largest,
    normalized,
    orthogonal,
    polar,
    real_form,
    schatten_norm,
    skew_orthogonal,
    spectral,
    spectrum,
    unit_rows,
)

RECOMPUTED = 2  # units of roundoff: two roundings of nearly the same number
MAX_LOGARITHM = 20.0  # where layers saturate
SLACK = 1 + 2**-46  # covers the few roundings of a claimed constant on its way
UNITS = {"float32": 2.0**-24, "float64": UNIT}

FAMILIES = {  # of types of layers
    name.capitalize() + form: name
    for name in ("aol", "bcop", "cpl", "lot", "orthogonal", "sandwich", "sll", "soc", "spectral")
    for form in ("Fc", "Lin", "Conv")
}
CONSTRAINED = {"bcop": polar, "lot": polar, "soc": skew_orthogonal, "spectral": spectral}  # functions of free weights
ROWS = "LastLayerNormalization"
WEIGHTLESS = ("Flatten", "ZeroPadding", "AvgPool2d", "Selection")

Tensors = Mapping[str, np.ndarray]
Proof = Callable[[float, str], bool]


class NotCoveredError(Exception):
    """A part of a network about which this program proves nothing."""


def proof(layer: dict[str, Any], tensors: Tensors) -> Proof:
    """Return what says, of a constant and a precision, whether the layer, rounded to it, is proved to have that bound.

    Args:
        layer: its "type", "scale" and, where its operators depend on it, the "size" of the images.
        tensors: its parameters.

    Raises:
        NotCoveredError: for other layers.
    """
    kind, scale = layer["type"], layer["scale"]
    if kind in WEIGHTLESS:
        return lambda constant, _: constant >= scale
    if kind == "AolConv":
        return lambda constant, precision: aol_holds(tensors["weight"], scale, constant, precision)
    if kind in ("SllFc", "SllConv", "CplFc", "CplConv"):
        size = layer.get("size")
        factors = residual_factors(tensors, size)
        return lambda constant, precision: residual_holds(tensors, factors, scale, constant, precision, size)
    matrices = operators(kind, tensors, scale, layer.get("size"))
    psi = diagonal(tensors) if "log_psi" in tensors else None
    each = list(zip(*matrices, strict=True)) if matrices[0].ndim == 3 else [tuple(matrices)]
    return lambda constant, precision: all(matrices_hold(one, psi, scale, constant, precision) for one in each)


def operators(kind: str, tensors: Tensors, scale: float, size: list[int] | None = None) -> list[np.ndarray]:
    r"""Return a layer's matrices in float64, before they are rounded; of circular convolutions one a frequency.

    For Sandwich layers :math:`s \sqrt2 \Psi^{-1} B` and :math:`\sqrt2 A^* \Psi`; for the others, and the last layer,
    the one that multiplies the input.

    Raises:
        NotCoveredError: for other layers.
    """
    if kind in ("SandwichFc", "SandwichLin", "SandwichConv"):
        A_star, B_star = cayley(spectrum(normalized(tensors["stacked"], tensors["gain"]), size))
        if kind == "SandwichLin":
            return [scale * adjoint(B_star)]
        psi = diagonal(tensors)
        return [math.sqrt(2) * scale * adjoint(B_star) / psi[:, None], math.sqrt(2) * A_star * psi]
    if kind in ("OrthogonalFc", "OrthogonalLin", "OrthogonalConv"):
        return [scale * orthogonal(spectrum(normalized(tensors["weight"], tensors["gain"]), size))]
    if kind in ("AolFc", "AolLin"):
        return [scale * aol(tensors["weight"][:, :, None, None])[0][:, :, 0, 0]]
    if kind == ROWS:
        return [scale * unit_rows(tensors["weight"])]
    if kind == "BcopConv":
        factors = tensors.get("factors", np.zeros(0)).astype(np.float64)
        return [scale * spectrum(block_convolution(tensors["weight"].astype(np.float64), factors), size)]
    if FAMILIES.get(kind) in CONSTRAINED:
        return [scale * CONSTRAINED[FAMILIES[kind]](spectrum(tensors["weight"].astype(np.float64), size))]
    raise NotCoveredError(f"layers of type {kind}")


def matrices_hold(
    matrices: tuple[np.ndarray, ...], psi: np.ndarray | None, scale: float, constant: float, precision: str
) -> bool:
    r"""Return True only if a layer with these operators, rounded, is proved to be ``constant``-Lipschitz.

    A matrix W is if :math:`c^2 I - W W^*` is positive semi-definite. A Sandwich layer :math:`V \sigma(U x + b)` with
    slopes of :math:`\sigma` in [0, 1] is :math:`s \tau`-Lipschitz, :math:`\tau \ge 1`, if
    :math:`\tau I - \tfrac12 \Psi^{-1} V^* V \Psi^{-1} - \tfrac{1}{2 s^2} \Psi U U^* \Psi` is: by the multipliers
    :math:`T = \tau \Psi^2`, for which :math:`2 T - V^* V - T U U^* T / (s \tau)^2` has to be.

    Args:
        matrices: of one frequency, as ``operators`` returns them.
        psi: the diagonal of Psi, any positive numbers; None for a matrix alone.
        scale: s.
        constant: claimed.
        precision: "float32" or "float64".
    """
    rounded = [real_form(W).astype(precision).astype(np.float64) for W in matrices]
    if psi is None:
        (W,) = rounded
        return _norm_at_most(W, constant**2 / SLACK, UNITS[precision])
    inner, outer = rounded
    weights = np.tile(psi, len(inner) // len(psi))
    tau = constant / scale / SLACK
    stacked = np.concatenate([(outer / weights).T, weights[:, None] / scale * inner], axis=1) / math.sqrt(2)
    return tau >= 1 and _gram_at_most(stacked, tau, UNITS[precision])


def rows_hold(tensors: Tensors, scale: float, constant: float, precision: str) -> bool:
    """Return True only if each output of a last layer with normalised rows, rounded, is ``constant``-Lipschitz."""
    (W,) = operators(ROWS, tensors, scale)
    squares = (W.astype(precision).astype(np.float64) ** 2).sum(axis=1)
    relative = SAFETY * ((W.shape[1] + 2) * UNIT + 2 * RECOMPUTED * UNITS[precision])
    return bool((squares * (1 + relative) <= constant**2 / SLACK).all())


def aol_holds(weight: np.ndarray, scale: float, constant: float, precision: str) -> bool:
    r"""Return True only if an AOL convolution, its kernel rounded, is proved to be ``constant``-Lipschitz.

    The row sums of :math:`|W^T W|`, weighted by any positive numbers, bound its spectral radius; a convolution's are
    those of its autocorrelations.
    """
    kernel, roots = aol(weight)
    rounded = (scale * kernel).astype(precision).astype(np.float64)
    sizes = correlations(rounded.swapaxes(0, 1), 2 * RECOMPUTED * UNITS[precision])
    return _row_sum(sizes, roots) <= constant**2 / SLACK


def residual_factors(tensors: Tensors, size: list[int] | None) -> np.ndarray:
    r"""Return :math:`d = 2 / (m t)` of a residual layer's hidden units, m the largest entry of W, before it is rounded.

    t bounds :math:`W W^T / m^2`: of SLL layers by weighted row sums, of CPL layers by one norm for all units, that of
    the circular convolution on an image with a margin.
    """
    W = _kernel(tensors)
    V = W / largest(W)
    if "log_q" in tensors:
        q = _exponential(tensors["log_q"])
        bounds = correlations(V, 0.0) @ q / q
    else:
        bounds = np.full(len(V), schatten_norm(_with_margin(V, size), SHARP) ** 2)
    return 2 * np.where(bounds > 0, 1 / np.where(bounds > 0, bounds, 1), 0) / largest(W)


def residual_holds(
    tensors: Tensors, factors: np.ndarray, scale: float, constant: float, precision: str, size: list[int] | None
) -> bool:
    r"""Return True only if :math:`s x - N^T \sigma(W s x + b)`, rounded, is ``constant``-Lipschitz.

    N is :math:`\mathrm{diag}(d) V` with V = W / m and d, ``factors``, both rounded. With S = d / m, the map
    :math:`x - W^T S \sigma(W x + b)` is 1-Lipschitz if :math:`M = \tfrac12 S^{1/2} W W^T S^{1/2} \preceq I`. For
    :math:`M \preceq (1 + \epsilon) I` that holds of :math:`S / (1 + \epsilon)`, and the rest of :math:`N = S W + R`
    adds at most :math:`2 \epsilon + \|S^{-1/2} R\| \|S^{1/2} W\|`, whose last factor is at most
    :math:`\sqrt2 (1 + \epsilon)`. The claim says how large :math:`\epsilon` may be.
    """
    W, unit = _kernel(tensors), UNITS[precision]
    m = largest(W)
    d = factors.astype(precision).astype(np.float64)
    V = (W / m).astype(precision).astype(np.float64)
    missing = (np.abs(W / m - V) + (SAFETY * RECOMPUTED * unit + 8 * UNIT) * np.abs(V)).sum(axis=(2, 3))
    missing = missing * np.sqrt(d * m)[:, None]
    rest = SAFETY * math.sqrt(2 * missing.sum(axis=0).max() * missing.sum(axis=1).max())
    epsilon = (constant / scale / SLACK - 1 - rest) / (2 + rest)
    if not 0 <= epsilon < math.inf:
        return False
    bound, roots = (1 + epsilon) / (1 + SAFETY * RECOMPUTED * unit), np.sqrt(d / m)
    if "log_q" in tensors:
        weights = np.where(roots > 0, _exponential(tensors["log_q"]) / np.where(roots > 0, roots, 1), 0)
        return _row_sum(correlations(W, 0.0) * roots[:, None] * roots, weights) / 2 <= bound
    k, root = W.shape[-1], roots[0] / math.sqrt(2)  # one for all units
    sizes = np.abs(W).sum(axis=(2, 3))
    # A frequency's matrix is a sum of k^2 numbers times phases, whose angles and products are rounded.
    lost = 2 * (k * k + 80) * UNIT * math.sqrt(sizes.sum(axis=0).max() * sizes.sum(axis=1).max())
    allowed = math.sqrt(bound / SLACK) - root * lost
    return allowed > 0 and all(_norm_at_most(root * real_form(one), allowed**2, 0.0) for one in _with_margin(W, size))


def aol(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return :math:`W = V D^{-1/2}` and the diagonal of :math:`D^{1/2}`, of a kernel ``(m, c, k, k)``."""
    V = weight.astype(np.float64)
    V = V / largest(V)
    sums = correlations(V.swapaxes(0, 1), 0.0).sum(axis=1)
    return V * np.where(sums > 0, 1 / np.sqrt(np.where(sums > 0, sums, 1)), 0)[:, None, None], np.sqrt(sums)


def correlations(kernel: np.ndarray, recomputed: float) -> np.ndarray:
    r"""Return upper bounds of :math:`\sum_\tau |(K_i \star K_j)(\tau)|` for rows i, j of a kernel ``(m, c, k, k)``."""
    rows, columns, k, _ = kernel.shape
    relative = (columns * k * k + 8) * 2 * UNIT + recomputed
    result = np.zeros((rows, rows))
    for a in range(1 - k, k):
        for b in range(1 - k, k):
            own = kernel[:, :, max(a, 0) : k + min(a, 0), max(b, 0) : k + min(b, 0)].reshape(rows, -1)
            moved = kernel[:, :, max(-a, 0) : k + min(-a, 0), max(-b, 0) : k + min(-b, 0)].reshape(rows, -1)
            result += np.abs(own @ moved.T) + relative * (np.abs(own) @ np.abs(moved).T)
    return result * (1 + 1e-12)


def _row_sum(sizes: np.ndarray, weights: np.ndarray) -> float:
    """Return the largest weighted row sum; infinite for a row that counts and has no weight."""
    sums = sizes @ weights
    ratios = np.where(sums > 0, sums / np.where(weights > 0, weights, 1), 0)
    return math.inf if (sizes.any(axis=1) & (weights <= 0)).any() else float(ratios.max()) * (1 + 1e-12)


def _norm_at_most(matrix: np.ndarray, square: float, unit: float) -> bool:
    """Return True only if the squared norms of a matrix and of all recomputed ones are at most ``square``."""
    return _gram_at_most(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T, square, unit)


def _gram_at_most(matrix: np.ndarray, bound: float, unit: float) -> bool:
    r"""Return True only if :math:`M M^T \preceq c I` for a matrix and for all recomputed ones."""
    if not (np.isfinite(matrix).all() and math.isfinite(bound)):
        return False
    # Entries are products of numbers that weights, with their own roundings, have multiplied; then these are summed up.
    relative = SAFETY * ((matrix.shape[1] + 10) * UNIT + 2 * RECOMPUTED * unit)
    sizes = np.abs(matrix)
    rest = bound - SAFETY * relative * (sizes @ sizes.sum(axis=0)).max()  # the largest row sum of |M| |M|^T
    gram = matrix @ matrix.T
    difference = rest * np.eye(len(matrix)) - (gram + gram.T) / 2
    return is_positive_semidefinite(difference, 4 * UNIT * (np.abs(difference) + np.abs(gram)))


def diagonal(tensors: Tensors) -> np.ndarray:
    """Return the diagonal of Psi."""
    return _exponential(tensors["log_psi"])


def _exponential(logarithm: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(logarithm.astype(np.float64), -MAX_LOGARITHM, MAX_LOGARITHM))


def _kernel(tensors: Tensors) -> np.ndarray:
    """Return a residual layer's weight; a matrix as a kernel of size one."""
    W = tensors["weight"].astype(np.float64)
    return W if W.ndim == 4 else W[:, :, None, None]


def _with_margin(kernel: np.ndarray, size: list[int] | None) -> np.ndarray:
    """Return a kernel's matrices, one a frequency, on images so large that zeros at two of their edges pad all four.

    The zero-padded convolution is a restriction of that circular one, so its norm is no larger.
    """
    margin = kernel.shape[-1] // 2
    matrices = spectrum(kernel, None if size is None else [pixels + margin for pixels in size])
    return matrices if matrices.ndim == 3 else matrices[None]
