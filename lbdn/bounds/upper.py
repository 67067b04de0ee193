"""Upper bounds of Lipschitz constants by products of norms, and the explicit weights behind them."""

import copy
import math

import torch
from torch import Tensor, nn

from lbdn.cayley import cayley
from lbdn.layers import (
    AolFc,
    AolLin,
    OrthogonalFc,
    OrthogonalLin,
    PlainFc,
    PlainLin,
    SandwichFc,
    SandwichLin,
)
from lbdn.layers.base import exponential, weight_normalized
from lbdn.networks import Network


def explicit_weights(network: Network) -> list[Tensor] | None:
    r"""Return :math:`W_0, \dots, W_L` of a fully connected network ``W_L relu(... W_0 x + b_0 ...) + b_L``.

    For Sandwich layers :math:`W_k = 2 \Psi_k^{-1} B_k A_{k-1}^T \Psi_{k-1}` between
    :math:`W_0 = \sqrt{2\gamma}\, \Psi_0^{-1} B_0` and :math:`W_L = \sqrt{2\gamma}\, B_L A_{L-1}^T \Psi_{L-1}`; for
    other layers the matrix that multiplies the input.

    Returns:
        The matrices in float64; None for a network with other layers, such as convolutions or residual blocks.

    Source: Wang and Manchester (2023), equation of the weights; the readings of its end scalings are the ones that
    agree with the network in layer form.
    """
    weights: list[Tensor] = []
    pending: Tensor | None = None  # sqrt(2) A^T Psi of the Sandwich layer before
    for layer in copy.deepcopy(network).double().body:
        if isinstance(layer, nn.Flatten):
            continue
        if isinstance(layer, SandwichFc | SandwichLin):
            A_star, B_star = cayley(weight_normalized(layer.stacked, layer.gain))
            weight = layer.scale * B_star.mT
            following = None
            if isinstance(layer, SandwichFc):
                psi = exponential(layer.log_psi)
                weight = math.sqrt(2) * weight / psi[:, None]
                following = math.sqrt(2) * A_star * psi
        elif isinstance(layer, AolFc | AolLin | OrthogonalFc | OrthogonalLin):
            weight, following = layer.operators()[0], None
        elif isinstance(layer, PlainFc | PlainLin):
            weight, following = layer.scale * layer.weight, None
        else:
            return None
        weights.append((weight if pending is None else weight @ pending).detach())
        pending = following
    return weights


def layer_norms(weights: list[Tensor]) -> list[float]:
    """Return the spectral norm of each matrix."""
    return [float(torch.linalg.matrix_norm(weight, 2)) for weight in weights]


def spectral_product(network: Network) -> float | None:
    """Return the product of the spectral norms of the weights, an upper Lipschitz bound of any fully connected network.

    From normalised input. It is loose; for Sandwich networks it can be far above gamma.

    Returns:
        The bound; None for a network with convolutions or residual blocks.
    """
    weights = explicit_weights(network)
    return None if weights is None else math.prod(layer_norms(weights))
