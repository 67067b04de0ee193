"""Layers with a guaranteed l2 Lipschitz bound, one family a file, and unconstrained ones to compare with."""

from lbdn.layers.aol import AolConv, AolFc, AolLin
from lbdn.layers.base import Family
from lbdn.layers.bcop import BcopConv, BcopFc, BcopLin
from lbdn.layers.cpl import CplConv, CplFc
from lbdn.layers.frozen import freeze
from lbdn.layers.lot import LotConv, LotFc, LotLin
from lbdn.layers.normalization import InputNormalization, LastLayerNormalization
from lbdn.layers.orthogonal import OrthogonalConv, OrthogonalFc, OrthogonalLin
from lbdn.layers.plain import PlainConv, PlainFc, PlainLin
from lbdn.layers.sandwich import SandwichConv, SandwichFc, SandwichLin
from lbdn.layers.sll import SllConv, SllFc
from lbdn.layers.soc import SocConv, SocFc, SocLin
from lbdn.layers.spectral import SpectralConv, SpectralFc, SpectralLin

__all__ = [
    "AolConv",
    "AolFc",
    "AolLin",
    "BcopConv",
    "BcopFc",
    "BcopLin",
    "CplConv",
    "CplFc",
    "Family",
    "InputNormalization",
    "LastLayerNormalization",
    "LotConv",
    "LotFc",
    "LotLin",
    "OrthogonalConv",
    "OrthogonalFc",
    "OrthogonalLin",
    "PlainConv",
    "PlainFc",
    "PlainLin",
    "SandwichConv",
    "SandwichFc",
    "SandwichLin",
    "SllConv",
    "SllFc",
    "SocConv",
    "SocFc",
    "SocLin",
    "SpectralConv",
    "SpectralFc",
    "SpectralLin",
    "freeze",
]
