"""Lipschitz-bounded deep networks by direct parameterization (Wang and Manchester, ICML 2023)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lbdn.networks import build_network
    from lbdn.runs import load_run

__all__ = ["build_network", "load_run"]
_HOMES = {"build_network": "lbdn.networks", "load_run": "lbdn.runs"}


def __getattr__(name: str) -> Any:
    """Import PyTorch with the first name that needs it: ``lbdn.verify`` runs without."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
