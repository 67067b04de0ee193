"""Upper bounds of Lipschitz constants by products of norms."""

import math

import torch
from torch import Tensor

from lbdn.explicit import explicit
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
