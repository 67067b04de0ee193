r"""Lipschitz constants of layers as their operators are stored, in floating point: ``scale`` times :math:`1 + \delta`.

Each bound is the argument of the layer's theorem, made on the stored numbers instead of the real ones; what rounding
breaks of it is the residual :math:`\delta`. It covers operators that are computed again on another machine, too, as far
as these agree within ``RECOMPUTED`` units of roundoff.
"""

import copy
import math
from functools import singledispatch

import torch
from torch import Tensor, nn

from lbdn.architectures import Selection, ZeroPadding
from lbdn.bounds.enclosure import (
    RECOMPUTED,
    UNIT,
    UPWARD,
    WEIGHTED,
    accumulated,
    norm_of_sizes,
    spectral_norm,
    unit_roundoff,
)
from lbdn.bounds.maps import Kernel, LinearMap, Matrix, Spectral, weighted
from lbdn.bounds.rounding import Affine, Entrywise, Residual, Sandwich, Step
from lbdn.circular import kernel_spectrum, real_form
from lbdn.layers import (
    AolConv,
    AolLin,
    BcopConv,
    CplConv,
    CplFc,
    InputNormalization,
    LastLayerNormalization,
    OrthogonalConv,
    OrthogonalLin,
    SandwichConv,
    SandwichFc,
    SandwichLin,
    SllConv,
    SllFc,
)
from lbdn.layers.aol import autocorrelation
from lbdn.layers.base import Layer, exponential, largest
from lbdn.layers.constrained import ConstrainedConv, ConstrainedLin
from lbdn.layers.convolution import CircularConv
from lbdn.layers.frozen import thawed
from lbdn.networks import Network


@torch.no_grad()
def steps(network: Network, example: Tensor) -> list[Step]:
    """Return a network's layers as they run, in order.

    Args:
        network: bounded, in float32 or float64.
        example: a batch of one input.

    Raises:
        ValueError: for a network without a bound, in another precision, or with layers or activations about which
            nothing is proved here.
    """
    if network.gamma is None:
        raise ValueError("a network without a Lipschitz bound can't be certified; it takes one from a bounded family")
    types = {tensor.dtype for tensor in (example, *network.parameters(), *network.buffers())}
    for dtype in types:
        unit_roundoff(dtype)
    if len(types) > 1:
        raise ValueError(f"takes a network and inputs in one precision, got {', '.join(sorted(map(str, types)))}")
    result: list[Step] = []
    named = [(f"body.{place}", module) for place, module in enumerate(network.body)]
    if network.normalization is not None:
        named.insert(0, ("normalization", network.normalization))
    for name, module in named:
        layer = thawed(module)
        if isinstance(layer, CircularConv):
            result.append(Step(layer.blocks))
        result.append(_step(layer, example))
        result[-1].name = name
        if isinstance(layer, CircularConv | CplConv):
            result[-1].size = layer.image_size(example)
        example = module(example)
    return result


@singledispatch
def _step(layer: nn.Module, x: Tensor) -> Step:
    raise ValueError(f"nothing is known here about the rounding of layers of type {type(layer).__name__}")


@_step.register(nn.Flatten)
@_step.register(ZeroPadding)
def _(layer: nn.Module, x: Tensor) -> Step:
    return Step(layer)


@_step.register
def _(layer: Selection, x: Tensor) -> Step:
    return Entrywise(layer, layer.scale, 2, lambda x: layer(x.abs()))  # its constant is rounded, and the product


@_step.register
def _(layer: nn.AvgPool2d, x: Tensor) -> Step:
    k = layer.kernel_size
    if not (isinstance(k, int) and layer.stride == k == layer.divisor_override and layer.padding == 0):
        raise ValueError(f"takes average pooling of k x k pixels with stride and divisor k, got {layer}")
    return Entrywise(layer, 1.0, k * k + 1, lambda x: layer(x.abs()))


@_step.register
def _(layer: InputNormalization, x: Tensor) -> Step:
    exact = copy.deepcopy(layer).double()
    return Entrywise(exact, exact.bound, 2, lambda x: exact(x).abs())


@_step.register(AolLin)
@_step.register(ConstrainedLin)
@_step.register(OrthogonalLin)
@_step.register(SandwichLin)
def _(layer: Layer, x: Tensor) -> Step:
    (weight,) = _stored(layer, x)
    bound = spectral_norm(weight, unit_roundoff(x.dtype))
    return Affine(Matrix(weight), _bias(layer), _activated(layer), max(layer.scale, bound))


@_step.register
def _(layer: LastLayerNormalization, x: Tensor) -> Step:
    (weight,) = _stored(layer, x)
    return Affine(Matrix(weight), _bias(layer), False, spectral_norm(weight, unit_roundoff(x.dtype)))


@_step.register(BcopConv)
@_step.register(ConstrainedConv)
@_step.register(OrthogonalConv)
def _(layer: CircularConv, x: Tensor) -> Step:
    _activated(layer)
    (operator,) = _stored(layer, x)
    bound = max(spectral_norm(matrix, unit_roundoff(x.dtype)) for matrix in _each(operator))
    return Affine(_map(operator, layer, x), _bias(layer), True, max(layer.scale, bound))


@_step.register(SandwichFc)
@_step.register(SandwichConv)
def _(layer: SandwichFc | SandwichConv, x: Tensor) -> Step:
    _activated(layer)
    inner, outer = _stored(layer, x)
    psi = exponential(layer.log_psi.detach().double())
    repeated = psi if outer.dim() == 2 else torch.cat([psi, psi])  # of real and imaginary parts
    tau = max(
        sandwich_excess(*matrices, repeated, layer.scale, unit_roundoff(x.dtype))
        for matrices in zip(_each(inner), _each(outer), strict=True)
    )
    lipschitz, outer_norm = UPWARD * layer.scale * tau, UPWARD * math.sqrt(2 * tau)
    return Sandwich(_map(inner, layer, x), _map(outer, layer, x), _bias(layer), psi, lipschitz, outer_norm)


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


@_step.register
def _(layer: AolConv, x: Tensor) -> Step:
    _activated(layer)
    (kernel,) = _stored(layer, x)
    V = layer.weight.detach().double()
    roots = autocorrelation(V / largest(V)).abs().sum(dim=(1, 2, 3)).sqrt()
    correlations = _correlations(kernel.double().transpose(0, 1), 2 * RECOMPUTED, unit_roundoff(x.dtype))
    bound = math.sqrt(_weighted_row_sum(correlations, roots)) * UPWARD
    return Affine(Kernel(kernel), _bias(layer), True, max(layer.scale, bound))


@_step.register(CplFc)
@_step.register(CplConv)
@_step.register(SllFc)
@_step.register(SllConv)
def _(layer: CplFc | CplConv | SllFc | SllConv, x: Tensor) -> Step:
    _activated(layer)
    scaled, d = (operator.double() for operator in _stored(layer, x))
    W, unit = layer.weight.detach().double(), unit_roundoff(x.dtype)
    d = d.expand(len(W))  # CPL has one for all hidden units
    roots = (d / largest(W)).sqrt()
    if isinstance(layer, SllFc | SllConv):
        weights = torch.where(roots > 0, exponential(layer.log_q.detach().double()) / roots.where(roots > 0, 1), 0)
        square = _weighted_row_sum(_correlations(_as_kernel(W), 0, unit) * roots[:, None] * roots, weights)
    else:
        square = float(roots[0] * zero_padded_norm(_as_kernel(W), *layer.image_size(x))) ** 2 * UPWARD
    factored = d.view(-1, *(1,) * (W.dim() - 1)) * scaled
    inner: LinearMap = Kernel(W) if W.dim() == 4 else Matrix(W)
    outer: LinearMap = Kernel(factored.transpose(0, 1).flip(2, 3)) if W.dim() == 4 else Matrix(factored.mT)
    return Residual(inner, outer, _bias(layer), roots, layer.scale, *residual_constants(W, scaled, d, square, unit))


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
    W, V = _as_kernel(W), _as_kernel(V)
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


def _as_kernel(W: Tensor) -> Tensor:
    return W if W.dim() == 4 else W[:, :, None, None]


def _correlations(kernel: Tensor, recomputed: int, unit: float) -> Tensor:
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


def _weighted_row_sum(sizes: Tensor, weights: Tensor) -> float:
    r"""Return :math:`\max_i \sum_j M_{ij} v_j / v_i`, no less than the spectral radius of M, for sizes M and v > 0."""
    sums = (sizes * weights).sum(dim=1)
    return float(torch.where(sums > 0, sums / weights, 0).max()) * UPWARD


def _stored(layer: Layer, x: Tensor) -> tuple[Tensor, ...]:
    """Return a layer's operators as ``freeze`` has them: computed in float64, rounded once."""
    exact = copy.deepcopy(layer).double().operators(*layer.image_size(x))
    return tuple(operator.detach().to(x.dtype) for operator in exact)


def _each(operator: Tensor) -> Tensor:
    """Return the matrix of each frequency; the norm of the whole map is the largest of theirs.

    Those of frequencies that are their own conjugates act on real parts alone, so theirs is an upper bound.
    """
    return operator if operator.dim() == 3 else operator[None]


def _map(operator: Tensor, layer: Layer, x: Tensor) -> LinearMap:
    if operator.dim() == 3:
        return Spectral(operator, *layer.image_size(x))
    return Kernel(operator[:, :, None, None]) if x.dim() == 4 else Matrix(operator)


def _bias(layer: Layer) -> Tensor | None:
    bias = getattr(layer, "bias", None)
    return None if bias is None else bias.detach().double()


def _activated(layer: Layer) -> bool:
    """Return whether there is an activation, which has to be one that runs without rounding."""
    activation = getattr(layer, "activation", None)
    if activation is not None and not isinstance(activation, nn.ReLU):
        raise ValueError(f"certificates that hold in floating point take ReLU, got {activation!r}")
    return activation is not None
