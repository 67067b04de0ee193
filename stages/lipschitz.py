"""Bound one model's Lipschitz constant from below and from above."""

from pathlib import Path
from typing import Any

import click
import torch

from lbdn import tracking
from lbdn.bounds import (
    empirical_lower_bound,
    layer_lower_bounds,
    layer_norms,
    spectral_product,
)
from lbdn.data import Dataset
from lbdn.explicit import explicit
from lbdn.files import write_json
from lbdn.inference import as_input, on_device, predict
from lbdn.params import Lipschitz
from lbdn.runs import load_run
from stages.common import RUN, device_option, errors_in_one_line, run_settings

ROUNDING = 1e-6  # relative, far above that of the ratio in float64


def bound_run(run: Path, settings: Lipschitz, dataset: Dataset, device: torch.device) -> dict[str, Any]:
    """Write lipschitz.json; return its contents.

    Raises:
        ValueError: if the search refutes the upper bound.
    """
    network = load_run(run).to(device)
    inputs = as_input(on_device(dataset.test_inputs, device))
    search = settings.model_dump(exclude={"layers"})
    lower = empirical_lower_bound(network, inputs, **search)
    upper = network.pixel_gamma
    if upper is not None and lower.ratio > upper * (1 + ROUNDING):
        raise ValueError(
            f"the upper Lipschitz bound {upper:.6g} of {run} is wrong: the search found two points with the ratio "
            f"{lower.ratio:.6g}; the layers of its family aren't all scale-Lipschitz"
        )
    result: dict[str, Any] = {
        "lower": lower.ratio,
        "upper": upper,
        "upper_normalised": network.gamma,
        "tightness": None if upper is None else lower.ratio / upper,
        "spectral_product": spectral_product(network),
        "witness": [lower.x1.flatten().tolist(), lower.x2.flatten().tolist()],
    }
    if settings.layers:
        form = explicit(network)
        result["layers"] = {
            "tightness": layer_lower_bounds(network, inputs, **search),
            "norms": None if form is None else layer_norms(form.weights),
        }
    if dataset.input_shape == (1,):
        grid = torch.linspace(float(inputs.min()), float(inputs.max()), 801, device=device)[:, None]
        result["curve"] = {"x": grid.flatten().tolist(), "y": predict(network, grid).flatten().tolist()}
    write_json(run / "lipschitz.json", result)
    return result


@click.command()
@RUN
@device_option
@errors_in_one_line
def main(run: Path, device: torch.device) -> None:
    """Bound the model in RUN: search for an empirical lower bound, compute upper ones; write RUN/lipschitz.json."""
    description, settings, dataset = run_settings(run)
    if settings.lipschitz is None:
        raise ValueError(f"params.yaml has no {description['experiment']}.lipschitz")
    with tracking.evaluation_run(run, description) as log:
        log.tags({"lipschitz": settings.lipschitz.model_dump()})
        result = bound_run(run, settings.lipschitz, dataset, device)
        log.metrics(
            {
                "lipschitz_lower": result["lower"],
                "lipschitz_upper": result["upper"],
                "tightness": result["tightness"],
                "spectral_product": result["spectral_product"],
            }
        )


if __name__ == "__main__":
    main()
