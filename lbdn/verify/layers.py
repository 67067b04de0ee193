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

RECOMPUTED = 2  # units of roundoff: two roundings of nearly the same number
MAX_GAIN, MAX_LOGARITHM = 1e5, 20.0  # where layers saturate
SLACK = 1 + 2**-46  # covers the few roundings of a claimed constant on its way
UNITS = {"float32": 2.0**-24, "float64": UNIT}

Tensors = Mapping[str, np.ndarray]
Proof = Callable[[float, str], bool]


class NotCoveredError(Exception):
    """A part of a network about which this program proves nothing."""


def proof(layer: dict[str, Any], tensors: Tensors) -> Proof:
    """Return what says, of a constant and a precision, whether the layer, rounded to it, is proved to have that bound.

    Args:
        layer: its "type", "scale" and, for circular convolutions, "size" of the images.
        tensors: its parameters.

    Raises:
        NotCoveredError: for other layers.
    """
    kind, scale = layer["type"], layer["scale"]
    if kind in ("Flatten", "ZeroPadding", "AvgPool2d", "Selection"):
        return lambda constant, _: constant >= scale
    if kind == "AolConv":
        return lambda constant, precision: aol_holds(tensors["weight"], scale, constant, precision)
    if kind in ("SllFc", "SllConv"):
        return lambda constant, precision: residual_holds(tensors, scale, constant, precision)
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
        weight = spectrum(normalized(tensors["weight"], tensors["gain"]), size)
        wide = weight.shape[-2] < weight.shape[-1]
        orthogonal = np.concatenate(cayley(adjoint(weight) if wide else weight), axis=-2)
        return [scale * (adjoint(orthogonal) if wide else orthogonal)]
    if kind in ("AolFc", "AolLin"):
        return [scale * aol(tensors["weight"][:, :, None, None])[0][:, :, 0, 0]]
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
        return _gram_at_most(W if W.shape[0] <= W.shape[1] else W.T, constant**2 / SLACK, UNITS[precision])
    inner, outer = rounded
    weights = np.tile(psi, len(inner) // len(psi))
    tau = constant / scale / SLACK
    stacked = np.concatenate([(outer / weights).T, weights[:, None] / scale * inner], axis=1) / math.sqrt(2)
    return tau >= 1 and _gram_at_most(stacked, tau, UNITS[precision])


def aol_holds(weight: np.ndarray, scale: float, constant: float, precision: str) -> bool:
    r"""Return True only if an AOL convolution, its kernel rounded, is proved to be ``constant``-Lipschitz.

    The row sums of :math:`|W^T W|`, weighted by any positive numbers, bound its spectral radius; a convolution's are
    those of its autocorrelations.
    """
    kernel, roots = aol(weight)
    rounded = (scale * kernel).astype(precision).astype(np.float64)
    sizes = correlations(rounded.swapaxes(0, 1), 2 * RECOMPUTED * UNITS[precision])
    return _row_sum(sizes, roots) <= constant**2 / SLACK


def residual_holds(tensors: Tensors, scale: float, constant: float, precision: str) -> bool:
    r"""Return True only if an SLL layer :math:`s x - N^T \sigma(W s x + b)`, rounded, is ``constant``-Lipschitz.

    N is :math:`\mathrm{diag}(d) V` with V = W / m and d = 2 / (m T), both rounded. With S = d / m, the map
    :math:`x - W^T S \sigma(W x + b)` is 1-Lipschitz if :math:`M = \tfrac12 S^{1/2} W W^T S^{1/2} \preceq I`. For
    :math:`M \preceq (1 + \epsilon) I` that holds of :math:`S / (1 + \epsilon)`, and the rest of :math:`N = S W + R`
    adds at most :math:`2 \epsilon + \|S^{-1/2} R\| \|S^{1/2} W\|`.
    """
    W, unit = tensors["weight"].astype(np.float64), UNITS[precision]
    W = W if W.ndim == 4 else W[:, :, None, None]
    q, size = np.exp(np.clip(tensors["log_q"].astype(np.float64), -MAX_LOGARITHM, MAX_LOGARITHM)), _largest(W)
    bounds = correlations(W / size, 0.0) @ q / q
    d = (2 * np.where(bounds > 0, 1 / np.where(bounds > 0, bounds, 1), 0) / size).astype(precision).astype(np.float64)
    V = (W / size).astype(precision).astype(np.float64)
    roots = np.sqrt(d / size)
    weights = np.where(roots > 0, q / np.where(roots > 0, roots, 1), 0)
    products = correlations(W, 0.0) * roots[:, None] * roots
    eigenvalue = max(1.0, _row_sum(products, weights) / 2 * (1 + SAFETY * RECOMPUTED * unit))
    missing = (np.abs(W / size - V) + (SAFETY * RECOMPUTED * unit + 8 * UNIT) * np.abs(V)).sum(axis=(2, 3))
    missing = missing * np.sqrt(d * size)[:, None]
    rest = SAFETY * math.sqrt(missing.sum(axis=0).max() * missing.sum(axis=1).max())
    return bool((1 + 2 * (eigenvalue - 1) + rest * math.sqrt(2 * eigenvalue)) <= constant / scale / SLACK)


def aol(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return :math:`W = V D^{-1/2}` and the diagonal of :math:`D^{1/2}`, of a kernel ``(m, c, k, k)``."""
    V = weight.astype(np.float64)
    V = V / _largest(V)
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


def spectrum(kernel: np.ndarray, size: list[int] | None) -> np.ndarray:
    r"""Return :math:`\sum_{a,b} K_{ab} e^{-2 \pi i (u (a - c) / h + v (b - c) / w)}`, one (u, v) of each pair or both.

    A matrix stays, and a kernel of size one, whose matrices are all the same, becomes one.
    """
    if kernel.ndim == 2:
        return kernel
    if size is None or kernel.shape[-1] == 1:
        return kernel[:, :, 0, 0]
    (height, width), offsets = size, np.arange(kernel.shape[-1]) - kernel.shape[-1] // 2
    vertical = np.exp(-2j * np.pi / height * (np.arange(height)[:, None] * offsets % height))
    horizontal = np.exp(-2j * np.pi / width * (np.arange(width // 2 + 1)[:, None] * offsets % width))
    return np.einsum("ua,ijab,vb->uvij", vertical, kernel, horizontal).reshape(-1, *kernel.shape[:2])


def normalized(direction: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Return the gain times the direction over its Frobenius norm."""
    scaled = direction.astype(np.float64) / _largest(direction)
    return float(np.clip(gain, -MAX_GAIN, MAX_GAIN)) * scaled / (np.linalg.norm(scaled) or 1.0)


def cayley(stacked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return :math:`A^* = (I + Z)^{-1} (I - Z)` and :math:`B^* = -2 Y (I + Z)^{-1}`, :math:`Z = X - X^* + Y^* Y`."""
    q = stacked.shape[-1]
    X, Y = stacked[..., :q, :], stacked[..., q:, :]
    inverse = np.linalg.inv(np.eye(q) + X - adjoint(X) + adjoint(Y) @ Y)
    return 2 * inverse - np.eye(q), -2 * Y @ inverse


def adjoint(matrix: np.ndarray) -> np.ndarray:
    """Return the conjugate transpose of the last two dimensions."""
    return matrix.conj().swapaxes(-1, -2)


def real_form(matrix: np.ndarray) -> np.ndarray:
    """Return a complex matrix as a real one on stacked real and imaginary parts; a real one as it is."""
    if not np.iscomplexobj(matrix):
        return matrix
    return np.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])


def diagonal(tensors: Tensors) -> np.ndarray:
    """Return the diagonal of Psi."""
    return np.exp(np.clip(tensors["log_psi"].astype(np.float64), -MAX_LOGARITHM, MAX_LOGARITHM))


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0)) or 1.0
