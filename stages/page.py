"""Put the sections of all experiments on one page."""

from pathlib import Path

import click

from lbdn.files import write_text
from lbdn.params import load_params
from lbdn.report.page import render_page
from stages.common import errors_in_one_line


@click.command()
@click.argument("experiments", nargs=-1, required=True)
@click.option("--reports", type=click.Path(path_type=Path), default="reports", show_default=True, help="Folder.")
@errors_in_one_line
def main(experiments: tuple[str, ...], reports: Path) -> None:
    """Write REPORTS/report.html from what `report` made of EXPERIMENTS.

    An experiment that is off or was never run has no section.
    """
    params = load_params()
    for experiment in experiments:
        params.experiment(experiment)
    write_text(reports / "report.html", render_page(reports, experiments))


if __name__ == "__main__":
    main()
