"""Figures of the report at the width of a column: the paper's, on the same axes, and the study's."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lbdn.report.look import (
    DASHES,
    FILLS,
    SWATCH,
    WIDTH,
    axes_of,
    color,
    curve,
    gamma_axis,
    handle,
    legend,
    line,
    logarithmic,
    mark,
    marked_line,
    panels,
    points,
    published_handle,
    rank,
)
from lbdn.report.results import Result, published_rows
from lbdn.report.tables import group, label, mean, name, percent, percentages

EDGE = 0.45  # where a figure of lower bounds ends, right of all upper ones: that part of what is left of them
DECADES = 8  # errors that span this factor are drawn on a logarithmic axis
HOLLOW = {"markerfacecolor": "none", "markersize": 6.5}  # of published values
MARKED = 6  # epochs that a learning curve's markers are on, about


def square_wave(results: Sequence[Result]) -> Figure:
    """Return the fit of each family to the square wave, at the largest gamma: the paper's figure of it.

    The dotted line is the best that the bound allows, slopes of gamma at the jumps.
    """
    gamma = max(result.gamma or 0 for result in results)
    chosen = group([result for result in results if result.gamma == gamma and result.lipschitz])
    titles = [f"{label(runs[0].family)}: {percent([run.bound('tightness') for run in runs]):.1f} %" for runs in chosen]
    figure, axes = axes_of(titles)
    ideal = np.linspace(-2, 2, 2001)
    half = 0.5 / gamma
    bound = np.interp(ideal, [-1 - half, -1 + half, -half, half, 1 - half, 1 + half], [1, 0, 0, 1, 1, 0])
    wave: dict[str, Any] = {"color": "0.6", "linewidth": 3}
    best: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.2}
    apart = gamma >= 1  # otherwise the slopes of neighbouring jumps overlap
    for axis, runs in zip(axes, chosen, strict=True):
        for start, end, level in ((-2, -1, 1), (-1, 0, 0), (0, 1, 1), (1, 2, 0)):
            curve(axis, [start, end], [level, level], zorder=1, solid_capstyle="butt", **wave)
        if apart:
            curve(axis, ideal, bound, zorder=2, **best)
        for fit in [run.lipschitz["curve"] for run in runs if run.lipschitz]:
            curve(axis, fit["x"], fit["y"], zorder=3, color=color(runs[0].family), linewidth=1.2)
    figure.supxlabel("x")
    figure.supylabel("f(x)")
    limit = [handle(f"best with γ = {gamma:g}", **best)] if apart else []
    legend(figure, [handle("square wave", **wave), *limit, handle("network", color="0.2", linewidth=1.2)])
    return figure


def tightness_by_gamma(results: Sequence[Result]) -> Figure:
    """Return the tightness of each family against the bound that was asked for."""
    figure, (axis,) = axes_of([""])
    families = _by_family(results)
    for family, runs in families.items():
        tightness = percentages([run.bound("tightness") for run in runs])
        curve(axis, [run.gamma for run in runs], tightness, **marked_line(family))
    gamma_axis(axis, results)
    axis.set(xlabel="upper Lipschitz bound γ", ylabel="tightness (%)", ylim=(0, 101))
    legend(figure, [handle(label(family), **marked_line(family)) for family in families])
    return figure


def layers(table: pd.DataFrame) -> Figure:
    """Return the tightness and the spectral norm of each layer, measured (filled) beside published (hollow)."""
    names = list(dict.fromkeys(table["layer"]))
    families = list(dict.fromkeys(table["family"]))
    step = min(0.22, 0.8 / len(families))
    size = (WIDTH, max(3.0, 0.07 * len(families) * len(names)) + 0.3)
    figure, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, layout="constrained")
    for shift, family in enumerate(families):
        rows = table[table["family"] == family]
        y = np.array([names.index(name) for name in rows["layer"]]) + step * (shift - (len(families) - 1) / 2)
        inner = np.array(rows["layer"] != "full network")
        for axis, quantity, shown in ((left, "tightness", np.full(len(rows), True)), (right, "norm", inner)):
            points(axis, rows[quantity][shown], y[shown], **mark(family) | {"markersize": 4})
            if f"{quantity} paper" in rows:  # around or over what was measured
                points(axis, rows[f"{quantity} paper"][shown], y[shown], zorder=4, **mark(family) | HOLLOW)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.4, -0.6)
    left.set_xlabel("tightness (%)")
    right.set_xlabel("norm of the weight")
    printed = [published_handle()] if {"tightness paper", "norm paper"} & set(table) else []
    legend(figure, [*(handle(family, **mark(family)) for family in families), *printed])
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
            points(axis, attacked, [percent([run.robust(eps) for run in runs]) for eps in attacked], **mark(family))
            if runs[0].certified(0) is not None:
                curve(axis, radii, [percent([run.certified(eps) for run in runs]) for eps in radii], **line(family))
        axis.set(xlim=(-0.01, longest), ylim=(0, None))
    figure.supxlabel("l2 radius, from pixels (line: certified, marker: attacked)")
    figure.supylabel("accuracy (%)")
    certified = {result.family for result in results if result.certified(0) is not None}
    styles = {family: (marked_line if family in certified else mark)(family) for family in _by_family(results)}
    legend(figure, [handle(label(family), **style) for family, style in styles.items()])
    return figure


def learning_curves(results: Sequence[Result]) -> Figure:
    """Return the test error against the epoch: the paper's figure of learning curves; a panel a size and gamma.

    A band of one standard deviation where there are several seeds; a logarithmic axis where there is one and errors
    span decades.
    """
    shown = panels(results)
    figure, axes = axes_of(list(shown))
    bands = len({result.cell.seed for result in results}) > 1
    step = -(-max(len(result.history) for result in results) // MARKED)
    errors = np.concatenate([100 * (1 - result.history["test_accuracy"]) for result in results])
    decades = not bands and 0 < DECADES * errors.min() < errors.max()
    for axis, members in zip(axes, shown.values(), strict=True):
        for runs in group(members):
            family, history = runs[0].family, pd.concat([run.history for run in runs])
            few = {"markevery": (rank(family) % step, step), "markersize": 4}
            error = 100 * (1 - history["test_accuracy"])
            curve(axis, history["epoch"], error, band=bands, **marked_line(family) | few)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
        if decades:
            logarithmic(axis, "y")
    figure.supxlabel("epoch")
    figure.supylabel("test error (%)")
    legend(figure, [handle(label(family), **marked_line(family)) for family in _by_family(results)])
    return figure


def accuracy_by_lipschitz(results: Sequence[Result]) -> Figure:
    """Return accuracy under attack against the empirical lower bound: the paper's figure, a panel a radius.

    A family has a marker; a gamma has a colour, a filling, and the dashes of the vertical line at its upper bound. With
    one gamma, colours are the families'. What is far beyond all upper bounds stands at the edge, with its number.
    """
    radii = [0.0, *results[0].attacked_radii()]
    figure, axes = axes_of(["clean" if not eps else f"AutoAttack {255 * eps:.3g}/255" for eps in radii], sharey=False)
    uppers = {run.gamma: upper for run in results if (upper := run.bound("upper")) is not None}
    by_family, last = len(uppers) == 1, max(uppers.values(), default=math.inf)
    shades = cycle(["0.35"] if by_family else ["#0173b2", "#d55e00", "#029e73", "#cc78bc", "#ca9161"])
    looks: dict[float | None, dict[str, Any]] = {None: {"color": "0.35", "markeredgecolor": "0.35"}}
    lines: dict[float | None, dict[str, Any]] = {}
    for gamma, shade, fill, dash in zip(uppers, shades, cycle(FILLS), cycle(DASHES[1:])):
        looks[gamma] = {"color": shade, "markeredgecolor": shade, "fillstyle": fill, "markerfacecoloralt": "white"}
        lines[gamma] = {"color": shade, "linestyle": dash, "linewidth": 1.3}
    networks = [(runs, mean([run.bound("lower") for run in runs]) or 0.0) for runs in group(results)]
    first = min((lower for _, lower in networks if lower > 0), default=last)
    edge = last * max(1.3, last / first) ** EDGE
    for axis, eps in zip(axes, radii, strict=True):
        for gamma, upper in uppers.items():
            axis.axvline(upper, zorder=1, **lines[gamma])
        accuracies = [percent([run.robust(eps) for run in runs]) for runs, _ in networks]
        for (runs, lower), accuracy in zip(networks, accuracies, strict=True):
            style = mark(runs[0].family) | ({} if by_family else looks[runs[0].gamma])
            points(axis, [min(lower, edge)], [accuracy], zorder=3, **style)
        axis.margins(0.1, 0.2)
        axis.set_ylim(top=min(102, axis.get_ylim()[1]))
        logarithmic(axis, "x")
        for (_, lower), accuracy in zip(networks, accuracies, strict=True):
            if lower > edge:
                axis.set_xlim(right=edge)
                side = (
                    1 if accuracy < sum(axis.get_ylim()) / 2 else -1
                )  # above the marker, or below it, within the panel
                text: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center", "size": 6}
                axis.annotate(f"{lower:,.0f} →", (edge, accuracy), (3, 7 * side), **text)
    figure.supxlabel("empirical lower Lipschitz bound, from pixels")
    figure.supylabel("accuracy (%)")
    neutral = {} if by_family else looks[None]
    families = [handle(label(family), **mark(family) | neutral) for family in _by_family(results)]
    swatch = {"marker": "" if by_family else SWATCH, "markersize": 6}
    prefix = "upper, " if by_family else ""
    bounds = [handle(f"{prefix}γ = {gamma:g}", **swatch | looks[gamma] | lines[gamma]) for gamma in uppers]
    legend(figure, families + bounds)
    return figure


def accuracy_by_size(results: Sequence[Result], paper: Mapping[str, Any]) -> Figure:
    """Return clean accuracy against the number of parameters: the paper's figure; published values are hollow."""
    figure, (axis,) = axes_of([""])
    handles, any_printed = [], False
    for family, runs in _by_family(results).items():
        style = (marked_line if len({run.parameters for run in runs}) > 1 else mark)(family)
        curve(axis, [run.parameters / 1e6 for run in runs], [100 * run.clean() for run in runs], **style)
        printed = [row for row in published_rows(paper, results[0]) if row["family"] == family]
        parameters, accuracy = [_millions(row["parameters"]) for row in printed], [row["clean"] for row in printed]
        points(axis, parameters, accuracy, **mark(family) | HOLLOW)
        handles.append(handle(label(family), **style))
        any_printed |= bool(printed)
    axis.set(xlabel="number of parameters (millions)", ylabel="clean accuracy (%)", xlim=(0, None), ylim=(0, None))
    legend(figure, [*handles, *([published_handle()] if any_printed else [])])
    return figure


def _millions(printed: str) -> float:
    """Return a number of parameters as the paper prints it, such as 12M or 1.1B."""
    return float(printed[:-1]) * {"M": 1.0, "B": 1000.0}[printed[-1]]


def accuracy_by_gamma(results: Sequence[Result], eps: float) -> Figure:
    """Return accuracy under AutoAttack at one radius against gamma, a line a network, a panel a size."""
    sizes = list(dict.fromkeys(result.size for result in results))
    figure, axes = axes_of(sizes if len(sizes) > 1 else [""])
    handles = {}
    for axis, size in zip(axes, sizes, strict=True):
        members = [result for result in results if result.size == size]
        for family, runs in _by_family(members).items():
            accuracy, bounded = [100 * run.robust(eps) for run in runs], runs[0].gamma is not None
            style = (marked_line if bounded else line)(family)
            if bounded:
                curve(axis, [run.gamma for run in runs], accuracy, **style)
            else:
                axis.axhline(sum(accuracy) / len(accuracy), **style)
            handles[family] = handle(label(family), **style)
        gamma_axis(axis, members)
    figure.supxlabel("γ, from normalised input")
    figure.supylabel(f"accuracy at {255 * eps:.3g}/255 (%)")
    legend(figure, list(handles.values()))
    return figure


def tightness(results: Sequence[Result]) -> Figure:
    """Return each network's empirical lower bound beside its upper bound, from pixels."""
    groups = group(results)
    figure, axis = plt.subplots(figsize=(WIDTH, 0.3 * len(groups) + 0.7), layout="constrained")
    for position, runs in enumerate(groups):
        lower = mean([run.bound("lower") for run in runs]) or 0.0
        upper = mean([run.bound("upper") for run in runs])
        points(axis, [lower], [position], zorder=3, **mark(runs[0].family))
        note = f"{_number(lower)}, no upper bound"
        if upper is not None:
            axis.hlines(position, lower, upper, color="0.5", linewidth=1.2)
            axis.plot([upper], [position], color="black", marker="|", markersize=10, markeredgewidth=1.5)
            note = f"{_number(lower)} of {_number(upper)}: {100 * lower / upper:.1f} %"
        axis.text(1.03, position, note, transform=axis.get_yaxis_transform(), va="center", size=7)
    axis.set_yticks(range(len(groups)), [textwrap.fill(name(runs[0], results), 16) for runs in groups])
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    logarithmic(axis, "x")
    figure.supxlabel("Lipschitz bounds from pixels: lower, found (marker), and upper (bar)", size=7)
    return figure


def _number(value: float) -> str:
    """Return a number with three digits, or all of those before the point."""
    if value < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _by_family(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results of each family, in the results' order."""
    return {family: [r for r in results if r.family == family] for family in dict.fromkeys(r.family for r in results)}
