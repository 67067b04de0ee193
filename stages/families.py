"""Note the source of each layer family, so that an edit retrains that family and no other."""

from pathlib import Path

import click

from lbdn.files import write_json
from lbdn.params import load_params
from lbdn.registry import fingerprint
from stages.common import errors_in_one_line


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@errors_in_one_line
def main(folder: Path) -> None:
    """Write FOLDER/FAMILY.json with a digest of the source file for every family that params.yaml names.

    `train` depends on these files. A family of another package is digested too; after an upgrade of that package run
    `dvc repro -f families`.
    """
    experiments = load_params().experiments.values()
    for family in sorted({family for experiment in experiments for family in experiment.families}):
        write_json(folder / f"{family}.json", {"family": family, "sha256": fingerprint("families", family)})


if __name__ == "__main__":
    main()
