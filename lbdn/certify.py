"""Certified radii and accuracies from logits and a Lipschitz bound."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def certified_radius(logits: Tensor, labels: Tensor, gamma: float | Tensor | None) -> Tensor:
    r"""Return the l2 radius around each image within which no perturbation changes a correct prediction.

    The difference of two logits of a gamma-Lipschitz network is :math:`\sqrt2 \gamma`-Lipschitz, so the radius is
    :math:`\min_j (f_y - f_j) / (\sqrt2 \gamma)`; with Lipschitz bounds :math:`\gamma_{yj}` of each difference, as
    last-layer normalisation has them, it is :math:`\min_j (f_y - f_j) / \gamma_{yj}`. In float64.

    Args:
        logits: ``(n, classes)``.
        labels: int64, ``(n,)``.
        gamma: upper Lipschitz bound of the logits, from pixels in [0, 1]; or a matrix ``(classes, classes)`` with the
            bounds of the differences of logits, as ``Network.pair_gamma`` returns it.

    Returns:
        float64, ``(n,)``: radii in pixel units; zero for a wrong prediction, a tie, or logits that are not finite.

    Raises:
        ValueError: for logits or labels of other shapes or kinds, if there is no bound, or it isn't of one of the two
            shapes, positive and finite.

    Source: Tsuzuku et al. (2018); Singla et al. (2022) for the bound pair by pair.

    >>> certified_radius(torch.tensor([[3.0, 1.0], [1.0, 1.0]]), torch.tensor([0, 0]), 2.0)
    tensor([0.7071, 0.0000], dtype=torch.float64)
    """
    if gamma is None:
        raise ValueError("a network without a Lipschitz bound can't be certified; it takes one from a bounded family")
    if logits.dim() != 2:
        raise ValueError(f"logits take shape (n, classes), got {tuple(logits.shape)}")
    count, classes = logits.shape
    check_labels(labels, count, classes)
    logits = logits.detach().double()
    bound = torch.as_tensor(gamma, dtype=torch.float64, device=logits.device)
    if bound.dim() and bound.shape != (classes, classes):
        raise ValueError(f"gamma takes a number or a matrix {(classes, classes)}, got shape {tuple(bound.shape)}")
    pairs = bound[labels] if bound.dim() == 2 else (2**0.5 * bound).expand_as(logits)
    own = torch.nn.functional.one_hot(labels, classes).bool()
    if not (torch.isfinite(bound).all() and (bound >= 0).all() and (bound > 0).any()):
        raise ValueError(f"gamma takes positive, finite Lipschitz bounds, got {gamma}")
    margins = logits.gather(1, labels[:, None]) - logits
    # Equal rows of the last layer have a difference that is constant, of bound zero: a positive margin stays so.
    constant = torch.where(margins > 0, torch.inf, 0.0)
    radius = torch.where(pairs > 0, margins / pairs.where(pairs > 0, 1.0), constant)
    radius = radius.masked_fill(own, torch.inf).amin(dim=1)
    certified = torch.isfinite(logits).all(dim=1) & (radius > 0)
    return torch.where(certified, radius, 0.0)


def check_labels(labels: Tensor, count: int, classes: int) -> None:
    """Check the labels of a classifier's images.

    Raises:
        ValueError: for fewer than two classes, or labels that aren't int64, one an image, from 0 to ``classes - 1``.
    """
    if classes < 2:
        raise ValueError(f"a classifier has at least two classes, got {classes}")
    if labels.dtype != torch.int64 or labels.shape != (count,):
        raise ValueError(f"labels take int64 of shape ({count},), got {labels.dtype} of shape {tuple(labels.shape)}")
    if count and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"labels take 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}")


def certified_accuracy(radii: ArrayLike, eps: float) -> float:
    """Return the fraction of images whose certified radius is larger than ``eps``, in pixel units.

    >>> certified_accuracy([0.0, 0.1, 0.2, 0.3], 36 / 255)
    0.5
    """
    return float((np.asarray(radii, dtype=np.float64) > eps).mean())
