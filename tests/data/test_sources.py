"""Sources: real digits, the paper's square wave, torchvision's files, folders of images, Tiny-ImageNet."""

import hashlib
import io
import pickle
import re
import shutil
import socket
import struct
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torchvision
from PIL import Image
from sklearn.datasets import load_digits

from lbdn.data import Dataset, load_dataset, prepare, sources
from lbdn.data.sources import TINY_IMAGENET_URL, digits, folder, from_torchvision, square_wave, tiny_imagenet

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
    assert (dataset.train_inputs[1] != dataset.train_inputs[1, :1]).any()


@pytest.mark.parametrize("levels", [256, 2])
def test_a_data_set_of_grey_images_only_has_one_channel(tmp_path, levels):
    written = image_folder(tmp_path, shape=(6, 5))
    if levels == 2:
        for path, pixels in written.items():
            Image.fromarray(pixels > 127).save(path)
            written[path] = np.where(pixels > 127, 255, 0)
    dataset = folder(root=str(tmp_path))
    assert dataset.input_shape == (1, 6, 5)
    for half, inputs in (("train", dataset.train_inputs), ("test", dataset.test_inputs)):
        expected = [pixels for path, pixels in written.items() if path.parts[-3] == half]
        np.testing.assert_array_equal(inputs[:, 0], expected)


@pytest.mark.parametrize("half", ["train", "test"])
def test_one_coloured_image_in_either_half_gives_both_halves_three_channels(tmp_path, half):
    written = image_folder(tmp_path, shape=(6, 5))
    colour = RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / half / "dog" / "2.png")
    dataset = folder(root=str(tmp_path))
    assert (dataset.train_inputs.shape, dataset.test_inputs.shape) == ((6, 3, 6, 5), (6, 3, 6, 5))
    for name, inputs in (("train", dataset.train_inputs), ("test", dataset.test_inputs)):
        expected = [np.stack([pixels] * 3) for path, pixels in written.items() if path.parts[-3] == name]
        if name == half:
            expected[-1] = np.moveaxis(colour, -1, 0)
        np.testing.assert_array_equal(inputs, expected)


@pytest.mark.parametrize("mode", ["P", "RGBA"])
def test_images_with_a_palette_or_transparency_become_rgb(tmp_path, mode):
    written = image_folder(tmp_path)
    colours = RNG.integers(0, 256, (30, 3), dtype=np.uint8)
    if mode == "P":
        image = Image.fromarray(np.arange(30, dtype=np.uint8).reshape(6, 5))
        image.putpalette(colours.tobytes())
    else:
        alpha = RNG.integers(0, 256, (6, 5, 1), dtype=np.uint8)
        image = Image.fromarray(np.concatenate([colours.reshape(6, 5, 3), alpha], axis=2))
    assert image.mode == mode
    for path in written:
        image.save(path)
    dataset = folder(root=str(tmp_path))
    expected = np.moveaxis(colours.reshape(6, 5, 3), -1, 0)
    np.testing.assert_array_equal(dataset.train_inputs, [expected] * 6)
    np.testing.assert_array_equal(dataset.test_inputs, [expected] * 6)


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
def test_pixels_of_more_than_8_bits_are_an_error_that_names_the_image(tmp_path, kind):
    image_folder(tmp_path)
    path = tmp_path / "test" / "cat" / "1.png"
    Image.fromarray(np.linspace(0, 60000, 30).reshape(6, 5).astype(kind)).save(path, "tiff")
    with pytest.raises(ValueError, match=r"cat/1\.png has more than 8 bits.*save it with 8"):
        prepare_folder(tmp_path)


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
    with pytest.raises(ValueError, match=r"2\.png has \(6, 6\) pixels.*\(6, 5\).*resize or remove it"):
        prepare_folder(tmp_path)


def test_halves_of_different_sizes_are_an_error(tmp_path):
    image_folder(tmp_path / "a", shape=(6, 5, 3))
    image_folder(tmp_path / "b", shape=(5, 6, 3))
    (tmp_path / "a" / "test").rename(tmp_path / "old")
    (tmp_path / "b" / "test").rename(tmp_path / "a" / "test")
    with pytest.raises(ValueError, match=r"test/cat/0\.png has \(5, 6\) pixels, but \S*train/cat/0\.png has \(6, 5\)"):
        prepare_folder(tmp_path / "a")


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_class_of_one_half_only_is_an_error_that_names_it(tmp_path, half):
    image_folder(tmp_path)
    (tmp_path / half / "dog").rename(tmp_path / half / "wolf")
    with pytest.raises(
        ValueError,
        match=rf"different classes; alone: train/{'wolf' if half == 'train' else 'dog'}, test/.*Rename or remove",
    ):
        prepare_folder(tmp_path)


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_class_without_images_in_one_half_is_an_error_that_names_it(tmp_path, half):
    image_folder(tmp_path)
    for path in (tmp_path / half / "dog").iterdir():
        path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="dog"):
        prepare_folder(tmp_path)


def test_hidden_files_are_passed_over_and_what_else_is_no_image_is_an_error(tmp_path):
    image_folder(tmp_path)
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "cat" / ".DS_Store").write_text("")
    assert len(folder(root=str(tmp_path)).train_inputs) == 6
    (tmp_path / "test" / "dog" / "2.png").unlink()
    (tmp_path / "test" / "dog" / "2.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(FileNotFoundError, match=r"no \S*test/dog/2\.png; the data set is not whole"):
        folder(root=str(tmp_path))
    (tmp_path / "train" / "cat" / "more").mkdir()
    with pytest.raises(ValueError, match=r"train/cat/more is a folder"):
        folder(root=str(tmp_path))


def test_a_missing_image_is_an_error_before_any_is_read(tmp_path, monkeypatch):
    image_folder(tmp_path)
    (tmp_path / "test" / "dog" / "9.png").symlink_to(tmp_path / "nowhere.png")
    monkeypatch.setattr(Image, "open", lambda path: pytest.fail(f"read {path}"))
    with pytest.raises(FileNotFoundError, match="not whole"):
        folder(root=str(tmp_path))


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_missing_or_empty_half_is_an_error_that_names_it(tmp_path, half):
    image_folder(tmp_path)
    (tmp_path / half).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=rf"no folder \S*{half}"):
        prepare_folder(tmp_path)
    (tmp_path / half / "cat").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=rf"no images in \S*{half}"):
        prepare_folder(tmp_path)


# Tiny-ImageNet

WNIDS = ("n03977966", "n01443537", "n02124075")


def save_jpeg(path: Path, *, grey: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (8, 8) if grey else (8, 8, 3), dtype=np.uint8)).save(path, "JPEG")


def tiny_tree(root: Path, train: int = 3, val: int = 2) -> Path:
    """Write the original layout, of which each class's first image is grey, and return its folder."""
    base = root / "tiny-imagenet-200"
    for name in WNIDS:
        for index in range(train):
            save_jpeg(base / "train" / name / "images" / f"{name}_{index}.JPEG", grey=not index)
        (base / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t7\t7\n")
    lines = []
    for index in range(val * len(WNIDS)):  # classes take turns, so that order by name isn't order by class
        save_jpeg(base / "val" / "images" / f"val_{index}.JPEG", grey=not index)
        lines.append(f"val_{index}.JPEG\t{WNIDS[index % len(WNIDS)]}\t0\t1\t7\t6\n")
    (base / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    save_jpeg(base / "test" / "images" / "test_0.JPEG")
    (base / "wnids.txt").write_text("".join(f"{name}\n" for name in WNIDS[:2]))
    (base / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\n")
    return base


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        array = np.asarray(image)
    return np.stack([array] * 3) if array.ndim == 2 else np.moveaxis(array, -1, 0)


def read_tiny(root: Path, **options) -> Dataset:
    return tiny_imagenet(root=str(root), **{"train_per_class": 3, "test_per_class": 2} | options)


@pytest.fixture
def three_classes(monkeypatch):
    monkeypatch.setattr(sources, "TINY_IMAGENET_CLASSES", len(WNIDS))


@pytest.fixture
def no_download(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"asked to download {args}")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", refuse)


def zipped(base: Path, archive: Path, monkeypatch) -> bytes:
    """Move a tree into an archive that counts as the published one."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(base.rglob("*")):
            file.write(path, path.relative_to(base.parent))
    shutil.rmtree(base)
    monkeypatch.setattr(sources, "TINY_IMAGENET_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    return archive.read_bytes()


def test_a_tiny_imagenet_tree_gives_its_exact_pixels_and_classes_without_the_network(
    tmp_path, three_classes, no_download, no_network
):
    base = tiny_tree(tmp_path)
    options = {"root": str(tmp_path), "train_per_class": 3, "test_per_class": 2}
    prepare("tiny-imagenet", options, tmp_path / "prepared")
    dataset = load_dataset(tmp_path / "prepared")
    assert no_network == []
    assert dataset.classes == sorted(WNIDS)
    assert dataset.train_targets.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for label, name in enumerate(sorted(WNIDS)):
        train = [pixels(path) for path in sorted((base / "train" / name / "images").iterdir())]
        np.testing.assert_array_equal(dataset.train_inputs[dataset.train_targets == label], train)
        places = [index for index in range(6) if WNIDS[index % 3] == name]
        val = [pixels(base / "val" / "images" / f"val_{index}.JPEG") for index in places]
        np.testing.assert_array_equal(dataset.test_inputs[dataset.test_targets == label], val)
    assert dataset.train_inputs.dtype == np.uint8
    assert (dataset.train_inputs[0] == dataset.train_inputs[0, :1]).all()  # grey
    assert (dataset.train_inputs[1] != dataset.train_inputs[1, :1]).any()


def test_the_archive_is_unpacked_once_and_nothing_else_is_left(tmp_path, monkeypatch, three_classes, no_download):
    root = tmp_path / "raw"
    tiny_tree(root)
    expected = read_tiny(root)
    zipped(root / "tiny-imagenet-200", root / "tiny-imagenet-200.zip", monkeypatch)
    assert read_tiny(root).digest() == expected.digest()
    assert sorted(path.name for path in root.iterdir()) == ["tiny-imagenet-200", "tiny-imagenet-200.zip"]
    (root / "tiny-imagenet-200.zip").unlink()
    assert read_tiny(root).digest() == expected.digest()


def test_unpacking_that_breaks_off_leaves_nothing_half_unpacked(tmp_path, monkeypatch, three_classes, no_download):
    archive = tmp_path / "raw" / "tiny-imagenet-200.zip"
    zipped(tiny_tree(tmp_path), archive, monkeypatch)

    def break_off(self, path):
        self.extract(self.namelist()[-1], path)
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extractall", break_off)
        with pytest.raises(OSError, match="no space left"):
            read_tiny(archive.parent)
    assert list(archive.parent.iterdir()) == [archive]
    assert len(read_tiny(archive.parent).train_inputs) == 9


@pytest.mark.parametrize("content", [b"", b"<html>moved</html>", None])
def test_an_archive_that_is_not_the_published_one_is_refused_and_kept(tmp_path, three_classes, no_download, content):
    archive = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("tiny-imagenet-200/wnids.txt", "a good archive, but not that one")
    if content is not None:
        archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not the published archive.*delete it") as caught:
        read_tiny(tmp_path)
    assert str(archive) in str(caught.value)
    assert list(tmp_path.iterdir()) == [archive]


class Response(io.BytesIO):
    """What ``urlopen`` returns."""

    def __init__(self, url: str, content: bytes):
        super().__init__(content)
        self.url, self.length = url, len(content)


def serve(monkeypatch, content: bytes) -> list[str]:
    asked = []

    def urlopen(request, *args, **kwargs):
        asked.append(request.full_url)
        return Response(request.full_url, content)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_what_is_not_there_is_downloaded_and_checked(tmp_path, monkeypatch, three_classes):
    content = zipped(tiny_tree(tmp_path), tmp_path / "server.zip", monkeypatch)
    root = tmp_path / "new" / "raw"
    asked = serve(monkeypatch, content)
    assert len(read_tiny(root).train_inputs) == 9
    assert set(asked) == {TINY_IMAGENET_URL}
    assert (root / "tiny-imagenet-200.zip").read_bytes() == content


def test_a_damaged_download_is_an_error_and_not_kept(tmp_path, monkeypatch, three_classes):
    serve(monkeypatch, zipped(tiny_tree(tmp_path), tmp_path / "server.zip", monkeypatch)[:-100])
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded: .*corrupted"):
        read_tiny(tmp_path / "raw")
    assert list((tmp_path / "raw").iterdir()) == []


def test_without_tiny_imagenet_and_network_there_is_one_error_that_says_what_to_put_where(tmp_path, no_network):
    with pytest.raises(FileNotFoundError, match=r"no tiny-imagenet-200 and no tiny-imagenet-200\.zip in") as caught:
        tiny_imagenet(root=str(tmp_path))
    for part in (str(tmp_path), TINY_IMAGENET_URL, "no network in tests", "Put one of the two there"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(no_network) >= 1
    assert list(tmp_path.iterdir()) == []


def annotate(base: Path, old: str, new: str) -> None:
    path = base / "val" / "val_annotations.txt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


TINY_DAMAGES = {
    "a training image cut short": (
        lambda base: shorten(base / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_1.JPEG"),
        ValueError,
        rf"{WNIDS[0]}_1\.JPEG can't be read as an image",
    ),
    "a training image missing": (
        lambda base: (base / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_1.JPEG").unlink(),
        ValueError,
        r"tiny-imagenet-200/train has 3 classes of 2 to 3 images, not 3 of 3; delete \S* to have it unpacked again",
    ),
    "a class without images": (
        lambda base: shutil.rmtree(base / "train" / WNIDS[0] / "images"),
        ValueError,
        r"tiny-imagenet-200/train has 3 classes of 0 to 3 images, not 3 of 3",
    ),
    "a class missing": (
        lambda base: shutil.rmtree(base / "train" / WNIDS[0]),
        ValueError,
        rf"val_annotations\.txt names the class '{WNIDS[0]}', of which train has no folder",
    ),
    "no classes": (
        lambda base: shutil.rmtree(base / "train"),
        FileNotFoundError,
        r"no train.* in \S*tiny-imagenet-200; delete \S*tiny-imagenet-200 to have it unpacked again",
    ),
    "a validation image missing": (
        lambda base: (base / "val" / "images" / "val_3.JPEG").unlink(),
        FileNotFoundError,
        r"no \S*val/images/val_3\.JPEG; the data set is not whole",
    ),
    "a validation image cut short": (
        lambda base: shorten(base / "val" / "images" / "val_3.JPEG"),
        ValueError,
        r"val_3\.JPEG can't be read as an image",
    ),
    "an unknown class": (
        lambda base: annotate(base, WNIDS[0], "n99999999"),
        ValueError,
        r"val_annotations\.txt names the class 'n99999999'",
    ),
    "another class": (
        lambda base: annotate(base, WNIDS[0], WNIDS[1]),
        ValueError,
        r"tiny-imagenet-200/val has 3 classes of 1 to 3 images, not 3 of 2",
    ),
    "a line cut short": (
        lambda base: (base / "val" / "val_annotations.txt").write_text("val_0.JPEG"),
        ValueError,
        r"val_annotations\.txt names the class ''",
    ),
    "annotations that are not text": (
        lambda base: (base / "val" / "val_annotations.txt").write_bytes(bytes(range(256))),
        ValueError,
        r"val_annotations\.txt names the class",
    ),
    "no annotations": (
        lambda base: (base / "val" / "val_annotations.txt").unlink(),
        FileNotFoundError,
        r"no val/val_annotations\.txt in \S*; delete \S*tiny-imagenet-200 to have it unpacked again",
    ),
}


@pytest.mark.parametrize(("damage", "error", "message"), TINY_DAMAGES.values(), ids=TINY_DAMAGES)
def test_a_damaged_tree_is_an_error_that_names_the_place(tmp_path, three_classes, no_download, damage, error, message):
    base = tiny_tree(tmp_path)
    read_tiny(tmp_path)
    damage(base)
    with pytest.raises(error, match=message):
        read_tiny(tmp_path)


@pytest.mark.parametrize("options", [{"train_per_class": 4}, {"test_per_class": 1}])
def test_other_numbers_of_images_than_expected_are_an_error(tmp_path, three_classes, no_download, options):
    tiny_tree(tmp_path)
    with pytest.raises(ValueError, match=r"has 3 classes of . to . images, not 3 of [41].*say in params\.yaml"):
        read_tiny(tmp_path, **options)


def test_other_numbers_of_classes_than_200_are_an_error(tmp_path, no_download):
    tiny_tree(tmp_path)
    with pytest.raises(ValueError, match="has 3 classes of 3 to 3 images, not 200 of 3"):
        read_tiny(tmp_path)


@pytest.mark.real_data
@pytest.mark.skipif(not (REAL_DATA / "tiny-imagenet-subset").exists(), reason="no ../shared/data beside the repository")
def test_the_real_tiny_imagenet_subset_gives_its_images_as_pillow_reads_them(tmp_path, no_download):
    unpack = [sys.executable, REAL_DATA / "unpack", tmp_path, "tiny-imagenet"]
    subprocess.run(unpack, check=True, capture_output=True)
    options = {"root": str(tmp_path), "train_per_class": 50, "test_per_class": 10}
    prepare("tiny-imagenet", options, tmp_path / "prepared")
    dataset = load_dataset(tmp_path / "prepared")
    assert (dataset.train_inputs.shape, dataset.test_inputs.shape) == ((10000, 3, 64, 64), (2000, 3, 64, 64))
    assert (dataset.train_inputs.dtype, dataset.test_inputs.dtype, dataset.outputs) == (np.uint8, np.uint8, 200)
    assert (np.bincount(dataset.train_targets) == 50).all()
    assert (np.bincount(dataset.test_targets) == 10).all()
    base = tmp_path / "tiny-imagenet-200"
    for label in (0, 77, 199):
        name = dataset.classes[label]
        train = [pixels(path) for path in sorted((base / "train" / name / "images").iterdir())]
        np.testing.assert_array_equal(dataset.train_inputs[dataset.train_targets == label], train)
        rows = [line.split("\t") for line in (base / "val" / "val_annotations.txt").read_text().splitlines()]
        val = [pixels(base / "val" / "images" / row[0]) for row in sorted(rows) if row[1] == name]
        np.testing.assert_array_equal(dataset.test_inputs[dataset.test_targets == label], val)
