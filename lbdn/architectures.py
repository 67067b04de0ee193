"""Architectures: the layers of a network, built from a family, ``scale`` on the first and on the last of them."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lbdn.layers.base import Family

Layers = list[nn.Module]


class Selection(nn.Module):
    """The first ``out_features`` of the last dimension, times ``scale``: ``scale``-Lipschitz."""

    def __init__(self, in_features: int, out_features: int, *, scale: float = 1.0) -> None:
        super().__init__()
        if out_features > in_features:
            raise ValueError(f"can't select {out_features} outputs from {in_features} features")
        self.outputs, self.scale = out_features, scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the selection."""
        return self.scale * x[..., : self.outputs]


class ZeroPadding(nn.Module):
    """Zeros added to a dimension until it has ``size``, counted from the end by ``dim``: 1-Lipschitz."""

    def __init__(self, size: int, *, dim: int) -> None:
        super().__init__()
        self.size, self.dim = size, dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the padded tensor.

        Raises:
            ValueError: if the dimension is larger than ``size``.
        """
        missing = self.size - x.shape[self.dim]
        if missing < 0:
            raise ValueError(f"takes at most {self.size} features or channels, got {x.shape[self.dim]}")
        return nn.functional.pad(x, (0, 0) * (-1 - self.dim) + (0, missing))


def toy(
    family: Family, *, size: str, scale: float, input_shape: tuple[int, ...], outputs: int, last: Callable
) -> Layers:
    """Return the fully connected network of the paper's toy example: ten matrices, about 130 thousand parameters.

    A residual family gets eight blocks between zero padding and a selection.
    """
    _choose({"small": None}, size, "toy")
    widths = family.widths.get("toy", (128,) * 9)
    flat: Layers = [nn.Flatten()] if len(input_shape) > 1 else []
    if family.residual:
        width, blocks = widths[0], len(widths) - 1
        return [*flat, ZeroPadding(width, dim=-1), *_dense(family, width, (width,) * blocks, outputs, scale, last)]
    return flat + _dense(family, math.prod(input_shape), widths, outputs, scale, last)


def mlp(
    family: Family, *, size: str, scale: float, input_shape: tuple[int, ...], outputs: int, last: Callable
) -> Layers:
    """Return a fully connected network; "small" is the one of the paper's MNIST table, "64-64" has those two widths.

    Residual families keep the input width.

    Raises:
        ValueError: for another size.
    """
    widths = family.widths.get("mlp", (256, 256, 128))
    if size != "small":
        parts = size.split("-")
        if not all(part.isdigit() and int(part) > 0 for part in parts):
            raise ValueError(f'no size {size!r} of mlp; it is "small" or its hidden widths, like "64-64"')
        widths = tuple(int(part) for part in parts)
    return [nn.Flatten(), *_dense(family, math.prod(input_shape), widths, outputs, scale, last)]


def kwlarge(
    family: Family, *, size: str, scale: float, input_shape: tuple[int, ...], outputs: int, last: Callable
) -> Layers:
    """Return KWLarge (Li et al. 2019), or the residual network of SLL's authors for a residual family.

    The paper's table of architectures for CIFAR and Tiny-ImageNet; "tiny", a quarter of its widths, is for images of
    8 x 8, with about 35 thousand parameters for all families.

    Raises:
        ValueError: for an unknown size, or images whose height and width four doesn't divide.
    """
    if family.residual:
        return _residual(family, size, scale, input_shape, outputs, last)
    w = _choose({"tiny": 0.25, "small": 1, "medium": 2, "large": 4}, size, "kwlarge")
    channels = [(int(32 * w), 1), (int(32 * w), 2), (int(64 * w), 1), (int(64 * w), 2)]
    scaled = tuple(int(n * w) for n in family.widths.get("kwlarge", (640, 512)))
    widths = family.widths.get(f"kwlarge-{size}", scaled)
    return _convolutional(family, channels, widths, scale, input_shape, outputs, last)


def deep(
    family: Family, *, size: str, scale: float, input_shape: tuple[int, ...], outputs: int, last: Callable
) -> Layers:
    """Return the deeper network of the paper's certified experiments; four strides from 64 x 64 pixels, else three.

    Raises:
        ValueError: for an unknown size, or images whose height and width the strides don't divide.
    """
    if family.residual:
        return _residual(family, size, scale, input_shape, outputs, last)
    _choose({"small": None}, size, "deep")
    stages = (64, 128, 256, 512) if min(_image(input_shape)[1:]) >= 64 else (64, 128, 256)
    channels = [(c, stride) for c in stages for stride in (1, 2)]
    return _convolutional(family, channels, (2048, 2048, 1024), scale, input_shape, outputs, last)


def _residual(
    family: Family, size: str, scale: float, input_shape: tuple[int, ...], outputs: int, last: Callable
) -> Layers:
    """Return the architecture of Araujo et al. (2023): convolutions, a dense part, a selection of outputs."""
    height, width = _divisible(input_shape, 4)
    sizes = {
        "tiny": (4, 2, 32, 112),
        "small": (20, 7, 45, 2048),
        "medium": (30, 10, 60, 2048),
        "large": (50, 10, 90, 2048),
        "xlarge": (120, 15, 70, 4096) if min(height, width) >= 64 else (70, 15, 120, 2048),
    }
    convolutions, dense, channels, inner = _choose(sizes, size, "the residual network")
    inner_channels = 5
    blocks = [family.conv(channels, inner_channels, scale=scale if i == 0 else 1.0) for i in range(convolutions)]
    features = channels * (height // 4) * (width // 4)
    return [
        ZeroPadding(channels, dim=-3),
        *blocks,
        nn.AvgPool2d(4, divisor_override=4),
        nn.Flatten(),
        *(family.fc(features, inner) for _ in range(dense)),
        last(features, outputs, scale=scale),
    ]


def _convolutional(
    family: Family,
    channels: list[tuple[int, int]],
    widths: tuple[int, ...],
    scale: float,
    input_shape: tuple[int, ...],
    outputs: int,
    last: Callable,
) -> Layers:
    """Return convolutions of given (channels, stride), then a dense part. Without strides, one pooling at the end.

    The sum over k x k pixels divided by k is 1-Lipschitz.
    """
    shrink = math.prod(stride for _, stride in channels)
    height, width = _divisible(input_shape, shrink)
    layers: Layers = []
    previous = input_shape[0]
    for count, stride in channels:
        options: dict[str, Any] = {"stride": stride} if family.strides and stride > 1 else {}
        layers.append(family.conv(previous, count, scale=1.0 if layers else scale, **options))
        previous = count
    if not family.strides:
        layers.append(nn.AvgPool2d(shrink, divisor_override=shrink))
    features = previous * (height // shrink) * (width // shrink)
    return [*layers, nn.Flatten(), *_dense(family, features, widths, outputs, scale, last, first_scale=1.0)]


def _dense(
    family: Family,
    features: int,
    widths: tuple[int, ...],
    outputs: int,
    scale: float,
    last: Callable,
    first_scale: float | None = None,
) -> Layers:
    layers: Layers = []
    for width in widths:
        own_scale = (scale if first_scale is None else first_scale) if not layers else 1.0
        layers.append(family.fc(features, width, scale=own_scale))
        if not family.residual:
            features = width
    return [*layers, last(features, outputs, scale=scale)]


def _image(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(input_shape) != 3:
        raise ValueError(f"input_shape takes (channels, height, width) for images, got {input_shape}")
    return input_shape


def _divisible(input_shape: tuple[int, ...], divisor: int) -> tuple[int, int]:
    _, height, width = _image(input_shape)
    if height % divisor or width % divisor:
        raise ValueError(f"takes images whose height and width {divisor} divides, got {height} x {width}")
    return height, width


def _choose(sizes: dict[str, Any], size: str, what: str) -> Any:
    if size not in sizes:
        raise ValueError(f"no size {size!r} of {what}; there are {', '.join(sizes)}")
    return sizes[size]
