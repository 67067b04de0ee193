r"""Block convolution orthogonal layers: :math:`\sigma(W x + b)`, W a product of an orthogonal map and projections.

Source: Li et al. (2019), "Preventing gradient attenuation in Lipschitz constrained convolutional networks", as named in
Wang and Manchester (2023).

The published code takes a fixed number of Björck's steps and calls the result orthonormal. Here no bound rests on that:
the steps keep every norm at most one, and so do the convolutions, whose projections need only lie between zero and the
identity. Where the numbers of inputs and outputs differ, H is not square, which is the published cut of a square one.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lbdn.circular import real_form
from lbdn.layers.base import Activated, Activation, Family, uniform
from lbdn.layers.constrained import ConstrainedLin
from lbdn.layers.convolution import CircularConv
from lbdn.layers.norms import polar
from lbdn.precision import at_least_single


class BcopLin(ConstrainedLin):
    r"""A ``scale``-Lipschitz linear layer :math:`x \mapsto W\, s x + b`, W the orthonormalised ``weight``.

    Singular values below a hundredth of the largest stay below one in W; a weight of zeros stays zero.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """

    def constrain(self, matrices: Tensor) -> Tensor:
        """Return matrices near their orthogonal polar factors."""
        return polar(matrices)


class BcopFc(Activated, BcopLin):
    r"""A ``scale``-Lipschitz fully connected layer :math:`x \mapsto \sigma(W\, s x + b)`, W as in ``BcopLin``.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.
        activation: any 1-Lipschitz function, element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """


class BcopConv(CircularConv):
    r"""A ``scale``-Lipschitz circular convolution layer, orthogonal by construction in space.

    The kernel is the block convolution of one matrix H for all pixels, semi-orthogonal, with k - 1 pairs of kernels of
    two pixels, one upright and one across: :math:`[P, I - P]` with :math:`P = Y Y^T` of half the rank. They act on the
    outputs, or on the inputs where there are more of these. At every frequency :math:`P + e^{-i\omega} (I - P)` has
    norm at most one for all :math:`0 \preceq P \preceq I`, so the product has, too; with orthonormal Y and H it is
    semi-orthogonal. H comes from the free ``weight``, all Y from ``factors``, both orthonormalised. Stride 2 is
    emulated as in ``SandwichConv``.

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
        pairs, channels = self.kernel_size - 1, max(out_channels, self.columns)
        self.weight = uniform(out_channels, self.columns, fan_in=self.columns)
        self.factors = nn.Parameter(torch.randn(2 * pairs, channels, max(channels // 2, 1))) if pairs else None
        self.bias = uniform(out_channels, fan_in=self.columns * self.kernel_size**2) if bias else None

    def operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return :math:`s W`, at each frequency."""
        kernel = polar(at_least_single(self.weight))[:, :, None, None]
        if self.factors is not None:
            wide = self.outputs < self.columns
            factors = [polar(Y) for Y in at_least_single(self.factors)]
            kernel = block_convolution(kernel.transpose(0, 1) if wide else kernel, factors)
            kernel = kernel.transpose(0, 1) if wide else kernel
        return (real_form(self.scale * self.matrices(kernel, *size)).to(self.weight.dtype),)


def block_convolution(kernel: Tensor, factors: Iterable[Tensor]) -> Tensor:
    r"""Return a kernel convolved with :math:`[P, I - P]`, :math:`P = Y Y^T`, in turn upright and across.

    Args:
        kernel: ``(rows, columns, 1, 1)``.
        factors: all Y, 2 (k - 1) of ``(rows, rank)``.

    Returns:
        ``(rows, columns, k, k)``.

    Source: Li et al. (2019), algorithm of the block convolution orthogonal parameterisation.
    """
    for i, Y in enumerate(factors):
        projected = torch.einsum("or,pr,pcij->ocij", Y, Y, kernel)
        before, after = ((0, 0, 1, 0), (0, 0, 0, 1)) if i % 2 == 0 else ((1, 0), (0, 1))
        kernel = nn.functional.pad(projected, after) + nn.functional.pad(kernel - projected, before)
    return kernel


FAMILY = Family(fc=BcopFc, conv=BcopConv, linear=BcopLin)
