"""The layers of a network as they run, their operators stored in floating point, with a Lipschitz constant each."""

import copy
import math
from functools import singledispatch

import torch
from torch import Tensor, nn

from lbdn.architectures import Selection, ZeroPadding
from lbdn.bounds.constants import (
    as_kernel,
    correlations,
    residual_constants,
    sandwich_excess,
    weighted_row_sum,
    zero_padded_norm,
)
from lbdn.bounds.enclosure import RECOMPUTED, UPWARD, spectral_norm, unit_roundoff
from lbdn.bounds.maps import Kernel, LinearMap, Matrix, Spectral
from lbdn.bounds.rounding import Affine, Entrywise, Residual, Sandwich, Step
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


@_step.register
def _(layer: AolConv, x: Tensor) -> Step:
    _activated(layer)
    (kernel,) = _stored(layer, x)
    V = layer.weight.detach().double()
    roots = autocorrelation(V / largest(V)).abs().sum(dim=(1, 2, 3)).sqrt()
    sizes = correlations(kernel.double().transpose(0, 1), 2 * RECOMPUTED, unit_roundoff(x.dtype))
    bound = math.sqrt(weighted_row_sum(sizes, roots)) * UPWARD
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
        square = weighted_row_sum(correlations(as_kernel(W), 0, unit) * roots[:, None] * roots, weights)
    else:
        square = float(roots[0] * zero_padded_norm(as_kernel(W), *layer.image_size(x))) ** 2 * UPWARD
    factored = d.view(-1, *(1,) * (W.dim() - 1)) * scaled
    inner: LinearMap = Kernel(W) if W.dim() == 4 else Matrix(W)
    outer: LinearMap = Kernel(factored.transpose(0, 1).flip(2, 3)) if W.dim() == 4 else Matrix(factored.mT)
    return Residual(inner, outer, _bias(layer), roots, layer.scale, *residual_constants(W, scaled, d, square, unit))


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
