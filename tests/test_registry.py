import importlib
import sys

import pytest
import torch

from lbdn import registry
from lbdn.data.prepared import Dataset
from lbdn.networks import build_network
from tests.conftest import PACKAGE
from tests.oracles import assert_lipschitz

KINDS = {
    "families": ["aol", "bcop", "cpl", "lot", "orthogonal", "plain", "sandwich", "sll", "soc", "spectral"],
    "architectures": ["deep", "kwlarge", "mlp", "toy"],
    "sources": ["digits", "folder", "square-wave", "torchvision"],
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_built_in_names_are_known_and_can_be_found(kind):
    assert set(KINDS[kind]) <= set(registry.names(kind))
    for name in registry.names(kind):
        assert registry.find(kind, name) is not None
        assert len(registry.fingerprint(kind, name)) == 64


@kinds
@pytest.mark.parametrize("function", [registry.find, registry.fingerprint])
def test_an_unknown_name_is_a_value_error_that_lists_the_known_ones(kind, function):
    with pytest.raises(ValueError, match=r"no 'other' among the .*there are") as error:
        function(kind, "other")
    assert all(name in str(error.value) for name in registry.names(kind))


@pytest.mark.parametrize(("kind", "name"), [("families", "mixed"), ("architectures", "short"), ("sources", "ramp")])
def test_names_of_an_installed_package_are_known(package, kind, name):
    assert name in registry.names(kind)
    with pytest.raises(ValueError, match=name):
        registry.find(kind, "other")


def test_names_of_a_package_that_is_not_installed_are_unknown():
    assert "mixed" not in registry.names("families")


@pytest.mark.parametrize(
    ("architecture", "family", "size", "shape"),
    [
        ("toy", "mixed", "small", (2,)),
        ("kwlarge", "mixed", "tiny", (1, 8, 8)),
        ("short", "sandwich", "any", (2,)),
        ("short", "mixed", "any", (2,)),
    ],
)
def test_networks_are_built_from_an_installed_family_and_architecture(package, architecture, family, size, shape):
    network = build_network(architecture, family, size=size, gamma=3.0, input_shape=shape, outputs=2).double()
    assert network.gamma == 3
    assert network(torch.rand(5, *shape, dtype=torch.float64)).shape == (5, 2)
    assert_lipschitz(network, shape, 3)


def test_an_installed_family_has_its_own_widths(package):
    network = build_network("toy", "mixed", input_shape=(2,), outputs=2)
    assert [layer.outputs for layer in network.body] == [7, 5, 2]


def test_an_installed_source_makes_a_data_set(package):
    dataset = registry.find("sources", "ramp")(samples=3)
    assert isinstance(dataset, Dataset)


def test_a_built_in_name_cannot_be_replaced(package):
    entry_points = next(package.parent.glob("*.dist-info")) / "entry_points.txt"
    entry_points.write_text("[lbdn.families]\nsandwich = third_party_lbdn:FAMILY\n")
    assert registry.find("families", "sandwich") is importlib.import_module("lbdn.layers.sandwich").FAMILY


def test_the_fingerprint_changes_with_the_file_and_only_with_it(package):
    first = registry.fingerprint("families", "mixed")
    assert registry.fingerprint("families", "mixed") == first
    package.write_text(PACKAGE + "# changed\n")
    assert registry.fingerprint("families", "mixed") != first
    package.write_text(PACKAGE)
    assert registry.fingerprint("families", "mixed") == first


def test_the_fingerprint_does_not_import_the_module(package):
    registry.fingerprint("families", "mixed")
    assert "third_party_lbdn" not in sys.modules


@pytest.mark.parametrize("module", ["missing_lbdn", "missing_lbdn.layers"])
def test_the_fingerprint_of_a_missing_module_is_a_value_error(package, module):
    entry_points = next(package.parent.glob("*.dist-info")) / "entry_points.txt"
    entry_points.write_text(f"[lbdn.families]\nmissing = {module}:FAMILY\n")
    with pytest.raises(ValueError, match=f"no module {module}"):
        registry.fingerprint("families", "missing")
