"""One number everywhere: what runs, repetitions and shards have found, in every file,
command and call.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.api.job import run_experiment
from hpc_es.commands.report import report_page
from hpc_es.config.loading import validate
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.report.page import number_text
from hpc_es.storage.answers import KEYS
from hpc_es.storage.metrics_log import read_metrics
from hpc_es.storage.results import Shard, read_results
from hpc_es.tuning.report import read_report
from hpc_es.tuning.run import tune
from tests.helpers import runs
from tests.report.test_report import Parsed

FUNCTION = {
    "kind": "function",
    "function": f"{__name__}:bowl",
    "dimension": 2,
    "bounds": {"low": -4, "high": 5},
}
SQUARES = 'awk \'{ sum += $1 * $1 } END { print sum }\' "$0" > "$1"'
COMMAND = ["/bin/sh", "-c", SQUARES, "{parameters}", "{result}"]
NAMED = {
    "rate": {"low": 0.01, "high": 1, "scale": "log"},
    "layers": {"integer": True, "low": 1, "high": 8},
}
POLICY = {
    "task": {"kind": "episodes", "env_id": "tests.helpers.trouble:Rough-v0"},
    "policy": {"hidden_dims": [4]},
    "algorithm": {"kind": "es", "population_size": 8, "sigma": 0.3},
    "noise": {"kind": "counter"},
    "evaluation": {"interval": 2, "episodes": 3},
    "stop": {"generations": 5},
}
PROGRAMS = {
    "task": {"kind": "programs", "name": "reverse"},
    "algorithm": {"kind": "ga", "population_size": 10},
    "stop": {"episodes": 60},
}


def searching(task: Mapping[str, Any], interval: int = 2, **more: Any) -> dict[str, Any]:
    """A config of a search for a vector with 24 evaluations."""
    algorithm = {"kind": "cma_es", "population_size": 6, "sigma": 1.0, "restarts": "none", **more}
    evaluation = {"interval": interval}
    return {
        "task": {**FUNCTION, **task},
        "algorithm": algorithm,
        "stop": {"episodes": 24},
        "evaluation": evaluation,
    }


def bowl(x: Any) -> float:
    return float(((x - 1) ** 2).sum())


def hill(x: Any) -> float:
    return 5 - bowl(x)


def named(rate: float, layers: int) -> float:
    return abs(rate - 0.1) + (layers - 3) ** 2


def limited(x: Any) -> dict[str, Any]:
    return {"value": float(x.sum()), "constraints": [4 - float(x.sum())]}


def hopeless(x: Any) -> dict[str, Any]:
    return {"value": bowl(x), "constraints": [1 + float(x[0] ** 2)]}


def failing(x: Any) -> float:
    return float("nan")


OWN = {"dimension": None, "bounds": {}}
CASES: dict[str, dict[str, Any]] = {
    "minimised": searching({}),
    "maximised": searching({"function": f"{__name__}:hill", "goal": "maximise"}),
    "without evaluations of the centre": searching({}, interval=0),
    "maximised without evaluations of the centre": searching(
        {"function": f"{__name__}:hill", "goal": "maximise"}, interval=0
    ),
    "named parameters": searching(
        {"function": f"{__name__}:named", "parameters": NAMED, **OWN}, sigma=None
    ),
    "constraints": searching({"function": f"{__name__}:limited", "constraints": 1}),
    "nothing feasible": searching({"function": f"{__name__}:hopeless", "constraints": 1}),
    "command": searching({"kind": "command", "command": COMMAND, "format": "text"}),
    "policy": POLICY,
    "programs": PROGRAMS,
}
CASES["command"]["task"].pop("function")


def run(case: Mapping[str, Any], directory: Path, shard: Shard | None = None, **more: Any) -> Path:
    """Run a case to its end in this process."""
    config = validate({**case, "report": {"plot_interval_seconds": 0}, **more})
    signals = Signals()
    try:
        assert run_experiment(connect(), signals, config, directory, shard=shard).status == 0
    finally:
        signals.restore()
    return directory


def measured(path: Path) -> list[tuple[float, float, Any]]:
    """(violation, value, x) of all evaluations of a run, as its logs have them."""
    if not (path / "evaluations.csv").exists():
        rows = [row["evaluation_return_mean"] for row in read_metrics(path)]
        status = runs.status(path)
        if "final_return_mean" in status:
            rows.append(status["final_return_mean"])
        return [(0.0, value, None) for value in rows if value is not None]
    with (path / "evaluations.csv").open() as file:
        lines = list(csv.DictReader(file))
    own = ("generation", "job", "value")
    found = []
    for line in lines:
        numbers = {name: json.loads(text) for name, text in line.items() if name not in own}
        violation = sum(max(numbers.pop(name), 0.0) for name in list(numbers) if name == "c0")
        found.append((violation, float(line["value"]), numbers))
    result = json.loads((path / "result.json").read_text())
    final = result["best"]
    # the final evaluation is not in the table
    if final["job"] == -1 and final["generation"] == result["generations"]:
        found.append((final.get("violation", 0.0), final["value"], None))
    return found


def printed(capsys: Any, *arguments: str) -> str:
    capsys.readouterr()
    assert cli.run(list(arguments)) == 0
    text: str = capsys.readouterr().out
    return text


def listed(capsys: Any, path: Path) -> dict[str, Any]:
    (row,) = json.loads(printed(capsys, "list", str(path), "--json"))
    result: dict[str, Any] = row
    return result


def strictly(text: str) -> Any:
    """The content of JSON without NaN and infinity."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_one_number_everywhere(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CASES[case]
    whole = run(config, tmp_path / "whole", repetitions=3)
    for index in (1, 0):
        run(config, tmp_path / "shards", Shard(index, 2), repetitions=3)
    alone = run(config, tmp_path / "alone")
    paths = [whole / f"repetition_{number:04d}" for number in range(3)]
    sign = (
        -1
        if (
            config["task"].get("goal")
            or ("maximise" if case in ("policy", "programs") else "minimise")
        )
        == "minimise"
        else 1
    )
    answers = [strictly((path / "result.json").read_text())["answer"] for path in paths]
    if case != "programs":
        expected = [
            min(measured(path), key=lambda one: (one[0], -sign * one[1]))[1] for path in paths
        ]
        assert [answer["value"] for answer in answers] == expected
    values = [answer["value"] for answer in answers]
    feasible = [answer["value"] for answer in answers if not answer.get("violation")]
    best = min(
        range(3), key=lambda index: (answers[index].get("violation", 0.0), -sign * values[index])
    )

    # Every file and command about a run.
    for path, answer in zip([*paths, alone], [*answers, answers[0]], strict=True):
        result, status = (
            strictly((path / name).read_text()) for name in ("result.json", "status.json")
        )
        inspected = strictly(printed(capsys, "inspect", str(path), "--json"))
        assert result["answer"] == status["answer"] == inspected["answer"] == answer
        assert (
            result["best_evaluation"] == status["best_evaluation"] == inspected["best_evaluation"]
        )
        assert result["best_evaluation"]["value"] == answer["value"] == listed(capsys, path)["best"]
        shown = Parsed(report_page([path]))
        assert shown.tables["Best solutions"][1][1].startswith(number_text(answer["value"]))
        assert shown.tables["Runs"][1][2].startswith(number_text(answer["value"]))
        assert shown.texts["summary"].startswith("Summary" + number_text(answer["value"]))
        assert f"{answer['value']:.6g}" in printed(capsys, "results", str(path))
        if answer["kind"] == "centre":
            assert result["best_return"] == answer["value"]

    # Repetitions and shards.
    for directory in (whole, tmp_path / "shards"):
        assert [row["answer"] for row in read_results(directory)] == answers
        assert listed(capsys, directory)["best"] == values[best]
        summary = strictly(printed(capsys, "results", str(directory), "--json"))
        assert summary["best"]["repetition"] == best and summary["best"]["value"] == values[best]
        assert summary["best"]["x"] == answers[best]["x"]
        assert summary["infeasible"] == 3 - len(feasible)
        if feasible:
            assert summary["answer"]["mean"] == pytest.approx(sum(feasible) / len(feasible))
            assert (summary["answer"]["min"], summary["answer"]["max"]) == (
                min(feasible),
                max(feasible),
            )
        else:
            assert summary["answer"] is None
        assert strictly((directory / "summary.json").read_text())["best"] == summary["best"]
        text = printed(capsys, "results", str(directory))
        assert f"best: repetition {best}, {values[best]:.6g}" in text
        assert [float(value) for value in re.findall(r"  best_\w+ (\S+)", text)] == [
            float(f"{value:.6g}") for value in values
        ]
        assert (
            Parsed(report_page([directory]))
            .texts["summary"]
            .startswith("Summary" + number_text(values[best]))
        )
        table = list(
            csv.DictReader(printed(capsys, "results", str(directory), "--csv").splitlines())
        )
        assert [float(row["answer_value"]) for row in table] == values
        entries = strictly(printed(capsys, "inspect", str(directory), "--json"))["repetitions"]
        assert [entry["answer"] for entry in entries] == answers


@pytest.mark.parametrize("case", ["minimised", "named parameters", "policy", "programs"])
def test_x_is_what_was_evaluated(case: str, tmp_path: Path) -> None:
    path = run(CASES[case], tmp_path / "run")
    answer = json.loads((path / "result.json").read_text())["answer"]
    match case:
        case "minimised":
            assert bowl(np.array(answer["x"])) == answer["value"]
            assert (answer["kind"], answer["evaluations"], answer["standard_error"]) == (
                "evaluation",
                1,
                None,
            )
        case "named parameters":
            assert (
                list(answer["x"]) == ["rate", "layers"] and named(**answer["x"]) == answer["value"]
            )
            assert type(answer["x"]["layers"]) is int
        case "policy":
            assert answer["x"] is None and (answer["kind"], answer["evaluations"]) == ("centre", 3)
        case _:
            assert isinstance(answer["x"], str) and answer["kind"] == "member"


def test_minimize_and_strategy_find_the_same(tmp_path: Path) -> None:
    """As a run without evaluations of the centre."""
    path = run(CASES["without evaluations of the centre"], tmp_path / "run")
    answer = json.loads((path / "result.json").read_text())["answer"]
    options: Any = {
        "x0": [0.5, 0.5],
        "sigma0": 1.0,
        "bounds": (-4, 5),
        "population_size": 6,
        "restarts": "none",
    }
    result = hpc_es.minimize(bowl, max_evaluations=24, **options)
    assert (result.f, result.x.tolist()) == (answer["value"], answer["x"])
    assert result.metrics["best_value"] == result.f and result.metrics["generation"] == 3
    search = hpc_es.Strategy(max_evaluations=24, **options)
    while not search.stop():
        search.tell([bowl(x) for x in search.ask()])
    assert search.best is not None and (search.best.f, search.best.x.tolist()) == (
        answer["value"],
        answer["x"],
    )


def test_final_evaluation_of_a_policy_counts_with_its_standard_error(tmp_path: Path) -> None:
    """The last of several centres is the best one: std / sqrt(n) of its episodes."""
    for seed in range(20):
        path = run({**POLICY, "seed": seed}, tmp_path / str(seed))
        result = json.loads((path / "result.json").read_text())
        answer, status = result["answer"], runs.status(path)
        during = [row for row in read_metrics(path) if row["evaluation_return_mean"] is not None]
        best = max(during, key=lambda row: float(row["evaluation_return_mean"] or 0))
        is_final = status["final_return_mean"] > (best["evaluation_return_mean"] or 0)
        std = status["final_return_std"] if is_final else best["evaluation_return_std"]
        assert answer["standard_error"] == pytest.approx(std / 3**0.5)
        assert result["best_evaluation"]["generation"] == (5 if is_final else best["generation"])
        if is_final:
            break
    else:
        pytest.fail("expected a run whose last theta is the best one")


@pytest.mark.parametrize("case", ["minimised", "policy", "programs"])
def test_finished_run_that_is_started_again_keeps_its_answer(case: str, tmp_path: Path) -> None:
    path = run(CASES[case], tmp_path / "run")
    before = [json.loads((path / name).read_text()) for name in ("result.json", "status.json")]
    run(CASES[case], path)
    after = [json.loads((path / name).read_text()) for name in ("result.json", "status.json")]
    for old, new in zip(before, after, strict=True):
        assert [old[name] for name in KEYS] == [new[name] for name in KEYS]


def test_policy_that_was_never_evaluated_has_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run({**POLICY, "evaluation": {"interval": 0}}, tmp_path / "run")
    result = strictly((path / "result.json").read_text())
    nothing = {"value": None, "x": None}
    assert result["answer"] == {
        "kind": "centre",
        **nothing,
        "standard_error": None,
        "evaluations": 0,
    }
    assert result["best_evaluation"] == {**nothing, "generation": None, "job": None}
    assert listed(capsys, path)["best"] is None and "best" not in printed(
        capsys, "results", str(path)
    )
    assert Parsed(report_page([path])).tables["Runs"][1][2].endswith("last population")


def test_unfinished_run_shows_what_it_has_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is interrupted after a checkpoint; its result.json is of an earlier,
    shorter run.
    """
    path = tmp_path / "run"
    run(CASES["minimised"], path, stop={"episodes": 12})
    earlier = json.loads((path / "result.json").read_text())["answer"]["value"]
    config = {
        **CASES["minimised"],
        "stop": {"episodes": 60},
        "report": {"plot_interval_seconds": 0},
    }
    with hpc_es.train({**config, "checkpoint": {"interval": 1}}, path) as training:
        for row in training:
            if (row["best_value"] or 0) < earlier / 2:
                status = json.loads((path / "status.json").read_text())
                value = listed(capsys, path)["best"]
                assert value == status["answer"]["value"] == row["best_value"]
                assert bowl(np.array(status["answer"]["x"])) == value
                assert Parsed(report_page([path])).tables["Best solutions"][1][1] == number_text(
                    value
                )
                return
    pytest.fail("expected a better value than in the first run")


def test_run_without_a_success_has_no_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        **searching({"function": f"{__name__}:failing"}),
        "stop": {"generations": 2, "failed_generations": None},
    }
    path = run(config, tmp_path / "run", repetitions=2)
    for number in range(2):
        result = strictly((path / f"repetition_{number:04d}" / "result.json").read_text())
        assert result["answer"] == {
            "kind": "evaluation", "value": None, "x": None, "standard_error": None, "evaluations": 0,
        }  # fmt: skip
    assert listed(capsys, path)["best"] is None
    summary = strictly(printed(capsys, "results", str(path), "--json"))
    assert summary["answer"] is None and summary["best"] is None
    assert "2 of 2 repetitions finished" in printed(capsys, "results", str(path))
    assert "finished" in Parsed(report_page([path])).texts["runs"]
    strictly(printed(capsys, "inspect", str(path / "repetition_0000"), "--json"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", ["minimised", "maximised", "policy", "programs", "constraints"])
def test_directories_of_earlier_versions_are_read(case: str, tmp_path: Path, capsys: Any) -> None:
    """Their files have none of the new entries."""
    path = run(CASES[case], tmp_path / "new", repetitions=2)
    old = Path(shutil.copytree(path, tmp_path / "old"))
    files = [*old.rglob("result.json"), *old.rglob("status.json"), *old.glob("results/*.jsonl")]
    for file in files:
        text = file.read_text()
        objects = (
            [json.loads(line) for line in text.splitlines()]
            if file.suffix == ".jsonl"
            else [json.loads(text)]
        )
        for values in objects:
            for name in ("goal", "answer", "best_evaluation"):
                values.pop(name, None)
        file.write_text("".join(json.dumps(values) + "\n" for values in objects))
    assert listed(capsys, old)["best"] == listed(capsys, path)["best"] is not None
    new, before = (
        json.loads(printed(capsys, "results", str(one), "--json")) for one in (path, old)
    )
    assert before["answer"] == new["answer"] and before["best"]["value"] == new["best"]["value"]
    for file in old.rglob("result.json"):
        file.unlink()  # as if the runs had not finished
    assert listed(capsys, old / "repetition_0000")["best"] is not None


def test_result_of_a_search_for_programs_has_no_digest_of_nothing(
    tmp_path: Path, capsys: Any
) -> None:
    path = run(PROGRAMS, tmp_path / "run")
    result = json.loads((path / "result.json").read_text())
    assert result["theta_sha256"] is None
    text = printed(capsys, "results", str(path))
    assert f"state_sha256 {result['state_sha256'][:12]}" in text and "e3b0c442" not in text
    assert "e3b0c442" not in printed(capsys, "inspect", str(path)) + report_page([path])


def test_run_from_python_has_a_result_too(tmp_path: Path) -> None:
    config = {**CASES["minimised"], "report": {"plot_interval_seconds": 0}}
    for _ in hpc_es.train(config, tmp_path / "train"):
        pass
    run(CASES["minimised"], tmp_path / "main")
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("train", "main")
    ]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


@pytest.mark.long
@pytest.mark.parametrize(("goal", "function"), [("minimise", "bowl"), ("maximise", "hill")])
def test_tuning_ranks_trials_by_their_answers(
    goal: str, function: str, tmp_path: Path, capsys: Any
) -> None:
    base = searching({"function": f"{__name__}:{function}", "goal": goal}, interval=0)
    base["report"] = {"plot_interval_seconds": 0}
    (tmp_path / "base.yaml").write_text(json.dumps(base))
    space = "space: {algorithm.sigma: [0.001, 1.0]}"
    (tmp_path / "tune.yaml").write_text(
        f"base: base.yaml\nrepetitions: 2\nobjective: answer\n{space}\n"
    )
    assert tune(tmp_path / "tune.yaml", tmp_path / "out", (), None) == 0
    objectives = []
    for number in range(2):
        values = [
            row["answer"]["value"] for row in read_results(tmp_path / "out" / f"trial_{number:04d}")
        ]
        objectives.append(sum(values) / 2)
        record = json.loads((tmp_path / "out" / f"trial_{number:04d}" / "trial.json").read_text())
        assert record["objective"] == pytest.approx(objectives[-1])
    best = objectives.index(min(objectives) if goal == "minimise" else max(objectives))
    report = read_report(tmp_path / "out")
    assert report.best is not None and report.best["trial"] == best == 1
    assert listed(capsys, tmp_path / "out")["best"] == pytest.approx(objectives[best])
    assert cli.run(["tune-report", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "best.yaml").read_text()
    assert f"with answer {objectives[best]:.6g}" in text and "sigma: 1.0" in text
    assert number_text(objectives[best]) in Parsed(report_page([tmp_path / "out"])).texts["tuning"]
