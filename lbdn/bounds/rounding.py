r"""Layers as they run: how far rounding moves their outputs, at a given input and at all inputs near it.

A network in floating point isn't the network of the theorem twice over. Its operators are rounded, so that
:math:`A A^T + B B^T = I` holds up to a residual; a layer's Lipschitz constant here is that of the stored numbers,
``scale`` times a :math:`1 + \delta`. And its sums are rounded, which no Lipschitz constant bounds: a step here bounds
the norm of the difference between a layer's computed output and its exact one, for an input that both get. In terms of
the unit roundoff u, all these bounds grow at least in proportion.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lbdn.bounds.enclosure import RECOMPUTED, UPWARD, accumulated, norms, unit_roundoff
from lbdn.bounds.maps import LinearMap

SCALED = 2  # roundings of a scaled input: of the constant and of the product
FACTORED = 3 + RECOMPUTED  # of hidden units' factors, recomputed, of their product, of the last difference


class Step:
    """A layer as it runs; this one moves numbers without changing them.

    Attributes:
        lipschitz: an upper Lipschitz bound of the exact map of the stored numbers.
        name: of the layer in the network; empty where several steps share one.
        size: height and width of the images that the layer's operators depend on; empty for others.
    """

    name = ""
    size: tuple[int, ...] = ()

    def __init__(self, layer: Callable[[Tensor], Tensor], lipschitz: float = 1.0) -> None:
        self.layer, self.lipschitz = layer, lipschitz

    def run(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the output as exactly as float64 has it, and a bound of the norm of its error in ``dtype``.

        Args:
            x: a batch, float64.
            dtype: in which the layer runs.
        """
        return self.layer(x), x.new_zeros(len(x))

    def spread(self, dtype: torch.dtype) -> float:
        """Return how much the bound of the error grows at most for an input that is one away."""
        return 0.0


class Entrywise(Step):
    """A few operations on each number: a scaling, a normalisation, a sum over the pixels of a block.

    Args:
        layer: linear but for a constant.
        lipschitz: its bound, and one of ``sizes``.
        operations: how many roundings an output goes through.
        sizes: what they are relative to.
    """

    def __init__(
        self,
        layer: Callable[[Tensor], Tensor],
        lipschitz: float,
        operations: int,
        sizes: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(layer, lipschitz * UPWARD)
        self.operations, self.sizes = operations, sizes

    def run(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the exact output and a bound of its error in ``dtype``."""
        relative, lost = accumulated(self.operations, unit_roundoff(dtype)), self.operations * torch.finfo(dtype).tiny
        return self.layer(x), UPWARD * norms(relative * self.sizes(x) + lost)

    def spread(self, dtype: torch.dtype) -> float:
        """Return how much the bound grows at most for an input that is one away."""
        return UPWARD * accumulated(self.operations, unit_roundoff(dtype)) * self.lipschitz


class Affine(Step):
    """A linear map and a bias, perhaps ReLU."""

    def __init__(self, linear_map: LinearMap, bias: Tensor | None, activated: bool, lipschitz: float) -> None:
        self.map, self.bias, self.activated, self.lipschitz = linear_map, bias, activated, lipschitz

    def run(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the exact output and a bound of its error in ``dtype``."""
        y, error = self.map.run(x, self.bias, dtype, self.lipschitz)
        return y.relu() if self.activated else y, error

    def spread(self, dtype: torch.dtype) -> float:
        """Return how much the bound grows at most for an input that is one away."""
        return self.map.spread(dtype, self.lipschitz)


class Sandwich(Step):
    r""":math:`V \sigma(U x + b)`, the hidden units' errors measured in the norm of :math:`\Psi`.

    Args:
        inner: U.
        outer: V.
        bias: b.
        psi: the diagonal of Psi.
        lipschitz: of the whole.
        outer_norm: a bound of the norm of :math:`V \Psi^{-1}`; times ``lipschitz``, one of :math:`\Psi U`.
    """

    def __init__(
        self, inner: LinearMap, outer: LinearMap, bias: Tensor | None, psi: Tensor, lipschitz: float, outer_norm: float
    ) -> None:
        self.inner, self.outer, self.bias, self.psi = inner, outer, bias, psi
        self.lipschitz, self.outer_norm, self.inner_norm = lipschitz, outer_norm, UPWARD * lipschitz * outer_norm

    def run(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the exact output and a bound of its error in ``dtype``."""
        hidden, inside = self.inner.run(x, self.bias, dtype, self.inner_norm, rows=self.psi)
        y, outside = self.outer.run(hidden.relu(), None, dtype, self.outer_norm, columns=self.psi)
        return y, UPWARD * (self._through(dtype) * inside + outside)

    def spread(self, dtype: torch.dtype) -> float:
        """Return how much the bound grows at most for an input that is one away."""
        inside = self.inner.spread(dtype, self.inner_norm, rows=self.psi)
        through = self._through(dtype)
        return UPWARD * (through * inside + (through - self.outer_norm) * self.inner_norm)

    def _through(self, dtype: torch.dtype) -> float:
        """Return what an error of the hidden units becomes, with the larger error of running V on them."""
        return UPWARD * (self.outer_norm + self.outer.spread(dtype, self.outer_norm, columns=self.psi))


class Residual(Step):
    r""":math:`x' - V \sigma(W x' + b)` with :math:`x' = s x`, the hidden units' errors in the norm of :math:`S^{1/2}`.

    Args:
        inner: W.
        outer: V.
        bias: b.
        roots: the diagonal of :math:`S^{1/2}`, with :math:`V \approx W^T S`.
        scale: s.
        lipschitz: of the map of x'.
        outer_norm: a bound of the norms of :math:`V S^{-1/2}` and :math:`S^{1/2} W`.
    """

    def __init__(
        self,
        inner: LinearMap,
        outer: LinearMap,
        bias: Tensor | None,
        roots: Tensor,
        scale: float,
        lipschitz: float,
        outer_norm: float,
    ) -> None:
        self.inner, self.outer, self.bias, self.roots = inner, outer, bias, roots
        self.scale, self.unscaled, self.outer_norm = scale, lipschitz, outer_norm
        self.lipschitz = scale * lipschitz * UPWARD

    def run(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the exact output and a bound of its error in ``dtype``."""
        x, unit = self.scale * x, unit_roundoff(dtype)
        hidden, inside = self.inner.run(x, self.bias, dtype, self.outer_norm, SCALED, rows=self.roots)
        removed, outside = self.outer.run(hidden.relu(), None, dtype, self.outer_norm, FACTORED, columns=self.roots)
        copied = self._copied(unit) * norms(x.abs() + torch.finfo(dtype).tiny / unit)
        return x - removed, UPWARD * (self._through(dtype) * inside + outside + copied)

    def spread(self, dtype: torch.dtype) -> float:
        """Return how much the bound grows at most for an input that is one away."""
        inside = self.inner.spread(dtype, self.outer_norm, SCALED, rows=self.roots)
        through = self._through(dtype)
        own = through * inside + (through - self.outer_norm) * self.outer_norm
        return UPWARD * self.scale * (own + self._copied(unit_roundoff(dtype)))

    def _through(self, dtype: torch.dtype) -> float:
        """Return what an error of the hidden units becomes, with the larger error of running V on them."""
        return UPWARD * (self.outer_norm + self.outer.spread(dtype, self.outer_norm, FACTORED, columns=self.roots))

    def _copied(self, unit: float) -> float:
        """Return the relative error of the scaled input, at both places where it goes."""
        return self.unscaled * accumulated(SCALED, unit) + 2 * unit
