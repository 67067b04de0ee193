"""What all layers share: operators computed from parameters, checks, initial values, normalisation, a family."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lbdn.precision import HALF, without_autocast

Activation = Callable[[Tensor], Tensor]
LARGE_GAIN = 32.0  # its square times the precision of float32 is 1e-4: see weight_normalized
MAX_GAIN = 1e5  # its square times the precision of float64 is 2e-6: see weight_normalized
MAX_LOGARITHM = 20.0  # e^20 squared is far below float32's largest number: see exponential


class Layer(nn.Module):
    """A layer in two steps: operators from its parameters, then the input through the operators.

    Subclasses define ``operators``, a pure function of the parameters (and of the image size, for convolutions), and
    ``transform``, which needs nothing else. ``freeze`` keeps the first step's result.
    """

    inputs: int
    scale: float

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return the tensors that ``transform`` takes besides the input."""
        raise NotImplementedError

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the layer's output for an input and its operators."""
        raise NotImplementedError

    def image_size(self, x: Tensor) -> tuple[int, ...]:
        """Check the input's shape; return the image size that the operators depend on (none here).

        Raises:
            ValueError: if the layer can't take the input.
        """
        if x.dim() < 1 or x.shape[-1] != self.inputs:
            raise ValueError(f"{type(self).__name__} takes inputs of shape (..., {self.inputs}), got {tuple(x.shape)}")
        return ()

    def applied(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what ``transform`` takes for the layer's output: x and the operators, or others that cost less."""
        return x, *self.operators(*self.image_size(x))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output. Autocast leaves the operators, on which the bound rests, in their precision."""
        with without_autocast(x.device.type):
            taken = self.applied(x)
        return self.transform(*taken)


class ConvLayer(Layer):
    """A layer on images ``(n, channels, height, width)``."""

    def image_size(self, x: Tensor) -> tuple[int, ...]:
        """Check the input's shape; return height and width.

        Raises:
            ValueError: if the layer can't take the input.
        """
        if x.dim() != 4 or x.shape[1] != self.inputs:
            raise ValueError(
                f"{type(self).__name__} takes images of shape (n, {self.inputs}, height, width), got {tuple(x.shape)}"
            )
        return x.shape[2], x.shape[3]


class Activated(Layer):
    """A linear layer and an activation behind it: the mixin in front of the linear layer makes the activated one."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        scale: float = 1.0,
        activation: Activation | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, scale=scale)
        self.activation = nn.ReLU() if activation is None else activation

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return self.activation(super().transform(x, *operators))


def zero_padded(x: Tensor, kernel: Tensor, bias: Tensor | None = None, stride: int = 1) -> Tensor:
    """Return a convolution with zeros around the image; with channels last in memory, which is faster."""
    x = x.contiguous(memory_format=torch.channels_last)
    return nn.functional.conv2d(x, kernel, bias, stride=stride, padding=kernel.shape[-1] // 2)


def positive_size(**sizes: int) -> None:
    """Check layer sizes.

    Raises:
        ValueError: naming the first argument that isn't a positive whole number.
    """
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} takes a positive whole number, got {value!r}")


def odd_kernel(kernel_size: int) -> None:
    """Check the kernel size of a zero-padded convolution that keeps the image size.

    Raises:
        ValueError: if it is even.
    """
    if kernel_size % 2 == 0:
        raise ValueError(f"kernel_size takes an odd number, so that padding keeps the image size, got {kernel_size}")


def positive_scale(scale: Any, name: str = "scale") -> float:
    """Return a layer's scale, or a bound of another name.

    Raises:
        ValueError: if it isn't a positive, finite number.
    """
    try:
        valid = math.isfinite(scale) and scale > 0
    except TypeError:  # not a number
        valid = False
    if not valid:
        raise ValueError(f"{name} takes a positive, finite number, got {scale!r}")
    return float(scale)


def uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """Return a parameter drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), the initial values of PyTorch's layers."""
    bound = 1 / math.sqrt(fan_in)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


def xavier_normal(*shape: int) -> nn.Parameter:
    """Return a parameter drawn from the normal distribution of Glorot and Bengio (2010)."""
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(*shape)))


def largest(x: Tensor, dim: int | None = None) -> Tensor:
    """Return the largest absolute value, one where all are zero, as a constant to divide by against underflow."""
    x = x.detach().abs()
    value = x.amax() if dim is None else x.amax(dim=dim, keepdim=True)
    return torch.where(value > 0, value, 1)


def unit_norm(direction: Tensor, dim: int | None = None) -> Tensor:
    """Return ``direction`` over its Frobenius norm, or over the norms along ``dim``; zero stays zero."""
    scaled = direction / largest(direction, dim)
    norm = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled / torch.where(norm > 0, norm, 1)


def weight_normalized(direction: Tensor, gain: Tensor) -> Tensor:
    """Return ``gain * direction / |direction|`` for the Cayley transform, in float64 for large gains and for halves.

    The transform's rounding error is about the square of the gain times the precision: in float32 it would break the
    bound of a layer with a gain of a thousand. At a gain of 1e5 the same happens in float64: there it saturates.

    Source: Wang and Manchester (2023), section on training details, with one gain for the stacked matrix.
    """
    if gain.abs() > LARGE_GAIN or gain.dtype in HALF:
        gain, direction = gain.double(), direction.double()
    return gain.clamp(-MAX_GAIN, MAX_GAIN) * unit_norm(direction)


def as_precise_as(parameter: Tensor, operator: Tensor) -> Tensor:
    """Return a real or complex operator in the precision of a parameter."""
    return operator.to(parameter.dtype.to_complex() if operator.is_complex() else parameter.dtype)


def exponential(logarithm: Tensor) -> Tensor:
    """Return the exponential of a trained logarithm, saturated before it overflows in any product of two."""
    return torch.exp(logarithm.clamp(-MAX_LOGARITHM, MAX_LOGARITHM))


def initial_gain(direction: Tensor) -> nn.Parameter:
    """Return the gain with which weight normalisation starts as the identity."""
    return nn.Parameter(torch.linalg.vector_norm(direction.detach()))


@dataclass(frozen=True)
class Family:
    """A way to build layers, and how it realises the architectures of ``lbdn.architectures``.

    Attributes:
        fc: ``fc(in_features, out_features, scale=...)``, with activation.
        conv: ``conv(in_channels, out_channels, kernel_size, scale=...)``, and ``stride=2`` if ``strides``.
        linear: ``linear(in_features, out_features, scale=...)``, the last layer, without activation.
        bounded: whether each layer is ``scale``-Lipschitz.
        strides: whether ``conv`` takes ``stride=2``; otherwise networks pool at the end.
        residual: whether ``fc(features, inner_features, ...)`` and ``conv`` keep their width; such a family has no
            ``linear`` and is built between zero padding and a selection of outputs.
        widths: architecture, or architecture-size -> widths in place of the usual ones, so that all families have about
            as many parameters.
    """

    fc: Callable[..., nn.Module]
    conv: Callable[..., nn.Module]
    linear: Callable[..., nn.Module] | None = None
    bounded: bool = True
    strides: bool = True
    residual: bool = False
    widths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
