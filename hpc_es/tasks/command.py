"""`task: {kind: command}`: an external program of any language, which reads parameters and writes a result.

    task: {kind: command, command: ["./simulate", "{parameters}", "{result}"], dimension: 12}

No shell is between. `{parameters}` and `{result}` are replaced by absolute paths, `{seed}` by a number that is the same
for both halves of a mirrored pair, `{config}` by the config's directory, other words are left alone. The parameters are
a JSON list, or an object where they have names (`format: text`: a number a line); the result is a number, or a JSON
object with a `value`, of at most 1 MB. The program is looked for relative to the config, or in PATH where its name has
no slash; it runs in a scratch directory, RUN/scratch/..., which is kept of failures (10 at most). It may start MPI
itself: environment.py says what it gets, supervisor.py how it ends with its rank.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from hpc_es.config.options import option, options
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.interfaces import Offers
from hpc_es.core.paths import config_directory
from hpc_es.tasks.function import VectorTask, first_vector
from hpc_es.tasks.functions.options import ConfigProblem, Search
from hpc_es.tasks.functions.subprocess_evaluator import CONFIG, PARAMETERS, RESULT, Command, External, Format

OFFERS = Offers(problems=("vectors",), values=True, any_chunks=True)
BESIDE = f"{CONFIG}/"


@options
class Options(Search):
    """`task:` with `kind: command`."""

    kind: Literal["command"] = option("name of the task", "command")
    command: Annotated[tuple[str, ...], MinLen(1)] = option(
        "the program and its arguments, such as ['./simulate', '{parameters}', '{result}']"
    )
    format: Format = option(
        "of the parameters: json (a list, or an object with names), or text (a number a line)", "json"
    )
    environment: Mapping[str, str] = option(
        "variables for the program, such as {OMP_NUM_THREADS: '4'}", default_factory=dict
    )

    def problems(self) -> Iterator[ConfigProblem]:
        """Mistakes that no single field shows: (key, text)."""
        yield from super().problems()
        for mark in (PARAMETERS, RESULT):
            if not any(mark in word for word in self.command[1:]):
                yield "command", f"has no {mark} in its arguments: the program could not know the file"


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the program, and of the files beside the config that its arguments name; nothing is run."""
    first, *rest = section["command"]
    files = {first: _place(first, directory)}
    files |= {word: directory / word.removeprefix(BESIDE) for word in rest if word.startswith(BESIDE)}
    return {name: _hash(path) if path is not None and path.is_file() else "" for name, path in files.items()}


def build(options: Options, repetition: int = 0) -> VectorTask:
    """Return the task of `task: {kind: command}`; ConfigError where there is no such program."""
    problems, directory = Problems(), config_directory()
    with problems.collect():
        program = _program(options.command[0], directory)
    with problems.collect():
        first = first_vector(options)
    problems.raise_any()
    command = Command(
        (str(program), *options.command[1:]),
        directory,
        tuple(options.parameters or ()),
        options.format,
        math.inf if options.timeout_seconds is None else options.timeout_seconds,
        options.environment,
    )
    hashes = sources({"command": options.command}, directory)
    identity = json.dumps([hashes, options.command[1:], options.format, dict(options.environment)])
    return VectorTask(Path(options.command[0]).name, options, first, External(command, identity))


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _place(word: str, directory: Path) -> Path | None:
    """Return where a program is, or should be; None where PATH has none of this name."""
    if "/" in word:
        return Path(os.path.normpath(directory.absolute() / word))
    found = shutil.which(word)
    return Path(found).absolute() if found else None


def _program(word: str, directory: Path) -> Path:
    path = _place(word, directory)
    if path is None:
        text = f"there is no program {word!r} in PATH (beside the config it would be './{word}')"
        raise ConfigError([("task.command", text)])
    if not path.is_file():
        raise ConfigError([("task.command", f"there is no program {path} ({word!r} is relative to the config)")])
    if not os.access(path, os.X_OK):
        raise ConfigError([("task.command", f"{path} is not executable: chmod +x {path}")])
    return path
