"""Weights & Biases, offline: `wandb sync RUN/wandb/offline-run-*` uploads a run when the user wants it.

W&B cannot resume an offline run: a second directory of the same id replaces the first one on the server. So a resumed
run writes all rows again into a new directory of the same id, and removes the old ones.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

from hpc_es.config.registry import config_directory
from hpc_es.config.schema import Report, Wandb
from hpc_es.core.data import JsonObject
from hpc_es.report.loggers import LoggedRun, Started, Status, metrics, step
from hpc_es.storage.metrics_log import Row


def make(report: Report) -> WeightsAndBiases:
    """Return the logger."""
    return WeightsAndBiases(report.wandb)


class WeightsAndBiases:
    """Records a run as one W&B run, whose id goes into checkpoints. WANDB_MODE, if set, replaces "offline"."""

    _run: Any
    _directory: Path

    def __init__(self, options: Wandb) -> None:
        self._options = options

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        del first  # all rows are written again
        own = self._options.directory
        directory = self._directory = config_directory() / own if own else run.directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # telemetry, read when wandb is imported
        os.environ.setdefault("WANDB_CACHE_DIR", str(directory / "wandb" / "cache"))  # logs, not in $HOME
        import wandb

        # The id is in the names of the files; the name of the directory may have a suffix.
        files = sorted((directory / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))
        old_directories = [file.parent for file in files]
        self._run = wandb.init(
            project=self._options.project,
            name=run.name,
            id=run_id,
            dir=str(directory),
            config=dict(run.params),
            mode=os.environ.get("WANDB_MODE") or "offline",
            settings=wandb.Settings(**_quiet()),
        )
        for path in old_directories:
            shutil.rmtree(path)
        return Started(str(self._run.id), 0)

    def write(self, row: Row) -> None:
        self._run.log(metrics(row), step=step(row))
        self._require_space()

    def close(self, status: Status) -> None:
        # Waits until the process of W&B has written all rows; its only states are "finished" and "failed".
        self._run.finish(exit_code=int(status != "finished"))
        self._require_space()

    def _require_space(self) -> None:
        """Raise OSError if the disk is full, which the process of W&B does not report."""
        if os.statvfs(self._directory).f_bavail == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))


def _quiet() -> JsonObject:
    """Return settings with which W&B logs only the rows: no console, code, git, machine or packages."""
    off = ("disable_git", "disable_code", "disable_job_creation", "x_disable_stats", "x_disable_meta")
    return {
        **dict.fromkeys((*off, "x_disable_machine_info", "silent"), True),
        "x_save_requirements": False,
        "console": "off",
        "reinit": "create_new",  # the calling program may have its own W&B run
    }
