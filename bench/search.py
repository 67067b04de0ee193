"""The search for a lower bound and AutoAttack, by what they find and how many forward passes they take."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lbdn.bounds import empirical_lower_bound
from lbdn.certify import certified_radius
from lbdn.data import balanced_subset, load_dataset
from lbdn.inference import as_input, predict
from lbdn.layers import freeze
from lbdn.runs import load_run, read_description

RATES = (0.01, 0.03, 0.1)  # the paper states none


def count_passes(network: nn.Module) -> list[int]:
    """Return a list to which every forward pass of the network, or of a copy of it, adds its number of examples."""
    passes: list[int] = []
    network.register_forward_hook(lambda _module, inputs, _output: passes.append(len(inputs[0])))
    return passes


def paper_search(
    network: nn.Module,
    inputs: Tensor,
    *,
    learning_rate: float,
    restarts: int = 10,
    steps: int = 50,
    pairs: int = 64,
    radius: float = 0.05,
    seed: int = 0,
) -> float:
    """Return the largest ratio that the paper's procedure finds: Adam ascends the ratio over x and its deviation.

    Source: Wang and Manchester (2023), section on training details, "PGD-like method".
    """
    frozen = freeze(copy.deepcopy(network).double())
    generator = torch.Generator().manual_seed(seed)
    best = 0.0
    for _ in range(restarts):
        chosen = torch.randint(len(inputs), (pairs,), generator=generator)
        x = inputs[chosen.to(inputs.device)].double()
        delta = (radius * torch.randn(x.shape, generator=generator, dtype=torch.float64)).to(x)
        x, delta = x.requires_grad_(True), delta.requires_grad_(True)
        optimizer = torch.optim.Adam([x, delta], lr=learning_rate, maximize=True)
        for step in range(steps + 1):
            rise, run = (v.flatten(1).norm(dim=1) for v in (frozen(x + delta) - frozen(x), delta))
            ratio = rise / run
            # Close pairs show rounding, not slope; where a network is linear they lose nothing.
            best = max(best, float(torch.where(run > 1e-4 * radius, ratio, 0.0).detach().max()))
            if step < steps:
                x.grad, delta.grad = torch.autograd.grad(ratio.sum(), (x, delta))
                optimizer.step()
    return best


def measure_search(runs: Sequence[Path], prepared: Path, device: torch.device, **search: Any) -> list[dict[str, Any]]:
    """Return a row a trained network: the lower bounds by the paper's procedure, at its best rate, and by the study's.

    Forward passes are counted in examples; those of the paper's procedure are of one rate.
    """
    rows = []
    for run in runs:
        network = load_run(run).to(device)
        inputs = as_input(_tensor(load_dataset(prepared / read_description(run)["dataset"]).test_inputs, device))
        passes = count_passes(network)
        found = [paper_search(network, inputs, learning_rate=rate) for rate in RATES]
        paper_passes = sum(passes) // len(RATES)
        passes.clear()
        ratio = empirical_lower_bound(network, inputs, **search).ratio
        rows.append(
            {
                "run": f"{run.parent.name}/{run.name}",
                "paper": max(found),
                "found": ratio,
                "upper": network.pixel_gamma,
                "paper_passes": paper_passes,
                "passes": sum(passes),
            }
        )
    return rows


def measure_attack(
    runs: Sequence[Path], prepared: Path, device: torch.device, *, images: int, radii_255: Sequence[float]
) -> list[dict[str, Any]]:
    """Return a row a trained bounded network: AutoAttack's forward passes, one radius at a time, and as the study does.

    The sets of robust images must be the same.
    """
    from lbdn.attack import autoattack

    rows = []
    radii = [eps / 255 for eps in radii_255]
    for run in runs:
        network = load_run(run).to(device)
        bound = network.pair_gamma()
        if bound is None:
            continue
        dataset = load_dataset(prepared / read_description(run)["dataset"])
        chosen = balanced_subset(dataset.test_targets, images, 0)
        x = as_input(_tensor(dataset.test_inputs[chosen], device))
        y = _tensor(dataset.test_targets[chosen], device)
        certified = certified_radius(predict(network, x), y, bound)
        passes = count_passes(network)
        separate = [_robust(autoattack(network, x, y, eps=[eps], seed=0), eps) for eps in radii]
        separate_passes = sum(passes)
        passes.clear()
        skipping = autoattack(network, x, y, eps=radii, seed=0, certified=certified)
        rows.append(
            {
                "run": f"{run.parent.name}/{run.name}",
                "same": separate == [_robust(skipping, eps) for eps in radii],
                "separate_passes": separate_passes,
                "passes": sum(passes),
            }
        )
    return rows


def _robust(rows: list[dict[str, Any]], eps: float) -> list[int]:
    return [row["image"] for row in rows if row[f"robust@{eps:.6g}"]]


def _tensor(array: Any, device: torch.device) -> Tensor:
    return torch.tensor(array, device=device)
