"""The look of the report's figures: colours and marks that tell families apart, also in black and white; panels."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import ArrayLike

from lbdn import registry
from lbdn.files import whole
from lbdn.report.results import Result
from lbdn.report.tables import label

ORDER = ["sandwich", "sll", "orthogonal", "aol", "plain", "spectral", "bcop", "soc", "lot", "cpl"]
SWATCH = "H"  # of legends' entries that speak of no family
MARKERS = ["X", "s", "o", "P", "D", "^", "v", "<", ">", "*", "p", "d"]
FILLS = ["full", "none", "left", "top", "right", "bottom"]
DASHES = ["-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)), "--", "-.", ":", (0, (8, 2))]
DASHES += [(0, (8, 1, 1, 1)), (0, (2, 2)), (0, (6, 1, 2, 1))]
COLORS = [0, 1, 2, 4, 7, 3, 15, 18, 19, 16, 13, 14]  # of ``color``'s palette
WIDTH = 3.4  # inches, of a column
LOOK: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "figure.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.pad": 1,
    "ytick.major.pad": 1,
    "legend.fontsize": 7,
    "legend.columnspacing": 1.2,
    "legend.labelspacing": 0.3,
    "svg.hashsalt": "lbdn",  # the same figure gives the same file
    "svg.fonttype": "path",
    "figure.dpi": 100,
    "savefig.dpi": 300,
}

Values = ArrayLike | Sequence[float | None]


@contextmanager
def look() -> Iterator[None]:
    """Set the look of the report's figures within a block."""
    with mpl.rc_context(), sns.axes_style("whitegrid"):
        mpl.use("Agg")
        mpl.rcParams.update(LOOK)  # type: ignore[arg-type]
        yield


def write_figure(figure: Figure, stem: Path) -> None:
    """Write a figure as SVG and PNG, beside each other, and close it."""
    for suffix, metadata in ((".svg", {"Date": None}), (".png", {"Software": None})):
        with whole(stem.with_suffix(suffix)) as temporary:
            figure.savefig(temporary, format=suffix[1:], metadata=metadata)
    plt.close(figure)


def panels(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results of each size and gamma by title; networks without a bound are in every panel of their size."""
    bounded = [result for result in results if result.gamma is not None]
    keys = dict.fromkeys((result.size, result.gamma) for result in bounded or results)
    sizes, gammas = {size for size, _ in keys}, {gamma for _, gamma in keys}
    titled: dict[str, list[Result]] = {}
    for size, gamma in keys:
        parts = [size] if len(sizes) > 1 else []
        parts += [f"γ = {gamma:g}"] if len(gammas) > 1 and gamma is not None else []
        titled[", ".join(parts)] = [r for r in results if r.size == size and r.gamma in (gamma, None)]
    return titled


def axes_of(titles: Sequence[str], *, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels with shared axes, two in a row, and its panels."""
    columns = min(len(titles), 2)
    rows = -(-len(titles) // columns)
    height = 2.2 if columns == 1 else 1.4 * rows + 0.25
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH, height), sharex=True, sharey=sharey, squeeze=False, layout="constrained"
    )
    for axis, title in zip(axes.flat, titles, strict=False):
        axis.set_title(textwrap.fill(title, 24))
    for axis in axes.flat[len(titles) :]:
        axis.set_visible(False)
        axes[-2, 1].tick_params(labelbottom=True)
    return figure, list(axes.flat[: len(titles)])


def logarithmic(axes: Axes, side: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with a few ticks as plain numbers: powers of ten, 1, 2 and 5, or evenly spaced ones."""
    axes.set(**{f"{side}scale": "log"})
    axis = axes.xaxis if side == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    few = high / low < (50 if side == "x" else 500)  # numbers stand side by side, or one above the other
    logs = LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,))
    axis.set_major_locator(logs if high / low > 5 else MaxNLocator(4, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def gamma_axis(axes: Axes, results: Sequence[Result]) -> None:
    """Make an axis of gammas: logarithmic, with a tick at each."""
    gammas = sorted({result.gamma for result in results if result.gamma is not None})
    axes.set_xscale("log")
    axes.set_xticks(gammas, [f"{gamma:g}" for gamma in gammas])
    axes.xaxis.set_minor_locator(NullLocator())


def curve(axes: Axes, x: Values, y: Values, *, band: bool = False, **style: Any) -> None:
    """Draw the mean of y at each x, with a band of one standard deviation if asked for."""
    errors = "sd" if band else None
    sns.lineplot(x=np.asarray(x, float), y=np.asarray(y, float), ax=axes, errorbar=errors, **style)


def points(axes: Axes, x: Values, y: Values, **style: Any) -> None:
    """Draw points, each by itself; without any, nothing, since an empty line would still take room in the layout."""
    table = pd.DataFrame({"x": np.asarray(x, float), "y": np.asarray(y, float)}).dropna()
    if len(table):
        sns.lineplot(x=table["x"].values, y=table["y"].values, ax=axes, estimator=None, sort=False, **style)


def legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Put a legend above a figure, in as many columns as fit its width; the figure grows by the legend's height."""
    marked_lines = any({h.get_linestyle(), h.get_marker()}.isdisjoint({"None", ""}) for h in handles)
    length = 3.6 if marked_lines else 2  # of a line, in letters: of dashes on both sides of a marker, or of some alone
    for columns in range(min(len(handles), 4), 0, -1):
        rows = -(-len(handles) // columns)
        even = -(-len(handles) // rows)
        drawn = figure.legend(
            handles=handles, loc="outside upper center", ncols=even, handlelength=length, frameon=False
        )
        extent = drawn.get_window_extent()
        if columns == 1 or extent.width <= figure.bbox.width:
            break
        drawn.remove()
    figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)


def handle(text: str, **style: Any) -> Line2D:
    """Return a legend's entry."""
    return Line2D([], [], label=text, **style)


def published_handle() -> Line2D:
    """Return a legend's entry for published values, which are hollow."""
    return handle("published", color="0.3", marker=SWATCH, markersize=5, markerfacecolor="none", linestyle="none")


def mark(family: str) -> dict[str, Any]:
    """Return the marker of a family, without a line."""
    shade = color(family)
    style = {"color": shade, "markeredgecolor": shade, "markeredgewidth": 1, "linestyle": "none"}
    return {**style, "marker": MARKERS[rank(family)], "markersize": 5, "clip_on": False}


def line(family: str) -> dict[str, Any]:
    """Return the line of a family, without markers."""
    return {"color": color(family), "linestyle": DASHES[rank(family)], "linewidth": 1.2}


def marked_line(family: str) -> dict[str, Any]:
    """Return the line of a family with its markers."""
    return mark(family) | line(family)


def rank(family: str) -> int:
    """Return the place of a family among colours, markers and dashes; families of other packages share the rest."""
    others = [name for name in registry.names("families") if name not in ORDER]
    known = {spelling: i for i, key in enumerate(ORDER + others) for spelling in (key, label(key))}
    place = known.get(family, len(ORDER))
    return place if place < len(ORDER) else len(ORDER) + (place - len(ORDER)) % (len(MARKERS) - len(ORDER))


def color(family: str) -> tuple[float, float, float]:
    """Return the colour of a family."""
    return (sns.color_palette("colorblind", 10) + sns.color_palette("dark", 10))[COLORS[rank(family)]]
