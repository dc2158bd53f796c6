"""The table of program searches, from hand-written results."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_es import cli
from hpc_es.core.errors import UserError
from hpc_es.programs import table as table_module
from hpc_es.programs.brainfuck import evaluate
from hpc_es.programs.coding_cases import TASKS
from hpc_es.programs.coding_tasks import make_task
from hpc_es.programs.table import ProgramCheck, _Cycle, check_program, fresh_cases
from tests.helpers.harness import ROOT
from tests.helpers.time_limit import time_limit


def row(
    repetition: int, success: bool, npe: int, name: str = "ga-1K", task: str = "add", **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "task": task,
        "seed": 0,
        "repetition": repetition,
        "repetitions": 3,
        "success": success,
        "npe": npe,
        "seconds": 1.0,
        "budget": {"episodes": 1000},
        "code_solution": "+." if success else "",
        "best_reward": 0.5,
        "best_correct": False,
        "best_program": ",.",
        **more,
    }


def run(directory: Path, *rows: dict[str, Any]) -> Path:
    (directory / "results").mkdir(parents=True)
    (directory / "results" / "0-of-1.jsonl").write_text(
        "".join(json.dumps(item) + "\n" for item in rows)
    )
    return directory


@pytest.fixture
def created(tmp_path: Path) -> Path:
    """Two algorithms and three tasks; one pair was never run, one is not complete."""
    run(tmp_path / "a", row(0, True, 100), row(1, False, 1000), row(2, True, 400))
    run(tmp_path / "b", row(0, False, 1000, task="reverse"), row(1, False, 1000, task="reverse"))
    run(
        tmp_path / "c",
        *(row(i, True, 10 + i, "rand-1K", code_solution="+" * (9 - i)) for i in range(3)),
    )
    run(tmp_path / "d", *(row(i, False, 1000, "rand-1K_zigzag", "zigzag") for i in range(3)))
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("npe", "x"),
        ("npe", 10**400),
        ("task", float("nan")),
        ("budget", 3),
        ("best_program", None),
        ("success", []),
    ],
)
def test_result_of_other_types_is_named(name: str, value: Any, tmp_path: Path) -> None:
    run(tmp_path / "a", {**row(0, True, 100), name: value})
    with pytest.raises(
        UserError, match=f"expected (a result|results of a search).*{name}: expected"
    ):
        table_module.read_table([tmp_path / "a"])


def test_table_of_searches_by_hand(created: Path) -> None:
    """add by ga: 2 of 3, (100 + 1000 + 400) / 3 = 500; reverse is first, as in the paper;
    others last.
    """
    assert table_module.table_text(table_module.read_table([created])) == (
        "task               ga-1K            rand-1K\n"
        "reverse            2* [0.00, 1000]\n"
        "add                3 [0.67, 500]    3 [1.00, 11]\n"
        "zigzag                              3 [0.00, 1000]\n"
        "mean success rate  0.33             0.50\n"
        "* repetitions are missing\n"
    )
    cell = table_module.read_table([created]).cells["add", "ga-1K"]
    assert (cell.success_npe, cell.missing) == (250.0, 0)


def test_table_with_a_limit_by_hand(created: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Within 150 programs ga has 1 of 3, at 100: (100 + 150 + 150) / 3 = 133."""
    with pytest.raises(SystemExit, match="0"):
        cli.main(["program-table", "--npe-limit", "150", str(created)])
    assert capsys.readouterr().out == (
        "task               ga-1K           rand-1K\n"
        "reverse            2* [0.00, 150]\n"
        "add                3 [0.33, 133]   3 [1.00, 11]\n"
        "zigzag                             3 [0.00, 150]\n"
        "mean success rate  0.17            0.50\n"
        "* repetitions are missing\n"
    )
    assert "ga-1K (150 NPE)" in table_module.as_csv(table_module.read_table([created], 150))
    with pytest.raises(UserError, match="repetition 1 gave up after 1000 programs"):
        table_module.read_table([created], 1001)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["program-table", "--npe-limit", "0", str(created)])


def test_table_has_the_best_rewards(tmp_path: Path) -> None:
    run(
        tmp_path / "a",
        *(row(i, False, 1000, best_reward=reward) for i, reward in enumerate((0.2, 0.3, 0.1))),
    )
    run(tmp_path / "b", row(0, True, 3, "rand-1K", best_reward=0.98765))
    assert table_module.table_text(table_module.read_table([tmp_path]), rewards=True) == (
        "task  ga-1K    rand-1K\nadd   3 0.200  1* 0.988\n* repetitions are missing\n"
    )


def test_repetitions_with_a_cycle_are_grouped_by_task(tmp_path: Path) -> None:
    """Five repetitions of [add, echo, echo]: 0 3 are add, 1 2 4 echo;
    repetition 4 of seed 1 has not finished.
    """
    names = ["add", "echo", "echo", "add", "echo"]
    for seed in (0, 1):
        rows = [
            row(i, True, 10, task=name, repetitions=5, seed=seed) for i, name in enumerate(names)
        ]
        run(tmp_path / str(seed), *rows[: 5 - seed])
        (tmp_path / str(seed) / "config.yaml").write_text(
            "task: {kind: programs, cycle: [add, echo, echo]}\n"
        )
    cells = table_module.read_table([tmp_path]).cells
    assert {task: (len(cell.rows), cell.missing) for (task, _), cell in cells.items()} == {
        "add": (4, 0),
        "echo": (5, 1),
    }
    (tmp_path / "0" / "config.yaml").write_text("task: [1]\n")
    table = table_module.read_table([tmp_path])
    (said,) = table.unreadable
    assert "0/config.yaml: expected the config of a search for programs" in said
    assert {task: len(cell.rows) for (task, _), cell in table.cells.items()} == {
        "add": 2,
        "echo": 2,
    }


def test_runs_that_cannot_be_read_hide_no_others(
    created: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = table_module.table_text(table_module.read_table([created]))
    run(created / "damaged", row(0, True, 100, seed="\x1b"))
    run(created / "linked")
    (created / "linked" / "result.json").symlink_to(created / "file")
    run(created / "pipe")
    os.mkfifo(created / "pipe" / "result.json")
    (created / "text").mkdir()
    (created / "text" / "result.json").write_text("no json\x1b")
    assert cli.run(["program-table", str(created)]) == 0
    shown = capsys.readouterr()
    assert shown.out == expected and "\x1b" not in shown.err
    assert [line.partition(":")[0] for line in shown.err.splitlines()] == ["unreadable"] * 4


def test_programs_and_tasks_of_others_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    escape = "\x1b]0;title\x07"
    run(tmp_path / "a", row(0, True, 100, task=f"t{escape}", code_solution=f"+{escape}"))
    assert cli.run(["program-table", str(tmp_path / "a"), "--shortest"]) == 0
    out = capsys.readouterr().out
    assert out.count("\\x1b]0;title\\x07") == 2 and "\x1b" not in out


def test_task_in_which_no_program_got_a_reward(tmp_path: Path) -> None:
    run(tmp_path / "a", row(0, False, 1000, best_reward=None))
    table = table_module.read_table([tmp_path])
    assert "1* no reward" in table_module.table_text(table, rewards=True)


def test_long_program_is_not_shortened(tmp_path: Path) -> None:
    """Shortening executes as many programs as the cube of the length."""
    padding = "><" * 600
    run(tmp_path / "a", row(0, True, 100, task="echo", code_solution=f",[.,]{padding}"))
    text = table_module.shortest(table_module.read_table([tmp_path]))
    assert "(1,205 characters" in text and "does the same" not in text


def test_picture_of_very_many_searches_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a", *(row(i, True, 1, task=f"task {i}") for i in range(201)))
    with pytest.raises(UserError, match="has 201 tasks and 1 algorithms: expected at most 200"):
        table_module.draw(table_module.read_table([tmp_path]), tmp_path / "x.png")


def test_table_is_written_as_csv(created: Path) -> None:
    lines = list(csv.reader(table_module.as_csv(table_module.read_table([created])).splitlines()))
    assert lines == [
        ["", "ga-1K (1000 NPE)", "", "", "rand-1K (1000 NPE)", "", ""],
        ["task", "reps", "success rate", "mean NPE", "reps", "success rate", "mean NPE"],
        ["reverse", "2", "0.00", "1000", "", "", ""],
        ["add", "3", "0.67", "500", "3", "1.00", "11"],
        ["zigzag", "", "", "", "3", "0.00", "1000"],
    ]


def test_names_of_algorithms_are_no_formulas_in_the_csv(tmp_path: Path) -> None:
    run(tmp_path / "a", row(0, True, 100, "=1+1_add", "add"))
    head = table_module.as_csv(table_module.read_table([tmp_path])).splitlines()[0]
    assert head.startswith(",'=1+1")


def test_table_has_the_shortest_correct_programs(created: Path) -> None:
    """The best program of ga is not correct, so its first solutions count."""
    assert table_module.shortest(table_module.read_table([created])) == (
        "reverse  none\nadd  +.  (2 characters, by ga-1K)\nzigzag  none\n"
    )
    best = row(
        0,
        True,
        5,
        "simpl",
        task="echo",
        code_solution="+++.",
        best_correct=True,
        best_program=".",
        seed=1,
    )
    run(created / "more", best)
    assert ".  (1 characters, by simpl, R=0.500000)" in table_module.shortest(
        table_module.read_table([created / "more"])
    )


def test_directories_can_be_listed_individually(created: Path) -> None:
    assert table_module.read_table([created / "c", created / "a"]).algorithms == [
        "rand-1K",
        "ga-1K",
    ]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (row(0, True, 100), "repetition 0 of ga-1K on add with seed 0 occurs twice"),
        (
            row(7, True, 100, budget={"episodes": 2000}),
            "ga-1K may execute 2000 programs here, and 1000 in another run",
        ),
    ],
)
def test_incompatible_runs_are_refused(created: Path, more: dict[str, Any], text: str) -> None:
    run(created / "z", more)
    with pytest.raises(UserError, match=text):
        table_module.read_table([created])


def test_directories_without_searches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a run directory"):
        table_module.read_table([tmp_path / "none"])
    with pytest.raises(UserError, match="expected finished searches for programs, found none"):
        table_module.read_table([tmp_path])
    without = {name: value for name, value in row(0, True, 1).items() if name != "npe"}
    with pytest.raises(UserError, match="expected finished searches for programs, found none"):
        table_module.read_table([run(tmp_path / "es", without)])


def test_unfinished_runs_are_left_out_and_reported(
    created: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (created / "e").mkdir()
    (created / "e" / "config.yaml").write_text("name: ga-1K\n")
    assert cli.run(["program-table", str(created / "a"), str(created / "e")]) == 0
    assert capsys.readouterr().err == f"not finished yet, and left out: {created / 'e'}\n"
    with pytest.raises(UserError, match="e: expected finished searches for programs, found none"):
        table_module.read_table([created / "e"])


def test_plot_has_a_field_for_each_cell(created: Path) -> None:
    table = table_module.read_table([created])
    ax = table_module.figure(table).axes[0]
    texts = {
        (round(text.get_position()[0]), round(text.get_position()[1])): text.get_text()
        for text in ax.texts
    }
    assert texts == {
        (0, 0): "0.00*\n1K NPE",
        (0, 1): "0.67\n500 NPE",
        (1, 1): "1.00\n11 NPE",
        (1, 2): "0.00\n1K NPE",
    }
    rates = ax.images[0].get_array()
    assert rates is not None
    assert rates[1].tolist() == pytest.approx([2 / 3, 1.0])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["reverse", "add", "zigzag"]


def test_numbers_are_abbreviated() -> None:
    assert [table_module.short(number) for number in (7, 999, 12_345, 20_000_000, 5e8)] == [
        "7",
        "999",
        "12.3K",
        "20M",
        "500M",
    ]


def test_program_table_prints_the_table(
    created: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / "out.csv"), str(tmp_path / "out.png")]
    assert cli.run(["program-table", str(created), "--csv", files[0], "--picture", files[1]]) == 0
    displayed = capsys.readouterr()
    assert displayed.out == table_module.table_text(table_module.read_table([created]))
    assert all(f"{file} written" in displayed.err for file in files)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert cli.run(["program-table", str(created), "--shortest"]) == 0
    assert capsys.readouterr().out.startswith("reverse  none")
    with pytest.raises(UserError, match=r"expected one of \.png"):
        cli.run(["program-table", str(created), "--picture", str(tmp_path / "out.gif")])


@pytest.mark.parametrize(
    ("name", "program", "shortest"),
    [
        # read, write until 0, write that; `+[,.]` is shorter still, but not in it
        ("echo", ">,+-[.,]<>.]", ",[.,]."),
        (
            "print",
            "+.[-]+ +.-+>+++.+.+.",
            "+.+.+.+.+.",
        ),  # a blank is not a command
        # the known program; cells need not be cleared
        ("remove-last", ",>,[[<.[-]>[-<+>]],].", ",>,[<.>>,]."),
    ],
)
def test_unnecessary_characters_are_removed(name: str, program: str, shortest: str) -> None:
    known = check_program(program, name)
    assert known is not None and known.shortest == shortest
    task = make_task(name)
    assert all(
        not task.score(shortest[:at] + shortest[at + 1 :]).correct for at in range(len(shortest))
    )


@pytest.mark.long
def test_program_that_memorises_the_cases_is_reported() -> None:
    known = check_program(by_heart("divide-2"), "divide-2")
    assert known is not None and known.fresh == 94 and known.solved <= 5  # correct by chance
    assert check_program(",[-[->>+<]>[<]<]>>.", "divide-2") == ProgramCheck(
        ",[-[->>+<]<]>>.", 94, 94
    )


def by_heart(name: str) -> str:
    """A program for the inputs of the task only, one number each: it counts down from one to the
    next.

    Cell 1 has what to write, cell 0 what is left of the input: 0 at the end of the stretch for this
    input.
    """
    wanted = {inputs[0]: output[0] for inputs, output in TASKS[name].cases(256)}
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
        fresh, own = (
            fresh_cases(name),
            {inputs for inputs, _ in TASKS[name].cases(TASKS[name].base)},
        )
        assert len(fresh) >= 25 and not own & {inputs for inputs, _ in fresh}
    for inputs, wanted in fresh_cases("reverse"):
        assert wanted == (*reversed(inputs), 0)
    for inputs, wanted in fresh_cases("echo"):
        assert wanted == inputs


def published_programs() -> Iterator[dict[str, str]]:
    with (ROOT / "docs/searches.csv").open() as file:
        yield from (line for line in csv.DictReader(file) if line["solved"] == "1")


def test_programs_in_the_docs_are_correct() -> None:
    """Executed by the reference interpreter, in full and in their shortest form,
    with the stated success rates.
    """
    lines = list(published_programs())
    assert len(lines) >= 8
    for line in lines:
        own = TASKS[line["task"]].cases(TASKS[line["task"]].base)
        fresh = fresh_cases(line["task"])
        for text in (line["program"], line["shortest"]):
            assert all(_is_right(text, line["task"], case) for case in own), line
            assert sum(_is_right(text, line["task"], case) for case in fresh) >= int(
                line["right"]
            ), line
        assert sum(_is_right(line["program"], line["task"], case) for case in fresh) == int(
            line["right"]
        ), line
        assert len(fresh) == int(line["fresh"])


def _is_right(program: str, task: str, case: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    inputs, wanted = case
    result = evaluate(program, inputs, TASKS[task].base)
    return result.success and tuple(result.output) == wanted


def test_incorrect_program_is_not_shortened() -> None:
    assert check_program(".", "echo") is None
    assert check_program("+.", "zigzag") is None
    assert check_program(",[.,].", "echo") == ProgramCheck(",[.,].", 25, 25)


def test_numbers_whose_sum_is_infinite_hide_no_table(tmp_path: Path) -> None:
    large = {"npe": 1.7e308, "best_reward": 1.7e308}
    rows = [{**row(number, False, 1), **large} for number in range(2)]
    run(tmp_path / "a", *rows)
    run(tmp_path / "b", row(0, True, 100, "simpl"))
    table = table_module.read_table([tmp_path])
    for rewards in (False, True):
        assert "simpl" in table_module.table_text(table, rewards)
    assert "simpl" in table_module.as_csv(table)


def test_long_cycle_is_counted_once_for_all_results() -> None:
    cycle = _Cycle(["add", "echo", "echo"] * 300_000)
    with time_limit(5):
        for repetitions in range(3_000):
            row: Any = {"task": "echo", "repetitions": 900_000 + repetitions}
            assert cycle.repetitions(row) == 600_000 + repetitions - -(-repetitions // 3)
    assert cycle.repetitions({"task": "other", "repetitions": 7}) == 7
