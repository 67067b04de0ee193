"""Bounds of Lipschitz constants: lower ones by search, upper ones by norms, by the LMI and of what runs in floats."""

from lbdn.bounds.lipsdp import lipsdp
from lbdn.bounds.lmi import lmi_blocks, lmi_certificate, lmi_matrix, with_slack
from lbdn.bounds.lower import LowerBound, empirical_lower_bound, layer_lower_bounds
from lbdn.bounds.pairs import pair_bounds
from lbdn.bounds.sound import SoundNetwork, plain_sums
from lbdn.bounds.upper import layer_norms, spectral_product, weighted_norms

__all__ = [
    "LowerBound",
    "SoundNetwork",
    "empirical_lower_bound",
    "layer_lower_bounds",
    "layer_norms",
    "lipsdp",
    "lmi_blocks",
    "lmi_certificate",
    "lmi_matrix",
    "pair_bounds",
    "plain_sums",
    "spectral_product",
    "weighted_norms",
    "with_slack",
]
