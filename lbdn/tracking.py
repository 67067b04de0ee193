"""One MLflow run a model, from training through every evaluation.

The store is ``MLFLOW_TRACKING_URI``, by default a SQLite file ``mlflow.db`` at the root of the main checkout, also when
DVC runs an experiment in a temporary copy. ``LBDN_TRACKING=off`` switches tracking off. A training finds its run by
what it trains, an evaluation by the digest of the weights; nothing of MLflow is kept in the files of the study.
"""

import csv
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from filelock import FileLock

from lbdn.extras import require
from lbdn.runs import weights_digest

IDENTITY, WEIGHTS = "lbdn.identity", "lbdn.weights"
FLUSH_SECONDS = 5.0


class Log:
    """What a stage writes to its model's run; without a client, nothing.

    A store that fails after it has answered once costs a warning, not the work that is being logged.
    """

    def __init__(self, client: Any = None, run: Any = None) -> None:
        self._client, self._run = client, run
        self._rows: list[tuple[int, int, dict[str, float]]] = []
        self._flushed = time.monotonic()
        self._last_step = 0
        if run is not None and "train_loss" in run.data.metrics:
            self._last_step = max(m.step for m in client.get_metric_history(run.info.run_id, "train_loss"))

    def epoch(self, row: Mapping[str, float], seconds: float | None = None) -> None:
        """Write an epoch's row of the history and its time; rows that the run has already are left out."""
        step = int(row["epoch"])
        if step > self._last_step:
            self._last_step = step
            values = {name: value for name, value in row.items() if name != "epoch"}
            if seconds is not None:
                values["epoch_seconds"] = seconds
            self._rows.append((_milliseconds(), step, values))
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self.flush()

    def metrics(self, metrics: Mapping[str, float | None]) -> None:
        """Write final figures; None is left out."""
        self._rows.append((_milliseconds(), 0, {k: v for k, v in metrics.items() if v is not None}))

    def tags(self, tags: Mapping[str, Any]) -> None:
        """Write settings that a later evaluation of the same model may change."""
        if self._client is not None:
            for key, value in flatten(tags).items():
                self._attempt(self._client.set_tag, self._run.info.run_id, key, value)

    def finish_training(self, digest: str) -> None:
        """Mark the run as the one of the model with these weights."""
        self.tags({WEIGHTS: digest})

    def flush(self) -> None:
        """Send what has been collected."""
        rows, self._rows, self._flushed = self._rows, [], time.monotonic()
        if self._client is None or not rows:
            return
        from mlflow.entities import Metric

        metrics = [Metric(k, float(v), stamp, step) for stamp, step, row in rows for k, v in row.items()]
        for start in range(0, len(metrics), 1000):  # the most that one request takes
            self._attempt(self._client.log_batch, self._run.info.run_id, metrics=metrics[start : start + 1000])

    def status(self, status: str) -> None:
        """Set the run's status: RUNNING, or FINISHED or FAILED, which end it."""
        if self._client is not None:
            change = self._client.update_run if status == "RUNNING" else self._client.set_terminated
            self._attempt(change, self._run.info.run_id, status=status)

    def _attempt(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        try:
            call(*arguments, **options)
        except Exception as error:  # whatever the store's driver raises
            logging.getLogger(__name__).warning("MLflow did not take this: %s", _first_line(error))


@contextmanager
def training_run(description: Mapping[str, Any], identity: Mapping[str, Any]) -> Iterator[Log]:
    """Yield the log of a model's training: a new run, or the one that an interrupted training began.

    The run ends as FINISHED, or as FAILED if the block raises.

    Args:
        description: of the model, whose entries become the run's parameters.
        identity: what makes this training the same as an interrupted one.

    Raises:
        ConnectionError: before the block starts, if the store can't be reached.
    """
    store = _connect(description["experiment"])
    if store is None:
        yield Log()
        return
    client, experiment = store
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    begun = _search(client, experiment, IDENTITY, digest)
    unfinished = [run for run in begun if WEIGHTS not in run.data.tags]
    run = unfinished[0] if unfinished else _create(client, experiment, description, {IDENTITY: digest})
    with _open(client, run) as log:
        yield log


@contextmanager
def evaluation_run(folder: Path, description: Mapping[str, Any]) -> Iterator[Log]:
    """Yield the log of an evaluation, in the run in which the folder's model was trained.

    A model that was trained elsewhere, or taken from DVC's cache, gets a run of its own with its learning curve.

    Raises:
        ConnectionError: before the block starts, if the store can't be reached.
    """
    store = _connect(description["experiment"])
    if store is None:
        yield Log()
        return
    client, experiment = store
    digest = weights_digest(folder)
    runs = _search(client, experiment, WEIGHTS, digest)
    run = runs[0] if runs else _create(client, experiment, description, {WEIGHTS: digest})
    with _open(client, run) as log:
        if not runs:
            with (folder / "history.csv").open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    log.epoch({key: float(value) for key, value in row.items()})
        yield log


def store_uri() -> str:
    """Return where runs are kept."""
    root = Path(os.environ.get("DVC_ROOT", ".")).resolve()
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as one level with dotted keys.

    >>> flatten({"loss": {"name": "mse"}, "epochs": 3})
    {'loss.name': 'mse', 'epochs': '3'}
    """
    flat: dict[str, str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = str(value)
    return flat


def _connect(experiment: str) -> tuple[Any, str] | None:
    """Return a client and the experiment's id, or None where tracking is off."""
    if os.environ.get("LBDN_TRACKING", "on").lower() in ("off", "0", "false", "no"):
        return None
    for name, value in {"MAX_RETRIES": "1", "TIMEOUT": "10"}.items():  # MLflow's own wait for minutes
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    require("tracking, unless LBDN_TRACKING=off,", "study", "mlflow")
    from mlflow.tracking import MlflowClient

    uri = store_uri()
    local = Path(uri.removeprefix("sqlite:///")).resolve() if uri.startswith("sqlite:///") else None
    try:
        # Two processes must not both create the tables or the experiment.
        with FileLock(f"{local}.lock") if local else nullcontext():
            client = MlflowClient(uri)
            found = client.get_experiment_by_name(experiment)
            if found is not None:
                return client, found.experiment_id
            artifacts = (local.parent / "mlartifacts" / experiment).as_uri() if local else None
            return client, client.create_experiment(experiment, artifact_location=artifacts)
    except Exception as error:  # whatever the store's driver raises
        raise ConnectionError(
            f"the MLflow store {uri} can't be reached: {_first_line(error)}. Set MLFLOW_TRACKING_URI to one that "
            f"can, or LBDN_TRACKING=off to work without"
        ) from error


def _search(client: Any, experiment: str, tag: str, value: str) -> list[Any]:
    return client.search_runs([experiment], f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time DESC"])


def _create(client: Any, experiment: str, description: Mapping[str, Any], tags: dict[str, str]) -> Any:
    from mlflow.entities import Param

    gamma = "none" if description["gamma"] is None else f"{description['gamma']:g}"
    name = "{family}-{size}-gamma{0}-seed{seed}".format(gamma, **description)
    run = client.create_run(experiment, run_name=name, tags=tags)
    network = {key: value for key, value in description.get("network", {}).items() if key not in description}
    settings = flatten({**description, "network": network})
    params = [Param(key, value) for key, value in settings.items()]
    client.log_batch(run.info.run_id, params=params)
    return client.get_run(run.info.run_id)


@contextmanager
def _open(client: Any, run: Any) -> Iterator[Log]:
    log = Log(client, run)
    log.status("RUNNING")
    status = "FAILED"
    try:
        yield log
        status = "FINISHED"
    finally:
        log.flush()
        log.status(status)


def _milliseconds() -> int:
    return int(time.time() * 1000)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
