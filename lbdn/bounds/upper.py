"""Upper bounds of Lipschitz constants by products of norms, and of differences of outputs by the last layer's rows."""

import copy
import math

import torch
from torch import Tensor

from lbdn.cayley import cayley
from lbdn.explicit import Explicit, direct, explicit
from lbdn.layers import AolLin, OrthogonalLin, SandwichFc, SandwichLin
from lbdn.layers.base import Activated, exponential, weight_normalized
from lbdn.layers.frozen import Frozen
from lbdn.networks import Network


def layer_norms(weights: list[Tensor]) -> list[float]:
    """Return the spectral norm of each matrix."""
    return [float(torch.linalg.matrix_norm(weight, 2)) for weight in weights]


def spectral_product(network: Network) -> float | None:
    """Return the product of the spectral norms of the weights, an upper Lipschitz bound of a fully connected network.

    From normalised input, for activations with slopes in [-1, 1]. It is loose: for Sandwich networks it can be far
    above gamma.

    Returns:
        The bound; None for a network with other layers than ``lbdn.explicit`` knows.
    """
    form = explicit(network)
    return None if form is None else math.prod(layer_norms(form.weights))


def pair_bounds(network: Network) -> Tensor | None:
    r"""Return upper Lipschitz bounds, from pixels, of the differences of outputs: never above ``network.pair_gamma()``.

    With a last layer W of scale s behind a :math:`\gamma/s`-Lipschitz body, the difference of outputs i and j is
    :math:`\tfrac{\gamma}{s} \|w_i - w_j\|`-Lipschitz. For any W of norm at most s that is at most
    :math:`\sqrt2 \gamma`, and less where its rows aren't orthogonal and of norm s.

    Returns:
        float64, ``(outputs, outputs)``; None for unconstrained networks.
    """
    bounds, last = network.pair_gamma(), network.body[-1]
    last = last.layer if isinstance(last, Frozen) else last
    if bounds is None or network.pixel_gamma is None:
        return bounds
    if not isinstance(last, AolLin | OrthogonalLin | SandwichLin) or isinstance(last, Activated):
        return bounds
    rows = copy.deepcopy(last).double().operators()[0].detach()
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.minimum(bounds.to(distances), network.pixel_gamma / last.scale * distances)


def weighted_norms(form: Explicit) -> list[float]:
    r"""Return the weighted spectral norms of a network's weights, whose product is an upper Lipschitz bound of it.

    :math:`\|\tfrac{1}{\sqrt2} B_0^+ \Psi_0 W_0\|`, then
    :math:`\|\tfrac12 B_k^+ \Psi_k W_k \Psi_{k-1}^{-1} (A_{k-1}^T)^+\|`, at last
    :math:`\|\tfrac{1}{\sqrt2} W_L \Psi_{L-1}^{-1} (A_{L-1}^T)^+\|`: where the multipliers prove gamma, at most
    :math:`\sqrt\gamma`, ones and :math:`\sqrt\gamma`. Sandwich networks have them, whatever their spectral norms.

    Args:
        form: a network with the multipliers that prove its gamma.

    Raises:
        ValueError: as ``lbdn.explicit.direct``, which finds :math:`A_k` and :math:`B_k`.

    Source: Wang and Manchester (2023), proposition on weighted spectral norm bounds, with :math:`B_k^+` throughout, as
    in its proof.
    """
    layers = [layer for layer in direct(form).body if isinstance(layer, SandwichFc)]
    norms: list[Tensor] = []
    before = torch.eye(0)
    for weight, layer in zip(form.weights[:-1], layers, strict=True):
        A_star, B_star = cayley(weight_normalized(layer.stacked.detach(), layer.gain.detach()))
        psi = exponential(layer.log_psi.detach())
        inner = torch.linalg.pinv(B_star.mT) @ (psi[:, None] * weight)
        norms.append(inner @ before / 2 if norms else inner / math.sqrt(2))
        before = torch.linalg.pinv(A_star) / psi[:, None]
    return layer_norms([*norms, form.weights[-1] @ before / math.sqrt(2)])
