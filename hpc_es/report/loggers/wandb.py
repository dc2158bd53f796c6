"""Weights & Biases, offline: `wandb sync RUN/wandb/offline-run-*` sends it to a server, if and when you want that.

W&B cannot go on with an offline run: a second directory of the same id replaces the first one on the server. So a
resumed run writes all rows again into a new directory of the same id, and removes the old ones.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

from hpc_es.config.schema import Report, Wandb
from hpc_es.core.paths import config_directory
from hpc_es.report.loggers.loggers import LoggedRun, Started, Status, metrics, step
from hpc_es.storage.metrics_log import Row


def make(report: Report) -> WeightsAndBiases:
    """Return the logger."""
    return WeightsAndBiases(report.wandb)


class WeightsAndBiases:
    """One W&B run for one run; its id is W&B's. WANDB_MODE, if it is set, takes the place of offline."""

    _run: Any
    _place: Path

    def __init__(self, options: Wandb) -> None:
        self._options = options

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        """Begin a directory for all rows, whatever `first` is."""
        del first
        own = self._options.directory
        place = self._place = config_directory() / own if own else run.directory.resolve()
        place.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # telemetry, read when wandb is imported
        os.environ.setdefault("WANDB_CACHE_DIR", str(place / "wandb" / "cache"))  # its logs; nothing in the home
        import wandb

        old = _offline_directories(place, run_id)
        self._run = wandb.init(
            project=self._options.project,
            name=run.name,
            id=run_id,
            dir=str(place),
            config=dict(run.params),
            mode=os.environ.get("WANDB_MODE") or "offline",
            settings=wandb.Settings(**_quiet()),
        )
        for directory in old:
            shutil.rmtree(directory)
        return Started(str(self._run.id), 0)

    def write(self, row: Row) -> None:
        """Hand a row to W&B's process, which writes it."""
        self._run.log(metrics(row), step=step(row))
        self._require_space()

    def close(self, status: Status) -> None:
        """Wait until W&B's process has written all; W&B knows "finished" and "failed" only."""
        self._run.finish(exit_code=int(status != "finished"))
        self._require_space()

    def _require_space(self) -> None:
        """Raise OSError where the disk is full, which W&B's process keeps to itself."""
        if os.statvfs(self._place).f_bavail == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._place))


def _quiet() -> dict[str, Any]:
    """Settings by which W&B logs what it is given and nothing else: no console, code, git, machine or packages."""
    off = ("disable_git", "disable_code", "disable_job_creation", "x_disable_stats", "x_disable_meta")
    return {
        **dict.fromkeys((*off, "x_disable_machine_info", "silent"), True),
        "x_save_requirements": False,
        "console": "off",
        "reinit": "create_new",  # the caller's program may have a W&B run of its own
    }


def _offline_directories(place: Path, run_id: str | None) -> list[Path]:
    """Those of a run: the id is not always the end of the name (two starts in one second), but that of the file."""
    return [file.parent for file in sorted((place / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))]
