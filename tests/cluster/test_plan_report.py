"""`hpc-es plan`: its measurements and its report."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hpc_es
from hpc_es.cli import main
from hpc_es.cluster.measure import (
    Cluster,
    Costs,
    MeasuredGeneration,
    TimedChunk,
    extra_seconds,
    fitted,
    measure,
)
from hpc_es.cluster.plan_report import chosen, draw, text
from hpc_es.cluster.predict import generations_to, paying_population, predictions
from hpc_es.config.loading import validate
from hpc_es.config.schema import Stop
from hpc_es.report.ticks import LogTicks
from tests.helpers import runs

EVEN = MeasuredGeneration(
    Costs(step=1e-3, call=0.0, job=0.0, chunk=0.0, tell=0.0, lengths=(1000,), memory=100),
    **{
        "generations": 3,
        "jobs": 64.0,
        "rounds": 1.0,
        "timesteps": 64_000.0,
        "steps_per_second": 1000.0,
    },
    **{"unit": 16, "cutting": "free"},
)
FREE = Cluster(latency=0.0, bandwidth=float("inf"), dispatch=0.0, per_rank=0.0, cores_a_node=4)


def test_costs_of_jobs_are_fitted() -> None:
    """Chunks that take 3 + 2 jobs + 0.5 steps + 0.25 of the longest."""
    rng = np.random.default_rng(0)
    jobs = rng.integers(1, 17, 50)
    longest = rng.integers(1, 100, 50)
    steps = jobs * longest - rng.integers(0, 5, 50) * (jobs > 1)
    seconds = 3 + 2 * jobs + 0.5 * steps + 0.25 * longest
    assert fitted(np.stack([jobs, steps, longest, seconds], axis=1)) == pytest.approx(
        (3, 2, 0.5, 0.25), rel=1e-6
    )


def test_job_of_one_step_has_one_cost() -> None:
    """Costs of job and step cannot be separated,
    nor those of chunk and job if all chunks have one job.
    """
    one = np.ones(5)
    assert fitted(np.stack([one, one, one, 0.02 * one], axis=1), lockstep=False) == pytest.approx(
        (0, 0.02, 0, 0)
    )
    jobs = np.array([16.0, 1.0, 4.0])
    several = np.stack([jobs, jobs, np.ones(3), 0.1 + 0.02 * jobs], axis=1)
    assert fitted(several, lockstep=False) == pytest.approx((0.1, 0.02, 0, 0))


def test_time_beyond_the_fit_is_attributed_to_failed_jobs() -> None:
    costs = Costs(step=0.0, call=0.0, job=1.0, chunk=0.5, lockstep=False)
    chunks = [
        TimedChunk(2, 2, 1, 2.5, 0),
        TimedChunk(4, 4, 1, 24.5, 2),
        TimedChunk(2, 2, 1, 3.5, 0),
        TimedChunk(1, 1, 1, 1.0, 1),
    ]
    assert extra_seconds(costs, chunks) == pytest.approx([0, 0, 10, 10, 0, 0, 0.5, 0.5, -0.5])


def test_measured_seconds_of_many_jobs_are_binned_without_loss() -> None:
    costs = Costs(step=0.0, call=0.0, job=0.0, chunk=0.0, lockstep=False)
    extras = extra_seconds(
        costs, [TimedChunk(1, 1, 1, float(number), 0) for number in range(4 * 4096)]
    )
    assert len(extras) == 4096 and extras[:2] == (1.5, 5.5)
    assert 4 * sum(extras) == sum(range(4 * 4096))


HANGING = """
seed: 58  # two of the 20 evaluations of each of the first four generations hang, and hang again
task: {kind: function, function: "tests.helpers.toys:often_hanging", dimension: 3, timeout_seconds: 0.15, retries: 1,
  deterministic: true}
algorithm: {kind: cma_es, population_size: 20}
evaluation: {interval: 0}
stop: {generations: 4}
report: {plot_interval_seconds: 0}
"""


def test_evaluations_that_time_out_cost_their_time_limit() -> None:
    """One rank: per generation 18 times 2 ms, and two time-outs of 0.15 s, both repeated: at least
    0.636 s.

    It takes longer on a busy machine, and the prediction is then as much longer.
    """
    result = measure(validate(yaml.safe_load(HANGING)), 0.0)
    assert result.failed == 0.1
    measured = 20 / result.steps_per_second
    assert measured >= 0.636
    (one,) = predictions(result, Stop(), (1,), cluster=FREE)
    assert one.seconds - one.update == pytest.approx(measured, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_run_with_timeouts_takes_the_predicted_time(ranks: int, tmp_path: Path) -> None:
    """Within a factor of 1.5 of one of two predictions, before and after the run;
    without time-outs it would be 15.
    """

    def predicted() -> float:
        (result,) = predictions(
            measure(validate(yaml.safe_load(HANGING)), 0.0), Stop(), (ranks,), cluster=Cluster()
        )
        return result.seconds

    config, run, before = runs.tiny(tmp_path, HANGING), tmp_path / "run", predicted()
    with runs.start(ranks, ["-m", "hpc_es.main", str(config), "--output", str(run)]) as job:
        assert job.wait().status == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    real = np.mean([json.loads(line)["seconds_this_generation"] for line in lines])
    assert len(lines) == 4
    shorter, longer = sorted([before, predicted()])
    assert shorter / 1.5 < real < longer * 1.5


def test_fitted_costs_are_not_negative() -> None:
    jobs = np.array([1.0, 2.0, 3.0, 4.0])
    result = fitted(np.stack([jobs, jobs, np.ones(4), 2 * jobs - 0.5], axis=1))
    assert min(result) >= 0 and max(result) > 0


@pytest.mark.long
def test_equal_episodes_scale_to_their_number() -> None:
    """64 episodes of a second: four per rank on 16, one on 64; of 63,
    where rank 0 evaluates nothing, some have two.
    """
    result = {
        item.ranks: item
        for item in predictions(EVEN, Stop(generations=36), (1, 16, 63, 64), cluster=FREE)
    }
    assert [result[ranks].seconds for ranks in (1, 16, 63, 64)] == pytest.approx(
        [64.0, 4.0, 2.0, 1.0]
    )
    assert [result[ranks].efficiency for ranks in (1, 16, 63, 64)] == pytest.approx(
        [1.0, 1.0, 64 / 126, 1.0]
    )
    assert (result[63].fitting_population, result[63].fitting_efficiency) == (
        62,
        pytest.approx(62 / 63),
    )
    assert result[16].fitting_population is None and result[64].fitting_population is None
    assert (result[16].hours, result[16].core_hours) == pytest.approx(
        (36 * 4 / 3600, 16 * 36 * 4 / 3600)
    )
    assert (result[16].nodes, result[16].memory_a_node, result[1].memory_a_node) == (4, 400, 100)
    assert chosen(list(result.values())).ranks == 64
    assert result[63].limit.startswith("the tail")
    (many,) = predictions(EVEN, Stop(), (128,), cluster=FREE)
    assert many.limit == "idle ranks: a round is 64 chunks"
    # five each for some, four for the others: 0.81; 128 would be 0.68
    assert result[63].paying_population == 256


def test_predicted_generations_follow_the_first_limit() -> None:
    assert generations_to(Stop(timesteps=640_000), EVEN) == 10
    assert generations_to(Stop(timesteps=640_000, generations=4), EVEN) == 4
    assert generations_to(Stop(episodes=65), EVEN) == 2
    assert generations_to(Stop(seconds=5.0), EVEN) is None
    (result,) = predictions(EVEN, Stop(seconds=7200.0), (2,), cluster=FREE)
    assert (result.hours, result.core_hours) == (2.0, 4.0)


def test_plan_recommends_a_chunk_size_if_chunks_are_fixed() -> None:
    (result,) = predictions(replace(EVEN, cutting="fixed"), Stop(), (16,), cluster=FREE)
    assert result.chunk_size == 1  # of all that give four seconds the first
    assert result.seconds == pytest.approx(16.0)  # with the 16 that it has


def test_plan_recommends_a_delay_where_the_time_to_a_result_gets_shorter() -> None:
    """One job per rank, half of them 1 s and half 0.1 s: 0.55 evaluating without a delay,
    at most 1 s per delay + 1.
    """
    lengths = replace(EVEN, costs=replace(EVEN.costs, lengths=(1000, 100)))
    (uneven,) = predictions(lengths, Stop(), (64,), cluster=FREE, can_delay=True)
    assert uneven.efficiency == pytest.approx(0.55, abs=0.02)
    one, two = uneven.delays
    assert 0.5 < one.seconds < 0.75 and one.speed == pytest.approx(
        uneven.seconds / one.seconds / 1.3
    )
    assert 0.53 < two.seconds < one.seconds and two.efficiency > 0.9
    assert uneven.recommended_delay == max(uneven.delays, key=lambda delayed: delayed.speed)
    report = text("x", lengths, [uneven], "")
    assert (
        f"{one.delay} ({one.efficiency:.2f})\n" in report
        and "1.3 (1) and 2.0 (2) times the timesteps" in report
    )


@pytest.mark.parametrize("ranks", [1, 16, 64])
def test_plan_recommends_no_delay_for_equal_episodes(ranks: int) -> None:
    (result,) = predictions(EVEN, Stop(), (ranks,), cluster=FREE, can_delay=True)
    assert result.recommended_delay is None
    assert "delay:" not in text("x", EVEN, [result], "")


@pytest.mark.long
def test_plan_names_ranks_that_do_not_help() -> None:
    slow = replace(EVEN, costs=replace(EVEN.costs, tell=1e9))
    assert paying_population(slow, 4, FREE) is None


def test_costs_scale_with_faster_cores_and_longer_episodes() -> None:
    assert EVEN.faster(2.0).costs.step == 5e-4
    assert replace(EVEN, costs=replace(EVEN.costs, extras=(2.0,))).faster(2.0).costs.extras == (
        1.0,
    )
    assert EVEN.with_length(10).costs.lengths == (10,)


CONFIGS = {
    "episodes": {
        "task": {
            "env_id": "tests.helpers.trouble:Rough-v0",
            "observation_normalization": {"enabled": True, "probability": 0.5},
        },
        "policy": {"hidden_dims": [4]},
        "algorithm": {"population_size": 20},
        "noise": {"kind": "counter"},
    },
    "native": {
        "task": {"env_id": "CartPole-v1", "max_episode_steps": 20},
        "algorithm": {"population_size": 6, "min_timesteps_per_generation": 200},
        "noise": {"kind": "counter"},
    },
    "function": {
        "task": {"kind": "function", "function": "tests.helpers.toys:valley", "dimension": 3},
        "algorithm": {"kind": "cma_es"},
    },
    "novelty": {
        "task": {
            "env_id": "CartPole-v1",
            "max_episode_steps": 20,
            "behaviour": {"final_observation": True},
        },
        "algorithm": {"kind": "novelty", "population_size": 6},
        "noise": {"kind": "counter"},
    },
    "tensorflow": {
        "task": {"env_id": "CartPole-v1", "max_episode_steps": 20},
        "policy": {"backend": "tensorflow", "hidden_dims": [4]},
        "algorithm": {"population_size": 6},
        "noise": {"kind": "counter"},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_measure_runs_generations_of_every_kind(name: str) -> None:
    result = measure(validate(CONFIGS[name]), 0.2)
    assert result.generations >= 3 and result.jobs >= 4
    assert result.costs.step + result.costs.job + result.costs.call + result.costs.chunk > 0
    assert result.costs.memory > 10e6 and result.costs.theta > 0
    at_once = dict.fromkeys(("native", "novelty", "tensorflow"), "at once")
    assert result.cutting == {**at_once, "function": "one by one"}.get(name, "free")


def test_measure_counts_rounds() -> None:
    """One, or those that 30 timesteps need in rounds of two episodes of 5 timesteps."""
    episodes = {"env_id": "CartPole-v1", "max_episode_steps": 5}
    config = {"task": episodes, "noise": {"kind": "counter"}, "algorithm": {"population_size": 2}}
    assert measure(validate(config), 0.0).rounds == 1
    config["algorithm"] = {"population_size": 2, "min_timesteps_per_generation": 30}
    result = measure(validate(config), 0.0)
    assert (result.rounds, result.jobs) == (3, 6)


def test_measure_has_the_states_of_a_run(tmp_path: Path) -> None:
    """So the episode lengths of the last generation equal those of a run."""
    config = validate(
        {**CONFIGS["episodes"], "stop": {"generations": 3}, "evaluation": {"interval": 0}}
    )
    with hpc_es.train(config, tmp_path / "run") as run:
        lengths = [row["timesteps_this_generation"] for row in run]
    result = measure(config, 0.0)
    assert (result.generations, result.timesteps) == (3, np.mean(lengths))


def plan_output(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *map(str, words)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_plan_prints_a_table_and_the_job_to_submit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config, picture = runs.tiny(tmp_path), tmp_path / "plan.png"
    output = plan_output(
        capsys, config, "--seconds", 0.1, "--ranks", "1,4", "--plot", picture, "--cores-per-node", 2
    )
    assert "12 jobs and" in output and "core hours" in output
    assert f"hpc-es sbatch {config} --nodes" in output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_durations_are_printed_in_suitable_units() -> None:
    """64 s per generation on one rank: 36 of them are 38.4 minutes, 3,600 are 64 hours;
    two of them on 2 ranks 64 s.
    """
    lines = [
        text("x", EVEN, predictions(EVEN, Stop(generations=n), ranks, cluster=FREE), "")
        for n, ranks in MESSAGES
    ]
    rows = [
        line.split()
        for block in lines
        for line in block.splitlines()
        if line.endswith(" 64                  -      -")
    ]
    assert [" ".join(row[2:4] + row[6:9]) for row in rows] == [
        "64 s 38.4 min 0.64",
        "64 s 64 h 64",
        "32 s 64 s 0.0356",
    ]
    quick = replace(EVEN, costs=replace(EVEN.costs, step=1e-7))
    assert "6.4 ms        1.00          1.00  12.8 ms      < 0.01" in text(
        "x", quick, predictions(quick, Stop(generations=2), (1,), cluster=FREE), ""
    )


MESSAGES = ((36, (1,)), (3600, (1,)), (2, (2,)))


def test_plan_of_an_objective_reports_evaluations() -> None:
    costs = Costs(step=0, call=0, job=0.02, chunk=0, lengths=(1,), extras=(0.0, 0.0, 0.0, 1.98))
    result = replace(EVEN, costs=costs, has_evaluations=True, failed=0.25, steps_per_second=1.92)
    report = text("x", result, predictions(result, Stop(), (1,), cluster=FREE), "")
    assert "64 evaluations per generation, 1.92 per second, 0.25 of them failed" in report
    assert "an evaluation takes 515 ms (median 20 ms, longest 2 s)" in report
    assert " step" not in report


def test_ticks_of_the_plan_plot_are_plain_numbers(tmp_path: Path) -> None:
    """As text in PDF and SVG; default ticks would give the raw text "$\\mathdefault{10^{-3}}$"."""
    draw("x", predictions(EVEN, Stop(), (1, 16, 64), cluster=FREE), tmp_path / "plan.svg")
    drawn = (tmp_path / "plan.svg").read_text()
    assert "mathdefault" not in drawn and "<!-- 10 -->" in drawn


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.001, 10.0, [0.001, 0.01, 0.1, 1, 10]),
        (0.04, 0.9, [0.05, 0.1, 0.2, 0.5]),
        (0.02, 0.5, [0.03, 0.1, 0.3]),
        (2.0, 4.0, [2, 3, 4]),
        (0.02, 0.09, [0.02, 0.03, 0.04, 0.06, 0.08]),
        (1e-6, 1e6, [1e-6, 1e-4, 1e-2, 1, 1e2, 1e4, 1e6]),
        (1.1, 1.2, [1.1, 1.12, 1.14, 1.16, 1.18, 1.2]),
    ],
)
def test_log_axis_has_labels_for_any_number_of_decades(
    low: float, high: float, ticks: list[float]
) -> None:
    assert LogTicks().tick_values(low, high) == pytest.approx(ticks)


def test_next_command_can_be_copied_into_a_shell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = runs.tiny(tmp_path).rename(tmp_path / "tiny (1).yaml")
    arguments = [config, "name=a b", "--seconds", 0.1, "--ranks", "3"]
    result = json.loads(plan_output(capsys, *arguments, "--json"))
    assert shlex.split(result["sbatch"])[:4] == ["hpc-es", "sbatch", str(config), "name=a b"]


def test_plan_prints_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = json.loads(
        plan_output(
            capsys, runs.tiny(tmp_path), "--seconds", 0.1, "--ranks", "3", "--length", 50, "--json"
        )
    )
    assert [item["ranks"] for item in result["ranks"]] == [3]
    assert result["measured"]["costs"]["lengths"] == [50]


@pytest.mark.parametrize(
    "words", [["--ranks", "0"], ["--ranks", "a"], ["--seconds", "-1"], ["--plot", "plan.txt"]]
)
def test_invalid_options_of_plan_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(runs.tiny(tmp_path)), *words])
    assert ended.value.code == 2
    assert "expected" in capsys.readouterr().err
