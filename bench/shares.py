"""Where the time of a training step goes: parameterisation, transforms, products, the rest."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from lbdn import circular
from lbdn.layers.base import Layer

KINDS = ("parameterisation", "transforms", "products", "rest")
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "convolution", "linalg_", "convolution_backward")
TRANSFORMS = ("to_frequency", "from_frequency")  # of lbdn.circular, however they compute it
BACKWARD = "autograd::engine::evaluate_function"


def shares(network: nn.Module, step: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Return the fraction of a step's time that each of ``KINDS`` takes, forwards and backwards; they add up to one.

    The parameterisation is ``Layer.applied``; transforms are those of ``lbdn.circular`` and all FFTs; products are
    those of matrices and convolutions outside of both. A backward operation belongs to what its forward one does.
    """
    step()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with _named(network), profile(activities=activities) as profiler:
        step()
    events = list(profiler.events())
    named = {}  # the kind of a forward operation by the number that autograd gave it
    for event in events:
        chain = _chain(event)
        if event.sequence_nr >= 0 and not any(e.name.startswith(BACKWARD) for e in chain):
            kind = next((e.name for e in chain if e.name in KINDS), None)
            if kind is not None:
                named[event.sequence_nr] = kind
    time = dict.fromkeys(KINDS, 0.0)
    for event in events:
        if event.device_type == DeviceType.CPU:  # it has the time of the kernels that it started
            own = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
            time[_kind(event, named)] += own
    total = sum(time.values())
    return {kind: value / total for kind, value in time.items()}


def _kind(event: Any, named: dict[int, str]) -> str:
    chain = _chain(event)
    for ancestor in chain:
        if ancestor.name in KINDS:
            return ancestor.name
        if ancestor.name.startswith(BACKWARD) and ancestor.sequence_nr in named:
            return named[ancestor.sequence_nr]
    names = [ancestor.name.removeprefix("aten::") for ancestor in chain]
    if any("fft" in name for name in names):
        return "transforms"
    return "products" if any(name.startswith(PRODUCTS) for name in names) else "rest"


def _chain(event: Any) -> list[Any]:
    """Return an event and those that it happened in, the innermost first."""
    chain = []
    while event is not None:
        chain.append(event)
        event = event.cpu_parent
    return chain


@contextmanager
def _named(network: nn.Module) -> Iterator[None]:
    """Put the parameterisation and the transforms of a network under their names in the profile."""
    with ExitStack() as stack:
        for module in network.modules():
            if isinstance(module, Layer):
                stack.enter_context(patch.object(module, "applied", _under("parameterisation", module.applied)))
        for name in TRANSFORMS:
            stack.enter_context(patch.object(circular, name, _under("transforms", getattr(circular, name))))
        yield


def _under(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with record_function(kind):
            return function(*args, **kwargs)

    return wrapped
