"""Half precision, in which no operator is computed: neither under autocast nor from parameters of it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off, for a type of device; none where it is off already."""
    off = device == "meta" or not torch.is_autocast_enabled(device)
    return nullcontext() if off else torch.autocast(device, enabled=False)


def at_least_single(x: Tensor) -> Tensor:
    """Return a tensor, in float32 if it is in half precision."""
    return x.float() if x.dtype in HALF else x
