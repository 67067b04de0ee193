"""Empirical lower bounds of Lipschitz constants: the best ratio that a search over pairs of points finds."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from lbdn.layers import freeze
from lbdn.layers.base import Layer, positive_size
from lbdn.layers.frozen import thawed
from lbdn.networks import Network

Function = Callable[[Tensor], Tensor]

ROUNDS = 5  # the last one with a sixteenth of the pairs
TURNS, LAST_TURNS = 4, 10  # of power iteration: to choose where to start, and to the end
BISECTIONS = 10  # to a thousandth of the length
SHORTEST = 1e-4  # difference that counts, over the radius ...
RELATIVE = 1e-7  # ... and over the largest coordinate: the ratio's rounding error is then about 1e-9


@dataclass(frozen=True)
class LowerBound:
    """A lower bound and its witness: ``ratio = |f(x2) - f(x1)| / |x2 - x1|`` in float64.

    Attributes:
        ratio: the lower bound.
        x1: float64, one input without the batch dimension.
        x2: likewise.
    """

    ratio: float
    x1: Tensor
    x2: Tensor


def empirical_lower_bound(
    network: nn.Module,
    inputs: Tensor,
    *,
    pairs: int = 128,
    steps: int = 9,
    radius: float = 0.15,
    learning_rate: float = 0.6,
    seed: int = 0,
) -> LowerBound:
    r"""Return an empirical lower bound of a network's Lipschitz constant.

    Pairs of points start at given inputs and go wherever their ratio :math:`\|f(x + \delta) - f(x)\| / \|\delta\|`
    grows. Power iteration turns each difference towards the steepest direction. Then Adam ascends the ratio's
    logarithm over x and delta; the better half of the pairs goes on for twice as many steps, and so on, so that
    each of the five rounds takes ``2 * pairs * steps`` forward passes. The segment between two points holds one
    that is at least as steep: bisection finds it, and power iteration there ends, where the network is piecewise
    linear, at the spectral norm of its Jacobian. The rounding of close pairs would look like slope: all is in
    float64, and pairs closer than a ten-thousandth of ``radius``, or a ten-millionth of the largest input, don't
    count. The best ratio that was found is the result, evaluated at the pair that is returned. The network, the
    inputs, their gradients, modes and the global random state stay as they were.

    Args:
        network: of which the constant is sought.
        inputs: ``(n, ...)``, where pairs start; drawn with replacement.
        pairs: searched at once.
        steps: of gradient ascent with all pairs.
        radius: standard deviation of each coordinate of a starting difference, in input units.
        learning_rate: of Adam at the start of a round, relative to ``radius``; it falls to a hundredth.
        seed: of the draws.

    Raises:
        ValueError: if there are no inputs or no pairs, or no pair that counts has a finite ratio.

    Source: gradient ascent over x and delta without a projection from Wang and Manchester (2023), section on training
    details, "PGD-like method"; halving the candidates from Jamieson and Talwalkar (2016).
    """
    if not len(inputs):
        raise ValueError("the search for a lower bound needs at least one input to start from")
    positive_size(pairs=pairs)
    frozen = freeze(copy.deepcopy(network).double())
    shortest = max(SHORTEST * radius, RELATIVE * float(inputs.detach().abs().max()))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(inputs), (pairs,), generator=generator)
    x1 = inputs.detach()[chosen.to(inputs.device)].double()
    delta = radius * torch.randn(x1.shape, generator=generator, dtype=torch.float64).to(x1)
    x2 = x1 + _steepest(frozen, x1, delta, TURNS)
    for halving in tqdm(range(ROUNDS), "lower bound", disable=None, leave=False):
        x1, x2, ratios = _ascend(frozen, x1, x2, steps * 2**halving, learning_rate * radius, shortest)
        better = ratios.argsort(descending=True)[: max(1, len(ratios) // 2)]
        x1, x2 = x1[better], x2[better]
    near1, near2 = _bisect(frozen, x1, x2, shortest)
    steep = near1 + _steepest(frozen, near1, near2 - near1, LAST_TURNS)
    x1, x2 = torch.cat([x1, near1, near1]), torch.cat([x2, near2, steep])
    with torch.no_grad():
        ratios = _ratio(frozen, x1, x2)
    long = _norm(x2 - x1).flatten() >= shortest / 2
    ratios = torch.where(ratios.isfinite() & long, ratios, -torch.inf)
    best = int(ratios.argmax())
    if not ratios[best].isfinite():
        raise ValueError(
            f"the search for a lower bound found no pair with a finite ratio, {shortest:.3g} or more apart, as inputs "
            f"of this size ask for; raise radius, now {radius:g}, or check the network"
        )
    return LowerBound(float(ratios[best]), x1[best], x2[best])


def layer_lower_bounds(network: Network, inputs: Tensor, **search: Any) -> list[float]:
    """Return for each bounded layer of a network an empirical lower bound over its ``scale``, its upper bound.

    Args:
        network: whose layers are taken one by one.
        inputs: of the network; each layer's search starts from what reaches it.
        **search: arguments of ``empirical_lower_bound``.
    """
    result = []
    x = inputs if network.normalization is None else network.normalization(inputs)
    for module in network.body:
        layer = thawed(module)
        if isinstance(layer, Layer):
            result.append(empirical_lower_bound(layer, x, **search).ratio / layer.scale)
        with torch.no_grad():
            x = module(x)
    return result


def _steepest(function: Function, x: Tensor, delta: Tensor, turns: int) -> Tensor:
    """Return differences of the same lengths, turned by power iteration towards where the function rises most.

    The gradient of half the squared rise is ``J^T (f(x + delta) - f(x))``, and ``J^T J delta`` within a linear region.
    """
    with torch.no_grad():
        y = function(x)
    length = _norm(delta)
    for _ in range(turns):
        with torch.enable_grad():
            delta = delta.requires_grad_(True)
            energy = (function(x + delta) - y).square().sum() / 2
            (gradient,) = torch.autograd.grad(energy, delta)
        size = _norm(gradient)
        delta = torch.where(size > 0, length * gradient / size, delta.detach())
    return delta.detach()


def _ascend(
    function: Function, x1: Tensor, x2: Tensor, steps: int, learning_rate: float, shortest: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each pair the two points at which its ratio was largest, and that ratio; -inf if none was finite."""
    x, delta = x1.clone().requires_grad_(True), (x2 - x1).requires_grad_(True)
    optimizer = torch.optim.Adam([x, delta], lr=learning_rate)
    best = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
    for step in range(steps):
        with torch.enable_grad():
            ends = x + delta
            ratios = _ratio(function, x, ends)
            loss = -torch.log(ratios.clamp_min(torch.finfo(x.dtype).tiny)).sum()
        found = ratios.detach()
        better = found.isfinite() & (found > best) & (_norm(delta.detach()).flatten() >= shortest)
        best = torch.where(better, found, best)
        x1, x2 = x1.clone(), x2.clone()
        x1[better], x2[better] = x.detach()[better], ends.detach()[better]
        optimizer.param_groups[0]["lr"] = learning_rate * 0.01 ** (step / steps)
        x.grad, delta.grad = torch.autograd.grad(loss, (x, delta))
        optimizer.step()
    return x1, x2, best


@torch.no_grad()
def _bisect(function: Function, x1: Tensor, x2: Tensor, shortest: float) -> tuple[Tensor, Tensor]:
    """Return the ends of a piece of each segment, at least as steep as the whole, and no shorter than ``shortest``.

    By the triangle inequality one half of a segment is at least as steep as both together.
    """
    y1, y2 = function(x1), function(x2)
    for _ in range(BISECTIONS):
        middle = (x1 + x2) / 2
        y = function(middle)
        long = _norm(x2 - x1).flatten() >= 2 * shortest
        first = _norm(y - y1).flatten() > _norm(y2 - y).flatten()
        x1, y1 = _where(long & ~first, middle, x1), _where(long & ~first, y, y1)
        x2, y2 = _where(long & first, middle, x2), _where(long & first, y, y2)
    return x1, x2


def _ratio(function: Function, x1: Tensor, x2: Tensor) -> Tensor:
    y1, y2 = function(torch.cat([x1, x2])).chunk(2)
    return _norm(y2 - y1).flatten() / _norm(x2 - x1).flatten()


def _norm(x: Tensor) -> Tensor:
    """Return the norm of each example, shaped to divide the examples by."""
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())), keepdim=True)


def _where(condition: Tensor, x: Tensor, other: Tensor) -> Tensor:
    return torch.where(condition.view(-1, *[1] * (x.dim() - 1)), x, other)
