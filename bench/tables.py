"""The results of a benchmark as Markdown tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.scale import START, exponents
from bench.shares import KINDS

Row = Mapping[str, Any]


def markdown(results: Mapping[str, Any]) -> str:
    """Return one page with a table for each section of the results."""
    machine = results["machine"]
    title = "# Cost on {device}\n\n{threads} threads, {cpu_capability}, PyTorch {torch}, batch {batch}.".format(
        **machine
    )
    sections = [SECTIONS[name](rows) for name, rows in results.items() if name in SECTIONS and rows]
    return "\n\n".join([title, *sections]) + "\n"


def _layers(rows: Sequence[Row]) -> str:
    columns = [
        "family",
        "size",
        "parameters",
        "step",
        "to plain",
        "evaluation",
        "to plain",
        "memory",
        "to plain",
        *KINDS,
    ]
    body = [
        [
            row["family"],
            row["size"],
            f"{row['parameters']:,}",
            _time(row["step"]),
            _factor(row["step_ratio"]),
            _time(row["evaluation"]),
            _factor(row["evaluation_ratio"]),
            _bytes(row["memory"]),
            "" if row["memory_ratio"] is None else f"{row['memory_ratio']:.2f}",
            *(f"{row['shares'][kind]:.0%}" for kind in KINDS),
        ]
        for row in rows
    ]
    return _section(
        "A training step, an evaluation, their memory",
        "Medians and quartiles; ratios to the unconstrained network, taken in alternation. Evaluation with operators "
        "that are computed once. Last columns: shares of a step, forwards and backwards.",
        columns,
        body,
    )


def _toy(rows: Sequence[Row]) -> str:
    body = [[row["family"], str(row["epochs"]), f"{row['seconds']:.1f} s"] for row in rows]
    return _section("A toy model's training", "300 samples, batch 50, one thread.", ["family", "epochs", "time"], body)


def _epoch(rows: Sequence[Row]) -> str:
    body = [[row["family"], f"{row['epoch']:.1f} s", f"{row['loader_share']:.1%}"] for row in rows]
    return _section(
        "An epoch of CIFAR-100 with augmentation", "50,000 images.", ["family", "time", "of it the loader"], body
    )


def _certification(rows: Sequence[Row]) -> str:
    body = [[row["family"], str(row["images"]), f"{row['predict']:.3g} s", f"{row['certify']:.3g} s"] for row in rows]
    return _section("Certification", "", ["family", "images", "predictions", "radii"], body)


def _search(rows: Sequence[Row]) -> str:
    body = [
        [
            row["run"],
            f"{row['paper']:.5g}",
            f"{row['found']:.5g}",
            "" if row["upper"] is None else f"{row['upper']:.5g}",
            f"{row['paper_passes']:,}",
            f"{row['passes']:,}",
        ]
        for row in rows
    ]
    return _section(
        "Search for a lower bound",
        "Against 10 restarts of 50 Adam steps on 64 pairs, at the best of several learning rates.",
        ["network", "paper's procedure", "found", "upper bound", "its forward passes", "forward passes"],
        body,
    )


def _attack(rows: Sequence[Row]) -> str:
    rows = [*rows, {"run": "all", "same": all(row["same"] for row in rows)} | _sums(rows)]
    body = [
        [
            row["run"],
            f"{row['separate_passes']:,}",
            f"{row['passes']:,}",
            f"{row['passes'] / row['separate_passes']:.2f}",
            "yes" if row["same"] else "no",
        ]
        for row in rows
    ]
    return _section(
        "AutoAttack at several radii",
        "Forward passes of a run a radius, and of the study's attack, which leaves out certified images.",
        ["network", "a run a radius", "study", "ratio", "same robust images"],
        body,
    )


def _sums(rows: Sequence[Row]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in ("separate_passes", "passes")}


def _scale(rows: Sequence[Row]) -> str:
    body = []
    memory = exponents(rows, "memory")
    for (family, axis), exponent in exponents(rows, "seconds").items():
        curve = [row for row in rows if (row["family"], row["axis"]) == (family, axis)]
        first, last = curve[0], curve[-1]
        grown = memory.get((family, axis))
        body.append(
            [
                family,
                axis,
                f"{first['value']} to {last['value']}",
                f"{first['seconds']:.3g} to {last['seconds']:.3g} s",
                f"{exponent:.2f}",
                f"{_bytes(first['memory'])} to {_bytes(last['memory'])}",
                "" if grown is None else f"{grown:.2f}",
            ]
        )
    return _section(
        "Growth of a training step",
        f"Convolutions of equal width on images of equal size; one axis doubles, the others stay at {_start()}. "
        "Exponents are fitted to the last points.",
        ["family", "axis", "values", "time", "exponent", "memory", "exponent"],
        body,
    )


def _start() -> str:
    return ", ".join(f"{axis} {value}" for axis, value in START.items())


def _largest(rows: Sequence[Row]) -> str:
    body = [
        [
            f"{row['family']} {row['size']} ({row['architecture']})",
            f"{row['parameters']:,}",
            f"{row['build']:.1f} s",
            f"{row['seconds']:.2f} s" if "seconds" in row else "",
            _bytes(row.get("memory")),
        ]
        for row in rows
    ]
    return _section(
        "The largest networks", "", ["network", "parameters", "to build", "a step of batch 256", "its memory"], body
    )


def _peers(rows: Sequence[Row]) -> str:
    body = [
        [
            row["network"],
            f"{row['lower']:.5g}",
            row["method"] + (", falls back" if row["fell_back"] else ""),
            f"{row['bound']:.7g}",
            f"{row['seconds']:.3g} s",
            _proved(row),
        ]
        for row in rows
    ]
    return _section(
        "Upper bounds of fully connected networks without structure",
        "Hidden widths; unconstrained, for the digits, at their initial values or trained. `lipsdp` is this library's, "
        "ECLipsE and its fast form are eclipse-nn's; where the solver of the former doesn't meet its own tolerance, it "
        "gives the bound of the latter. Proved: whether `lbdn.verify` proves the claim by its multipliers, or how much "
        "larger, relatively, the bound is that it proves. Those of ECLipsE-Fast are computed here, ECLipsE gives none.",
        ["hidden layers", "lower bound found", "method", "upper bound", "time", "proved"],
        body,
    )


def _proved(row: Row) -> str:
    if not row["multipliers"]:
        return "no multipliers"
    if row["proved"] is None:
        return "no"
    excess = row["proved"] / row["bound"] - 1
    return f"{excess:.0e} above" if excess else "yes"


SECTIONS = {
    "layers": _layers,
    "toy": _toy,
    "epoch": _epoch,
    "certification": _certification,
    "search": _search,
    "attack": _attack,
    "peers": _peers,
    "scale": _scale,
    "largest": _largest,
}


def _section(title: str, text: str, columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in [columns, ["---"] * len(columns), *body]]
    return "\n\n".join(part for part in (f"## {title}", text, "\n".join(lines)) if part)


def _time(spread: Sequence[float]) -> str:
    return "{:.1f} ({:.1f} to {:.1f}) ms".format(*(1000 * value for value in spread))


def _factor(spread: Sequence[float]) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*spread)


def _bytes(count: int | None) -> str:
    return "" if not count else f"{count / 2**20:,.0f} MiB"
