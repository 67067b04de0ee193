import pytest
import torch

from lbdn.layers import CplConv, CplFc, SllConv, SllFc
from tests.oracles import assert_lipschitz


@pytest.mark.parametrize(("build", "shape"), [(SllFc, (3,)), (CplFc, (3,)), (SllConv, (3, 4, 5)), (CplConv, (3, 4, 5))])
@pytest.mark.parametrize("size", [1e-20, 1e-39])
@pytest.mark.parametrize("filters", [slice(1), slice(None)], ids=["one", "all"])
def test_filters_of_next_to_nothing_keep_outputs_finite_and_the_bound(build, shape, size, filters):
    layer = build(3, 4)
    layer.weight.data[filters] *= size
    assert layer(torch.randn(2, *shape)).isfinite().all()
    assert_lipschitz(layer, shape, 1, torch.float32)
