"""Events for the processes of a run: kills, signals, a pause, a rival.

Each gets the scene and raises WrongError if the program does not behave as documented. A life that
ends with status 0 is not an error: it was over before the event came (LateError).
"""

from __future__ import annotations

import signal
import time

from tests.campaign.life import INTERRUPTED, LateError, WrongError, sent
from tests.campaign.scene import Scene


def killed(scene: Scene, who: str) -> None:
    """Send SIGKILL to one or all ranks: the job must end, with or without a message."""
    with scene.life(least_ranks=2 if who == "worker" else 1) as life:
        life.wait_for_ranks(scene.ranks)
        scene.instant(life)
        ranks = life.job.pids()
        if who == "launcher":
            life.send([life.job.process.pid], signal.SIGKILL)
        elif who == "all":
            life.send([life.job.process.pid, *life.job.alive()], signal.SIGKILL)
        else:
            whom = [pid for rank, pid in ranks.items() if (rank == 0) == (who == "rank 0")]
            life.send([scene.dice.choice(whom)] if whom else [], signal.SIGKILL)
        status = life.end()
        if status == 0:
            raise LateError
        if status == INTERRUPTED:
            raise WrongError("killed, but the status is 75")


def signalled(scene: Scene, number: signal.Signals) -> None:
    """Send a signal that stops a run to all ranks, to one of them, or to the launcher."""
    with scene.life() as life:
        life.wait_for_ranks(scene.ranks)
        scene.instant(life)
        pids = list(life.job.pids().values())
        whom = [pids, pids[:1], pids[-1:]]
        if number != signal.SIGUSR2:  # this signal would end Hydra's mpiexec
            whom.append([life.job.process.pid])
        life.send(scene.dice.choice(whom), number)
        if not scene.is_early:
            life.ended({INTERRUPTED}, "the same command resumes")
        elif (
            life.end() == 0
        ):  # it may not have had its handlers yet, so that any other end is right
            raise LateError


def paused(scene: Scene) -> None:
    """Pause a rank for a while, as on a machine that swaps."""
    with scene.life() as life:
        scene.instant(life, early=False)
        pid = scene.dice.choice(list(life.job.pids().values()) or [life.job.process.pid])
        life.send([pid], signal.SIGSTOP)
        time.sleep(scene.dice.uniform(0.1, 1.0))
        life.send([pid], signal.SIGCONT)
        life.stopped()


def rival(scene: Scene) -> None:
    """Start a second job on the same directory: it must be refused and not disturb the first.

    Where both begin at once either may win; of repetitions each may have some. The first is held,
    where its config has no time limits, so that it does not finish before the second begins.
    """
    with scene.life() as first:
        scene.instant(first)
        paused = [] if scene.is_early or scene.setting.is_timed else list(first.job.pids().values())
        for pid in paused:
            sent(pid, signal.SIGSTOP)
        with scene.life() as second:
            status = second.end()
            refused = "is in use by" in second.output
        # then it has released it
        was_over = first.job.process.poll() is not None or "finished by" in first.job.stdout
        for pid in paused:
            sent(pid, signal.SIGCONT)
        if not refused and status != 0:
            raise WrongError(f"the second job ended with status {status}\n{second.output}")
        if scene.is_early or len(scene.places) > 1:
            for pid in first.job.pids().values():
                sent(pid, signal.SIGTERM)
            if (status := first.end()) not in {
                0,
                INTERRUPTED,
            } and "is in use by" not in first.output:
                raise WrongError(f"the first job ended with status {status}")
            return
        if not refused and not was_over:
            raise WrongError("the second job was not refused")
        first.stopped()
