"""Whole tunings: on several ranks, in shards, after kills and interruptions,
and of program searches.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hpc_es.storage import results
from hpc_es.tuning.plan import load
from hpc_es.tuning.report import read_report
from hpc_es.tuning.study import Study
from hpc_es.tuning.trials import Trial, freeze
from tests.helpers.harness import ROOT, Finished, Job, start
from tests.helpers.runs import TINY, assert_same, finished, wait_for
from tests.helpers.runs import rows as metrics
from tests.tuning.test_study import run

GRID = "space: {algorithm.optimizer.learning_rate: [0.01, 0.1], algorithm.sigma: [0.1, 0.2, 0.3]}"
LIMIT_SECONDS = 180.0


def written(output: Path, tuning: str, base: str) -> Path:
    """The tuning file of this output, and its base config."""
    output.parent.mkdir(parents=True, exist_ok=True)
    (output.parent / "tiny.yaml").write_text(base)
    path = output.parent / f"{output.name}.yaml"
    path.write_text(f"base: tiny.yaml\n{tuning}\n")
    return path


def begin(
    ranks: int, output: Path, tuning: str, *arguments: str, base: str = TINY, **env: str
) -> Job:
    """A job that tunes; 0 ranks is one process without a launcher."""
    path = written(output, tuning, base)
    args = ["-m", "hpc_es", "tune", str(path), "--output", str(output), *arguments]
    return start(ranks, args, env, ROOT) if ranks else Job([sys.executable, *args], env, ROOT)


def tune(
    ranks: int,
    output: Path,
    tuning: str,
    *arguments: str,
    status: int = 0,
    base: str = TINY,
    **env: str,
) -> str:
    """The output of a job with this exit status."""
    with begin(ranks, output, tuning, *arguments, base=base, **env) as job:
        return ended(job, status)


def ended(job: Job, status: int = 0) -> str:
    done: Finished = job.wait(LIMIT_SECONDS)
    assert done.status == status and not done.timed_out, str(done)
    return done.stdout + done.stderr


def paused(directory: Path) -> tuple[str, Path]:
    """A base config whose generations take seconds while the file, which exists, is there."""
    pause = directory / "pause"
    pause.touch()
    return TINY.replace('Rough-v0"', f'Rough-v0", env_kwargs: {{pause_file: "{pause}"}}'), pause


def in_the_middle(output: Path, number: int) -> None:
    """Wait for the first generation of a trial that is paused, so that it lasts."""
    path = output / f"trial_{number:04d}" / "metrics.jsonl"
    wait_for(lambda: path.exists() and b"\n" in path.read_bytes(), LIMIT_SECONDS)


def outcome(output: Path) -> dict[int, Any]:
    """State, objective and digest of theta of each trial."""
    result = {}
    for row in read_report(output).rows:
        path = output / f"trial_{row['trial']:04d}" / "result.json"
        theta = json.loads(path.read_text())["theta_sha256"] if path.exists() else None
        result[row["trial"]] = (row["state"], row["objective"], theta)
    return dict(sorted(result.items()))


def status(output: Path, name: str = "status.json") -> dict[str, Any]:
    result: dict[str, Any] = json.loads((output / name).read_text())
    return result


def number_of_starts(output: Path, number: int) -> int:
    """Number of starts of a trial, with resumes."""
    path = output / f"trial_{number:04d}" / "log.txt"
    return path.read_text().count("rank=host:pid") if path.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid by one process."""
    output = tmp_path_factory.mktemp("undisturbed") / "grid"
    said = tune(0, output, GRID)
    assert "6 trials: 6 complete" in said
    return output


@pytest.mark.long
def test_two_concurrent_shards_find_the_results_of_one_task(
    undisturbed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "grid"
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(begin(ranks, output, GRID, "--shard", f"{ranks - 1}/2"))
            for ranks in (1, 2)
        ]
        for job in jobs:
            ended(job)
    assert outcome(output) == outcome(undisturbed)
    assert len({digest for _, _, digest in outcome(output).values()}) == 6
    for name, generation in (("status_0_of_2.json", 18), ("status_1_of_2.json", 18)):
        assert (status(output, name)["status"], status(output, name)["generation"]) == (
            "finished",
            generation,
        )


@pytest.mark.long
def test_shard_of_a_tuning_is_the_array_task(tmp_path: Path) -> None:
    array = {
        f"SLURM_ARRAY_TASK_{name}": value
        for name, value in (("ID", "3"), ("MIN", "1"), ("MAX", "3"))
    }
    tune(0, tmp_path / "grid", GRID, SLURM_ARRAY_TASK_COUNT="3", **array)
    states = [state for state, _, _ in outcome(tmp_path / "grid").values()]
    assert states == ["missing"] * 4 + ["complete"] * 2


@pytest.mark.long
def test_trial_equals_the_run_of_its_config(undisturbed: Path, tmp_path: Path) -> None:
    finished(1, tmp_path / "run", "algorithm.optimizer.learning_rate=0.1", "algorithm.sigma=0.3")
    final = json.loads((tmp_path / "run" / "status.json").read_text())["final_return_mean"]
    assert outcome(undisturbed)[5][1] == final


@pytest.mark.long
def test_killed_tuning_runs_only_missing_trials_with_identical_results(
    undisturbed: Path, tmp_path: Path
) -> None:
    output, (base, pause) = tmp_path / "grid", paused(tmp_path)
    pause.unlink()
    tune(1, output, GRID, "--shard", "0/6", base=base)
    pause.touch()
    with begin(2, output, GRID, base=base) as job:
        in_the_middle(output, 1)
        job.signal(1, signal.SIGKILL)
        assert job.wait(60).status not in {0, 75}
    pause.unlink()
    assert [number_of_starts(output, number) for number in range(6)] == [1, 1, 0, 0, 0, 0]
    said = tune(1, output, GRID, base=base)
    assert "6 trials: 6 complete" in said
    assert outcome(output) == outcome(undisturbed)
    assert [number_of_starts(output, number) for number in range(6)] == [1, 2, 1, 1, 1, 1]
    assert_same(output / "trial_0001", undisturbed / "trial_0001")
    files = {path: path.stat().st_mtime_ns for path in output.glob("trial_*/*")}
    assert "6 trials: 6 complete" in tune(1, output, GRID, base=base)
    assert {path: path.stat().st_mtime_ns for path in output.glob("trial_*/*")} == files, (
        "what is done stays"
    )


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.long
def test_signal_ends_a_tuning_with_status_75_and_it_resumes(
    undisturbed: Path, tmp_path: Path
) -> None:
    output, (base, pause) = tmp_path / "grid", paused(tmp_path)
    with begin(2, output, GRID, base=base) as job:
        in_the_middle(output, 0)
        for rank in (0, 1):
            job.signal(rank, signal.SIGTERM)
        pause.unlink()
        ended(job, 75)
    assert status(output)["status"] == "interrupted"
    assert status(output)["exit_status"] == 75
    assert outcome(output)[0][0] == "begun"
    assert Trial(output, 0).record()["begun"] == 0, "not in vain"
    tune(2, output, GRID, base=base)
    assert outcome(output) == outcome(undisturbed)
    assert number_of_starts(output, 0) == 2


@pytest.mark.long
def test_failed_trial_is_listed_and_does_not_affect_the_others(tmp_path: Path) -> None:
    space = 'space: {task.env_kwargs.fault: ["", "raise", "nan"], task.env_kwargs.every: [1]}'
    said = tune(2, tmp_path / "grid", space)
    assert "3 trials: 1 complete, 2 failed" in said
    states = {number: state for number, (state, _, _) in outcome(tmp_path / "grid").items()}
    assert states == {0: "complete", 1: "failed", 2: "failed"}
    reasons = [
        row["reason"] for row in read_report(tmp_path / "grid").rows if row["state"] == "failed"
    ]
    assert "all jobs of the last 2 generations failed" in reasons[0]
    assert status(tmp_path / "grid")["status"] == "finished"
    tune(2, tmp_path / "grid", space)
    assert [number_of_starts(tmp_path / "grid", number) for number in range(3)] == [1, 1, 1]


def test_tuning_fails_if_all_trials_fail(tmp_path: Path) -> None:
    said = tune(
        0, tmp_path / "grid", 'space: {task.env_kwargs: [{fault: "raise", every: 1}]}', status=1
    )
    assert "all trials failed" in said
    assert status(tmp_path / "grid")["status"] == "failed"


@pytest.mark.long
def test_trial_that_ends_the_job_is_skipped_after_several_starts(tmp_path: Path) -> None:
    base = TINY.replace("tests.helpers.trouble:Rough-v0", "tests.helpers.deadly:Deadly-v0")
    space, output = "space: {task.env_kwargs.kill: [true, false]}", tmp_path / "grid"
    tune(0, output, space, base=base, status=-signal.SIGKILL)
    tune(0, output, space, base=base, status=-signal.SIGKILL)
    assert [state for state, _, _ in outcome(output).values()] == ["begun", "complete"], (
        "the other one came first"
    )
    tune(0, output, space, base=base, status=-signal.SIGKILL)
    said = tune(0, output, space, base=base)
    assert "trial_0000 failed: started 3 times without a new generation" in said
    assert [state for state, _, _ in outcome(output).values()] == ["failed", "complete"]


@pytest.mark.long
def test_different_space_in_a_tuning_directory_is_refused(undisturbed: Path) -> None:
    said = tune(2, undisturbed, GRID.replace("0.3", "0.4"), status=2)
    assert "space.algorithm.sigma: [0.1, 0.2, 0.3] in the directory, [0.1, 0.2, 0.4]" in said
    assert said.count("holds another tuning") == 1, "one rank speaks"
    said = tune(0, undisturbed, GRID, "--fixed", "algorithm.sigma=0.1", status=2)
    assert "holds another tuning" in said


@pytest.mark.long
def test_errors_of_a_tuning_are_reported_once_before_files_are_written(tmp_path: Path) -> None:
    said = tune(
        3, tmp_path / "grid", "space: {algorithm.sigma: [0.1, -1], algorithm.sigmaa: [1]}", status=2
    )
    assert said.count("algorithm.sigma: expected a number greater than 0, found -1") == 1
    assert said.count("unknown key 'algorithm.sigmaa'; did you mean 'sigma'?") == 1
    assert not (tmp_path / "grid").exists()
    assert tune(3, tmp_path / "grid", GRID, "--shad", "0/1", status=2).count("unrecognized") == 1
    assert "--shard: expected i/n" in tune(1, tmp_path / "grid", GRID, "--shard", "1/1", status=2)


@pytest.mark.long
def test_second_task_on_the_same_trials_is_refused(tmp_path: Path) -> None:
    output, (base, pause) = tmp_path / "grid", paused(tmp_path)
    with begin(0, output, GRID, base=base) as job:
        in_the_middle(output, 0)
        said = tune(0, output, GRID, base=base, status=2)
        assert f"shard_0_of_1 is in use by process {job.process.pid} on host" in said
        # trials that are in both shards
        said = tune(0, output, GRID, "--shard", "0/2", base=base, status=2)
        assert f"trial_0000 is in use by process {job.process.pid} on host" in said
        assert status(output, "status_0_of_2.json")["status"] == "failed"
        pause.unlink()
        assert status(output)["status"] == "running"
        ended(job)


@pytest.mark.long
def test_success_objective_with_repetitions_in_groups(tmp_path: Path) -> None:
    """The target is reached by the first theta, after one of 6 generations, or never."""
    tuning = "space: {stop.target_return: [-1000, 1000]}\nrepetitions: 3\nobjective: {success_rate_weight: 0.25}"
    output = tmp_path / "grid"
    tune(2, output, tuning, base=TINY + "repetition_groups: 2\n")
    assert sorted(path.name for path in (output / "trial_0000").glob("repetition_*")) == [
        f"repetition_000{number}" for number in range(3)
    ]
    objectives = [objective for _, objective, _ in outcome(output).values()]
    assert objectives == [pytest.approx(0.25 * 1 + 0.75 * (1 - 1 / 6)), 0.0]
    assert status(output)["generation"] == 3 * 1 + 3 * 6


RANDOM = "search: random\nspace: {algorithm.sigma: {log_uniform: [0.05, 0.5]}}\n"


@pytest.mark.long
def test_random_search_with_more_trials_keeps_the_first_ones(tmp_path: Path) -> None:
    output = tmp_path / "search"
    tune(0, output, f"{RANDOM}trials: 2")
    first = outcome(output)
    files = {path: path.stat().st_mtime_ns for path in output.glob("trial_*/*")}
    said = tune(0, output, f"{RANDOM}trials: 3")
    assert "1 more trials than before" in said and "3 trials: 3 complete" in said
    assert {path: path.stat().st_mtime_ns for path in files} == files, "what is done stays"
    tune(0, tmp_path / "at_once", f"{RANDOM}trials: 3")
    assert outcome(output) == outcome(tmp_path / "at_once")
    assert {number: row for number, row in outcome(output).items() if number < 2} == first
    assert "2 trials: 2 complete" in tune(0, output, f"{RANDOM}trials: 2"), (
        "fewer are those that come first"
    )


@pytest.mark.long
def test_study_continues_with_more_trials(tmp_path: Path) -> None:
    output = tmp_path / "study"
    tune(0, output, OPTUNA.replace("trials: 8", "trials: 2"))
    first = outcome(output)
    said = tune(0, output, OPTUNA.replace("trials: 8", "trials: 3"))
    assert "1 more trials than before" in said
    assert sorted(outcome(output)) == [0, 1, 2]
    assert {number: row for number, row in outcome(output).items() if number < 2} == first
    tune(0, tmp_path / "at_once", OPTUNA.replace("trials: 8", "trials: 3"))
    assert outcome(output) == outcome(tmp_path / "at_once"), (
        "one task alone has the study's trials in their order"
    )


OPTUNA = """search: optuna
trials: 8
space: {algorithm.sigma: {log_uniform: [0.01, 1]}, policy.hidden_dims: [[8], [4, 4]]}"""


def test_study_of_a_function_with_a_limit_of_episodes(tmp_path: Path) -> None:
    """Its metrics count evaluations: a trial is compared by the fraction of them that it used."""
    base = (
        "task: {kind: function, function: 'objective:f', dimension: 3}\n"
        "algorithm: {kind: es, population_size: 4, sigma: 0.1}\n"
        "stop: {episodes: 60}\n"
    )
    (tmp_path / "objective.py").write_text("def f(x):\n    return float(x @ x)\n")
    text = (
        "search: optuna\ntrials: 2\nobjective: answer\n"
        "space: {algorithm.sigma: {log_uniform: [0.01, 1]}}"
    )
    tune(0, tmp_path / "study", text, base=base)
    assert [state for state, _, _ in outcome(tmp_path / "study").values()] == ["complete"] * 2


@pytest.mark.long
def test_two_tasks_share_a_study(tmp_path: Path) -> None:
    output, (base, pause) = tmp_path / "study", paused(tmp_path)
    with ExitStack() as stack:
        shards = [(ranks, "--shard", f"{ranks - 1}/2") for ranks in (1, 2)]
        jobs = [
            stack.enter_context(begin(ranks, output, OPTUNA, *shard, base=base))
            for ranks, *shard in shards
        ]
        wait_for(lambda: len(list(output.glob("trial_*/log.txt"))) == 2, LIMIT_SECONDS)
        pause.unlink()
        said = [ended(job) for job in jobs]
    result = outcome(output)
    assert sorted(result) == list(range(8))
    assert {state for state, _, _ in result.values()} <= {"complete", "pruned"}
    assert [number_of_starts(output, number) for number in range(8)] == [1] * 8, "none twice"
    assert all("complete: objective" in text for text in said), "both had some"
    trials = Study(output, {}, 8, 1)._study.trials
    assert {min(trial.intermediate_values) for trial in trials} == {10}, (
        "the untrained theta tells nothing"
    )
    sigmas = {row["hyperparameters"]["algorithm.sigma"] for row in read_report(output).rows}
    assert len(sigmas) == 8
    tune(1, output, OPTUNA, base=base)
    assert outcome(output) == result


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["tpe", "cma_es"])
def test_killed_task_of_a_study_loses_no_trial(sampler: str, tmp_path: Path) -> None:
    output, (base, pause), text = (
        tmp_path / "study",
        paused(tmp_path),
        f"{OPTUNA}\nsampler: {sampler}",
    )
    with begin(0, output, text, base=base) as job:
        in_the_middle(output, 0)
        values = read_report(output).rows[0]["hyperparameters"]
        os.kill(job.process.pid, signal.SIGKILL)
        job.wait(60)
    pause.unlink()
    tune(2, output, text, base=base)
    result = outcome(output)
    assert sorted(result) == list(range(8))
    assert {state for state, _, _ in result.values()} <= {"complete", "pruned"}
    assert [number_of_starts(output, number) for number in range(8)] == [2, 1, 1, 1, 1, 1, 1, 1]
    rows = {row["trial"]: row for row in read_report(output).rows}
    assert rows[0]["hyperparameters"] == values
    assert [row["generation"] for row in metrics(output / "trial_0000")] == list(range(6))
    if sampler == "cma_es":  # a generation of 6 candidates, and two of the next one
        jobs = [trial.system_attrs["hpc_es:job"] for trial in Study(output, {}, 8, 1)._study.trials]
        assert jobs == [[0, job] for job in range(6)] + [[1, 0], [1, 1]]


@pytest.mark.long
def test_pruned_trials_end_in_all_groups_of_ranks(tmp_path: Path) -> None:
    """Five trials of the study have much better values than any trial can reach."""
    output = tmp_path / "study"
    base = (
        TINY.replace("generations: 6", "generations: 100")
        + "repetitions: 2\nrepetition_groups: 2\n"
    )
    plan = load(written(output, OPTUNA, base))
    output.mkdir()
    freeze(output, plan.identity(), [])
    study = Study(output, plan.space, plan.trials, plan.seed)
    for _ in range(5):
        run(study, 1e6, (1e6,) * 20)
    tune(2, output, OPTUNA, base=base)
    assert [state for state, _, _ in outcome(output).values()] == ["complete"] * 5 + ["pruned"] * 3
    for number in range(5, 8):
        rows = [
            _lines(path)
            for path in (output / f"trial_{number:04d}").glob("repetition_*/metrics.jsonl")
        ]
        assert len(rows) == 2
        assert max(map(len, rows)) < 100, "both groups have ended early"
    assert "is below the median" in read_report(output).rows[5]["reason"]


SEARCH = """
task: {kind: programs, name: print, base: 27, fixed_string: [1], max_code_length: 2}
algorithm: {kind: random_search, programs_per_generation: 20}
repetitions: 3
stop: {episodes: 1000}
report: {plot_interval_seconds: 0}
"""


def test_trial_of_program_searches_reports_success_rate_and_programs(tmp_path: Path) -> None:
    """One program of two characters is correct (+.), none of one character."""
    tuning = "space: {task.max_code_length: [1, 2]}\nobjective: {success_rate_weight: 1.0}"
    tune(0, tmp_path / "out", tuning, base=SEARCH)
    never, result = (Trial(tmp_path / "out", number).record() for number in (0, 1))
    assert (never["success_rate"], never["programs_seen_fraction"]) == (0.0, 1.0)
    npe = [row["npe"] for row in results.read_results(tmp_path / "out" / "trial_0001")]
    assert len(npe) == 3 and max(npe) <= 1000
    assert result["success_rate"] == 1.0
    assert result["programs_seen_fraction"] == pytest.approx(sum(npe) / 3000)


def test_trials_of_a_directory_are_in_the_space(tmp_path: Path) -> None:
    """Somebody else's table of trials could give settings that name code, or other numbers."""
    output = tmp_path / "run"
    plan = load(written(output, "space: {algorithm.sigma: [0.1, 0.2]}", TINY), [])
    output.mkdir()
    code = {"task": {"kind": "function", "function": "os:getcwd", "dimension": 1}}
    for wrong, found in ((code, "algorithm.sigma"), ({"algorithm.sigma": 7.0}, "found 7.0")):
        (output / "trials.json").unlink(missing_ok=True)
        freeze(output, plan.identity(), [{"algorithm.sigma": 0.1}, wrong])
        text = tune(0, output, "space: {algorithm.sigma: [0.1, 0.2]}", status=2)
        assert "trials.json: trial 1: expected" in text and found in text
    assert not list(output.glob("trial_*"))
