"""programs.jsonl lists each correct program once, and is identical after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_es.core.errors import RunError
from hpc_es.storage import line_logs
from hpc_es.storage.line_logs import PROGRAMS, ProgramsLog, read_programs


def program(text: str, reward: float = 1.0) -> dict[str, Any]:
    return {"generation": 0, "npe": 1, "reward": reward, "length": len(text), "program": text}


def texts(directory: Path) -> list[str]:
    return [result["program"] for result in read_programs(directory)]


def test_log_lists_each_program_once_and_is_created_with_the_first(tmp_path: Path) -> None:
    log = ProgramsLog(tmp_path)
    log.cut({})
    log.write([])
    assert (log.lengths(), list(tmp_path.iterdir()), list(read_programs(tmp_path))) == ({}, [], [])
    log.write([program(".,"), program(".."), program(".,")])
    log.write([program(".."), program("+.")])
    line = '{"generation": 0, "npe": 1, "reward": 1.0, "length": 2, "program": ".,"}\n'
    assert (tmp_path / PROGRAMS).read_text() == line + line.replace(".,", "..") + line.replace(
        ".,", "+."
    )
    assert log.lengths() == {PROGRAMS: 3 * len(line)}


def test_resume_truncates_the_log_and_reads_the_rest(tmp_path: Path) -> None:
    log = ProgramsLog(tmp_path)
    log.write([program("a")])
    at_checkpoint = log.lengths()
    log.write([program("b")])
    log.close()
    again = ProgramsLog(tmp_path)
    again.cut(at_checkpoint)
    assert texts(tmp_path) == ["a"]
    again.write([program("a"), program("c"), program("b")])
    assert texts(tmp_path) == ["a", "c", "b"]
    assert len(list(read_programs(tmp_path, at_checkpoint[PROGRAMS]))) == 1
    again.cut({})
    assert not (tmp_path / PROGRAMS).exists()


def test_incomplete_line_of_a_killed_run_is_ignored(tmp_path: Path) -> None:
    (tmp_path / PROGRAMS).write_text('{"program": "a", "reward": 1}\n{"program": "b", "rew')
    assert texts(tmp_path) == ["a"]


def test_missing_log_is_reported_and_later_lengths_are_correct(tmp_path: Path) -> None:
    lines: list[str] = []
    log = ProgramsLog(tmp_path, lines.append)
    log.cut({PROGRAMS: 50})
    assert "is missing: the correct programs found before this resume are lost" in lines[0]
    assert (log.lengths(), texts(tmp_path)) == ({PROGRAMS: 50}, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}\n", "has 3 bytes, but had 9"),
        ("12345678901\n", "byte 9 is not the end of a line"),
        ("{}345678\n", "expected a program"),
    ],
)
def test_damaged_log_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / PROGRAMS).write_text(text)
    with pytest.raises(RunError, match=message):
        ProgramsLog(tmp_path).cut({PROGRAMS: 9})
    assert (tmp_path / PROGRAMS).read_text() == text


def test_full_log_accepts_only_better_programs_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_logs, "MAX_PROGRAMS", 2)
    lines: list[str] = []
    log = ProgramsLog(tmp_path, lines.append)
    log.write([program("a", 0.5), program("b", 0.7), program("c", 0.6), program("d", 0.8)])
    assert [text.split(" has ")[1] for text in lines] == [
        "2 programs: from now on, only better ones are added"
    ]
    again = ProgramsLog(tmp_path, lines.append)
    again.cut(log.lengths())
    again.write([program("e", 0.8), program("f", 0.9)])
    assert texts(tmp_path) == ["a", "b", "d", "f"]
