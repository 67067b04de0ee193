"""Unconstrained layers, the baseline without a bound."""

from torch import Tensor, nn

from lbdn.layers.base import (
    Activated,
    Activation,
    ConvLayer,
    Family,
    Layer,
    odd_kernel,
    positive_scale,
    positive_size,
    uniform,
    zero_padded,
)


class PlainLin(Layer):
    """A linear layer without a Lipschitz bound.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: which multiplies the input.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        positive_size(in_features=in_features, out_features=out_features)
        self.inputs, self.outputs = in_features, out_features
        self.scale = positive_scale(scale)
        self.weight = uniform(out_features, in_features, fan_in=in_features)
        self.bias = uniform(out_features, fan_in=in_features) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return the scaled weight."""
        return (self.scale * self.weight,)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return nn.functional.linear(x, operators[0], self.bias)


class PlainFc(Activated, PlainLin):
    """A fully connected layer without a Lipschitz bound.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: which multiplies the input.
        activation: element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """


class PlainConv(ConvLayer):
    """A zero-padded convolution layer without a Lipschitz bound.

    Args:
        in_channels: of the images.
        out_channels: of the result.
        kernel_size: of the square kernel, odd.
        stride: of the convolution.
        bias: whether there is a bias.
        scale: which multiplies the input.
        activation: element by element. None: ReLU.

    Raises:
        ValueError: for arguments out of these ranges and for images with other channels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        bias: bool = True,
        scale: float = 1.0,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        positive_size(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        odd_kernel(kernel_size)
        self.inputs, self.outputs, self.stride = in_channels, out_channels, stride
        self.scale = positive_scale(scale)
        self.activation = nn.ReLU() if activation is None else activation
        fan_in = in_channels * kernel_size**2
        self.weight = uniform(out_channels, in_channels, kernel_size, kernel_size, fan_in=fan_in)
        self.bias = uniform(out_channels, fan_in=fan_in) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return the scaled kernel."""
        return (self.scale * self.weight,)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return self.activation(zero_padded(x, operators[0], self.bias, self.stride))


FAMILY = Family(fc=PlainFc, conv=PlainConv, linear=PlainLin, bounded=False)
