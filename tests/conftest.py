import sys

import pytest
import torch

PACKAGE = """
import numpy as np
from lbdn.data.prepared import Dataset
from lbdn.layers import AolFc, AolLin, Family, OrthogonalConv

FAMILY = Family(fc=AolFc, conv=OrthogonalConv, linear=AolLin, widths={"toy": (7, 5)})

def short(family, *, size, scale, input_shape, outputs, last):
    return [family.fc(input_shape[0], 6, scale=scale), last(6, outputs, scale=scale)]

def ramp(*, samples=4):
    x = np.linspace(0, 1, samples, dtype=np.float32)[:, None]
    return Dataset(x, x, x, x, classes=[], provenance={"source": "ramp"})
"""
ENTRY_POINTS = """
[lbdn.families]
mixed = third_party_lbdn:FAMILY
[lbdn.architectures]
short = third_party_lbdn:short
[lbdn.sources]
ramp = third_party_lbdn:ramp
"""


@pytest.fixture(autouse=True)
def reproducible():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The source file of an installed package that adds a family, an architecture and a source."""
    metadata = tmp_path / "third_party_lbdn-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: third_party_lbdn\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    source = tmp_path / "third_party_lbdn.py"
    source.write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    yield source
    sys.modules.pop("third_party_lbdn", None)
