"""Make the tables and figures of one experiment."""

from pathlib import Path

import click

from lbdn.report.look import look
from lbdn.report.results import load_results
from lbdn.report.sections import make_section, write_section
from stages.common import errors_in_one_line


@click.command()
@click.argument("experiment")
@click.option("--runs", type=click.Path(path_type=Path), default="runs", show_default=True, help="Folder of runs.")
@click.option("--reports", type=click.Path(path_type=Path), default="reports", show_default=True, help="To write to.")
@errors_in_one_line
def main(experiment: str, runs: Path, reports: Path) -> None:
    """Write REPORTS/{tables,figures}/EXPERIMENT and REPORTS/metrics/EXPERIMENT.json from the run folders alone."""
    grid, results = load_results(runs / experiment)
    with look():
        write_section(make_section(experiment, grid, results), experiment, reports)


if __name__ == "__main__":
    main()
