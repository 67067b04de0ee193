"""Families, architectures and data sources by name, built in or added by other packages through entry points.

A package adds its own in its ``pyproject.toml``; the name can then be used in ``params.yaml``::

    [project.entry-points."lbdn.families"]
    mine = "my_package.layers:FAMILY"

The groups are ``lbdn.families`` (a ``lbdn.layers.Family``), ``lbdn.architectures`` (a function like those of
``lbdn.architectures``) and ``lbdn.sources`` (a function like those of ``lbdn.data.sources``).
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

BUILT_IN = {
    "families": {
        "plain": "lbdn.layers.plain:FAMILY",
        "aol": "lbdn.layers.aol:FAMILY",
        "orthogonal": "lbdn.layers.orthogonal:FAMILY",
        "sll": "lbdn.layers.sll:FAMILY",
        "sandwich": "lbdn.layers.sandwich:FAMILY",
        "spectral": "lbdn.layers.spectral:FAMILY",
        "bcop": "lbdn.layers.bcop:FAMILY",
        "soc": "lbdn.layers.soc:FAMILY",
        "lot": "lbdn.layers.lot:FAMILY",
        "cpl": "lbdn.layers.cpl:FAMILY",
    },
    "architectures": {
        "toy": "lbdn.architectures:toy",
        "mlp": "lbdn.architectures:mlp",
        "kwlarge": "lbdn.architectures:kwlarge",
        "deep": "lbdn.architectures:deep",
    },
    "sources": {
        "square-wave": "lbdn.data.sources:square_wave",
        "digits": "lbdn.data.sources:digits",
        "folder": "lbdn.data.sources:folder",
        "tiny-imagenet": "lbdn.data.sources:tiny_imagenet",
        "torchvision": "lbdn.data.sources:from_torchvision",
    },
}


def names(kind: str) -> list[str]:
    """Return the known names of a kind: "families", "architectures" or "sources"."""
    return sorted(_entries(kind))


def find(kind: str, name: str) -> Any:
    """Return what is registered under a name.

    Raises:
        ValueError: if there is nothing of that kind and name; the message lists what there is.
    """
    return _entry(kind, name).load()


def fingerprint(kind: str, name: str) -> str:
    """Return a digest of the source file in which a name is registered, without importing that file.

    Raises:
        ValueError: if there is nothing of that kind and name, or its module can't be found.
    """
    entry = _entry(kind, name)
    try:
        spec = importlib.util.find_spec(entry.module)
    except ModuleNotFoundError:  # a parent package is missing
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(f"{name!r} is registered as {entry.value}, but there is no module {entry.module}")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _entry(kind: str, name: str) -> EntryPoint:
    entries = _entries(kind)
    if name not in entries:
        raise ValueError(f"no {name!r} among the {kind}; there are {', '.join(sorted(entries))}")
    return entries[name]


def _entries(kind: str) -> dict[str, EntryPoint]:
    group = f"lbdn.{kind}"
    built_in = {name: EntryPoint(name, value, group) for name, value in BUILT_IN[kind].items()}
    return _added(group, tuple(sys.path)) | built_in


@functools.cache
def _added(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return what the packages on a path add; looked up once, since that reads the metadata of all of them."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}
