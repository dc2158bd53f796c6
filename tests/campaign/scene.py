"""The scene of an event: a run of a setting, at a random time."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from tests.campaign.calls import Calls
from tests.campaign.clock import Clock
from tests.campaign.disk import Disk
from tests.campaign.life import Life
from tests.campaign.preloaded import joined
from tests.campaign.settings import Setting
from tests.campaign.trouble import VARIABLE
from tests.helpers import runs
from tests.helpers.harness import ROOT, start

STARTUP = Path(__file__).parent / "startup"
START_SECONDS = 1.5  # imports and MPI take about so long
WRITING_SECONDS = 0.5


class Scene:
    """The run directories of a case, and the start of their next life."""

    def __init__(
        self, directory: Path, setting: Setting, dice: random.Random, disk: Disk, clock: Clock
    ) -> None:
        self.directory, self.setting, self.dice, self.disk, self.clock = (
            directory,
            setting,
            dice,
            disk,
            clock,
        )
        self.calls = Calls(directory)
        self.output = disk.directory / "run"
        self.is_early = False  # the instant lay before the first generation of this life
        self.said = ""  # by the last life
        self.ranks = 0

    @property
    def places(self) -> list[Path]:
        """The run directories."""
        return [self.output / name for name in self.setting.places]

    def generation(self) -> int:
        """Number of recorded generations, of all repetitions."""
        return sum(runs.generation(index) for index in self.places)

    def checkpoints(self) -> list[Path]:
        """All checkpoints from which the run can resume, the newest of each run directory last."""
        return [
            path
            for index in self.places
            for path in sorted(index.glob("checkpoints/checkpoint_*.h5"))
        ]

    @contextlib.contextmanager
    def life(
        self, *overrides: str, least_ranks: int = 1, has_errors: bool = True
    ) -> Iterator[Life]:
        """A running job; all its processes end with the block.

        Without `has_errors` it has no standard error.
        """
        choices = range(max(least_ranks, self.setting.groups), self.setting.most_ranks + 1)
        self.ranks = self.dice.choices(choices, [1 / count for count in choices])[0]
        arguments = [
            "-m",
            "hpc_es.main",
            str(self.directory / "config.yaml"),
            "--output",
            str(self.output),
            *overrides,
        ]
        environment = {
            VARIABLE: str(self.directory),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(STARTUP)]),
            **({} if has_errors else {"HPC_ES_CAMPAIGN_CLOSED": "yes"}),
            **joined(self.clock.environment(), self.calls.environment(self.output)),
        }
        with start(self.ranks, arguments, environment, ROOT) as job:
            life = Life(job)
            try:
                yield life
            finally:
                self.said = life.output

    def instant(self, life: Life, early: bool = True) -> None:
        """Wait for a random time: during the start, in some generation,
        or while a checkpoint is written.
        """
        what = self.dice.choices(["start", "generation", "write"], [15 if early else 0, 60, 25])[0]
        self.is_early = what == "start"
        if what == "start":
            time.sleep(self.dice.uniform(0, START_SECONDS))
            return
        before = self.generation()
        further = self.dice.randint(1, max(1, self.setting.values["stop"]["generations"] // 8))
        life.wait_for(lambda: "rank=host:pid" in life.job.stdout)
        life.wait_for(lambda: self.generation() >= before + further)
        if what == "write":
            limit = time.monotonic() + WRITING_SECONDS
            while not self._writing() and time.monotonic() < limit:
                pass
        else:
            time.sleep(self.dice.uniform(0, 0.03))

    def _writing(self) -> bool:
        return any(next(index.glob("checkpoints/.*"), None) for index in self.places)

    @contextlib.contextmanager
    def trouble(self, what: str) -> Iterator[None]:
        """Cause this failure of objectives and environments within the block."""
        path = self.directory / "trouble"
        path.with_suffix(".new").write_text(what)
        path.with_suffix(".new").replace(path)
        try:
            yield
        finally:
            path.unlink()
