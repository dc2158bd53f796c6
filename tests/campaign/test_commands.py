"""Commands on damaged files: what they must not do is found, and a few have no findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.commands import MEMORY, Done, forked
from tests.helpers.harness import ROOT, python


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (Done(0, "runs", "", 1), ""),
        (Done(2, "", "hpc-es: x.h5: damaged", 1), ""),
        (Done(None, "", "", 1), "did not end"),
        (Done(1, "", "Traceback (most recent call last):", 1), "traceback, status 1"),
        (Done(-11, "", "", 1), "traceback, status -11"),
        (Done(0, "", "", MEMORY + 1), "took too much memory"),
    ],
)
def test_what_a_command_must_not_do_is_found(done: Done, expected: str) -> None:
    assert done.verdict() == expected


def test_command_runs_in_a_child_with_its_output(tmp_path: Path) -> None:
    done = forked(["list", str(tmp_path)], tmp_path)
    assert "no runs" in done.out + done.errors and done.status in (0, 2)
    assert forked(["lisst"], tmp_path).status == 2


def test_few_commands_on_damaged_files_have_no_findings() -> None:
    words = ["-m", "tests.campaign.commands", "--commands", "12", "--seed", "5"]
    done = python(words, timeout_seconds=300, cwd=ROOT)
    assert done.status == 0 and "12 commands, 0 wrong" in done.stdout, str(done)
