"""Jobs under a real mpiexec, with a time limit that nothing survives: a hanging rank must not hang
the suite.

    done = mpiexec(3, script('''...'''))          # a finished job
    with start(3, ["-m", "hpc_es.main", ...]) as job:
        job.wait_for_output("generation 2")
        job.signal(1, signal.SIGKILL)
        done = job.wait()

`args` are those of Python. Ranks have sessions of their own (Hydra makes them), so a job's
processes are found by a mark in their environment, not by process group.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BESIDE = Path(sys.executable).parent / "mpiexec"
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")
LAUNCHERS = (
    "PMI_",
    "PMIX_",
    "OMPI_",
    "HYDRA_",
    "SLURM_",
    "MPI_LOCAL",
    "MPIEXEC_",
    "MV2_",
    "FLUX_",
    "JSM_",
    "PALS_",
)
# of MPICH and of Open MPI; a launcher sets one of them
RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
MARK = "HPC_ES_TEST_JOB"


@dataclass(frozen=True)
class Finished:
    """The end of a job; a negative status is the signal that ended the launcher."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool

    def __str__(self) -> str:
        late = ", killed at the time limit" if self.timed_out else ""
        return f"status {self.status} after {self.seconds:.1f} s{late}\n--- stdout\n{self.stdout}--- stderr\n{self.stderr}"


class Job:
    """A running job; as a context manager, kill it at the end of the block."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ):
        self._mark = uuid.uuid4().hex
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  (not a pipe: its end might outlive the launcher)
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._start = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**clean_environment(), **(env or {}), MARK: self._mark},
            cwd=cwd,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        states = _states(self.alive()) if isinstance(error, AssertionError) else ""
        self.kill()
        streams = f"--- stdout\n{self.stdout}--- stderr\n{self.stderr}"
        self._out.close()
        self._err.close()
        if isinstance(error, AssertionError):
            raise AssertionError(f"{error}\n{streams}--- processes\n{states}") from error

    @property
    def stdout(self) -> str:
        """Standard output so far."""
        return _read(self._out.fileno())

    @property
    def stderr(self) -> str:
        """Standard error so far."""
        return _read(self._err.fileno())

    def pids(self) -> dict[int, int]:
        """Process ids of the live ranks."""
        result: dict[int, int] = {}
        for pid, message in sorted(self._processes().items()):
            for name in RANK_NAMES:
                if name in message:
                    # not a child of the rank, which is younger
                    result.setdefault(int(message[name]), pid)
        return result

    def alive(self) -> list[int]:
        """Process ids of all live processes of the job, including the launcher."""
        return list(self._processes())

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank."""
        os.kill(self.pids()[rank], number)

    def wait_for_output(self, text: str, timeout_seconds: float = 60.0) -> None:
        """Return when the job has written the text to stdout; fails if it ends before,
        or the time is over.
        """
        limit = time.monotonic() + timeout_seconds
        while text not in self.stdout:
            ended = self.process.poll() is not None
            if (ended and text not in self.stdout) or time.monotonic() > limit:
                self.kill()
                pytest.fail(
                    f"{text!r} was never written\n--- stdout\n{self.stdout}--- stderr\n{self.stderr}"
                )
            time.sleep(0.01)

    def wait(self, timeout_seconds: float = 180.0) -> Finished:
        """Wait for the end; kill the job after the time limit."""
        try:
            self.process.wait(timeout_seconds)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
        seconds = time.monotonic() - self._start
        self.kill()
        return Finished(self.process.returncode, self.stdout, self.stderr, seconds, timed_out)

    def kill(self) -> None:
        """Kill the remaining processes of the job: the launcher and every rank."""
        for _ in range(100):
            left = self._processes()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        self.process.wait()

    def _processes(self) -> dict[int, dict[str, str]]:
        """The job's living processes and their environments."""
        result: dict[int, dict[str, str]] = {}
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
                environment = (directory / "environ").read_bytes()
                if f"{MARK}={self._mark}".encode() in environment.split(b"\0"):
                    pairs = (
                        entry.decode(errors="replace").partition("=")
                        for entry in environment.split(b"\0")
                    )
                    result[int(directory.name)] = {name: value for name, _, value in pairs}
        return result


def start(
    ranks: int,
    args: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Job:
    """Start `python *args` on this number of ranks."""
    if MPIEXEC is None:
        pytest.skip("there is no mpiexec: pip install mpich")
    return Job([MPIEXEC, "-n", str(ranks), sys.executable, *args], env, cwd)


def mpiexec(
    ranks: int,
    args: Sequence[str],
    timeout_seconds: float = 180.0,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Finished:
    """Run `python *args` on this number of ranks to its end."""
    with start(ranks, args, env, cwd) as job:
        return job.wait(timeout_seconds)


def python(
    args: Sequence[str],
    timeout_seconds: float = 180.0,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Finished:
    """Run `python *args` without a launcher."""
    with Job([sys.executable, *args], env, cwd) as job:
        return job.wait(timeout_seconds)


def install(source: Path, site: Path) -> None:
    """Install a package, which is built in its folder, into a directory for PYTHONPATH; without a
    network.
    """
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(site)]
    subprocess.run([*command, str(source)], check=True, timeout=120)


def script(text: str) -> list[str]:
    """Arguments of Python that run an indented text."""
    return ["-c", textwrap.dedent(text)]


def clean_environment() -> dict[str, str]:
    """The environment of this process without variables of a launcher,
    and with one thread per rank.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        # hpc_es.main sets what is not set
        if not name.startswith(LAUNCHERS) and not name.endswith("_NUM_THREADS")
    }
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "HPC_ES_TRACEBACK": "1",  # a test that meets an error shows where
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")])),
    }


def _states(pids: Sequence[int]) -> str:
    """A line for each process: command, state, CPU seconds and what it waits for in the kernel;
    its stack with gdb.
    """
    if not pids:
        return "none\n"
    command = [
        "ps",
        "-ww",
        "-o",
        "pid,ppid,stat,nlwp,cputimes,etimes,wchan:20,args",
        "-p",
        ",".join(map(str, pids)),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = [f"{line[:200]}\n" for line in done.stdout.splitlines()]
    if gdb := shutil.which("gdb"):
        for pid in pids:
            done = subprocess.run(
                [gdb, "-p", str(pid), "-batch", "-ex", "bt 40"],
                check=False,
                capture_output=True,
                text=True,
            )
            stack = [
                f"  {line[:160]}\n" for line in done.stdout.splitlines() if line.startswith("#")
            ]
            lines += [f"--- stack of {pid}\n", *stack]
    return "".join(lines)


def _read(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
