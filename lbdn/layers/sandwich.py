r"""Sandwich layers: :math:`\sqrt2 A^T \Psi\, \sigma(\sqrt2\, \Psi^{-1} B x + b)` with :math:`A A^T + B B^T = I`.

Source: Wang and Manchester (2023), equation of the sandwich layer, theorem that it is 1-Lipschitz, algorithm of the
convolutional layer.
"""

import math

import torch
from torch import Tensor, nn

from lbdn.cayley import cayley, cayley_for
from lbdn.circular import convolve, real_form
from lbdn.layers.base import (
    Activation,
    Family,
    Layer,
    as_precise_as,
    exponential,
    initial_gain,
    positive_scale,
    positive_size,
    uniform,
    weight_normalized,
)
from lbdn.layers.convolution import CircularConv


class SandwichFc(Layer):
    r"""A ``scale``-Lipschitz fully connected layer with an activation between two matrices.

    .. math:: x \mapsto \sqrt2 A^T \Psi\, \sigma(\sqrt2\, \Psi^{-1} B\, s x + b), \quad
              (A^T, B^T) = \mathrm{Cayley}(g\, P / \|P\|_F), \quad \Psi = \mathrm{diag}(e^d)

    with the free parameters ``stacked`` :math:`P = [X; Y]`, ``gain`` :math:`g`, ``log_psi`` :math:`d` and ``bias``
    :math:`b`. One gain serves the stacked matrix, as in the published results.

    Args:
        in_features: p, the size of the input's last dimension.
        out_features: q.
        bias: whether there is a bias.
        scale: s, which multiplies the input; the layer is s-Lipschitz.
        activation: any function with slopes in [0, 1], element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
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
        super().__init__()
        positive_size(in_features=in_features, out_features=out_features)
        self.inputs, self.outputs = in_features, out_features
        self.scale = positive_scale(scale)
        self.activation = nn.ReLU() if activation is None else activation
        fan_in = in_features + out_features
        self.stacked = uniform(fan_in, out_features, fan_in=fan_in)
        self.gain = initial_gain(self.stacked)
        self.log_psi = nn.Parameter(torch.zeros(out_features))
        self.bias = uniform(out_features, fan_in=fan_in) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        r"""Return :math:`s\sqrt2\, \Psi^{-1} B` and :math:`\sqrt2 A^T \Psi`."""
        return _sandwich(*cayley(weight_normalized(self.stacked, self.gain)), self.log_psi, self.scale)

    def applied(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what ``transform`` takes; for few samples the factors of an operator."""
        self.image_size(x)
        x, A_star, B_star = cayley_for(x, weight_normalized(self.stacked, self.gain))
        return x, *_sandwich(A_star, B_star, self.log_psi, self.scale)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        inner, outer = operators
        hidden = self.activation(nn.functional.linear(x, inner, self.bias))
        return nn.functional.linear(hidden, outer)


class SandwichLin(Layer):
    r"""A ``scale``-Lipschitz linear layer :math:`x \mapsto B\, s x + b`, the last layer of a Sandwich network.

    :math:`B` is the second block of :math:`\mathrm{Cayley}(g\, P / \|P\|_F)`, so :math:`\|B\| \le 1`.

    Args:
        in_features: p, the size of the input's last dimension.
        out_features: q.
        bias: whether there is a bias.
        scale: s, which multiplies the input.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.

    Source: Wang and Manchester (2023), last line of the network in layer form.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        positive_size(in_features=in_features, out_features=out_features)
        self.inputs, self.outputs = in_features, out_features
        self.scale = positive_scale(scale)
        fan_in = in_features + out_features
        self.stacked = uniform(fan_in, out_features, fan_in=fan_in)
        self.gain = initial_gain(self.stacked)
        self.bias = uniform(out_features, fan_in=fan_in) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return :math:`s B`."""
        _, B_star = cayley(weight_normalized(self.stacked, self.gain))
        return (self._operator(B_star),)

    def applied(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what ``transform`` takes; for few samples the factors of the operator."""
        self.image_size(x)
        x, _, B_star = cayley_for(x, weight_normalized(self.stacked, self.gain))
        return x, self._operator(B_star)

    def _operator(self, B_star: Tensor) -> Tensor:
        return as_precise_as(self.gain, self.scale * B_star.mT)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        return nn.functional.linear(x, operators[0], self.bias)


class SandwichConv(CircularConv):
    r"""A ``scale``-Lipschitz circular convolution layer: a Sandwich layer at each frequency, one bias a channel.

    The Cayley transform is taken of the spectrum of the kernel ``stacked`` :math:`P`, of shape
    ``(q + p, q, k, k)``, over the image size that comes in. The gain normalises the kernel, not its spectrum, so that
    it doesn't depend on the image size. With stride 2, 2 x 2 blocks of pixels become channels and the kernel size is
    halved: 3 becomes 1, a map of single pixels that needs no Fourier transform.

    Args:
        in_channels: of the images.
        out_channels: q.
        kernel_size: k.
        stride: 1 or 2.
        bias: whether there is a bias.
        scale: which multiplies the input; the layer is ``scale``-Lipschitz.
        activation: any function with slopes in [0, 1], element by element. None: ReLU.

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
        rows, k = out_channels + self.columns, self.kernel_size
        self.stacked = uniform(rows, out_channels, k, k, fan_in=rows * k * k)
        self.gain = initial_gain(self.stacked)
        self.log_psi = nn.Parameter(torch.zeros(out_channels))
        self.bias = uniform(out_channels, fan_in=rows * k * k) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        r"""Return :math:`s\sqrt2\, \Psi^{-1} \tilde B` and :math:`\sqrt2 \tilde A^* \Psi`, at each frequency."""
        kernel = weight_normalized(self.stacked, self.gain)
        inner, outer = _sandwich(*cayley(self.matrices(kernel, *size)), self.log_psi, self.scale)
        return real_form(inner), real_form(outer)

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of the layer."""
        inner, outer = operators
        hidden = convolve(self.blocks(x), inner)
        if self.bias is not None:
            hidden = hidden + self.bias[:, None, None]
        return convolve(self.activation(hidden), outer)


def _sandwich(A_star: Tensor, B_star: Tensor, log_psi: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    psi = exponential(log_psi)
    inner = math.sqrt(2) * scale * B_star.mH / psi[:, None]
    outer = math.sqrt(2) * A_star * psi
    return as_precise_as(psi, inner), as_precise_as(psi, outer)


FAMILY = Family(
    fc=SandwichFc,
    conv=SandwichConv,
    linear=SandwichLin,
    widths={"toy": (86,) * 9, "mlp": (190, 190, 128), "kwlarge": (512, 512), "kwlarge-tiny": (88, 88)},
)
