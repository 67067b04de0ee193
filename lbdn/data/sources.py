"""Where data sets come from. A source is a function from its options in ``params.yaml`` to a ``Dataset``."""

import socket
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lbdn.data.prepared import Dataset
from lbdn.extras import require

require("reading data", "study", "PIL", "sklearn", "torchvision")

TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST"}
MNIST_MD5 = {  # of the unpacked files, which torchvision doesn't check
    "MNIST/raw/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "MNIST/raw/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "MNIST/raw/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "MNIST/raw/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
TINY_IMAGENET = "tiny-imagenet-200"
TINY_IMAGENET_CLASSES = 200
TINY_IMAGENET_URL = f"http://cs231n.stanford.edu/{TINY_IMAGENET}.zip"
TINY_IMAGENET_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
SILENCE = 10.0  # seconds without a word from a server, after which a download is given up


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
        ValueError: for another name, or a file that isn't the published one.
        FileNotFoundError: if files are neither there nor to be had.
    """
    import torchvision
    from torchvision.datasets.utils import check_integrity

    if name not in TORCHVISION:
        raise ValueError(f"no torchvision data set {name!r}; there are {', '.join(sorted(TORCHVISION))}")
    loader = getattr(torchvision.datasets, TORCHVISION[name])
    base = Path(root).expanduser().absolute()
    published = _published(loader)
    missing = [file for file in published if not (base / file).is_file()]
    for file, md5 in published.items():
        if file not in missing and not check_integrity(str(base / file), md5):
            raise ValueError(f"{base / file} is not the published file (MD5 {md5}); delete it, it is downloaded again")
    if missing:
        with _download(name, f"no {missing[0]} in {base}", "Put torchvision's files there"):
            loader(base, download=True)
    train, test = (loader(base, train=half) for half in (True, False))
    return Dataset(
        train_inputs=_channels_first(np.asarray(train.data)),
        train_targets=np.asarray(train.targets, dtype=np.int64),
        test_inputs=_channels_first(np.asarray(test.data)),
        test_targets=np.asarray(test.targets, dtype=np.int64),
        classes=list(train.classes),
        provenance={"source": "torchvision", "name": name},
    )


def _published(loader: Any) -> dict[str, str]:
    """Return the files that a loader of torchvision's reads, below its root, and their MD5 sums."""
    if not hasattr(loader, "base_folder"):
        return MNIST_MD5
    files = [*loader.train_list, *loader.test_list, (loader.meta["filename"], loader.meta["md5"])]
    return {f"{loader.base_folder}/{file}": md5 for file, md5 in files}


@contextmanager
def _download(what: str, why: str, instead: str) -> Iterator[None]:
    """Turn a download that fails into one error; and one that is silent, for which torchvision would wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE)
    try:
        yield
    except (EOFError, OSError, RuntimeError, tarfile.TarError) as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"{why}, and {what} could not be downloaded: {reason}. {instead}, or connect to a network"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def folder(*, root: str) -> Dataset:
    """Return a tree ``root/{train,test}/<class>/<image>``, in any format that Pillow reads, all of one size.

    Grey images become RGB, unless all are grey. Hidden files and folders are passed over.

    Raises:
        FileNotFoundError: if a half is missing or has no images, or a link leads nowhere.
        ValueError: if classes or image sizes differ, an image can't be read, or a class holds a folder.
    """
    base = Path(root).expanduser().absolute()
    halves = {half: _classes(base / half) for half in ("train", "test")}
    classes = sorted(halves["train"])
    if classes != sorted(halves["test"]):
        train, test = set(halves["train"]), set(halves["test"])
        alone = [f"train/{name}" for name in sorted(train - test)[:5]] + [f"test/{n}" for n in sorted(test - train)[:5]]
        raise ValueError(
            f"{base}: train and test have different classes; alone: {', '.join(alone)}. Rename or remove their folders"
        )
    labelled = {
        half: [(path, label) for label, name in enumerate(classes) for path in found[name]]
        for half, found in halves.items()
    }
    return _from_files(labelled["train"], labelled["test"], classes, {"source": "image folder", "name": base.name})


def tiny_imagenet(*, root: str = "data/raw", train_per_class: int = 500, test_per_class: int = 50) -> Dataset:
    """Return Tiny-ImageNet (Stanford CS231N) with its validation half as test images.

    Read from ``root/tiny-imagenet-200`` in the original layout; unpacked from ``root/tiny-imagenet-200.zip`` if that
    folder isn't there, which is downloaded first if need be. Classes are the folders of ``train`` by name, not in the
    order of ``wnids.txt``, which is cut short in some copies.

    Args:
        root: the folder above.
        train_per_class: how many training images of each class there have to be.
        test_per_class: how many validation images.

    Raises:
        FileNotFoundError: for files that are neither there nor to be had.
        ValueError: for a damaged archive, images that can't be read, or other numbers of images.
    """
    base = Path(root).expanduser().absolute() / TINY_IMAGENET
    if not base.exists():
        _fetch_tiny_imagenet(base.parent)
    again = f"delete {base} to have it unpacked again"
    annotations = base / "val/val_annotations.txt"
    classes = sorted(folder.name for folder in base.glob("train/*") if folder.is_dir())
    if not classes or not annotations.is_file():
        raise FileNotFoundError(f"no train/<class> or no val/val_annotations.txt in {base}; {again}")
    label_of = {name: label for label, name in enumerate(classes)}
    train = [(path, label) for name, label in label_of.items() for path in _visible(base / "train" / name / "images")]
    test = []
    for line in sorted(filter(None, annotations.read_text(encoding="utf-8", errors="replace").splitlines())):
        image, name, *_ = [*line.split("\t"), "", ""]
        if name not in label_of:
            raise ValueError(f"{annotations} names the class {name!r}, of which train has no folder; {again}")
        test.append((base / "val/images" / image, label_of[name]))
    for half, found, expected in (("train", train, train_per_class), ("val", test, test_per_class)):
        counts = np.bincount([label for _, label in found], minlength=len(classes))
        if len(classes) != TINY_IMAGENET_CLASSES or (counts != expected).any():
            raise ValueError(
                f"{base / half} has {len(classes)} classes of {counts.min()} to {counts.max()} images, not "
                f"{TINY_IMAGENET_CLASSES} of {expected}; {again}, or say in params.yaml how many there are"
            )
    return _from_files(train, test, classes, {"source": "Tiny-ImageNet, training and validation halves"})


def _fetch_tiny_imagenet(root: Path) -> None:
    from torchvision.datasets.utils import check_integrity, download_url

    archive = root / f"{TINY_IMAGENET}.zip"
    if not archive.exists():
        why = f"no {TINY_IMAGENET} and no {archive.name} in {root}"
        try:
            with _download(TINY_IMAGENET_URL, why, "Put one of the two there"):
                download_url(TINY_IMAGENET_URL, root, md5=TINY_IMAGENET_MD5)
        except FileNotFoundError:
            archive.unlink(missing_ok=True)
            raise
    if not check_integrity(str(archive), TINY_IMAGENET_MD5):
        raise ValueError(f"{archive} is not the published archive (MD5 {TINY_IMAGENET_MD5}); delete it")
    with tempfile.TemporaryDirectory(dir=root) as unpacked, zipfile.ZipFile(archive) as file:
        file.extractall(unpacked)
        (Path(unpacked) / TINY_IMAGENET).rename(root / TINY_IMAGENET)


def _from_files(
    train: list[tuple[Path, int]], test: list[tuple[Path, int]], classes: list[str], provenance: dict[str, str]
) -> Dataset:
    images, grey = _images([path for path, _ in train + test])
    if grey:
        images = images[:, :1].copy()
    labels = np.array([label for _, label in train + test], dtype=np.int64)
    return Dataset(
        train_inputs=images[: len(train)],
        train_targets=labels[: len(train)],
        test_inputs=images[len(train) :],
        test_targets=labels[len(train) :],
        classes=classes,
        provenance=provenance,
    )


def _classes(half: Path) -> dict[str, list[Path]]:
    if not half.is_dir():
        raise FileNotFoundError(f"no folder {half}; an image folder holds train/<class>/ and test/<class>/")
    found = {folder.name: _visible(folder) for folder in _visible(half) if folder.is_dir()}
    empty = [name for name, paths in found.items() if not paths]
    if empty or not found:
        place = half / (empty[0] if empty else "<class>")
        raise FileNotFoundError(f"no images in {place}; copy them there, or remove the class from both halves")
    folders = [path for paths in found.values() for path in paths if path.is_dir()]
    if folders:
        raise ValueError(f"{folders[0]} is a folder; move its images up, into the folder of their class")
    return found


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if not path.name.startswith("."))


def _images(paths: list[Path]) -> tuple[np.ndarray, bool]:
    """Return images as RGB ``(n, 3, h, w)``, and whether all of the files are grey."""
    from PIL import Image, UnidentifiedImageError

    for path in paths:  # before the minutes that reading the others takes
        if not path.is_file():
            raise FileNotFoundError(f"no {path}; the data set is not whole, copy or unpack it again")
    images = np.empty(0, dtype=np.uint8)
    grey = True
    for index, path in enumerate(paths):
        try:
            with Image.open(path) as image:
                if image.mode[0] in "IF":  # which Pillow clips to 8 bits
                    raise ValueError(f"{path} has more than 8 bits a channel (mode {image.mode}); save it with 8")
                pixels = np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)
                grey = grey and image.mode in ("1", "L")
        except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path} can't be read as an image ({error}); replace it or delete it") from error
        if not index:
            images = np.empty((len(paths), *pixels.shape), dtype=np.uint8)
        if pixels.shape != images.shape[1:]:
            sizes = f"{path} has {pixels.shape[1:]} pixels, but {paths[0]} has {images.shape[2:]}"
            raise ValueError(f"{sizes}; all images have to be of one size: resize or remove it")
        images[index] = pixels
    return images, grey


def _channels_first(images: np.ndarray) -> np.ndarray:
    """Return images ``(n, h, w)`` or ``(n, h, w, channels)`` as ``(n, channels, h, w)``."""
    return np.ascontiguousarray(images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1))
