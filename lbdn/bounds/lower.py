"""Empirical lower bounds of Lipschitz constants: the best ratio that a search over pairs of points finds."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from lbdn.layers import freeze
from lbdn.layers.base import Layer
from lbdn.networks import Network


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
    restarts: int = 10,
    steps: int = 200,
    pairs: int = 64,
    radius: float = 0.05,
    learning_rate: float = 0.1,
    seed: int = 0,
) -> LowerBound:
    r"""Return an empirical lower bound of a network's Lipschitz constant.

    Gradient ascent by Adam on :math:`\log \|f(x + \delta) - f(x)\| - \log \|\delta\|` over x and delta, for pairs that
    start at given inputs, without any constraint on where they go. Each restart begins at other inputs; every second
    one with differences a tenth as long. The learning rate falls to a hundredth within a restart. All in float64: in
    float32 the rounding of close pairs would look like slope. The best ratio that any pair ever had is the result,
    evaluated once more at the pair that is returned. The network, the inputs, their gradients, modes
    and the global random state stay as they were.

    Args:
        network: of which the constant is sought.
        inputs: ``(n, ...)``, where pairs start; drawn with replacement.
        restarts: of the search.
        steps: of gradient ascent in a restart.
        pairs: searched at once.
        radius: standard deviation of each coordinate of a starting difference, in input units.
        learning_rate: of Adam at the start, relative to ``radius``.
        seed: of the draws.

    Raises:
        ValueError: if there are no inputs, or no pair has a finite ratio.

    Source: Wang and Manchester (2023), section on training details, "PGD-like method".
    """
    if not len(inputs):
        raise ValueError("the search for a lower bound needs at least one input to start from")
    device = inputs.device
    frozen = freeze(copy.deepcopy(network).double())
    generator = torch.Generator().manual_seed(seed)
    best: LowerBound | None = None
    for restart in tqdm(range(restarts), "lower bound", disable=None, leave=False):
        chosen = torch.randint(len(inputs), (pairs,), generator=generator)
        start = inputs.detach()[chosen.to(device)].double()
        # Steep places may be thin: half of the restarts begin with differences a tenth as long.
        length = radius * (0.1 if restart % 2 else 1.0)
        direction = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start)
        with torch.enable_grad():
            x1, x2 = _ascend(frozen, start, length * direction, steps, learning_rate * length)
        with torch.no_grad():
            ratios = _ratio(frozen, x1, x2)
        index = int(torch.where(ratios.isfinite(), ratios, -torch.inf).argmax())
        if ratios[index].isfinite() and (best is None or ratios[index] > best.ratio):
            best = LowerBound(float(ratios[index]), x1[index], x2[index])
    if best is None:
        raise ValueError("the search for a lower bound found no pair with a finite ratio")
    return best


def layer_lower_bounds(network: Network, inputs: Tensor, **search: Any) -> list[float]:
    """Return for each bounded layer of a network an empirical lower bound over its ``scale``, its upper bound.

    Args:
        network: whose layers are taken one by one.
        inputs: of the network; each layer's search starts from what reaches it.
        **search: arguments of ``empirical_lower_bound``.
    """
    result = []
    x = inputs if network.normalization is None else network.normalization(inputs)
    for layer in network.body:
        if isinstance(layer, Layer):
            result.append(empirical_lower_bound(layer, x, **search).ratio / layer.scale)
        with torch.no_grad():
            x = layer(x)
    return result


def _ascend(
    function: Callable[[Tensor], Tensor], x: Tensor, delta: Tensor, steps: int, learning_rate: float
) -> tuple[Tensor, Tensor]:
    """Return for each pair the two points at which its ratio was largest."""
    x, delta = x.requires_grad_(True), delta.requires_grad_(True)
    optimizer = torch.optim.Adam([x, delta], lr=learning_rate)
    best = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
    x1, x2 = x.detach().clone(), (x + delta).detach()
    for step in range(steps + 1):
        ratios = _ratio(function, x, x + delta)
        better = ratios.detach() > best
        best[better] = ratios.detach()[better]
        x1[better], x2[better] = x.detach()[better], (x + delta).detach()[better]
        if step == steps:
            break
        optimizer.param_groups[0]["lr"] = learning_rate * 0.01 ** (step / steps)
        loss = -torch.log(ratios.clamp_min(torch.finfo(x.dtype).tiny)).sum()
        x.grad, delta.grad = torch.autograd.grad(loss, (x, delta))
        optimizer.step()
    return x1, x2


def _ratio(function: Callable[[Tensor], Tensor], x1: Tensor, x2: Tensor) -> Tensor:
    rise = (function(x2) - function(x1)).flatten(1).norm(dim=1)
    run = (x2 - x1).flatten(1).norm(dim=1)
    return rise / run
