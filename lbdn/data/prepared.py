"""The prepared form of every data set: four memory-mapped arrays and a description."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lbdn import registry
from lbdn.files import read_json, whole, write_json

ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


@dataclass(frozen=True)
class Dataset:
    """A data set.

    Attributes:
        train_inputs: uint8 images ``(n, channels, height, width)``, or float32 ``(n, features)`` for regression.
        train_targets: int64 labels ``(n,)``, or float32 ``(n, outputs)`` for regression.
        test_inputs: as ``train_inputs``.
        test_targets: as ``train_targets``.
        classes: their names, by label; empty for regression.
        provenance: what the source says of where the data come from.
    """

    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray
    classes: list[str]
    provenance: dict[str, Any]

    def digest(self) -> str:
        """Return the SHA-256 of the arrays."""
        total = hashlib.sha256()
        for name in ARRAYS:
            total.update(np.ascontiguousarray(getattr(self, name)).data)
        return total.hexdigest()

    @property
    def is_classification(self) -> bool:
        """Whether targets are labels."""
        return bool(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.train_inputs.shape[1:]

    @property
    def outputs(self) -> int:
        """The number of classes, or of regression outputs."""
        return len(self.classes) or self.train_targets.shape[1]

    def normalization(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each channel of the training images, on [0, 1].

        Raises:
            ValueError: if a channel is constant, or the data set isn't one of images.
        """
        if not self.is_classification:
            raise ValueError("only images are normalised; switch `normalize` off")
        counts = np.zeros((self.input_shape[0], 256), dtype=np.int64)
        for start in range(0, len(self.train_inputs), 1000):  # bincount takes eight bytes a pixel
            for channel, pixels in enumerate(np.moveaxis(self.train_inputs[start : start + 1000], 1, 0)):
                counts[channel] += np.bincount(pixels.ravel(), minlength=256)
        values = np.arange(256) / 255
        mean = counts @ values / counts.sum(axis=1)
        std = np.sqrt((counts * (values - mean[:, None]) ** 2).sum(axis=1) / counts.sum(axis=1))
        if not std.all():
            raise ValueError("can't normalise images with a constant channel; switch `normalize` off")
        return mean.tolist(), std.tolist()


def prepare(
    source: str,
    options: Mapping[str, Any],
    folder: Path,
    *,
    train_images: int | None = None,
    test_images: int | None = None,
    subset_seed: int = 0,
) -> Dataset:
    """Load a data set from its source, check it, and write it to a folder.

    Args:
        source: a name: "torchvision", "folder", "tiny-imagenet", ... or one that a package registered.
        options: of the source.
        folder: to write to.
        train_images: how many to keep of the training half, drawn evenly from the classes; None: all.
        test_images: likewise.
        subset_seed: of the draw.

    Raises:
        ValueError: for an unknown source or option, or data that don't agree with themselves.
        FileNotFoundError: for files that the source doesn't find.
    """
    load = registry.find("sources", source)
    try:
        dataset = load(**options)
    except TypeError as error:
        raise ValueError(f"source {source!r} doesn't take the options {dict(options)}: {error}") from error
    _check(dataset)
    dataset = _subset(dataset, {"train": train_images, "test": test_images}, subset_seed)
    _check_classes(dataset)
    (folder / "dataset.json").unlink(missing_ok=True)  # written last: without it the folder holds no data set
    for name in ARRAYS:
        with whole(folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, getattr(dataset, name))
    counts = {"train": len(dataset.train_targets), "test": len(dataset.test_targets)}
    write_json(
        folder / "dataset.json", {"counts": counts, "classes": dataset.classes, "provenance": dataset.provenance}
    )
    return dataset


def load_dataset(folder: str | Path) -> Dataset:
    """Return a prepared data set, memory-mapped.

    Raises:
        FileNotFoundError: if the folder doesn't hold one.
        ValueError: if a file is damaged.
    """
    folder = Path(folder)
    if not (folder / "dataset.json").exists():
        raise FileNotFoundError(f"no prepared data set in {folder}: there is no dataset.json; run stages.prepare")
    description = read_json(folder / "dataset.json")
    arrays = {}
    for name in ARRAYS:
        path = folder / f"{name}.npy"
        try:
            arrays[name] = np.load(path, mmap_mode="r")
        except FileNotFoundError:
            raise
        except Exception as error:  # whatever NumPy's parsers raise
            raise ValueError(f"{path} is damaged ({error}); delete {folder} and run stages.prepare") from error
    try:
        counts = description.pop("counts")
        dataset = Dataset(**arrays, **description)
        lengths = {name: counts[name.split("_")[0]] for name in ARRAYS}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'dataset.json'} is damaged ({error!r}); run stages.prepare") from error
    for name, length in lengths.items():
        if len(arrays[name]) != length:
            raise ValueError(
                f"{folder / name}.npy has {len(arrays[name])} samples where dataset.json says {length}; "
                f"delete {folder} and run stages.prepare"
            )
    return dataset


def balanced_subset(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return sorted indices of ``count`` samples, drawn class by class in turn, so that classes are balanced.

    Raises:
        ValueError: if there are fewer samples.
    """
    if count > len(labels):
        raise ValueError(f"asked for {count} samples of a data set that has {len(labels)}")
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, starts = np.unique(labels[order], return_index=True)
    rank = np.arange(len(labels)) - np.repeat(starts, np.diff([*starts, len(labels)]))
    return np.sort(order[np.lexsort((rng.permutation(len(labels)), rank))[:count]])


def _subset(dataset: Dataset, counts: Mapping[str, int | None], seed: int) -> Dataset:
    arrays: dict[str, Any] = {}
    for half, count in counts.items():
        if count is not None:
            labels = getattr(dataset, f"{half}_targets")
            if not dataset.is_classification or not 1 <= count <= len(labels):
                raise ValueError(f"{half}_images takes 1 to {len(labels)} images with labels, got {count!r}")
            chosen = balanced_subset(labels, count, seed)
            arrays |= {f"{half}_inputs": getattr(dataset, f"{half}_inputs")[chosen], f"{half}_targets": labels[chosen]}
    if not arrays:
        return dataset
    kept = {f"{half}_images": count for half, count in counts.items() if count is not None}
    return replace(dataset, **arrays, provenance={**dataset.provenance, **kept, "subset_seed": seed})


def _check(dataset: Dataset) -> None:
    for half in ("train", "test"):
        inputs, targets = getattr(dataset, f"{half}_inputs"), getattr(dataset, f"{half}_targets")
        if not len(inputs) or len(inputs) != len(targets):
            raise ValueError(f"the {half} half has {len(inputs)} inputs and {len(targets)} targets")
        if inputs.shape[1:] != dataset.input_shape:
            raise ValueError(f"the {half} half has inputs of shape {inputs.shape[1:]}, not {dataset.input_shape}")
        if not dataset.is_classification and not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
            raise ValueError(f"the {half} half has inputs or targets that are not finite")
        if dataset.is_classification:
            if inputs.dtype != np.uint8 or inputs.ndim != 4:
                raise ValueError(f"images are uint8 (n, channels, h, w), got {inputs.dtype} {inputs.shape}")
            if targets.min() < 0 or targets.max() >= len(dataset.classes):
                raise ValueError(
                    f"labels of the {half} half lie in [{targets.min()}, {targets.max()}], "
                    f"but there are {len(dataset.classes)} classes"
                )


def _check_classes(dataset: Dataset) -> None:
    if dataset.is_classification:
        untaught = np.setdiff1d(dataset.test_targets, dataset.train_targets)
        if len(untaught):
            raise ValueError(
                f"the test half has class {dataset.classes[untaught[0]]!r}, of which the train half has none"
            )
