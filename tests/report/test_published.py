from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lbdn.networks import build_network
from lbdn.params import load_params
from lbdn.report.results import budget, published
from tests.report.runs import result


@pytest.mark.parametrize(("experiment", "std"), [("cifar10", 0.2435), ("cifar100", 0.2564), ("cifar100-certified", 1)])
def test_the_published_gain_of_the_normalisation_is_that_of_the_data_sets_statistics(experiment, std):
    assert published(experiment)["settings"]["input_gain"] == pytest.approx(1 / std, abs=0.005)


@pytest.mark.parametrize("experiment", ["tiny-imagenet-sizes", "tiny-imagenet-gammas"])
def test_tiny_imagenet_is_normalised_with_the_published_gain(experiment):
    normalize = load_params(Path(__file__).parents[2] / "params.yaml").experiment(experiment).training.normalize
    assert published(experiment)["settings"]["input_gain"] == pytest.approx(1 / min(normalize.std), abs=0.005)


FULL = {  # training images, test images, classes, standard deviations of the pixels
    "mnist": (60000, 10000, 10, [0.3081]),
    "cifar10": (50000, 10000, 10, [0.2470, 0.2435, 0.2616]),
    "cifar100": (50000, 10000, 100, [0.2673, 0.2564, 0.2762]),
    "tiny-imagenet": (100000, 10000, 200, [0.2770, 0.2691, 0.2821]),
}


@pytest.mark.parametrize(
    "name",
    [
        *("mnist", "cifar10", "cifar10-curves"),
        *(f"cifar100{end}" for end in ("", "-curves", "-sizes", "-gammas", "-certified")),
        *(f"tiny-imagenet{end}" for end in ("-sizes", "-gammas", "-certified")),
    ],
)
def test_the_papers_experiments_have_the_papers_settings(name):
    experiment = load_params(Path(__file__).parents[2] / "params.yaml").experiment(name)
    train, test, classes, std = FULL[experiment.dataset]
    training = experiment.training
    run = result("sandwich", gamma=experiment.gammas[0], size=experiment.sizes[0])
    normalization = training.normalize and [[0.5], std if training.normalize is True else training.normalize.std]
    run.description.update(
        samples={"train": train, "test": test},
        training=training.model_dump(exclude={"normalize", "last_layer_normalization"}),
        network={
            "architecture": experiment.architecture,
            "outputs": classes,
            "normalization": normalization or None,
            "last_layer_normalization": training.last_layer_normalization,
        },
    )
    attack = experiment.attack and pd.DataFrame(index=range(test if experiment.attack.images == "all" else 1000))
    runs = [replace(run, attack=attack)] * len(experiment.seeds)
    assert budget(runs, published(name)) == "the paper's settings"


def test_the_papers_table_of_tightness_is_whole():
    percent = published("toy")["tightness"]["percent"]
    assert {family: sorted(row) for family, row in percent.items()} == {key: [1, 5, 10] for key in percent}
    assert set(percent) == {"aol", "orthogonal", "sll", "sandwich"}
    layers = published("toy")["layers"]
    assert all(len(row) == 10 for key in ("tightness_percent", "norms") for row in layers[key].values())


@pytest.mark.parametrize(
    ("experiment", "architecture", "shape", "outputs", "count"),
    [
        ("cifar100-sizes", "kwlarge", (3, 32, 32), 100, 12),
        ("tiny-imagenet-sizes", "kwlarge", (3, 64, 64), 200, 8),
        ("cifar100-certified", "deep", (3, 32, 32), 100, 3),
        ("tiny-imagenet-certified", "deep", (3, 64, 64), 200, 3),
    ],
)
def test_every_published_network_has_about_the_parameters_that_the_table_prints(
    experiment, architecture, shape, outputs, count
):
    import torch

    networks = published(experiment)["networks"]
    assert len(networks) == count
    for row in networks:
        with torch.device("meta"):
            network = build_network(architecture, row["family"], size=row["size"], input_shape=shape, outputs=outputs)
        counted = sum(p.numel() for p in network.parameters())
        printed = float(row["parameters"][:-1]) * {"M": 1e6, "B": 1e9}[row["parameters"][-1]]
        assert counted == pytest.approx(printed, rel=0.06)
        robust = list((row.get("robust") or row["certified"]).values())
        assert row["clean"] > robust[0] > robust[1] > robust[2]
