"""Tables of the report, as data frames, and their files."""

from collections.abc import Sequence
from pathlib import Path

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
    return FAMILY_LABELS.get(family, family)


def tightness_table(results: Sequence[Result], settings: str) -> pd.DataFrame:
    """Return the paper's table of tightness: for each family and gamma measured, published and their difference.

    Percent of the upper bound that the empirical lower bound reaches, mean over seeds; ``settings`` says how the runs
    differ from the paper's.
    """
    paper = published("toy")["tightness"]["percent"]
    rows = []
    for family, group in _groups(results).items():
        row: dict[str, object] = {"family": label(family)}
        for gamma in dict.fromkeys(result.gamma for result in group):
            cell = [100 * result.lipschitz["tightness"] for result in group if result.gamma == gamma]
            measured = sum(cell) / len(cell)
            reference = paper.get(family, {}).get(gamma)
            row[f"γ = {gamma:g}"] = round(measured, 2)
            row[f"γ = {gamma:g} paper"] = reference
            row[f"γ = {gamma:g} Δ"] = None if reference is None else round(measured - reference, 1)
        row["parameters"] = group[0].description["parameters"]
        row["seeds"] = len({result.description["seed"] for result in group})
        row["settings"] = settings
        rows.append(row)
    return pd.DataFrame(rows)


def layers_table(results: Sequence[Result]) -> pd.DataFrame:
    """Return tightness in percent and spectral norm of each layer, measured and published, a row a layer.

    The last row of a family is the whole network: its tightness, and the product of the norms.
    """
    paper = published("toy")["layers"]
    rows = []
    for result in results:
        layers = result.lipschitz.get("layers")
        if result.gamma != paper["gamma"] or layers is None or layers["norms"] is None:
            continue
        names = ["input layer", *(f"hidden layer {k}" for k in range(1, len(layers["norms"]) - 1)), "output layer"]
        tightness = [100 * value for value in layers["tightness"]] + [100 * result.lipschitz["tightness"]]
        norms = [*layers["norms"], result.lipschitz["spectral_product"]]
        printed = paper["tightness_percent"].get(result.family)
        reference = [None] * len(tightness) if printed is None else [*printed, paper["network_percent"][result.family]]
        reference_norms = [*paper["norms"].get(result.family, [None] * len(layers["norms"])), None]
        for position, name in enumerate([*names, "full network"]):
            rows.append(
                {
                    "family": label(result.family),
                    "layer": name,
                    "tightness": round(tightness[position], 2),
                    "tightness published": reference[position],
                    "norm": round(norms[position], 4),
                    "norm published": reference_norms[position],
                }
            )
    return pd.DataFrame(rows)


def classification_table(results: Sequence[Result], certified_eps: Sequence[float]) -> pd.DataFrame:
    """Return clean, attacked and certified accuracy in percent.

    Means over seeds. Radii are numerators over 255.
    """
    rows = []
    for family, group in _groups(results).items():
        row: dict[str, object] = {
            "family": label(family),
            "γ": "none" if group[0].lipschitz["upper"] is None else f"{group[0].gamma:g}",
            "parameters": group[0].description["parameters"],
            "clean": _percent([result.clean() for result in group]),
        }
        for eps in group[0].attacked_radii():
            row[f"AutoAttack {eps * 255:.3g}/255"] = _percent([result.robust(eps) for result in group])
        for numerator in certified_eps:
            row[f"certified {numerator:g}/255"] = _percent([result.certified(numerator / 255) for result in group])
        row["seeds"] = len(group)
        rows.append(row)
    return pd.DataFrame(rows)


def bounds_table(results: Sequence[Result]) -> pd.DataFrame:
    """Return each family's Lipschitz bounds, from pixels, and their ratio in percent. Means over seeds."""
    rows = []
    for family, group in _groups(results).items():
        bounds = [result.lipschitz for result in group]
        rows.append(
            {
                "family": label(family),
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


def _groups(results: Sequence[Result]) -> dict[str, list[Result]]:
    return {family: [r for r in results if r.family == family] for family in dict.fromkeys(r.family for r in results)}


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that there are; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rounded(values: Sequence[float | None], digits: int) -> float | None:
    average = mean(values)
    return None if average is None else round(average, digits)


def _percent(values: Sequence[float | None]) -> float | None:
    return _rounded([None if value is None else 100 * value for value in values], 1)
