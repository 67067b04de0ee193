"""The prepared form: exact, memory-mapped, checked; normalisation; balanced subsets."""

import numpy as np
import pytest

from lbdn.data import Dataset, balanced_subset, load_dataset, prepare, prepared
from lbdn.data.prepared import ARRAYS


def images(**changes) -> Dataset:
    rng = np.random.default_rng(0)
    arrays = {
        "train_inputs": rng.integers(0, 256, (7, 3, 4, 5), dtype=np.uint8),
        "train_targets": np.array([0, 1, 2, 0, 1, 2, 0]),
        "test_inputs": rng.integers(0, 256, (4, 3, 4, 5), dtype=np.uint8),
        "test_targets": np.array([0, 1, 2, 0]),
    }
    described = {"classes": ["a", "b", "ç"], "provenance": {"source": "a test", "fraction": 0.1 + 0.2}}
    return Dataset(**(arrays | described | changes))


@pytest.fixture
def source(monkeypatch):
    """Make every source return the data set that is put here."""
    box = {}
    monkeypatch.setattr(prepared.registry, "find", lambda kind, name: lambda: box["dataset"])
    return box


def test_a_prepared_data_set_loads_exactly_and_memory_mapped(tmp_path, source):
    source["dataset"] = original = images()
    prepare("any", {}, tmp_path / "set")
    loaded = load_dataset(tmp_path / "set")
    for name in ARRAYS:
        array, expected = getattr(loaded, name), getattr(original, name)
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)
    assert (loaded.classes, loaded.provenance) == (original.classes, original.provenance)
    assert (loaded.is_classification, loaded.input_shape, loaded.outputs) == (True, (3, 4, 5), 3)


def test_regression_data_have_outputs_and_no_classes(tmp_path):
    prepare("square-wave", {"train_samples": 9, "test_samples": 5, "seed": 1}, tmp_path)
    loaded = load_dataset(tmp_path)
    assert (loaded.is_classification, loaded.input_shape, loaded.outputs) == (False, (1,), 1)
    assert {getattr(loaded, name).dtype for name in ARRAYS} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_targets": np.array([0, 1])}, "train half has 7 inputs and 2 targets"),
        ({"test_inputs": np.zeros((0, 3, 4, 5), np.uint8), "test_targets": np.zeros(0, int)}, "test half has 0"),
        ({"test_inputs": np.zeros((4, 1, 4, 5), np.uint8)}, r"\(1, 4, 5\), not \(3, 4, 5\)"),
        ({"test_inputs": np.zeros((4, 3, 4, 5))}, "uint8.*float64"),
        ({"train_targets": np.array([0, 1, 2, 0, 1, 3, 0])}, r"train half lie in \[0, 3\].*3 classes"),
        ({"test_targets": np.array([0, -1, 2, 0])}, r"test half lie in \[-1, 2\]"),
    ],
)
def test_data_that_contradict_themselves_are_refused_and_not_written(tmp_path, source, changes, message):
    source["dataset"] = images(**changes)
    with pytest.raises(ValueError, match=message):
        prepare("any", {}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_source_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'nonsense'.*digits.*square-wave.*torchvision"):
        prepare("nonsense", {}, tmp_path)


@pytest.mark.parametrize("name", ["square-wave", "digits", "torchvision", "folder"])
def test_an_unknown_option_is_an_error_that_names_source_and_option(tmp_path, name):
    with pytest.raises(ValueError, match=rf"'{name}' doesn't take the options.*speed"):
        prepare(name, {"speed": 1}, tmp_path)


def test_a_folder_without_a_data_set_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"dataset\.json.*stages\.prepare") as caught:
        load_dataset(tmp_path / "absent")
    assert str(tmp_path / "absent") in str(caught.value)


DAMAGES = {
    "empty": lambda raw: b"",
    "truncated data": lambda raw: raw[:-5],
    "truncated header": lambda raw: raw[:20],
    "unclosed header": lambda raw: raw.replace(b"}", b" ", 1),
    "not an array": lambda raw: b"version https://git-lfs.github.com/spec/v1",
    "like an archive": lambda raw: b"PK\x03\x04" + raw,
}


@pytest.mark.parametrize(
    ("damage", "name"),
    [(damage, "train_targets") for damage in DAMAGES] + [("truncated data", name) for name in ARRAYS],
)
def test_a_damaged_array_is_an_error_that_names_its_file(tmp_path, source, damage, name):
    source["dataset"] = images()
    prepare("any", {}, tmp_path)
    path = tmp_path / f"{name}.npy"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(ValueError, match=r"damaged.*stages\.prepare") as caught:
        load_dataset(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_description_is_an_error_that_names_its_file(tmp_path, source, content):
    source["dataset"] = images()
    prepare("any", {}, tmp_path)
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(ValueError, match=r"dataset\.json"):
        load_dataset(tmp_path)


def test_a_missing_array_is_an_error_that_names_its_file(tmp_path, source):
    source["dataset"] = images()
    prepare("any", {}, tmp_path)
    (tmp_path / "test_inputs.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"test_inputs\.npy"):
        load_dataset(tmp_path)


def test_normalization_is_mean_and_deviation_of_each_training_channel():
    dataset = images()
    mean, std = dataset.normalization()
    scaled = dataset.train_inputs.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 2, 3)), rtol=1e-12)


def test_a_constant_channel_cannot_be_normalised():
    dataset = images()
    dataset.train_inputs[:, 1] = 17
    with pytest.raises(ValueError, match=r"constant channel.*`normalize`"):
        dataset.normalization()


def test_what_is_not_an_image_cannot_be_normalised():
    points = dict.fromkeys(ARRAYS, np.ones((3, 1), np.float32))
    with pytest.raises(ValueError, match="`normalize`"):
        images(**points, classes=[]).normalization()


LABELS = np.random.default_rng(0).choice(5, size=400, p=[0.4, 0.3, 0.15, 0.1, 0.05])


@pytest.mark.parametrize("count", [1, 5, 23, 60])
def test_a_balanced_subset_is_sorted_unique_and_balanced(count):
    chosen = balanced_subset(LABELS, count, seed=1)
    assert len(chosen) == count
    assert (np.diff(chosen) > 0).all()
    counts = np.bincount(LABELS[chosen], minlength=5)
    assert counts.max() - counts.min() <= 1
    first = np.bincount(LABELS[:count], minlength=5)
    assert count < 23 or first.max() - first.min() > 1


def test_exhausted_classes_give_all_they_have():
    rare = (LABELS == 4).sum()
    counts = np.bincount(LABELS[balanced_subset(LABELS, 200, seed=1)], minlength=5)
    assert counts[4] == rare
    assert counts[:3].max() - counts[:3].min() <= 1


def test_a_balanced_subset_follows_its_seed():
    assert np.array_equal(balanced_subset(LABELS, 50, seed=1), balanced_subset(LABELS, 50, seed=1))
    assert not np.array_equal(balanced_subset(LABELS, 50, seed=1), balanced_subset(LABELS, 50, seed=2))


def test_a_subset_may_be_everything_but_not_more():
    assert np.array_equal(balanced_subset(LABELS, 400, seed=1), np.arange(400))
    with pytest.raises(ValueError, match=r"401.*400"):
        balanced_subset(LABELS, 401, seed=1)
