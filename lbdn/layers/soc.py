r"""Skew orthogonal layers: :math:`\sigma(W x + b)`, W an exponential of a skew-symmetric matrix or convolution.

Source: Singla and Feizi (2021), "Skew orthogonal convolutions", as named in Wang and Manchester (2023).

Three things differ from the published code. Where the numbers of inputs and outputs differ, it pads the smaller one
with zeros and cuts the result. That restricts the exponential of a skew matrix of :math:`\max(p, q)^2` parameters to
its first columns; here the block of that matrix whose first product with them vanishes is zero, so that p q parameters
remain. It cuts the series at 5 terms in training and 12 in evaluation; here the remainder is bounded and the result
divided by one plus the bound. And it always scales the skew matrix to one size; here the size is the weight's, up to a
norm of one, so a layer turns no vector by more than one radian.
"""

import math

import torch
from torch import Tensor

from lbdn.layers.base import Activated, Family, largest
from lbdn.layers.constrained import ConstrainedConv, ConstrainedLin
from lbdn.layers.norms import ROUGH, gram_bound

LIMIT = 1.0  # of the skew matrix's norm, as in the published code about: with pi, the toy hardly learns
TERMS = 8  # the remainder is 3e-6 at a norm of one


def exponential_columns(stacked: Tensor) -> Tensor:
    r"""Return the first q columns of :math:`\exp(S)`, :math:`S = \begin{bmatrix} A & -Y^* \\ Y & 0 \end{bmatrix}`.

    Here :math:`A = X - X^*` and ``stacked`` is :math:`[X; Y]`. The result has norm at most one and is near a matrix
    with orthonormal columns: S is skew, so its series up to the n-th power is off by at most
    :math:`\rho = \|S\|^{n+1} / (n+1)!`, and it is divided by :math:`1 + \rho`. An upper bound of
    :math:`\|A\| + \|Y\| \ge \|S\|` takes the norm's place; where it is above one, S is scaled down to that.

    All powers of S keep the form :math:`S^k [I; 0] = [U_k; Y Z_k]`, with :math:`U_{k+1} = A U_k - Y^* Y Z_k` and
    :math:`Z_{k+1} = U_k`, so nothing larger than Y is computed, and a Y without full rank is like any other.

    Args:
        stacked: real or complex, ``(..., q + p, q)``, any ``p >= 0``. One scale serves all matrices.
    """
    q = stacked.shape[-1]
    X, Y = stacked[..., :q, :], stacked[..., q:, :]
    skew = torch.cat([X - X.mH, Y], dim=-2)
    size = largest(skew)
    A, Y = (skew / size).split([q, Y.shape[-2]], dim=-2)
    gram = Y.mH @ Y
    norm = gram_bound(A.mH @ A, ROUGH) + gram_bound(gram, ROUGH)
    factor = LIMIT / torch.maximum(norm, LIMIT / size)
    A, gram = factor * A, factor**2 * gram
    identity = torch.eye(q, dtype=A.dtype, device=A.device).expand_as(A)
    U, Z = A, identity
    upper, lower = identity + U, Z
    for k in range(2, TERMS + 1):
        U, Z = (A @ U - gram @ Z if Y.numel() else A @ U) / k, U / k
        upper, lower = upper + U, lower + Z
    remainder = (factor * norm) ** (TERMS + 1) / math.factorial(TERMS + 1)
    return torch.cat([upper, factor * Y @ lower], dim=-2) / (1 + remainder)


def skew_orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices of the same shape with near-orthonormal rows or columns and of norm at most one."""
    if matrices.shape[-2] < matrices.shape[-1]:
        return exponential_columns(matrices.mH).mH
    return exponential_columns(matrices)


class SocLin(ConstrainedLin):
    r"""A ``scale``-Lipschitz linear layer :math:`x \mapsto W\, s x + b`, :math:`W = \exp(V - V^T)` for a square V.

    Otherwise W is the first columns of the exponential of a larger skew matrix, or their transpose.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """

    def constrain(self, matrices: Tensor) -> Tensor:
        """Return semi-orthogonal matrices."""
        return skew_orthogonal(matrices)


class SocFc(Activated, SocLin):
    r"""A ``scale``-Lipschitz fully connected layer :math:`x \mapsto \sigma(W\, s x + b)`, W as in ``SocLin``.

    Args:
        in_features: the size of the input's last dimension.
        out_features: of the output's.
        bias: whether there is a bias.
        scale: s, which multiplies the input.
        activation: any 1-Lipschitz function, element by element. None: ReLU.

    Raises:
        ValueError: for sizes or a scale that aren't positive, and for inputs of another size.
    """


class SocConv(ConstrainedConv):
    r"""A ``scale``-Lipschitz circular convolution layer, the exponential of a skew convolution.

    The exponential is taken at each frequency, of the skew-Hermitian matrix that the kernel's spectrum gives: the same
    map as the published series of convolutions, without one convolution of the images a term. Stride 2 is emulated as
    in ``SandwichConv``.

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
        """Return semi-orthogonal matrices."""
        return skew_orthogonal(matrices)


FAMILY = Family(fc=SocFc, conv=SocConv, linear=SocLin)
