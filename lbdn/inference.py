"""Predictions of a network for a whole data set."""

from typing import Any

import torch
from torch import Tensor, nn

from lbdn.layers import freeze


@torch.no_grad()
def predict(network: nn.Module, inputs: Tensor, batch_size: int = 1000) -> Tensor:
    """Return the outputs for all inputs, uint8 images or floats, in evaluation mode."""
    frozen = freeze(network)
    return torch.cat([frozen(as_input(batch)) for batch in inputs.split(batch_size)])


def as_input(batch: Tensor) -> Tensor:
    """Return uint8 pixels as floats on [0, 1]; floats as they are."""
    return batch.to(torch.get_default_dtype()) / 255 if batch.dtype == torch.uint8 else batch


def on_device(array: Any, device: torch.device | str) -> Tensor:
    """Return a memory-mapped array as a tensor of its own on a device."""
    return torch.tensor(array, device=device)
