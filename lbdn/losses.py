"""Training losses, by name."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(temperature: float = 1.0, offset: float = 0.0) -> Loss:
    """Return cross-entropy with an offset on the true logit, ``temperature * CE((f - offset e_label) / temperature)``.

    Raises:
        ValueError: for a temperature that isn't positive, or an offset that isn't a number.

    Source: Prach and Lampert (2022); the paper uses temperature 0.25 and offset 3 sqrt(2) / 2.
    """
    if not _is_number(temperature) or temperature <= 0:
        raise ValueError(f"temperature takes a positive number, got {temperature!r}")
    if not _is_number(offset):
        raise ValueError(f"offset takes a number, got {offset!r}")

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        shifted = logits - offset * functional.one_hot(labels, logits.shape[1]).to(logits)
        return temperature * functional.cross_entropy(shifted / temperature, labels)

    return loss


def multi_margin(margin: float = 0.5) -> Loss:
    """Return the multi-class hinge loss. Source: Trockman and Kolter (2021) use margin 0.5."""
    if not _is_number(margin) or margin <= 0:
        raise ValueError(f"margin takes a positive number, got {margin!r}")
    return torch.nn.MultiMarginLoss(margin=margin)


def mean_squared_error() -> Loss:
    """Return the mean squared error."""
    return torch.nn.MSELoss()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


LOSSES: dict[str, Callable[..., Loss]] = {
    "cross-entropy": cross_entropy,
    "multi-margin": multi_margin,
    "mse": mean_squared_error,
}
