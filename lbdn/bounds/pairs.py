"""Upper Lipschitz bounds of the differences of outputs, by the rows of the last layer."""

import copy
import math

import torch
from torch import Tensor

from lbdn.layers import AolLin, OrthogonalLin, SandwichLin
from lbdn.layers.base import Activated
from lbdn.layers.constrained import ConstrainedLin
from lbdn.layers.frozen import thawed
from lbdn.networks import Network


def pair_bounds(network: Network) -> Tensor | None:
    r"""Return upper Lipschitz bounds, from pixels, of the differences of outputs: never above ``network.pair_gamma()``.

    With a last layer W of scale s behind a :math:`\gamma/s`-Lipschitz body, as gamma is the product of the layers'
    scales, the difference of outputs i and j is :math:`\tfrac{\gamma}{s} \|w_i - w_j\|`-Lipschitz. For any W of
    norm at most s that is at most :math:`\sqrt2 \gamma`, and less where its rows aren't orthogonal and of norm s.

    Returns:
        float64, ``(outputs, outputs)``; None for unconstrained networks.

    Raises:
        ValueError: for a module of another kind.
    """
    if not isinstance(network, Network):
        raise ValueError(f"pair_bounds takes a network of build_network or load_run, got {type(network).__name__}")
    bounds, layers = network.pair_gamma(), [thawed(module) for module in network.body]
    if bounds is None or network.gamma is None or network.pixel_gamma is None:
        return bounds
    last = layers[-1]
    if not math.isclose(math.prod(getattr(layer, "scale", 1.0) for layer in layers), network.gamma):
        return bounds  # gamma rests on something else than the layers' scales: nothing is known of the body alone
    if not isinstance(last, AolLin | ConstrainedLin | OrthogonalLin | SandwichLin) or isinstance(last, Activated):
        return bounds
    rows = copy.deepcopy(last).double().operators()[0].detach()
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.minimum(bounds.to(distances), network.pixel_gamma / last.scale * distances)
