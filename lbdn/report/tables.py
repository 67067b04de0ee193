"""Tables of the report, as data frames, and their files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lbdn.files import write_text
from lbdn.report.results import Result, published

FAMILY_LABELS = {
    "plain": "Unconstrained",
    "aol": "AOL",
    "orthogonal": "Orthogonal",
    "sll": "SLL",
    "sandwich": "Sandwich",
}


def label(family: str) -> str:
    """Return how the report names a family."""
    name, *rest = family.split(" ", 1)
    return " ".join([FAMILY_LABELS.get(name, name), *rest])


def group(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the runs that differ in their seed alone, by family; size and gamma are named where there are several."""
    sizes, gammas = {r.description["size"] for r in results}, {r.gamma for r in results}
    groups: dict[str, list[Result]] = {}
    for result in results:
        name = result.family
        name += f" {result.description['size']}" if len(sizes) > 1 else ""
        name += f" γ={result.gamma:g}" if len(gammas) > 1 else ""
        groups.setdefault(name, []).append(result)
    return groups


def tightness_table(results: Sequence[Result], settings: str) -> pd.DataFrame:
    """Return the paper's table of tightness: for each family and gamma measured, published and their difference.

    Percent of the upper bound that the empirical lower bound reaches, mean over seeds; ``settings`` says how the runs
    differ from the paper's.
    """
    paper = published("toy")["tightness"]["percent"]
    rows = []
    for family in dict.fromkeys(result.family for result in results):
        runs = [result for result in results if result.family == family]
        row: dict[str, object] = {"family": label(family)}
        for gamma in dict.fromkeys(result.gamma for result in runs):
            cell = [100 * result.lipschitz["tightness"] for result in runs if result.gamma == gamma]
            measured = sum(cell) / len(cell)
            reference = paper.get(family, {}).get(gamma)
            row[f"γ = {gamma:g}"] = round(measured, 2)
            row[f"γ = {gamma:g} paper"] = reference
            row[f"γ = {gamma:g} Δ"] = None if reference is None else round(measured - reference, 1)
        row["parameters"] = runs[0].description["parameters"]
        row["seeds"] = len({result.description["seed"] for result in runs})
        row["settings"] = settings
        rows.append(row)
    return pd.DataFrame(rows)


def layers_table(results: Sequence[Result]) -> pd.DataFrame:
    """Return tightness in percent and spectral norm of each layer, measured and published, a row a layer.

    Means over seeds. The last row of a family is the whole network: its tightness, and the product of the norms.
    """
    paper = published("toy")["layers"]
    chosen = [r for r in results if r.gamma == paper["gamma"] and (r.lipschitz.get("layers") or {}).get("norms")]
    rows = []
    for family in dict.fromkeys(result.family for result in chosen):
        runs = [result.lipschitz for result in chosen if result.family == family]
        tightness = np.mean([[*run["layers"]["tightness"], run["tightness"]] for run in runs], axis=0)
        norms = np.mean([[*run["layers"]["norms"], run["spectral_product"]] for run in runs], axis=0)
        hidden = [f"hidden layer {k}" for k in range(1, len(norms) - 2)]
        none = [None] * len(norms)
        printed = [*paper["tightness_percent"].get(family, none[1:]), paper["network_percent"].get(family)]
        printed_norms = [*paper["norms"].get(family, none[1:]), None]
        for position, name in enumerate(["input layer", *hidden, "output layer", "full network"]):
            rows.append(
                {
                    "family": label(family),
                    "layer": name,
                    "tightness": round(100 * tightness[position], 2),
                    "tightness published": printed[position],
                    "norm": round(norms[position], 4),
                    "norm published": printed_norms[position],
                }
            )
    return pd.DataFrame(rows)


def classification_table(results: Sequence[Result], certified_eps: Sequence[float]) -> pd.DataFrame:
    """Return clean, attacked and certified accuracy in percent.

    Means over seeds. Radii are numerators over 255.
    """
    rows = []
    for name, runs in group(results).items():
        row: dict[str, object] = {
            "family": label(name),
            "γ": "none" if runs[0].lipschitz["upper"] is None else f"{runs[0].gamma:g}",
            "parameters": runs[0].description["parameters"],
            "clean": _percent([result.clean() for result in runs]),
        }
        for eps in runs[0].attacked_radii():
            row[f"AutoAttack {eps * 255:.3g}/255"] = _percent([result.robust(eps) for result in runs])
        for numerator in certified_eps:
            row[f"certified {numerator:g}/255"] = _percent([result.certified(numerator / 255) for result in runs])
        row["seeds"] = len(runs)
        rows.append(row)
    return pd.DataFrame(rows)


def bounds_table(results: Sequence[Result]) -> pd.DataFrame:
    """Return each family's Lipschitz bounds, from pixels, and their ratio in percent. Means over seeds."""
    rows = []
    for name, runs in group(results).items():
        bounds = [result.lipschitz for result in runs]
        rows.append(
            {
                "family": label(name),
                "lower bound (found)": _rounded([b["lower"] for b in bounds], 3),
                "upper bound (guaranteed)": _rounded([b["upper"] for b in bounds], 3),
                "tightness": _percent([b["tightness"] for b in bounds]),
            }
        )
    return pd.DataFrame(rows)


def learning_curves(results: Sequence[Result]) -> pd.DataFrame:
    """Return train loss and test error (a fraction; the loss, for regression) of each epoch, a row a run and epoch."""
    frames = []
    for result in results:
        frame = result.history[["epoch", "train_loss", "test_loss"]].assign(
            family=label(result.family), seed=result.description["seed"]
        )
        if "test_accuracy" in result.history:
            frame["test_error"] = 1 - result.history["test_accuracy"]
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def write_table(table: pd.DataFrame, stem: Path) -> None:
    """Write a table as CSV, Markdown and LaTeX, beside each other."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = table.astype(object).where(table.notna(), "")
    write_text(stem.with_suffix(".csv"), table.to_csv(index=False, lineterminator="\n"))
    write_text(stem.with_suffix(".md"), text.to_markdown(index=False, disable_numparse=True) + "\n")
    latex = text.rename(columns=lambda name: name.replace("γ", r"$\gamma$"))
    write_text(stem.with_suffix(".tex"), latex.style.hide(axis="index").to_latex(hrules=True))


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that there are; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rounded(values: Sequence[float | None], digits: int) -> float | None:
    average = mean(values)
    return None if average is None else round(average, digits)


def _percent(values: Sequence[float | None]) -> float | None:
    return _rounded([None if value is None else 100 * value for value in values], 1)
