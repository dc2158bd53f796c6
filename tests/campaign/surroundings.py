"""Events in the surroundings of a run: disks, quotas, clocks, objectives and environments."""

from __future__ import annotations

import resource
import signal
import time
from pathlib import Path

from tests.campaign.clock import FAR_SECONDS, change_times
from tests.campaign.disk import covered
from tests.campaign.life import INTERRUPTED, LateError, WrongError
from tests.campaign.scene import Scene

APART_SECONDS = 0.8  # more than guard.REPEAT_SECONDS
FAULT_SECONDS = 2.0


def closed_errors(scene: Scene) -> None:
    """Start the ranks without standard error, and stop them."""
    with scene.life(has_errors=False) as life:
        scene.instant(life, early=False)
        life.stopped()


def file_limit(scene: Scene) -> None:
    """Limit the size of files that rank 0 writes, as a quota does."""
    with scene.life() as life:
        scene.instant(life, early=False)
        largest = max((path.stat().st_size for path in scene.checkpoints()), default=10_000)
        limit = scene.dice.randint(0, largest)
        try:
            resource.prlimit(
                life.job.pids()[0], resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)
            )
        except (KeyError, ProcessLookupError):
            life.late()
        life.ended({1}, "File too large")


def failing_calls(scene: Scene) -> None:
    """Let a system call on a file of the run fail: the run goes on, or ends with a message."""
    with scene.life() as life:
        scene.instant(life, early=False)
        with scene.calls.failing(scene.dice) as fault:
            try:
                life.survived(FAULT_SECONDS)
            except WrongError as error:
                raise WrongError(f"{fault}: {error}") from error
            hits = scene.calls.hits
    if not hits:
        raise LateError


def few_descriptors(scene: Scene) -> None:
    """Take the descriptors of rank 0 away: it cannot open another file."""
    with scene.life() as life:
        scene.instant(life, early=False)
        try:
            pid = life.job.pids()[0]
            used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
            resource.prlimit(
                pid, resource.RLIMIT_NOFILE, (used, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            )
        except (KeyError, OSError):
            life.late()
        life.survived(FAULT_SECONDS)


def full_disk(scene: Scene) -> None:
    """Fill the disk while the run writes."""
    with scene.life() as life:
        scene.instant(life, early=False)
        with scene.disk.full(scene.dice):
            life.ended({1}, "No space left on device")


def read_only_disk(scene: Scene) -> None:
    """Make the disk read-only before the start."""
    with scene.disk.read_only(), scene.life() as life:
        life.ended({1, 2}, "Read-only file system")


def read_only_checkpoints(scene: Scene) -> None:
    """Make the directory of the checkpoints read-only."""
    with scene.life() as life:
        scene.instant(life, early=False)
        if not scene.checkpoints():
            raise LateError
        with covered(scene.checkpoints()[-1].parent):
            # caught in a write, the half-written file is not found any more
            life.ended({1}, "cannot be written")


def clock_jump(scene: Scene) -> None:
    """Change the clock during a life, and back after it; files have times of both."""
    seconds = scene.dice.choice(FAR_SECONDS)
    with scene.life() as life:
        scene.instant(life)
        scene.clock.jump(seconds)
        try:
            life.stopped()
        finally:
            scene.clock.jump(0)
            change_times(scene.output, seconds)


def troubled(scene: Scene, what: str) -> None:
    """Make objective or environment return NaN or raise,
    which ends the run according to the config.
    """
    with scene.life() as life:
        scene.instant(life, early=False)
        with scene.trouble(what):
            life.ended({1}, scene.setting.troubled[what])


def hanging(scene: Scene) -> None:
    """Make them hang: a limit of the config or, without one, a second signal ends the run."""
    overrides = scene.setting.when_hanging
    signals = bool(overrides) and scene.dice.random() < 0.5
    with scene.life(*(() if signals else overrides)) as life:
        scene.instant(life, early=False)
        with scene.trouble("hang"):
            if not signals:
                life.ended({1}, scene.setting.troubled["hang"])
            else:
                for number in (signal.SIGTERM, signal.SIGUSR1):
                    time.sleep(APART_SECONDS)
                    life.send(life.job.pids().values(), number)
                life.ended({INTERRUPTED}, "given up")
