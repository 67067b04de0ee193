"""Parameters: what is right loads, each mistake is an error that names its key."""

import copy
from pathlib import Path

import pytest
import yaml

from lbdn.params import load_params

ROOT = Path(__file__).parents[1]
ABSENT = object()
GOOD = {
    "gamma": 1,
    "datasets": {"digits": {"source": "digits"}},
    "study": {
        "dataset": "digits",
        "architecture": "kwlarge",
        "families": ["sandwich"],
        "sizes": ["tiny"],
        "gammas": [1, 2.5],
        "seeds": [123],
        "training": {"loss": {"name": "mse"}, "epochs": 3, "batch_size": 64, "learning_rate": 0.01},
        "lipschitz": {"steps": 2, "pairs": 3, "radius": 0.05, "learning_rate": 0.3, "seed": 0},
        "attack": {"images": "all", "radii_255": [36], "batch_size": 10, "seed": 0},
        "certify": {"radii_255": [36, 72]},
    },
}


def changed(key: str, value: object) -> dict:
    """Return GOOD with one value replaced, added or, if ABSENT, removed."""
    contents = copy.deepcopy(GOOD)
    *parents, last = key.split(".")
    section = contents
    for parent in parents:
        section = section[parent]
    if value is ABSENT:
        del section[last]
    else:
        section[last] = value
    return contents


def load(tmp_path: Path, contents: object):
    path = tmp_path / "params.yaml"
    path.write_text(contents if isinstance(contents, str) else yaml.safe_dump(contents), encoding="utf-8")
    return load_params(path)


def test_the_repositorys_own_parameters_load():
    params = load_params(ROOT / "params.yaml")
    assert {"toy", "study"} <= set(params.experiments)
    assert {gamma for _, _, gamma, _ in params.cells("study")} == {None, params.gamma}
    assert [cell[2] for cell in params.cells("toy")] == [1, 5, 10] * 4
    for name in params.experiments:
        assert params.experiment(name).dataset in params.datasets


def test_the_papers_experiments_are_there_with_its_grids():
    """The paper's experiments section and the project's list of experiments."""
    params = load_params(ROOT / "params.yaml")
    four, five = {"aol", "orthogonal", "sll", "sandwich"}, {"plain", "aol", "orthogonal", "sll", "sandwich"}
    expected = {
        "mnist": ({"plain", "orthogonal", "sandwich"}, {"small"}, {None, 0.1, 0.5, 1}, 7),
        "cifar10": (five, {"small"}, {None, 1, 10, 100}, 13),
        "cifar100": (five, {"large"}, {None, 1, 2, 4}, 13),
        "cifar10-curves": (five, {"small"}, {None, 100}, 25),
        "cifar100-curves": (five, {"large"}, {None, 10}, 25),
        "cifar100-sizes": (four, {"small", "medium", "large"}, {2}, 36),
        "tiny-imagenet-sizes": (four, {"small", "medium"}, {1}, 24),
        "cifar100-sandwich": ({"sandwich"}, {"small"}, {2}, 1),
        "cifar100-gammas": (four, {"small", "medium", "large"}, {0.5, 1, 2, 4, 8, 16}, 72),
        "tiny-imagenet-gammas": (four, {"small", "medium"}, {0.5, 1, 2, 4, 8, 16}, 48),
        "cifar100-certified": ({"sll", "sandwich"}, {"small", "xlarge"}, {1}, 9),
        "tiny-imagenet-certified": ({"sll", "sandwich"}, {"small", "xlarge"}, {1}, 9),
    }
    for name, (families, sizes, gammas, count) in expected.items():
        cells = params.cells(name)
        assert tuple(map(set, list(zip(*cells, strict=True))[:3])) == (families, sizes, gammas)
        assert len(set(cells)) == len(cells) == count
        training = params.experiment(name).training
        assert (training.epochs, training.learning_rate) == (400 if name.endswith("certified") else 100, 0.01)


def test_an_experiment_without_seeds_is_off_and_needs_no_data(tmp_path):
    assert load(tmp_path, GOOD).needs("digits")
    off = load(tmp_path, changed("study.seeds", []))
    assert off.cells("study") == []
    assert not off.needs("digits")


def test_baselines_are_a_grid_beside_the_experiments_own(tmp_path):
    baselines = {"families": ["plain", "sll"], "sizes": ["small"], "gammas": [3]}
    cells = load(tmp_path, changed("study.baselines", baselines)).cells("study")
    assert cells == [
        ("plain", "small", None, 123),
        ("sll", "small", 3.0, 123),
        ("sandwich", "tiny", 1.0, 123),
        ("sandwich", "tiny", 2.5, 123),
    ]
    with pytest.raises(ValueError, match="no 'other' among the families"):
        load(tmp_path, changed("study.baselines", baselines | {"families": ["other"]}))


def test_a_network_stands_in_an_experiment_once(tmp_path):
    twice = {"families": ["sandwich"], "sizes": ["tiny"], "gammas": [1]}
    with pytest.raises(ValueError, match=r"study has the network sandwich tiny, gamma 1\.0, twice"):
        load(tmp_path, changed("study.baselines", twice))
    with pytest.raises(ValueError, match="the network plain tiny, gamma None, twice"):
        load(tmp_path, changed("study.families", ["plain"]))


def adopted(**changes: object) -> dict:
    contents = changed("study.training", ABSENT)
    contents["study"] |= {"gammas": [1], "model": {"path": "model.bson", "sha256": 64 * "a"}} | changes
    return contents


def test_a_model_takes_the_place_of_a_training(tmp_path):
    study = load(tmp_path, adopted()).experiment("study")
    assert study.model is not None
    assert (study.model.path, study.model.sha256) == ("model.bson", 64 * "a")
    with pytest.raises(ValueError, match="trains nothing"):
        _ = study.training
    for neither_or_both in (adopted(training=GOOD["study"]["training"]), changed("study.training", ABSENT)):
        with pytest.raises(ValueError, match=r"1 wrong entries:\n  study: .*takes either `training` or `model`"):
            load(tmp_path, neither_or_both)
    with pytest.raises(ValueError, match=r"1 wrong entries:\n  study\.model\.sha256: .*\(got 'abc'\)"):
        load(tmp_path, adopted(model={"path": "model.bson", "sha256": "abc"}))


@pytest.mark.parametrize(
    "more",
    [{"seeds": [1, 2]}, {"gammas": [1, 2]}, {"baselines": {"families": ["plain"], "sizes": ["tiny"], "gammas": [1]}}],
)
def test_a_model_is_one_network(tmp_path, more):
    with pytest.raises(ValueError, match=r"study\.model is one network, but its grid has 2"):
        load(tmp_path, adopted(**more))
    assert load(tmp_path, adopted(**more | {"seeds": []})).cells("study") == []


def test_only_unconstrained_networks_have_no_gamma(tmp_path):
    with pytest.raises(ValueError, match="study gives no gamma to sandwich"):
        load(tmp_path, changed("study.gammas", [1, "none"]))


def test_good_parameters_load_as_written(tmp_path):
    params = load(tmp_path, GOOD)
    study = params.experiment("study")
    assert study.model_dump(exclude_unset=True, by_alias=True) == GOOD["study"]
    assert params.cells("study") == [("sandwich", "tiny", 1.0, 123), ("sandwich", "tiny", 2.5, 123)]
    assert load(tmp_path, changed("study.gammas", ABSENT)).cells("study") == [("sandwich", "tiny", 1.0, 123)]
    assert (study.training.augmentation, study.training.normalize, study.lipschitz.layers) == ("none", True, False)
    assert (study.attack.audit, params.datasets["digits"].subset_seed) == (10, 0)


@pytest.mark.parametrize("section", ["study", "study.training", "study.lipschitz", "study.attack", "study.certify"])
def test_an_unknown_key_is_named(tmp_path, section):
    with pytest.raises(ValueError, match=rf"1 wrong entries:\n  {section}\.epoch: .*\(got 30\)"):
        load(tmp_path, changed(f"{section}.epoch", 30))


def test_an_unknown_key_at_the_top_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"1 wrong entries:\n  gama: .*\(got 2\)"):
        load(tmp_path, changed("gama", 2))


@pytest.mark.parametrize(
    "key",
    [
        "gamma",
        "datasets",
        "datasets.digits.source",
        "study.dataset",
        "study.seeds",
        "study.training.loss",
        "study.lipschitz.seed",
        "study.attack.radii_255",
        "study.certify.radii_255",
    ],
)
def test_a_missing_key_is_named(tmp_path, key):
    with pytest.raises(ValueError, match=rf"1 wrong entries:\n  {key}: Field required"):
        load(tmp_path, changed(key, ABSENT))


@pytest.mark.parametrize(
    ("key", "value", "got"),
    [
        ("gamma", 0, "0"),
        ("gamma", -1, "-1"),
        ("gamma", float("nan"), "nan"),
        ("gamma", float("inf"), "inf"),
        ("gamma", "two", "'two'"),
        ("gamma", None, "None"),
        ("gamma", [1], r"\[1\]"),
        ("gamma", True, "True"),
        ("datasets", None, "None"),
        ("datasets.digits", "digits", "'digits'"),
        ("datasets.digits.train_images", 2.5, "2.5"),
        ("datasets.digits.test_images", True, "True"),
        ("datasets.digits.subset_seed", "x", "'x'"),
        ("study", None, "None"),
        ("study.families", "sandwich", "'sandwich'"),
        ("study.training", "fast", "'fast'"),
        ("study.training.loss", "mse", "'mse'"),
        ("study.training.epochs", 0, "0"),
        ("study.training.epochs", 2.5, "2.5"),
        ("study.training.batch_size", "many", "'many'"),
        ("study.training.learning_rate", -0.1, "-0.1"),
        ("study.training.normalize", "perhaps", "'perhaps'"),
        ("study.training.normalize", {"mean": [0.5], "std": [0]}, "0"),
        ("study.lipschitz.radius", 0, "0"),
        ("study.attack.batch_size", 0, "0"),
        ("study.attack.images", 0, "0"),
        ("study.attack.images", "some", "'some'"),
        ("study.attack.audit", -1, "-1"),
        ("study.attack.seed", -1, "-1"),
        ("study.attack.radii_255", [36, 36.0], r"\[36, 36\.0\]"),
        ("study.lipschitz.seed", 2**63, str(2**63)),
        ("study.seeds", [1, -1], "-1"),
        ("datasets.digits.subset_seed", -1, "-1"),
        ("study.attack.audit", "some", "'some'"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_got(tmp_path, key, value, got):
    with pytest.raises(ValueError, match=rf"(?m)^  {key}(\.\S+)?: .*\(got {got}\)$"):
        load(tmp_path, changed(key, value))


@pytest.mark.parametrize(
    ("key", "got"), [("study.gammas", "0"), ("study.seeds", "'a'"), ("study.certify.radii_255", "-1")]
)
def test_a_wrong_element_is_named_by_its_place(tmp_path, key, got):
    with pytest.raises(ValueError, match=rf"1 wrong entries:\n  {key}\.1: .*\(got {got}\)"):
        load(tmp_path, changed(key, [1, yaml.safe_load(got)]))


def test_all_mistakes_are_listed_at_once(tmp_path):
    contents = changed("gamma", 0)
    contents["study"]["training"]["epochs"] = -3
    with pytest.raises(ValueError, match=r"2 wrong entries") as caught:
        load(tmp_path, contents)
    assert "gamma: " in str(caught.value)
    assert "study.training.epochs: " in str(caught.value)


def test_an_empty_file_lacks_every_key(tmp_path):
    with pytest.raises(ValueError, match=r"(?s)gamma: Field required.*datasets: Field required"):
        load(tmp_path, "")


@pytest.mark.parametrize("text", ["gamma: [1", "gamma: 1\n\tdatasets: {}", "a: b: c", "- gamma\n- datasets", "gamma"])
def test_what_is_not_a_yaml_mapping_is_an_error_that_names_the_file(tmp_path, text):
    with pytest.raises(ValueError, match=r"params\.yaml"):
        load(tmp_path, text)


def test_a_file_that_is_not_text_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_bytes(b"\xff\xfegamma: 1")
    with pytest.raises(ValueError, match=r"params\.yaml"):
        load_params(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"params\.yaml.*run stages from"):
        load_params(tmp_path / "params.yaml")


def test_an_unknown_experiment_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'toy'.*study"):
        load(tmp_path, GOOD).experiment("toy")


def test_an_exponent_without_a_point_is_a_number(tmp_path):
    """YAML 1.1, which PyYAML reads, takes 1e-3 for a string."""
    text = yaml.safe_dump(GOOD).replace("learning_rate: 0.01", "learning_rate: 1e-3")
    assert load(tmp_path, text).experiment("study").training.learning_rate == 0.001


def test_an_unknown_source_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"datasets\.digits\.source takes one of .*digits.*, got 'web'"):
        load(tmp_path, changed("datasets.digits.source", "web"))
