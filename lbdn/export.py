"""Networks as ordinary PyTorch layers, and as ONNX: to be run without this library.

The layers hold the operators that the certificates are about, computed in float64 and rounded once.
"""

import copy
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lbdn.architectures import Selection, ZeroPadding
from lbdn.circular import convolve
from lbdn.extras import require
from lbdn.files import whole
from lbdn.layers import (
    AolConv,
    AolLin,
    BcopConv,
    InputNormalization,
    LastLayerNormalization,
    OrthogonalConv,
    OrthogonalLin,
    PlainConv,
    PlainLin,
    SandwichConv,
    SandwichFc,
    SandwichLin,
)
from lbdn.layers.base import Layer
from lbdn.layers.constrained import ConstrainedConv, ConstrainedLin
from lbdn.layers.frozen import thawed
from lbdn.layers.residual import ResidualConv, ResidualFc
from lbdn.networks import Network

MAX_PIXELS = 256  # a circular convolution's kernel has a tap a pixel: above, it takes far longer than its transform


@torch.no_grad()
def plain(network: Network, *input_shape: int) -> nn.Sequential:
    """Return a network that computes the same up to rounding, of ``nn.Linear``, ``nn.Conv2d``, ``nn.ReLU`` and such.

    Circular convolutions get kernels of the size of their images, behind ``nn.CircularPad2d``.

    Args:
        network: of the built-in families.
        input_shape: of one input, without the batch.

    Raises:
        ValueError: for layers of other kinds, activations that are no modules, or circular convolutions of images of
            more than 256 pixels.
    """
    dtype = next(network.parameters()).dtype
    layers: list[nn.Module] = []
    x = torch.zeros(1, *input_shape, dtype=dtype)
    for module in (network.normalization, *network.body):
        if module is not None:
            layer = thawed(module)
            layers += [part.to(dtype) for part in _plain(copy.deepcopy(layer).double(), x.double())]
            x = layer(x)
    return nn.Sequential(*layers).requires_grad_(False).eval()


def write_onnx(network: Network, path: str | Path, *input_shape: int) -> None:
    """Write a network as ONNX, for batches of any size: input ``x``, output ``logits``.

    Raises:
        ModuleNotFoundError: without the packages of the extra ``onnx``.
        ValueError: as ``plain``.
    """
    require("write_onnx", "onnx", "onnx", "onnxscript")
    import onnx

    layers = plain(network, *input_shape)
    example = torch.zeros(2, *input_shape, dtype=next(network.parameters()).dtype)
    program = torch.onnx.export(
        layers,
        (example,),
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes={"input": {0: torch.export.Dim("batch")}},
        dynamo=True,
        verbose=False,
    )
    assert program is not None  # as with dynamo=True
    with whole(Path(path)) as temporary:
        onnx.save(program.model_proto, temporary)


def spatial_kernel(operator: Tensor, height: int, width: int) -> Tensor:
    r"""Return a circular convolution's kernel K, :math:`y_i = \sum_a K_a x_{i - a}` with indices that wrap around.

    Args:
        operator: as ``lbdn.circular.convolve`` takes it: a real form a frequency, or one matrix for all pixels.
        height: of the images.
        width: of the images.

    Returns:
        ``(rows, columns, height, width)``: the responses to one pixel in each channel.
    """
    columns = operator.shape[-1] // (2 if operator.dim() == 3 else 1)
    pixels = torch.zeros(columns, columns, height, width, dtype=operator.dtype)
    pixels[:, :, 0, 0] = torch.eye(columns, dtype=operator.dtype)
    return convolve(pixels, operator).transpose(0, 1).contiguous()


class Residual(nn.Module):
    """The difference of the scaled input and a map of it."""

    def __init__(self, scale: float, *layers: nn.Module) -> None:
        super().__init__()
        self.scale, self.layers = scale, nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the difference."""
        x = self.scale * x
        return x - self.layers(x)


@singledispatch
def _plain(layer: nn.Module, x: Tensor) -> list[nn.Module]:
    """Return a layer, in float64, as plain ones, given an input of it."""
    raise ValueError(f"layers of type {type(layer).__name__} have no plain form")


@_plain.register
def _(layer: nn.Flatten, x: Tensor) -> list[nn.Module]:
    return [layer]


@_plain.register
def _(layer: InputNormalization, x: Tensor) -> list[nn.Module]:
    channels = len(layer.mean)
    scaled = _convolution((1 / layer.std)[:, None], (-layer.mean / layer.std).flatten(), groups=channels)
    return [scaled]


@_plain.register
def _(layer: ZeroPadding, x: Tensor) -> list[nn.Module]:
    missing = layer.size - x.shape[layer.dim]
    return [nn.ZeroPad1d((0, missing)) if layer.dim == -1 else nn.ZeroPad3d((0, 0, 0, 0, 0, missing))]


@_plain.register
def _(layer: Selection, x: Tensor) -> list[nn.Module]:
    return [_linear(layer.scale * torch.eye(layer.outputs, x.shape[-1], dtype=x.dtype))]


@_plain.register
def _(layer: nn.AvgPool2d, x: Tensor) -> list[nn.Module]:
    k, channels = layer.kernel_size, x.shape[1]
    if not (isinstance(k, int) and layer.stride == k and layer.padding == 0):
        raise ValueError(f"takes average pooling of k x k pixels with stride k, got {layer}")
    kernel = torch.full((channels, 1, k, k), 1 / (layer.divisor_override or k * k), dtype=x.dtype)
    return [_convolution(kernel, stride=k, groups=channels)]


@_plain.register(AolLin)
@_plain.register(OrthogonalLin)
@_plain.register(SandwichLin)
@_plain.register(ConstrainedLin)
@_plain.register(LastLayerNormalization)
@_plain.register(PlainLin)
def _(layer: Any, x: Tensor) -> list[nn.Module]:
    (weight,) = layer.operators()
    return [_linear(weight, layer.bias), *_activation(layer)]


@_plain.register
def _(layer: SandwichFc, x: Tensor) -> list[nn.Module]:
    inner, outer = layer.operators()
    return [_linear(inner, layer.bias), *_activation(layer), _linear(outer)]


@_plain.register(AolConv)
@_plain.register(PlainConv)
def _(layer: Any, x: Tensor) -> list[nn.Module]:
    (kernel,) = layer.operators(*layer.image_size(x))
    stride, padding = getattr(layer, "stride", 1), kernel.shape[-1] // 2
    return [_convolution(kernel, layer.bias, stride=stride, padding=padding), *_activation(layer)]


@_plain.register(OrthogonalConv)
@_plain.register(SandwichConv)
@_plain.register(ConstrainedConv)
@_plain.register(BcopConv)
def _(layer: Any, x: Tensor) -> list[nn.Module]:
    size = layer.image_size(x)
    inner, *outer = layer.operators(*size)
    first = [*_circular(inner, layer.bias, size, layer.stride), *_activation(layer)]
    return first + [part for operator in outer for part in _circular(operator, None, size, 1)]


@_plain.register
def _(layer: ResidualFc, x: Tensor) -> list[nn.Module]:
    scaled, step = layer.operators()
    inner, outer = _linear(layer.weight, layer.bias), _linear((step[..., None] * scaled).mT)
    return [Residual(layer.scale, inner, *_activation(layer), outer)]


@_plain.register
def _(layer: ResidualConv, x: Tensor) -> list[nn.Module]:
    scaled, step = layer.operators(*layer.image_size(x))
    margin = layer.weight.shape[-1] // 2
    transposed = (step[..., None, None, None] * scaled).transpose(0, 1).flip(2, 3)
    inner, outer = _convolution(layer.weight, layer.bias, padding=margin), _convolution(transposed, padding=margin)
    return [Residual(layer.scale, inner, *_activation(layer), outer)]


def _circular(operator: Tensor, bias: Tensor | None, size: tuple[int, int], stride: int) -> list[nn.Module]:
    height, width = size
    if operator.dim() == 2:  # of single pixels, or at stride 2 of blocks of them
        return [_convolution(operator.unflatten(1, (-1, stride, stride)), bias, stride=stride)]
    if height * width > MAX_PIXELS:
        raise ValueError(
            f"a circular convolution on {height} x {width} pixels has a kernel of that size, which is senseless to run "
            f"above {MAX_PIXELS} pixels; evaluate the network itself"
        )
    blocks = [nn.PixelUnshuffle(2)] if stride == 2 else []
    kernel = spatial_kernel(operator, height, width).flip(2, 3)
    return [*blocks, nn.CircularPad2d((width - 1, 0, height - 1, 0)), _convolution(kernel, bias)]


def _activation(layer: Layer) -> list[nn.Module]:
    activation = getattr(layer, "activation", None)
    if activation is not None and not isinstance(activation, nn.Module):
        raise ValueError(f"takes activations that are modules, got {activation!r}")
    return [] if activation is None else [activation]


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    layer.weight.copy_(weight)
    if bias is not None:
        layer.bias.copy_(bias)
    return layer


def _convolution(kernel: Tensor, bias: Tensor | None = None, groups: int = 1, **options: Any) -> nn.Conv2d:
    rows, columns, height, width = kernel.shape
    layer = nn.Conv2d(
        columns * groups, rows, (height, width), bias=bias is not None, groups=groups, dtype=kernel.dtype, **options
    )
    layer.weight.copy_(kernel)
    if bias is not None and layer.bias is not None:
        layer.bias.copy_(bias)
    return layer
