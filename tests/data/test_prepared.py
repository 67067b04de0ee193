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
    loaded = load_dataset(str(tmp_path / "set"))
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
        (
            {"train_targets": np.array([0, 1, 1, 0, 1, 1, 0])},
            r"test half has class 'ç', of which the train half has none",
        ),
    ],
)
def test_data_that_contradict_themselves_are_refused_and_not_written(tmp_path, source, changes, message):
    source["dataset"] = images(**changes)
    with pytest.raises(ValueError, match=message):
        prepare("any", {}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_the_training_half_that_is_not_tested_is_no_error(tmp_path, source):
    source["dataset"] = images(test_targets=np.array([0, 1, 1, 0]))
    assert prepare("any", {}, tmp_path).outputs == 3


def test_an_unknown_source_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'nonsense'.*digits.*square-wave.*torchvision"):
        prepare("nonsense", {}, tmp_path)


@pytest.mark.parametrize("name", ["square-wave", "digits", "torchvision", "folder", "tiny-imagenet"])
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


def test_preparing_again_that_is_cut_off_leaves_no_data_set(tmp_path, source, monkeypatch):
    source["dataset"] = images()
    prepare("mine", {}, tmp_path)
    save, saved = np.save, []

    def cut_off(file, array):
        saved.append(file)
        if len(saved) == 2:
            raise KeyboardInterrupt
        save(file, array)

    monkeypatch.setattr(np, "save", cut_off)
    with pytest.raises(KeyboardInterrupt):
        prepare("mine", {}, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no dataset\.json"):
        load_dataset(tmp_path)


def test_an_array_of_another_length_than_the_description_says_is_an_error_that_names_it(tmp_path, source):
    source["dataset"] = images()
    prepare("any", {}, tmp_path)
    np.save(tmp_path / "test_targets.npy", images().test_targets[1:])
    with pytest.raises(ValueError, match=r"test_targets\.npy has \d+ samples where dataset\.json says \d+"):
        load_dataset(tmp_path)


def test_a_subset_that_loses_a_class_is_an_error(tmp_path, source):
    source["dataset"] = images()
    classes = len(images().classes)
    with pytest.raises(ValueError, match="of which the train half has none"):
        prepare("any", {}, tmp_path, train_images=classes - 1)


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


CLASSES = 3


def numbered(train: int = 50, test: int = 40) -> Dataset:
    """Images of unbalanced classes whose pixels say which half they are of, which image they are, and its class."""
    rng = np.random.default_rng(5)
    arrays = {}
    for half, (name, count) in enumerate({"train": train, "test": test}.items()):
        labels = np.concatenate([np.arange(CLASSES), rng.choice(CLASSES, size=count - CLASSES, p=[0.6, 0.2, 0.2])])
        pixels = np.stack([np.full(count, half), np.arange(count), labels], axis=1)
        arrays |= {f"{name}_inputs": pixels.astype(np.uint8)[:, :, None, None], f"{name}_targets": labels}
    return images(**arrays)


def numbers(dataset: Dataset, half: str) -> list[int]:
    """Return which images of a half of ``numbered()`` a data set has, once each has turned out to have its label."""
    found = getattr(dataset, f"{half}_inputs")[:, :, 0, 0]
    assert (found[:, 0] == ("train", "test").index(half)).all()
    np.testing.assert_array_equal(found[:, 2], getattr(dataset, f"{half}_targets"))
    return found[:, 1].tolist()


@pytest.mark.parametrize(("half", "other"), [("train", "test"), ("test", "train")])
@pytest.mark.parametrize("count", [3, 10, 17])
def test_a_subset_of_one_half_is_balanced_and_leaves_the_other_whole(tmp_path, source, half, other, count):
    source["dataset"] = original = numbered()
    prepare("any", {}, tmp_path, **{f"{half}_images": count})
    loaded = load_dataset(tmp_path)
    assert len(set(numbers(loaded, half))) == count
    shares = np.bincount(getattr(loaded, f"{half}_targets"), minlength=CLASSES)
    assert shares.max() - shares.min() <= 1
    assert numbers(loaded, other) == numbers(original, other)
    first = np.bincount(getattr(original, f"{half}_targets")[:count], minlength=CLASSES)
    assert count == 3 or first.max() - first.min() > 1  # which the first images aren't


def test_the_subset_seed_determines_which_images_are_kept(tmp_path, source):
    source["dataset"] = numbered()
    counts = {"train_images": 12, "test_images": 9}
    first, again, other = (prepare("any", {}, tmp_path, **counts, subset_seed=seed) for seed in (3, 3, 4))
    assert (first.digest(), first.provenance) == (again.digest(), again.provenance)
    for half in ("train", "test"):
        assert numbers(first, half) != numbers(other, half)
    default = prepare("any", {}, tmp_path, **counts)
    assert default.digest() == prepare("any", {}, tmp_path, **counts, subset_seed=0).digest()


@pytest.mark.parametrize(
    ("counts", "recorded"),
    [
        ({}, {}),
        ({"train_images": 5}, {"train_images": 5, "subset_seed": 7}),
        ({"test_images": 4}, {"test_images": 4, "subset_seed": 7}),
        ({"train_images": 50, "test_images": 40}, {"train_images": 50, "test_images": 40, "subset_seed": 7}),
    ],
)
def test_a_subset_is_recorded_beside_what_the_source_says(tmp_path, source, counts, recorded):
    source["dataset"] = original = numbered()
    prepare("any", {}, tmp_path, **counts, subset_seed=7)
    loaded = load_dataset(tmp_path)
    assert loaded.provenance == original.provenance | recorded
    assert original.provenance == images().provenance
    assert (loaded.digest() == original.digest()) == (counts in ({}, {"train_images": 50, "test_images": 40}))


@pytest.mark.parametrize("half", ["train", "test"])
@pytest.mark.parametrize("count", [0, -1, 51])
def test_a_subset_of_no_images_or_of_more_than_there_are_is_refused_and_not_written(tmp_path, source, half, count):
    source["dataset"] = numbered(50, 50)
    with pytest.raises(ValueError, match=rf"{half}_images takes 1 to 50 images.*got {count}"):
        prepare("any", {}, tmp_path, **{f"{half}_images": count})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_subset_of_regression_data_is_refused_since_they_have_no_classes(tmp_path, half):
    with pytest.raises(ValueError, match=rf"{half}_images takes .* images with labels, got 2"):
        prepare("square-wave", {"train_samples": 9, "test_samples": 5}, tmp_path, **{f"{half}_images": 2})
    assert list(tmp_path.iterdir()) == []
