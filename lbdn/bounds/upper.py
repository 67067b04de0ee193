"""Upper bounds of Lipschitz constants by products of norms, and the explicit weights behind them."""

import copy
import math

import torch
from torch import Tensor, nn

from lbdn.layers import (
    AolLin,
    OrthogonalLin,
    PlainLin,
    SandwichFc,
    SandwichLin,
)
from lbdn.networks import Network


def explicit_weights(network: Network) -> list[Tensor] | None:
    r"""Return :math:`W_0, \dots, W_L` of a network :math:`W_L \sigma(\dots \sigma(W_0 x + b_0) \dots) + b_L`.

    For Sandwich layers :math:`W_k = 2 \Psi_k^{-1} B_k A_{k-1}^T \Psi_{k-1}` between
    :math:`W_0 = \sqrt{2\gamma}\, \Psi_0^{-1} B_0` and :math:`W_L = \sqrt{2\gamma}\, B_L A_{L-1}^T \Psi_{L-1}`; for
    other layers the matrix that multiplies the input.

    Returns:
        The matrices in float64; None for a network with other layers than those of the built-in families'
        fully connected networks, such as convolutions or residual blocks.

    Source: Wang and Manchester (2023), equation of the weights; the readings of its end scalings are the ones that
    agree with the network in layer form.
    """
    weights: list[Tensor] = []
    pending: Tensor | None = None  # sqrt(2) A^T Psi of the Sandwich layer before
    for layer in copy.deepcopy(network).double().body:
        if isinstance(layer, nn.Flatten):
            continue
        if not isinstance(layer, SandwichFc | SandwichLin | OrthogonalLin | AolLin | PlainLin):
            return None
        weight, *following = layer.operators()
        weights.append((weight if pending is None else weight @ pending).detach())
        pending = following[0] if following else None
    return weights


def layer_norms(weights: list[Tensor]) -> list[float]:
    """Return the spectral norm of each matrix."""
    return [float(torch.linalg.matrix_norm(weight, 2)) for weight in weights]


def spectral_product(network: Network) -> float | None:
    """Return the product of the spectral norms of the weights, an upper Lipschitz bound of a fully connected network.

    From normalised input, for activations with slopes in [-1, 1]. It is loose: for Sandwich networks it can be far
    above gamma.

    Returns:
        The bound; None for a network with other layers than ``explicit_weights`` knows.
    """
    weights = explicit_weights(network)
    return None if weights is None else math.prod(layer_norms(weights))
