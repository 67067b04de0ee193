"""``python -m bench``: measure what the bound costs on this machine; write a table, a JSON file and a figure."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from bench.figure import draw_scale
from bench.layers import measure_layers
from bench.measure import machine
from bench.peers import measure_peers
from bench.scale import measure_largest, measure_scale
from bench.search import measure_attack, measure_search
from bench.tables import SECTIONS, markdown
from bench.work import measure_certification, measure_epoch, measure_toy
from lbdn import registry
from lbdn.files import read_json, write_json, write_text
from lbdn.memory import keep_freed_memory
from stages.common import PREPARED, device_option, errors_in_one_line

AS_STAGES = ("toy", "search", "attack")  # on one thread, as the study's stages


def trained(folder: Path) -> list[Path]:
    """Return the run folders of an experiment that hold a trained model.

    Raises:
        FileNotFoundError: if there are none.
    """
    found = sorted(path.parent for path in folder.glob("*/run.json"))
    if not found:
        raise FileNotFoundError(f"no trained networks in {folder}; `make study` trains them")
    return found


@click.command()
@click.option("--section", "sections", multiple=True, type=click.Choice(list(SECTIONS)), help="All by default.")
@click.option("--family", "families", multiple=True, help="Of layers; all by default.")
@click.option("--size", "sizes", multiple=True, default=("small",), show_default=True, help="Of KWLarge, in `layers`.")
@click.option("--image", default=32, show_default=True, help="Height and width, in `layers`.")
@click.option("--batch", default=256, show_default=True, help="Images in a step.")
@click.option("--repetitions", default=5, show_default=True, help="Of a step and an evaluation.")
@click.option("--threads", type=int, help="Of the CPU; one for each core by default.")
@click.option("--limit", default=4.0, show_default=True, help="Seconds that a step may take where cost grows.")
@click.option("--runs", default=Path("runs"), type=click.Path(path_type=Path), help="Of the toy and the study.")
@click.option("--attacked", default=100, show_default=True, help="Images that AutoAttack gets.")
@click.option("--output", default=Path("reports/bench"), type=click.Path(path_type=Path), help="Folder to write.")
@device_option
@errors_in_one_line
def main(
    sections: tuple[str, ...],
    families: tuple[str, ...],
    sizes: tuple[str, ...],
    image: int,
    batch: int,
    repetitions: int,
    threads: int | None,
    limit: float,
    runs: Path,
    attacked: int,
    output: Path,
    device: torch.device,
) -> None:
    """Measure what the bound costs; write a table (.md), its numbers (.json) and a figure to the folder OUTPUT.

    Sections `search` and `attack` measure the trained networks of the toy and the study: `make study` first. Section
    `peers` compares upper bounds with those of eclipse-nn: `pip install eclipse-nn` first. Without these they are left
    out. Each section is written when it is finished; one that is measured again takes the place of the old one.
    """
    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    keep_freed_memory()
    names = list(families) or registry.names("families")
    for name in names:
        registry.find("families", name)
    shape = (3, image, image)
    works: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "layers": lambda: [
            row
            for size in sizes
            for row in measure_layers(
                names, size=size, input_shape=shape, batch=batch, repetitions=repetitions, device=device
            )
        ],
        "toy": lambda: measure_toy(names, device=device),
        "epoch": lambda: measure_epoch(names, batch=batch, device=device),
        "certification": lambda: measure_certification(names, batch=batch, device=device),
        "search": lambda: measure_search([*trained(runs / "toy"), *trained(runs / "study")], PREPARED, device),
        "attack": lambda: measure_attack(
            trained(runs / "study"), PREPARED, device, images=attacked, radii_255=(36, 72, 108)
        ),
        "peers": measure_peers,
        "scale": lambda: measure_scale(names, device=device, limit=limit),
        "largest": lambda: measure_largest(device),
    }
    conditions = machine(device) | {"batch": batch}
    stem = output / re.sub(r"[^a-z0-9]+", "-", conditions["device"].lower()).strip("-")
    results: dict[str, Any] = {"machine": conditions}
    if stem.with_suffix(".json").exists():
        results = read_json(stem.with_suffix(".json"))
    if results["machine"] != conditions:
        raise ValueError(
            f"{stem}.json was measured under other conditions, {results['machine']}, not {conditions}; name another "
            "folder by --output, or move that file away"
        )
    for name in sections or SECTIONS:
        click.echo(name)
        torch.set_num_threads(1 if name in AS_STAGES else threads)
        try:
            results[name] = works[name]()
            write_json(stem.with_suffix(".json"), results)
            write_text(stem.with_suffix(".md"), markdown(results))
            if name == "scale":
                draw_scale(results[name], stem)
        except (FileNotFoundError, ModuleNotFoundError) as error:
            click.echo(f"{name} is left out or incomplete: {error}", err=True)
    click.echo(stem.with_suffix(".md"))


if __name__ == "__main__":
    main()
