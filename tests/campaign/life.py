"""One life of a run: a job that is watched,
and that ends within a time limit or leaves its stacks behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from tests.helpers.harness import Job

INTERRUPTED = 75
# of anything that is waited for; a life takes 1 to 5 s, on a busy machine some 20
LIMIT_SECONDS = 180.0
STACKS_SECONDS = 2.0
STACKS = signal.SIGRTMIN + 5  # see startup/sitecustomize.py
SCAN_SECONDS = 0.05  # between two looks at all processes of the machine, which take milliseconds
FOLLOWING_SECONDS = 20.0  # in which all ranks are gone once the launcher is


class WrongError(Exception):
    """The program did not behave as documented."""


class HungError(Exception):
    """The program does not end; the text has the stacks."""


class LateError(Exception):
    """The run was over before the event came."""


class Life:
    """A job, from its start to its end."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def send(self, pids: Iterable[int], number: int) -> None:
        """Send a signal to the processes that still exist. Raises LateError if there are none."""
        if not sum(sent(pid, number) for pid in pids):
            self.late()

    def late(self) -> None:
        """Raise LateError, since the job is over; it must have finished."""
        status = self.end()
        if status != 0:
            raise WrongError(f"the run ended by itself with status {status}")
        raise LateError

    def wait_for_ranks(self, count: int) -> None:
        """Return when this number of ranks has started."""
        self.wait_for(lambda: len(self.job.pids()) == count, SCAN_SECONDS)

    def wait_for(self, condition: Callable[[], bool], pause_seconds: float = 0.004) -> None:
        """Return when the condition holds. Raises LateError if the run ends first."""
        limit = time.monotonic() + LIMIT_SECONDS
        while not condition():
            if self.job.process.poll() is not None:
                if condition():
                    return
                self.late()
            if time.monotonic() > limit:
                raise HungError(self.stacks())
            time.sleep(pause_seconds)

    def end(self) -> int:
        """Wait for the end of all processes and return the status."""
        self._wait(lambda: self.job.process.poll() is not None, LIMIT_SECONDS)
        self._wait(lambda: not self.job.alive(), FOLLOWING_SECONDS)
        status = self.job.process.returncode
        assert status is not None
        return status

    def ended(self, allowed: Collection[int], text: str) -> None:
        """Wait for the end, which must have one of these statuses, this message,
        and no traceback.
        """
        status = self.end()
        if status == 0:
            raise LateError
        if status not in allowed:
            raise WrongError(f"status {status}, expected {sorted(allowed)}")
        self.refuse_traceback()
        if text not in self.output:
            raise WrongError(f"nothing said of {text!r}")

    def survived(self, seconds: float) -> None:
        """Let it run for some time under a fault: it may go on, and is then stopped,
        or end with a message.
        """
        limit = time.monotonic() + seconds
        while self.job.process.poll() is None and time.monotonic() < limit:
            time.sleep(SCAN_SECONDS)
        if self.job.process.poll() is None:
            for pid in self.job.pids().values():
                sent(pid, signal.SIGTERM)
        status = self.end()
        # SIGTERM ends a process that has not yet started, as on a busy machine
        if status in {signal.SIGTERM, 128 + signal.SIGTERM} and "hpc_es" not in self.output:
            raise LateError
        if status not in {0, 1, 2, INTERRUPTED}:
            raise WrongError(f"status {status}, expected 0, 1, 2 or {INTERRUPTED}")
        self.refuse_traceback()
        if status in {1, 2} and "hpc_es: " not in self.output:
            raise WrongError(f"status {status} without a message")

    def refuse_traceback(self) -> None:
        """Raise WrongError for a traceback, except of the function.s pool whose rank has ended."""
        start = self.output.find("Traceback")
        if start >= 0 and "ForkPoolWorker" not in self.output:
            raise WrongError(f"a traceback: {self.output[start : start + 2000]}")

    def stopped(self) -> None:
        """End an undisturbed life by SIGTERM, once it trains."""
        self.wait_for(lambda: "rank=host:pid" in self.job.stdout)
        self.send(self.job.pids().values(), signal.SIGTERM)
        self.ended({INTERRUPTED}, "the same command resumes")

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                raise HungError(self.stacks())
            time.sleep(SCAN_SECONDS)

    @property
    def output(self) -> str:
        """Output so far."""
        return self.job.stdout + self.job.stderr

    def stacks(self) -> str:
        """Stacks of its processes; processes without a handler die of the signal."""
        alive = self.job.alive()
        where = "".join(f"{pid}: {_proc(pid, 'cmdline')} {_proc(pid, 'wchan')}\n" for pid in alive)
        for pid in self.job.pids().values():
            sent(pid, STACKS)
        time.sleep(STACKS_SECONDS)
        return f"still alive:\n{where}\n{self.output}"


def sent(pid: int, number: int) -> bool:
    """Send a signal; return whether the process existed."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _proc(pid: int, name: str) -> str:
    try:
        return (
            Path(f"/proc/{pid}/{name}")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:200]
        )
    except OSError:
        return ""
