"""What the stage commands share: options, errors as one line, and the files that they read.

PyTorch takes two seconds to import, so it is imported where it is used: reports do without.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lbdn.files import read_json, write_json
from lbdn.memory import keep_freed_memory

if TYPE_CHECKING:
    import torch

    from lbdn.data import Dataset
    from lbdn.params import Experiment

PREPARED = Path("data/prepared")
NEEDED = Path("data/needed")
RUN = click.argument("run", type=click.Path(path_type=Path, file_okay=False))


def errors_in_one_line(function: Callable[..., None]) -> Callable[..., None]:
    """Turn the library's errors for wrong input into one line and exit status 1."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _stop)  # so that a killed stage ends its MLflow run
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        try:
            function(*args, **kwargs)
        except (ValueError, FileNotFoundError, ConnectionError, ModuleNotFoundError) as error:
            raise click.ClickException(str(error)) from error

    return wrapped


def _stop(_signal: int, _frame: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def device_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--device``: "auto" is a GPU where there is one.

    On a CPU results depend on the number of threads in their last bits, so stages use one, unless OMP_NUM_THREADS says
    otherwise: the same seed then gives the same weights on any number of cores.
    """
    return click.option(
        "--device",
        default="auto",
        show_default=True,
        callback=_device,
        help="cpu, cuda, cuda:1, ... or auto.",
    )(function)


def _device(_context: click.Context, _option: click.Parameter, value: str) -> torch.device:
    import torch

    if value == "auto":
        value = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.zeros(0, device=value).device
    except (RuntimeError, AssertionError) as error:
        raise click.BadParameter(f"{value!r} is not a device that PyTorch has here") from error
    if device.type == "cpu":
        keep_freed_memory()
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
    return device


def model_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments and options that name one model: a cell of an experiment's grid."""
    options = [
        click.argument("experiment"),
        RUN,
        click.option("--family", required=True, help="Of layers: plain, aol, orthogonal, sll, sandwich, ..."),
        click.option("--size", required=True, help="Of the architecture: tiny, small, medium, large, ..."),
        click.option("--gamma", required=True, callback=_gamma, help="Upper Lipschitz bound, from normalised input."),
        click.option(
            "--seed", type=click.IntRange(0), required=True, help="Of initial values, order and augmentation."
        ),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), function)


def _gamma(_context: click.Context, _option: click.Parameter, value: str) -> float | None:
    try:
        return None if value == "none" else float(value)
    except ValueError as error:
        raise click.BadParameter(f"takes a number, or none for an unconstrained network, got {value!r}") from error


def note_provenance(run: Path, part: str, device: torch.device, seconds: float) -> None:
    """Note in ``provenance.json`` on what a part of a run was computed, and how long it took.

    Times differ from run to run, so nothing that DVC tracks holds them.
    """
    import torch

    path = run / "provenance.json"
    parts = read_json(path) if path.exists() else {}
    threads = torch.get_num_threads()
    cpu = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    parts[part] = {"device": machine, "torch": torch.__version__, "seconds": round(seconds, 3)}
    write_json(path, parts)


def run_settings(run: Path) -> tuple[dict[str, Any], Experiment, Dataset]:
    """Return a finished run's description, its experiment's parameters and its data set."""
    from lbdn.data import load_dataset
    from lbdn.params import load_params
    from lbdn.runs import read_description

    description = read_description(run)
    settings = load_params().experiment(description["experiment"])
    return description, settings, load_dataset(PREPARED / description["dataset"])
