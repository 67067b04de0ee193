"""Bounds of Lipschitz constants: lower ones by search, upper ones by products of norms."""

from lbdn.bounds.lower import LowerBound, empirical_lower_bound, layer_lower_bounds
from lbdn.bounds.upper import explicit_weights, layer_norms, spectral_product

__all__ = [
    "LowerBound",
    "empirical_lower_bound",
    "explicit_weights",
    "layer_lower_bounds",
    "layer_norms",
    "spectral_product",
]
