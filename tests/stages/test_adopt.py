"""A model that was trained elsewhere becomes a run, if it is the one that params.yaml describes."""

import copy
import hashlib
import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner, Result

import stages.adopt
import stages.cell
import stages.certify
import stages.lipschitz
import stages.page
import stages.plan
import stages.prepare
import stages.report
import stages.train
from lbdn import load_run
from lbdn.data import load_dataset
from lbdn.inference import predict
from lbdn.julia import read_lbdn, write_lbdn
from lbdn.layers import SandwichFc, SandwichLin
from lbdn.networks import Network
from lbdn.runs import read_description
from lbdn.verify.__main__ import main as verify
from tests.oracles import perturb

pytest.importorskip("bson")
FILE = Path("model.bson")
RUN = Path("runs/elsewhere/sandwich-6-5-gamma3-seed7")
CELL = {"family": "sandwich", "size": "6-5", "gamma": 3, "seed": 7}
PARAMS = {
    "gamma": 1,
    "datasets": {"digits": {"source": "digits"}},
    "elsewhere": {
        "dataset": "digits",
        "architecture": "mlp",
        "families": ["sandwich"],
        "sizes": ["6-5"],
        "gammas": [3],
        "seeds": [7],
        "model": {"path": str(FILE), "sha256": ""},
        "lipschitz": {"pairs": 4, "steps": 2, "radius": 0.05, "learning_rate": 0.1, "seed": 0},
        "certify": {"radii_255": [36]},
    },
}


def network(*widths: int, gamma: float = 3.0, outputs: int = 10) -> Network:
    inputs, root = [64, *widths], gamma**0.5
    hidden = [SandwichFc(inputs[k], q, scale=1.0 if k else root) for k, q in enumerate(widths)]
    return perturb(Network([*hidden, SandwichLin(widths[-1], outputs, scale=root)], outputs=outputs, gamma=gamma))


def write_params(**changes: object) -> None:
    params = copy.deepcopy(PARAMS)
    params["elsewhere"] |= {"model": {"path": str(FILE), "sha256": digest()}} | changes
    Path("params.yaml").write_text(yaml.safe_dump(params))


def digest() -> str:
    return hashlib.sha256(FILE.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        FILE.touch()
        write_params()
        assert CliRunner().invoke(stages.prepare.main, ["digits"]).exit_code == 0
    return folder / "data"


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LBDN_TRACKING", "off")
    Path("data").symlink_to(prepared)
    write_lbdn(network(6, 5), FILE)
    write_params()


def run(stage, *arguments: object, **options: object) -> Result:
    named = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    return CliRunner().invoke(stage.main, [*map(str, arguments), *named])


def refused(said: str, **changes: object) -> None:
    result = run(stages.adopt, "elsewhere", RUN, **CELL | changes)
    assert result.exit_code == 1
    assert said in result.output
    assert not RUN.exists()


def test_the_runs_network_computes_what_the_file_does():
    assert run(stages.adopt, "elsewhere", RUN, **CELL).exit_code == 0
    dataset, model = load_dataset(Path("data/prepared/digits")), read_lbdn(FILE)
    images = torch.tensor(dataset.test_inputs)
    logits = predict(load_run(RUN), images)
    assert torch.equal(logits, predict(model, images))
    assert load_run(RUN).gamma == model.gamma
    accuracy = (logits.argmax(1).numpy() == dataset.test_targets).mean()
    assert pd.read_csv(RUN / "history.csv").to_dict("records") == [{"epoch": 0, "test_accuracy": accuracy}]
    description = read_description(RUN)
    assert description["model"] == {"path": str(FILE), "sha256": digest()}
    assert description["gamma"] == 3.0
    assert "training" not in description


def test_it_is_bounded_certified_and_listed_like_any_run(capsys):
    assert run(stages.adopt, "elsewhere", RUN, **CELL).exit_code == 0
    for stage in (stages.lipschitz, stages.certify):
        assert run(stage, RUN, device="cpu").exit_code == 0
    assert verify([str(RUN)]) == 0
    for stage, experiments in ((stages.plan, ()), (stages.report, ("elsewhere",)), (stages.page, ("elsewhere",))):
        assert run(stage, *experiments).exit_code == 0
    metrics = json.loads(Path("reports/metrics/elsewhere.json").read_text())["elsewhere"]["sandwich"]
    assert set(metrics) == {"clean", "certified_72", "tightness"}
    page = Path("reports/report.html").read_text()
    assert "trained elsewhere, from the file model.bson" in page
    assert "learning-curves" not in page


def test_it_is_listed_without_any_evaluation():
    write_params(lipschitz=None, certify=None)
    for stage, arguments in ((stages.adopt, ("elsewhere", RUN)), (stages.plan, ()), (stages.report, ("elsewhere",))):
        assert run(stage, *arguments, **(CELL if stage is stages.adopt else {})).exit_code == 0
    assert len(pd.read_csv("reports/tables/elsewhere/accuracy.csv")) == 1


def test_a_missing_file_or_another_one_is_refused_with_what_to_do():
    write_lbdn(network(6, 5), FILE)
    refused(f"model.bson has SHA-256 {digest()}, elsewhere.model.sha256 in params.yaml is")
    FILE.unlink()
    refused("no model.bson, the elsewhere.model of params.yaml; put the file there, or empty elsewhere.seeds")


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"gamma": 3.001}, "holds a network of gamma 3.0000000"),
        ({"gamma": "none"}, "not of None; change params.yaml"),
        (
            {"size": "6-6"},
            "but params.yaml describes SandwichFc of 64 inputs, SandwichFc of 6 inputs, SandwichLin of 6",
        ),
        ({"size": "6"}, "holds SandwichFc of 64 inputs, SandwichFc of 6 inputs, SandwichLin of 5 inputs, 10 outputs"),
        ({"family": "orthogonal"}, "but params.yaml describes OrthogonalFc of 64 inputs"),
        ({"size": "huge"}, "no size 'huge' of mlp"),
    ],
)
def test_another_network_than_the_cells_is_refused(cell, said):
    refused(said, **cell)


def test_the_same_weights_in_another_network_are_refused(monkeypatch):
    """Names and shapes don't tell activations or scales apart; outputs do."""
    build = stages.adopt.build_network

    def other(*args, **kwargs):
        built = build(*args, **kwargs)
        built.body[1].activation = torch.nn.Tanh()
        return built

    monkeypatch.setattr(stages.adopt, "build_network", other)
    refused("computes something else")


def test_each_command_refuses_the_others_experiments():
    assert "trains nothing; run stages.adopt" in run(stages.train, "elsewhere", RUN, **CELL, device="cpu").output
    training = {"loss": {"name": "cross-entropy"}, "epochs": 1, "batch_size": 100, "learning_rate": 0.01}
    write_params(model=None, training=training)
    refused("params.yaml has no elsewhere.model; run stages.train")


def test_without_pymongo_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bson", None)
    monkeypatch.delitem(sys.modules, "bson.int64", raising=False)
    refused("pip install pymongo")


def test_it_has_a_run_in_mlflow_like_any_other(monkeypatch, tmp_path):
    monkeypatch.delenv("LBDN_TRACKING")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert run(stages.adopt, "elsewhere", RUN, **CELL).exit_code == 0
    assert run(stages.certify, RUN, device="cpu").exit_code == 0
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    (only,) = client.search_runs([client.get_experiment_by_name("elsewhere").experiment_id])
    assert only.info.status == "FINISHED"
    assert only.data.params["model.sha256"] == digest()
    assert only.data.metrics["accuracy_clean"] == only.data.metrics["test_accuracy"]
