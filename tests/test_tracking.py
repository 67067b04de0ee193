import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock, Timeout
from mlflow.tracking import MlflowClient

from lbdn import tracking

DESCRIPTION = {
    "experiment": "study",
    "family": "sandwich",
    "size": "tiny",
    "gamma": 2.0,
    "seed": 1,
    "training": {"loss": {"name": "mse"}, "epochs": 3},
}

IDENTITY = {"code": "abc", "seed": 1}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("LBDN_TRACKING", raising=False)
    return uri


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "weights.pt").write_bytes(b"the weights")
    (folder / "history.csv").write_text("epoch,train_loss\n1,0.5\n2,0.25\n")
    return folder


def all_runs(uri: str) -> list:
    client = MlflowClient(uri)
    return client.search_runs([e.experiment_id for e in client.search_experiments()])


def curve(uri: str, run, name: str = "train_loss") -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in MlflowClient(uri).get_metric_history(run.info.run_id, name)]


def test_one_run_is_carried_from_training_through_evaluations(store, run_folder):
    with tracking.training_run(DESCRIPTION, IDENTITY) as log:
        for epoch in (1, 2):
            log.epoch({"epoch": epoch, "train_loss": 1 / epoch})
        log.finish_training(tracking.weights_digest(run_folder))
    with tracking.evaluation_run(run_folder, DESCRIPTION) as log:
        log.metrics({"accuracy_clean": 0.75, "tightness": None})
    (run,) = all_runs(store)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "sandwich-tiny-gamma2-seed1"
    assert run.data.params["training.loss.name"] == "mse"
    assert curve(store, run) == [(1, 1.0), (2, 0.5)]
    assert run.data.metrics["accuracy_clean"] == 0.75
    assert "tightness" not in run.data.metrics


def test_a_failure_leaves_the_run_failed_with_what_it_had(store):
    with pytest.raises(ZeroDivisionError), tracking.training_run(DESCRIPTION, IDENTITY) as log:
        log.epoch({"epoch": 1, "train_loss": 1.0})
        raise ZeroDivisionError
    (run,) = all_runs(store)
    assert run.info.status == "FAILED"
    assert curve(store, run) == [(1, 1.0)]


def test_epochs_are_sent_during_the_training_but_not_one_by_one(store, monkeypatch):
    with tracking.training_run(DESCRIPTION, IDENTITY) as log:
        (run,) = all_runs(store)
        for epoch, pause in enumerate((3600, -1, 3600), start=1):
            monkeypatch.setattr(tracking, "FLUSH_SECONDS", pause)
            log.epoch({"epoch": epoch, "train_loss": float(epoch)})
            assert curve(store, run) == ([] if epoch == 1 else [(1, 1.0), (2, 2.0)])


def test_more_figures_than_one_request_takes_are_sent_in_several():
    client, run = Mock(), Mock(**{"data.metrics": {}})
    log = tracking.Log(client, run)
    log.metrics({f"figure {i}": i for i in range(2001)})
    log.flush()
    sent = [call.kwargs["metrics"] for call in client.log_batch.call_args_list]
    assert [len(part) for part in sent] == [1000, 1000, 1]
    assert [metric.value for part in sent for metric in part] == list(range(2001))


def test_a_new_store_is_set_up_by_one_process_at_a_time(store, monkeypatch):
    lock = FileLock(store.removeprefix("sqlite:///") + ".lock")

    def alone(call):
        def checked(*args, **options):
            with pytest.raises(Timeout):
                lock.acquire(timeout=0)
            return call(*args, **options)

        return checked

    for name in ("get_experiment_by_name", "create_experiment"):
        monkeypatch.setattr(MlflowClient, name, alone(getattr(MlflowClient, name)))
    with tracking.training_run(DESCRIPTION, IDENTITY), lock.acquire(timeout=0):
        pass


def test_a_resumed_training_goes_on_in_its_run_without_repeating_epochs(store):
    for epochs in (2, 3):
        with pytest.raises(KeyboardInterrupt), tracking.training_run(DESCRIPTION, IDENTITY) as log:
            for epoch in range(1, epochs + 1):
                log.epoch({"epoch": epoch, "train_loss": float(epoch)})
            raise KeyboardInterrupt
    (run,) = all_runs(store)
    assert curve(store, run) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_training_with_other_code_or_data_gets_a_run_of_its_own(store):
    for code in ("old", "new"):
        with pytest.raises(KeyboardInterrupt), tracking.training_run(DESCRIPTION, {"code": code}) as log:
            log.epoch({"epoch": 1, "train_loss": 1.0})
            raise KeyboardInterrupt
    assert len(all_runs(store)) == 2


def test_a_store_that_fails_later_costs_a_warning_and_not_the_work(store, monkeypatch, caplog):
    with tracking.training_run(DESCRIPTION, IDENTITY) as log:
        for call in ("log_batch", "set_tag", "set_terminated"):
            monkeypatch.setattr(MlflowClient, call, lambda *_, **__: 1 / 0)
        log.epoch({"epoch": 1, "train_loss": 1.0})
        log.finish_training("digest")
    assert "MLflow did not take this" in caplog.text


def test_a_relative_store_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    with tracking.training_run(DESCRIPTION, IDENTITY):
        pass
    assert (tmp_path / "mlflow.db").exists()


def test_training_again_after_finishing_is_another_run(store):
    for _ in range(2):
        with tracking.training_run(DESCRIPTION, IDENTITY) as log:
            log.finish_training("digest")
    assert len(all_runs(store)) == 2


def test_a_model_from_elsewhere_gets_a_run_with_its_learning_curve(store, run_folder):
    for value in (0.5, 0.75):
        with tracking.evaluation_run(run_folder, DESCRIPTION) as log:
            log.metrics({"accuracy_clean": value})
    (run,) = all_runs(store)
    assert curve(store, run) == [(1, 0.5), (2, 0.25)]
    assert run.data.metrics["accuracy_clean"] == 0.75


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:////proc/nowhere/mlflow.db"])
def test_a_store_out_of_reach_stops_before_the_work_with_advice(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match="LBDN_TRACKING=off"), tracking.training_run(DESCRIPTION, IDENTITY):
        pytest.fail("the block must not start")
    assert time.monotonic() - start < 30


def test_without_mlflow_an_error_says_what_to_install_and_how_to_do_without(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    message = r"unless LBDN_TRACKING=off, needs mlflow: pip install '\.\[study\]'"
    with pytest.raises(ModuleNotFoundError, match=message), tracking.training_run(DESCRIPTION, IDENTITY):
        pytest.fail("the block must not start")


def test_tracking_off_writes_nothing(store, monkeypatch, run_folder):
    monkeypatch.setenv("LBDN_TRACKING", "off")
    with tracking.training_run(DESCRIPTION, IDENTITY) as log:
        log.epoch({"epoch": 1, "train_loss": 1.0})
        log.finish_training("digest")
    with tracking.evaluation_run(run_folder, DESCRIPTION) as log:
        log.metrics({"accuracy_clean": 1.0})
    assert not Path(store.removeprefix("sqlite:///")).exists()


def test_the_default_store_is_in_the_main_checkout_also_from_a_copy(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert tracking.store_uri() == f"sqlite:///{tmp_path / 'mlflow.db'}"
