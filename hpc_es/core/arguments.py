"""Command lines: a parser that reports a mistake in one line, and types of arguments."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpc_es.core.errors import Exit, nearest
from hpc_es.core.paths import absolute, expanded
from hpc_es.core.paths import config_source as expanded_source
from hpc_es.core.slurm import parse_time_limit

# help texts of options that several commands have
WHICH = (
    "theta to use (default: of a run the one with the better evaluation, of best.h5 the best one, "
    "of another checkpoint file that of its generation)"
)
TRUST = "run the custom code that the run names, whoever wrote it, this once (see hpc-es trust)"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with a suggestion for a misspelt option.

    If `passed_on` has a default, it receives the words after `--`.
    """

    def parse_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Parse options and positional arguments in any order."""
        words, rest = list(sys.argv[1:] if args is None else args), list[str]()
        if "--" in words and self.get_default("passed_on") is not None:
            words, rest = words[: words.index("--")], words[words.index("--") + 1 :]
        parsed: argparse.Namespace = super().parse_intermixed_args(words, namespace)
        if rest:
            parsed.passed_on = rest
        return parsed

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print the message and end the process.

        The exception tells this end from an exit of the user's code.
        """
        if message:
            self._print_message(message, sys.stderr)
        raise Exit(status)

    def error(self, message: str) -> NoReturn:
        """Print the message without the usage text, and exit with status 2."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            options = [
                action.option_strings[-1] for action in self._actions if action.option_strings
            ]
            remedy = nearest(unknown.split()[0].partition("=")[0], options)
            message += f"; the options are {', '.join(options)}{remedy}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def expanded_path(text: str) -> Path:
    """Return a path with ~ and variables replaced.

    Raises:
        ArgumentTypeError: a variable is not set.
    """
    return Path(_replaced(expanded, text))


def written_file(text: str) -> Path:
    """Return an absolute path likewise, for a file that is written after code of the user ran."""
    return absolute(expanded_path(text))


def config_source(text: str) -> str:
    """Return the path of a config likewise, and a config string as it is."""
    return _replaced(expanded_source, text)


def _replaced(replace: Callable[[str], str], text: str) -> str:
    try:
        return replace(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole_number(text: str) -> int:
    """Return a whole number of at least 1, such as 1000 or 1e3.

    Raises:
        ArgumentTypeError: the text is anything else.
    """
    if re.fullmatch(r"[1-9]\d*|\d+(\.\d*)?[eE]\+?\d{1,2}", text, re.ASCII):
        value = float(text)
        if value >= 1 and value.is_integer():
            return int(text) if text.isdigit() else int(value)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")


def seed(text: str) -> int:
    """Return a whole number from 0 to below 2**63; raise ArgumentTypeError for anything else."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to below 2**63, found {text!r}"
        )
    return int(text)


def positive(text: str) -> float:
    """Return a finite number above 0; raise ArgumentTypeError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value


def time_limit(text: str) -> str:
    """Return a time limit in a form of SLURM; raise ArgumentTypeError for anything else."""
    try:
        parse_time_limit(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def memory_size(text: str) -> str:
    """Return a size as SLURM takes it: megabytes, or a number with the unit K, M, G or T.

    Raises:
        ArgumentTypeError: the text is anything else.
    """
    size = re.fullmatch(r"(\d+)(?:([KMGT])(?:i?B)?)?", text, re.ASCII | re.IGNORECASE)
    if not size:
        raise argparse.ArgumentTypeError(
            f"expected megabytes, or a number with K, M, G or T, found {text!r}"
        )
    return size[1] + (size[2] or "").upper()


def word(text: str) -> str:
    """Return a name without spaces; raise ArgumentTypeError for anything else."""
    if not re.fullmatch(r"[\w.,@:+/-]+", text):
        raise argparse.ArgumentTypeError(f"expected a name without spaces, found {text!r}")
    return text


def member_name(text: str) -> str:
    """Return the name of a member of a front or archive, its cell, or measures near it."""
    from hpc_es.core.elites import MEMBER  # imports NumPy, which the command line does without

    of_archives = text.startswith(("cell=", "measures="))
    of_fronts = text == "knee" or text.startswith("best ")
    if not MEMBER.fullmatch(text) and not of_archives and not of_fronts:
        raise argparse.ArgumentTypeError(
            "expected a name such as g12j7, of a front knee or 'best OBJECTIVE', of an archive "
            f"cell=3,4 or measures=0.2,0.5, found {text!r}"
        )
    return text
