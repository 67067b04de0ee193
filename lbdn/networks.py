"""Architectures built from a family of layers, with a Lipschitz bound for the whole network."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lbdn import registry
from lbdn.layers import Family, InputNormalization, LastLayerNormalization
from lbdn.layers.base import positive_scale, unit_norm
from lbdn.layers.frozen import Frozen

Layers = list[nn.Module]


class Network(nn.Module):
    """A network on pixels in [0, 1]: normalisation, then a body of known Lipschitz bound.

    Args:
        body: the layers, in order.
        outputs: how many the last layer has.
        gamma: the bound of the body; of each output alone, if the last layer is a ``LastLayerNormalization``. None
            if there is no bound.
        normalization: in front of the body, or None.
    """

    def __init__(
        self,
        body: Sequence[nn.Module],
        *,
        outputs: int,
        gamma: float | None,
        normalization: InputNormalization | None = None,
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.normalization = normalization
        self.body = nn.Sequential(*body)
        self._gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (logits, for a classifier) of a batch."""
        return self.body(x if self.normalization is None else self.normalization(x))

    @property
    def gamma(self) -> float | None:
        """Upper Lipschitz bound of the map from normalised input to outputs; None for unconstrained networks."""
        if self._gamma is None or self._rows is None:
            return self._gamma
        return self._gamma * float(torch.linalg.matrix_norm(self._rows, 2))

    @property
    def pixel_gamma(self) -> float | None:
        """Upper Lipschitz bound of the map from pixels in [0, 1] to outputs: gamma / min(std)."""
        return None if self.gamma is None else self.gamma * self._pixel_factor

    def pair_gamma(self) -> Tensor | None:
        """Return upper Lipschitz bounds, from pixels, of the differences of outputs.

        Returns:
            float64, ``(outputs, outputs)``: the square root of 2 times ``pixel_gamma`` for each pair, or the distance
            of the two rows times the bound of the body with last-layer normalisation; None for unconstrained networks.
        """
        if self._gamma is None:
            return None
        bound = self._gamma * self._pixel_factor
        if self._rows is None:
            apart = 1 - torch.eye(self.outputs, dtype=torch.float64)
            return math.sqrt(2) * bound * apart
        return bound * torch.cdist(self._rows, self._rows, compute_mode="donot_use_mm_for_euclid_dist")

    @property
    def _pixel_factor(self) -> float:
        return 1.0 if self.normalization is None else self.normalization.bound

    @property
    def _rows(self) -> Tensor | None:
        last = self.body[-1]
        last = last.layer if isinstance(last, Frozen) else last
        return unit_norm(last.weight.detach().double(), dim=1) if isinstance(last, LastLayerNormalization) else None


def build_network(
    architecture: str,
    family: str,
    *,
    size: str = "small",
    gamma: float | None = 1.0,
    input_shape: Sequence[int],
    outputs: int,
    normalization: tuple[Sequence[float], Sequence[float]] | None = None,
    last_layer_normalization: bool = False,
) -> Network:
    """Return a network that is ``gamma``-Lipschitz from normalised input, if its family has a bound.

    The square root of gamma multiplies the input of the first and of the last layer.

    Args:
        architecture: a name: "toy", "mlp", "kwlarge", "deep" or one that a package registered.
        family: a name of ``lbdn.registry.names("families")``.
        size: a name that the architecture knows.
        gamma: the bound, ignored for unconstrained families.
        input_shape: of one input, without the batch: ``(features,)`` or ``(channels, height, width)``.
        outputs: how many.
        normalization: mean and standard deviation of each channel, or None.
        last_layer_normalization: whether the last layer normalises its rows; certificates then hold pair by pair.

    Raises:
        ValueError: for an unknown name, a gamma that isn't positive and finite, or shapes that don't fit.

    >>> network = build_network("kwlarge", "sandwich", gamma=2.0, input_shape=(3, 32, 32), outputs=100)
    >>> sum(p.numel() for p in network.parameters()), network.gamma
    (3038299, 2.0)
    """
    chosen: Family = registry.find("families", family)
    build: Callable[..., Layers] = registry.find("architectures", architecture)
    bound = positive_scale(gamma, "gamma") if chosen.bounded else None
    if not all(n > 0 for n in (*input_shape, outputs)):
        raise ValueError(f"input_shape and outputs take positive numbers, got {tuple(input_shape)} and {outputs}")
    scale = 1.0 if bound is None else math.sqrt(bound)
    last: Callable[..., nn.Module] | None = LastLayerNormalization if last_layer_normalization else chosen.linear
    if last is None:
        last = Selection
    body = build(chosen, size=size, scale=scale, input_shape=tuple(input_shape), outputs=outputs, last=last)
    return Network(
        body,
        outputs=outputs,
        gamma=bound,
        normalization=None if normalization is None else InputNormalization(*normalization),
    )


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
    if family.residual:
        width, blocks = widths[0], len(widths) - 1
        padded = [ZeroPadding(width, dim=-1)]
        return padded + _dense(family, width, (width,) * blocks, outputs, scale, last)
    return _dense(family, math.prod(input_shape), widths, outputs, scale, last)


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
