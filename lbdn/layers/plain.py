"""Unconstrained layers, the baseline without a bound: PyTorch's own, with the activation inside."""

from torch import Tensor, nn

from lbdn.layers.base import Activation, Family


class PlainLin(nn.Linear):
    """A linear layer without a Lipschitz bound. ``scale`` is taken like every layer's, and multiplies the input.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: which multiplies the input.

    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer."""
        return super().forward(self.scale * x)


class PlainFc(PlainLin):
    """A fully connected layer without a Lipschitz bound; arguments as ``PlainLin``.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: which multiplies the input.
        activation: element by element. None: ReLU.

    """

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

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer."""
        return self.activation(super().forward(x))


class PlainConv(nn.Conv2d):
    """A zero-padded convolution layer without a Lipschitz bound.

    Args:
        in_channels: of the images.
        out_channels: of the result.
        kernel_size: of the square kernel.
        stride: of the convolution.
        bias: whether there is a bias.
        scale: which multiplies the input.
        activation: element by element. None: ReLU.

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
        super().__init__(in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=bias)
        self.scale = scale
        self.activation = nn.ReLU() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer."""
        return self.activation(super().forward(self.scale * x))


FAMILY = Family(fc=PlainFc, conv=PlainConv, linear=PlainLin, bounded=False)
