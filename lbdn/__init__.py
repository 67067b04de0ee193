"""Lipschitz-bounded deep networks by direct parameterization (Wang and Manchester, ICML 2023)."""

from lbdn.networks import build_network
from lbdn.runs import load_run

__all__ = ["build_network", "load_run"]
