"""Note what the experiments of params.yaml consist of."""

from pathlib import Path

import click

from lbdn.files import write_json
from lbdn.params import load_params
from stages.common import NEEDED, errors_in_one_line


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
