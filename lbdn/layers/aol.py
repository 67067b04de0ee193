r"""Almost-orthogonal layers: :math:`\sigma(W x + b)`, :math:`W = V \mathrm{diag}(\sum_j |V^T V|_{ij})^{-1/2}`.

Source: Prach and Lampert (2022), "Almost-orthogonal layers for efficient general-purpose Lipschitz networks", as
compared in Wang and Manchester (2023).
"""

import torch
from torch import Tensor, nn

from lbdn.gram import absolute_gram_sums
from lbdn.layers.base import (
    Activated,
    Activation,
    ConvLayer,
    Family,
    Layer,
    largest,
    odd_kernel,
    positive_scale,
    positive_size,
    uniform,
    xavier_normal,
    zero_padded,
)


class AolLin(Layer):
    r"""A ``scale``-Lipschitz linear layer :math:`x \mapsto W\, s x + b`, its inputs rescaled.

    :math:`V^T V \preceq D = \mathrm{diag}(\sum_j |V^T V|_{ij})` by diagonal dominance, so :math:`W = V D^{-1/2}` has
    norm at most one. A column of zeros stays zero.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        positive_size(in_features=in_features, out_features=out_features)
        self.inputs, self.outputs = in_features, out_features
        self.scale = positive_scale(scale)
        self.weight = xavier_normal(out_features, in_features)
        self.bias = uniform(out_features, fan_in=in_features) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return :math:`s W`."""
        weight = self.weight / largest(self.weight)  # W doesn't depend on the scale of V
        sums = absolute_gram_sums(weight.mT, weight.new_ones(self.inputs))
        return (self.scale * weight * inverse_root(sums),)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return nn.functional.linear(x, operators[0], self.bias)


class AolFc(Activated, AolLin):
    r"""A ``scale``-Lipschitz fully connected layer :math:`x \mapsto \sigma(W\, s x + b)`, W as in ``AolLin``.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.
        activation: any 1-Lipschitz function, element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """


class AolConv(ConvLayer):
    r"""A ``scale``-Lipschitz zero-padded convolution layer, its input channels rescaled.

    With the kernel's full autocorrelation :math:`G_{cc'} = \sum_o V_{oc} \star V_{oc'}`, channel c is divided by the
    root of :math:`\sum_{c'} \sum_\tau |G_{cc'}(\tau)|`. This bounds the convolution on an infinite image, and zero
    padding only restricts it. (The published runs rescaled the output channels of convolutions; either is 1-Lipschitz,
    and this one follows the paper's formula.)

    Args:
        in_channels: of the images.
        out_channels: of the result.
        kernel_size: of the square kernel, odd.
        bias: whether there is a bias.
        scale: which multiplies the input; the layer is ``scale``-Lipschitz.
        activation: any 1-Lipschitz function, element by element. None: ReLU.

    Raises:
        ValueError: for arguments out of these ranges and for images with other channels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        bias: bool = True,
        scale: float = 1.0,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        positive_size(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size)
        odd_kernel(kernel_size)
        self.inputs, self.outputs = in_channels, out_channels
        self.scale = positive_scale(scale)
        self.activation = nn.ReLU() if activation is None else activation
        fan_in = in_channels * kernel_size**2
        self.weight = xavier_normal(out_channels, in_channels, kernel_size, kernel_size)
        self.bias = uniform(out_channels, fan_in=fan_in) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return :math:`s W`, a convolution kernel."""
        weight = self.weight / largest(self.weight)
        sums = autocorrelation(weight).abs().sum(dim=(1, 2, 3))
        return (self.scale * weight * inverse_root(sums)[:, None, None],)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return self.activation(zero_padded(x, operators[0], self.bias))


def autocorrelation(kernel: Tensor) -> Tensor:
    """Return the sum over the first dimension of all cross-correlations of ``(m, c, k, k)``: ``(c, c, 2k-1, 2k-1)``."""
    channels = kernel.transpose(0, 1)
    return nn.functional.conv2d(channels, channels, padding=kernel.shape[-1] - 1)


def inverse_root(x: Tensor) -> Tensor:
    """Return ``x ** -0.5`` where ``x`` is positive and zero where it is zero, with gradients to match."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1).rsqrt(), 0)


FAMILY = Family(fc=AolFc, conv=AolConv, linear=AolLin, strides=False)
