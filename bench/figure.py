"""How a training step's time and memory grow, drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw_scale(rows: Sequence[Mapping[str, Any]], stem: Path) -> None:
    """Write a figure, SVG and PNG: a column an axis, time above memory, both logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import pandas as pd
    import seaborn as sns

    table = pd.DataFrame(rows)
    table["time (s)"], table["memory (MiB)"] = table["seconds"], table["memory"].astype(float) / 2**20
    long = table.melt(["family", "axis", "value"], ["time (s)", "memory (MiB)"], "quantity", "cost")
    with sns.axes_style("whitegrid"), mpl.rc_context({"svg.hashsalt": "lbdn", "font.size": 9}):
        grid = sns.relplot(
            data=long,
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
            facet_kws={"sharex": "col", "sharey": "row", "margin_titles": True},
        )
        grid.set(xscale="log", yscale="log")
        grid.set_titles(row_template="", col_template="{col_name}")
        for quantity, axes in zip(grid.row_names, grid.axes, strict=True):
            axes[0].set_ylabel(quantity)
        grid.set_xlabels("")
        for suffix, metadata in ((".svg", {"Date": None}), (".png", {"Software": None})):
            grid.savefig(stem.with_suffix(suffix), dpi=150, metadata=metadata)
        plt.close(grid.figure)
