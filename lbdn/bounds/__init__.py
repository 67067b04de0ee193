"""Bounds of Lipschitz constants: lower ones by search, upper ones by products of norms and by the LMI."""

from lbdn.bounds.lipsdp import lipsdp
from lbdn.bounds.lmi import lmi_blocks, lmi_matrix, with_slack
from lbdn.bounds.lower import LowerBound, empirical_lower_bound, layer_lower_bounds
from lbdn.bounds.upper import layer_norms, spectral_product

__all__ = [
    "LowerBound",
    "empirical_lower_bound",
    "layer_lower_bounds",
    "layer_norms",
    "lipsdp",
    "lmi_blocks",
    "lmi_matrix",
    "spectral_product",
    "with_slack",
]
