"""Make a run of one model that was trained elsewhere: the one cell of an experiment with a `model`."""

import hashlib
import math
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from lbdn import tracking
from lbdn.data import Dataset, load_dataset
from lbdn.files import write_rows
from lbdn.inference import on_device, predict
from lbdn.julia import read_lbdn
from lbdn.layers.base import Layer
from lbdn.networks import Network, build_network
from lbdn.params import Cell, Experiment, Model, load_params
from lbdn.runs import save_run, weights_digest
from stages.common import PREPARED, errors_in_one_line, model_options
from stages.train import check_settings

ROUNDING = 1e-6  # relative, of gamma: files hold its logarithm in single precision


def read_model(experiment: str, model: Model) -> Network:
    """Return the network of an experiment's file, whose contents are the ones that params.yaml means.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds something else.
    """
    path = Path(model.path)
    if not path.exists():
        raise FileNotFoundError(
            f"no {path}, the {experiment}.model of params.yaml; put the file there, or empty {experiment}.seeds"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != model.sha256:
        raise ValueError(
            f"{path} has SHA-256 {digest}, {experiment}.model.sha256 in params.yaml is {model.sha256}; if this file "
            "is the one you mean, write its digest there"
        )
    return read_lbdn(path)


def describe(
    experiment: str, settings: Experiment, cell: Cell, gamma: float | None, dataset: Dataset
) -> dict[str, Any]:
    """Return a run's description as ``stages.train`` does, with the file in place of a training.

    ``gamma`` is the bound of the network itself, which may be the cell's up to rounding.
    """
    return {
        "experiment": experiment,
        **cell._asdict(),
        "dataset": settings.dataset,
        "samples": {"test": len(dataset.test_inputs)},
        "network": {
            "architecture": settings.architecture,
            "family": cell.family,
            "size": cell.size,
            "gamma": gamma,
            "input_shape": list(dataset.input_shape),
            "outputs": dataset.outputs,
            "normalization": None,
            "last_layer_normalization": False,
        },
        **settings.model_dump(include={"model"}),
    }


def rebuild(description: dict[str, Any], model: Network, dataset: Dataset) -> tuple[Network, Tensor]:
    """Return the described network with a model's weights, and its outputs for the test data: the model's, bit for bit.

    Raises:
        ValueError: if the model has another gamma or other layers than those described.
    """
    path, wanted = description["model"]["path"], description["gamma"]
    if wanted is None or model.gamma is None or not math.isclose(wanted, model.gamma, rel_tol=ROUNDING):
        raise ValueError(f"{path} holds a network of gamma {model.gamma}, not of {wanted}; change params.yaml")
    network = build_network(**description["network"]).eval()
    try:
        network.load_state_dict(model.state_dict())
    except RuntimeError as error:  # of PyTorch: other names or shapes
        raise ValueError(
            f"{path} holds {_layers(model)}, but params.yaml describes {_layers(network)}; change params.yaml"
        ) from error
    inputs = on_device(dataset.test_inputs, "cpu")
    outputs = predict(network, inputs)
    if not torch.equal(outputs, predict(model, inputs)):
        raise ValueError(f"{path} computes something else than {description['network']}; change params.yaml")
    return network, outputs


def _layers(network: Network) -> str:
    layers = [f"{type(layer).__name__} of {layer.inputs} inputs" for layer in network.body if isinstance(layer, Layer)]
    return ", ".join([*layers, f"{network.outputs} outputs"])


@click.command()
@model_options
@errors_in_one_line
def main(experiment: str, run: Path, family: str, size: str, gamma: float | None, seed: int) -> None:
    """Take the model of EXPERIMENT over and write its folder RUN: run.json, weights.pt, history.csv.

    It must be the network that the options name, with the same bound; the seed only names it. Of its training the
    history has what is known, one row: the test accuracy at epoch 0, before any training here.
    """
    settings = load_params().experiment(experiment)
    if settings.model is None:
        raise ValueError(f"params.yaml has no {experiment}.model; run stages.train")
    model = read_model(experiment, settings.model)
    dataset = load_dataset(PREPARED / settings.dataset)
    check_settings(settings, dataset)
    description = describe(experiment, settings, Cell(family, size, gamma, seed), model.gamma, dataset)
    network, outputs = rebuild(description, model, dataset)
    row: dict[str, float] = {"epoch": 0}
    if dataset.is_classification:
        correct = outputs.argmax(1) == on_device(dataset.test_targets, "cpu")
        row["test_accuracy"] = float(correct.double().mean())
    with tracking.training_run(description, description) as log:
        parameters = sum(p.numel() for p in network.parameters())
        write_rows(run / "history.csv", [row])
        save_run(run, network, description | {"parameters": parameters})
        log.metrics({"parameters": parameters, "test_accuracy": row.get("test_accuracy")})
        log.finish_training(weights_digest(run))


if __name__ == "__main__":
    main()
