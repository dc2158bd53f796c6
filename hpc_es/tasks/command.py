"""`task: {kind: command}`: an external program, which reads parameters from a file.

    task: {kind: command, command: ["./simulate", "{parameters}", "{result}"], dimension: 12}

It writes a result to another file. The program is started without a shell. `{parameters}` and
`{result}` are replaced by absolute paths, `{seed}` by a number that is the same for both candidates
of an antithetic pair, and `{config}` by the config's directory. The parameters are a JSON list, or
a JSON object if they have names (`format: text`: one number per line). The result is a number, or a
JSON object with a `value`, of at most 1 MB.

The path of the program is relative to the config; a name without a slash is searched in PATH. Each
job runs in its own scratch directory, RUN/scratch/..., which is removed if the evaluation succeeds.
The first KEPT_FAILURES directories of failed evaluations of a run are kept, as failed_0 ...
failed_9.

A program gets the environment of its rank without the variables that would make MPI or srun treat
it as a rank: with them a program that starts MPI would join our job, or wait for it. So it may run
`mpiexec -n 4 solver`, or srun to start a further step. Variables of the job (SLURM_JOB_ID,
SLURM_JOB_NODELIST, SLURM_NTASKS ...) stay, since srun needs them.

Programs are started by a process of their own, which ends them when the rank dies: see
`functions/supervisor.py`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from hpc_es.config.options import Limits, option, options
from hpc_es.config.registry import config_directory
from hpc_es.core.data import ConfigData, Float64, Poll
from hpc_es.core.declarations import Offers
from hpc_es.core.errors import MAX_DETAILS, ConfigError, Failure, Problems, one_line
from hpc_es.core.interfaces import RunContext
from hpc_es.core.machine import AVAILABLE_CORES
from hpc_es.core.paths import expanded
from hpc_es.core.quantities import NONE, Quantities
from hpc_es.core.run_files import sha256_of
from hpc_es.tasks.function import ObjectiveTask, initial_vector
from hpc_es.tasks.functions import supervisor
from hpc_es.tasks.functions.initial_points import initial_points
from hpc_es.tasks.functions.options import (
    OF_CONSTRAINTS,
    ConfigProblem,
    SearchOptions,
    offers_of_search,
    returned_quantities,
)
from hpc_es.tasks.functions.parameters import Scale, Value, decoded
from hpc_es.tasks.functions.results import DECLARED, EvaluationResult, as_float, read_result
from hpc_es.tasks.functions.supervisor import STDERR

OFFERS = Offers(
    problems=("vectors",),
    values=True,
    any_chunks=True,
    metrics=OF_CONSTRAINTS,
    noisy=True,
)

PREFIXES = (  # of environment variables that a program does not get
    # MPICH, Intel MPI
    *("PMI", "MPI_", "MPICH_", "MPIR_", "MPIEXEC_", "HYDRA_", "HYDI_", "HYD_", "I_MPI_HYDRA"),
    *("OMPI_", "OPAL_", "ORTE_", "PRTE_", "PRRTE_"),  # Open MPI
    # MVAPICH, Cray, Flux, jsrun
    *("MV2_COMM_WORLD_", "PALS_", "ALPS_", "FLUX_JOB_", "FLUX_TASK_", "JSM_"),
    # of a step
    *("SLURM_STEP", "SLURM_SRUN_", "SLURM_PMI", "SLURM_MPI_", "SLURM_CPU_BIND", "SLURM_MEM_BIND"),
)
NAMES = frozenset(  # likewise
    (
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"),
        *("SLURM_LAUNCH_NODE_IPADDR", "SLURM_DISTRIBUTION", "SLURM_KILL_BAD_EXIT", "SLURM_UMASK"),
    )
)

POLL_SECONDS = 0.005  # between calls of `poll` while a program runs
SCRATCH = "scratch"  # folder in the run directory
KEPT_FAILURES = 10
LARGEST_RESULT_BYTES = 1_000_000
LAST_LINES, LAST_CHARACTERS = 5, 1000  # of stderr, in the log
PARAMETERS, RESULT, SEED, CONFIG = "{parameters}", "{result}", "{seed}", "{config}"
SHELL_VARIABLE = re.compile(r"\$(?:[A-Za-z_]|\{)")
Format = Literal["json", "text"]


@options
class Options(SearchOptions):
    """`task:` with `kind: command`."""

    kind: Literal["command"] = option("name of the task", "command")
    command: Annotated[tuple[str, ...], Limits(min_length=1)] = option(
        "program and arguments, such as ['./simulate', '{parameters}', '{result}']"
    )
    format: Format = option(
        "format of the parameters: json (a list, or an object with names) or text (one number per line)",
        "json",
    )
    environment: Mapping[str, str] = option(
        "environment variables of the program, such as {OMP_NUM_THREADS: '4'}", default_factory=dict
    )

    def problems(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for each mistake that involves several options."""
        yield from super().problems()
        for mark in (PARAMETERS, RESULT):
            if not any(mark in word for word in self.command[1:]):
                yield (
                    "command",
                    f"has no {mark} in its arguments: expected the path of this file among them",
                )

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for words that a shell would change."""
        words = {"command": self.command[1:], "environment": self.environment.values()}
        for key, texts in words.items():
            for text in texts:
                if text.startswith("~/") or SHELL_VARIABLE.search(text):
                    yield (
                        key,
                        f"has {text!r}, which the program gets as it is: there is no shell that replaces it",
                    )


def offers(options: Options) -> Offers:
    """Return the capabilities under these options."""
    return offers_of_search(OFFERS, options)


def sources(section: ConfigData, directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the program, and of its arguments that are files of the config.

    These are in the config's directory ({config}/...). Nothing is executed.
    """
    first, *rest = section["command"]
    files: dict[str, Path | None] = {first: None}
    with contextlib.suppress(ValueError):  # a variable that is not set here
        files[first] = _program_path(first, directory)
    files |= {
        word: directory / word.removeprefix(f"{CONFIG}/")
        for word in rest
        if word.startswith(f"{CONFIG}/")
    }
    return {
        name: sha256_of(path) if path is not None and path.is_file() else ""
        for name, path in files.items()
    }


def build(options: Options, repetition: int = 0) -> ObjectiveTask:
    """Return the task; ConfigError if the program does not exist or is not executable."""
    problems, directory = Problems(), config_directory()
    with problems.collect():
        program = _find_program(options.command[0], directory)
    with problems.collect():
        initial = initial_vector(options)
    with problems.collect():
        points = initial_points(options)
    problems.raise_any()
    command = Command(
        (str(program), *options.command[1:]),
        directory,
        options.coordinates().scales,
        options.format,
        returned_quantities(options),
        math.inf if options.timeout_seconds is None else options.timeout_seconds,
        options.environment,
    )
    hashes = sources({"command": options.command}, directory)
    identity = json.dumps([hashes, options.command[1:], options.format, dict(options.environment)])
    evaluator = SubprocessEvaluator(command, identity)
    return ObjectiveTask(
        Path(options.command[0]).name, options, initial, evaluator=evaluator, points=points
    )


def _program_path(word: str, directory: Path) -> Path | None:
    """Return the absolute path of a program, which need not exist; None if it is not in PATH."""
    word = expanded(word)
    if "/" in word:
        return Path(os.path.normpath(directory.absolute() / word))
    path = shutil.which(word)
    return Path(path).absolute() if path else None


def _find_program(word: str, directory: Path) -> Path:
    try:
        path = _program_path(word, directory)
    except ValueError as error:
        raise ConfigError([("task.command", str(error))]) from error
    if path is None:
        text = f"there is no program {word!r} in PATH (write './{word}' for one in the config's directory)"
        raise ConfigError([("task.command", text)])
    if not path.is_file():
        raise ConfigError(
            [("task.command", f"there is no program {path} ({word!r} is relative to the config)")]
        )
    if not os.access(path, os.X_OK):
        raise ConfigError([("task.command", f"{path} is not executable: chmod +x {path}")])
    return path


# The environment of programs.


def program_environment(environ: Mapping[str, str], additions: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a program:
    `environ` without those of MPI and srun steps, and `additions`.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in NAMES and not name.startswith(PREFIXES)
    }
    return {**kept, **additions}


# The rank's side of the supervisor.


@dataclass(frozen=True)
class ProgramExit:
    """The exit status of a program, or the reason why it did not start."""

    status: int | None  # negative: the signal that ended it; None: it could not be started
    timed_out: bool = False
    error: str | None = None  # why it could not be started


class ProgramRunner:
    """Runs programs, one at a time, through a supervisor process, which is started on first use."""

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
        """Run a program in a directory until it ends or reaches the limit.

        Its output is in stdout.txt and stderr.txt. An exception raised by `poll` ends the program
        and propagates.
        """
        request = {
            "command": list(command),
            "directory": str(directory),
            "environment": dict(environment),
            "cpus": AVAILABLE_CORES,
            "limit_seconds": None if math.isinf(limit_seconds) else limit_seconds,
        }
        try:
            return self._exchange(json.dumps(request).encode() + b"\n", poll)
        except OSError as error:
            self.close()
            return ProgramExit(None, error=f"the process that starts programs has died ({error})")
        except BaseException:
            self.close()
            raise

    def _exchange(self, request: bytes, poll: Poll) -> ProgramExit:
        channel = self._connect()
        channel.sendall(request)
        unfinished, pid = b"", None
        while True:
            if select.select([channel], [], [], POLL_SECONDS)[0]:
                received = channel.recv(65536)
                if not received:
                    # the kernel has killed the program, but not the rest of its process group
                    if pid is not None:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(pid, signal.SIGKILL)
                    raise ConnectionError("the connection was closed")
                *lines, unfinished = (unfinished + received).split(b"\n")
                for reply in map(json.loads, lines):
                    if "pid" not in reply:
                        return ProgramExit(**reply)
                    pid = reply["pid"]
            poll()

    def _connect(self) -> socket.socket:
        if self._channel is None:
            self._channel, supervisor_end = socket.socketpair()
            with supervisor_end:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", supervisor.__file__, str(supervisor_end.fileno())],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    env=program_environment(os.environ, {}),
                    # and no other descriptor, in particular not PMI_FD
                    pass_fds=[supervisor_end.fileno()],
                    # so that it survives a kill of the rank's process group
                    start_new_session=True,
                )
        return self._channel

    def close(self) -> None:
        """End the running program, if there is one, and the supervisor."""
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


# The evaluator


@dataclass(frozen=True)
class Command:
    """A program, its arguments and the form of its input."""

    words: tuple[str, ...]  # the program, as an absolute path, and its arguments
    config_directory: Path  # replaces {config}
    # of the parameters; empty: the parameters are a list
    scales: Mapping[str, Scale] = field(default_factory=dict)
    format: Format = "json"
    quantities: Quantities = NONE
    timeout_seconds: float = math.inf
    environment: Mapping[str, str] = field(default_factory=dict)  # further environment variables

    def with_paths(self, parameters: Path, result: Path, seed: int) -> list[str]:
        """Return the words with paths and seed in place of the marks."""
        marks = {
            PARAMETERS: str(parameters),
            RESULT: str(result),
            SEED: str(seed),
            CONFIG: str(self.config_directory),
        }
        return [_replace_marks(word, marks) for word in self.words]

    def format_parameters(self, values: Sequence[float]) -> str:
        """Return the content of the parameters file; numbers have all their digits."""
        named = decoded(self.scales, values) if self.scales else None
        if self.format == "text":
            items: Sequence[Value] = values if named is None else list(named.values())
            return "".join(
                f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items
            )
        return json.dumps(list(values) if named is None else named) + "\n"


def _replace_marks(word: str, marks: Mapping[str, str]) -> str:
    """Return the word with all marks replaced; replacements are not searched for marks."""
    for mark, text in marks.items():
        if mark in word:
            return text.join(_replace_marks(part, marks) for part in word.split(mark))
    return word


class SubprocessEvaluator:
    """Evaluates vectors with a program, one after the other; an `Evaluator`."""

    def __init__(self, command: Command, identity: str = "") -> None:
        self._command, self.identity = command, identity
        self._runner = ProgramRunner()
        self._root: Path | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._prefix, self._number = f"{os.getpid()}", 0

    def open(self, run: RunContext) -> None:
        """Use scratch directories in the run directory.

        Those of this rank from a killed run are removed. Rank 0 also removes those of ranks that do
        not exist in this run.
        """
        self._root, self._prefix = run.directory / SCRATCH, f"rank_{run.rank}_{os.getpid()}"
        for old in self._root.glob("rank_*"):
            rank = old.name.split("_")[1]
            if rank == str(run.rank) or (
                run.rank == 0 and rank.isdigit() and int(rank) >= run.ranks
            ):
                shutil.rmtree(old, ignore_errors=True)

    def evaluate(
        self, vectors: Float64, seeds: Sequence[int], poll: Poll
    ) -> list[EvaluationResult]:
        return [
            self._evaluate_one(values, seed, poll)
            for values, seed in zip(vectors.tolist(), seeds, strict=True)
        ]

    def _evaluate_one(self, values: Sequence[float], seed: int, poll: Poll) -> EvaluationResult:
        scratch = self._new_scratch()
        since = time.monotonic()
        parameters, result_file = scratch / "parameters", scratch / "result"
        parameters.write_text(self._command.format_parameters(values), encoding="utf-8")
        words = self._command.with_paths(parameters, result_file, seed)
        environment = program_environment(os.environ, self._command.environment)
        ended = self._runner.run(words, scratch, environment, self._command.timeout_seconds, poll)
        try:
            self._check_exit(ended)
            seconds, quantities = time.monotonic() - since, self._command.quantities
            content = _read_result(result_file, bool(quantities.names))
            result = read_result(content, quantities, seconds)
        except (OSError, ValueError) as error:
            failure = Failure(str(error), one_line(str(error)))
            result = EvaluationResult(math.nan, failure, time.monotonic() - since)
        if result.failure is None:
            shutil.rmtree(scratch, ignore_errors=True)
            return result
        stderr = _end_of_file(scratch / STDERR)
        text = "; ".join(
            filter(None, [result.failure.text, _last_lines(stderr), self._keep_scratch(scratch)])
        )
        return EvaluationResult(
            math.nan, replace(result.failure, text=one_line(text), details=stderr), result.seconds
        )

    def _check_exit(self, ended: ProgramExit) -> None:
        """Raise ValueError if the program failed."""
        program = self._command.words[0]
        if ended.error is not None:
            raise ValueError(f"{program} could not be started: {ended.error}")
        if ended.timed_out:
            limit = self._command.timeout_seconds
            raise ValueError(f"{program} took longer than task.timeout_seconds: {limit:g}")
        if ended.status:
            how = f"signal {-ended.status}" if ended.status < 0 else f"status {ended.status}"
            raise ValueError(f"{program} ended with {how}")

    def _new_scratch(self) -> Path:
        if self._root is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hpc_es_")
            self._root = Path(self._temporary.name)
        scratch = self._root / f"{self._prefix}_{self._number}"
        self._number += 1
        scratch.mkdir(parents=True)
        return scratch

    def _keep_scratch(self, scratch: Path) -> str:
        """Rename the directory of a failure to a free name, or remove it.

        Returns:
            A text for the log.
        """
        assert self._root
        for number in range(KEPT_FAILURES):
            kept = self._root / f"failed_{number}"
            if not kept.exists():
                with contextlib.suppress(OSError):  # another rank has just taken the name
                    scratch.rename(kept)
                    return f"kept in {kept}"
        shutil.rmtree(scratch, ignore_errors=True)
        return f"not kept: {self._root} has {KEPT_FAILURES} already"

    def close(self) -> None:
        """End the running program, if there is one, and the supervisor."""
        self._runner.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def _read_result(path: Path, whole: bool = False) -> object:
    """Return the number in a result file, or JSON that has more than a number.

    Raises:
        ValueError: there is none.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_RESULT_BYTES + 1)
    except FileNotFoundError:
        raise ValueError(
            "no result was written: expected a number or JSON in the file {result}"
        ) from None
    if len(content) > LARGEST_RESULT_BYTES:
        raise ValueError(
            f"the result is larger than {LARGEST_RESULT_BYTES:,} bytes: expected a number or JSON"
        )
    text = content.decode(errors="replace").strip()
    with contextlib.suppress(ValueError):
        return float(text)
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        result = None
    if whole and result is not None:
        return result
    if isinstance(result, dict) and any(result.get(group) for group in DECLARED):
        return result  # which says what is not declared
    value = result.get("value") if isinstance(result, dict) else result
    if isinstance(value, int | float) and not isinstance(value, bool):
        return as_float(value)
    raise ValueError(
        f'the result is {escaped(text[:60])!s}: expected a number, or JSON such as {{"value": 1.5}}'
    )


def _end_of_file(path: Path) -> str:
    """Return the end of a program's output, "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MAX_DETAILS, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "".join(f"{escaped(line)}\n" for line in lines)


def _last_lines(stderr: str) -> str:
    """Return the last lines that a program wrote, joined into one line."""
    lines = [line.strip() for line in stderr[-LAST_CHARACTERS:].splitlines() if line.strip()][
        -LAST_LINES:
    ]
    return f"stderr: {' | '.join(lines)}" if lines else ""


def escaped(text: str) -> str:
    """Return the text with control characters (escape sequences, line ends) as backslash codes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
