"""Train one model: one cell of an experiment's grid."""

import statistics
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch

from lbdn import tracking
from lbdn.data import Dataset, load_dataset
from lbdn.files import write_rows
from lbdn.networks import build_network
from lbdn.params import Axes, Experiment, Normalization, Training, load_params
from lbdn.registry import find
from lbdn.runs import read_description, save_run, seeded_network, weights_digest
from lbdn.training import EpochHook, train
from stages.code import STAGES, code_digests, digest_of
from stages.common import PREPARED, device_option, errors_in_one_line, model_options, note_provenance

CHECKPOINT = "checkpoint.pt"


def describe(
    experiment: str, family: str, size: str, gamma: float | None, seed: int, dataset: Dataset
) -> dict[str, Any]:
    """Return all that determines a trained model, from params.yaml and the data set's shape.

    Gamma is None for families without a bound.
    """
    settings = load_params().experiment(experiment)
    training = settings.training
    gamma = gamma if find("families", family).bounded else None
    return {
        "experiment": experiment,
        "family": family,
        "size": size,
        "gamma": gamma,
        "seed": seed,
        "dataset": settings.dataset,
        "samples": {"train": len(dataset.train_inputs), "test": len(dataset.test_inputs)},
        "network": {
            "architecture": settings.architecture,
            "family": family,
            "size": size,
            "gamma": gamma,
            "input_shape": list(dataset.input_shape),
            "outputs": dataset.outputs,
            "normalization": normalization(training, dataset),
            "last_layer_normalization": training.last_layer_normalization,
        },
        "training": training.model_dump(exclude={"normalize", "last_layer_normalization"}),
    }


def normalization(training: Training, dataset: Dataset) -> list[list[float]] | None:
    """Return mean and standard deviation of each channel that a training normalises by, or None."""
    if isinstance(training.normalize, Normalization):
        return [training.normalize.mean, training.normalize.std]
    return list(dataset.normalization()) if training.normalize else None


def identify(description: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return what makes two trainings the same: settings, data and code. Only such a training is resumed."""
    network = description["network"]
    code = code_digests(network["family"], network["architecture"]) | {"training": digest_of(*STAGES["train"])}
    return {**description, "data": dataset.digest(), "code": code}


def check_settings(settings: Experiment, dataset: Dataset) -> None:
    """Check, before any training is spent, that the experiment's networks and evaluations fit its data set.

    Raises:
        ValueError: naming the setting that doesn't.
    """
    training = settings.trained
    if not dataset.is_classification:
        augmented = training is not None and training.augmentation != "none"
        needy = {"attack": settings.attack, "certify": settings.certify, "augmentation": augmented}
        for name, used in needy.items():
            if used:
                raise ValueError(f"{settings.dataset} has no classes of images, which `{name}` in params.yaml needs")
    if attack := settings.attack:
        images, test_images = attack.images, len(dataset.test_targets)
        if isinstance(images, int) and images > test_images:
            raise ValueError(f"attack.images takes 1 to {test_images} of {settings.dataset}, got {images}")
        if dataset.outputs < 2 or min(dataset.input_shape[1:]) < 5:
            raise ValueError(f"AutoAttack takes two classes and 5 x 5 pixels or more, which {settings.dataset} hasn't")
    if training and isinstance(training.normalize, Normalization):
        channels = len(training.normalize.mean)
        if channels != dataset.input_shape[0]:
            raise ValueError(f"training.normalize has {channels} channels, {settings.dataset} {dataset.input_shape[0]}")
    network: dict[str, Any] = {
        "architecture": settings.architecture,
        "input_shape": dataset.input_shape,
        "outputs": dataset.outputs,
        "last_layer_normalization": training is not None and training.last_layer_normalization,
    }
    grids: list[Axes | Experiment] = [settings.baselines, settings] if settings.baselines else [settings]
    for family, size in (pair for grid in grids for pair in product(grid.families, grid.sizes)):
        try:
            with torch.device("meta"):  # without numbers, which takes no time
                build_network(family=family, size=size, **network)
        except ValueError:
            raise
        except Exception:  # of a family that can't be built without numbers: its own training checks it
            continue


def train_run(
    run: Path,
    description: dict[str, Any],
    dataset: Dataset,
    device: torch.device,
    identity: dict[str, Any],
    on_epoch: EpochHook | None = None,
) -> None:
    """Train, and write history.csv, weights.pt and, last, run.json. The checkpoint stays.

    The median time of an epoch goes to provenance.json.
    """
    network = seeded_network(description["seed"], **description["network"])
    times: list[float] = []

    def note_epoch(row: dict[str, float], seconds: float | None) -> None:
        if seconds is not None:
            times.append(seconds)
        if on_epoch is not None:
            on_epoch(row, seconds)

    history = train(
        network,
        dataset,
        **description["training"],
        seed=description["seed"],
        device=device,
        checkpoint=run / CHECKPOINT,
        identity=identity,
        on_epoch=note_epoch,
    )
    parameters = sum(p.numel() for p in network.parameters())
    if times:
        note_provenance(run, "epoch", device, statistics.median(times))
    write_rows(run / "history.csv", history)
    save_run(run, network, description | {"parameters": parameters})


@click.command()
@model_options
@device_option
@errors_in_one_line
def main(
    experiment: str, run: Path, family: str, size: str, gamma: float | None, seed: int, device: torch.device
) -> None:
    """Train one model of EXPERIMENT and write its folder RUN: run.json, weights.pt, history.csv.

    A training that was interrupted goes on from its last finished epoch.
    """
    settings = load_params().experiment(experiment)
    dataset = load_dataset(PREPARED / settings.dataset)
    check_settings(settings, dataset)
    description = describe(experiment, family, size, gamma, seed, dataset)
    identity = identify(description, dataset)
    with tracking.training_run(description, identity) as log:
        train_run(run, description, dataset, device, identity, log.epoch)
        log.metrics({"parameters": read_description(run)["parameters"]})
        log.finish_training(weights_digest(run))
    (run / CHECKPOINT).unlink()


if __name__ == "__main__":
    main()
