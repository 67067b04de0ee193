"""Where data sets come from. A source is a function from its options in ``params.yaml`` to a ``Dataset``."""

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from lbdn.data.prepared import Dataset

TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST"}


def square_wave(*, train_samples: int = 300, test_samples: int = 200, seed: int = 0) -> Dataset:
    """Return samples of the paper's square wave on [-2, 2]: 1 on [-2, -1) and [0, 1), else 0.

    Training inputs are drawn from the uniform distribution; test inputs are evenly spaced.
    """
    train = np.random.default_rng(seed).uniform(-2, 2, size=(train_samples, 1))
    test = np.linspace(-2, 2, test_samples)[:, None]

    def value(x: np.ndarray) -> np.ndarray:
        return ((x < -1) | ((x >= 0) & (x < 1))).astype(np.float32)

    return Dataset(
        train_inputs=train.astype(np.float32),
        train_targets=value(train),
        test_inputs=test.astype(np.float32),
        test_targets=value(test),
        classes=[],
        provenance={"source": "square wave", "samples": [train_samples, test_samples], "seed": seed},
    )


def digits(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Return scikit-learn's copy of the UCI handwritten digits: 1797 images of 8 x 8, split class by class.

    Source: Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits. Pixels 0..16 become 0..255.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    loaded = load_digits()
    images = np.round(loaded.images * (255 / 16)).astype(np.uint8)[:, None]
    train, test, train_labels, test_labels = train_test_split(
        images,
        loaded.target.astype(np.int64),
        test_size=test_fraction,
        random_state=seed,
        stratify=loaded.target,
    )
    return Dataset(
        train,
        train_labels,
        test,
        test_labels,
        classes=[str(name) for name in loaded.target_names],
        provenance={
            "source": "UCI handwritten digits in scikit-learn",
            "test_fraction": test_fraction,
            "seed": seed,
        },
    )


def from_torchvision(*, name: str, root: str = "data/raw") -> Dataset:
    """Return CIFAR-10, CIFAR-100 or MNIST, downloaded to ``root`` unless the files are there already.

    Raises:
        ValueError: for another name.
        FileNotFoundError: if the files are neither there nor to be had.
    """
    import torchvision

    if name not in TORCHVISION:
        raise ValueError(f"no torchvision data set {name!r}; there are {', '.join(sorted(TORCHVISION))}")
    loader = getattr(torchvision.datasets, TORCHVISION[name])
    try:
        halves = [loader(root, train=train, download=True) for train in (True, False)]
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"{name} is not whole in {Path(root).resolve()} and could not be downloaded: {reason}. Put torchvision's "
            f"files there, delete damaged ones, or connect to a network"
        ) from error
    train, test = halves
    return Dataset(
        train_inputs=_channels_first(np.asarray(train.data)),
        train_targets=np.asarray(train.targets, dtype=np.int64),
        test_inputs=_channels_first(np.asarray(test.data)),
        test_targets=np.asarray(test.targets, dtype=np.int64),
        classes=list(train.classes),
        provenance={"source": "torchvision", "name": name},
    )


def folder(*, root: str) -> Dataset:
    """Return a tree ``root/{train,test}/<class>/<image>``, in any format that Pillow reads, all of one size.

    Grey images become RGB.

    Raises:
        FileNotFoundError: if a half is missing or has no images.
        ValueError: if classes or image sizes differ, or an image can't be read.
    """
    base = Path(root)
    halves = {half: _classes(base / half) for half in ("train", "test")}
    classes = sorted(halves["train"])
    if classes != sorted(halves["test"]):
        different = sorted(set(halves["train"]) ^ set(halves["test"]))
        raise ValueError(f"{base}: train and test have different classes: {', '.join(different[:5])}")
    train_images, train_labels = _labelled_images(halves["train"], classes)
    test_images, test_labels = _labelled_images(halves["test"], classes)
    return Dataset(
        train_inputs=train_images,
        train_targets=train_labels,
        test_inputs=test_images,
        test_targets=test_labels,
        classes=classes,
        provenance={"source": "image folder", "name": base.name},
    )


def _labelled_images(half: dict[str, list[Path]], classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    paths = [path for name in classes for path in half[name]]
    labels = [label for label, name in enumerate(classes) for _ in half[name]]
    return _images(paths), np.array(labels, dtype=np.int64)


def _classes(half: Path) -> dict[str, list[Path]]:
    if not half.is_dir():
        raise FileNotFoundError(f"no folder {half.resolve()}; an image folder holds train/<class>/ and test/<class>/")
    found = {d.name: sorted(p for p in d.iterdir() if p.is_file()) for d in half.iterdir() if d.is_dir()}
    empty = [name for name, paths in found.items() if not paths]
    if empty or not found:
        raise FileNotFoundError(f"no images in {half.resolve() / (empty[0] if empty else '<class>')}")
    return found


def _images(paths: list[Path]) -> np.ndarray:
    images = []
    for path in paths:
        try:
            with Image.open(path) as image:
                images.append(np.asarray(image.convert("RGB")))
        except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path} can't be read as an image ({error}); replace it or delete it") from error
        if images[-1].shape != images[0].shape:
            raise ValueError(f"{path} has {images[-1].shape[:2]} pixels, but {paths[0]} has {images[0].shape[:2]}")
    return _channels_first(np.stack(images))


def _channels_first(images: np.ndarray) -> np.ndarray:
    """Return images ``(n, h, w)`` or ``(n, h, w, channels)`` as ``(n, channels, h, w)``."""
    return np.ascontiguousarray(images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1))
