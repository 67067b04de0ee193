r"""Lipschitz constants of maps as their numbers are stored, in floating point: a theorem's times :math:`1 + \delta`.

Each bound is the argument of a layer's theorem, made on the stored numbers instead of the real ones; what rounding
breaks of it is the residual :math:`\delta`. It covers operators that are computed again on another machine, too, as far
as these agree within ``RECOMPUTED`` units of roundoff.
"""

import math

import torch
from torch import Tensor, nn

from lbdn.bounds.enclosure import RECOMPUTED, UNIT, UPWARD, WEIGHTED, accumulated, norm_of_sizes, spectral_norm
from lbdn.bounds.maps import weighted
from lbdn.circular import kernel_spectrum, real_form
from lbdn.layers.base import largest


def sandwich_excess(inner: Tensor, outer: Tensor, psi: Tensor, scale: float, unit: float) -> float:
    r"""Return a :math:`\tau \ge 1` for which :math:`V \sigma(U x + b)` is :math:`s \tau`-Lipschitz.

    Slopes in [0, 1] give :math:`w^T T (U \delta - w) \ge 0` for the increments w of the activation and every diagonal
    :math:`T > 0`, so the layer is c-Lipschitz if :math:`2 T - V^T V - c^{-2}\, T U U^T T \succeq 0`. With
    :math:`T = \tau \Psi^2` and :math:`c = s \tau` this holds for a :math:`\tau` of at least 1 and the largest
    eigenvalue of

    .. math:: \tfrac12 \Psi^{-1} V^T V \Psi^{-1} + \tfrac{1}{2 s^2} \Psi\, U U^T \Psi,

    which is :math:`A A^T + B B^T = I` for :math:`U = s \sqrt2 \Psi^{-1} B` and :math:`V = \sqrt2 A^T \Psi`. It also
    bounds :math:`\tfrac12 \|V \Psi^{-1}\|^2`.
    """
    left = weighted(outer.detach().double(), None, psi).mT
    right = weighted(inner.detach().double(), psi / scale, None)
    return max(1.0, spectral_norm(torch.cat([left, right], dim=1), unit) ** 2 / 2 * UPWARD)


def residual_constants(W: Tensor, V: Tensor, d: Tensor, square: float, unit: float) -> tuple[float, float]:
    r"""Return Lipschitz bounds of :math:`x - N^T \sigma(W x + b)`, :math:`N = \mathrm{diag}(d) V`, and of its last map.

    With S = d / m, m the largest entry of W, :math:`x - W^T S \sigma(W x + b)` is 1-Lipschitz if
    :math:`M = \tfrac12 S^{1/2} W W^T S^{1/2} \preceq I` (Araujo et al. 2023). For :math:`M \preceq (1 + \epsilon) I`
    that holds of :math:`S / (1 + \epsilon)`, and the rest of :math:`N = S W + R` adds at most
    :math:`2 \epsilon + \|S^{-1/2} R\| \|S^{1/2} W\|`.

    Args:
        W: a matrix, or a kernel ``(inner, channels, k, k)``.
        V: W / m, rounded.
        d: about 2 / (m T), T as in the layers' theorems.
        square: a bound of that of the norm of :math:`S^{1/2} W`.
        unit: of the precision in which V and d are stored.

    Returns:
        The bound of the whole, and of :math:`N^T S^{-1/2}`.
    """
    W, V = as_kernel(W), as_kernel(V)
    size = largest(W)
    eigenvalue = max(1.0, square / 2 * (1 + accumulated(RECOMPUTED, unit)) * UPWARD)
    missing = (W / size - V).abs() + (accumulated(RECOMPUTED, unit) + 4 * UNIT) * V.abs()
    rest = norm_of_sizes(weighted(missing.sum(dim=(2, 3)), (d * size).sqrt(), None))
    inner_norm = math.sqrt(2 * eigenvalue) * UPWARD  # of S^1/2 W
    return (1 + 2 * (eigenvalue - 1) + rest * inner_norm) * UPWARD, (inner_norm + rest) * UPWARD


def zero_padded_norm(kernel: Tensor, *size: int) -> float:
    """Return an upper bound of the norm of a zero-padded convolution with an odd kernel, as its numbers define it.

    It is a restriction of the circular one on images with a margin of half a kernel, whose frequencies' matrices, sums
    of numbers times phases, are off by their roundings: of angles up to 4 pi, of cosines and sines, of k^2 terms.
    """
    k = kernel.shape[-1]
    if k == 1:
        return spectral_norm(kernel[:, :, 0, 0], 0.0)
    matrices = real_form(kernel_spectrum(kernel, *(pixels + k // 2 for pixels in size)))
    lost = 2 * (k * k + 80) * UNIT * norm_of_sizes(kernel.abs().sum(dim=(2, 3)))
    return (max(spectral_norm(matrix, 0.0) for matrix in matrices) + lost) * UPWARD


def as_kernel(W: Tensor) -> Tensor:
    """Return a matrix as the kernel of a 1 x 1 convolution, a kernel as it is."""
    return W if W.dim() == 4 else W[:, :, None, None]


def correlations(kernel: Tensor, recomputed: int, unit: float) -> Tensor:
    r"""Return bounds of :math:`\sum_\tau |(K_i \star K_j)(\tau)|`, for each two rows of a kernel ``(m, c, k, k)``.

    The sums bound what the convolutions' product :math:`K K^T` couples of channels i and j, on an infinite image.
    """
    relative = accumulated(kernel[0].numel() + WEIGHTED, UNIT) + accumulated(recomputed, unit)
    if kernel.shape[-1] == 1:  # a matrix, which may be large: products of norms bound those of sizes
        matrix = kernel.flatten(1)
        norm = torch.linalg.vector_norm(matrix, dim=1)
        return ((matrix @ matrix.mT).abs() + relative * norm[:, None] * norm) * UPWARD
    margin = kernel.shape[-1] - 1
    signed, sizes = (nn.functional.conv2d(part, part, padding=margin) for part in (kernel, kernel.abs()))
    return (signed.abs() + relative * sizes).sum(dim=(2, 3)) * UPWARD


def weighted_row_sum(sizes: Tensor, weights: Tensor) -> float:
    r"""Return :math:`\max_i \sum_j M_{ij} v_j / v_i`, no less than the spectral radius of M, for sizes M and v > 0."""
    sums = (sizes * weights).sum(dim=1)
    return float(torch.where(sums > 0, sums / weights, 0).max()) * UPWARD
