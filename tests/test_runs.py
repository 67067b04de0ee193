"""A run folder rebuilds its network exactly, or says what is wrong with it."""

import json
import os
from pathlib import Path

import pytest
import torch

from lbdn import load_run, registry
from lbdn.runs import read_description, save_run, seeded_network, weights_digest

IMAGES = {
    "architecture": "kwlarge",
    "size": "tiny",
    "gamma": 2.0,
    "input_shape": [1, 8, 8],
    "outputs": 10,
    "normalization": [[0.3071], [0.1 + 0.2]],
}
POINTS = {"architecture": "mlp", "family": "sandwich", "gamma": 5.0, "input_shape": [4], "outputs": 3}
ARGUMENTS = {
    **{family: IMAGES | {"family": family} for family in registry.names("families")},
    "last-layer-normalisation": IMAGES | {"family": "sandwich", "last_layer_normalization": True},
    "points": POINTS,
}


def saved(folder: Path, arguments=POINTS, seed=3):
    network = seeded_network(seed, **arguments)
    save_run(folder, network, {"network": arguments})
    return network


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_loaded_run_computes_the_same_bits(tmp_path, arguments):
    network = saved(tmp_path, arguments)
    loaded = load_run(str(tmp_path))
    x = torch.rand(5, *arguments["input_shape"])
    assert torch.equal(loaded(x), network(x))
    assert not torch.equal(seeded_network(4, **arguments)(x), network(x))
    assert (loaded.gamma, loaded.pixel_gamma) == (network.gamma, network.pixel_gamma)
    assert not loaded.training


def test_the_description_comes_back(tmp_path):
    description = {"network": POINTS, "seed": 3, "training": {"learning_rate": 0.1 + 0.2}}
    save_run(str(tmp_path), seeded_network(3, **POINTS), description)
    assert read_description(str(tmp_path)) == description


@pytest.mark.parametrize("function", [load_run, read_description])
def test_a_folder_that_is_no_run_is_an_error_that_names_it(tmp_path, function):
    with pytest.raises(FileNotFoundError, match=r"run\.json") as caught:
        function(tmp_path / "absent")
    assert str(tmp_path / "absent") in str(caught.value)


def test_missing_weights_are_an_error_that_names_the_folder(tmp_path):
    saved(tmp_path)
    (tmp_path / "weights.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"weights\.pt") as caught:
        load_run(tmp_path)
    assert str(tmp_path) in str(caught.value)


def damage(path: Path, how: str) -> None:
    weights = torch.load(path, weights_only=True)
    first = next(iter(weights))
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("version https://git-lfs.github.com/spec/v1")
    elif how == "a missing tensor":
        torch.save({name: tensor for name, tensor in weights.items() if name != first}, path)
    elif how == "an unknown tensor":
        torch.save(weights | {"extra": torch.zeros(1)}, path)
    elif how == "another shape":
        torch.save(weights | {first: torch.zeros(2, 2)}, path)
    elif how == "not a dictionary":
        torch.save(list(weights.values()), path)


@pytest.mark.parametrize(
    "how",
    ["truncated", "empty", "text", "a missing tensor", "an unknown tensor", "another shape", "not a dictionary"],
)
def test_weights_that_do_not_fit_are_an_error_that_names_the_file(tmp_path, how):
    saved(tmp_path)
    damage(tmp_path / "weights.pt", how)
    with pytest.raises(ValueError, match=r"weights that run\.json describes") as caught:
        load_run(tmp_path)
    assert str(tmp_path / "weights.pt") in str(caught.value)


def test_weights_of_another_family_are_refused(tmp_path):
    saved(tmp_path / "plain", IMAGES | {"family": "plain"})
    saved(tmp_path / "aol", IMAGES | {"family": "aol"})
    os.replace(tmp_path / "plain" / "weights.pt", tmp_path / "aol" / "weights.pt")
    with pytest.raises(ValueError, match=r"weights that run\.json describes"):
        load_run(tmp_path / "aol")


@pytest.mark.parametrize("content", ["{", "{}", "[]", json.dumps({"network": POINTS | {"widths": 3}})])
def test_a_description_that_is_none_is_an_error_that_names_the_file(tmp_path, content):
    saved(tmp_path)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json") as caught:
        load_run(tmp_path)
    assert str(tmp_path) in str(caught.value)


class Code:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_a_weights_file_is_refused_and_not_run(tmp_path):
    saved(tmp_path)
    torch.save({"code": Code(tmp_path / "ran")}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="weights"):
        load_run(tmp_path)
    assert not (tmp_path / "ran").exists()
    torch.load(tmp_path / "weights.pt", weights_only=False)
    assert (tmp_path / "ran").exists()


def test_the_same_seed_gives_the_same_network_and_another_seed_another():
    def weights(seed):
        return torch.cat([p.flatten() for p in seeded_network(seed, **POINTS).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_a_seeded_network_neither_reads_nor_moves_the_global_random_state():
    torch.manual_seed(1)
    first = seeded_network(0, **POINTS)(torch.ones(1, 4))
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), after)
    assert torch.equal(seeded_network(0, **POINTS)(torch.ones(1, 4)), first)


def test_equal_weights_have_equal_digests_whichever_process_and_folder_wrote_them(tmp_path, monkeypatch):
    saved(tmp_path / "a")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    saved(tmp_path / "b")
    saved(tmp_path / "c", seed=4)
    assert weights_digest(str(tmp_path / "a")) == weights_digest(tmp_path / "b")
    assert weights_digest(tmp_path / "a") != weights_digest(tmp_path / "c")


def test_a_run_in_float64_is_loaded_in_float64(tmp_path):
    network = seeded_network(3, **POINTS).double()
    save_run(tmp_path, network, {"network": POINTS})
    loaded, x = load_run(tmp_path), torch.rand(5, 4, dtype=torch.float64)
    assert torch.equal(loaded(x), network(x))
