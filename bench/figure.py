"""How a training step's time and memory grow, drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

UNITS = {"width": "channels", "image": "pixels a side", "batch": "images", "depth": "layers"}


def draw_scale(rows: Sequence[Mapping[str, Any]], stem: Path) -> None:
    """Write a figure, SVG and PNG: a column an axis, time above memory, both logarithmic."""
    import pandas as pd
    import seaborn as sns

    from lbdn.report.look import look, mark, write_figure
    from lbdn.report.tables import label

    table = pd.DataFrame(rows)
    families = list(dict.fromkeys(table["family"]))
    table["family"] = table["family"].map(label)
    table["time (s)"], table["memory (MiB)"] = table["seconds"], table["memory"].astype(float) / 2**20
    with look():
        grid = sns.relplot(
            data=table.melt(["family", "axis", "value"], ["time (s)", "memory (MiB)"], "quantity", "cost"),
            x="value",
            y="cost",
            hue="family",
            style="family",
            palette={label(family): mark(family)["color"] for family in families},
            row="quantity",
            col="axis",
            kind="line",
            markers={label(family): mark(family)["marker"] for family in families},
            dashes=False,
            height=1.7,
            facet_kws={"sharex": "col", "sharey": "row"},
        )
        grid.set(xscale="log", yscale="log")
        grid.set_titles("")
        for quantity, axes in zip(grid.row_names, grid.axes, strict=True):
            axes[0].set_ylabel(quantity)
        for axis, lowest in zip(grid.col_names, grid.axes[-1], strict=True):
            lowest.set_xlabel(f"{axis} ({UNITS[axis]})")
        write_figure(grid.figure, stem)
