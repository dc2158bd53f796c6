"""Evaluation by a program: its files and words, and the result that it writes.

Each job runs in its own scratch directory, RUN/scratch/..., which is removed if the evaluation
succeeds. The first directories of failed evaluations of a run are kept, as failed_0 ... failed_9.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hpc_es.core.data import Float64, Poll
from hpc_es.core.errors import MAX_DETAILS, Failure, kind_of, one_line
from hpc_es.core.interfaces import RunContext
from hpc_es.core.quantities import NONE, Quantities
from hpc_es.tasks.functions.parameters import Scale, Value, decoded
from hpc_es.tasks.functions.program_environment import program_environment
from hpc_es.tasks.functions.program_runner import ProgramExit, ProgramRunner
from hpc_es.tasks.functions.results import DECLARED, EvaluationResult, as_float, read_result
from hpc_es.tasks.functions.scratch import Scratch, remove_old
from hpc_es.tasks.functions.supervisor import STDERR

SCRATCH = "scratch"  # folder in the run directory
PARAMETERS_FILE, RESULT_FILE = "parameters", "result"
LARGEST_RESULT_BYTES = 1_000_000
LAST_LINES, LAST_CHARACTERS = 5, 1000  # of stderr, in the log
PARAMETERS, RESULT, SEED, CONFIG = "{parameters}", "{result}", "{seed}", "{config}"
Format = Literal["json", "text"]


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

        def is_old(name: str) -> bool:
            kind, _, rest = name.partition("_")
            rank = rest.partition("_")[0]
            return kind == "rank" and (
                rank == str(run.rank)
                or (run.rank == 0 and rank.isdigit() and int(rank) >= run.ranks)
            )

        remove_old(self._root, is_old)

    def evaluate(
        self, vectors: Float64, seeds: Sequence[int], poll: Poll
    ) -> list[EvaluationResult]:
        return [
            self._evaluate_one(values, seed, poll)
            for values, seed in zip(vectors.tolist(), seeds, strict=True)
        ]

    def _evaluate_one(self, values: Sequence[float], seed: int, poll: Poll) -> EvaluationResult:
        with self._new_scratch() as scratch:
            return self._evaluate_in(scratch, values, seed, poll)

    def _evaluate_in(
        self, scratch: Scratch, values: Sequence[float], seed: int, poll: Poll
    ) -> EvaluationResult:
        since = time.monotonic()
        scratch.write(PARAMETERS_FILE, self._command.format_parameters(values).encode())
        paths = (scratch.path / PARAMETERS_FILE, scratch.path / RESULT_FILE)
        words = self._command.with_paths(*paths, seed)
        environment = program_environment(os.environ, self._command.environment)
        ended = self._runner.run(
            words,
            scratch.path,
            environment,
            limit_seconds=self._command.timeout_seconds,
            poll=poll,
            identity=scratch.identity,
        )
        try:
            self._check_exit(ended)
            seconds, quantities = time.monotonic() - since, self._command.quantities
            content = _read_result(scratch, bool(quantities.names))
            result = read_result(content, quantities, seconds)
        except (OSError, ValueError) as error:
            failure = Failure(str(error), one_line(str(error)))
            result = EvaluationResult(math.nan, failure, time.monotonic() - since)
        if result.failure is None:
            return result
        stderr = _end_of_output(scratch)
        text = "; ".join(filter(None, [result.failure.text, _last_lines(stderr), scratch.keep()]))
        # a program may end with the same status for many reasons
        reason = stderr.strip().rpartition("\n")[2]
        kind = f"{result.failure.kind}; {kind_of(reason)}" if reason else result.failure.kind
        failure = Failure(one_line(text), one_line(kind), stderr)
        return EvaluationResult(math.nan, failure, result.seconds)

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

    def _new_scratch(self) -> Scratch:
        if self._root is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hpc_es_")
            self._root = Path(self._temporary.name)
        scratch = Scratch(self._root / f"{self._prefix}_{self._number}")
        self._number += 1
        return scratch

    def close(self) -> None:
        """End the running program, if there is one, and the supervisor."""
        self._runner.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def _read_result(scratch: Scratch, whole: bool = False) -> object:
    """Return the number in a result file, or JSON that has more than a number.

    Raises:
        ValueError: there is none.
    """
    try:
        with scratch.open(RESULT_FILE) as file:
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


def _end_of_output(scratch: Scratch) -> str:
    """Return the end of a program's output, "" if there is none."""
    try:
        with scratch.open(STDERR) as file:
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
