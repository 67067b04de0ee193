r"""Upper bounds of spectral norms and near-orthogonal matrices of norm at most one, by matrix products alone.

Power iteration, which the published code of many layers uses, approaches a norm from below, and a bound may not. What
is here bounds it from above after any number of steps, is differentiable everywhere, and keeps no vector between calls.
"""

import math

import torch
from torch import Tensor

from lbdn.layers.base import largest

TIGHT = 8  # squarings: the 1024-norm of the singular values, above the largest of 640 by 0.7 % at most
ROUGH = 4  # the 64-norm, by 11 %: where a bound only has to keep an iteration in its range
STEPS = 8  # of the polar factor's iteration: they take all of [SMALLEST, 1] above 0.9999
SMALLEST = 1 / 128


def gram_bound(gram: Tensor, squarings: int = TIGHT) -> Tensor:
    r"""Return an upper bound of the root of the largest eigenvalue of Hermitian positive semi-definite matrices.

    For :math:`G = V V^*` that is the spectral norm of V. With t squarings the bound is
    :math:`\|G^{2^t}\|_F^{1/2^{t+1}}`, the :math:`2^{t+2}`-norm of the singular values of V: never below the largest of
    n, and at most :math:`n^{1/2^{t+2}}` times that. The powers are kept in range by division by their norms.

    Args:
        gram: real or complex, ``(..., n, n)``.
        squarings: t.

    Returns:
        One number for all matrices: the largest of their bounds.

    Source: Delattre et al. (2023), "Efficient bound of Lipschitz constant for convolutional layers by Gram iteration".
    """
    exponent = 0.5
    bound = torch.ones((), dtype=gram.real.dtype, device=gram.device)
    for _ in range(squarings):
        size = _nonzero(_frobenius(gram).detach())
        gram = gram / size
        gram = gram @ gram
        bound = bound * size**exponent
        exponent /= 2
    size = _frobenius(gram)
    return torch.where(size > 0, bound * _nonzero(size) ** exponent, 0).amax()


def norm_bound(matrices: Tensor) -> Tensor:
    """Return one upper bound of the spectral norms of all matrices: ``gram_bound`` of their smaller Gram matrices.

    Args:
        matrices: real or complex, ``(..., m, n)``, of a size whose squares are in range.
    """
    rows, columns = matrices.shape[-2:]
    return gram_bound(matrices @ matrices.mH if rows <= columns else matrices.mH @ matrices)


def normalized(matrices: Tensor) -> Tensor:
    """Return matrices of norm at most one: all divided by one upper bound of their norms; zero stays zero.

    Args:
        matrices: real or complex, ``(..., m, n)``.
    """
    scaled = matrices / largest(matrices)
    return scaled / _nonzero(norm_bound(scaled))


def polar(matrices: Tensor) -> Tensor:
    r"""Return matrices of norm at most one, near :math:`(V V^*)^{-1/2} V`, whose rows (or columns) are orthonormal.

    The iteration :math:`W \mapsto \tfrac12 \alpha (3 I - \alpha^2 W W^*) W` keeps the singular vectors and takes a
    singular value s to :math:`\tfrac12 \alpha s (3 - \alpha^2 s^2)`, which is in [0, 1] for s in [0, 1] and
    :math:`0 < \alpha^2 \le 3`. So the norm is at most one after any number of steps, and the number decides only how
    near to orthogonal the result is; zero stays zero. Björck's and Newton's :math:`\alpha` is one. A larger one, chosen
    so that [l, 1] is taken to an interval [l', 1], brings small singular values to one in half as many steps.

    All steps but the last are taken as :math:`W_k = T_k V` on the smaller matrix :math:`T_k V V^* T_k`. The last one is
    Björck's, of W itself: it takes [0, 2] into [-1, 1], so rounding errors of the others do no harm.

    Args:
        matrices: real or complex, ``(..., m, n)``.

    Source: Björck and Bowie (1971), "An iterative algorithm for computing the best estimate of an orthogonal matrix";
    Chen and Chow (2014), "A stable scaling of Newton-Schulz for improving the sign function computation", for alpha.
    """
    rows, columns = matrices.shape[-2:]
    if rows > columns:
        return polar(matrices.mH).mH
    V = matrices / largest(matrices)
    gram = V @ V.mH
    bound = _nonzero(gram_bound(gram, ROUGH))
    identity = torch.eye(rows, dtype=V.dtype, device=V.device)
    gram, T, smallest = gram / bound**2, identity / bound, SMALLEST
    for _ in range(STEPS - 1):
        alpha = math.sqrt(3 / (1 + smallest + smallest**2))
        step = alpha / 2 * (3 * identity - alpha**2 * gram)
        T = step @ T
        gram = step @ gram @ step
        smallest *= alpha / 2 * (3 - (alpha * smallest) ** 2)
    W = T @ V
    return (3 * identity - W @ W.mH) @ W / 2


def _frobenius(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)


def _nonzero(size: Tensor) -> Tensor:
    """Return sizes to divide by: one for zero, and for what is so small that its inverse, a gradient, overflows."""
    return torch.where(size > torch.finfo(size.dtype).tiny, size, 1)
