"""Models of RobustNeuralNetworks.jl, from files that the tests make and from one that Julia wrote."""

import copy
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lbdn.julia import read_lbdn, write_lbdn
from lbdn.layers import OrthogonalFc, OrthogonalLin, SandwichFc, SandwichLin
from lbdn.networks import Network, build_network
from tests.oracles import perturb

bson = pytest.importorskip("bson")
FROM_JULIA = Path(__file__).parents[2] / "shared/data/julia/lbdn_mnist.bson"


def network(*widths: int, gamma: float = 3.0) -> Network:
    root = gamma**0.5
    layers = [SandwichFc(p, q, scale=root if k == 0 else 1.0) for k, (p, q) in enumerate(pairwise(widths[:-1]))]
    return perturb(
        Network([*layers, SandwichLin(*widths[-2:], scale=root)], outputs=widths[-1], gamma=gamma), spread=0.3
    )


def resolved(value, references):
    """A document without its references, as a tree."""
    if isinstance(value, dict):
        if value.get("tag") == "backref":
            return resolved(references[value["ref"] - 1], references)
        return {key: resolved(entry, references) for key, entry in value.items() if key != "_backrefs"}
    return [resolved(entry, references) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("widths", [(6, 5, 4, 3), (2, 7, 1), (3, 3, 3, 3, 3)], ids=str)
def test_what_is_written_is_read_again(tmp_path, widths):
    original = network(*widths)
    write_lbdn(original, tmp_path / "model.bson")
    again = read_lbdn(tmp_path / "model.bson")
    x = torch.randn(8, widths[0])
    torch.testing.assert_close(again(x), original(x))
    assert again.gamma == pytest.approx(original.gamma)
    assert not again.training


def test_references_between_parts_of_a_file_are_followed(tmp_path):
    """BSON.jl writes what occurs twice once, and counts from one."""
    write_lbdn(network(4, 3, 2), tmp_path / "plain.bson")
    document = bson.decode((tmp_path / "plain.bson").read_bytes())
    chain = document["data"][1][0]
    lbdn = chain["data"][0]["data"][0]
    document["_backrefs"] = [lbdn["type"], lbdn["data"][4]]
    lbdn["type"], lbdn["data"][4] = {"tag": "backref", "ref": 1}, {"tag": "backref", "ref": 2}
    (tmp_path / "referring.bson").write_bytes(bson.encode(document))
    x = torch.randn(3, 4)
    assert torch.equal(read_lbdn(tmp_path / "referring.bson")(x), read_lbdn(tmp_path / "plain.bson")(x))


@pytest.mark.parametrize(
    "content", [b"", b"not bson", bson.encode({"tag": "struct"}), bson.encode({"a": [1, {"b": 2}]})]
)
def test_other_files_are_an_error_that_names_them(tmp_path, content):
    path = tmp_path / "model.bson"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.bson holds no DiffLBDN"):
        read_lbdn(path)
    with pytest.raises(FileNotFoundError, match=r"no .*nowhere\.bson"):
        read_lbdn(tmp_path / "nowhere.bson")


def test_networks_that_the_toolbox_does_not_have_are_refused(tmp_path):
    tanh = Network([SandwichFc(3, 4, activation=torch.tanh), SandwichLin(4, 2)], outputs=2, gamma=1.0)
    normalised = build_network("mlp", "sandwich", input_shape=(1, 2, 2), outputs=3, normalization=([0.5], [0.2]))
    others = [tanh, normalised, Network([OrthogonalFc(3, 4), OrthogonalLin(4, 2)], outputs=2, gamma=1.0)]
    others.append(Network([SandwichFc(3, 4, bias=False), SandwichLin(4, 2)], outputs=2, gamma=1.0))
    for other in others:
        with pytest.raises(ValueError, match="Sandwich layers with biases and ReLU"):
            write_lbdn(other, tmp_path / "model.bson")
    assert not list(tmp_path.iterdir())


def test_what_the_file_cannot_hold_is_refused(tmp_path):
    """The scales of the layers, and their order, follow from gamma alone."""
    unscaled = Network([SandwichFc(3, 4), SandwichLin(4, 2)], outputs=2, gamma=5.0)
    scaled_inside = network(3, 4, 4, 2)
    scaled_inside.body[1].scale = 2.0
    two_last = Network([SandwichFc(3, 4), SandwichLin(4, 4), SandwichLin(4, 2)], outputs=2, gamma=1.0)
    for other in (unscaled, scaled_inside, two_last):
        with pytest.raises(ValueError, match="one SandwichLin at the end, and the root of gamma"):
            write_lbdn(other, tmp_path / "model.bson")
    with pytest.raises(ValueError, match="Sandwich layers"):
        write_lbdn(Network([SandwichLin(3, 4), SandwichFc(4, 2)], outputs=2, gamma=1.0), tmp_path / "model.bson")
    assert not list(tmp_path.iterdir())


def test_without_pymongo_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bson", None)
    (tmp_path / "model.bson").touch()
    with pytest.raises(ModuleNotFoundError, match="pip install pymongo"):
        read_lbdn(tmp_path / "model.bson")


@pytest.mark.real_data
@pytest.mark.skipif(not FROM_JULIA.exists(), reason="needs the toolbox's example model")
def test_the_toolboxs_own_model_is_written_as_julia_wrote_it(tmp_path):
    model = read_lbdn(FROM_JULIA)
    assert model.gamma == pytest.approx(5, rel=1e-6)
    write_lbdn(model, tmp_path / "model.bson")
    written, original = ((bson.decode(p.read_bytes())) for p in (tmp_path / "model.bson", FROM_JULIA))
    written, original = (resolved(document, document.get("_backrefs", [])) for document in (written, original))
    chain = copy.deepcopy(original["data"][1][0])
    softmax = chain["data"][0]["data"].pop()
    assert softmax["type"]["name"] == ["NNlib", "#softmax"]
    assert written["data"][1][0]["data"] == chain["data"]
    assert written["data"][0] == original["data"][0] == ["model"]
    assert written["type"]["name"] == original["type"]["name"]


@pytest.mark.real_data
@pytest.mark.skipif(not FROM_JULIA.exists(), reason="needs the toolbox's example model")
def test_the_toolboxs_own_model_has_its_documented_accuracy(tmp_path):
    import gzip

    import numpy as np

    folder = FROM_JULIA.parents[1] / "mnist"
    raw = {
        name: gzip.decompress((folder / f"t10k-{name}-ubyte.gz").read_bytes())
        for name in ("images-idx3", "labels-idx1")
    }
    images = torch.tensor(np.frombuffer(raw["images-idx3"], np.uint8, offset=16).reshape(-1, 1, 28, 28) / 255.0)
    labels = torch.tensor(np.frombuffer(raw["labels-idx1"], np.uint8, offset=8).astype(np.int64))
    with torch.no_grad():
        accuracy = (read_lbdn(FROM_JULIA)(images.float()).argmax(1) == labels).double().mean()
    assert accuracy == pytest.approx(0.9724, abs=1e-12)
