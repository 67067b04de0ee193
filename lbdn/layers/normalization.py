"""Normalisations: of the input, whose bound is known, and of the last layer, whose bound holds pair by pair."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lbdn.layers.base import Layer, positive_scale, positive_size, uniform, unit_norm


class InputNormalization(nn.Module):
    """Return ``(x - mean) / std``, channel by channel: ``1 / min(std)``-Lipschitz.

    Args:
        mean: one number a channel, on images with values in [0, 1].
        std: likewise, positive.

    Raises:
        ValueError: if the lengths differ or a standard deviation isn't positive and finite.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(mean):
            raise ValueError(f"mean and std take one number a channel each, got {len(mean)} and {len(std)}")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.get_default_dtype())[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.get_default_dtype())[:, None, None])
        _ = self.bound

    @property
    def bound(self) -> float:
        """The Lipschitz constant, 1 / min(std).

        Raises:
            ValueError: if a standard deviation isn't positive and finite, as a file of weights may have it.
        """
        if not (self.std.min() > 0 and self.std.isfinite().all()):
            raise ValueError(f"std takes positive, finite numbers, got {self.std.flatten().tolist()}")
        return 1 / self.std.min().item()

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised images.

        Raises:
            ValueError: if they have another number of channels.
        """
        if x.dim() < 3 or x.shape[-3] != len(self.mean):
            raise ValueError(f"takes images of shape (..., {len(self.mean)}, height, width), got {tuple(x.shape)}")
        return (x - self.mean) / self.std


class LastLayerNormalization(Layer):
    r"""A linear layer whose rows have unit norm: each output is ``scale``-Lipschitz, the layer as a whole need not be.

    The difference of outputs i and j is :math:`s \|w_i - w_j\|`-Lipschitz; certificates use that, pair by pair. A row
    of zeros stays zero.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.

    Source: Singla, Singla and Feizi (2022), "Improved deterministic l2 robustness on CIFAR-10 and CIFAR-100".
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        positive_size(in_features=in_features, out_features=out_features)
        self.inputs, self.outputs = in_features, out_features
        self.scale = positive_scale(scale)
        self.weight = uniform(out_features, in_features, fan_in=in_features)
        self.bias = uniform(out_features, fan_in=in_features) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return s times the weight with normalised rows."""
        return (self.scale * unit_norm(self.weight, dim=1),)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return nn.functional.linear(x, operators[0], self.bias)
