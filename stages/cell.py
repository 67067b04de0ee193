"""Run one cell of an experiment from training to attack, on a bare machine: no DVC, no MLflow, no network."""

import time
from collections.abc import Callable
from pathlib import Path

import click
import torch

from lbdn.data import load_dataset
from lbdn.params import load_params
from lbdn.runs import read_description
from stages.attack import STATE, attack_run
from stages.certify import certify_run
from stages.common import PREPARED, device_option, errors_in_one_line, model_options, note_provenance
from stages.lipschitz import bound_run
from stages.train import CHECKPOINT, check_evaluations, describe, identify, train_run


@click.command()
@model_options
@device_option
@errors_in_one_line
def main(
    experiment: str, run: Path, family: str, size: str, gamma: float | None, seed: int, device: torch.device
) -> None:
    """Train, bound, certify and attack one model of EXPERIMENT; write its folder RUN as the stages do.

    Needs params.yaml and the prepared data set. What is finished is not done again, so the same command goes on where
    an earlier one was stopped. RUN/provenance.json says on what machine each part ran and how long it took.
    """
    settings = load_params().experiment(experiment)
    dataset = load_dataset(PREPARED / settings.dataset)
    check_evaluations(settings, dataset)
    description = describe(experiment, family, size, gamma, seed, dataset)
    if (run / "run.json").exists() and not description.items() <= read_description(run).items():
        raise ValueError(f"{run} holds a model with other settings; name another folder, or delete this one")
    identity = identify(description, dataset)
    parts: dict[str, Callable[[], object]] = {
        "run.json": lambda: train_run(run, description, dataset, device, identity, _report_epoch),
    }
    if search := settings.lipschitz:
        parts["lipschitz.json"] = lambda: bound_run(run, search, dataset, device)
    if settings.certify:
        parts["certify.csv"] = lambda: certify_run(run, dataset, device)
    if attack := settings.attack:
        parts["attack.csv"] = lambda: attack_run(run, attack, dataset, device)
    for name, work in parts.items():
        if (run / name).exists():
            continue
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        click.echo(f"{name}: {seconds:.0f} s")
        note_provenance(run, name, device, seconds)
    for state in (CHECKPOINT, STATE):
        (run / state).unlink(missing_ok=True)


def _report_epoch(row: dict[str, float], seconds: float | None) -> None:
    if seconds is not None:
        click.echo("  ".join(f"{name} {value:.4g}" for name, value in {**row, "seconds": seconds}.items()))


if __name__ == "__main__":
    main()
