"""`task: {kind: command}`: an external program, which reads parameters from a file.

    task: {kind: command, command: ["./simulate", "{parameters}", "{result}"], dimension: 12}

It writes a result to another file. The program is started without a shell. `{parameters}` and
`{result}` are replaced by absolute paths, `{seed}` by a number that is the same for both candidates
of an antithetic pair, and `{config}` by the config's directory. The parameters are a JSON list, or
a JSON object if they have names (`format: text`: one number per line). The result is a number, or a
JSON object with a `value`, of at most 1 MB.

The path of the program is relative to the config; a name without a slash is searched in PATH.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from hpc_es.config.options import Limits, option, options
from hpc_es.config.registry import config_directory
from hpc_es.core.data import ConfigData
from hpc_es.core.declarations import Offers
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.paths import expanded
from hpc_es.core.run_files import sha256_of
from hpc_es.tasks.functions.initial_points import initial_points
from hpc_es.tasks.functions.initial_vector import initial_vector
from hpc_es.tasks.functions.objective_task import ObjectiveTask
from hpc_es.tasks.functions.options import (
    OF_CONSTRAINTS,
    ConfigProblem,
    SearchOptions,
    offers_of_search,
    returned_quantities,
)
from hpc_es.tasks.functions.subprocess_evaluator import (
    CONFIG,
    PARAMETERS,
    RESULT,
    Command,
    Format,
    SubprocessEvaluator,
)

OFFERS = Offers(
    problems=("vectors",),
    values=True,
    any_chunks=True,
    metrics=OF_CONSTRAINTS,
    noisy=True,
)

_FILE = re.compile(re.escape(CONFIG) + r"/[^\s'\"`;|&<>()$]+")
SHELL_VARIABLE = re.compile(r"\$(?:[A-Za-z_]|\{)")


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
    """Return the SHA-256 of the program, and of the files of the config that its arguments name.

    These are in the config's directory ({config}/...), also within an argument, such as that of a
    shell; names of files that do not exist, such as those of a result, are left out. Nothing is
    executed.
    """
    first, *rest = section["command"]
    program: Path | None = None
    with contextlib.suppress(ValueError):  # a variable that is not set here
        program = _program_path(first, directory)
    files = {name: directory / name.removeprefix(f"{CONFIG}/") for name in _named_files(rest)}
    found = {name: sha256_of(path) for name, path in files.items() if path.is_file()}
    return {first: sha256_of(program) if program and program.is_file() else "", **found}


def _named_files(words: Sequence[str]) -> Iterator[str]:
    """Yield the files of the config that words name: as a whole, or up to a space or a sign of the
    shell.
    """
    for word in words:
        if word.startswith(f"{CONFIG}/"):
            yield word
        yield from _FILE.findall(word)


def programs(section: ConfigData) -> list[str]:
    """Return the names in `sources` that are executed: all, since a program reads its files."""
    first, *rest = section["command"]
    return [*dict.fromkeys([first, *_named_files(rest)])]


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
        raise ConfigError(
            [
                (
                    "task.command",
                    f"there is no program {word!r} in PATH (write './{word}' "
                    "for one in the config's directory)",
                )
            ]
        )
    if not path.is_file():
        raise ConfigError(
            [("task.command", f"there is no program {path} ({word!r} is relative to the config)")]
        )
    if not os.access(path, os.X_OK):
        raise ConfigError([("task.command", f"{path} is not executable: chmod +x {path}")])
    return path
