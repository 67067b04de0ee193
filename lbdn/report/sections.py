"""One section of the report an experiment: its tables, figures, headline metrics and captions, from its results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lbdn.files import write_json
from lbdn.report import figures, tables
from lbdn.report.results import Result, differences


@dataclass(frozen=True)
class Section:
    """A section. Tables and figures are keyed by file name, with their captions.

    Attributes:
        title: of the section.
        lead: one paragraph, what was done and what came out.
        tables: name -> (table, caption).
        figures: name -> (figure, caption).
        data: name -> table that is written but not shown, such as the points of a figure.
        metrics: headline figures, family -> name -> value.
    """

    title: str
    lead: str
    tables: dict[str, tuple[pd.DataFrame, str]]
    figures: dict[str, tuple[Figure, str]]
    data: dict[str, pd.DataFrame]
    metrics: dict[str, dict[str, float]]


def fitting_section(results: Sequence[Result], settings: Mapping[str, Any]) -> Section:
    """Return the section of the paper's toy example. ``settings`` are the experiment's, with dotted keys."""
    table = tables.tightness_table(results, differences(settings, "toy"))
    layers = tables.layers_table(results)
    gammas = list(dict.fromkeys(result.gamma for result in results))
    tightest = max(results, key=lambda result: (result.gamma == max(gammas), result.lipschitz["tightness"]))
    shown = {
        "tightness": (
            table,
            "Tightness of the Lipschitz bound in percent: the empirical lower bound over gamma. Paper: its Table 1; "
            "Δ: measured less published.",
        )
    }
    drawn = {
        "square-wave": (
            figures.square_wave(results),
            f"Fits of the square wave with Lipschitz bound {max(gammas):g}. The dotted line is the best that the "
            "bound allows.",
        )
    }
    if len(layers):
        drawn["layers"] = (
            figures.layers(layers),
            "Layer by layer at gamma 1: tightness of each layer and of the whole network (left), spectral norms of "
            "the explicit weights (right); published values hollow. The paper prints Sandwich's first and last norm "
            "a factor of the square root of 2 smaller than its own formula gives.",
        )
    metrics: dict[str, dict[str, float]] = {}
    for result in results:
        metrics.setdefault(result.family, {})[f"tightness_gamma{result.gamma:g}"] = _round(
            result.lipschitz["tightness"]
        )
    whole = layers[layers["layer"] == "full network"] if len(layers) else layers
    products = ", ".join(f"{row['family']} {row['norm']:.4g}" for row in whole.to_dict("records"))
    return Section(
        title="Tightness: fitting a square wave",
        lead=f"Networks of {len(table)} families fit a square wave under Lipschitz bounds "
        f"{', '.join(f'{gamma:g}' for gamma in gammas)}. Its jumps ask for all the slope that a bound allows, so how "
        f"close the steepest slope comes to the bound says how tight the bound is. "
        f"{tables.label(tightest.family)} comes closest: {100 * tightest.lipschitz['tightness']:.1f} % at bound "
        f"{tightest.gamma:g}."
        + (
            f" At bound 1 the product of the spectral norms of the weights, an upper bound that ignores how layers fit "
            f"together, is: {products}."
            if products
            else ""
        ),
        tables=shown,
        figures=drawn,
        data={"layers": layers, "learning-curves": tables.learning_curves(results)},
        metrics=metrics,
    )


def classification_section(results: Sequence[Result], certified_eps: Sequence[float]) -> Section:
    """Return the section of an experiment on images. ``certified_eps`` are numerators over 255."""
    description = results[0].description
    tested, attacked = (0 if rows is None else len(rows) for rows in (results[0].certify, results[0].attack))
    headline = min(certified_eps, key=lambda numerator: abs(numerator - 72))
    metrics = {name: _headline_metrics(runs, headline) for name, runs in tables.group(results).items()}
    return Section(
        title=f"Robust classification: {description['dataset']}",
        lead=_lead(description, metrics, headline),
        tables={
            "accuracy": (
                tables.classification_table(results, certified_eps),
                f"Accuracies in percent: clean and certified on all {tested} test images, under AutoAttack (standard "
                f"version, l2) on {attacked} of them, drawn evenly from the classes. Image by image, certified is "
                f"never above attacked; between all images and the sample it can be. Radii are in pixels on [0, 1].",
            ),
            "bounds": (
                tables.bounds_table(results),
                "Lipschitz bounds of the whole network, from pixels: the largest slope that a search found, and γ over "
                "the smallest standard deviation of the normalisation.",
            ),
        },
        figures={
            "accuracy-by-radius": (
                figures.accuracy_by_radius(results),
                "Accuracy of the attacked images against the size of the perturbation: certified (lines) and under "
                "AutoAttack (markers). The truth lies between the two.",
            ),
            "tightness": (
                figures.tightness(results),
                "Lipschitz constant of the whole network, from pixels: the largest slope found and the guaranteed "
                "bound.",
            ),
            "learning-curves": (figures.learning_curves(results), "Test error by epoch."),
        },
        data={"learning-curves": tables.learning_curves(results)},
        metrics=metrics,
    )


def write_section(section: Section, experiment: str, reports: Path) -> None:
    """Write a section's files to ``reports/tables/<experiment>`` and ``reports/figures/<experiment>``."""
    table_folder, figure_folder = reports / "tables" / experiment, reports / "figures" / experiment
    for name, (table, _) in section.tables.items():
        tables.write_table(table, table_folder / name)
    for name, data in section.data.items():
        tables.write_table(data, table_folder / name)
    for name, (figure, _) in section.figures.items():
        figures.write_figure(figure, figure_folder / name)
    write_json(
        table_folder / "section.json",
        {
            "title": section.title,
            "lead": section.lead,
            "tables": {name: caption for name, (_, caption) in section.tables.items()},
            "figures": {name: caption for name, (_, caption) in section.figures.items()},
            "metrics": section.metrics,
        },
    )


def _headline_metrics(runs: Sequence[Result], numerator: float) -> dict[str, float]:
    """Return a family's mean accuracies at one radius, a numerator over 255, and its tightness."""
    values: dict[str, list[float | None]] = {"clean": [result.clean() for result in runs]}
    for eps in runs[0].attacked_radii():
        if round(255 * eps) == numerator:
            values[f"robust_{numerator:g}"] = [result.robust(eps) for result in runs]
    values[f"certified_{numerator:g}"] = [result.certified(numerator / 255) for result in runs]
    values["tightness"] = [result.lipschitz["tightness"] for result in runs]
    means = {name: tables.mean(column) for name, column in values.items()}
    return {name: _round(value) for name, value in means.items() if value is not None}


def _lead(description: Mapping[str, Any], metrics: Mapping[str, Mapping[str, float]], numerator: float) -> str:
    network, training = description["network"], description["training"]
    text = (
        f"One architecture ({network['architecture']}, {description['size']}) built from each family — "
        f"{', '.join(map(tables.label, metrics))} — with Lipschitz bound {description['gamma']:g} from normalised "
        f"input, trained for {training['epochs']} epochs on {description['dataset']}."
    )
    certified = {name: row[f"certified_{numerator:g}"] for name, row in metrics.items() if "tightness" in row}
    if certified:
        best = max(certified, key=lambda name: certified[name])
        text += (
            f" {tables.label(best)} certifies most at radius {numerator:g}/255: {100 * certified[best]:.1f} % of the "
            f"test images, of {100 * metrics[best]['clean']:.1f} % that it classifies correctly."
        )
    return text


def _round(value: float) -> float:
    return round(float(value), 4)
