"""How a training step's time and memory grow, drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw_scale(rows: Sequence[Mapping[str, Any]], stem: Path) -> None:
    """Write a figure, SVG and PNG: a column an axis, time above memory, both logarithmic."""
    import pandas as pd
    import seaborn as sns

    from lbdn.report.look import look, write_figure

    table = pd.DataFrame(rows)
    table["time (s)"], table["memory (MiB)"] = table["seconds"], table["memory"].astype(float) / 2**20
    with look():
        grid = sns.relplot(
            data=table.melt(["family", "axis", "value"], ["time (s)", "memory (MiB)"], "quantity", "cost"),
            x="value",
            y="cost",
            hue="family",
            style="family",
            row="quantity",
            col="axis",
            kind="line",
            markers=True,
            dashes=False,
            height=2.2,
            facet_kws={"sharex": "col", "sharey": "row"},
        )
        grid.set(xscale="log", yscale="log")
        grid.set_titles("")
        for quantity, axes in zip(grid.row_names, grid.axes, strict=True):
            axes[0].set_ylabel(quantity)
        for axis, lowest in zip(grid.col_names, grid.axes[-1], strict=True):
            lowest.set_xlabel(axis)
        write_figure(grid.figure, stem)
