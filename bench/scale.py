"""How a training step's time and memory grow with width, image size, batch and depth."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.layers import random_batch, training_step
from bench.measure import peak_memory, seconds
from lbdn import registry
from lbdn.architectures import Selection, ZeroPadding
from lbdn.layers import Family
from lbdn.networks import Network, build_network

START = {"width": 16, "image": 16, "batch": 16, "depth": 2}
FIRST = {"width": 8, "image": 8, "batch": 8, "depth": 1}
OUTPUTS = 8  # no more than the first width: residual networks select their outputs
INNER_CHANNELS = 5  # of a residual block, as in Araujo et al. (2023)
LAST_POINTS = 3  # of a curve, that its exponent is fitted to: smaller networks cost what their calls cost


def stack(family: Family, *, width: int, image: int, depth: int) -> Network:
    """Return ``depth`` convolutions of equal width on images of equal size, then pooling and a linear layer."""
    layers: list[nn.Module]
    if family.residual:
        layers = [ZeroPadding(width, dim=-3), *(family.conv(width, INNER_CHANNELS) for _ in range(depth))]
    else:
        layers = [family.conv(width if i else 3, width) for i in range(depth)]
    layers += [nn.AvgPool2d(image), nn.Flatten(), (family.linear or Selection)(width, OUTPUTS)]
    return Network(layers, outputs=OUTPUTS, gamma=1.0 if family.bounded else None)


def measure_scale(
    families: Sequence[str],
    *,
    device: torch.device,
    limit: float = 4.0,
    memory_limit: int = 16 * 2**30,
    start: dict[str, int] = START,
    first: dict[str, int] = FIRST,
) -> list[dict[str, Any]]:
    """Return a row a point: family, axis, its value, seconds and bytes of a step.

    Each axis is doubled from ``first``, the others stay at ``start``, until a step would probably take more than
    ``limit`` seconds or ``memory_limit`` bytes.
    """
    rows: list[dict[str, Any]] = []
    for name in families:
        family = registry.find("families", name)
        _measure(family, first, device)  # loads libraries that would count as memory of the first step
        for axis in start:
            point = start | {axis: first[axis]}
            while True:
                try:
                    cost = _measure(family, point, device)
                except torch.OutOfMemoryError:
                    break
                rows.append({"family": name, "axis": axis, "value": point[axis], **cost})
                growth = 4 if axis in ("width", "image") else 2  # at least: what is next may take this much more
                if cost["seconds"] * growth > limit or (cost["memory"] or 0) * growth > memory_limit:
                    break
                point[axis] *= 2
    return rows


def exponents(rows: Sequence[Mapping[str, Any]], quantity: str) -> dict[tuple[str, str], float]:
    """Return for each family and axis the exponent of a quantity's growth, by least squares over the last points.

    >>> rows = [{"family": "plain", "axis": "batch", "value": n, "seconds": 0.5 * n**2} for n in (8, 16, 32)]
    >>> round(exponents(rows, "seconds")["plain", "batch"], 6)
    2.0
    """
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        if row[quantity]:
            curves.setdefault((row["family"], row["axis"]), []).append((row["value"], row[quantity]))
    fitted = {}
    for key, points in curves.items():
        if len(points) > 1:
            values, costs = np.log(np.array(points[-LAST_POINTS:], dtype=float)).T
            fitted[key] = float(np.polyfit(values, costs, 1)[0])
    return fitted


def measure_largest(device: torch.device, memory_limit: int = 16 * 2**30) -> list[dict[str, Any]]:
    """Return a row for each of the paper's largest networks: parameters, and the cost to build it and of a step.

    A step is taken where the weights, their gradients, Adam's two moments and as much again fit the memory.
    """
    networks: list[dict[str, Any]] = [
        {"family": "sandwich", "architecture": "kwlarge", "size": "large", "input_shape": (3, 32, 32), "outputs": 100},
        {"family": "sll", "architecture": "kwlarge", "size": "medium", "input_shape": (3, 64, 64), "outputs": 200},
        {"family": "sll", "architecture": "deep", "size": "xlarge", "input_shape": (3, 64, 64), "outputs": 200},
    ]
    rows = []
    for arguments in networks:
        began = time.perf_counter()
        network = build_network(**arguments)
        built = time.perf_counter() - began
        parameters = sum(p.numel() for p in network.parameters())
        row = {name: arguments[name] for name in ("family", "architecture", "size")}
        row |= {"parameters": parameters, "build": built}
        if 32 * parameters < memory_limit / 2:
            shape, outputs = arguments["input_shape"], arguments["outputs"]
            row |= _step(partial(network.to, device), 256, shape, outputs, device)
        rows.append(row)
        del network
    return rows


def _measure(family: Family, point: dict[str, int], device: torch.device) -> dict[str, Any]:
    sizes = {key: value for key, value in point.items() if key != "batch"}
    shape = (3, point["image"], point["image"])
    return _step(lambda: stack(family, **sizes).to(device), point["batch"], shape, OUTPUTS, device)


def _step(
    build: Callable[[], nn.Module], batch: int, shape: tuple[int, ...], outputs: int, device: torch.device
) -> dict[str, Any]:
    x, y = random_batch(batch, shape, outputs, device)
    steps = []

    def build_and_step() -> None:
        steps.append(training_step(build(), x, y))
        steps[0]()

    memory = peak_memory(build_and_step, device)
    times = [seconds(steps[0], device) for _ in range(3)]
    return {"seconds": min(times), "memory": memory}
