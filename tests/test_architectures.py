import pytest
import torch
from torch import nn

from lbdn import registry
from lbdn.architectures import Selection, ZeroPadding
from lbdn.layers import Family
from lbdn.networks import build_network
from tests.oracles import dense_operator, jacobian_norm, spectral_norm

BOUNDED = ["aol", "orthogonal", "sll", "sandwich", "spectral", "bcop", "soc", "lot", "cpl"]
CIFAR100 = {"input_shape": (3, 32, 32), "outputs": 100}
TINY_IMAGENET = {"input_shape": (3, 64, 64), "outputs": 200}
COUNTS = {
    "plain": [3_067_140, 12_161_444, 48_431_844, 10_982_760, 43_721_224],
    "aol": [3_067_140, 12_161_444, 48_431_844, 10_982_760, 43_721_224],
    "orthogonal": [3_041_547, 12_059_051, 48_022_251, 10_957_167, 43_618_831],
    "sandwich": [3_038_299, 12_013_883, 47_807_227, 9_411_055, 37_312_207],
}
BUDGETS = {  # that of Orthogonal, without gains
    "spectral": [3_041_540, 12_059_044, 48_022_244, 10_957_160, 43_618_824],
    "bcop": [3_034_628, 12_032_932, 47_920_868, 10_950_248, 43_592_712],
    "soc": [3_041_540, 12_059_044, 48_022_244, 10_957_160, 43_618_824],
    "lot": [3_041_540, 12_059_044, 48_022_244, 10_957_160, 43_618_824],
}
SETTINGS = [(size, CIFAR100) for size in ("small", "medium", "large")]
SETTINGS += [(size, TINY_IMAGENET) for size in ("small", "medium")]

families = pytest.mark.parametrize("family", BOUNDED)


def counted(architecture, family, **options):
    with torch.device("meta"):
        network = build_network(architecture, family, **options)
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("family", COUNTS)
@pytest.mark.parametrize("column", range(5))
def test_parameter_counts_of_kwlarge_are_the_papers(family, column):
    size, data = SETTINGS[column]
    assert counted("kwlarge", family, size=size, **data) == COUNTS[family][column]


@pytest.mark.parametrize("family", BUDGETS)
@pytest.mark.parametrize("column", range(5))
def test_parameter_counts_of_kwlarge_are_those_of_the_compared_families(family, column):
    size, data = SETTINGS[column]
    count = counted("kwlarge", family, size=size, **data)
    assert count == BUDGETS[family][column]
    assert count == pytest.approx(COUNTS["orthogonal"][column], rel=0.05)


@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_cpl_has_the_parameters_of_sll_without_those_of_its_diagonal(size):
    counts = {family: counted("kwlarge", family, size=size, **CIFAR100) for family in ("cpl", "sll")}
    assert counts["cpl"] < counts["sll"] == pytest.approx(counts["cpl"], rel=1e-3)


@families
def test_parameter_counts_of_the_mlp_are_those_of_the_unconstrained_one(family):
    shape = {"input_shape": (1, 28, 28), "outputs": 10}
    assert counted("mlp", family, **shape) == pytest.approx(counted("mlp", "plain", **shape), rel=0.01)


@pytest.mark.parametrize(("data", "count"), [(CIFAR100, 25_806_381), (TINY_IMAGENET, 39_149_203)])
def test_parameter_counts_of_the_certified_networks_are_the_papers(data, count):
    assert counted("deep", "sandwich", last_layer_normalization=True, **data) == count


@pytest.mark.parametrize(
    ("size", "data", "millions"),
    [
        ("small", CIFAR100, 41),
        ("medium", CIFAR100, 78),
        ("large", CIFAR100, 118),
        ("xlarge", CIFAR100, 236),
        ("small", TINY_IMAGENET, 165),
        ("medium", TINY_IMAGENET, 314),
        ("xlarge", TINY_IMAGENET, 1101),
    ],
)
def test_parameter_counts_of_sll_are_the_papers_in_whole_millions(size, data, millions):
    assert counted("kwlarge", "sll", size=size, **data) // 10**6 == millions


@families
def test_parameter_counts_of_the_study_are_those_of_the_compared_families(family):
    study = {"size": "tiny", "input_shape": (1, 8, 8), "outputs": 10}
    assert counted("kwlarge", family, **study) == pytest.approx(counted("kwlarge", "orthogonal", **study), rel=0.05)


@pytest.mark.parametrize("family", [*BOUNDED, "plain"])
def test_the_toy_has_about_130_thousand_parameters(family):
    assert counted("toy", family, input_shape=(1,), outputs=1) == pytest.approx(130_000, rel=0.05)


@pytest.mark.parametrize("family", ["aol", "sll"])
def test_pooling_has_norm_one(family):
    layers = build_network("kwlarge", family, size="tiny", input_shape=(1, 8, 8), outputs=2).body
    (pooling,) = [layer for layer in layers if isinstance(layer, nn.AvgPool2d)]
    assert spectral_norm(dense_operator(pooling, (2, 8, 8))) == pytest.approx(1)


@families
def test_the_ends_of_a_network_have_the_root_of_gamma(family):
    scales = [
        layer.scale
        for layer in build_network("mlp", family, gamma=9.0, input_shape=(1, 4, 4), outputs=3).body
        if hasattr(layer, "scale")
    ]
    assert scales == [3, *[1] * (len(scales) - 2), 3]


@pytest.mark.parametrize("dim", [-1, -3])
def test_zero_padding_and_selection_keep_distances_and_values(dim):
    x = torch.randn(2, 3, 4, 5)
    padded = ZeroPadding(8, dim=dim)(x)
    assert padded.shape[dim] == 8
    assert torch.equal(padded.narrow(dim, 0, x.shape[dim]), x)
    assert padded.norm() == x.norm()
    assert torch.equal(Selection(5, 2, scale=3.0)(x), 3 * x[..., :2])


def test_the_size_of_an_mlp_may_be_its_widths():
    network = build_network("mlp", "sandwich", size="7-5", input_shape=(1, 3, 2), outputs=4)
    assert [(layer.inputs, layer.outputs) for layer in network.body[1:]] == [(6, 7), (7, 5), (5, 4)]


@pytest.mark.parametrize("size", ["", "7-", "0-3", "-7", "7x5"])
def test_other_sizes_of_an_mlp_are_value_errors(size):
    with pytest.raises(ValueError, match="its hidden widths"):
        build_network("mlp", "sandwich", size=size, input_shape=(1, 3, 2), outputs=4)


def test_networks_are_built_from_a_family_alone():
    family = registry.find("families", "sandwich")
    assert isinstance(family, Family)
    layers = registry.find("architectures", "toy")(
        family, size="small", scale=2.0, input_shape=(1,), outputs=1, last=family.linear
    )
    assert jacobian_norm(nn.Sequential(*layers).double(), torch.randn(1, dtype=torch.float64)) <= 4


@families
def test_the_toy_takes_inputs_of_any_shape(family):
    assert build_network("toy", family, input_shape=(1, 2, 3), outputs=2)(torch.rand(4, 1, 2, 3)).shape == (4, 2)
