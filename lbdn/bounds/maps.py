r"""Linear maps as their stored numbers define them: exact values in float64, and error bounds of running them.

In a sum of n products, in any order, with or without fused multiply-add, each product and each of the partial sums is
rounded (Higham 2002, section 4.2). A partial sum is one over a subset of the terms, in size at most half of
:math:`\sum |w_i x_i|` and of :math:`|\sum w_i x_i|` together, which is why the bounds here are half of the usual
:math:`\gamma_n \sum |w_i x_i|` where terms cancel. Algorithms that don't sum products, such as Winograd's convolutions,
are outside.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear

from lbdn.bounds.enclosure import DOWNWARD, RECOMPUTED, UPWARD, accumulated, norm_of_sizes, unit_roundoff


class LinearMap:
    """A linear map between batches, whose numbers are stored in some precision and given in float64.

    Attributes:
        terms: the number of products in an output.
    """

    terms: int

    def apply(self, x: Tensor) -> Tensor:
        """Return the outputs as exactly as float64 has them."""
        raise NotImplementedError

    def sizes(self, x: Tensor) -> Tensor:
        r"""Return :math:`|W| |x|`."""
        raise NotImplementedError

    def sizes_norm(self, rows: Tensor | None = None, columns: Tensor | None = None) -> float:
        r"""Return an upper bound of the norm of :math:`|W|`, its channels multiplied by weights."""
        raise NotImplementedError

    def relative_error(self, dtype: torch.dtype, more: int = 0) -> float:
        """Return e with errors of at most ``e * sizes(x)``, of ``more`` operations and of a recomputed W, too."""
        return accumulated(self.terms + 1 + RECOMPUTED + more, unit_roundoff(dtype))

    def run(self, x: Tensor, bias: Tensor | None, dtype: torch.dtype, more: int = 0) -> tuple[Tensor, Tensor]:
        r"""Return :math:`W x + b`, and a bound of the error of each of its numbers when it runs.

        With the relative error e of N roundings in a row, of which n sum up: :math:`\gamma_{N-n} + n u + n u \gamma_N`
        is e, so that what the partial sums' bound saves can be taken off.

        Args:
            x: ``(n, ...)``, float64.
            bias: one number a feature or channel.
            dtype: in which it runs.
            more: further rounded operations on each output.
        """
        y, sizes = plus(self.apply(x), bias), self.sizes(x)
        sizes = sizes if bias is None else sizes + by_channel(bias.abs(), sizes)
        half = self._half(dtype)
        lost = 4 * self.terms * torch.finfo(dtype).tiny  # to underflow
        return y, UPWARD * ((self.relative_error(dtype, more) - half) * sizes + half * y.abs() + lost)

    def spread(self, dtype: torch.dtype, norm: float, rows: Tensor | None = None, more: int = 0) -> float:
        """Return how much the norm of ``run``'s bound grows at most for an input that is one away.

        Args:
            dtype: in which the map runs.
            norm: an upper bound of the map's.
            rows: weights of the output channels in both norms.
            more: further rounded operations on each output.
        """
        half = self._half(dtype)
        return UPWARD * ((self.relative_error(dtype, more) - half) * self.sizes_norm(rows) + half * norm)

    def _half(self, dtype: torch.dtype) -> float:
        return DOWNWARD * self.terms * unit_roundoff(dtype) / 2


class Matrix(LinearMap):
    """A matrix ``(rows, columns)`` on vectors; on images, between all their pixels.

    Attributes:
        weight: the matrix, in float64.
        image: ``(channels, height, width)`` of the images that come out; None for vectors.
    """

    def __init__(self, weight: Tensor, image: Sequence[int] | None = None) -> None:
        self.weight, self.image, self.terms = weight.detach().double(), image, weight.shape[1]

    def apply(self, x: Tensor) -> Tensor:
        """Return W x."""
        return self._apply(self.weight, x)

    def sizes(self, x: Tensor) -> Tensor:
        """Return the sums of the products' sizes."""
        return self._apply(self.weight.abs(), x.abs())

    def sizes_norm(self, rows: Tensor | None = None, columns: Tensor | None = None) -> float:
        """Return an upper bound of the norm of the map with the numbers' sizes."""
        return norm_of_sizes(weighted(self.weight, rows, columns))

    def _apply(self, weight: Tensor, x: Tensor) -> Tensor:
        return linear(x, weight) if self.image is None else linear(x.flatten(1), weight).view(-1, *self.image)


class Kernel(LinearMap):
    """A convolution with an odd kernel ``(rows, columns, k, k)``, zero-padded so that it keeps the image size."""

    def __init__(self, kernel: Tensor) -> None:
        self.kernel, self.terms = kernel.detach().double(), kernel[0].numel()

    def apply(self, x: Tensor) -> Tensor:
        """Return W x."""
        return conv2d(x, self.kernel, padding="same")

    def sizes(self, x: Tensor) -> Tensor:
        """Return the sums of the products' sizes."""
        return conv2d(x.abs(), self.kernel.abs(), padding="same")

    def sizes_norm(self, rows: Tensor | None = None, columns: Tensor | None = None) -> float:
        """Return an upper bound of the norm of the map with the numbers' sizes."""
        # Young's inequality: a kernel's norm is at most the sum of its entries' sizes.
        return norm_of_sizes(weighted(self.kernel.abs().sum(dim=(2, 3)), rows, columns))


def weighted(matrix: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Return a matrix with rows and columns multiplied by weights, of which one may stand for many pixels."""
    if rows is not None:
        matrix = rows.repeat_interleave(len(matrix) // len(rows))[:, None] * matrix
    if columns is not None:
        matrix = matrix * columns.repeat_interleave(matrix.shape[1] // len(columns))
    return matrix


def plus(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return the sum of a batch and one number a feature or channel."""
    return x if bias is None else x + by_channel(bias, x)


def by_channel(values: Tensor, like: Tensor) -> Tensor:
    """Return one value a channel (or feature) in a shape that goes with a batch."""
    return values[:, None, None] if like.dim() == 4 else values
