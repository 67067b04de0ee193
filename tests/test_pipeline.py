"""The DVC graph, by running it on a copy of the repository with small settings."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lbdn.params import load_params

ROOT = Path(__file__).parents[1]
OFF = "report-cifar100-certified"
REPORTS = ("report-toy", "report-study", OFF)
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def shrink(params: dict) -> dict:
    params["toy"] |= {"families": ["aol"], "gammas": [1]}
    params["study"] |= {"families": ["sandwich"], "architecture": "mlp", "sizes": ["small"]}
    for experiment in params.keys() - {"gamma", "datasets", "toy", "study"}:
        params[experiment]["seeds"] = []
    for experiment in ("toy", "study"):
        params[experiment]["training"]["epochs"] = 1
        params[experiment]["lipschitz"] |= {"steps": 1, "pairs": 4, "layers": False}
    params["study"]["attack"] |= {"images": 1, "radii_255": [72]}
    return params


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        ignored = ("MLFLOW_", "DVC_", "LBDN_", "OMP_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(ignored)} | {
            "PATH": path,
            "PYTHONPATH": "",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@localhost",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@localhost",
        }

    def __call__(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def stages_to_run(self, *targets: str) -> list[str]:
        lines = self("dvc", "repro", "--dry", *(targets or REPORTS)).splitlines()
        return [line.split("'")[1] for line in lines if line.startswith("Running stage")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("clone") / "study"
    folder.mkdir()
    for name in (
        "lbdn",
        "stages",
        ".dvc/config",
        ".dvc/plots",
        ".dvcignore",
        ".gitignore",
        "dvc.yaml",
        "pyproject.toml",
    ):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(exist_ok=True)
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, target)
    params = shrink(yaml.safe_load((ROOT / "params.yaml").read_text()))
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    repository = Repository(folder)
    repository("git", "init", "--quiet")
    repository("dvc", "repro", *REPORTS)
    repository("dvc", "repro", "--single-item", "page")
    repository("git", "add", ".")
    repository("git", "commit", "--quiet", "--message", "study")
    return repository


def test_a_run_makes_the_page_and_all_models_are_in_mlflow(repository):
    from mlflow.tracking import MlflowClient

    assert (repository.folder / "reports/report.html").exists()
    client = MlflowClient(f"sqlite:///{repository.folder / 'mlflow.db'}")
    experiments = {e.name: e.experiment_id for e in client.search_experiments()}
    runs = client.search_runs([experiments["study"]])
    assert [run.info.status for run in runs] == ["FINISHED"]
    needed = {"accuracy_clean", "accuracy_robust_072", "accuracy_certified_072", "tightness", "test_accuracy"}
    assert all(needed <= set(run.data.metrics) for run in runs)


def test_a_second_run_does_nothing(repository):
    assert repository.stages_to_run() == []
    assert "up to date" in repository("dvc", "status", "--with-deps", *REPORTS)
    assert "up to date" in repository("dvc", "status", "page")


def test_an_experiment_that_is_off_trains_nothing_and_is_not_on_the_page(repository):
    assert [path.name for path in (repository.folder / "runs/cifar100-certified").iterdir()] == ["grid.json"]
    page = (repository.folder / "reports/report.html").read_text()
    assert 'id="study"' in page
    assert 'id="cifar100-certified"' not in page


def test_every_experiment_has_its_stages_and_its_report():
    """The graph is written by hand; what params.yaml names must be in it."""
    dvc = Path(sys.executable).with_name("dvc")
    listed = subprocess.run([dvc, "stage", "list", "--all", "--name-only"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split()
    assert len(names) == len(set(names))
    params = load_params(ROOT / "params.yaml")
    page = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["page"]["cmd"].split()[3:]
    assert page == list(params.experiments)
    for name, experiment in params.experiments.items():
        first = "adopt" if experiment.model else "train"
        kinds = [first, *(kind for kind in ("lipschitz", "certify", "attack") if getattr(experiment, kind))]
        for kind in kinds:
            of_kind = [s for s in names if s.startswith((f"{kind}-{name}@", f"{kind}-{name}-baselines@"))]
            assert len(of_kind) == len(params.cells(name))
        assert f"report-{name}" in names
        assert f"prepare@{experiment.dataset}" in names


@contextmanager
def edited(repository: Repository, name: str) -> Iterator[None]:
    """Edit a file for the length of a block, its digests noted anew at both ends."""
    path = repository.folder / name
    before = path.read_text()
    path.write_text(before + "\n# an edit\n")
    try:
        repository("dvc", "repro", "code")
        yield
    finally:
        path.write_text(before)
        repository("dvc", "repro", "code")


def test_editing_a_family_retrains_that_family_only(repository):
    with edited(repository, "lbdn/layers/aol.py"):
        trained = {name for name in repository.stages_to_run() if name.startswith("train")}
        assert trained == {"train-toy@square-wave-aol-small-1-123"}


def test_editing_a_figure_retrains_nothing(repository):
    with edited(repository, "lbdn/report/figures.py"):
        assert set(repository.stages_to_run()) <= set(REPORTS)
        assert "report-study" in repository.stages_to_run()


def test_editing_the_attack_attacks_again_and_trains_nothing(repository):
    with edited(repository, "lbdn/attack.py"):
        assert set(repository.stages_to_run()) == {"attack-study@digits-sandwich-small-123"}


def test_an_experiment_at_another_gamma_retrains_the_study_and_nothing_else(repository):
    output = repository("dvc", "exp", "run", "--temp", "--name", "two", "-S", "gamma=2", "report-study")
    ran = {line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")}
    assert {name for name in ran if name.startswith("train")} == {"train-study@digits-sandwich-small-123"}
    rows = json.loads(repository("dvc", "exp", "show", "--json"))
    metrics = rows[1]["experiments"][0]["revs"][0]["data"]["metrics"]["reports/metrics/study.json"]["data"]
    assert metrics["study"]["sandwich"]["clean"] > 0.1
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{repository.folder / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert sorted(run.data.params["gamma"] for run in found) == ["1.0", "2.0"]


def test_another_member_of_a_group_rebuilds_a_report_from_pulled_runs(repository, tmp_path):
    remote = str(tmp_path / "remote")
    repository("dvc", "remote", "add", "--default", "group", remote)
    repository("dvc", "push")
    repository("git", "commit", "--all", "--quiet", "--message", "remote")
    repository("git", "clone", "--quiet", ".", str(tmp_path / "clone"))
    other = Repository(tmp_path / "clone")
    other("dvc", "pull", "--with-deps", "report-study")
    assert other.stages_to_run("report-study") == []
    table = other.folder / "reports/tables/study/accuracy.csv"
    before = table.read_bytes()
    figures = other.folder / "lbdn/report/figures.py"
    figures.write_text(figures.read_text() + "\n# an edit\n")
    assert other.stages_to_run("report-study") == ["code", "report-study"]
    output = other("dvc", "repro", "--single-item", "report-study", "page")
    assert "Running stage 'report-study'" in output
    assert table.read_bytes() == before


def test_a_network_from_a_bare_machine_takes_the_place_of_a_stages_own(repository):
    run = "runs/study/sandwich-small-seed123"
    shutil.rmtree(repository.folder / run)
    cell = ("--family", "sandwich", "--size", "small", "--gamma", "1", "--seed", "123", "--device", "cpu")
    repository(sys.executable, "-m", "stages.cell", "study", run, *cell)
    repository("dvc", "commit", "--force", *(f"{kind}-study" for kind in ("train", "lipschitz", "certify", "attack")))
    assert repository.stages_to_run("report-study") == []
