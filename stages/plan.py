"""Note what the experiments of params.yaml consist of."""

from pathlib import Path

import click

from lbdn.data.augmentation import find_augmentation
from lbdn.files import write_json
from lbdn.params import Experiment, load_params
from lbdn.report.results import published
from lbdn.training import make_loss
from stages.common import NEEDED, errors_in_one_line


def check_names(name: str, experiment: Experiment) -> None:
    """Check what the names in an experiment's settings stand for, before any of its networks is trained.

    Raises:
        ValueError: for a loss, an augmentation or published values that there aren't.
    """
    if experiment.published is not None and not published(experiment.published):
        raise ValueError(f"params.yaml: {name}.published names no values in lbdn/report/published.yaml")
    if experiment.trained is None:
        return
    try:
        make_loss(experiment.trained.loss)
        find_augmentation(experiment.trained.augmentation)
    except ValueError as error:
        raise ValueError(f"params.yaml: {name}.training: {error}") from error


@click.command()
@click.option("--runs", type=click.Path(path_type=Path), default="runs", show_default=True, help="Folder of runs.")
@errors_in_one_line
def main(runs: Path) -> None:
    """Write RUNS/EXPERIMENT/grid.json for each experiment, and for each data set whether one of them needs it.

    A grid names an experiment's networks and what its report shows of them; with it, the report is made from the run
    folders alone. An experiment that is off has an empty grid, and needs no data.
    """
    params = load_params()
    for name, experiment in params.experiments.items():
        check_names(name, experiment)
    for name, experiment in params.experiments.items():
        grid = {
            "cells": params.cells(name),
            "certify_radii_255": experiment.certify.radii_255 if experiment.certify else [],
            "published": experiment.published or name,
        }
        write_json(runs / name / "grid.json", grid)
    for dataset in params.datasets:
        write_json(NEEDED / f"{dataset}.json", params.needs(dataset))


if __name__ == "__main__":
    main()
