"""Sources: the original Tiny-ImageNet, as a tree, an archive, a download."""

import hashlib
import io
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lbdn.data import Dataset, load_dataset, prepare, sources
from lbdn.data.sources import TINY_IMAGENET_URL, tiny_imagenet

REAL_DATA = Path(__file__).parents[2] / "../shared/data"
RNG = np.random.default_rng(0)
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
