"""Note the source of each layer family, so that an edit retrains that family and no other."""

import hashlib
from pathlib import Path

import click

import lbdn
from lbdn.files import write_json
from lbdn.params import load_params
from lbdn.registry import fingerprint
from stages.common import errors_in_one_line

# What the networks of all families run on.
NETWORKS = (
    "cayley.py",
    "circular.py",
    "gram.py",
    "networks.py",
    "layers/base.py",
    "layers/convolution.py",
    "layers/frozen.py",
    "layers/normalization.py",
)
# What those of some families run on besides.
SHARED = {
    "spectral": ("layers/constrained.py", "layers/norms.py"),
    "bcop": ("layers/constrained.py", "layers/norms.py"),
    "soc": ("layers/constrained.py", "layers/norms.py"),
    "lot": ("layers/constrained.py", "layers/norms.py"),
    "cpl": ("layers/norms.py",),
}
TRAINING = ("training.py", "losses.py", "schedules.py", "data/augmentation.py", "runs.py", "inference.py")


def code_digests(family: str, architecture: str) -> dict[str, str]:
    """Return digests of the code that a family's networks run on; of plugins, the file that registers them."""
    return {
        "family": fingerprint("families", family),
        "architecture": fingerprint("architectures", architecture),
        "networks": digest_of(NETWORKS + SHARED.get(family, ())),
    }


def digest_of(names: tuple[str, ...]) -> str:
    """Return the SHA-256 of files of the library."""
    package = Path(lbdn.__file__).parent
    return hashlib.sha256(b"".join((package / name).read_bytes() for name in names)).hexdigest()


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@errors_in_one_line
def main(folder: Path) -> None:
    """Write FOLDER/FAMILY.json, digests of the code of every family that params.yaml names.

    Training and evaluation depend on these files. Of a family or an architecture of another package, the file that
    registers it is digested; after other changes of that package, run `dvc repro -f families`.
    """
    used: dict[str, set[str]] = {}
    for experiment in load_params().experiments.values():
        baselines = experiment.baselines.families if experiment.baselines else []
        for family in experiment.families + baselines:
            used.setdefault(family, set()).add(experiment.architecture)
    for family, architectures in used.items():
        digests = {name: code_digests(family, name) for name in sorted(architectures)}
        write_json(folder / f"{family}.json", digests)


if __name__ == "__main__":
    main()
