"""Half precision, in which no bound holds: what autocast must leave alone."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

HALF = (torch.bfloat16, torch.float16)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off, for a type of device; none where it is off already."""
    off = device == "meta" or not torch.is_autocast_enabled(device)
    return nullcontext() if off else torch.autocast(device, enabled=False)
