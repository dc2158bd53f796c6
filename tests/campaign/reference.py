"""The undisturbed run of a setting, made once, and what another run must have in common with it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.errors import CheckpointError
from hpc_es.storage import answers
from tests.campaign.settings import Setting
from tests.helpers import runs
from tests.helpers.harness import ROOT, start

CLOCK = ("seconds", "loggers")
GROWING = ("evaluations.csv", "programs.jsonl")


class Reference:
    """The undisturbed run on one rank, with the digest of each generation."""

    def __init__(self, directory: Path, setting: Setting) -> None:
        text = json.dumps(setting.values, indent=1)
        self._setting = setting
        self.run = directory / hashlib.sha256(text.encode()).hexdigest()[:12]
        self._digests = self.run / "digests.json"
        if not self._digests.exists():
            self._make(text)
        self.digests: dict[str, dict[str, str]] = json.loads(self._digests.read_text())

    def _make(self, text: str) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        config = self.run.with_suffix(".yaml")
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(text)
        plain = (
            *runs.EVERY,
            "checkpoint.full_interval=0",
            "mpi.update=gathered",
            "repetition_groups=1",
        )
        arguments = ["-m", "hpc_es.main", str(config), "--output", str(self.run), *plain]
        with start(1, arguments, cwd=ROOT) as job:
            done = job.wait(300)
        if done.status != 0:
            raise RuntimeError(f"the undisturbed run of {config} failed: {done}")
        digests = {name: runs.digests(self.run / name) for name in self._setting.places}
        self._digests.write_text(json.dumps(digests))

    def strange(self, output: Path) -> str:
        """Differences between the newest checkpoints and the undisturbed run,
        empty if there are none.
        """
        if not self._setting.reproducible:
            return ""
        for name in self._setting.places:
            try:
                newest = runs.newest(output / name)
            except CheckpointError:
                continue  # it has none yet
            if self.digests[name].get(str(newest.state.generation)) != runs.digest(newest):
                return f"the state of generation {newest.state.generation} in {name or 'the run'}"
        return ""

    def different(self, output: Path) -> list[str]:
        """Differences between the files of a finished run and those of the undisturbed run."""
        return [
            text
            for name in self._setting.places
            for text in self._differing(output / name, self.run / name)
        ]

    def _differing(self, run: Path, reference: Path) -> Iterator[str]:
        newest = runs.newest(run)
        generations = self._setting.values["stop"]["generations"]
        if newest.state.generation != generations or [
            row["generation"] for row in runs.rows(run)
        ] != [*range(generations)]:
            yield "the number of generations"
        if left := [path.name for path in run.rglob(".*") if ".tmp" in path.name]:
            yield f"leftovers {left}"
        if runs.status(run)["status"] != "finished":
            yield "status.json"
        if not self._setting.reproducible:
            if not np.isfinite(newest.state.theta).all():
                yield "a theta that is not finite"
            return
        if runs.digest(newest) != runs.digest(runs.newest(reference)):
            yield "the state"
        if runs.rows(run) != runs.rows(reference):
            yield "metrics.jsonl"
        if runs.table(run) != runs.table(reference):
            yield "log.csv"
        for name in GROWING:
            if _bytes(run / name) != _bytes(reference / name):
                yield name
        if _result(run) != _result(reference):
            yield answers.RESULT


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _result(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / answers.RESULT).read_text())
    return {name: value for name, value in result.items() if name not in CLOCK}
