"""The Cayley transform and its inverse, as pure functions of real or complex matrices."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

# Inputs for each row of x from which the factors save time: 5 to 25% of a training step there, nothing at a third.
FEW = 10


def cayley(stacked: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`(A^*, B^*)` with :math:`A A^* + B B^* = I`, for every ``stacked`` :math:`= [X; Y]`.

    With :math:`Z = X - X^* + Y^* Y`, the result is :math:`A^* = (I + Z)^{-1} (I - Z)` and
    :math:`B^* = -2 Y (I + Z)^{-1}`. The Hermitian part of :math:`I + Z` is at least the identity, so the inverse
    exists and its norm is at most one. Both blocks come from this one inverse, since
    :math:`(I + Z)^{-1} (I - Z) = 2 (I + Z)^{-1} - I`.

    Args:
        stacked: ``(..., q + p, q)``, any ``p >= 0``.

    Returns:
        :math:`A^*` of shape ``(..., q, q)`` and :math:`B^*` of shape ``(..., p, q)``: the blocks of a matrix with
        orthonormal columns.

    Raises:
        ValueError: if ``stacked`` has fewer rows than columns.

    Source: Wang and Manchester (2023), equation of the Cayley transform; Trockman and Kolter (2021).

    >>> A_star, B_star = cayley(torch.tensor([[0.0, 3.0], [1.0, -2.0], [5.0, 1.0]], dtype=torch.float64))
    >>> torch.allclose(A_star.mH @ A_star + B_star.mH @ B_star, torch.eye(2, dtype=torch.float64))
    True
    """
    rows, q = stacked.shape[-2:]
    if rows < q:
        raise ValueError(f"cayley takes [X; Y] with at least as many rows as columns, got {rows} x {q}")
    return _Cayley.apply(stacked)


def cayley_for(x: Tensor, stacked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return :math:`x', A^*, B'` with :math:`x' B' = x B^*`, for a layer that takes no more than this product.

    :math:`B^* = Y B'` with :math:`B' = -2 (I + Z)^{-1}`. Where x has few rows, :math:`(x Y) B'` costs less than
    :math:`x (Y B')`: in training, about half of what a layer of many inputs takes. In another precision than that of x,
    which stands for a large ``stacked``, the factors would lose digits; there, and for many rows,
    :math:`x' = x, B' = B^*`.

    Args:
        x: ``(..., p)``.
        stacked: ``(q + p, q)``.

    Returns:
        ``(..., q)`` or ``(..., p)``, ``(q, q)``, and ``(q, q)`` or ``(p, q)``.

    Source: as ``cayley``.
    """
    q = stacked.shape[-1]
    rows = x.shape[:-1].numel()
    if x.dtype != stacked.dtype or x.shape[-1] < FEW * rows:
        return x, *cayley(stacked)
    inverse = _CayleyInverse.apply(stacked)
    return x @ stacked[q:], 2 * inverse - _identity(inverse), -2 * inverse


class _Cayley(Function):
    """Its backward pass takes three products with Y, where automatic differentiation takes five."""

    @staticmethod
    def forward(ctx: Any, stacked: Tensor) -> tuple[Tensor, Tensor]:
        Y, inverse = _inverse(stacked)
        ctx.save_for_backward(Y, inverse)
        return 2 * inverse - _identity(inverse), -2 * (Y @ inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, A_gradient: Tensor, B_gradient: Tensor) -> Tensor:
        Y, inverse = ctx.saved_tensors
        half = A_gradient - _adjoint(Y) @ B_gradient
        X_gradient, Y_gradient = _stacked_gradient(Y, inverse, 2 * half)
        return torch.cat([X_gradient, Y_gradient - 2 * (B_gradient @ _adjoint(inverse))], dim=-2)


class _CayleyInverse(Function):
    """Its backward pass takes one product with Y, where automatic differentiation takes two."""

    @staticmethod
    def forward(ctx: Any, stacked: Tensor) -> Tensor:
        Y, inverse = _inverse(stacked)
        ctx.save_for_backward(Y, inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Y, inverse = ctx.saved_tensors
        return torch.cat(_stacked_gradient(Y, inverse, gradient), dim=-2)


def _inverse(stacked: Tensor) -> tuple[Tensor, Tensor]:
    """Return :math:`Y` and :math:`(I + Z)^{-1}`."""
    q = stacked.shape[-1]
    X, Y = stacked[..., :q, :], stacked[..., q:, :]
    # inv_ex: unlike inv, it doesn't wait for the device to look for a singular matrix, which I + Z never is.
    return Y, torch.linalg.inv_ex(_identity(X) + X - X.mH + _adjoint(Y) @ Y).inverse


def _stacked_gradient(Y: Tensor, inverse: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients by X and Y from the one by :math:`(I + Z)^{-1}`."""
    Z_gradient = -(_adjoint(inverse) @ gradient @ _adjoint(inverse))
    return Z_gradient - Z_gradient.mH, Y @ (Z_gradient + Z_gradient.mH)


def _identity(square: Tensor) -> Tensor:
    return torch.eye(square.shape[-1], dtype=square.dtype, device=square.device)


def _adjoint(matrices: Tensor) -> Tensor:
    """Return the conjugate transpose; not lazily conjugate, since a batched product copies that matrix by matrix."""
    return matrices.mH.resolve_conj()


def inverse_cayley(A_star: Tensor, B_star: Tensor) -> Tensor:
    r"""Return one ``stacked`` with ``cayley(stacked) == (A_star, B_star)``.

    :math:`Z = (I - A^*)(I + A^*)^{-1}`, :math:`Y = -\tfrac12 B^* (I + Z)`, and :math:`X` is the lower triangle of
    :math:`\tfrac12 (Z - Z^*)` (the diagonal, imaginary if complex, is shared between :math:`X` and :math:`X^*`).

    Args:
        A_star: ``(..., q, q)``, without the eigenvalue -1.
        B_star: ``(..., p, q)`` with :math:`A A^* + B B^* = I`.

    Returns:
        ``[X; Y]`` of shape ``(..., q + p, q)``.

    Raises:
        ValueError: if :math:`I + A^*` is singular.

    Source: Wang and Manchester (2023), last equation in the proof of the proposition on linear layers.
    """
    identity = torch.eye(A_star.shape[-1], dtype=A_star.dtype, device=A_star.device)
    try:
        Z = torch.linalg.solve(identity + A_star, identity - A_star)  # the two factors commute
    except torch.linalg.LinAlgError as error:
        raise ValueError("inverse_cayley takes an A* without the eigenvalue -1, got I + A* singular") from error
    skew = Z - Z.mH
    X = torch.tril(skew, -1) / 2 + torch.diag_embed(torch.diagonal(skew, dim1=-2, dim2=-1)) / 4
    return torch.cat([X, -B_star @ (identity + Z) / 2], dim=-2)
