"""Benchmarks on functions: statistics of trials, repetition of trials, and the end of a trial."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.functions import __main__ as command
from benchmarks.functions import cost, job, profiles, ranks, tables, trials
from benchmarks.functions.contenders import Contender, contenders
from benchmarks.functions.trials import Counted, Trial
from hpc_es.core.errors import UserError


def row(
    strategy: str, evaluations: int, solved: bool = True, function: int = 1, dimension: int = 2
) -> dict[str, Any]:
    """A trial."""
    named = {"strategy": strategy, "function": function, "dimension": dimension, "instance": 1}
    return {
        **named,
        "solved": solved,
        "evaluations": evaluations,
        "best": 0.5,
        "reason": "target",
        "seconds": 0.1,
    }


class Bowl:
    """A problem of cocoex, of the values 5, 4, 3 ...; it is solved at 0."""

    def __init__(self) -> None:
        self.value = 6.0

    @property
    def final_target_hit(self) -> int:
        return int(self.value <= 0)

    def __call__(self, x: Any) -> float:
        self.value -= 1
        return self.value


def trial(**changes: Any) -> Trial:
    return Trial(
        **{
            "contender": Contender("cma_es"),
            "function": 1,
            "dimension": 2,
            "instance": 1,
            **changes,
        }
    )


def test_data_profile_counts_solved_problems_per_dimension() -> None:
    rows = [row("a", 40), row("a", 50, dimension=5), row("a", 30, solved=False), row("a", 90)]
    assert profiles.data_profile(rows) == ([10.0, 20.0, 45.0], [0.25, 0.5, 0.75])
    assert profiles.data_profile([row("a", 9, solved=False)]) == ([], [])
    assert profiles.share_solved(rows) == 0.75


def test_unsolved_trial_is_infinite_in_the_median_and_counts_in_the_expectation() -> None:
    rows = [row("a", 100), row("a", 300), row("a", 1000, solved=False)]
    assert profiles.median_evaluations(rows) == 300
    assert profiles.expected_evaluations(rows) == 1400 / 2
    assert (
        profiles.median_evaluations(rows[2:]) == profiles.expected_evaluations(rows[2:]) == math.inf
    )


BASE = [row("pycma", 200), row("pycma", 200), row("pycma", 200)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ""),
        ([row("a", 100), row("a", 150), row("a", 170)], "150 (0.75)"),
        ([row("a", 100), row("a", 250), row("a", 999, solved=False)], "250 (1.25), 2/3"),
        (
            [row("a", 100), row("a", 250, solved=False), row("a", 250, solved=False)],
            "ERT 600 (3.00), 1/3",
        ),
        ([row("a", 100, solved=False)] * 2, "0/2"),
    ],
)
def test_table_cell_has_the_expected_text(rows: Any, expected: str) -> None:
    assert tables.cell(rows, BASE) == expected


def test_tables_separate_searches_with_restarts() -> None:
    restarted = [row("cma_es-ipop", 500, function=15), row("pycma-bipop", 250, function=15)]
    lines = tables.markdown(
        [*BASE, row("cma_es", 100), row("snes", 300, dimension=5), *restarted]
    ).splitlines()
    assert "| function | n | pycma | cma_es | snes |" in lines
    assert "| f1 | 2 | 200 | 100 (0.50) |  |" in lines
    assert "| f1 | 5 |  |  | 300 |" in lines
    assert "| f15 | 2 | 250 | 500 (2.00) |" in lines
    assert "| strategy | n = 2 | n = 5 |" in lines and "| snes |  | 1.00 |" in lines


def test_trials_with_another_noise_are_compared_in_pairs() -> None:
    """Ratios of 2 and 8 have the geometric mean 4; the standard error of the mean of their
    logarithms is ln 4 / 2.

    The interval is 4 / 4^.98 to 4 * 4^.98. Distances of 1 and 1.5 to the best value of all, -0.5,
    have the ratio 1.5.
    """
    rows = [
        row("snes", 100),
        row("snes", 100, function=2),
        row("snes", 9, function=8, solved=False),
    ]
    counts = zip(rows, (200, 800, 9), strict=True)
    rows += [{**one, "strategy": "snes+portable", "evaluations": count} for one, count in counts]
    rows += [{**row("es", 9, solved=False, function=f), "best": 0.5} for f in (1, 2)]
    rows += [{**row("es+portable", 9, solved=False, function=f), "best": 1.0} for f in (1, 2)]
    rows += [{**row("pycma", 1, function=f), "best": -0.5} for f in (1, 2)]
    lines = tables.noise_markdown(rows, "portable").splitlines()
    assert "| snes | 2 | 3 | 2 | 2 | evaluations | 4.000 (1.028 to 15.562) |" in lines
    assert "| es | 2 | 2 | 0 | 0 | distance | 1.500 (1.500 to 1.500) |" in lines


def test_all_trials_are_in_the_csv_file_and_the_plot(tmp_path: Path) -> None:
    rows = [row("pycma", 20), row("pycma-bipop", 60, function=15, dimension=10)]
    first, *others = tables.csv_text(rows).splitlines()
    assert first.startswith("strategy,function,dimension,instance,solved,evaluations")
    assert [line.split(",")[5] for line in others] == ["20", "60"]
    profiles.draw(rows, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_trials_in_the_table_of_the_repository_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    rows = [{**row("pycma", 20), "best": -1.5, "reason": "target", "seconds": 0.25}]
    table, file = tmp_path / "bbob.csv", tmp_path / "trials.jsonl"
    table.write_text(tables.csv_text(rows))
    monkeypatch.setattr(command, "COMMITTED", table)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    asked = [
        "bbob",
        "--trials",
        str(file),
        "--only",
        "pycma",
        "--functions",
        "1",
        "--dimensions",
        "2",
        "--list",
    ]
    assert command.main(asked) == 0
    assert trials.read(file) == rows
    said = capsys.readouterr().out
    assert "1 trials taken from bbob.csv" in said and "5 trials, 4 of them missing" in said


@pytest.mark.long
def test_searches_on_mixed_and_constrained_functions_are_counted(
    tmp_path: Path, capsys: Any
) -> None:
    for words in (["mixed", "--sizes", "4"], ["constrained", "--functions", "g04", "g06", "g07"]):
        table = tmp_path / f"{words[0]}.csv"
        only = "cma_es" if words[0] == "mixed" else "cma_es augmented_lagrangian"
        assert command.main([*words, "--runs", "1", "--only", only, "--csv", str(table)]) == 0
        counts = [int(line.split(",")[-1]) for line in table.read_text().splitlines()[1:]]
        assert len(counts) == (6 if words[0] == "mixed" else 3) and all(
            50 < count < 10_000 for count in counts
        )
        # known trials are not repeated
        table.write_text(table.read_text().replace(f",{counts[0]}\n", ",7\n", 1))
        assert command.main([*words, "--runs", "1", "--only", only, "--csv", str(table)]) == 0
        assert [int(line.split(",")[-1]) for line in table.read_text().splitlines()[1:]] == [
            7,
            *counts[1:],
        ]
    assert "| 4 | SphereInt |" in capsys.readouterr().out


def test_planned_trials_have_restarts_and_fewer_large_dimensions() -> None:
    names = {
        (item.contender.name, item.function, item.dimension)
        for item in trials.plan(contenders(), [1, 15], [2, 40], [1])
    }
    assert {
        ("cma_es-bipop", 15, 2),
        ("pycma-bipop", 15, 2),
        ("es", 1, 2),
        ("cma_es", 15, 40),
    } <= names
    assert not {("cma_es-bipop", 1, 2), ("es", 1, 40), ("snes", 1, 40), ("ga", 1, 2)} & names
    assert {item.name: item.budget for item in contenders()}["es"] == 1000


def test_recorded_trials_are_not_repeated_except_incomplete_lines(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    wanted = [trial(instance=instance) for instance in (1, 2, 3)]
    assert trials.missing(wanted, file) == wanted
    whole = json.dumps(row("cma_es", 10)) + "\n"
    file.write_text(whole + whole.replace('"instance": 1', '"instance": 2')[:-1])
    assert trials.missing(wanted, file) == wanted[1:]
    assert trials.missing([trial(contender=Contender("cma_es", "ipop"))], file) != []
    trials.drop_cut_line(file)
    assert file.read_text() == whole


@pytest.mark.parametrize(
    ("budget", "evaluations", "solved", "reason"),
    [(99, 6, True, "target"), (6, 6, True, "target"), (4, 4, False, "budget")],
)
def test_trial_ends_at_the_target_or_the_budget(
    budget: int, evaluations: int, solved: bool, reason: str
) -> None:
    counted = Counted(Bowl(), budget)
    result = trials.search(trial(), counted)
    assert (result["evaluations"], result["solved"], result["reason"]) == (
        evaluations,
        solved,
        reason,
    )
    assert result["best"] == 6 - evaluations


def test_trial_records_why_the_strategy_ended() -> None:
    class Plateau(Bowl):
        def __call__(self, x: Any) -> float:
            return 1.0

    result = trials.search(trial(), Counted(Plateau(), 10_000))
    assert (
        not result["solved"]
        and result["reason"] == "tolflatfitness"
        and result["evaluations"] < 100
    )


def test_trials_are_run_once(tmp_path: Path, capsys: Any) -> None:
    """Two built-in strategies and pycma on the sphere in two dimensions:
    pycma needs 188 to 300 evaluations.
    """
    pytest.importorskip("cma")
    pytest.importorskip("cocoex")
    file, wanted = tmp_path / "trials.jsonl", [trial(), trial(contender=Contender("pycma"))]
    assert trials.run(wanted, file, 2) == 0
    result = {item["strategy"]: item for item in trials.read(file)}
    assert sorted(result) == ["cma_es", "pycma"] and trials.missing(wanted, file) == []
    assert all(item["solved"] and 150 < item["evaluations"] < 400 for item in result.values())
    assert "2/2" in capsys.readouterr().out


def test_failed_trial_is_reported_and_not_recorded(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("cma")
    pytest.importorskip("cocoex")
    assert trials.run([trial(contender=Contender("no_such"))], tmp_path / "trials.jsonl", 1) == 1
    assert "failed: ConfigError" in capsys.readouterr().out
    assert trials.read(tmp_path / "trials.jsonl") == []


def test_missing_package_is_reported_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(
        UserError, match=r"bbob needs cma, which is not installed: pip install 'hpc_es\[oracles\]'"
    ):
        trials.run([], tmp_path / "trials.jsonl", 1)
    with pytest.raises(UserError, match=r"cost needs cma"):
        next(cost.rows(["*"], 10, 1, False))


def test_rounds_alternate_and_average_generations() -> None:
    class Timed:
        def __init__(self, seconds: list[float]) -> None:
            self.seconds = iter(seconds)

        def generation(self, rng: Any) -> float:
            return next(self.seconds)

    asked = {"a": Timed([9, 1, 3, 5, 7]), "b": Timed([9, 2, 2, 4, 4])}  # the first of each warms up
    assert cost.alternated(asked, 2, 2) == {"a": [2.0, 6.0], "b": [2.0, 4.0]}


def test_rate_excludes_the_first_generation() -> None:
    assert job.Spec(population=ranks.POPULATION).rate([2.0, 4.0]) == 64 * 2 / 6


def test_jobs_and_loops_report_their_rates() -> None:
    """Two ranks that sleep 10 ms for each of 10 evaluations do at most 200 per second."""
    assert 20 < job.Spec(generations=10, work="sleep", seconds=0.01).run(2) <= 200
    seconds = job.Spec("cma_es", size=3, population=4, generations=5).run(2)
    assert len(seconds) == 4 and min(seconds) > 0
