"""The environment that an external program gets: this rank's, without what makes MPI or srun think it is a rank too.

With these variables a program that starts MPI would join our job, or wait for it for ever; without them it may start
MPI alone, as `mpiexec -n 4 solver`, or under SLURM as a further step with srun. What a batch shell has too stays
(SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURM_NTASKS ...): a step of the program's own needs it, and has its defaults there.


A rank's side of running external programs: see supervisor.py for the other.

Evaluates vectors with an external program: parameters in a file, the result in another, no shell between.

Each job has a scratch directory of its own, in which the program runs. It is removed where all went well; of failures
the first KEPT directories of a run stay, as failed_0 ... failed_9.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from hpc_es.core.data import Float64, Poll
from hpc_es.core.failures import MAX_DETAILS, Failure, one_line
from hpc_es.core.interfaces import RunContext
from hpc_es.core.processor import AVAILABLE_CORES
from hpc_es.tasks.functions import supervisor
from hpc_es.tasks.functions.python_evaluator import Measured, measured
from hpc_es.tasks.functions.supervisor import STDERR

PREFIXES = (
    *("PMI", "MPI_", "MPICH_", "MPIR_", "MPIEXEC_", "HYDRA_", "HYDI_", "HYD_", "I_MPI_HYDRA"),  # MPICH, Intel MPI
    *("OMPI_", "OPAL_", "ORTE_", "PRTE_", "PRRTE_"),  # Open MPI
    *("MV2_COMM_WORLD_", "PALS_", "ALPS_", "FLUX_JOB_", "FLUX_TASK_", "JSM_"),  # MVAPICH, Cray, Flux, jsrun
    *("SLURM_STEP", "SLURM_SRUN_", "SLURM_PMI", "SLURM_MPI_", "SLURM_CPU_BIND", "SLURM_MEM_BIND"),  # of a step
)
NAMES = frozenset(
    (
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"),
        *("SLURM_LAUNCH_NODE_IPADDR", "SLURM_DISTRIBUTION", "SLURM_KILL_BAD_EXIT", "SLURM_UMASK"),
    )
)


def cleaned(environ: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a program gets, with `more` put in."""
    kept = {name: value for name, value in environ.items() if name not in NAMES and not name.startswith(PREFIXES)}
    return {**kept, **more}


LOOK_SECONDS = 0.005  # between two looks at the other ranks


@dataclass(frozen=True)
class ProgramExit:
    """How a program ended."""

    status: int | None  # negative: the signal that ended it; None: it could not be started
    timed_out: bool = False
    error: str | None = None  # why it could not be started


class Programs:
    """Starts programs, one at a time, through a process that ends them when this one dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        limit_seconds: float = math.inf,
        poll: Poll = lambda: None,
    ) -> ProgramExit:
        """Run a program in a directory, to its end or the limit; what it writes is in stdout.txt and stderr.txt.

        Whatever `poll` raises ends the program and passes through.
        """
        order = {
            "command": list(command),
            "directory": str(directory),
            "environment": dict(environment),
            "cpus": AVAILABLE_CORES,
            "limit_seconds": None if math.isinf(limit_seconds) else limit_seconds,
        }
        try:
            return self._answer(json.dumps(order).encode() + b"\n", poll)
        except OSError as error:
            self.close()
            return ProgramExit(None, error=f"the process that starts programs has died ({error})")
        except BaseException:
            self.close()
            raise

    def _answer(self, order: bytes, poll: Poll) -> ProgramExit:
        channel = self._connected()
        channel.sendall(order)
        answer, pid = b"", None
        while True:
            if select.select([channel], [], [], LOOK_SECONDS)[0]:
                received = channel.recv(65536)
                if not received:
                    _kill_group(pid)  # the kernel has killed the program with the supervisor, not what it has started
                    raise ConnectionError("it is gone")
                *lines, answer = (answer + received).split(b"\n")
                for told in map(json.loads, lines):
                    if "pid" not in told:
                        return ProgramExit(**told)
                    pid = told["pid"]
            poll()

    def _connected(self) -> socket.socket:
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", supervisor.__file__, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    env=cleaned(os.environ, {}),  # it is no rank either
                    pass_fds=[theirs.fileno()],  # and nothing else, so not PMI_FD
                    start_new_session=True,  # what kills the rank's process group leaves it time to end the program
                )
        return self._channel

    def close(self) -> None:
        """End the program that runs, if one does, and the process that started it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(supervisor.END_SECONDS)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process = None


def _kill_group(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


Format = Literal["json", "text"]

SCRATCH = "scratch"  # in the run directory
KEPT = 10
LARGEST_RESULT_BYTES = 1_000_000
LAST_LINES, LAST_CHARACTERS = 5, 1000  # of stderr, in the log
PARAMETERS, RESULT, SEED, CONFIG = "{parameters}", "{result}", "{seed}", "{config}"


@dataclass(frozen=True)
class Command:
    """What is run, and how it is told its parameters."""

    words: tuple[str, ...]  # the first is the program, an absolute path
    config_directory: Path  # what {config} stands for
    names: tuple[str, ...] = ()  # of the parameters; empty: the parameters are a list
    format: Format = "json"
    timeout_seconds: float = math.inf
    environment: Mapping[str, str] = field(default_factory=dict)  # put into the program's

    def arguments(self, parameters: Path, result: Path, seed: int) -> list[str]:
        """Return the words with the paths and the seed in place of their marks."""
        marks = {PARAMETERS: str(parameters), RESULT: str(result), SEED: str(seed), CONFIG: str(self.config_directory)}
        return [_replaced(word, marks) for word in self.words]

    def written(self, values: Sequence[float]) -> str:
        """Return the parameters as the program reads them; numbers have all their digits."""
        if self.format == "text":
            return "".join(f"{value!r}\n" for value in values)
        return json.dumps(dict(zip(self.names, values, strict=True)) if self.names else list(values)) + "\n"


def _replaced(word: str, marks: Mapping[str, str]) -> str:
    """Return the word with all marks replaced at once: what is put in is not looked at again."""
    for mark, text in marks.items():
        if mark in word:
            return text.join(_replaced(part, marks) for part in word.split(mark))
    return word


class External:
    """Evaluates vectors with a program; see `Evaluator`."""

    def __init__(self, command: Command, identity: str = "") -> None:
        self._command, self.identity = command, identity
        self._programs = Programs()
        self._root: Path | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._place, self._number = f"{os.getpid()}", 0

    def open(self, run: RunContext) -> None:
        """Have the scratch directories in the run directory, and remove those of a killed run."""
        self._root, self._place = run.directory / SCRATCH, f"rank_{run.rank}_{os.getpid()}"
        for left in self._root.glob("rank_*"):
            of = left.name.split("_")[1]
            if of == str(run.rank) or (run.rank == 0 and of.isdigit() and int(of) >= run.ranks):
                shutil.rmtree(left, ignore_errors=True)

    def evaluate(self, vectors: Float64, seeds: Sequence[int], poll: Poll) -> list[Measured]:
        """Run the program for each vector, one after the other."""
        return [self._one(values, seed, poll) for values, seed in zip(vectors.tolist(), seeds, strict=True)]

    def _one(self, values: Sequence[float], seed: int, poll: Poll) -> Measured:
        scratch = self._scratch()
        since = time.monotonic()
        parameters, result = scratch / "parameters", scratch / "result"
        parameters.write_text(self._command.written(values))
        words = self._command.arguments(parameters, result, seed)
        environment = cleaned(os.environ, self._command.environment)
        ended = self._programs.run(words, scratch, environment, self._command.timeout_seconds, poll)
        try:
            self._check(ended)
            found = measured(_read(result), time.monotonic() - since)
        except (OSError, ValueError) as error:
            found = Measured(math.nan, Failure(str(error), one_line(str(error))), time.monotonic() - since)
        if found.failure is None:
            shutil.rmtree(scratch, ignore_errors=True)
            return found
        written = _end_of(scratch / STDERR)
        text = "; ".join(filter(None, [found.failure.text, _last_lines(written), self._kept(scratch)]))
        return Measured(math.nan, replace(found.failure, text=one_line(text), details=written), found.seconds)

    def _check(self, ended: ProgramExit) -> None:
        """ValueError where the program did not end well."""
        program = self._command.words[0]
        if ended.error is not None:
            raise ValueError(f"{program} could not be started: {ended.error}")
        if ended.timed_out:
            limit = self._command.timeout_seconds
            raise ValueError(f"{program} took longer than task.timeout_seconds: {limit:g}")
        if ended.status:
            how = f"signal {-ended.status}" if ended.status < 0 else f"status {ended.status}"
            raise ValueError(f"{program} ended with {how}")

    def _scratch(self) -> Path:
        if self._root is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hpc_es_")
            self._root = Path(self._temporary.name)
        scratch = self._root / f"{self._place}_{self._number}"
        self._number += 1
        scratch.mkdir(parents=True)
        return scratch

    def _kept(self, scratch: Path) -> str:
        """Keep the directory of a failure under a free name, or remove it; returns what to say of it."""
        assert self._root
        for number in range(KEPT):
            place = self._root / f"failed_{number}"
            if not place.exists():
                with contextlib.suppress(OSError):  # another rank took the name in this instant
                    scratch.rename(place)
                    return f"kept in {place}"
        shutil.rmtree(scratch, ignore_errors=True)
        return f"not kept: {self._root} has {KEPT} already"

    def close(self) -> None:
        """End the program that runs, if one does."""
        self._programs.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def _read(path: Path) -> float:
    """Return the number that a program wrote; ValueError."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_RESULT_BYTES + 1)
    except FileNotFoundError:
        raise ValueError("no result was written: expected a number or JSON in the file {result}") from None
    if len(content) > LARGEST_RESULT_BYTES:
        raise ValueError(f"the result is larger than {LARGEST_RESULT_BYTES:,} bytes: expected a number or JSON")
    text = content.decode(errors="replace").strip()
    with contextlib.suppress(ValueError):
        return float(text)
    with contextlib.suppress(ValueError, RecursionError):
        told = json.loads(text)
        value = told.get("value") if isinstance(told, dict) else told
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    raise ValueError(f'the result is {escaped(text[:60])!s}: expected a number, or JSON such as {{"value": 1.5}}')


def _end_of(path: Path) -> str:
    """Return what a program wrote last; nothing where it wrote nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MAX_DETAILS, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "".join(f"{escaped(line)}\n" for line in lines)


def _last_lines(written: str) -> str:
    """Return the last lines that a program wrote, in one line."""
    said = [line.strip() for line in written[-LAST_CHARACTERS:].splitlines() if line.strip()][-LAST_LINES:]
    return f"stderr: {' | '.join(said)}" if said else ""


def escaped(text: str) -> str:
    """Return the text with what a terminal would obey (escape sequences, line ends) as backslash codes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
