"""Make the tables and figures of one experiment."""

from pathlib import Path

import click

from lbdn.params import load_params
from lbdn.report.figures import look
from lbdn.report.results import load_results
from lbdn.report.sections import classification_section, fitting_section, write_section
from lbdn.tracking import flatten
from stages.common import errors_in_one_line


@click.command()
@click.argument("experiment")
@click.option("--runs", type=click.Path(path_type=Path), default="runs", show_default=True, help="Folder of runs.")
@click.option("--reports", type=click.Path(path_type=Path), default="reports", show_default=True, help="To write to.")
@errors_in_one_line
def main(experiment: str, runs: Path, reports: Path) -> None:
    """Write REPORTS/tables/EXPERIMENT and REPORTS/figures/EXPERIMENT from the experiment's run folders alone."""
    params = load_params()
    settings = params.experiment(experiment)
    results = load_results(
        runs / experiment,
        families=settings.families,
        sizes=settings.sizes,
        gammas=params.gammas(experiment),
        seeds=settings.seeds,
    )
    with look():
        if settings.certify is None:
            dotted = flatten(settings.model_dump() | {"dataset": params.datasets[settings.dataset]})
            section = fitting_section(results, dotted)
        else:
            section = classification_section(results, settings.certify.radii_255)
        write_section(section, experiment, reports)


if __name__ == "__main__":
    main()
