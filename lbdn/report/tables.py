"""Tables of the report, as data frames, and their files."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lbdn.files import write_text
from lbdn.report.results import Result, budget, published_row

FAMILY_LABELS = {
    "plain": "Unconstrained",
    "aol": "AOL",
    "orthogonal": "Orthogonal",
    "sll": "SLL",
    "sandwich": "Sandwich",
    "spectral": "Spectral",
    "bcop": "BCOP",
    "soc": "SOC",
    "lot": "LOT",
    "cpl": "CPL",
}

# Of certify.csv, as the table of certificates names them.
RADII = {"by γ": "radius_by_gamma", "by pairs": "radius", "in floats": "radius_sound"}

# What stands beside a measured value: its standard deviation over seeds, the published value, the difference.
BESIDE = (" ±", " paper", " Δ")


def label(family: str) -> str:
    """Return how the report names a family."""
    return FAMILY_LABELS.get(family, family)


def group(results: Sequence[Result]) -> list[list[Result]]:
    """Return the runs that differ in their seed alone, together."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(result.cell[:3], []).append(result)
    return list(groups.values())


def name(result: Result, among: Sequence[Result], *, plain: bool = False) -> str:
    """Return how a network is called among others: its family, with size and gamma where there are several.

    Args:
        result: of the network.
        among: all results shown beside it.
        plain: whether to keep to lower case, hyphens and ASCII, as keys of files do.
    """
    parts = [result.family if plain else label(result.family)]
    if len({other.size for other in among}) > 1:
        parts.append(result.size)
    if len({other.gamma for other in among} - {None}) > 1 and result.gamma is not None:
        parts.append(f"gamma{result.gamma:g}" if plain else f"γ={result.gamma:g}")
    return "-".join(parts) if plain else " ".join(parts)


def tightness_table(results: Sequence[Result], paper: Mapping[str, Any]) -> pd.DataFrame:
    """Return the paper's table of tightness: for each family and gamma measured, published and their difference.

    Percent of the upper bound that the empirical lower bound reaches, mean over seeds.
    """
    printed = paper.get("tightness", {}).get("percent", {})
    rows = []
    for family in dict.fromkeys(result.family for result in results):
        runs = [result for result in results if result.family == family]
        row: dict[str, object] = {"family": label(family)}
        for gamma in dict.fromkeys(result.gamma for result in runs):
            cell = [result.bound("tightness") for result in runs if result.gamma == gamma]
            row |= _measured(f"γ = {gamma:g}", percentages(cell), printed.get(family, {}).get(gamma), 2)
        row["parameters"] = runs[0].parameters
        row["seeds"] = len({result.cell.seed for result in runs})
        row["budget"] = budget([run for run in runs if run.gamma == runs[0].gamma], paper)
        rows.append(row)
    return _without_empty(pd.DataFrame(rows))


def layers_table(results: Sequence[Result], paper: Mapping[str, Any]) -> pd.DataFrame:
    """Return tightness in percent and spectral norm of each layer, measured and published.

    A row a layer, means over seeds. The last row of a family is the whole network: its tightness, and the product of
    the norms. Norms have no difference: some are printed other than the paper's formula has them.
    """
    printed = paper.get(
        "layers", {"gamma": 1, "tightness_percent": {}, "network_percent": {}, "norms": {}, "network_norm": {}}
    )
    chosen = [
        result
        for result in results
        if result.gamma == printed["gamma"] and result.lipschitz and result.lipschitz.get("layers", {}).get("norms")
    ]
    rows = []
    for runs in group(chosen):
        family, bounds = runs[0].family, [run.lipschitz for run in runs if run.lipschitz]
        tightness = np.mean([[*found["layers"]["tightness"], found["tightness"]] for found in bounds], axis=0)
        norms = np.mean([[*found["layers"]["norms"], found["spectral_product"]] for found in bounds], axis=0)
        hidden = [f"hidden layer {k}" for k in range(1, len(norms) - 2)]
        none = [None] * len(norms)
        percents = [*printed["tightness_percent"].get(family, none), printed["network_percent"].get(family)]
        published_norms = [*printed["norms"].get(family, none), printed["network_norm"].get(family)]
        if len(published_norms) != len(norms):  # of another depth
            percents = published_norms = none
        for position, layer in enumerate(["input layer", *hidden, "output layer", "full network"]):
            row: dict[str, object] = {"family": label(family), "layer": layer}
            row |= _compared("tightness", round(100 * tightness[position], 2), percents[position], 2)
            row |= {"norm": round(norms[position], 4), "norm paper": published_norms[position]}
            rows.append(row | {"budget": budget(runs, paper)})
    return _without_empty(pd.DataFrame(rows))


def classification_table(
    results: Sequence[Result], certified_eps: Sequence[float], paper: Mapping[str, Any]
) -> pd.DataFrame:
    """Return clean, attacked and certified accuracy in percent, a row a network.

    Means over seeds with their standard deviation, beside published values and the difference from them. Radii are
    numerators over 255. ``budget`` says how a row's settings differ from the paper's, ``seeds`` over how many its means
    are.
    """
    rows = []
    for runs in group(results):
        first, printed = runs[0], published_row(paper, runs[0])
        row: dict[str, object] = {
            "network": label(first.family),
            "size": first.size,
            "γ": "none" if first.gamma is None else f"{first.gamma:g}",
        }
        row |= _measured("clean", percentages([run.clean() for run in runs]), printed.get("clean"))
        for eps in first.attacked_radii():
            numerator = round(255 * eps, 2)
            values = percentages([run.robust(eps) for run in runs])
            row |= _measured(f"AutoAttack {numerator:g}/255", values, printed.get("robust", {}).get(numerator))
        for numerator in certified_eps:
            values = percentages([run.certified(numerator / 255) for run in runs])
            row |= _measured(f"certified {numerator:g}/255", values, printed.get("certified", {}).get(numerator))
        row["parameters"] = first.parameters
        row["parameters paper"] = printed.get("parameters")
        if paper.get("times"):
            comparable = first.description["samples"].get("train") == paper["settings"]["train"]
            row["seconds an epoch"] = rounded([run.epoch_seconds() for run in runs], 1)
            row["seconds an epoch paper"] = printed.get("epoch_seconds") if comparable else None
        row["seeds"] = len(runs)
        row["budget"] = budget(runs, paper)
        rows.append(row)
    table = _without_empty(pd.DataFrame(rows))
    return table.drop(columns="size") if len(set(table["size"])) == 1 else table


def bounds_table(results: Sequence[Result], paper: Mapping[str, Any]) -> pd.DataFrame:
    """Return each network's Lipschitz bounds, from pixels, and their ratio in percent. Means over seeds."""
    rows = []
    for runs in group(results):
        rows.append(
            {
                "network": name(runs[0], results),
                "lower bound (found)": _significant([run.bound("lower") for run in runs]),
                "upper bound (guaranteed)": _significant([run.bound("upper") for run in runs]),
                "tightness": rounded(percentages([run.bound("tightness") for run in runs]), 1),
                "budget": budget(runs, paper),
            }
        )
    return _without_empty(pd.DataFrame(rows))


def certificates_table(
    results: Sequence[Result], certified_eps: Sequence[float], paper: Mapping[str, Any]
) -> pd.DataFrame:
    """Return certified accuracy in percent by gamma alone, by pairs of classes, and counting all rounding errors.

    A row a network with a bound, means over seeds. Radii are numerators over 255.
    """
    rows = []
    for runs in group([result for result in results if result.gamma is not None]):
        row: dict[str, object] = {"network": name(runs[0], results)}
        for numerator in certified_eps:
            for column, radius in RADII.items():
                values = percentages([run.certified(numerator / 255, radius) for run in runs])
                row[f"{numerator:g}/255 {column}"] = rounded(values, 2)
        rows.append(row | {"budget": budget(runs, paper)})
    return _without_empty(pd.DataFrame(rows))


def gammas_table(results: Sequence[Result], eps: float, paper: Mapping[str, Any]) -> pd.DataFrame:
    """Return robust accuracy at one radius in percent, a column a gamma, and the gamma at which it is best.

    Means over seeds, for networks with a bound. Beside the best gamma stands the one that the paper chose.
    """
    rows: dict[tuple[str, str], dict[float, list[Result]]] = {}
    for runs in group([result for result in results if result.gamma is not None]):
        rows.setdefault((runs[0].family, runs[0].size), {})[runs[0].gamma or 0.0] = runs
    table = []
    for (family, size), by_gamma in rows.items():
        accuracy = {gamma: percent([run.robust(eps) for run in runs]) for gamma, runs in by_gamma.items()}
        row: dict[str, object] = {"network": label(family), "size": size}
        row |= {f"γ = {gamma:g}": round(value, 1) for gamma, value in accuracy.items()}
        row["best γ"] = f"{max(accuracy, key=lambda gamma: accuracy[gamma]):g}"
        row["best γ paper"] = paper.get("best_gamma", {}).get(round(255 * eps, 2))
        table.append(row | {"budget": budget(next(iter(by_gamma.values())), paper)})
    return _without_empty(pd.DataFrame(table))


def learning_curves(results: Sequence[Result]) -> pd.DataFrame:
    """Return train loss and test error (a fraction; the loss, for regression) of each epoch, a row a run and epoch."""
    frames = []
    for result in results:
        frame = result.history[["epoch", "train_loss", "test_loss"]].assign(
            family=name(result, results), seed=result.cell.seed
        )
        if "test_accuracy" in result.history:
            frame["test_error"] = 1 - result.history["test_accuracy"]
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def write_table(table: pd.DataFrame, stem: Path) -> None:
    """Write a table as CSV, Markdown and LaTeX, beside each other."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    table = table.apply(_aligned)
    text = table.astype(object).where(table.notna(), "")
    write_text(stem.with_suffix(".csv"), table.to_csv(index=False, lineterminator="\n"))
    write_text(stem.with_suffix(".md"), text.to_markdown(index=False, disable_numparse=True) + "\n")
    text, common = without_common_budget(text)
    latex = text.rename(columns=lambda column: _latex(column)).map(lambda cell: _latex(str(cell)))
    note = rf"\par\smallskip{{\footnotesize Budget of all rows: {_latex(common)}.\par}}" + "\n" if common else ""
    write_text(stem.with_suffix(".tex"), latex.style.hide(axis="index").to_latex(hrules=True) + note)


def without_common_budget(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return a table without its column of budgets and the budget, if that is the same in all rows."""
    if "budget" not in table or len(set(table["budget"])) > 1:
        return table, ""
    return table.drop(columns="budget"), str(table["budget"].iloc[0])


def _aligned(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column of percentages, numbers of one or two decimals, as text with equally many."""
    if not pd.api.types.is_float_dtype(column):
        return column
    decimals = max(len(str(value).partition(".")[2]) for value in column.dropna()) if column.notna().any() else 0
    return column.map(lambda value: f"{value:.{decimals}f}", na_action="ignore") if decimals in (1, 2) else column


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that there are; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def percent(values: Sequence[float | None]) -> float:
    """Return the mean of fractions in percent, passing over what isn't there."""
    return 100 * statistics.fmean(value for value in values if value is not None)


def rounded(values: Sequence[float | None], digits: int) -> float | None:
    """Return the mean of the values that there are, rounded; None if there are none."""
    average = mean(values)
    return None if average is None else round(average, digits)


def _significant(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that there are to four digits; None if there are none."""
    average = mean(values)
    return None if average is None else float(f"{average:.4g}")


def percentages(values: Sequence[float | None]) -> list[float | None]:
    """Return fractions in percent, None where there is none."""
    return [None if value is None else 100 * value for value in values]


def _measured(column: str, values: Sequence[float | None], printed: float | None, digits: int = 1) -> dict[str, object]:
    """Return the cells of one quantity: mean, standard deviation over seeds, published value, difference."""
    known = [value for value in values if value is not None]
    spread = round(float(np.std(known, ddof=1)), digits) if len(known) > 1 else None
    compared = _compared(column, rounded(values, digits), printed, 1)
    return {column: compared.pop(column), f"{column} ±": spread} | compared


def _compared(column: str, value: float | None, printed: float | None, digits: int) -> dict[str, object]:
    """Return the cells of one value beside the published one: it, that, their difference."""
    difference = None if value is None or printed is None else round(value - printed, digits)
    return {column: value, f"{column} paper": printed, f"{column} Δ": difference}


def _without_empty(table: pd.DataFrame) -> pd.DataFrame:
    """Leave out columns beside the measured ones that nothing stands in."""
    beside = [column for column in table if str(column).endswith((*BESIDE, "budget", "seconds an epoch"))]
    empty = [column for column in beside if table[column].isna().all() or (table[column] == "").all()]
    return table.drop(columns=empty)


def _latex(text: str) -> str:
    replaced: Mapping[str, str] = {"γ": r"$\gamma$", "Δ": r"$\Delta$", "±": r"$\pm$", "_": r"\_", "%": r"\%"}
    for symbol, command in replaced.items():
        text = text.replace(symbol, command)
    return text
