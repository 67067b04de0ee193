"""Weighted row sums of an absolute Gram matrix, the bound behind almost-orthogonal and SDP-based layers."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Block = tuple[slice, slice, Tensor]

BLOCK = 1024  # rows of the Gram matrix at a time
KEPT = 2**24  # entries of a Gram matrix that a backward pass keeps, 32 MiB of float32 for half of them


def absolute_gram_sums(vectors: Tensor, weights: Tensor) -> Tensor:
    r"""Return :math:`r_i = \sum_j |\langle v_i, v_j \rangle|\, q_j`.

    The Gram matrix is symmetric: half of it is computed, block by block. A large one is never held as a whole; the
    backward pass computes it again.

    Args:
        vectors: v, ``(n, k)``.
        weights: q, ``(n,)``.

    Returns:
        ``(n,)``.
    """
    if len(vectors) <= BLOCK:
        return (vectors @ vectors.mT).abs() @ weights
    return _AbsoluteGramSums.apply(vectors, weights)


class _AbsoluteGramSums(Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, weights)
        ctx.kept = list(_half(vectors)) if len(vectors) ** 2 <= KEPT else None
        return _row_sums(ctx.kept or _half(vectors), weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        vectors, weights = ctx.saved_tensors
        vectors_gradient = torch.zeros_like(vectors)
        for own, later, block in ctx.kept or _half(vectors):
            outer = torch.outer(gradient[own], weights[later]).addr_(weights[own], gradient[later])
            block_gradient = outer.mul_(block.sign())
            vectors_gradient[own].addmm_(block_gradient, vectors[later])
            vectors_gradient[later][len(block) :].addmm_(block_gradient[:, len(block) :].mT, vectors[own])
        weights_gradient = _row_sums(ctx.kept or _half(vectors), gradient) if ctx.needs_input_grad[1] else None
        return vectors_gradient, weights_gradient


def _row_sums(blocks: Iterable[Block], weights: Tensor) -> Tensor:
    sums = torch.zeros_like(weights)
    for own, later, block in blocks:
        absolute = block.abs()
        sums[own] += absolute @ weights[later]
        sums[later][len(block) :] += absolute[:, len(block) :].mT @ weights[own]
    return sums


def _half(vectors: Tensor) -> Iterator[Block]:
    """Yield the Gram matrix from its diagonal on: which rows, which columns, and the block."""
    for start in range(0, len(vectors), BLOCK):
        own, later = slice(start, start + BLOCK), slice(start, None)
        yield own, later, vectors[own] @ vectors[later].mT
