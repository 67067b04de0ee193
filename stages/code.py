"""Note the source that results rest on, so that an edit reruns what it touches and nothing else."""

import hashlib
from pathlib import Path

import click

import lbdn
from lbdn.files import write_json
from lbdn.params import load_params
from lbdn.registry import fingerprint
from stages.common import errors_in_one_line

ROOT = Path(lbdn.__file__).parents[1]
# What the networks of all families run on.
NETWORKS = (
    "lbdn/architectures.py",
    "lbdn/cayley.py",
    "lbdn/circular.py",
    "lbdn/gram.py",
    "lbdn/networks.py",
    "lbdn/precision.py",
    "lbdn/layers/base.py",
    "lbdn/layers/convolution.py",
    "lbdn/layers/frozen.py",
    "lbdn/layers/normalization.py",
)
# What those of some families run on besides.
SHARED = {
    "spectral": ("lbdn/layers/constrained.py", "lbdn/layers/norms.py"),
    "bcop": ("lbdn/layers/constrained.py", "lbdn/layers/norms.py"),
    "soc": ("lbdn/layers/constrained.py", "lbdn/layers/norms.py"),
    "lot": ("lbdn/layers/constrained.py", "lbdn/layers/norms.py"),
    "cpl": ("lbdn/layers/norms.py", "lbdn/layers/residual.py"),
    "sll": ("lbdn/layers/residual.py",),
}
# What a kind of stage runs on besides its networks.
MODELS = ("lbdn/runs.py", "lbdn/inference.py", "lbdn/data/prepared.py")
STAGES = {
    "train": (
        "stages/train.py",
        "lbdn/training.py",
        "lbdn/losses.py",
        "lbdn/schedules.py",
        "lbdn/data/augmentation.py",
        *MODELS,
    ),
    "adopt": ("stages/adopt.py", "lbdn/julia.py", *MODELS),
    "lipschitz": (
        "stages/lipschitz.py",
        "lbdn/bounds/lower.py",
        "lbdn/bounds/upper.py",
        "lbdn/explicit.py",
        *MODELS,
    ),
    "certify": (
        "stages/certify.py",
        "lbdn/certify.py",
        "lbdn/certificate.py",
        "lbdn/verify",
        "lbdn/explicit.py",
        "lbdn/bounds",
        *MODELS,
    ),
    "attack": ("stages/attack.py", "lbdn/attack.py", "lbdn/certify.py", *MODELS),
}


def code_digests(family: str, architecture: str) -> dict[str, str]:
    """Return digests of the code that a family's networks run on; of plugins, the file that registers them."""
    return {
        "family": fingerprint("families", family),
        "architecture": fingerprint("architectures", architecture),
        "networks": digest_of(*NETWORKS, *SHARED.get(family, ())),
    }


def digest_of(*names: str) -> str:
    """Return the SHA-256 of files, and of the modules in folders, of this project."""
    paths = [path for name in names for path in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@errors_in_one_line
def main(folder: Path) -> None:
    """Write FOLDER/families/FAMILY.json and FOLDER/stages/STAGE.json, digests of the code that they run on.

    Training and evaluation depend on these files. Of a family or an architecture of another package, the file that
    registers it is digested; after other changes of that package, run `dvc repro -f code`.
    """
    used: dict[str, set[str]] = {}
    for experiment in load_params().experiments.values():
        baselines = experiment.baselines.families if experiment.baselines else []
        for family in experiment.families + baselines:
            used.setdefault(family, set()).add(experiment.architecture)
    for family, architectures in used.items():
        digests = {name: code_digests(family, name) for name in sorted(architectures)}
        write_json(folder / "families" / f"{family}.json", digests)
    for stage, names in STAGES.items():
        write_json(folder / "stages" / f"{stage}.json", {name: digest_of(name) for name in names})


if __name__ == "__main__":
    main()
