"""The shortest form of a program, and new cases for it; programs and forms by hand."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest

from hpc_es.programs.brainfuck import evaluate
from hpc_es.programs.coding_cases import TASKS
from hpc_es.programs.coding_tasks import make_task
from hpc_es.programs.shorten import ProgramCheck, check_program, fresh_cases
from tests.helpers.harness import ROOT


@pytest.mark.parametrize(
    ("name", "program", "shortest"),
    [
        ("echo", ">,+-[.,]<>.]", ",[.,]."),  # read, write until 0, write that; `+[,.]` is shorter still, but not in it
        (
            "print",
            "+.[-]+ +.-+>+++.+.+.",
            "+.+.+.+.+.",
        ),  # a blank is no command
        ("remove-last", ",>,[[<.[-]>[-<+>]],].", ",>,[<.>>,]."),  # the known program; cells need not be cleared
    ],
)
def test_unnecessary_characters_are_removed(name: str, program: str, shortest: str) -> None:
    known = check_program(program, name)
    assert known is not None and known.shortest == shortest
    task = make_task(name)
    assert all(not task.score(shortest[:at] + shortest[at + 1 :]).correct for at in range(len(shortest)))


def test_program_that_memorises_the_cases_is_reported() -> None:
    known = check_program(by_heart("divide-2"), "divide-2")
    assert known is not None and known.fresh == 94 and known.solved <= 5  # right by luck
    assert check_program(",[-[->>+<]>[<]<]>>.", "divide-2") == ProgramCheck(",[-[->>+<]<]>>.", 94, 94)


def by_heart(name: str) -> str:
    """A program for the inputs of the task alone, one number each: it is counted down from one to the next.

    Cell 1 has what to write, cell 0 what is left of the input: 0 at the end of the stretch for this input.
    """
    wanted = {given[0]: output[0] for given, output in TASKS[name].cases(256)}
    text, last, value = ",", 0, 0
    for number in sorted(wanted):
        change = wanted[number] - value
        text += "-" * (number - last) + ">" + "+" * change + "-" * -change + "<["
        last, value = number, wanted[number]
    return text + "]" * len(wanted) + ">."


def test_new_cases_differ_from_those_of_the_task() -> None:
    """Tasks with fixed cases have none; each known program solves the new cases."""
    assert [name for name in ("print", "bool-logic", "fib", "find") if fresh_cases(name)] == []
    for name in ("reverse", "echo", "remove-char", "dedup", "add"):
        fresh, own = fresh_cases(name), {given for given, _ in TASKS[name].cases(TASKS[name].base)}
        assert len(fresh) >= 25 and not own & {given for given, _ in fresh}
    for given, wanted in fresh_cases("reverse"):
        assert wanted == (*reversed(given), 0)
    for given, wanted in fresh_cases("echo"):
        assert wanted == given


def found() -> Iterator[dict[str, str]]:
    with (ROOT / "docs/searches.csv").open() as file:
        yield from (line for line in csv.DictReader(file) if line["solved"] == "1")


def test_programs_in_the_docs_are_correct() -> None:
    """Executed by the reference interpreter, in full and in their shortest form, with the stated success rates."""
    lines = list(found())
    assert len(lines) >= 8
    for line in lines:
        own = TASKS[line["task"]].cases(TASKS[line["task"]].base)
        fresh = fresh_cases(line["task"])
        for text in (line["program"], line["shortest"]):
            assert all(_is_right(text, line["task"], case) for case in own), line
            assert sum(_is_right(text, line["task"], case) for case in fresh) >= int(line["right"]), line
        assert sum(_is_right(line["program"], line["task"], case) for case in fresh) == int(line["right"]), line
        assert len(fresh) == int(line["fresh"])


def _is_right(program: str, task: str, case: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    given, wanted = case
    result = evaluate(program, given, TASKS[task].base)
    return result.success and tuple(result.output) == wanted


def test_incorrect_program_is_not_shortened() -> None:
    assert check_program(".", "echo") is None
    assert check_program("+.", "zigzag") is None
    assert check_program(",[.,].", "echo") == ProgramCheck(",[.,].", 25, 25)
