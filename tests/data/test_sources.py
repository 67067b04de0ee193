"""Sources: real digits, the paper's square wave, torchvision's files."""

import hashlib
import pickle
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torchvision
from sklearn.datasets import load_digits

from lbdn.data import load_dataset, prepare, sources
from lbdn.data.sources import digits, from_torchvision, square_wave, tiny_imagenet

REAL_DATA = Path(__file__).parents[2] / "../shared/data"
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
    sums = {f"MNIST/raw/{path.name}": hashlib.md5(path.read_bytes()).hexdigest() for path in raw.iterdir()}
    assert sums.keys() == sources.MNIST_MD5.keys()
    monkeypatch.setattr(sources, "MNIST_MD5", sums)
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
            labels.append((RNG.permutation(20) * 7 % classes).tolist())  # the same classes in each file
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


READ = {
    "mnist": [
        f"MNIST/raw/{half}-{kind}-ubyte" for half in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ],
    "cifar10": [
        f"cifar-10-batches-py/{file}" for file in ("data_batch_1", "data_batch_5", "test_batch", "batches.meta")
    ],
    "cifar100": [f"cifar-100-python/{file}" for file in ("train", "test", "meta")],
}
FILES_READ = [(name, file) for name, files in READ.items() for file in files]


@pytest.mark.parametrize("name", READ)
def test_without_files_and_network_there_is_one_error_that_says_where_to_put_them(tmp_path, no_network, name):
    with pytest.raises(FileNotFoundError) as caught:
        from_torchvision(name=name, root=str(tmp_path))
    start = f"no {READ[name][0]} in {tmp_path}, and {name} could not be downloaded: "
    assert str(caught.value).startswith(start)
    assert "no network in tests" in str(caught.value)
    assert "Put torchvision's files there" in str(caught.value)
    assert 1 <= len(no_network) <= 8


@pytest.mark.parametrize(("name", "file"), FILES_READ)
def test_a_missing_torchvision_file_is_an_error_that_names_it(tmp_path, monkeypatch, no_network, name, file):
    FILES[name](tmp_path, monkeypatch)
    (tmp_path / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"no {file} in {re.escape(str(tmp_path))}, and"):
        from_torchvision(name=name, root=str(tmp_path))


@pytest.mark.parametrize("content", [lambda raw: raw[:-100], lambda raw: b"", lambda raw: b"<html>no such file</html>"])
@pytest.mark.parametrize(("name", "file"), FILES_READ)
def test_a_damaged_torchvision_file_is_an_error_that_names_it(tmp_path, monkeypatch, no_network, name, file, content):
    FILES[name](tmp_path, monkeypatch)
    damaged = tmp_path / file
    damaged.write_bytes(content(damaged.read_bytes()))
    with pytest.raises(ValueError, match=rf"{re.escape(str(damaged))} is not the published file \(MD5 .*delete it"):
        from_torchvision(name=name, root=str(tmp_path))
    assert no_network == []
    assert damaged.exists()


@pytest.mark.parametrize(
    "read", [lambda root: from_torchvision(name="mnist", root=root), lambda root: tiny_imagenet(root=root)]
)
def test_a_server_that_says_nothing_is_given_up(tmp_path, monkeypatch, read):
    monkeypatch.setattr(sources, "SILENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [url])
        monkeypatch.setattr(sources, "TINY_IMAGENET_URL", f"{url}tiny-imagenet-200.zip")
        with pytest.raises(FileNotFoundError, match=r"could not be downloaded: .*timed out"):
            read(str(tmp_path))
    assert socket.getdefaulttimeout() is None


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
