"""Runs of policy gradient: identical results on any number of ranks and after a kill;
errors before the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpc_es.programs.task import Options, build
from hpc_es.storage.line_logs import read_programs
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, Job, mpiexec, script, start

pytestmark = pytest.mark.long

TINY = """
seed: 1
task: {kind: programs, name: print-hello, max_code_length: 7}
algorithm: {kind: policy_gradient, batch_size: 12, policy_lstm_sizes: [5], value_lstm_sizes: [4]}
mpi: {chunk_size: 4}
checkpoint: {interval: 1, interval_seconds: 0, keep_last: 1000}
stop: {generations: 4}
report: {plot_interval_seconds: 0}
"""
FAST = "algorithm.optimizer.learning_rate=0.05"
EASY = "task={kind: programs, name: print, base: 27, fixed_string: [0], max_code_length: 3}"
VARIANTS = {
    "target": [
        "algorithm.entropy_target=14.0",
        "algorithm.topk=3",
        "algorithm.topk_loss_hparam=2.0",
        "algorithm.topk_noise=0.3",
    ],
    "queue": ["algorithm.topk=3", "algorithm.topk_loss_hparam=2.0", "algorithm.topk_batch_size=2"],
    "restarts": [
        "algorithm.topk=3",
        "algorithm.topk_loss_hparam=2.0",
        "algorithm.topk_ties=newer",
        "algorithm.topk_unique=rewards",
        "algorithm.topk_offered=all",
        "algorithm.writing_noise=0.2",
        "algorithm.restart_programs=12",
    ],
    "values, ends": [
        "algorithm.ema_baseline_decay=0",
        "algorithm.eos_token=true",
        "algorithm.regularizer=0.01",
    ],
    "correct ones": [EASY, "algorithm.eos_token=true", "algorithm.stop_on_success=false"],
    "replay": [
        "algorithm.alpha=0.5",
        "algorithm.replay_capacity=20",
        "algorithm.optimizer.kind=adam",
    ],
}
ASYNCHRONOUS = {
    "asynchronous": [
        FAST,
        *VARIANTS["queue"],
        "algorithm.updates=asynchronous",
        "stop.generations=20",
    ],
}
RANKS = (2, 3)  # of jobs; the reference is of this process alone
ALL = """
    import json, sys
    from pathlib import Path
    import hpc_es
    from hpc_es.config.loading import load

    config, directory, variants = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    for name, overrides in variants.items():
        for row in hpc_es.train(load(config, overrides), directory / name):
            pass
"""
LONG_SECONDS = 300.0


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with RANKS/VARIANT and 1/VARIANT, all trained, and 3/asynchronous."""
    directory = tmp_path_factory.mktemp("policy_gradient")
    config = runs.tiny(directory, TINY)
    variants = {name: [FAST, *overrides] for name, overrides in VARIANTS.items()}
    for name, overrides in variants.items():
        runs.here(config, directory / "1" / name, overrides)
    for ranks in RANKS:
        jobs = {**variants, **(ASYNCHRONOUS if ranks == 3 else {})}
        arguments = [*script(ALL), str(config), str(directory / str(ranks)), json.dumps(jobs)]
        job = mpiexec(ranks, arguments, LONG_SECONDS, cwd=ROOT)
        assert job.status == 0, str(job)
    return directory


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_results_do_not_depend_on_the_number_of_ranks(done: Path, ranks: int, variant: str) -> None:
    runs.assert_same(done / str(ranks) / variant, done / "1" / variant)
    listed = list(read_programs(done / str(ranks) / variant))
    assert listed == list(read_programs(done / "1" / variant))
    if variant == "correct ones":  # the first of them is the one that the checkpoint counts
        state = runs.newest(done / "1" / variant).state
        assert (listed[0]["npe"], len(listed) > 1) == (int(state.master["solution_npe"]), True)
        coding: Any = build(
            Options(name="print", base=27, fixed_string=(0,), max_code_length=3)
        ).coding
        assert all(coding.score(actual["program"]).correct for actual in listed)


def test_every_variant_uses_the_option_in_its_name(done: Path) -> None:
    newest = {variant: runs.newest(done / "3" / variant).state for variant in VARIANTS}
    rows = {variant: runs.rows(done / "3" / variant) for variant in VARIANTS}
    queue = newest["queue"].master
    assert (
        int(queue["queue_count"]) == 3
        and (queue["queue_rewards"][:-1] >= queue["queue_rewards"][1:]).all()
    )
    assert rows["queue"][0]["imitation_loss"] == 0 < rows["queue"][1]["imitation_loss"]
    assert (
        "baseline" not in newest["values, ends"].shared
        and rows["values, ends"][0]["value_loss"] > 0
    )
    assert [row["episodes_this_generation"] for row in rows["replay"]] == [12, 6, 6, 6]
    assert int(newest["replay"].master["executed"]) == 30
    assert rows["replay"][0]["policy_loss"] == 0 != rows["replay"][1]["policy_loss"]
    assert int(newest["replay"].master["replay_count"]) == 20


def command(run: Path, *overrides: str) -> Sequence[str]:
    config = runs.tiny(run.parent, TINY)
    return ["-m", "hpc_es.main", str(config), "--output", str(run), FAST, *overrides]


def started(ranks: int, run: Path, *overrides: str) -> Job:
    return start(ranks, command(run, *overrides), cwd=ROOT)


def finished(ranks: int, run: Path, *overrides: str) -> Finished:
    with started(ranks, run, *overrides) as job:
        return job.wait(LONG_SECONDS)


def test_killed_run_resumes_with_identical_results_on_other_ranks(tmp_path: Path) -> None:
    run, everything = (
        tmp_path / "run",
        [item for name in ("queue", "replay") for item in VARIANTS[name]],
    )
    with started(2, run, *everything, "stop.generations=100000") as job:
        runs.wait_for(lambda: runs.generation(run) > 2, LONG_SECONDS)
        job.signal(0, 9)
        assert job.wait().status != 0
    generation = runs.newest(run).state.generation
    whole = [FAST, *everything, f"stop.generations={generation + 3}"]
    runs.here(runs.tiny(tmp_path, TINY), tmp_path / "whole", whole)
    again = finished(3, run, *everything, f"stop.generations={generation + 2}")
    assert again.status == 0 and f"from generation {generation}" in again.stdout, str(again)
    runs.assert_same(run, tmp_path / "whole")


def test_correct_program_ends_the_run_and_is_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = ["task.fixed_string=[1]", "task.max_code_length=2", "stop.generations=1000"]
    job = finished(1, run, *overrides)
    assert job.status == 0 and "finished by a correct program" in job.stdout, str(job)
    result = json.loads((run / "result.json").read_text())
    assert result["success"] and result["code_solution"] == "+." and result["best_reward"] == 1.0
    assert result["npe"] <= 12 * result["updates"]


@pytest.mark.parametrize(
    ("overrides", "key", "text"),
    [
        (["algorithm.alpha=1.0"], "algorithm.alpha", "below 1"),
        (["algorithm.alpha=0.01"], "algorithm.alpha", "no program of a batch of 12 is replayed"),
        (
            ["algorithm.alpha=0.5", "algorithm.ema_baseline_decay=0"],
            "algorithm.ema_baseline_decay",
            "try 0.99",
        ),
        (
            ["algorithm.topk=5", "algorithm.topk_loss_hparam=1.0", "algorithm.topk_batch_size=0"],
            "algorithm.topk_batch_size",
            "try 1",
        ),
        (["algorithm.topk_loss_hparam=1.0"], "algorithm.topk_loss_hparam", "try topk: 10"),
        (["algorithm.optimizer.kind=momentum"], "algorithm.optimizer.kind", "rmsprop"),
        (["algorithm.optimizer.learning_rate=-1"], "algorithm.optimizer.learning_rate", "-1"),
        (
            ["algorithm.entropy_target=0.5", "algorithm.entropy_beta=0"],
            "algorithm.entropy_beta",
            "try 0.01",
        ),
        (
            ["algorithm.entropy_target=0.5", "algorithm.entropy_beta_end=0"],
            "algorithm.entropy_beta_end",
            "remove one",
        ),
        (["algorithm.entropy_beta=-0.1"], "algorithm.entropy_beta", "-0.1"),
        (["algorithm.policy_lstm_sizes=[]"], "algorithm.policy_lstm_sizes", "1"),
        (["algorithm.policy_lstm_size=[5]"], "algorithm.policy_lstm_size", "policy_lstm_sizes"),
        (["task={kind: episodes, env_id: CartPole-v1}"], "task.kind", "expected 'programs'"),
    ],
)
def test_invalid_policy_gradient_options_are_refused_before_the_run(
    overrides: list[str], key: str, text: str, tmp_path: Path
) -> None:
    from hpc_es.config.loading import load
    from hpc_es.core.errors import ConfigError
    from hpc_es.training.build import build_task

    with pytest.raises(ConfigError) as message:
        build_task(load(runs.tiny(tmp_path, TINY), overrides))
    lines = [line for line in str(message.value).splitlines() if key in line]
    assert len(lines) == 1 and text in lines[0], str(message.value)


def test_asynchronous_updates_of_one_rank_equal_synchronous_ones(tmp_path: Path) -> None:
    everything = [item for name in ("queue", "replay") for item in VARIANTS[name]]
    for name, override in (
        ("batches", "mpi.chunk_size=12"),
        ("run", "algorithm.updates=asynchronous"),
    ):
        runs.here(runs.tiny(tmp_path, TINY), tmp_path / name, [FAST, *everything, override])
    assert runs.digests(tmp_path / "run") == runs.digests(tmp_path / "batches")


def test_asynchronous_run_on_several_ranks_ends(done: Path) -> None:
    run = done / "3" / "asynchronous"
    rows = runs.rows(run)
    assert [row["episodes_this_generation"] for row in rows] == [12] * 20
    assert max(row["staleness"] for row in rows) >= 1
    thetas = [runs.load(path).state.theta for path in runs.Store(run / "checkpoints").paths()]
    assert len({theta.tobytes() for theta in thetas}) == len(thetas) > 2
