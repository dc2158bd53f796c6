"""MLflow with its local file store, which `mlflow ui --backend-store-uri RUN/mlruns` opens; no server, no telemetry.

The store has one text file per metric, with one line "TIMESTAMP VALUE STEP" per row. MLflow cannot remove steps, so a
resumed run truncates the files at the first generation that it computes again.
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

from hpc_es.config.registry import config_directory
from hpc_es.config.schema import Mlflow, Report
from hpc_es.report.loggers import LoggedRun, Started, Status, metrics, step
from hpc_es.storage.metrics_log import Row

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # newer versions refuse file stores without it
}
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
PARAMS_PER_BATCH = 100  # the limit of MLflow


def make(report: Report) -> MLflow:
    """Return the logger."""
    return MLflow(report.mlflow)


class MLflow:
    """Records a run as one MLflow run, whose id goes into checkpoints."""

    _client: Any
    _id: str

    def __init__(self, options: Mlflow) -> None:
        self._options = options

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        """Create an MLflow run, also if the one of this id is no longer in the store, or truncate the existing one."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        directory = self._options.directory
        store = config_directory() / directory if directory else run.directory.resolve() / "mlruns"
        store.parent.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=store.as_uri(), registry_uri=store.as_uri())
        with _locked(store.parent):  # runs that share a store must not create its experiment twice
            existing = self._existing(run_id) if run_id else None
            if existing is None:
                self._id = self._create(run)
                return Started(self._id, 0)
        self._id = existing.run_id
        self._client.update_run(self._id, status="RUNNING")
        folder = store / existing.experiment_id / self._id / "metrics"
        last = truncate(folder, first) - 1
        return Started(self._id, truncate(folder, last))  # the last row may be incomplete

    def write(self, row: Row) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(
            self._id, metrics=[Metric(name, float(value), now, step(row)) for name, value in metrics(row).items()]
        )

    def close(self, status: Status) -> None:
        self._client.set_terminated(self._id, STATUS[status])

    def _existing(self, run_id: str) -> Any:
        """Return MLflow's record of a run; None if it is not in the store, or in its trash."""
        from mlflow.exceptions import MlflowException

        try:
            info = self._client.get_run(run_id).info
        except MlflowException:
            return None
        return info if info.lifecycle_stage == "active" else None

    def _create(self, run: LoggedRun) -> str:
        from mlflow.entities import Param as MlflowParam

        name = self._options.experiment
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run_id = str(self._client.create_run(experiment_id, run_name=run.name).info.run_id)
        params = []
        for key, value in run.params.items():
            allowed = re.sub(r"[^\w./ :-]", "_", key)  # the characters that MLflow allows
            params.append(MlflowParam(allowed, value if isinstance(value, str) else json.dumps(value)))
        for start in range(0, len(params), PARAMS_PER_BATCH):
            self._client.log_batch(run_id, params=params[start : start + PARAMS_PER_BATCH])
        return run_id


def truncate(folder: Path, first: int) -> int:
    """Remove the steps from `first` on of all metrics in a folder of the store; return the step after the last one."""
    next_step = 0
    for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        length = 0
        for line in path.read_bytes().splitlines(keepends=True):
            fields = line.split()
            if len(fields) != 3 or not line.endswith(b"\n") or int(fields[2]) >= first:  # or an incomplete line
                break
            length, next_step = length + len(line), max(next_step, int(fields[2]) + 1)
        if length:
            os.truncate(path, length)
        else:
            path.unlink()  # MLflow cannot read a metric without a line
    return next_step


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold an exclusive lock on a directory, if its file system supports locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
