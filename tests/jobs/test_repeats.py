"""`task.repeats` in whole jobs: the same bits on any ranks, after kills and when a budget is
raised; what the files say; initial points; minimize and ask-and-tell.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import ConfigError
from hpc_es.storage.metrics_log import read_metrics
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec

MODEL = """
import json, os, pathlib
import numpy as np

PLAN = pathlib.Path(__file__).with_name("plan.json")


def cost(x, seed):
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    if plan:
        with open(plan["calls"], "ab") as file:
            file.write(b".")
        killed = pathlib.Path(plan["calls"] + ".killed")  # once, though ranks count together
        if os.path.getsize(plan["calls"]) >= plan["call"] and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), 9)
    if seed % 13 == 0:
        raise ValueError("bad luck")
    noise = np.random.default_rng(seed).standard_normal(2)
    value = float((x * x).sum() + 3 * noise[0])
    return {"value": value, "constraints": [1 - x[0] + noise[1]], "metrics": [noise[0]]}


def calm(x):
    return {"value": float((x * x).sum()), "constraints": [-1.0], "metrics": [0.0]}
"""
CONFIG = """
seed: 2
task: {kind: function, function: "my_repeated_cost:cost", dimension: 6, initial: 1.0, journal: true,
       constraints: [c], metrics: [m], repeats: {at_least: 1, at_most: 5}}
algorithm: {kind: cma_es, sigma: 0.5, population_size: 9}
evaluation: {interval: 4, evaluations: 6}
checkpoint: {interval: 2}
report: {plot_interval_seconds: 0}
stop: {generations: 7}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "my_repeated_cost.py").write_text(MODEL)
    return runs.tiny(tmp_path, CONFIG)


def start(config: Path, ranks: int, run: Path, *overrides: str) -> int:
    arguments = ["-m", "hpc_es.main", str(config), "--output", str(run), *overrides]
    return mpiexec(ranks, arguments, 120.0, cwd=ROOT).status


def facts(run: Path) -> dict[str, Any]:
    result = json.loads((run / "result.json").read_text())
    return {
        "digest": runs.digest(runs.newest(run)),
        "evaluations": (run / "evaluations.csv").read_text(),
        "rows": runs.rows(run),
        **{name: result[name] for name in ("answer", "best_evaluation")},
    }


def lines(run: Path) -> list[dict[str, str]]:
    with (run / "evaluations.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("algorithm.kind=snes",), marks=pytest.mark.long),
        pytest.param(("task.common_seeds=true",), marks=pytest.mark.long),
        pytest.param(("stop.generations=null", "stop.episodes=150"), marks=pytest.mark.long),
        pytest.param(("mpi.update=replicated",), marks=pytest.mark.long),
    ],
)
def test_search_is_equal_on_any_ranks_and_after_a_kill(
    options: tuple[str, ...], config: Path, tmp_path: Path
) -> None:
    assert start(config, 1, tmp_path / "one", *options) == 0
    expected = facts(tmp_path / "one")
    assert len({row["repeats"] for row in expected["rows"]}) > 1
    for ranks in (3, 5):
        assert start(config, ranks, tmp_path / f"ranks{ranks}", *options) == 0
        assert facts(tmp_path / f"ranks{ranks}") == expected, ranks
    for call in (14, 60):  # in the second evaluations of the first generation, and later
        plan, run = config.parent / "plan.json", tmp_path / f"killed{call}"
        plan.write_text(json.dumps({"calls": f"{run}.calls", "call": call}))
        assert start(config, 3, run, *options) != 0
        assert start(config, 2, run, *options) == 0
        plan.unlink()
        assert facts(run) == expected, call


@pytest.mark.long
def test_raised_budget_continues_a_generation_that_was_cut_within_its_repeats(
    config: Path, tmp_path: Path
) -> None:
    runs.here(config, tmp_path / "whole", ("stop.generations=null", "stop.episodes=90"))
    for episodes in (14, 90):  # 14: five second evaluations of the first generation
        options = ("stop.generations=null", f"stop.episodes={episodes}")
        runs.here(config, tmp_path / "raised", options)
    whole, raised = (runs.newest(tmp_path / name) for name in ("whole", "raised"))
    assert runs.digest(whole) == runs.digest(raised)
    assert raised.counters["episodes"] == 90


def test_files_have_means_and_count_all_evaluations(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.here(config, run, ())
    rows, written = read_metrics(run), lines(run)
    first = [line for line in written if line["generation"] == "0" and line["job"] != "-1"]
    assert len(first) == 9 and [row["repeats"] for row in rows[:1]] == [2.0]
    assert {int(line["repeats"]) for line in first} <= {0, 1, 2}
    assert all(line["c_standard_error"] != "nan" for line in first if line["repeats"] == "2")
    evaluations = sum(9 * int(row["repeats"]) for row in rows) + 2  # the centre, twice
    assert rows[-1]["evaluations_total"] == evaluations
    failed = sum(9 * int(row["repeats"]) for row in rows) - sum(
        int(line["repeats"]) for line in written if line["job"] != "-1"
    )
    of_centre = sum(line["value"] == "nan" for line in written if line["job"] == "-1")
    assert sum(row["failed_evaluations"] for row in rows) == failed + of_centre


def test_single_evaluation_of_the_centre_is_not_the_best_of_means(
    config: Path, tmp_path: Path
) -> None:
    more = ["task.repeats={at_least: 4, at_most: 4}", "evaluation.interval=1"]
    assert start(config, 1, tmp_path / "run", *more) == 0
    with (tmp_path / "run" / "evaluations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["value"] and float(row["c"]) <= 0]
    means = [float(row["value"]) for row in rows if row["job"] != "-1"]
    lucky = [float(row["value"]) for row in rows if row["job"] == "-1"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert min(lucky) < min(means)  # 7 single evaluations, and those of the end
    assert result["best_value"] in (min(means), pytest.approx(result["final_value"]))


@pytest.mark.long
def test_noiseless_function_is_evaluated_twice_once(config: Path, tmp_path: Path) -> None:
    runs.here(config, tmp_path / "run", ("task.function=my_repeated_cost:calm",))
    assert [row["repeats"] for row in read_metrics(tmp_path / "run")] == [2.0] + [1.0] * 6


@pytest.mark.long
def test_points_of_an_earlier_run_keep_their_errors(config: Path, tmp_path: Path) -> None:
    runs.here(config, tmp_path / "first", ())
    points = f"task.initial_points={tmp_path / 'first/evaluations.csv'}"
    runs.here(config, tmp_path / "second", (points, "stop.generations=1"))
    key = ("x0", "x5")
    known = {
        tuple(line[name] for name in key): line
        for line in lines(tmp_path / "first")
        if int(line["repeats"]) > 1
    }
    taken = [
        (line, known[tuple(line[name] for name in key)])
        for line in lines(tmp_path / "second")
        if tuple(line[name] for name in key) in known
    ]
    assert taken
    for line, before in taken:
        for name in ("value", "standard_error", "repeats"):
            assert line[name] == before[name], name


def noisy(x: Any, seed: int) -> float:
    return float((x * x).sum() + np.random.default_rng(seed).standard_normal())


def test_minimize_counts_repeats_and_returns_the_centre() -> None:
    best = hpc_es.minimize(noisy, np.ones(6), 0.5, max_evaluations=300, repeats=(1, 4), seed=1)
    assert best.standard_error is not None and best.evaluations == 310


def test_ask_returns_each_vector_several_times() -> None:
    search = hpc_es.Strategy("cma_es", x0=np.ones(4), sigma0=0.5, repeats=3)
    once = hpc_es.Strategy("cma_es", x0=np.ones(4), sigma0=0.5)
    for _ in range(3):
        vectors, single = search.ask(), once.ask()
        assert (vectors == np.tile(single, (3, 1))).all()
        values = [float(x @ x) for x in single]
        # their means are the values
        search.tell([*np.subtract(values, 1.0), *values, *np.add(values, 1.0)])
        once.tell(values)
    assert np.allclose(search.theta, once.theta) and search.evaluations == 3 * once.evaluations


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("task.repeats={at_least: 3, at_most: 2}",), "expected at least at_least, 3"),
        (("task.deterministic=true",), "equal evaluations say nothing more"),
        (("task.close_at=0.9",), "repeats would be unequal"),
        (("algorithm.noise_handling=reevaluate",), "task.repeats is set"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: tuple[str, ...], text: str, config: Path, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, SystemExit), match=text):
        runs.here(config, tmp_path / "run", options)
