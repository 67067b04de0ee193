"""Sources: real digits, the paper's square wave, torchvision's files, folders of images."""

import hashlib
import pickle
import re
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torchvision
from PIL import Image
from sklearn.datasets import load_digits

from lbdn.data import Dataset, load_dataset, prepare
from lbdn.data.sources import digits, folder, from_torchvision, square_wave

ROOT = Path(__file__).parents[2]
REAL_DATA = ROOT / "../shared/data"
RNG = np.random.default_rng(0)


def paper_square_wave(x: float) -> int:
    """Return the paper's f(x): 0 on [-1, 0) and [1, 2], 1 on [-2, -1) and [0, 1)."""
    if -1 <= x < 0 or 1 <= x <= 2:
        return 0
    if -2 <= x < -1 or 0 <= x < 1:
        return 1
    raise AssertionError(f"{x} is out of the domain")


def test_the_square_wave_is_the_papers():
    wave = square_wave(train_samples=1000, test_samples=401)
    for inputs, targets in ((wave.train_inputs, wave.train_targets), (wave.test_inputs, wave.test_targets)):
        np.testing.assert_array_equal(targets[:, 0], [paper_square_wave(x) for x in inputs[:, 0].tolist()])


def test_the_square_waves_samples_are_as_many_as_the_papers_spaced_and_drawn_as_there():
    wave = square_wave()
    assert (len(wave.train_inputs), len(wave.test_inputs)) == (300, 200)
    np.testing.assert_allclose(wave.test_inputs[:, 0], -2 + 4 * np.arange(200) / 199, atol=1e-6)
    train = np.sort(wave.train_inputs[:, 0])
    assert (train[0], train[-1]) >= (-2, 1.9)
    assert np.abs((train + 2) / 4 - (np.arange(300) + 0.5) / 300).max() < 1.63 / 300**0.5  # Kolmogorov-Smirnov, 1 %


@pytest.mark.parametrize("source", [square_wave, digits])
def test_the_same_seed_gives_the_same_data_and_another_seed_others(source):
    first, again, other = source(seed=3), source(seed=3), source(seed=4)
    np.testing.assert_array_equal(first.train_inputs, again.train_inputs)
    np.testing.assert_array_equal(first.test_targets, again.test_targets)
    assert not np.array_equal(first.train_inputs, other.train_inputs)


def test_digits_are_the_1797_images_of_scikit_learn_each_in_one_half():
    dataset, original = digits(), load_digits()

    def rows(images, labels):
        table = np.column_stack([np.asarray(images).reshape(len(images), -1), labels])
        return table[np.lexsort(table.T)]

    pixels = np.concatenate([dataset.train_inputs, dataset.test_inputs])
    labels = np.concatenate([dataset.train_targets, dataset.test_targets])
    assert pixels.shape == (1797, 1, 8, 8)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(rows(pixels, labels), rows(np.round(original.images / 16 * 255), original.target))
    assert (pixels.min(), pixels.max(), dataset.outputs) == (0, 255, 10)


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_digits_are_split_class_by_class(fraction):
    dataset = digits(test_fraction=fraction)
    everything = np.bincount(load_digits().target)
    assert np.abs(np.bincount(dataset.test_targets) - fraction * everything).max() <= 1


# torchvision


@pytest.fixture
def no_network(monkeypatch):
    """Record every attempt to reach the network, and let it fail as without one."""
    calls = []

    def refuse(*args, **kwargs):
        calls.append(args)
        raise URLError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return calls


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.tobytes())


def mnist_files(root: Path, monkeypatch) -> list[np.ndarray]:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    arrays = []
    for prefix, count in (("train", 20), ("t10k", 10)):
        images = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        write_idx(raw / f"{prefix}-images-idx3-ubyte", images)
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", labels)
        arrays += [images[:, None], labels]
    return arrays


def write_batch(path: Path, content: dict) -> list[str]:
    path.write_bytes(pickle.dumps(content))
    return [path.name, hashlib.md5(path.read_bytes()).hexdigest()]


def cifar_files(root: Path, monkeypatch, loader: type, batches: dict[str, list[str]], label: str) -> list[np.ndarray]:
    base = root / loader.base_folder
    base.mkdir(parents=True)
    classes = 100 if label == "fine_labels" else 10
    arrays = []
    for attribute, names in batches.items():
        written, images, labels = [], [], []
        for name in names:
            images.append(RNG.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8))
            labels.append(RNG.integers(0, classes, 20).tolist())
            written.append(write_batch(base / name, {"data": images[-1].reshape(20, 3072), label: labels[-1]}))
        monkeypatch.setattr(loader, attribute, written)
        arrays += [np.concatenate(images), np.concatenate(labels)]
    meta = loader.meta
    names = [f"class {i}" for i in range(classes)]
    _, checksum = write_batch(base / meta["filename"], {meta["key"]: names})
    monkeypatch.setattr(loader, "meta", meta | {"md5": checksum})
    return arrays


def cifar10_files(root: Path, monkeypatch) -> list[np.ndarray]:
    batches = {"train_list": [f"data_batch_{i}" for i in range(1, 6)], "test_list": ["test_batch"]}
    return cifar_files(root, monkeypatch, torchvision.datasets.CIFAR10, batches, "labels")


def cifar100_files(root: Path, monkeypatch) -> list[np.ndarray]:
    batches = {"train_list": ["train"], "test_list": ["test"]}
    return cifar_files(root, monkeypatch, torchvision.datasets.CIFAR100, batches, "fine_labels")


FILES = {"mnist": mnist_files, "cifar10": cifar10_files, "cifar100": cifar100_files}


@pytest.mark.parametrize("name", FILES)
def test_torchvisions_files_give_their_exact_pixels_without_the_network(tmp_path, monkeypatch, no_network, name):
    expected = FILES[name](tmp_path / "raw", monkeypatch)
    prepare("torchvision", {"name": name, "root": str(tmp_path / "raw")}, tmp_path / "prepared")
    dataset = load_dataset(tmp_path / "prepared")
    assert no_network == []
    found = [dataset.train_inputs, dataset.train_targets, dataset.test_inputs, dataset.test_targets]
    for array, correct in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array, correct)
    assert dataset.train_targets.dtype == np.int64
    assert dataset.outputs == (100 if name == "cifar100" else 10)


@pytest.mark.parametrize("name", FILES)
def test_without_files_and_network_there_is_one_error_that_says_where_to_put_them(tmp_path, no_network, name):
    with pytest.raises(
        FileNotFoundError, match=r"(?s)could not be downloaded.*Put torchvision's files there"
    ) as caught:
        from_torchvision(name=name, root=str(tmp_path))
    assert name in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert 1 <= len(no_network) <= 8


def test_damaged_torchvision_files_are_not_called_absent(tmp_path, monkeypatch, no_network):
    mnist_files(tmp_path, monkeypatch)
    images = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:1000])
    with pytest.raises(FileNotFoundError, match=f"not whole in {re.escape(str(tmp_path))}.*delete damaged ones"):
        from_torchvision(name="mnist", root=str(tmp_path))


def test_an_unknown_torchvision_name_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'svhn'.*cifar10, cifar100, mnist"):
        from_torchvision(name="svhn")


@pytest.mark.real_data
@pytest.mark.skipif(not (REAL_DATA / "unpack").exists(), reason="no ../shared/data beside the repository")
def test_real_mnist_has_its_published_size_and_statistics(tmp_path, no_network):
    subprocess.run([sys.executable, REAL_DATA / "unpack", tmp_path / "raw", "mnist"], check=True, capture_output=True)
    prepare("torchvision", {"name": "mnist", "root": str(tmp_path / "raw")}, tmp_path / "prepared")
    dataset = load_dataset(tmp_path / "prepared")
    assert no_network == []
    assert (dataset.train_inputs.shape, dataset.test_inputs.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    assert dataset.train_targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    mean, std = dataset.normalization()
    np.testing.assert_allclose([*mean, *std], [0.1307, 0.3081], atol=5e-5)


# folders of images


def image_folder(root: Path, shape=(6, 5, 3), classes=("cat", "dog"), count=3) -> dict[Path, np.ndarray]:
    written = {}
    for half in ("train", "test"):
        for name in classes:
            (root / half / name).mkdir(parents=True)
            for index in range(count):
                path = root / half / name / f"{index}.png"
                written[path] = RNG.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(written[path]).save(path)
    return written


def test_a_folder_of_images_gives_their_exact_pixels_and_its_classes(tmp_path):
    written = image_folder(tmp_path)
    dataset = folder(root=str(tmp_path))
    for half, inputs, targets in (
        ("train", dataset.train_inputs, dataset.train_targets),
        ("test", dataset.test_inputs, dataset.test_targets),
    ):
        expected = {path: pixels for path, pixels in written.items() if path.parts[-3] == half}
        np.testing.assert_array_equal(inputs, [np.moveaxis(p, -1, 0) for p in expected.values()])
        assert [dataset.classes[i] for i in targets] == [path.parent.name for path in expected]
    assert dataset.classes == ["cat", "dog"]


def test_grey_images_of_a_coloured_data_set_become_rgb(tmp_path):
    image_folder(tmp_path)
    grey = RNG.integers(0, 256, (6, 5), dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "train" / "cat" / "0.png")
    dataset = folder(root=str(tmp_path))
    np.testing.assert_array_equal(dataset.train_inputs[0], np.stack([grey] * 3))


def prepare_folder(root: Path) -> Dataset:
    return prepare("folder", {"root": str(root)}, root / "prepared")


def cut_chunk_short(path: Path) -> None:
    raw = path.read_bytes()
    start = raw.index(b"IDAT") - 4
    path.write_bytes(raw[:start] + struct.pack(">I", 10) + raw[start + 4 :])


def claim_absurd_size(path: Path) -> None:
    Image.new("RGB", (5, 6)).save(path, "bmp")
    raw = path.read_bytes()
    path.write_bytes(raw[:18] + struct.pack("<ii", 60000, 60000) + raw[26:])


BROKEN_IMAGES = {
    "text": lambda path: path.write_text("no image"),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "a chunk cut short": cut_chunk_short,
    "an absurd size": claim_absurd_size,
}


@pytest.mark.parametrize("damage", BROKEN_IMAGES.values(), ids=BROKEN_IMAGES)
def test_a_damaged_image_is_an_error_that_names_it(tmp_path, damage):
    image_folder(tmp_path)
    damage(tmp_path / "test" / "dog" / "1.png")
    with pytest.raises(ValueError, match="can't be read as an image") as caught:
        prepare_folder(tmp_path)
    assert str(tmp_path / "test" / "dog" / "1.png") in str(caught.value)


@pytest.mark.parametrize("half", ["train", "test"])
def test_an_image_of_another_size_is_an_error_that_names_it(tmp_path, half):
    image_folder(tmp_path)
    Image.fromarray(np.zeros((6, 6, 3), np.uint8)).save(tmp_path / half / "dog" / "2.png")
    with pytest.raises(ValueError, match=r"2\.png has \(6, 6\) pixels.*\(6, 5\)"):
        prepare_folder(tmp_path)


def test_halves_of_different_sizes_are_an_error(tmp_path):
    image_folder(tmp_path / "a", shape=(6, 5, 3))
    image_folder(tmp_path / "b", shape=(5, 6, 3))
    (tmp_path / "a" / "test").rename(tmp_path / "old")
    (tmp_path / "b" / "test").rename(tmp_path / "a" / "test")
    with pytest.raises(ValueError, match=r"\(3, 5, 6\), not \(3, 6, 5\)"):
        prepare_folder(tmp_path / "a")


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_class_of_one_half_only_is_an_error_that_names_it(tmp_path, half):
    image_folder(tmp_path)
    (tmp_path / half / "dog").rename(tmp_path / half / "wolf")
    with pytest.raises(ValueError, match="different classes: dog, wolf"):
        prepare_folder(tmp_path)


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_class_without_images_in_one_half_is_an_error_that_names_it(tmp_path, half):
    image_folder(tmp_path)
    for path in (tmp_path / half / "dog").iterdir():
        path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="dog"):
        prepare_folder(tmp_path)


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_missing_or_empty_half_is_an_error_that_names_it(tmp_path, half):
    image_folder(tmp_path)
    (tmp_path / half).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=rf"no folder \S*{half}"):
        prepare_folder(tmp_path)
    (tmp_path / half / "cat").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=rf"no images in \S*{half}"):
        prepare_folder(tmp_path)
