"""What run folders hold, read back as one object a run: the only input of the report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lbdn.files import read_json
from lbdn.params import Cell

NETWORK = {"architecture": "architecture", "classes": "outputs"}  # a setting of the paper -> of a network
SETTINGS = {
    "train": "training samples",
    "test": "test samples",
    "attacked": "attacked images",
    "input_gain": "Lipschitz constant of the normalisation",
    "last_layer_normalization": "last-layer normalisation",
}
HEADLINE = 72  # radius of the headline metrics, a numerator over 255


@dataclass(frozen=True)
class Grid:
    """What an experiment consists of, and what its report shows.

    Attributes:
        cells: its networks.
        certify_radii_255: where certified accuracy is shown, numerators over 255.
        published: the key of the values in the paper to set beside its own.
    """

    cells: list[Cell]
    certify_radii_255: list[float]
    published: str


@dataclass(frozen=True)
class Result:
    """A run folder's contents; None where the experiment has no such stage.

    ``provenance`` says where the run was computed, and is empty where that isn't known.
    """

    description: dict[str, Any]
    history: pd.DataFrame
    lipschitz: dict[str, Any] | None
    certify: pd.DataFrame | None
    attack: pd.DataFrame | None
    provenance: dict[str, Any]

    @property
    def cell(self) -> Cell:
        """The run's place in the grid."""
        return Cell(*(self.description[name] for name in Cell._fields))

    @property
    def family(self) -> str:
        """Of the run's layers."""
        return self.description["family"]

    @property
    def size(self) -> str:
        """Of the run's architecture."""
        return self.description["size"]

    @property
    def gamma(self) -> float | None:
        """The upper Lipschitz bound from normalised input that was asked for."""
        return self.description["gamma"]

    @property
    def parameters(self) -> int:
        """How many parameters the network has."""
        return self.description["parameters"]

    def bound(self, name: str) -> float | None:
        """Return an entry of lipschitz.json: "lower", "upper", "tightness", ...; None if there is none."""
        return None if self.lipschitz is None else self.lipschitz[name]

    def clean(self) -> float:
        """Return the clean accuracy on all test images, a fraction."""
        if self.certify is None:
            return float(self.history["test_accuracy"].iloc[-1])
        return float((self.certify["label"] == self.certify["prediction"]).mean())

    def certified(self, eps: float, radius: str = "radius") -> float | None:
        """Return the certified accuracy on all test images, a fraction; None without a bound.

        Args:
            eps: in pixel units.
            radius: the column of certified radii: "radius" by the bound of each pair of classes, "radius_by_gamma" by
                gamma alone, "radius_sound" with all rounding errors counted.
        """
        if self.certify is None or radius not in self.certify:
            return None
        radii = self.certify[radius].to_numpy()
        return None if np.isnan(radii).all() else float((radii > eps).mean())

    def on_attacked_images(self) -> "Result":
        """Return the result with certificates of the attacked images alone, or as it is without an attack."""
        if self.attack is None or self.certify is None:
            return self
        return replace(self, certify=self.certify[self.certify["image"].isin(self.attack["image"])])

    def robust(self, eps: float) -> float:
        """Return the accuracy under AutoAttack on the attacked images, a fraction; at radius 0 the clean one."""
        if self.attack is None:
            raise ValueError(f"no attack.csv for {self.family}; run the attack stage")
        if not eps:
            return float((self.attack["label"] == self.attack["prediction"]).mean())
        return float(self.attack[f"robust@{eps:.6g}"].mean())

    def attacked_radii(self) -> list[float]:
        """Return the radii, in pixel units, at which the run was attacked."""
        columns = [] if self.attack is None else [str(name) for name in self.attack.columns]
        return [float(name.removeprefix("robust@")) for name in columns if name.startswith("robust@")]

    def epoch_seconds(self) -> float | None:
        """Return the median time of a training epoch, None if it isn't known."""
        return self.provenance["epoch"]["seconds"] if "epoch" in self.provenance else None


def load_results(folder: Path) -> tuple[Grid, list[Result]]:
    """Return the grid of an experiment's folder and the results of its cells, in the grid's order.

    Folders of other cells, left from an earlier grid, are passed over.

    Raises:
        FileNotFoundError: if a cell has no run, naming the cell, or there is no grid.json.
    """
    if not (folder / "grid.json").exists():
        raise FileNotFoundError(f"no grid.json in {folder}; run `dvc repro`, or `dvc pull` the runs")
    grid = Grid(**read_json(folder / "grid.json"))
    wanted = [Cell(*cell) for cell in grid.cells]
    runs = {result.cell: result for result in map(_read, sorted(folder.glob("*/run.json")))}
    missing = [cell for cell in wanted if cell not in runs]
    if missing:
        raise FileNotFoundError(f"no finished run in {folder} for {', '.join(map(str, missing))}; run `dvc repro`")
    return replace(grid, cells=wanted), [runs[cell] for cell in dict.fromkeys(wanted)]


def _read(path: Path) -> Result:
    folder = path.parent

    def table(name: str) -> pd.DataFrame | None:
        return pd.read_csv(folder / name) if (folder / name).exists() else None

    def contents(name: str) -> dict[str, Any] | None:
        return read_json(folder / name) if (folder / name).exists() else None

    return Result(
        description=read_json(path),
        history=pd.read_csv(folder / "history.csv"),
        lipschitz=contents("lipschitz.json"),
        certify=table("certify.csv"),
        attack=table("attack.csv"),
        provenance=contents("provenance.json") or {},
    )


def published(experiment: str) -> dict[str, Any]:
    """Return the paper's values for an experiment; empty where it isn't in the paper."""
    text = files("lbdn.report").joinpath("published.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text).get(experiment, {})


def published_row(paper: Mapping[str, Any], result: Result) -> dict[str, Any]:
    """Return the row of a published table for a network of that family, size and gamma; empty if there is none.

    There is none for another architecture or number of classes, either.
    """
    key = (result.family, result.size, result.gamma)
    rows = [row for row in published_rows(paper, result) if (row["family"], row["size"], row["gamma"]) == key]
    return rows[0] if rows else {}


def published_rows(paper: Mapping[str, Any], result: Result) -> list[dict[str, Any]]:
    """Return the rows of a published table; none if a network has another architecture or number of classes."""
    settings, network = paper.get("settings", {}), result.description.get("network", {})
    if any(settings.get(ours, network.get(key)) != network.get(key) for ours, key in NETWORK.items()):
        return []
    return paper.get("networks", [])


def differences(runs: Sequence[Result], paper: Mapping[str, Any]) -> list[str]:
    """Return how the settings of runs that differ in their seed alone differ from the paper's, one text a setting.

    Settings that the paper doesn't tell are passed over.
    """
    description, attack = runs[0].description, runs[0].attack
    training, network = description.get("training", {}), description["network"]  # no training: a model from elsewhere
    used = {**training, **description["samples"], "seeds": len(runs)}
    used |= {ours: network[key] for ours, key in NETWORK.items()}
    used["last_layer_normalization"] = network.get("last_layer_normalization", False)
    used["input_gain"] = round(_input_gain(network), 2)
    if training:
        used |= training["loss"] | {"loss": training["loss"]["name"]}
    if attack is not None:
        used["attacked"] = len(attack)
    return [
        f"{SETTINGS.get(key, key)} {used[key]} (paper {printed})"
        for key, printed in paper.get("settings", {}).items()
        if key in used and not _same(key, used[key], printed)
    ]


def budget(runs: Sequence[Result], paper: Mapping[str, Any]) -> str:
    """Return at what budget runs that differ in their seed alone were made, beside the paper's.

    "the paper's settings" where they are; empty where the paper tells none. Values that the paper takes from another
    one, whose settings aren't known here, are named with their source.
    """
    changed = differences(runs, paper)
    source = published_row(paper, runs[0]).get("source")
    if source:
        changed.append(f"published values from {source}, at its own settings")
    return ", ".join(changed) or ("the paper's settings" if "settings" in paper else "")


def _input_gain(network: Mapping[str, Any]) -> float:
    """Return the Lipschitz constant of what a network does to pixels before its first layer."""
    normalization = network.get("normalization")
    return 1.0 if normalization is None else 1 / min(normalization[1])


def _same(key: str, used: Any, printed: Any) -> bool:
    """Return whether a setting is the paper's; statistics of a part of the paper's images are, to two digits."""
    return math.isclose(used, printed, rel_tol=5e-3) if key == "input_gain" else used == printed
