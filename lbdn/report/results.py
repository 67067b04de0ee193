"""What run folders hold, read back as one table a run: the only input of the report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lbdn.certify import certified_accuracy
from lbdn.files import read_json


@dataclass(frozen=True)
class Result:
    """A run folder's contents. ``certify`` and ``attack`` are None where the experiment has no such stage."""

    description: dict[str, Any]
    history: pd.DataFrame
    lipschitz: dict[str, Any]
    certify: pd.DataFrame | None
    attack: pd.DataFrame | None

    @property
    def family(self) -> str:
        """Of the run's layers."""
        return self.description["family"]

    @property
    def gamma(self) -> float:
        """The Lipschitz bound that was asked for."""
        return self.description["gamma"]

    @property
    def _certify(self) -> pd.DataFrame:
        if self.certify is None:
            raise ValueError(f"no certify.csv for {self.family}; run the certify stage")
        return self.certify

    def clean(self) -> float:
        """Return the clean accuracy on all test images, a fraction."""
        return float((self._certify["label"] == self._certify["prediction"]).mean())

    def certified(self, eps: float) -> float | None:
        """Return the certified accuracy on all test images, a fraction; None without a bound."""
        radius = self._certify["radius"]
        return None if radius.isna().all() else certified_accuracy(radius, eps)

    def on_attacked_images(self) -> "Result":
        """Return the result with certificates of the attacked images alone, or as it is without an attack."""
        if self.attack is None:
            return self
        return replace(self, certify=self._certify[self._certify["image"].isin(self.attack["image"])])

    def robust(self, eps: float) -> float:
        """Return the accuracy under AutoAttack on the attacked images, a fraction."""
        if self.attack is None:
            raise ValueError(f"no attack.csv for {self.family}; run the attack stage")
        return float(self.attack[f"robust@{eps:.6g}"].mean())

    def attacked_radii(self) -> list[float]:
        """Return the radii, in pixel units, at which the run was attacked."""
        columns = [] if self.attack is None else [str(name) for name in self.attack.columns]
        return [float(name.removeprefix("robust@")) for name in columns if name.startswith("robust@")]


def load_results(
    folder: Path, *, families: Iterable[str], sizes: Iterable[str], gammas: Iterable[float], seeds: Iterable[int]
) -> list[Result]:
    """Return the results of the grid's cells from an experiment's folder, in the grid's order.

    Folders of other cells, left from an earlier grid, are passed over.

    Raises:
        FileNotFoundError: if a cell has no run, naming the cell.
    """
    runs = {}
    for path in sorted(folder.glob("*/run.json")):
        description = read_json(path)
        key = (description["family"], description["size"], float(description["gamma"]), description["seed"])
        if (path.parent / "lipschitz.json").exists():
            runs[key] = _read(path.parent, description)
    wanted = [(f, s, float(g), n) for f in families for s in sizes for g in gammas for n in seeds]
    missing = [key for key in wanted if key not in runs]
    if missing:
        raise FileNotFoundError(f"no finished run in {folder} for {', '.join(map(str, missing))}; run `dvc repro`")
    return [runs[key] for key in wanted]


def _read(folder: Path, description: dict[str, Any]) -> Result:
    certify, attack = folder / "certify.csv", folder / "attack.csv"
    return Result(
        description,
        pd.read_csv(folder / "history.csv"),
        read_json(folder / "lipschitz.json"),
        pd.read_csv(certify) if certify.exists() else None,
        pd.read_csv(attack) if attack.exists() else None,
    )


def published(experiment: str) -> dict[str, Any]:
    """Return the paper's values for an experiment; empty where it isn't in the paper."""
    text = files("lbdn.report").joinpath("published.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text).get(experiment, {})


def differences(settings: Mapping[str, Any], experiment: str) -> str:
    """Return how settings, with dotted keys, differ from the paper's; "as published" where they don't."""
    paper = {k: v for k, v in published(experiment).get("settings", {}).items() if k != "place"}
    changed = [
        f"{key.split('.')[-1]} {settings.get(key)} (paper {value})"
        for key, value in paper.items()
        if str(settings.get(key)) != str(value)
    ]
    return ", ".join(changed) or "as published"
