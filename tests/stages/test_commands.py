"""Stages as commands, on tiny data, through click's runner."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner, Result

import stages.adopt
import stages.attack
import stages.cell
import stages.certify
import stages.code
import stages.lipschitz
import stages.page
import stages.parts
import stages.plan
import stages.prepare
import stages.report
import stages.train
from lbdn.bounds.lower import LowerBound
from lbdn.data import load_dataset
from lbdn.params import Experiment, load_params
from lbdn.runs import load_run
from lbdn.verify.__main__ import main as verify

TRAINING = {"loss": {"name": "cross-entropy"}, "epochs": 2, "batch_size": 100, "learning_rate": 0.01}
SEARCH = {"pairs": 4, "steps": 2, "radius": 0.05, "learning_rate": 0.1, "seed": 0}
PARAMS = {
    "gamma": 2,
    "datasets": {
        "square-wave": {"source": "square-wave", "train_samples": 300, "test_samples": 20},
        "digits": {"source": "digits"},
    },
    "toy": {
        "dataset": "square-wave",
        "architecture": "toy",
        "families": ["aol", "sandwich"],
        "sizes": ["small"],
        "gammas": [1],
        "seeds": [5],
        "training": TRAINING | {"loss": {"name": "mse"}, "normalize": False},
        "lipschitz": SEARCH | {"layers": True},
    },
    "study": {
        "dataset": "digits",
        "architecture": "mlp",
        "families": ["plain", "orthogonal"],
        "sizes": ["small"],
        "seeds": [5],
        "training": TRAINING,
        "lipschitz": SEARCH,
        "attack": {"images": 6, "radii_255": [36, 72], "batch_size": 3, "seed": 0},
        "certify": {"radii_255": [36, 72]},
    },
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    return folder


@pytest.fixture(autouse=True)
def inside(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("LBDN_TRACKING", "off")


def run(stage, *arguments: object) -> Result:
    return CliRunner().invoke(stage.main, [str(argument) for argument in arguments])


def succeed(stage, *arguments: object) -> Result:
    result = run(stage, *arguments)
    assert result.exit_code == 0, result.output
    return result


def train(experiment: str, family: str) -> Path:
    folder = Path("runs") / experiment / f"{family}-small-seed5"
    if not (folder / "run.json").exists():
        gamma = 1 if experiment == "toy" else 2
        cell = ("--family", family, "--size", "small", "--gamma", gamma, "--seed", 5)
        succeed(stages.prepare, PARAMS[experiment]["dataset"])
        succeed(stages.train, experiment, folder, *cell, "--device", "cpu")
    return folder


@pytest.fixture
def quick_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyautoattack.autoattack import AutoAttack

    original = AutoAttack.__init__

    def shortened(self, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        self.square.n_queries = self.apgd.n_iter = self.apgd_targeted.n_iter = self.fab.n_iter = 10

    monkeypatch.setattr(AutoAttack, "__init__", shortened)


def evaluate(family: str) -> Path:
    folder = train("study", family)
    for stage in (stages.lipschitz, stages.certify, stages.attack):
        succeed(stage, folder, "--device", "cpu")
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "stage",
    [
        stages.prepare,
        stages.code,
        stages.plan,
        stages.train,
        stages.adopt,
        stages.lipschitz,
        stages.attack,
        stages.certify,
        stages.report,
        stages.page,
        stages.cell,
    ],
)
def test_help_says_what_a_stage_reads_and_writes(stage):
    assert "rite" in succeed(stage, "--help").output


def test_a_run_goes_from_training_to_the_report_page(quick_attacks):
    for family in ("aol", "sandwich"):
        succeed(stages.lipschitz, train("toy", family), "--device", "cpu")
    certified = rows(evaluate("orthogonal") / "certify.csv")
    assert len(certified) == 360
    assert any(float(row["radius"]) > 0 for row in certified)
    assert all(row["radius"] == "" for row in rows(evaluate("plain") / "certify.csv"))
    succeed(stages.plan)
    for experiment in ("toy", "study"):
        succeed(stages.report, experiment)
    succeed(stages.page, "toy", "study")

    page = Path("reports/report.html").read_text()
    assert page.count('<img src="data:image/svg+xml;base64,') == 6
    assert "http://" not in page.replace("http://www.w3.org", "")
    metrics = json.loads(Path("reports/metrics/study.json").read_text())
    assert set(metrics["study"]["orthogonal"]) == {"clean", "robust_72", "certified_72", "tightness"}
    assert "certified_72" not in metrics["study"]["plain"]
    assert "epochs 2 (paper 200)" in Path("reports/tables/toy/tightness.md").read_text()


def test_certified_is_at_most_robust_is_at_most_clean_image_by_image(quick_attacks):
    folder = evaluate("orthogonal")
    certified = {row["image"]: row for row in rows(folder / "certify.csv")}
    attacked = rows(folder / "attack.csv")
    assert len(attacked) == 6
    for row in attacked:
        clean = row["label"] == row["prediction"]
        assert certified[row["image"]]["prediction"] == row["prediction"]
        for numerator in (36, 72):
            robust = row[f"robust@{numerator / 255:.6g}"] == "1"
            assert float(certified[row["image"]]["radius"]) <= numerator / 255 or robust
            assert clean or not robust


def test_certified_images_are_attacked_only_in_a_sample_and_all_of_them_on_request(quick_attacks):
    folder = evaluate("orthogonal")
    certified = {row["image"]: float(row["radius"]) for row in rows(folder / "certify.csv")}
    params = yaml.safe_load(Path("params.yaml").read_text())
    try:
        for audit, kinds in ((1, {"audit": 1}), (0, {"audit": 0}), ("all", {"certificate": 0})):
            params["study"]["attack"]["audit"] = audit
            Path("params.yaml").write_text(yaml.safe_dump(params))
            succeed(stages.attack, folder, "--device", "cpu")
            written = rows(folder / "attack.csv")
            decisions = [row[f"decided_by@{36 / 255:.6g}"] for row in written]
            assert [row["image"] for row in written] == sorted((row["image"] for row in written), key=int)
            assert all(float(row["radius"]) == pytest.approx(certified[row["image"]], rel=1e-4) for row in written)
            assert all(decisions.count(kind) == count for kind, count in kinds.items())
            certain = [by in ("audit", "certificate") for by in decisions]
            assert certain == [float(row["radius"]) > 36 / 255 for row in written]
            assert any(certain)
    finally:
        Path("params.yaml").write_text(yaml.safe_dump(PARAMS))
    unbounded = rows(evaluate("plain") / "attack.csv")
    assert all(row["radius"] == "" for row in unbounded)
    assert {row[f"decided_by@{36 / 255:.6g}"] for row in unbounded} <= {"prediction", "attack"}


def test_radii_are_margins_over_root_two_times_the_bound_from_pixels(quick_attacks):
    folder = evaluate("orthogonal")
    bound = json.loads((folder / "lipschitz.json").read_text())["upper"]
    for row in rows(folder / "certify.csv"):
        expected = max(float(row["margin"]), 0) / (2**0.5 * bound)
        assert float(row["radius"]) == pytest.approx(expected, rel=1e-5)


def test_radii_in_floating_point_are_below_those_of_real_arithmetic_and_the_certificate_holds(quick_attacks, capsys):
    folder = evaluate("orthogonal")
    for row in rows(folder / "certify.csv"):
        sound, pairs, blunt = (float(row[name]) for name in ("radius_sound", "radius", "radius_by_gamma"))
        assert 0 <= sound <= pairs
        assert blunt <= pairs
        assert pairs == 0 or 0.9 < sound / pairs < 1 or pairs - sound < 1e-3
    assert verify([str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("holds: from pixels, ")
    assert verify([str(evaluate("plain"))]) == 3
    assert "not covered: a network without a Lipschitz bound" in capsys.readouterr().out
    assert all(row["radius_sound"] == "" for row in rows(evaluate("plain") / "certify.csv"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"attack": {"images": 361, "radii_255": [36], "batch_size": 3, "seed": 0}}, "attack.images takes 1 to 360"),
        ({"training": TRAINING | {"loss": {"name": "mse"}}}, "loss 'mse' doesn't fit targets that are labels"),
        ({"dataset": "square-wave"}, "square-wave has no classes of images, which `attack`"),
        ({"sizes": ["small", "huge"]}, "no size 'huge' of mlp"),
        (
            {"training": TRAINING | {"normalize": {"mean": [0.5] * 3, "std": [0.5] * 3}}},
            "training.normalize has 3 channels, digits 1",
        ),
        ({"architecture": "resnet"}, "no 'resnet' among the architectures; there are deep, kwlarge, mlp, toy"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_training(tmp_path, monkeypatch, change, said):
    for name in ("digits", "square-wave"):
        succeed(stages.prepare, name)
    monkeypatch.setattr(stages.train, "PREPARED", Path("data/prepared").resolve())
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS | {"study": PARAMS["study"] | change}))
    cell = ("--family", "aol", "--size", "small", "--gamma", 1, "--seed", 1)
    result = run(stages.train, "study", "run", *cell, "--device", "cpu")
    assert result.exit_code == 1
    assert said in result.output
    assert not Path("run/history.csv").exists()


def test_networks_are_built_without_numbers_before_training_where_they_can_be(monkeypatch):
    succeed(stages.prepare, "digits")
    dataset = load_dataset("data/prepared/digits")
    study = PARAMS["study"] | {"architecture": "kwlarge", "families": ["cpl"], "sizes": ["tiny"]}
    narrow = replace(dataset, classes=[str(i) for i in range(200)])  # more than the features of that network
    with pytest.raises(ValueError, match="can't select 200 outputs from 128 features"):
        stages.train.check_settings(Experiment.model_validate(study), narrow)
    normalized = study | {"training": TRAINING | {"last_layer_normalization": True}}
    stages.train.check_settings(Experiment.model_validate(normalized), narrow)
    monkeypatch.setattr(stages.train, "build_network", lambda **_: torch.ones(1).numpy())
    stages.train.check_settings(Experiment.model_validate(study), dataset)


def test_a_network_normalises_by_the_statistics_that_it_is_given(tmp_path, monkeypatch):
    succeed(stages.prepare, "digits")
    monkeypatch.setattr(stages.train, "PREPARED", Path("data/prepared").resolve())
    monkeypatch.chdir(tmp_path)
    training = TRAINING | {"epochs": 1, "normalize": {"mean": [0.25], "std": [0.5]}}
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS | {"study": PARAMS["study"] | {"training": training}}))
    cell = ("--family", "orthogonal", "--size", "small", "--gamma", 1, "--seed", 1)
    succeed(stages.train, "study", "run", *cell, "--device", "cpu")
    network = load_run("run")
    assert network.normalization(torch.ones(1, 8, 8)).unique().tolist() == [1.5]
    assert network.pixel_gamma == pytest.approx(2.0)


def test_the_number_of_cores_does_not_change_the_weights(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    succeed(stages.prepare, "digits")
    cell = ("--family", "sandwich", "--size", "small", "--gamma", 2, "--seed", 5, "--device", "cpu")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        succeed(stages.train, "study", f"threads-{threads}", *cell)
        assert torch.get_num_threads() == 1
    assert Path("threads-1/weights.pt").read_bytes() == Path("threads-2/weights.pt").read_bytes()


def test_an_experiment_that_is_off_needs_no_data_and_gives_an_empty_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS | {"study": PARAMS["study"] | {"seeds": []}}))
    succeed(stages.plan)
    assert Path("data/needed/digits.json").read_text() == "false\n"
    assert Path("data/needed/square-wave.json").read_text() == "true\n"
    assert "no experiment that is on uses it" in succeed(stages.prepare, "digits", "--if-needed").output
    assert not list(Path("data/prepared/digits").iterdir())
    succeed(stages.prepare, "digits")
    assert list(Path("data/prepared/digits").iterdir())
    succeed(stages.report, "study")
    succeed(stages.page, "study")
    assert "<section" not in Path("reports/report.html").read_text()


def test_reports_and_tables_are_the_same_bytes_when_made_again(quick_attacks):
    for family in ("plain", "orthogonal"):
        evaluate(family)
    succeed(stages.plan)
    for folder in ("first", "second"):
        succeed(stages.report, "study", "--reports", folder)
    files = [path.relative_to("first") for path in Path("first").rglob("*.*")]
    assert len(files) > 8
    assert all((Path("first") / f).read_bytes() == (Path("second") / f).read_bytes() for f in files)


def test_a_cell_runs_by_itself_and_does_again_only_what_changed(quick_attacks, tmp_path, monkeypatch):
    succeed(stages.prepare, "digits")
    monkeypatch.setattr(stages.cell, "PREPARED", Path("data/prepared").resolve())
    monkeypatch.chdir(tmp_path)
    arguments = ("study", "cell", "--family", "sandwich", "--size", "small", "--gamma", 2, "--seed", 5)
    arguments += ("--device", "cpu")

    def parts(**changes) -> list[str]:
        Path("params.yaml").write_text(yaml.safe_dump(PARAMS | {"study": PARAMS["study"] | changes}))
        return [line.split(":")[0] for line in succeed(stages.cell, *arguments).output.splitlines() if " s" in line]

    everything = ["run.json", "lipschitz.json", "certify.csv", "attack.csv"]
    with monkeypatch.context() as patch:
        patch.setattr(stages.cell, "bound_run", lambda *_: 1 / 0)
        with pytest.raises(AssertionError):
            parts()
    trained = Path("cell/run.json").stat().st_mtime_ns
    assert parts() == everything[1:]
    assert Path("cell/run.json").stat().st_mtime_ns == trained
    shutil.rmtree("cell")
    assert [name for name in parts() if "." in name and " " not in name] == everything
    assert not Path("cell/checkpoint.pt").exists()
    assert not Path("cell/attack-state.json").exists()
    assert set(json.loads(Path("cell/provenance.json").read_text())) == {"epoch", *everything}
    assert parts() == []
    Path("cell/certify.csv").unlink()
    assert parts() == ["certify.csv"]
    attack = PARAMS["study"]["attack"] | {"radii_255": [36, 108]}
    assert parts(attack=attack) == ["attack.csv"]
    assert f"robust@{108 / 255:.6g}" in rows(Path("cell/attack.csv"))[0]
    assert parts(attack=attack, lipschitz=SEARCH | {"seed": 7}) == ["lipschitz.json"]
    with monkeypatch.context() as patch:
        patch.setattr(stages.cell, "attack_run", lambda *_: 1 / 0)
        with pytest.raises(AssertionError):
            parts(lipschitz=SEARCH | {"seed": 7})
    assert parts(lipschitz=SEARCH | {"seed": 7}) == ["attack.csv"]  # not what was there before it was cut off
    with pytest.raises(AssertionError, match="holds a model of other settings, data or code"):
        parts(training=TRAINING | {"batch_size": 50})
    (Path("cell") / "cell.json").unlink()
    with pytest.raises(AssertionError, match=r"cell/run\.json wasn't made by this script"):
        parts()


BARE = """
import sys
for name in "mlflow dvc pandas matplotlib seaborn jinja2 tabulate sklearn torchvision PIL scipy ruamel".split():
    sys.modules[name] = None  # makes its import an error
import pyautoattack.autoattack
from stages.cell import main
main("study bare --family sandwich --size small --gamma 2 --seed 5 --device cpu".split(), standalone_mode=False)
import torch
from lbdn import attack, build_network, layers, load_run, networks, verify
from lbdn.bounds import pair_bounds
from lbdn.certify import certified_radius
network = load_run("bare")
certified_radius(network(torch.rand(3, 1, 8, 8)), torch.tensor([0, 1, 2]), pair_bounds(network))
"""


def test_a_bare_machine_does_without_dvc_mlflow_and_what_reports_and_sources_take(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = {name: value for name, value in PARAMS["study"].items() if name != "attack"}
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS | {"study": study}))
    succeed(stages.prepare, "digits")
    environment = os.environ | {"PYTHONPATH": str(stages.code.ROOT)}
    done = subprocess.run([sys.executable, "-c", BARE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path("bare/certify.csv").exists()


def test_a_training_that_is_told_to_end_ends_its_run_in_mlflow(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("LBDN_TRACKING", "on")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setattr(stages.train, "train", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    succeed(stages.prepare, "square-wave")
    cell = ("--family", "aol", "--size", "small", "--gamma", 1, "--seed", 1, "--device", "cpu")
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the stage leaves the signal to others"))
    try:
        assert run(stages.train, "toy", tmp_path / "run", *cell).exit_code == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    client = MlflowClient()
    (only,) = client.search_runs([client.get_experiment_by_name("toy").experiment_id])
    assert only.info.status == "FAILED"


def test_an_interrupted_attack_goes_on_with_the_same_code_alone(quick_attacks, monkeypatch):
    folder = train("study", "orthogonal")
    settings = load_params().experiment("study").attack
    dataset = load_dataset("data/prepared/digits")
    stages.attack.attack_run(folder, settings, dataset, torch.device("cpu"))
    attacked = []
    monkeypatch.setattr("lbdn.attack._attack_batch", lambda *_: attacked.append(1) or 1 / 0)
    stages.attack.attack_run(folder, settings, dataset, torch.device("cpu"))
    assert not attacked
    for name, other in (("digest_of", "other"), ("code_digests", {})):
        with monkeypatch.context() as patch:
            patch.setattr(stages.attack, name, lambda *_, other=other: other)
            with pytest.raises(ZeroDivisionError):
                stages.attack.attack_run(folder, settings, dataset, torch.device("cpu"))
    (folder / stages.attack.STATE).unlink()


def test_parts_join_to_what_was_split(monkeypatch):
    succeed(stages.prepare, "digits")
    monkeypatch.setattr(stages.parts, "PART_BYTES", 1_000)
    succeed(stages.parts, "split", "data/prepared/digits", "parts")
    monkeypatch.setattr(stages.parts, "PART_BYTES", 10_000)
    succeed(stages.parts, "split", "data/prepared/digits", "parts")
    assert 3 < len(list(Path("parts").iterdir())) < 20
    succeed(stages.parts, "join", "parts", "joined")
    assert "joined isn't empty" in run(stages.parts, "join", "parts", "joined").output
    for path in Path("data/prepared/digits").iterdir():
        assert (Path("joined") / path.name).read_bytes() == path.read_bytes()
    first, second, *_ = sorted(Path("parts").iterdir())
    second.write_bytes(second.read_bytes()[::-1])
    for spoil, said in ((lambda: None, "are damaged"), (first.unlink, f"lacks {first.name}")):
        spoil()
        result = run(stages.parts, "join", "parts", "again")
        assert result.exit_code == 1
        assert said in result.output
        assert not Path("again").exists()


def test_families_are_told_apart_by_their_source_files():
    succeed(stages.code, "code")
    names = {path.stem: path.read_text() for path in Path("code/families").iterdir()}
    assert set(names) == {"aol", "sandwich", "plain", "orthogonal"}
    assert len(set(names.values())) == 4


def test_a_family_an_architecture_and_a_source_of_another_package_go_through_the_stages(package, monkeypatch, tmp_path):
    toy = PARAMS["toy"] | {"dataset": "ramp", "architecture": "short", "families": ["mixed", "aol"]}
    toy["training"] = toy["training"] | {"batch_size": 2}
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(yaml.safe_dump({"gamma": 1, "datasets": {"ramp": {"source": "ramp"}}, "toy": toy}))
    succeed(stages.prepare, "ramp")
    succeed(stages.code, "code")
    assert Path("code/families/mixed.json").exists()
    for family in toy["families"]:
        folder = Path("runs/toy") / family
        cell = ("--family", family, "--size", "small", "--gamma", 1, "--seed", 5, "--device", "cpu")
        succeed(stages.train, "toy", folder, *cell)
        succeed(stages.lipschitz, folder, "--device", "cpu")
    succeed(stages.plan)
    succeed(stages.report, "toy")
    assert "mixed" in Path("reports/tables/toy/tightness.md").read_text()


@pytest.mark.parametrize(
    ("stage", "arguments", "said"),
    [
        (stages.prepare, ["imagenet"], "no data set 'imagenet' in params.yaml; there are digits, square-wave"),
        (
            stages.train,
            ["nothing", "x", "--family", "aol", "--size", "small", "--gamma", 1, "--seed", 1],
            "there are study, toy",
        ),
        (
            stages.train,
            ["study", "x", "--family", "aol", "--size", "small", "--gamma", -1, "--seed", 1],
            "gamma takes a positive, finite number, got -1.0",
        ),
        (
            stages.train,
            ["study", "x", "--family", "other", "--size", "small", "--gamma", 1, "--seed", 1],
            "no 'other' among the families; there are aol",
        ),
        (stages.lipschitz, ["nowhere"], "no run.json in nowhere"),
        (stages.page, ["studi"], "there are study, toy"),
        (stages.report, ["study", "--runs", "empty"], "no grid.json in empty/study"),
        (
            stages.train,
            ["study", "x", "--family", "aol", "--size", "small", "--gamma", "none", "--seed", 1],
            "gamma takes a positive, finite number, got None",
        ),
        (
            stages.train,
            ["study", "x", "--family", "aol", "--size", "small", "--gamma", "big", "--seed", 1],
            "takes a number, or none for an unconstrained network, got 'big'",
        ),
        (stages.lipschitz, ["x", "--device", "abacus"], "'abacus' is not a device"),
    ],
)
def test_wrong_input_is_one_clear_error(stage, arguments, said):
    succeed(stages.prepare, "digits")
    result = run(stage, *arguments)
    assert result.exit_code != 0
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("training", PARAMS["toy"]["training"] | {"loss": {"name": "mes"}}, "toy.training: no loss 'mes'"),
        ("training", PARAMS["toy"]["training"] | {"augmentation": "flip"}, "toy.training: no augmentation 'flip'"),
        ("published", "toi", "toy.published names no values in lbdn/report/published.yaml"),
    ],
)
def test_the_plan_names_what_no_training_or_report_will_know(place, value, said):
    changed = PARAMS | {"toy": PARAMS["toy"] | {place: value}}
    Path("params.yaml").write_text(yaml.safe_dump(changed))
    try:
        result = run(stages.plan)
    finally:
        Path("params.yaml").write_text(yaml.safe_dump(PARAMS))
    assert result.exit_code == 1
    assert said in result.output


def test_a_bound_that_the_search_refutes_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        stages.lipschitz, "empirical_lower_bound", lambda *_, **__: LowerBound(7.0, torch.zeros(1), torch.ones(1))
    )
    folder = train("toy", "sandwich")
    (folder / "lipschitz.json").unlink(missing_ok=True)
    result = run(stages.lipschitz, folder, "--device", "cpu")
    assert "two points with the ratio 7" in result.output
    assert not (folder / "lipschitz.json").exists()
