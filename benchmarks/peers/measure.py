"""Run a program and measure its steps per second, start-up time and memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT
from benchmarks.peers.contenders import Contender
from benchmarks.peers.reporter import MARK, NOT_COUNTED
from benchmarks.peers.works import Work

LIMIT_SECONDS = 900
SAMPLED_SECONDS = 0.5


@dataclass(frozen=True)
class Result:
    """The result of a run. Memory is in MB; memory that processes share is counted once (PSS)."""

    work: str
    contender: str
    round: int
    steps_per_second: float
    startup_seconds: float  # from the command to the end of the first generation
    memory: float  # of all processes
    largest: float  # peak of one process (RSS)
    generations: int
    version: str
    date: str
    load: float

    def row(self) -> dict[str, Any]:
        """Return the result as a row of a table."""
        rounded = {
            "steps_per_second": 0,
            "startup_seconds": 1,
            "memory": 0,
            "largest": 0,
            "load": 1,
        }
        return {
            name: round(value, rounded[name]) if name in rounded else value
            for name, value in asdict(self).items()
        }


def measure(contender: Contender, venvs: Path, work: Work, seconds: float, number: int) -> Result:
    """Run the program of a contender once; RuntimeError if it ends early."""
    load, start = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            contender.command(venvs, work, seconds),
            **{
                "cwd": ROOT,
                "env": contender.environment(),
                "stdout": subprocess.PIPE,
                "stderr": errors,
            },
            **{"text": True, "start_new_session": True},
        )
        watched = Memory(process.pid)
        timer = threading.Timer(LIMIT_SECONDS, watched.kill)
        timer.start()
        try:
            ends = list(generations(process))
        finally:
            timer.cancel()
            watched.stop()
            watched.kill()
            process.wait()
        if len(ends) <= NOT_COUNTED + 1:
            errors.seek(0)
            raise RuntimeError(
                f"{contender.name} on {work.name} made {len(ends)} generations:\n{errors.read()[-3000:]}"
            )
    (first, steps), (last, total) = ends[NOT_COUNTED - 1], ends[-1]
    return Result(
        **{
            "work": work.name,
            "contender": contender.name,
            "round": number,
            "generations": len(ends),
        },
        **{
            "steps_per_second": (total - steps) / (last - first),
            "startup_seconds": ends[0][0] - start,
        },
        **{"memory": watched.together / 2**20, "largest": watched.largest / 2**20},
        **{"version": contender.version(venvs), "date": time.strftime("%Y-%m-%d"), "load": load},
    )


def generations(process: Any) -> Iterator[tuple[float, int]]:
    """Yield the time of the end of each generation, and the number of steps so far."""
    for line in process.stdout:
        mark, _, steps = line.partition(" ")
        if mark == MARK:
            yield time.perf_counter(), int(steps)


class Memory:
    """Watches the memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        # with start times, since process numbers are reused
        self._processes: dict[int, str] = {pid: parents()[pid][1]}
        self._ended = threading.Event()
        self.together = self.largest = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def kill(self) -> None:
        """Kill the remaining processes."""
        now = parents()
        for pid, start in self._processes.items():
            if pid in now and now[pid][1] == start:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLED_SECONDS):
            self._processes |= descendants(set(self._processes))
            shares = [proc_bytes(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in self._processes]
            peaks = [proc_bytes(f"/proc/{pid}/status", "VmHWM:") for pid in self._processes]
            self.together, self.largest = max(self.together, sum(shares)), max(self.largest, *peaks)


def descendants(roots: set[int]) -> dict[int, str]:
    """Return all descendants of these processes, with their start times."""
    now = parents()
    family = set(roots)
    while more := {pid for pid, (parent, _) in now.items() if parent in family} - family:
        family |= more
    return {pid: now[pid][1] for pid in family - roots}


def parents() -> dict[int, tuple[int, str]]:
    """Return the parent and start time of each process."""
    result: dict[int, tuple[int, str]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (directory / "stat").read_text().rpartition(")")[2].split()
            result[int(directory.name)] = (int(words[1]), words[19])
    return result


def proc_bytes(path: str, name: str) -> int:
    """Return the value after `name` in a /proc file, in bytes; 0 if the process has ended."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0
