"""Run one cell of an experiment from training to attack, on a bare machine: no DVC, no MLflow, no network."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from lbdn.data import load_dataset
from lbdn.files import read_json, write_json
from lbdn.params import load_params
from stages.attack import STATE, attack_run
from stages.certify import certify_run
from stages.code import STAGES, digest_of
from stages.common import PREPARED, device_option, errors_in_one_line, model_options, note_provenance
from stages.lipschitz import bound_run
from stages.train import CHECKPOINT, check_settings, describe, identify, train_run

ORIGINS = "cell.json"  # for each part that was begun, a digest of all that it is made from


@click.command()
@model_options
@device_option
@errors_in_one_line
def main(
    experiment: str, run: Path, family: str, size: str, gamma: float | None, seed: int, device: torch.device
) -> None:
    """Train, bound, certify and attack one model of EXPERIMENT; write its folder RUN as the stages do.

    Needs params.yaml and the prepared data set. What is finished is not done again, so the same command goes on where
    an earlier one was stopped; after a change of settings or code, what they touch of the evaluations is done again.
    RUN/provenance.json says on what machine each part ended and how long its last call took.
    """
    settings = load_params().experiment(experiment)
    dataset = load_dataset(PREPARED / settings.dataset)
    check_settings(settings, dataset)
    description = describe(experiment, family, size, gamma, seed, dataset)
    identity = identify(description, dataset)
    parts: dict[str, tuple[str, dict[str, Any], Callable[[], object]]] = {
        "run.json": ("train", {}, lambda: train_run(run, description, dataset, device, identity, _report_epoch)),
    }
    if search := settings.lipschitz:
        parts["lipschitz.json"] = ("lipschitz", search.model_dump(), lambda: bound_run(run, search, dataset, device))
    if settings.certify:
        parts["certify.csv"] = ("certify", {}, lambda: certify_run(run, dataset, device))
    if attack := settings.attack:
        parts["attack.csv"] = ("attack", attack.model_dump(), lambda: attack_run(run, attack, dataset, device))
    origins = read_json(run / ORIGINS) if (run / ORIGINS).exists() else {}
    for name, (stage, own_settings, work) in parts.items():
        origin = json.dumps([identity, own_settings, digest_of(*STAGES[stage])])
        digest = hashlib.sha256(origin.encode()).hexdigest()
        if (run / name).exists():
            if name not in origins:
                raise ValueError(f"{run / name} wasn't made by this script; name another folder, or delete this one")
            if origins[name] == digest:
                continue
            if name == "run.json":
                raise ValueError(f"{run} holds a model of other settings, data or code; name another, or delete it")
            (run / name).unlink()
        origins[name] = digest
        write_json(run / ORIGINS, origins)
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
