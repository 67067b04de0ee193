r"""Orthogonal layers: :math:`\sigma(W x + b)` with a semi-orthogonal :math:`W` from the Cayley transform.

Source: Trockman and Kolter (2021), "Orthogonalizing convolutional layers with the Cayley transform", as compared in
Wang and Manchester (2023).
"""

import torch
from torch import Tensor, nn

from lbdn.cayley import cayley, cayley_for
from lbdn.circular import real_form
from lbdn.layers.base import (
    Activated,
    Activation,
    Family,
    Layer,
    as_precise_as,
    initial_gain,
    positive_scale,
    positive_size,
    uniform,
    weight_normalized,
)
from lbdn.layers.convolution import CircularConv


class OrthogonalLin(Layer):
    r"""A ``scale``-Lipschitz linear layer :math:`x \mapsto W\, s x + b` with orthonormal rows or columns of W.

    :math:`W` stacks the two blocks of :math:`\mathrm{Cayley}(g\, V / \|V\|_F)` with the free ``weight`` :math:`V` and
    ``gain`` :math:`g`; it is the transpose of that for :math:`V^T` where there are more inputs than outputs.

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
        self.gain = initial_gain(self.weight)
        self.bias = uniform(out_features, fan_in=in_features) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return :math:`s W`."""
        return (self._operator(_orthogonal(weight_normalized(self.weight, self.gain))),)

    def applied(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what ``transform`` takes; for few samples of many inputs the factors of the operator."""
        if self.inputs <= self.outputs:
            return super().applied(x)
        self.image_size(x)
        first, others = x.split([self.outputs, self.inputs - self.outputs], dim=-1)
        others, A_star, B_star = cayley_for(others, weight_normalized(self.weight, self.gain).mT)
        return torch.cat([first, others], dim=-1), self._operator(torch.cat([A_star, B_star]).mT)

    def _operator(self, matrix: Tensor) -> Tensor:
        return as_precise_as(self.gain, self.scale * matrix)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return nn.functional.linear(x, operators[0], self.bias)


class OrthogonalFc(Activated, OrthogonalLin):
    r"""A ``scale``-Lipschitz fully connected layer :math:`x \mapsto \sigma(W\, s x + b)`, W as in ``OrthogonalLin``.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.
        activation: any 1-Lipschitz function, element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """


class OrthogonalConv(CircularConv):
    r"""A ``scale``-Lipschitz circular convolution layer with a semi-orthogonal matrix at each frequency.

    The Cayley transform is taken of the spectrum of the kernel ``weight``, normalised by its Frobenius norm and
    multiplied by ``gain``. Stride 2 is emulated as in ``SandwichConv``.

    Args:
        in_channels: of the images.
        out_channels: of the result.
        kernel_size: of the square kernel.
        stride: 1 or 2.
        bias: whether there is a bias.
        scale: which multiplies the input; the layer is ``scale``-Lipschitz.
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
        self.gain = initial_gain(self.weight)
        self.bias = uniform(out_channels, fan_in=fan_in) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return :math:`s W`, at each frequency."""
        kernel = weight_normalized(self.weight, self.gain)
        matrices = _orthogonal(self.matrices(kernel, *size))
        return (real_form(as_precise_as(self.gain, self.scale * matrices)),)


def _orthogonal(weight: Tensor) -> Tensor:
    if weight.shape[-2] < weight.shape[-1]:
        return _orthogonal(weight.mH).mH
    return torch.cat(cayley(weight), dim=-2)


FAMILY = Family(fc=OrthogonalFc, conv=OrthogonalConv, linear=OrthogonalLin)
