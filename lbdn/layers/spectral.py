r"""Spectrally normalised layers: :math:`\sigma(W x + b)`, :math:`W = V / \|V\|_2`.

Source: Miyato et al. (2018), "Spectral normalization for generative adversarial networks", for dense layers, and
Farnia, Zhang and Tse (2019), "Generalizable adversarial training via spectral normalization", with the norm of the
convolution itself in place of its reshaped kernel's; as named in Wang and Manchester (2023).

The published code divides by the result of a power iteration that it carries from step to step, a lower bound of the
norm. These layers divide by an upper bound, a function of the weight alone.
"""

from torch import Tensor

from lbdn.layers.base import Activated, Family
from lbdn.layers.constrained import ConstrainedConv, ConstrainedLin
from lbdn.layers.norms import normalized


class SpectralLin(ConstrainedLin):
    r"""A ``scale``-Lipschitz linear layer :math:`x \mapsto W\, s x + b`, :math:`W = V / \beta`.

    The upper bound :math:`\beta \ge \|V\|_2` is above the norm by 1 % at most, up to a rank of 26 thousand. A weight of
    zeros stays zero.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """

    def constrain(self, matrices: Tensor) -> Tensor:
        """Return matrices over an upper bound of their norms."""
        return normalized(matrices)


class SpectralFc(Activated, SpectralLin):
    r"""A ``scale``-Lipschitz fully connected layer :math:`x \mapsto \sigma(W\, s x + b)`, W as in ``SpectralLin``.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.
        activation: any 1-Lipschitz function, element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """


class SpectralConv(ConstrainedConv):
    r"""A ``scale``-Lipschitz circular convolution layer: its kernel over an upper bound of the convolution's norm.

    The norm of a circular convolution is the largest of the norms of its matrices at all frequencies of the image size
    that comes in. Stride 2 is emulated as in ``SandwichConv``.

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

    def constrain(self, matrices: Tensor) -> Tensor:
        """Return matrices over an upper bound of their norms."""
        return normalized(matrices)


FAMILY = Family(fc=SpectralFc, conv=SpectralConv, linear=SpectralLin)
