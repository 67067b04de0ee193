r"""Layer-wise orthogonal training: :math:`\sigma(W x + b)`, :math:`W = (V V^T)^{-1/2} V`.

Source: Xu, Li and Li (2022), "LOT: Layer-wise orthogonal training on improving l2 certified robustness", as named in
Wang and Manchester (2023), whose text drops the exponent's 1/2.

The published code takes 10 steps of Newton's iteration for the inverse root, with nothing that bounds the norm of the
result. Here W has norm at most one whatever the number of steps. Where V has more rows than columns, W is
:math:`V (V^T V)^{-1/2}`. For dense layers this is the map of ``lbdn.layers.bcop``, whose iteration has the same limit;
the families differ in their convolutions.
"""

from torch import Tensor

from lbdn.layers.base import Activated, Family
from lbdn.layers.constrained import ConstrainedConv, ConstrainedLin
from lbdn.layers.norms import polar


class LotLin(ConstrainedLin):
    r"""A ``scale``-Lipschitz linear layer :math:`x \mapsto W\, s x + b`, :math:`W = (V V^T)^{-1/2} V`.

    Singular values of V below a hundredth of the largest stay below one in W; a weight of zeros stays zero.

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


class LotFc(Activated, LotLin):
    r"""A ``scale``-Lipschitz fully connected layer :math:`x \mapsto \sigma(W\, s x + b)`, W as in ``LotLin``.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.
        activation: any 1-Lipschitz function, element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """


class LotConv(ConstrainedConv):
    r"""A ``scale``-Lipschitz circular convolution layer, :math:`W = (V V^*)^{-1/2} V` at each frequency.

    One factor normalises the spectrum of all frequencies before the iteration, so that a frequency at which it vanishes
    harms no gradient. Stride 2 is emulated as in ``SandwichConv``.

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
        """Return matrices near their orthogonal polar factors."""
        return polar(matrices)


FAMILY = Family(fc=LotFc, conv=LotConv, linear=LotLin)
