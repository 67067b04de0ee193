"""Layers whose matrix is a function of one free weight: a family says which function, for all its layers at once."""

from torch import Tensor, nn

from lbdn.circular import real_form
from lbdn.layers.base import Activation, Layer, positive_scale, positive_size, uniform
from lbdn.layers.convolution import CircularConv
from lbdn.precision import at_least_single


class ConstrainedLin(Layer):
    r"""A ``scale``-Lipschitz linear layer :math:`x \mapsto W\, s x + b` with :math:`W = f(V)`, :math:`\|W\| \le 1`.

    Subclasses define ``constrain``, f; V is the free ``weight``.

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
        self.weight = uniform(out_features, in_features, fan_in=in_features)
        self.bias = uniform(out_features, fan_in=in_features) if bias else None

    def constrain(self, matrices: Tensor) -> Tensor:
        """Return a real matrix of the same shape and of norm at most one."""
        raise NotImplementedError

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return :math:`s W`."""
        matrix = self.scale * self.constrain(at_least_single(self.weight))
        return (matrix.to(self.weight.dtype),)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return nn.functional.linear(x, operators[0], self.bias)


class ConstrainedConv(CircularConv):
    r"""A ``scale``-Lipschitz circular convolution layer with :math:`W(\omega) = f(V(\omega))` at each frequency.

    Subclasses define ``constrain``, f; V is the spectrum of the free kernel ``weight``. With stride 2, 2 x 2 blocks of
    pixels become channels and the kernel is halved.

    Args:
        in_channels: of the images.
        out_channels: of the result.
        kernel_size: of the square kernel.
        stride: 1 or 2.
        bias: whether there is a bias.
        scale: which multiplies the input.
        activation: any 1-Lipschitz function, element by element. None: ReLU.

    Raises:
        ValueError: for arguments out of these ranges; for images with other channels or, at stride 2, of odd size.
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
        super().__init__(in_channels, out_channels, kernel_size, stride, scale, activation)
        k, fan_in = self.kernel_size, self.columns * self.kernel_size**2
        self.weight = uniform(out_channels, self.columns, k, k, fan_in=fan_in)
        self.bias = uniform(out_channels, fan_in=fan_in) if bias else None

    def constrain(self, matrices: Tensor) -> Tensor:
        """Return matrices of the same shape, real (one for all frequencies) or complex, of norm at most one."""
        raise NotImplementedError

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return :math:`s W`, at each frequency."""
        matrices = self.constrain(self.matrices(at_least_single(self.weight), *size))
        return (real_form(self.scale * matrices).to(self.weight.dtype),)
