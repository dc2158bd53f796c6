"""MLflow, with its local file store: `mlflow ui --backend-store-uri RUN/mlruns` shows it. No server, no telemetry.

The store is text: a file a metric, a line "TIMESTAMP VALUE STEP" a row. MLflow cannot drop steps, so a resumed run cuts
the lines of those that it computes again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpc_es.config.schema import Mlflow, Report
from hpc_es.core.paths import config_directory
from hpc_es.report.loggers.loggers import LoggedRun, Param, Started, Status, metrics, step
from hpc_es.storage.metrics_log import Row

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # newer versions refuse file stores without it
}
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
PARAMS_A_BATCH = 100  # MLflow's limit


def make(report: Report) -> MLflow:
    """Return the logger."""
    return MLflow(report.mlflow)


class MLflow:
    """One MLflow run for one run; its id is MLflow's."""

    _client: Any
    _id: str

    def __init__(self, options: Mlflow) -> None:
        self._options = options

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        """Make the run, or cut the one of that id; one that is not in the store (any more) is made anew."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        own = self._options.directory
        store = config_directory() / own if own else run.directory.resolve() / "mlruns"
        store.parent.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=store.as_uri(), registry_uri=store.as_uri())
        with _locked(store.parent):  # runs that share the store may all want to make its experiment
            found = self._found(run_id) if run_id else None
            if found is None:
                self._id = self._new(run)
                return Started(self._id, 0)
        self._id = found.run_id
        self._client.update_run(self._id, status="RUNNING")
        folder = store / found.experiment_id / self._id / "metrics"
        return Started(self._id, cut(folder, cut(folder, first) - 1))  # the last row may be there in part

    def write(self, row: Row) -> None:
        """Append a line to the file of each metric."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(
            self._id, metrics=[Metric(name, float(value), now, step(row)) for name, value in metrics(row).items()]
        )

    def close(self, status: Status) -> None:
        """Set MLflow's status of the run."""
        self._client.set_terminated(self._id, STATUS[status])

    def _found(self, run_id: str) -> Any:
        """Return what MLflow knows of a run; None if it is not in the store, or in its trash."""
        from mlflow.exceptions import MlflowException

        try:
            info = self._client.get_run(run_id).info
        except MlflowException:
            return None
        return info if info.lifecycle_stage == "active" else None

    def _new(self, run: LoggedRun) -> str:
        from mlflow.entities import Param as MlflowParam

        name = self._options.experiment
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        made = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        params = [MlflowParam(_key(key), _text(value)) for key, value in run.params.items()]
        for start in range(0, len(params), PARAMS_A_BATCH):
            self._client.log_batch(made, params=params[start : start + PARAMS_A_BATCH])
        return made


def cut(folder: Path, first: int) -> int:
    """Drop the steps from `first` on of all metrics in a folder of the store; return the step after the last one."""
    after = 0
    for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        length = 0
        for line in path.read_bytes().splitlines(keepends=True):
            fields = line.split()
            if len(fields) != 3 or not line.endswith(b"\n") or int(fields[2]) >= first:  # or cut off by a kill
                break
            length, after = length + len(line), max(after, int(fields[2]) + 1)
        if length:
            os.truncate(path, length)
        else:
            path.unlink()  # MLflow cannot read a metric without a line
    return after


def _key(name: str) -> str:
    """Return a name with the signs only that MLflow allows."""
    return re.sub(r"[^\w./ :-]", "_", name)


def _text(value: Param) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Be alone with a directory among processes that call this, where its file system knows locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
