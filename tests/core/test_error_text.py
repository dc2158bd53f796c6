"""Texts of exceptions of the user that cannot be printed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_es.core.errors import ConfigError, failure_from_error, message_lines, message_of
from tests.helpers import runs
from tests.helpers.harness import python


class SilentError(Exception):
    def __str__(self) -> str:
        return str(self.args[5])


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: ValueError("plain \u00e4"), "plain \u00e4"),
        (lambda: FileNotFoundError(os.fsdecode(b"data_\xff.csv")), "data_\\udcff.csv"),
        (lambda: ValueError("\ud800 x"), "\\ud800 x"),
        (lambda: SilentError("a"), "its text cannot be printed: IndexError"),
    ],
    ids=["text", "name of a file", "surrogate", "fails"],
)
def test_text_can_be_written_to_any_file(made: Callable[[], Exception], text: str) -> None:
    error = made()
    assert message_of(error) == text
    failure = failure_from_error(error)
    assert text in failure.text
    failure.text.encode()
    failure.details.encode()


def test_problem_of_a_config_is_one_line() -> None:
    """A library may quote a text of somebody else's config, such as the name of a keyword."""
    problems = [("task.env_kwargs", "got 'x\nWARNING: fake'"), ("seed", "is 0")]
    assert str(ConfigError(problems)).splitlines() == [
        "task.env_kwargs: got 'x WARNING: fake'",
        "seed: is 0",
    ]


def test_lines_of_messages_are_cut() -> None:
    """A file of tensors may have a name of eight million letters."""
    lines = message_lines(f"one\n{'z' * 8_000_000}\x1b\nlast").split("\n")
    assert lines[0] == "one" and lines[2] == "last" and len(lines[1]) < 10_100
    assert lines[1].endswith("zzz ... (8,000,004 letters)")
    assert message_lines("\x1b as it is" * 10) == r"\x1b as it is" * 10


def test_control_characters_are_shown_and_not_obeyed() -> None:
    failure = failure_from_error(ValueError("\x1b[31mred\r\n\x07 \u00e4 \ud800"))
    assert "\\x1b[31mred \\x07 \u00e4 \\ud800" in failure.text


MODULE = """
import os

class SilentError(Exception):
    def __str__(self):
        return self.args[5]

def name(x):
    if x[0] > 0.2:
        open(os.fsdecode(b"data_\\xff.csv"))
    return float(((x - 1) ** 2).sum())

def silent(x):
    if x[0] > 0.2:
        raise SilentError("a")
    return float(((x - 1) ** 2).sum())
"""


@pytest.mark.parametrize("function", ["name", "silent"])
def test_run_goes_on_and_counts_such_failures(function: str, tmp_path: Path) -> None:
    (tmp_path / "unprintable.py").write_text(MODULE)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"task: {{kind: function, function: 'unprintable:{function}', dimension: 2}}\n"
        "algorithm: {kind: cma_es}\nstop: {generations: 3}\n"
    )
    done = python(("-m", "hpc_es.main", str(config), "--output", str(tmp_path / "run")), 60)
    assert done.status == 0, str(done)
    assert sum(row["failed_evaluations"] for row in runs.rows(tmp_path / "run")) > 0
