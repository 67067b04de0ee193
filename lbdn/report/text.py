"""What a section of the report says in words: its lead, and the captions that depend on its results."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lbdn.report import tables
from lbdn.report.results import HEADLINE, Result, differences

NOTABLE = 0.01  # certified accuracy from which the best network is named


def fitting_lead(results: Sequence[Result], layers: pd.DataFrame, paper: Mapping[str, Any]) -> str:
    """Return what was fitted, which family comes closest to its bound, and the products of the norms of the weights."""
    gammas = list(dict.fromkeys(result.gamma or 0.0 for result in results))
    closest = [runs for runs in tables.group(results) if runs[0].gamma == max(gammas)]
    tightness = [tables.mean([run.bound("tightness") for run in runs]) or 0.0 for runs in closest]
    most, best = max(zip(tightness, closest, strict=True), key=lambda pair: pair[0])
    text = (
        f"Networks of {len({result.family for result in results})} families fit a square wave under upper Lipschitz "
        f"bounds {', '.join(f'{gamma:g}' for gamma in gammas)}. Its jumps ask for all the slope that a bound allows, "
        "so how close the steepest slope comes to the bound says how tight the bound is. "
        f"{tables.label(best[0].family)} comes closest: {100 * most:.1f} % at bound {max(gammas):g}{_over_seeds(best)}."
    )
    if len(layers):
        text += (
            " At bound 1 the product of the spectral norms of the weights, an upper bound that ignores how layers fit "
            f"together, is: {_products(layers, paper)}."
        )
    return text


def _products(layers: pd.DataFrame, paper: Mapping[str, Any]) -> str:
    """Return the product of the norms of each family's weights, as a text, beside the paper's."""
    by_formula = paper.get("layers", {}).get("network_norm_by_formula", {})
    texts = []
    for row in layers[layers["layer"] == "full network"].to_dict("records"):
        printed = row.get("norm paper")
        known = [] if printed is None or pd.isna(printed) else [f"paper {printed:g}"]
        known += [
            f"by its formula {norm:g}" for family, norm in by_formula.items() if tables.label(family) == row["family"]
        ]
        texts.append(f"{row['family']} {row['norm']:.4g}" + (f" ({', '.join(known)})" if known else ""))
    return ", ".join(texts)


def classification_lead(results: Sequence[Result], paper: Mapping[str, Any]) -> str:
    """Return what was trained on what, and which network certifies most."""
    description = results[0].description
    families = ", ".join(dict.fromkeys(tables.label(result.family) for result in results))
    sizes = ", ".join(dict.fromkeys(result.size for result in results))
    gammas = ", ".join(dict.fromkeys(f"{result.gamma:g}" for result in results if result.gamma is not None))
    if "model" in description:
        origin = f"trained elsewhere, from the file {Path(description['model']['path']).name}"
    else:
        origin = f"trained on {description['samples']['train']} images of {description['dataset']}, epochs: "
        origin += str(description["training"]["epochs"])
    bound = f"with upper Lipschitz bound {gammas} from {_domain(description['network'])}, " if gammas else ""
    text = (
        f"Networks of architecture {description['network']['architecture']} ({sizes}) built from each family — "
        f"{families} — {bound}{origin}."
    )
    if "place" in paper:
        text += f" Compare with the paper's {paper['place']}."
    groups = tables.group(results)
    certified = [tables.mean([run.certified(HEADLINE / 255) for run in runs]) or 0.0 for runs in groups]
    most, best = max(zip(certified, groups, strict=True), key=lambda pair: pair[0])
    if most >= NOTABLE:
        clean = tables.percent([run.clean() for run in best])
        text += (
            f" {tables.name(best[0], results)} certifies most at radius {HEADLINE}/255: {100 * most:.1f} % of the "
            f"test images, of {clean:.1f} % that it classifies correctly{_over_seeds(best)}."
        )
    return text


def _domain(network: Mapping[str, Any]) -> str:
    domain = "pixels" if network.get("normalization") is None else "normalised input"
    return f"{domain} to the last, normalised layer" if network.get("last_layer_normalization") else domain


def _over_seeds(results: Sequence[Result]) -> str:
    seeds = len({result.cell.seed for result in results})
    return f", means over {seeds} seeds" if seeds > 1 else ""


def accuracy_caption(results: Sequence[Result], paper: Mapping[str, Any]) -> str:
    """Return the caption of the table of accuracies: of how many images, how, and on what machine."""
    first = results[0]
    certified = " and certified (in real arithmetic)" if first.certify is not None else ""
    text = f"Accuracies in percent, clean{certified} on all "
    text += f"{first.description['samples']['test']} test images"
    if first.attack is not None:
        text += (
            f", under AutoAttack (standard version, l2) on {len(first.attack)} of them, drawn evenly from the classes, "
            f"with a standard error of up to {50 / math.sqrt(len(first.attack)):.2g} points. Image by image, certified "
            "is never above attacked; between all images and the sample it can be"
        )
    text += ". Radii are in pixels on [0, 1]." if first.attack is not None or first.certify is not None else "."
    epochs = [run.provenance["epoch"] for run in results if "epoch" in run.provenance]
    devices = {f"{epoch['device']}, torch {epoch['torch']}" for epoch in epochs}
    if devices and paper.get("times"):
        text += f" Trained on: {', '.join(sorted(devices))}"
        comparable = first.description["samples"].get("train") == paper["settings"]["train"]
        text += "; the paper's times are those of its authors' GPU." if comparable else "."
    return " ".join([text, *([paper["note"]] if "note" in paper else [])])


def marked(
    drawn: Mapping[str, tuple[Figure, str]], results: Sequence[Result], paper: Mapping[str, Any]
) -> dict[str, tuple[Figure, str]]:
    """Return figures with captions that say so where networks aren't at the paper's settings."""
    differ = [bool(differences(runs, paper)) for runs in tables.group(results)]
    mark = f" Not {'' if all(differ) else 'all '}at the paper's settings: the first table says how they differ."
    mark = mark if any(differ) else ""
    return {name: (figure, caption + mark) for name, (figure, caption) in drawn.items()}
