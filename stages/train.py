"""Train one model: one cell of an experiment's grid."""

from pathlib import Path
from typing import Any

import click
import torch

from lbdn import tracking
from lbdn.data import Dataset, load_dataset
from lbdn.files import write_rows
from lbdn.params import load_params
from lbdn.runs import read_description, save_run, seeded_network, weights_digest
from lbdn.training import EpochHook, train
from stages.common import PREPARED, RUN, device_option, errors_in_one_line


def describe(experiment: str, family: str, size: str, gamma: float, seed: int, dataset: Dataset) -> dict[str, Any]:
    """Return all that determines a trained model, from params.yaml and the data set's shape."""
    settings = load_params().experiment(experiment)
    training = settings.training
    return {
        "experiment": experiment,
        "family": family,
        "size": size,
        "gamma": gamma,
        "seed": seed,
        "dataset": settings.dataset,
        "network": {
            "architecture": settings.architecture,
            "family": family,
            "size": size,
            "gamma": gamma,
            "input_shape": list(dataset.input_shape),
            "outputs": dataset.outputs,
            "normalization": dataset.normalization() if training.normalize else None,
            "last_layer_normalization": training.last_layer_normalization,
        },
        "training": training.model_dump(exclude={"normalize", "last_layer_normalization"}),
    }


def train_run(
    run: Path,
    description: dict[str, Any],
    dataset: Dataset,
    device: torch.device,
    on_epoch: EpochHook | None = None,
) -> None:
    """Train, and write run.json, weights.pt and history.csv."""
    network = seeded_network(description["seed"], **description["network"])
    checkpoint = run / "checkpoint.pt"
    history = train(
        network,
        dataset,
        **description["training"],
        seed=description["seed"],
        device=device,
        checkpoint=checkpoint,
        identity=description,
        on_epoch=on_epoch,
    )
    parameters = sum(p.numel() for p in network.parameters())
    save_run(run, network, description | {"parameters": parameters})
    write_rows(run / "history.csv", history)
    checkpoint.unlink()


@click.command()
@click.argument("experiment")
@RUN
@click.option("--family", required=True, help="Of layers: plain, aol, orthogonal, sll, sandwich, or a plugin's.")
@click.option("--size", required=True, help="Of the architecture: tiny, small, medium, large, ...")
@click.option("--gamma", type=float, required=True, help="Upper Lipschitz bound, from normalised input.")
@click.option("--seed", type=int, required=True, help="Of initial values, order and augmentation.")
@device_option
@errors_in_one_line
def main(experiment: str, run: Path, family: str, size: str, gamma: float, seed: int, device: torch.device) -> None:
    """Train one model of EXPERIMENT and write its folder RUN: run.json, weights.pt, history.csv.

    A training that was interrupted goes on from its last finished epoch.
    """
    settings = load_params().experiment(experiment)
    dataset = load_dataset(PREPARED / settings.dataset)
    description = describe(experiment, family, size, gamma, seed, dataset)
    with tracking.training_run(description) as log:
        train_run(run, description, dataset, device, log.epoch)
        log.metrics({"parameters": read_description(run)["parameters"]})
        log.finish_training(weights_digest(run))


if __name__ == "__main__":
    main()
