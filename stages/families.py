"""Note the source of each layer family, so that an edit retrains that family and no other."""

import hashlib
from pathlib import Path

import click

import lbdn
from lbdn.files import write_json
from lbdn.params import load_params
from lbdn.registry import fingerprint
from stages.common import errors_in_one_line

CORE = ("cayley.py", "circular.py", "networks.py", "layers/base.py", "layers/normalization.py")  # of all families


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@errors_in_one_line
def main(folder: Path) -> None:
    """Write FOLDER/FAMILY.json, digests of the code of every family that params.yaml names.

    Training and evaluation depend on these files. A family of another package is digested too; after an upgrade of
    that package run `dvc repro -f families`.
    """
    package = Path(lbdn.__file__).parent
    core = hashlib.sha256(b"".join((package / name).read_bytes() for name in CORE)).hexdigest()
    experiments = load_params().experiments.values()
    for family in sorted({family for experiment in experiments for family in experiment.families}):
        write_json(folder / f"{family}.json", {"layers": fingerprint("families", family), "networks": core})


if __name__ == "__main__":
    main()
