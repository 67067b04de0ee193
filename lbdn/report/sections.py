"""One section of the report an experiment: its tables, figures and headline metrics, from its results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lbdn.files import write_json, write_text
from lbdn.report import figures, tables, text
from lbdn.report.look import panels, write_figure
from lbdn.report.results import HEADLINE, Grid, Result, published, published_rows

PANELS = 6  # more make a figure that nobody can read


@dataclass(frozen=True)
class Section:
    """A section. Tables and figures are keyed by file name, with their captions. Without any, it isn't shown.

    Attributes:
        title: of the section.
        lead: one paragraph, what was done and what came out.
        tables: name -> (table, caption).
        figures: name -> (figure, caption).
        data: name -> table that is written as CSV but not shown, such as the points of a figure.
        metrics: headline figures, network -> name -> value.
    """

    title: str
    lead: str = ""
    tables: dict[str, tuple[pd.DataFrame, str]] = field(default_factory=dict)
    figures: dict[str, tuple[Figure, str]] = field(default_factory=dict)
    data: dict[str, pd.DataFrame] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


def make_section(experiment: str, grid: Grid, results: Sequence[Result]) -> Section:
    """Return the section of an experiment, from the results of its grid."""
    paper = published(grid.published)
    title = paper.get("title") or f"Robust classification: {results[0].description['dataset'] if results else '-'}"
    if grid.published != experiment or not paper:
        title += f" — {experiment}"
    fitting = bool(results) and "test_accuracy" not in results[0].history
    if fitting:
        results = [result for result in results if result.gamma is not None]  # tightness is one of a bound
    if not results:
        return Section(title)
    if fitting:
        return fitting_section(title, results, paper)
    return classification_section(title, results, grid.certify_radii_255, paper)


def fitting_section(title: str, results: Sequence[Result], paper: Mapping[str, Any]) -> Section:
    """Return the section of the paper's toy example, or of another regression of one variable."""
    table = tables.tightness_table(results, paper)
    layers = tables.layers_table(results, paper)
    gammas = list(dict.fromkeys(result.gamma for result in results))
    largest = max(gamma or 0.0 for gamma in gammas)
    published_tightness = published_layers = ""
    if "tightness" in paper:
        published_tightness = f" Paper: its {paper['tightness']['place']}; Δ: measured less published."
    if "layers" in paper:
        published_layers = f" Hollow: the paper's {paper['layers']['place']}."
        if "sandwich" in {result.family for result in results}:
            published_layers += (
                " There Sandwich's first and last norm are a factor of the square root of 2 below the paper's own "
                "formula, and the product of all norms is half of it."
            )
    shown = {
        "tightness": (
            table,
            f"Tightness in percent: the empirical lower Lipschitz bound over the upper one, γ.{published_tightness}",
        )
    }
    drawn = {
        "square-wave": (
            figures.square_wave(results),
            f"Fits of the square wave with upper Lipschitz bound {largest:g}, and their tightness."
            + (" The dotted line is the best that the bound allows." if largest >= 1 else ""),
        )
    }
    if len(gammas) > 1:
        drawn["tightness-by-gamma"] = (
            figures.tightness_by_gamma(results),
            "Tightness against the upper Lipschitz bound: what is left of it when a network is composed of layers, "
            "each with its own.",
        )
    if len(layers):
        drawn["layers"] = (
            figures.layers(layers),
            "Layer by layer at gamma 1: tightness of each layer and of the whole network (left), spectral norms of "
            f"the explicit weights (right).{published_layers}",
        )
    metrics: dict[str, dict[str, float]] = {}
    for runs in tables.group(results):
        value = _round(tables.mean([run.bound("tightness") for run in runs]))
        metrics.setdefault(runs[0].family, {})[f"tightness_gamma{runs[0].gamma:g}"] = value
    return Section(
        title=title,
        lead=text.fitting_lead(results, layers, paper),
        tables=shown,
        figures=text.marked(drawn, results, paper),
        data={"layers": layers, **_curves(results)},
        metrics=metrics,
    )


def classification_section(
    title: str, results: Sequence[Result], certified_eps: Sequence[float], paper: Mapping[str, Any]
) -> Section:
    """Return the section of an experiment on images: the tables and figures that its results allow.

    ``certified_eps`` are numerators over 255.
    """
    attacked, bounded = results[0].attacked_radii(), [result for result in results if result.gamma is not None]
    searched = all(result.lipschitz is not None for result in results)
    several_seeds = len({result.cell.seed for result in results}) > 1
    several_gammas = len({result.gamma for result in bounded}) > 1
    several_sizes = len({result.size for result in results}) > 1
    other_sizes = {row["size"] for row in published_rows(paper, results[0])} - {results[0].size}
    shown = {
        "accuracy": (tables.classification_table(results, certified_eps, paper), text.accuracy_caption(results, paper))
    }
    drawn: dict[str, tuple[Figure, str]] = {}
    if attacked and searched and len(tables.group(results)) > 1:
        figure = figures.accuracy_by_lipschitz(results)
        beyond = any(axis.texts for axis in figure.axes)
        drawn["accuracy-by-lipschitz"] = (
            figure,
            "Accuracy of attacked images against the lower Lipschitz bound found, from pixels. A marker is a family, "
            + ("a colour and filling a bound γ, a vertical line" if several_gammas else "the vertical line")
            + " the upper bound that γ guarantees. Each panel has its own scale, which needn't start at zero."
            + (" A marker with an arrow belongs at the number beside it, far to the right." if beyond else ""),
        )
    if attacked and results[0].certify is not None and len(panels(results)) <= PANELS:
        drawn["accuracy-by-radius"] = (
            figures.accuracy_by_radius(results),
            "Accuracy of the attacked images against the size of the perturbation: certified (lines) and under "
            "AutoAttack (markers). The truth lies between the two.",
        )
    if certified_eps and any(result.certified(0, "radius_sound") is not None for result in bounded):
        normalized = any(result.description["network"].get("last_layer_normalization") for result in bounded)
        by_gamma = "γ times the distance of two rows" if normalized else "√2 γ for every pair of classes"
        shown["certificates"] = (
            tables.certificates_table(results, certified_eps, paper),
            f"Certified accuracy in percent on all test images: by {by_gamma}, by the bound of each pair's difference "
            "of logits, and by that in floating point, where the rounding of weights and of the forward pass counts, "
            "too, in any order of summation.",
        )
    if not several_gammas and (several_sizes or other_sizes):
        drawn["accuracy-by-size"] = (
            figures.accuracy_by_size(results, paper),
            "Clean accuracy against the number of parameters; hollow, what the paper prints.",
        )
    if attacked and several_gammas:
        shown["gammas"] = (
            tables.gammas_table(results, attacked[-1], paper),
            f"Accuracy in percent under AutoAttack at {255 * attacked[-1]:.3g}/255, by γ.",
        )
        drawn["accuracy-by-gamma"] = (
            figures.accuracy_by_gamma(results, attacked[-1]),
            f"Accuracy under AutoAttack at {255 * attacked[-1]:.3g}/255 against the upper Lipschitz bound γ.",
        )
    if searched:
        shown["bounds"] = (
            tables.bounds_table(results, paper),
            "Lower and upper Lipschitz bound of the whole network, from pixels: the largest slope that a search found, "
            "and γ over the smallest standard deviation of the normalisation.",
        )
        drawn["tightness"] = (
            figures.tightness(results),
            "Lower and upper Lipschitz bound of the whole network, from pixels: the largest slope found, and γ's.",
        )
    curves = _curves(results)
    if curves and len(panels(results)) <= PANELS:
        drawn["learning-curves"] = (
            figures.learning_curves(results),
            "Test error by epoch" + ("; bands: one standard deviation over seeds." if several_seeds else "."),
        )
    metrics = {tables.name(runs[0], results, plain=True): _headline(runs) for runs in tables.group(results)}
    return Section(
        title=title,
        lead=text.classification_lead(results, paper),
        tables=shown,
        figures=text.marked(drawn, results, paper),
        data=curves,
        metrics=metrics,
    )


def write_section(section: Section, experiment: str, reports: Path) -> None:
    """Write a section's ``tables/<experiment>``, ``figures/<experiment>`` and ``metrics/<experiment>.json``."""
    table_folder, figure_folder = reports / "tables" / experiment, reports / "figures" / experiment
    figure_folder.mkdir(parents=True, exist_ok=True)
    for name, (table, _) in section.tables.items():
        tables.write_table(table, table_folder / name)
    for name, data in section.data.items():
        write_text(table_folder / f"{name}.csv", data.to_csv(index=False, lineterminator="\n"))
    for name, (figure, _) in section.figures.items():
        write_figure(figure, figure_folder / name)
    if not section.figures:
        (figure_folder / ".gitkeep").touch()  # git, which tracks reports, keeps no empty folder
    write_json(
        table_folder / "section.json",
        {
            "title": section.title,
            "lead": section.lead,
            "tables": {name: caption for name, (_, caption) in section.tables.items()},
            "figures": {name: caption for name, (_, caption) in section.figures.items()},
        },
    )
    write_json(reports / "metrics" / f"{experiment}.json", {experiment: section.metrics})


def _curves(results: Sequence[Result]) -> dict[str, pd.DataFrame]:
    """Return the learning curves by their name; none of models that were trained elsewhere."""
    trained = all("train_loss" in result.history for result in results)
    return {"learning-curves": tables.learning_curves(results)} if trained else {}


def _headline(runs: Sequence[Result]) -> dict[str, float]:
    """Return a network's mean accuracies at one radius, and its tightness."""
    values: dict[str, list[float | None]] = {"clean": [result.clean() for result in runs]}
    for eps in runs[0].attacked_radii():
        if round(255 * eps) == HEADLINE:
            values[f"robust_{HEADLINE}"] = [result.robust(eps) for result in runs]
    values[f"certified_{HEADLINE}"] = [result.certified(HEADLINE / 255) for result in runs]
    values["tightness"] = [result.bound("tightness") for result in runs]
    return {name: _round(tables.mean(column)) for name, column in values.items() if tables.mean(column) is not None}


def _round(value: float | None) -> float:
    return round(float(value or 0.0), 4)
