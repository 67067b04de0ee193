"""Figures of the report: drawn with seaborn, legible in black and white and at the width of a column."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from lbdn.files import whole
from lbdn.report.results import Result
from lbdn.report.tables import group, label, mean

ORDER = ["sandwich", "sll", "orthogonal", "aol", "plain"]
MARKERS = ["X", "s", "o", "P", "D", "^", "v", "<", ">"]
DASHES = ["-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)), "--", "-.", ":", (0, (8, 2))]
LOOK: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "svg.hashsalt": "lbdn",  # the same figure gives the same file
    "svg.fonttype": "path",
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
}


@contextmanager
def look() -> Iterator[None]:
    """Set the look of the report's figures within a block."""
    with mpl.rc_context(), sns.axes_style("whitegrid"):
        mpl.use("Agg")
        mpl.rcParams.update(LOOK)  # type: ignore[arg-type]
        yield


def square_wave(results: Sequence[Result]) -> Figure:
    """Return the fit of each family to the square wave, at the largest gamma: the paper's figure of it.

    The dotted line is the best that the bound allows, slopes of gamma at the jumps.
    """
    gamma = max(result.gamma for result in results)
    chosen = [result for result in results if result.gamma == gamma]
    columns = 2 if len(chosen) > 1 else 1
    rows = -(-len(chosen) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.2, 1.7 * rows), sharex=True, sharey=True, squeeze=False)
    ideal = np.linspace(-2, 2, 2001)
    half = 0.5 / gamma
    bound = np.interp(ideal, [-1 - half, -1 + half, -half, half, 1 - half, 1 + half], [1, 0, 0, 1, 1, 0])
    for axis, result in zip(axes.flat, chosen, strict=False):
        curve = result.lipschitz["curve"]
        for start, end, level in ((-2, -1, 1), (-1, 0, 0), (0, 1, 1), (1, 2, 0)):
            axis.plot([start, end], [level, level], color="0.6", linewidth=3.5, solid_capstyle="butt", zorder=1)
        if gamma >= 1:  # otherwise the slopes of neighbouring jumps overlap
            axis.plot(ideal, bound, color="black", linestyle=":", linewidth=1.2, zorder=2)
        axis.plot(curve["x"], curve["y"], color=_color(result.family), linewidth=1.6, zorder=3)
        axis.set_title(f"{label(result.family)}, tightness {100 * result.lipschitz['tightness']:.1f} %")
    for axis in axes.flat[len(chosen) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("x")
    for axis in axes[:, 0]:
        axis.set_ylabel("f(x)")
    handles = [
        plt.Line2D([], [], color="0.6", linewidth=3.5, label="square wave"),
        plt.Line2D([], [], color="black", linestyle=":", label=f"best with bound {gamma:g}"),
        plt.Line2D([], [], color="0.2", linewidth=1.6, label="network"),
    ]
    figure.tight_layout()
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, bbox_to_anchor=(0.5, -0.07))
    return figure


def layers(table: pd.DataFrame) -> Figure:
    """Return the tightness and the spectral norm of each layer, measured (filled) beside published (hollow)."""
    names = list(dict.fromkeys(table["layer"]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 3.4), sharey=True)
    families = list(dict.fromkeys(table["family"]))
    for shift, family in enumerate(families):
        rows = table[table["family"] == family]
        y = np.array([names.index(name) for name in rows["layer"]]) + 0.22 * (shift - (len(families) - 1) / 2)
        style: dict[str, Any] = {
            "color": _color(family),
            "marker": MARKERS[_rank(family)],
            "linestyle": "none",
            "markersize": 5,
        }
        hollow = style | {"markerfacecolor": "none", "alpha": 0.9}
        inner = rows["layer"] != "full network"
        left.plot(rows["tightness"], y, label=family, **style)
        left.plot(rows["tightness published"], y, **hollow)
        right.plot(rows["norm"][inner], y[inner], **style)
        right.plot(rows["norm published"][inner], y[inner], **hollow)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set_xlabel("lower bound over upper bound (%)")
    right.set_xlabel("spectral norm of the weight")
    handles, labels = left.get_legend_handles_labels()
    handles.append(plt.Line2D([], [], color="0.3", marker="o", markerfacecolor="none", linestyle="none"))
    figure.tight_layout()
    figure.legend(
        handles, [*labels, "published"], loc="lower center", ncols=4, frameon=False, bbox_to_anchor=(0.5, -0.07)
    )
    return figure


def accuracy_by_radius(results: Sequence[Result]) -> Figure:
    """Return certified accuracy (lines) and accuracy under AutoAttack (markers) of the attacked images, by radius."""
    results = [result.on_attacked_images() for result in results]
    figure, axis = plt.subplots(figsize=(5.2, 3.4))
    longest = 1.1 * max([36 / 255, *(eps for result in results for eps in result.attacked_radii())])
    for name, runs in group(results).items():
        result = runs[0]
        color, rank = _color(result.family), _rank(result.family)
        attacked = [0.0, *result.attacked_radii()]
        accuracies = [mean([r.robust(eps) if eps else r.clean() for r in runs]) or 0.0 for eps in attacked]
        marks: dict[str, Any] = {
            "marker": MARKERS[rank],
            "linestyle": "none",
            "markersize": 6,
            "markeredgecolor": "white",
        }
        axis.plot(attacked, [100 * a for a in accuracies], color=color, **marks)
        if result.certified(0) is not None:
            radii = np.linspace(0, longest, 400)
            certified = [100 * (mean([r.certified(eps) for r in runs]) or 0.0) for eps in radii]
            axis.plot(radii, certified, color=color, linestyle=DASHES[rank], linewidth=1.5)
        axis.plot([], [], color=color, linestyle=DASHES[rank], label=label(name), **_without_line(marks))
    axis.set(xlim=(-0.01, longest), ylim=(0, 101), ylabel="accuracy (%)")
    axis.set_xlabel("l2 radius of the perturbation, pixels in [0, 1]")
    axis.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, title="lines: certified\nmarkers: attacked"
    )
    return figure


def tightness(results: Sequence[Result]) -> Figure:
    """Return each family's empirical lower bound beside its upper bound, from pixels."""
    groups = group(results)
    figure, axis = plt.subplots(figsize=(5.2, 0.42 * len(groups) + 0.9))
    for position, runs in enumerate(groups.values()):
        family = runs[0].family
        lower = mean([run.lipschitz["lower"] for run in runs]) or 0.0
        upper = mean([run.lipschitz["upper"] for run in runs])
        marks: dict[str, Any] = {"color": _color(family), "marker": MARKERS[_rank(family)], "markersize": 7}
        axis.plot([lower], [position], linestyle="none", zorder=3, **marks)
        note = f"{lower:.3g}, no upper bound"
        if upper is not None:
            axis.plot([lower, upper], [position, position], color="0.5", linewidth=1.2)
            axis.plot([upper], [position], color="black", marker="|", markersize=14, markeredgewidth=2)
            note = f"{lower:.3g} of {upper:.3g}: {100 * lower / upper:.1f} %"
        axis.annotate(note, (upper or lower, position), xytext=(9, 0), textcoords="offset points", va="center", size=8)
    axis.set_yticks(range(len(groups)), [label(name) for name in groups])
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.set_xlim(low, high * (high / low) ** 0.45)
    axis.set_xlabel("Lipschitz constant from pixels: found (marker), guaranteed (bar)")
    return figure


def learning_curves(results: Sequence[Result]) -> Figure:
    """Return the test error against the epoch; a band of one standard deviation where there are several seeds."""
    figure, axis = plt.subplots(figsize=(5.2, 3.2))
    for name, runs in group(results).items():
        family = runs[0].family
        errors = np.array([100 * (1 - run.history["test_accuracy"]) for run in runs])
        epochs, center, spread = runs[0].history["epoch"], errors.mean(axis=0), errors.std(axis=0)
        style: dict[str, Any] = {"color": _color(family), "linestyle": DASHES[_rank(family)], "linewidth": 1.6}
        axis.plot(epochs, center, label=label(name), **style)
        if len(runs) > 1:
            axis.fill_between(epochs, center - spread, center + spread, color=_color(family), alpha=0.2)
    axis.set(xlabel="epoch", ylabel="test error (%)", ylim=(0, None))
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def write_figure(figure: Figure, stem: Path) -> None:
    """Write a figure as SVG and PNG, beside each other, and close it."""
    for suffix, metadata in ((".svg", {"Date": None}), (".png", {"Software": None})):
        with whole(stem.with_suffix(suffix)) as temporary:
            figure.savefig(temporary, format=suffix[1:], metadata=metadata)
    plt.close(figure)


def _without_line(marks: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in marks.items() if key != "linestyle"}


def _rank(family: str) -> int:
    known = {name: i for i, key in enumerate(ORDER) for name in (key, label(key))}
    return known.get(family, len(ORDER) + sum(map(ord, family)) % (len(MARKERS) - len(ORDER)))


def _color(family: str) -> tuple[float, float, float]:
    return sns.color_palette("colorblind", 10)[[0, 1, 2, 4, 7, 3, 5, 8, 9][_rank(family)]]
