"""Figures of the report at the width of a column: the paper's, on the same axes, and the study's."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from lbdn.report.look import (
    DASHES,
    FILLS,
    WIDTH,
    axes_of,
    color,
    family_handles,
    legend,
    line,
    logarithmic_x,
    mark,
    marked_line,
    panels,
    published_handle,
)
from lbdn.report.results import Result, published_rows
from lbdn.report.tables import group, label, mean, name, percent


def square_wave(results: Sequence[Result]) -> Figure:
    """Return the fit of each family to the square wave, at the largest gamma: the paper's figure of it.

    The dotted line is the best that the bound allows, slopes of gamma at the jumps.
    """
    gamma = max(result.gamma or 0 for result in results)
    chosen = [(result, bounds) for result in results if result.gamma == gamma and (bounds := result.lipschitz)]
    titles = [f"{label(result.family)}: {100 * bounds['tightness']:.1f} %" for result, bounds in chosen]
    figure, axes = axes_of(titles)
    ideal = np.linspace(-2, 2, 2001)
    half = 0.5 / gamma
    bound = np.interp(ideal, [-1 - half, -1 + half, -half, half, 1 - half, 1 + half], [1, 0, 0, 1, 1, 0])
    for axis, (result, bounds) in zip(axes, chosen, strict=True):
        curve = bounds["curve"]
        for start, end, level in ((-2, -1, 1), (-1, 0, 0), (0, 1, 1), (1, 2, 0)):
            axis.plot([start, end], [level, level], color="0.6", linewidth=3, solid_capstyle="butt", zorder=1)
        if gamma >= 1:  # otherwise the slopes of neighbouring jumps overlap
            axis.plot(ideal, bound, color="black", linestyle=":", linewidth=1.2, zorder=2)
        axis.plot(curve["x"], curve["y"], color=color(result.family), linewidth=1.2, zorder=3)
    figure.supxlabel("x")
    figure.supylabel("f(x)")
    handles = [
        plt.Line2D([], [], color="0.6", linewidth=3, label="square wave"),
        plt.Line2D([], [], color="black", linestyle=":", label=f"best with bound {gamma:g}"),
        plt.Line2D([], [], color="0.2", linewidth=1.2, label="network"),
    ]
    legend(figure, handles)
    return figure


def tightness_by_gamma(results: Sequence[Result]) -> Figure:
    """Return the tightness of each family against the bound that was asked for."""
    figure, (axis,) = axes_of([""])
    for family in dict.fromkeys(result.family for result in results):
        groups = [runs for runs in group(results) if runs[0].family == family]
        points = sorted((runs[0].gamma or 0.0, percent([run.bound("tightness") for run in runs])) for runs in groups)
        axis.plot(*zip(*points, strict=True), linewidth=1.2, **mark(family) | line(family))
    axis.set_xscale("log")
    gammas = sorted({result.gamma for result in results if result.gamma is not None})
    axis.set_xticks(gammas, [f"{gamma:g}" for gamma in gammas])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel="Lipschitz bound γ", ylabel="tightness (%)", ylim=(0, 101))
    legend(figure, family_handles(results, lambda family: mark(family) | line(family)))
    return figure


def layers(table: pd.DataFrame) -> Figure:
    """Return the tightness and the spectral norm of each layer, measured (filled) beside published (hollow)."""
    names = list(dict.fromkeys(table["layer"]))
    families = list(dict.fromkeys(table["family"]))
    step = min(0.22, 0.8 / len(families))
    size = (WIDTH, max(3.2, 0.07 * len(families) * len(names)) + 0.5)
    figure, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, layout="constrained")
    for shift, family in enumerate(families):
        rows = table[table["family"] == family]
        y = np.array([names.index(name) for name in rows["layer"]]) + step * (shift - (len(families) - 1) / 2)
        style: dict[str, Any] = {**mark(family), "linestyle": "none", "markersize": 4}
        hollow = style | {"markerfacecolor": "none", "alpha": 0.9}
        inner = rows["layer"] != "full network"
        left.plot(rows["tightness"], y, label=family, **style)
        left.plot(rows["tightness published"], y, **hollow)
        right.plot(rows["norm"][inner], y[inner], **style)
        right.plot(rows["norm published"][inner], y[inner], **hollow)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set_xlabel("tightness (%)")
    right.set_xlabel("norm of the weight")
    legend(figure, [*left.get_legend_handles_labels()[0], published_handle(markersize=4)])
    return figure


def accuracy_by_radius(results: Sequence[Result]) -> Figure:
    """Return certified accuracy (lines) and accuracy under AutoAttack (markers) of the attacked images, by radius.

    A panel a size and gamma.
    """
    results = [result.on_attacked_images() for result in results]
    longest = 1.1 * max([36 / 255, *(eps for result in results for eps in result.attacked_radii())])
    radii = np.linspace(0, longest, 400)
    shown = panels(results)
    figure, axes = axes_of(list(shown))
    for axis, members in zip(axes, shown.values(), strict=True):
        for runs in group(members):
            family = runs[0].family
            attacked = [0.0, *runs[0].attacked_radii()]
            robust = [percent([run.robust(eps) for run in runs]) for eps in attacked]
            axis.plot(attacked, robust, linestyle="none", **mark(family))
            if runs[0].certified(0) is not None:
                certified = [percent([run.certified(eps) for run in runs]) for eps in radii]
                axis.plot(radii, certified, linewidth=1.5, **line(family))
        axis.set(xlim=(-0.01, longest), ylim=(0, None))
    figure.supxlabel("l2 radius, from pixels (line: certified, marker: attacked)")
    figure.supylabel("accuracy (%)")
    lines = {result.family for result in results if result.certified(0) is not None}
    legend(
        figure,
        family_handles(
            results, lambda family: mark(family) | (line(family) if family in lines else {"linestyle": "none"})
        ),
    )
    return figure


def learning_curves(results: Sequence[Result]) -> Figure:
    """Return the test error against the epoch: the paper's figure of learning curves; a panel a size and gamma.

    A band of one standard deviation where there are several seeds.
    """
    shown = panels(results)
    figure, axes = axes_of(list(shown))
    for axis, members in zip(axes, shown.values(), strict=True):
        for runs in group(members):
            family = runs[0].family
            errors = np.array([100 * (1 - run.history["test_accuracy"]) for run in runs])
            epochs, center = runs[0].history["epoch"], errors.mean(axis=0)
            axis.plot(epochs, center, linewidth=1.4, **marked_line(family))
            if len(runs) > 1:
                spread = errors.std(axis=0, ddof=1)
                axis.fill_between(epochs, center - spread, center + spread, color=color(family), alpha=0.2)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    figure.supxlabel("epoch")
    figure.supylabel("test error (%)")
    legend(figure, family_handles(results, marked_line))
    return figure


def accuracy_by_lipschitz(results: Sequence[Result]) -> Figure:
    """Return accuracy under attack against the empirical lower bound: the paper's figure, a panel a radius.

    A family has a marker; a gamma has a colour, a filling, and the dashes of the vertical line at its upper bound. With
    one gamma, colours are the families'. What is far beyond all upper bounds stands at the edge, with its number.
    """
    radii = [0.0, *results[0].attacked_radii()]
    figure, axes = axes_of(["clean" if not eps else f"AutoAttack {255 * eps:.3g}/255" for eps in radii], sharey=False)
    uppers = {run.gamma: upper for run in results if (upper := run.bound("upper")) is not None}
    by_family, edge = len(uppers) == 1, 3 * max(uppers.values(), default=math.inf)
    colors = cycle(["0.35"] if by_family else ["#0173b2", "#d55e00", "#029e73", "#cc78bc", "#ca9161"])
    looks: dict[float | None, dict[str, Any]] = {None: {"color": "0.35", "fillstyle": "full"}}
    lines: dict[float | None, dict[str, Any]] = {}
    for gamma, shade, fill, dash in zip(uppers, colors, cycle(FILLS), cycle(DASHES[1:])):
        looks[gamma] = {"color": shade, "fillstyle": fill, "markerfacecoloralt": "white"}
        lines[gamma] = {"color": shade, "linestyle": dash, "linewidth": 1.3}
    networks = [(runs, mean([run.bound("lower") for run in runs]) or 0.0) for runs in group(results)]
    for axis, eps in zip(axes, radii, strict=True):
        for gamma, upper in uppers.items():
            axis.axvline(upper, zorder=1, **lines[gamma])
        for runs, lower in networks:
            accuracy = percent([run.robust(eps) for run in runs])
            style = mark(runs[0].family) | ({} if by_family else looks[runs[0].gamma])
            axis.plot([min(lower, edge)], [accuracy], linestyle="none", zorder=3, **style)
            if lower > edge:
                place, offset = (edge, accuracy), (3, 5)
                axis.annotate(f"{lower:,.0f} →", place, offset, textcoords="offset points", ha="right", size=6)
        axis.margins(0.1, 0.2)
        logarithmic_x(axis)
        if any(lower > edge for _, lower in networks):
            axis.set_xlim(right=edge)
    figure.supxlabel("empirical Lipschitz bound, from pixels")
    figure.supylabel("accuracy (%)")
    handles = family_handles(results, mark, linestyle="none", **{} if by_family else {"color": "0.3"})
    shape = {"marker": "" if by_family else "o", "markersize": 5}
    handles += [
        plt.Line2D([], [], label=f"γ = {gamma:g}, guaranteed", **shape | looks[gamma] | lines[gamma])
        for gamma in uppers
    ]
    legend(figure, handles)
    return figure


def accuracy_by_size(results: Sequence[Result], paper: Mapping[str, Any]) -> Figure:
    """Return clean accuracy against the number of parameters: the paper's figure; all published values, hollow."""
    figure, (axis,) = axes_of([""])
    all_printed = published_rows(paper, results[0])
    for family in dict.fromkeys(result.family for result in results):
        groups = [runs for runs in group(results) if runs[0].family == family]
        points = sorted((runs[0].parameters / 1e6, percent([run.clean() for run in runs])) for runs in groups)
        axis.plot(*zip(*points, strict=True), linewidth=0.8, **mark(family))
        printed = [(_millions(row["parameters"]), row["clean"]) for row in all_printed if row["family"] == family]
        if printed:
            axis.plot(*zip(*printed, strict=True), linestyle="none", **mark(family), markerfacecolor="none")
    axis.set(xlabel="number of parameters (millions)", ylabel="clean accuracy (%)", xlim=(0, None), ylim=(0, None))
    legend(figure, [*family_handles(results, mark), *([published_handle()] if all_printed else [])])
    return figure


def _millions(printed: str) -> float:
    """Return a number of parameters as the paper prints it, such as 12M or 1.1B."""
    return float(printed[:-1]) * {"M": 1.0, "B": 1000.0}[printed[-1]]


def accuracy_by_gamma(results: Sequence[Result], eps: float) -> Figure:
    """Return accuracy under AutoAttack at one radius against gamma, a line a network, a panel a size."""
    sizes = list(dict.fromkeys(result.size for result in results))
    figure, axes = axes_of(sizes if len(sizes) > 1 else [""])
    for axis, size in zip(axes, sizes, strict=True):
        members = [result for result in results if result.size == size]
        for family in dict.fromkeys(result.family for result in members):
            groups = [runs for runs in group(members) if runs[0].family == family]
            points = [(runs[0].gamma, percent([run.robust(eps) for run in runs])) for runs in groups]
            if points[0][0] is None:
                axis.axhline(points[0][1], linewidth=1.2, **line(family))
            else:
                axis.plot(*zip(*sorted(points), strict=True), linewidth=1.2, **mark(family) | line(family))
        axis.set_xscale("log")
        gammas = sorted({result.gamma for result in members if result.gamma is not None})
        axis.set_xticks(gammas, [f"{gamma:g}" for gamma in gammas])
        axis.xaxis.set_minor_locator(NullLocator())
    figure.supxlabel("γ, from normalised input")
    figure.supylabel(f"accuracy at {255 * eps:.3g}/255 (%)")
    legend(figure, family_handles(results, lambda family: mark(family) | line(family)))
    return figure


def _number(value: float) -> str:
    """Return a number with three digits, or all of those before the point."""
    if value < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def tightness(results: Sequence[Result]) -> Figure:
    """Return each network's empirical lower bound beside its upper bound, from pixels."""
    groups = group(results)
    figure, axis = plt.subplots(figsize=(WIDTH, 0.3 * len(groups) + 0.7), layout="constrained")
    for position, runs in enumerate(groups):
        lower = mean([run.bound("lower") for run in runs]) or 0.0
        upper = mean([run.bound("upper") for run in runs])
        axis.plot([lower], [position], linestyle="none", zorder=3, **mark(runs[0].family))
        note = f"{_number(lower)}, no upper bound"
        if upper is not None:
            axis.plot([lower, upper], [position, position], color="0.5", linewidth=1.2)
            axis.plot([upper], [position], color="black", marker="|", markersize=10, markeredgewidth=1.5)
            note = f"{_number(lower)} of {_number(upper)}: {100 * lower / upper:.1f} %"
        axis.text(1.03, position, note, transform=axis.get_yaxis_transform(), va="center", size=7)
    axis.set_yticks(range(len(groups)), [name(runs[0], results) for runs in groups])
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.set_xscale("log")
    logarithmic_x(axis)
    figure.supxlabel("Lipschitz constant from pixels: found (marker), guaranteed (bar)", size=7)
    return figure
