"""Put the sections of all experiments on one page, and their headline figures into one file."""

from pathlib import Path

import click

from lbdn.files import write_json, write_text
from lbdn.report.page import read_sections, render_page
from stages.common import errors_in_one_line


@click.command()
@click.argument("experiments", nargs=-1, required=True)
@click.option("--reports", type=click.Path(path_type=Path), default="reports", show_default=True, help="Folder.")
@errors_in_one_line
def main(experiments: tuple[str, ...], reports: Path) -> None:
    """Write REPORTS/report.html and REPORTS/metrics.json from what `report` made of EXPERIMENTS."""
    write_text(reports / "report.html", render_page(reports, experiments))
    sections = read_sections(reports, experiments)
    write_json(reports / "metrics.json", {name: section["metrics"] for name, section in sections.items()})


if __name__ == "__main__":
    main()
