"""Upper bounds of Lipschitz constants by products of norms."""

import math

import torch
from torch import Tensor

from lbdn.cayley import cayley
from lbdn.explicit import Explicit, direct, explicit
from lbdn.layers import SandwichFc
from lbdn.layers.base import exponential, weight_normalized
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
