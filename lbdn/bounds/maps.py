r"""Linear maps as their stored numbers define them: exact values in float64, and error bounds of running them.

In a sum of n products, in any order, with or without fused multiply-add, each product and each of the partial sums is
rounded (Higham 2002, section 4.2). A partial sum is one over a subset of the terms, in size at most half of
:math:`\sum |w_i x_i|` and of :math:`|\sum w_i x_i|` together, which is why the bounds here are half of the usual
:math:`\gamma_n \sum |w_i x_i|` where terms cancel. Algorithms that don't sum products, such as Winograd's convolutions,
are outside.

Norms are weighted: a map's ``rows`` multiply the channels (or features) of its output, ``columns`` those of its input.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear

from lbdn.bounds.enclosure import DOWNWARD, RECOMPUTED, UNIT, UPWARD, accumulated, norm_of_sizes, norms, unit_roundoff
from lbdn.circular import from_frequency, images_of, space_first, to_frequency


class LinearMap:
    """A linear map between batches, whose numbers are stored in some precision and given in float64."""

    def run(
        self,
        x: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        norm: float,
        more: int = 0,
        *,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        r"""Return :math:`W x + b` as exactly as float64 has it, and a bound of the weighted norm of its error.

        Args:
            x: ``(n, ...)``, float64.
            bias: one number a feature or channel.
            dtype: in which it runs. A W that has been computed on another machine is covered, too.
            norm: an upper bound of the map's norm, from inputs to outputs as they are weighted.
            more: further rounded operations on each output.
            rows: weights of outputs.
            columns: weights of inputs.

        Returns:
            The outputs, and ``(n,)``.
        """
        raise NotImplementedError

    def spread(
        self,
        dtype: torch.dtype,
        norm: float,
        more: int = 0,
        *,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> float:
        """Return how much ``run``'s bound of the error grows at most for an input that is one away, as weighted."""
        raise NotImplementedError


class SummedMap(LinearMap):
    """A map whose every output is one sum of products.

    Attributes:
        terms: how many.
    """

    terms: int

    def apply(self, x: Tensor) -> Tensor:
        """Return W x."""
        raise NotImplementedError

    def sizes(self, x: Tensor) -> Tensor:
        """Return the sums of the products' sizes."""
        raise NotImplementedError

    def sizes_norm(self, rows: Tensor | None, columns: Tensor | None) -> float:
        """Return an upper bound of the weighted norm of the map with the numbers' sizes."""
        raise NotImplementedError

    def run(
        self,
        x: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        norm: float,
        more: int = 0,
        *,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the exact output and a bound of its error's norm: see ``LinearMap``."""
        y, sizes = plus(self.apply(x), bias), self.sizes(x)
        sizes = sizes if bias is None else sizes + by_channel(bias.abs(), sizes)
        whole, half = sum_errors(self.terms, dtype, more)
        lost = 4 * self.terms * torch.finfo(dtype).tiny  # to underflow
        error = (whole - half) * sizes + half * y.abs() + lost
        return y, UPWARD * norms(times(rows, error))

    def spread(
        self,
        dtype: torch.dtype,
        norm: float,
        more: int = 0,
        *,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> float:
        """Return how much the bound grows: see ``LinearMap``."""
        whole, half = sum_errors(self.terms, dtype, more)
        return UPWARD * ((whole - half) * self.sizes_norm(rows, columns) + half * norm)


class Matrix(SummedMap):
    """A matrix ``(rows, columns)`` on vectors.

    Attributes:
        weight: the matrix, in float64.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.terms = weight.detach().double(), weight.shape[1]

    def apply(self, x: Tensor) -> Tensor:
        """Return W x."""
        return linear(x, self.weight)

    def sizes(self, x: Tensor) -> Tensor:
        """Return the sums of the products' sizes."""
        return linear(x.abs(), self.weight.abs())

    def sizes_norm(self, rows: Tensor | None, columns: Tensor | None) -> float:
        """Return an upper bound of the weighted norm of the map with the numbers' sizes."""
        return norm_of_sizes(weighted(self.weight, rows, columns))


class Kernel(SummedMap):
    """A convolution with an odd kernel ``(rows, columns, k, k)``, zero-padded so that it keeps the image size."""

    def __init__(self, kernel: Tensor) -> None:
        self.kernel, self.terms = kernel.detach().double(), kernel[0].numel()

    def apply(self, x: Tensor) -> Tensor:
        """Return W x."""
        return conv2d(x, self.kernel, padding="same")

    def sizes(self, x: Tensor) -> Tensor:
        """Return the sums of the products' sizes."""
        return conv2d(x.abs(), self.kernel.abs(), padding="same")

    def sizes_norm(self, rows: Tensor | None, columns: Tensor | None) -> float:
        """Return an upper bound of the weighted norm of the map with the numbers' sizes, by Young's inequality."""
        return norm_of_sizes(weighted(self.kernel.abs().sum(dim=(2, 3)), rows, columns))


class Spectral(LinearMap):
    """A circular convolution by products with real matrices: of the transform, of each frequency, of its inverse.

    The transform keeps norms, and those of channels with their weights, so its own errors are bounded by norms.

    Args:
        matrices: ``(F, 2 rows, 2 columns)``, on real and imaginary parts, as ``lbdn.circular.convolve`` takes them.
        height: of the images, in pixels.
        width: of the images, in pixels.
    """

    def __init__(self, matrices: Tensor, height: int, width: int) -> None:
        self.matrices, self.size = matrices.detach().double(), (height, width)

    def run(
        self,
        x: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        norm: float,
        more: int = 0,
        *,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the exact output and a bound of its error's norm: see ``LinearMap``."""
        spectrum = to_frequency(space_first(x)).flatten(1, 2)
        product = self.matrices @ spectrum
        y = images_of(from_frequency(product.unflatten(1, (2, -1)), *self.size))
        transform, last = self._transform(dtype), accumulated(1 + more, unit_roundoff(dtype))
        whole, half = sum_errors(spectrum.shape[1], dtype)
        before = transform * norms(times(columns, x))
        error = (whole - half) * (self.matrices.abs() @ spectrum.abs()) + half * product.abs()
        both = None if rows is None else torch.cat([rows, rows])[:, None]
        inside = norms((error if both is None else both * error).movedim(-1, 0))
        inside = inside + (norm + whole * self._sizes_norm(rows, columns)) * before
        size = norms(times(rows, y))
        inside = inside + transform * (size + inside)
        y = plus(y, bias)
        weights = [float(part.max()) for part in (rows, columns) if part is not None]
        count = (x[0].numel() + y[0].numel()) * (sum(self.size) + self.matrices.shape[2])
        lost = 4 * count * (1 + norm) * max([1.0, *weights]) * torch.finfo(dtype).tiny  # to underflow
        return y, UPWARD * (inside * (1 + last) + last * norms(times(rows, y)) + lost)

    def spread(
        self,
        dtype: torch.dtype,
        norm: float,
        more: int = 0,
        *,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> float:
        """Return how much the bound grows: see ``LinearMap``."""
        transform, last = self._transform(dtype), accumulated(1 + more, unit_roundoff(dtype))
        whole, half = sum_errors(self.matrices.shape[2], dtype)
        sizes = self._sizes_norm(rows, columns)
        inside = (whole - half) * sizes + half * norm + (norm + whole * sizes) * transform
        inside = inside + transform * (norm + inside)
        return UPWARD * (inside * (1 + last) + last * norm)

    def _sizes_norm(self, rows: Tensor | None, columns: Tensor | None) -> float:
        twice = [None if part is None else torch.cat([part, part]) for part in (rows, columns)]
        return max(norm_of_sizes(weighted(matrix, *twice)) for matrix in self.matrices)

    def _transform(self, dtype: torch.dtype) -> float:
        """Return the relative error of the transform, and of its inverse: of two products and one sum."""
        both = [self._direction(size, dtype) for size in self.size]
        return UPWARD * ((1 + both[0]) * (1 + both[1]) * (1 + unit_roundoff(dtype)) - 1)

    @staticmethod
    def _direction(size: int, dtype: torch.dtype) -> float:
        """Return the relative error of the products with an orthonormal basis of waves, whose numbers are rounded.

        A wave's numbers are at most the root of 2 / size and, before they are rounded, off by 32 units of float64 of
        that at most: their angles, below two pi, by less than four units relatively.
        """
        whole, half = sum_errors(size, dtype)
        return (whole - half) * math.sqrt(size) + half + 32 * UNIT * math.sqrt(2 * size)


def sum_errors(terms: int, dtype: torch.dtype, more: int = 0) -> tuple[float, float]:
    r"""Return e and h: a sum of products is off by at most e - h times their sizes, and h times its own size.

    The terms go through N = ``terms`` + 1 + ``RECOMPUTED`` + ``more`` roundings at most, n of them in partial sums:
    with :math:`\gamma_{N-n} + n u + n u \gamma_N = \gamma_N = e`, what the bound of the partial sums saves of
    :math:`n u` can be taken off.
    """
    unit = unit_roundoff(dtype)
    return accumulated(terms + 1 + RECOMPUTED + more, unit), DOWNWARD * terms * unit / 2


def weighted(matrix: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Return the matrix between inputs and outputs that have been multiplied by weights: rows times, columns over."""
    if rows is not None:
        matrix = rows[:, None] * matrix
    if columns is not None:
        matrix = torch.where(columns > 0, matrix / columns, 0)
    return matrix


def times(weights: Tensor | None, x: Tensor) -> Tensor:
    """Return a batch with each feature or channel multiplied by its weight."""
    return x if weights is None else by_channel(weights, x) * x


def plus(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return the sum of a batch and one number a feature or channel."""
    return x if bias is None else x + by_channel(bias, x)


def by_channel(values: Tensor, like: Tensor) -> Tensor:
    """Return one value a channel (or feature) in a shape that goes with a batch."""
    return values[:, None, None] if like.dim() == 4 else values
