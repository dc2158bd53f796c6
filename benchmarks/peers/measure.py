"""One run of a program: its rate, its start-up, its memory."""

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
from benchmarks.peers.telling import MARK, NOT_COUNTED
from benchmarks.peers.works import Work

LIMIT_SECONDS = 900
SAMPLED_SECONDS = 0.5


@dataclass(frozen=True)
class Result:
    """What a run showed; memory in MB, that of libraries which processes share counted once (PSS)."""

    work: str
    contender: str
    round: int
    steps_per_second: float
    startup_seconds: float  # from the command to the end of the first generation
    memory: float  # of all processes
    largest: float  # of one process, at its peak (RSS)
    generations: int
    version: str
    date: str
    load: float

    def row(self) -> dict[str, Any]:
        """Return it as a row of a table."""
        rounded = {"steps_per_second": 0, "startup_seconds": 1, "memory": 0, "largest": 0, "load": 1}
        return {name: round(value, rounded[name]) if name in rounded else value for name, value in asdict(self).items()}


def measure(contender: Contender, venvs: Path, work: Work, seconds: float, number: int) -> Result:
    """Run it once."""
    load, began = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            contender.command(venvs, work, seconds),
            **{"cwd": ROOT, "env": contender.environment(), "stdout": subprocess.PIPE, "stderr": errors},
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
        **{"work": work.name, "contender": contender.name, "round": number, "generations": len(ends)},
        **{"steps_per_second": (total - steps) / (last - first), "startup_seconds": ends[0][0] - began},
        **{"memory": watched.together / 2**20, "largest": watched.largest / 2**20},
        **{"version": contender.version(venvs), "date": time.strftime("%Y-%m-%d"), "load": load},
    )


def generations(process: Any) -> Iterator[tuple[float, int]]:
    """Yield when each generation ended, and the steps so far."""
    for line in process.stdout:
        mark, _, steps = line.partition(" ")
        if mark == MARK:
            yield time.perf_counter(), int(steps)


class Memory:
    """Watches the memory of a process and all that it has started."""

    def __init__(self, pid: int) -> None:
        self._seen: dict[int, str] = {pid: parents()[pid][1]}  # with the time each began: numbers are used again
        self._ended = threading.Event()
        self.together = self.largest = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._ended.set()
        self._thread.join()

    def kill(self) -> None:
        """End all processes that are left."""
        now = parents()
        for pid, began in self._seen.items():
            if pid in now and now[pid][1] == began:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLED_SECONDS):
            self._seen |= descendants(set(self._seen))
            shares = [told(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in self._seen]
            peaks = [told(f"/proc/{pid}/status", "VmHWM:") for pid in self._seen]
            self.together, self.largest = max(self.together, sum(shares)), max(self.largest, *peaks)


def descendants(roots: set[int]) -> dict[int, str]:
    """Return the processes that were started by these, or by those that they started, and when each began."""
    now = parents()
    found = set(roots)
    while more := {pid for pid, (parent, _) in now.items() if parent in found} - found:
        found |= more
    return {pid: now[pid][1] for pid in found - roots}


def parents() -> dict[int, tuple[int, str]]:
    """Return each process's parent, and when it began."""
    found: dict[int, tuple[int, str]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (directory / "stat").read_text().rpartition(")")[2].split()
            found[int(directory.name)] = (int(words[1]), words[19])
    return found


def told(path: str, name: str) -> int:
    """Return the bytes that are told behind a name; 0 where the process has ended."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0
