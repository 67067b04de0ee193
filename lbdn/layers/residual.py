r"""Residual layers :math:`x - W D\, \sigma(W^T x + b)`: the same for all families that choose the diagonal D.

Their operators are :math:`V = W^T / m` and :math:`m D`, a number or a vector, :math:`m = \max|W|`.
"""

import torch
from torch import Tensor, nn

from lbdn.layers.base import Activation, ConvLayer, Layer, zero_padded

SMALLEST = 1e-30  # of what a step is divided by: less is taken as zero, which keeps all products in range


def step(divisor: Tensor, size_of_weight: Tensor) -> Tensor:
    """Return ``2 / (divisor * size_of_weight)``, zero where that is next to nothing: such a filter adds nothing."""
    counts = divisor * size_of_weight > SMALLEST
    return 2 * torch.where(counts, 1 / torch.where(counts, divisor, 1), 0) / size_of_weight


class ResidualFc(Layer):
    """A fully connected residual layer with ``weight`` :math:`W^T` and ``bias``."""

    weight: Tensor
    bias: Tensor | None
    activation: Activation

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        x = self.scale * x
        hidden = self.activation(nn.functional.linear(x, self.weight, self.bias))
        scaled, step = operators
        return x - (step * hidden) @ scaled


class ResidualConv(ConvLayer):
    """A zero-padded residual convolution layer with ``weight`` :math:`W^T` and ``bias``.

    The images are many and large: so they stay in the memory format of the convolutions from layer to layer, forwards
    and backwards, they aren't multiplied by a scale of one, and signs are changed on the kernel.
    """

    weight: Tensor
    bias: Tensor | None
    activation: Activation

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        x = x.contiguous(memory_format=torch.channels_last)
        x = x if self.scale == 1 else self.scale * x
        hidden = self.activation(zero_padded(x, self.weight, self.bias))
        scaled, step = operators
        return x + zero_padded(hidden, (-step[..., None, None, None] * scaled).transpose(0, 1).flip(2, 3))
