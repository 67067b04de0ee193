r"""SDP-based Lipschitz layers: residual, :math:`x - 2 W T^{-1} \sigma(W^T x + b)`.

Source: Araujo et al. (2023), "A unified algebraic perspective on Lipschitz neural networks", as compared in Wang and
Manchester (2023), equation of the SLL layer and after it.
"""

import torch
from torch import Tensor, nn

from lbdn.gram import absolute_gram_sums
from lbdn.layers.base import (
    Activation,
    Family,
    exponential,
    largest,
    odd_kernel,
    positive_scale,
    positive_size,
    uniform,
    xavier_normal,
)
from lbdn.layers.residual import ResidualConv, ResidualFc, step


class SllFc(ResidualFc):
    r"""A ``scale``-Lipschitz residual layer :math:`x \mapsto s x - 2 W T^{-1} \sigma(W^T s x + b)`.

    :math:`T = \mathrm{diag}(\sum_j |W^T W|_{ij}\, q_j / q_i) \succeq W^T W` for every positive q, by diagonal
    dominance of :math:`\mathrm{diag}(q)^{-1} |W^T W|\, \mathrm{diag}(q)`; :math:`q = e^{\theta}` is trained.

    Args:
        features: of the input and of the output.
        inner_features: of the activation.
        bias: whether there is a bias.
        scale: s, which multiplies the input.
        activation: any function with slopes in [0, 1], element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """

    def __init__(
        self,
        features: int,
        inner_features: int,
        *,
        bias: bool = True,
        scale: float = 1.0,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        positive_size(features=features, inner_features=inner_features)
        self.inputs = self.outputs = features
        self.scale = positive_scale(scale)
        self.activation = nn.ReLU() if activation is None else activation
        self.weight = xavier_normal(inner_features, features)  # W^T
        self.log_q = nn.Parameter(torch.zeros(inner_features))
        self.bias = uniform(inner_features, fan_in=features) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        r"""Return :math:`V = W^T / m`, :math:`m = \max|W|`, and :math:`2 T^{-1} m`; their product is in range."""
        size_of_weight = largest(self.weight)
        scaled = self.weight / size_of_weight
        q = exponential(self.log_q)
        return scaled, step(absolute_gram_sums(scaled, q) / q, size_of_weight)


class SllConv(ResidualConv):
    r"""A ``scale``-Lipschitz residual convolution layer, zero-padded.

    As ``SllFc``, with :math:`|W^T W|_{ij}` summed over all shifts of the kernels' full cross-correlation. That bounds
    the convolution on an infinite image; zero padding only restricts it.

    Args:
        channels: of the images and of the result.
        inner_channels: of the activation.
        kernel_size: of the square kernel, odd.
        bias: whether there is a bias.
        scale: which multiplies the input.
        activation: any function with slopes in [0, 1], element by element. None: ReLU.

    Raises:
        ValueError: for arguments out of these ranges and for images with other channels.
    """

    def __init__(
        self,
        channels: int,
        inner_channels: int,
        kernel_size: int = 3,
        *,
        bias: bool = True,
        scale: float = 1.0,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        positive_size(channels=channels, inner_channels=inner_channels, kernel_size=kernel_size)
        odd_kernel(kernel_size)
        self.inputs = self.outputs = channels
        self.scale = positive_scale(scale)
        self.activation = nn.ReLU() if activation is None else activation
        fan_in = channels * kernel_size**2
        self.weight = xavier_normal(inner_channels, channels, kernel_size, kernel_size)
        self.log_q = nn.Parameter(torch.zeros(inner_channels))
        self.bias = uniform(inner_channels, fan_in=fan_in) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        r"""Return :math:`V = W^T / m`, :math:`m = \max|W|`, and :math:`2 T^{-1} m`; their product is in range."""
        size_of_weight = largest(self.weight)
        scaled = self.weight / size_of_weight
        correlations = nn.functional.conv2d(scaled, scaled, padding=self.weight.shape[-1] - 1)
        q = exponential(self.log_q)
        return scaled, step(correlations.abs().sum(dim=(2, 3)) @ q / q, size_of_weight)


FAMILY = Family(fc=SllFc, conv=SllConv, strides=False, residual=True, widths={"mlp": (128,) * 3})
