"""Sources: folders of images."""

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lbdn.data import Dataset, prepare
from lbdn.data.sources import folder

RNG = np.random.default_rng(0)


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
