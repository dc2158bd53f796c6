"""The section of the report on searches for programs, against a count by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hpc_es.config import extensions
from hpc_es.core.extensions import Extension
from hpc_es.programs.report_sections import sections
from hpc_es.report.page import Section
from hpc_es.report.run_sections import _of_extensions
from hpc_es.report.run_summary import RunSummary


def run(name: str, state: str = "finished", **result: Any) -> RunSummary:
    config = {"name": name, "task": {"kind": "programs", "name": "reverse"}}
    return RunSummary(Path(name), config=config, state={"state": state}, result=result)


def cells(section: Section) -> list[list[str]]:
    rows = section.content[0]
    assert isinstance(rows, ElementTree.Element)
    return [["".join(cell.itertext()) for cell in row] for row in rows.iter("tr")][1:]


def test_repetitions_are_counted_by_task_and_search() -> None:
    runs = [
        run("ga", success=True, npe=100, code_solution=",>,.<."),
        run("ga", success=True, npe=300, code_solution=",."),
        run("ga", success=False, npe=500, code_solution=""),
        run("pg", success=False, npe=500, code_solution=""),
        run("pg", "running", success=False, npe=1, code_solution=""),
    ]
    (section,) = sections(runs)
    assert cells(section) == [
        ["reverse", "ga", "3", "67%", "300", ",."],
        ["reverse", "pg", "1", "0%", "500", ""],
    ]


@pytest.mark.parametrize(
    "result", [{}, {"npe": "5", "success": True}, {"npe": -1, "success": True}, {"npe": 5}]
)
def test_other_runs_have_no_section(result: dict[str, Any]) -> None:
    assert sections([run("es", **result)]) == []


@pytest.mark.parametrize("made", ["1 / 0", "[5]", "['x']"])
def test_section_that_cannot_be_made_is_an_error_in_the_page(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report has everything else."""
    (tmp_path / "wrong_sections.py").write_text(f"def sections(runs): return {made}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wrong_sections", raising=False)
    own = {"wrong": Extension(report_sections="wrong_sections:sections"), **extensions.own()}
    monkeypatch.setattr(extensions, "own", lambda: own)
    solved = run("ga", success=True, npe=100, code_solution=",.")
    wrong, programs = _of_extensions([solved])
    assert (wrong.id, programs.id) == ("wrong-error", "programs-programs")
    (note,) = wrong.content
    assert isinstance(note, ElementTree.Element)
    assert (note.text or "").startswith("The section of wrong cannot be made: ")
