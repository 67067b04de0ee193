"""The look of the report's figures: colours and marks that tell families apart, also in black and white; panels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lbdn import registry
from lbdn.files import whole
from lbdn.report.results import Result
from lbdn.report.tables import label

ORDER = ["sandwich", "sll", "orthogonal", "aol", "plain", "spectral", "bcop", "soc", "lot", "cpl"]
MARKERS = ["X", "s", "o", "P", "D", "^", "v", "<", ">", "*", "p", "h"]
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
    "legend.handlelength": 2.8,
    "svg.hashsalt": "lbdn",  # the same figure gives the same file
    "svg.fonttype": "path",
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "savefig.bbox": "tight",
}


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
    height = 2.6 if columns == 1 else 1.35 * rows + 0.7
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH, height), sharex=True, sharey=sharey, squeeze=False, layout="constrained"
    )
    for axis, title in zip(axes.flat, titles, strict=False):
        axis.set_title(title)
    for axis in axes.flat[len(titles) :]:
        axis.set_visible(False)
        axes[-2, 1].tick_params(labelbottom=True)
    return figure, list(axes.flat[: len(titles)])


def logarithmic_x(axis: Axes) -> None:
    """Make an axis logarithmic, with ticks as plain numbers: powers of ten, or also 2 and 5 where there are few."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 50 else (1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Put a legend above a figure."""
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)


def family_handles(
    results: Sequence[Result], style: Callable[[str], Mapping[str, Any]], **changes: Any
) -> list[Artist]:
    """Return a legend's entries for the families of results, each in its style."""
    families = dict.fromkeys(result.family for result in results)
    return [plt.Line2D([], [], label=label(family), **{**style(family), **changes}) for family in families]


def published_handle(**style: Any) -> Artist:
    """Return a legend's entry for published values, which are hollow."""
    return plt.Line2D(
        [], [], label="published", color="0.3", marker="o", markerfacecolor="none", linestyle="none", **style
    )


def mark(family: str) -> dict[str, Any]:
    """Return the marker of a family."""
    return {"color": color(family), "marker": MARKERS[rank(family)], "markersize": 5, "clip_on": False}


def line(family: str) -> dict[str, Any]:
    """Return the line of a family."""
    return {"color": color(family), "linestyle": DASHES[rank(family)]}


def marked_line(family: str) -> dict[str, Any]:
    """Return the line of a family with a few of its markers, which tell many lines apart in black and white."""
    places = (0.02 * rank(family), 0.3)  # of the axes, from the start and between markers
    return {**line(family), "marker": MARKERS[rank(family)], "markersize": 4, "markevery": places}


def rank(family: str) -> int:
    """Return the place of a family among colours, markers and dashes; families of other packages share the rest."""
    others = [name for name in registry.names("families") if name not in ORDER]
    known = {spelling: i for i, key in enumerate(ORDER + others) for spelling in (key, label(key))}
    place = known.get(family, len(ORDER))
    return place if place < len(ORDER) else len(ORDER) + (place - len(ORDER)) % (len(MARKERS) - len(ORDER))


def color(family: str) -> tuple[float, float, float]:
    """Return the colour of a family."""
    return (sns.color_palette("colorblind", 10) + sns.color_palette("dark", 10))[COLORS[rank(family)]]
