"""A training step, an evaluation and their memory, for each family beside the unconstrained network."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.measure import alternate, peak_memory, spread
from bench.shares import shares
from lbdn.layers import freeze
from lbdn.networks import Network, build_network

BASELINE = "plain"


def measure_layers(
    families: Sequence[str],
    *,
    architecture: str = "kwlarge",
    size: str = "small",
    input_shape: Sequence[int] = (3, 32, 32),
    outputs: int = 100,
    batch: int,
    repetitions: int,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Return a row a family, the unconstrained one first: seconds, bytes, shares, and ratios to that one.

    Ratios of time are taken within each repetition; all are medians, with quartiles beside them.
    """
    names = [BASELINE, *(family for family in families if family != BASELINE)]

    def build(family: str) -> Network:
        torch.manual_seed(0)
        return build_network(architecture, family, size=size, input_shape=input_shape, outputs=outputs).to(device)

    x, y = random_batch(batch, input_shape, outputs, device)

    def build_and_step(family: str) -> None:
        training_step(build(family), x, y)()

    networks = {name: build(name) for name in names}
    steps = {name: training_step(network, x, y) for name, network in networks.items()}
    step_times = alternate(steps, device, repetitions)
    # After the first steps, which load libraries that would count as memory of the step.
    memory = {name: peak_memory(partial(build_and_step, name), device) for name in names}
    parts = {name: shares(networks[name], steps[name], device) for name in names}
    evaluations = {name: evaluation(network, x) for name, network in networks.items()}
    evaluation_times = alternate(evaluations, device, repetitions)
    return [
        {
            "family": name,
            "size": size,
            "parameters": sum(p.numel() for p in networks[name].parameters()),
            "step": spread(step_times[name]),
            "step_ratio": _ratio(step_times, name),
            "evaluation": spread(evaluation_times[name]),
            "evaluation_ratio": _ratio(evaluation_times, name),
            "memory": memory[name],
            "memory_ratio": (memory[name] or 0) / (memory[BASELINE] or 1) if memory[BASELINE] else None,
            "shares": parts[name],
        }
        for name in names
    ]


def random_batch(batch: int, input_shape: Sequence[int], outputs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images on [0, 1] and labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, *input_shape, generator=generator)
    return images.to(device), torch.randint(outputs, (batch,), generator=generator).to(device)


def training_step(network: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a step as ``lbdn.training`` takes it: forwards, backwards, Adam."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def evaluation(network: nn.Module, x: Tensor) -> Callable[[], None]:
    """Return a forward pass of a network whose operators are computed once, as it is evaluated and attacked."""
    frozen = freeze(network)

    def evaluate() -> None:
        with torch.no_grad():
            frozen(x)

    return evaluate


def _ratio(times: dict[str, list[float]], name: str) -> Any:
    return spread([own / base for own, base in zip(times[name], times[BASELINE], strict=True)])
