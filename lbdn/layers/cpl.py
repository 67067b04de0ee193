r"""Convex potential layers: residual blocks :math:`x - 2 \|W\|_2^{-2}\, W \sigma(W^T x + b)`.

Source: Meunier et al. (2022), "A dynamical system perspective for Lipschitz neural networks", as compared in Wang and
Manchester (2023). The networks are those of ``lbdn.layers.sll``, whose layer generalises this one.

The published code estimates the norm by power iteration, a step a call from a vector that it keeps in training and 100
steps in evaluation: a lower bound. These layers divide by an upper bound, a function of the weight alone.
"""

from torch import Tensor, nn

from lbdn.circular import kernel_spectrum
from lbdn.layers.base import (
    Activation,
    Family,
    largest,
    odd_kernel,
    positive_scale,
    positive_size,
    uniform,
    xavier_normal,
)
from lbdn.layers.norms import norm_bound
from lbdn.layers.residual import ResidualConv, ResidualFc, step
from lbdn.precision import at_least_single


class CplFc(ResidualFc):
    r"""A ``scale``-Lipschitz residual layer :math:`x \mapsto s x - 2 \beta^{-2}\, W \sigma(W^T s x + b)`.

    :math:`\beta \ge \|W\|_2`; a weight of zeros adds nothing.

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
        self.bias = uniform(inner_features, fan_in=features) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        r"""Return :math:`V = W^T / m`, :math:`m = \max|W|`, and :math:`2 m / \beta^2`; their product is in range."""
        size_of_weight = largest(self.weight)
        scaled = self.weight / size_of_weight
        return scaled, step(norm_bound(at_least_single(scaled)) ** 2, size_of_weight).to(scaled.dtype)


class CplConv(ResidualConv):
    r"""A ``scale``-Lipschitz residual convolution layer, zero-padded.

    As ``CplFc``, with the norm of the circular convolution on images that are larger by half a kernel. The zeros of
    that margin serve as padding at both ends, so the zero-padded convolution is a restriction of this one.

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
        self.bias = uniform(inner_channels, fan_in=fan_in) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        r"""Return :math:`V = W^T / m`, :math:`m = \max|W|`, and :math:`2 m / \beta^2`; their product is in range."""
        size_of_weight = largest(self.weight)
        scaled = self.weight / size_of_weight
        height, width = (pixels + self.weight.shape[-1] // 2 for pixels in size)
        bound = norm_bound(kernel_spectrum(at_least_single(scaled), height, width))
        return scaled, step(bound**2, size_of_weight).to(scaled.dtype)


FAMILY = Family(fc=CplFc, conv=CplConv, strides=False, residual=True, widths={"mlp": (128,) * 3})
