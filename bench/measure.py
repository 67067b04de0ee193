"""Time and memory of a piece of work, and on what machine they were measured."""

import ctypes
import gc
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lbdn.memory import M_MMAP_MAX, keep_freed_memory

Work = Callable[[], object]


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Return median and quartiles of at least one value.

    >>> spread([4.0, 1.0, 2.0, 3.0, 100.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def machine(device: torch.device) -> dict[str, Any]:
    """Return what measured times depend on: the device, its threads, and PyTorch's version."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        models = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
        name = models[0].split(":", 1)[1].strip() if models else platform.processor() or platform.machine()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def alternate(
    works: Mapping[str, Work], device: torch.device, repetitions: int, warm_up: int = 2
) -> dict[str, list[float]]:
    """Return the seconds that each piece of work took, one after the other in every repetition.

    So a machine that is slower for a while slows all of them, and ratios within a repetition stay fair.
    """
    for work in works.values():
        for _ in range(warm_up):
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            times[name].append(seconds(work, device))
    return times


def seconds(work: Work, device: torch.device) -> float:
    """Return the time that a piece of work takes, up to its end on the device."""
    _synchronize(device)
    start = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - start


def peak_memory(work: Work, device: torch.device) -> int | None:
    """Return by how many bytes the memory in use grew at most during the work; None where that can't be told.

    On a GPU PyTorch counts its own tensors; on a CPU Linux counts the pages of the process.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim(0)  # else freed memory that the process keeps would hide growth
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    libc.mallopt(M_MMAP_MAX, 2**16)  # glibc's own choice: pages of large tensors count as long as these live
    before = _status("VmRSS")
    try:
        work()
        return _status("VmHWM") - before
    finally:
        keep_freed_memory()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _status(key: str) -> int:
    (line,) = (line for line in _lines("/proc/self/status") if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
