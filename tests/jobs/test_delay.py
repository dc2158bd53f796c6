"""Jobs with `algorithm.delay`: the results of a loop in one process,
on any number of ranks and after restarts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.config.loading import load
from hpc_es.core.data import State
from hpc_es.core.errors import ConfigError
from hpc_es.storage.checkpoint import load as load_checkpoint
from hpc_es.storage.checkpoint_directory import Store
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation, update_state
from tests.helpers import runs, ulfm
from tests.helpers.harness import ROOT, Job, mpiexec, script

NORMALISED = [
    "task.observation_normalization.enabled=true",
    "task.observation_normalization.probability=0.5",
]
EVERYTHING = [
    *NORMALISED,
    "task.env_kwargs={fault: raise, every: 5}",  # some episodes fail
    "evaluation.interval=1",
]
ROUNDS = "min_timesteps_per_generation: 300"  # two or more in each generation
ES, PGPE = f"kind: es, population_size: 12, {ROUNDS}", f"kind: pgpe, population_size: 12, {ROUNDS}"
ARS = "kind: ars, population_size: 12, top_directions: 3"
DELAYED = ("algorithm.delay=2", "mpi.chunk_size=1", *runs.EVERY)
LIMITS = ("stop.timesteps=700", "stop.target_return=-100", "stop.episodes=40", "stop.patience=2")
PLAIN = {"es 1": ["algorithm.delay=1"], "es 2": ["algorithm.delay=2"]}
WITH_EVERYTHING = {  # overrides in addition to EVERYTHING; rank 0 evaluates by default
    "es, 1": [f"algorithm={{{ES}, delay: 1, lookahead: false}}", "mpi.chunk_size=7"],
    "es, 2": [
        f"algorithm={{{ES}, delay: 2}}",
        "mpi={chunk_size: 1, master_evaluates: false}",
        "noise={kind: counter}",
    ],
    "pgpe, 1": [
        f"algorithm={{{PGPE}, delay: 1}}",
        "mpi={chunk_size: auto}",
        "noise={kind: counter}",
    ],
    "pgpe, 2": [
        f"algorithm={{{PGPE}, delay: 2, lookahead: false}}",
        "mpi={chunk_size: 7, master_evaluates: false}",
    ],
    "ars, 1": [
        f"algorithm={{{ARS}, delay: 1, lookahead: true}}",
        "mpi={chunk_size: auto, master_evaluates: false}",
    ],
    "ars, 2": [f"algorithm={{{ARS}, delay: 2}}", "mpi.chunk_size=1", "noise={kind: counter}"],
}
VARIANTS = {
    **PLAIN,
    **{name: [*EVERYTHING, *overrides] for name, overrides in WITH_EVERYTHING.items()},
    # 17,922 parameters: three blocks
    "blocks": ["algorithm.delay=1", "policy.hidden_dims=[128, 128]"],
    **{limit: [*DELAYED, "stop.generations=50", limit] for limit in LIMITS},
}
INCREMENTAL = ["checkpoint.full_interval=3"]  # inputs of updates between full checkpoints
RANKS = (2, 3, pytest.param(5, marks=pytest.mark.long), pytest.param(17, marks=pytest.mark.long))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A function from the number of ranks to the directory of all variants."""
    variants = {name: [*overrides, "checkpoint.interval=1"] for name, overrides in VARIANTS.items()}
    return runs.trained_variants(tmp_path_factory.mktemp("delay"), variants)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_results_do_not_depend_on_the_number_of_ranks(
    done: Callable[[int], Path], ranks: int, variant: str
) -> None:
    runs.assert_same(done(ranks) / variant, done(1) / variant)


def states(config: Path, directory: Path, overrides: Sequence[str]) -> list[State]:
    """All states of a run, from the algorithm's own methods in a plain loop."""
    with hpc_es.train(load(config, overrides), directory) as run:
        parts: Any = run._run.training.parts
        delay, lookahead = parts.algorithm.options.delay, parts.algorithm.options.looks_ahead()
        result = [parts.problem.carried().merge_into(parts.algorithm.initial())]
        for number in range(6):
            known = max(number - delay, 0)
            shared = dict(result[known].shared)
            if lookahead and known:
                step = shared["theta"] - result[known - 1].theta
                shared["theta"] = shared["theta"] + np.float32(delay) * step
            generation = Generation(parts, State(number, shared, result[0].master))
            evaluated = SerialExecutor().run(generation)
            units = [*map(parts.problem.unit, evaluated.learned)]
            result.append(
                update_state(parts.algorithm, parts.problem, result[-1], evaluated.results, units)[
                    1
                ]
            )
    return result


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", [*PLAIN, *WITH_EVERYTHING])
def test_results_are_those_of_a_plain_loop(
    done: Callable[[int], Path], variant: str, tmp_path: Path
) -> None:
    expected = states(runs.tiny(tmp_path), tmp_path / "loop", VARIANTS[variant])
    snapshot = runs.newest(done(3) / variant)
    assert snapshot.state.generation == 6
    assert {name: array.tobytes() for name, array in snapshot.state.shared.items()} == {
        name: array.tobytes() for name, array in expected[-1].shared.items()
    }
    for name, array in expected[-1].master.items():
        assert snapshot.state.master[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("variant", WITH_EVERYTHING)
def test_variants_have_failures_rounds_and_evaluations(
    done: Callable[[int], Path], variant: str
) -> None:
    """What the variants are for happens."""
    rows = runs.rows(done(1) / variant)
    assert len(rows) == 6 and all("evaluation_return_mean" in row for row in rows)
    assert sum(row["failed_episodes"] > 0 for row in rows) > 1
    assert all(row["episodes_this_generation"] > 12 for row in rows) or variant.startswith("ars")


def test_first_generation_is_that_of_a_run_without_delay(
    done: Callable[[int], Path], tmp_path: Path
) -> None:
    runs.here(runs.tiny(tmp_path), tmp_path / "run", ["stop.generations=2"])
    plain, delayed = runs.rows(tmp_path / "run"), runs.rows(done(1) / "es 1")
    assert delayed[0] == plain[0]
    assert delayed[1]["return_mean"] != plain[1]["return_mean"]


def test_best_theta_is_one_that_was_measured(done: Callable[[int], Path], tmp_path: Path) -> None:
    """Evaluations measure theta_(t - delay), not the extrapolated theta."""
    for delay, variant in enumerate(PLAIN, 1):
        best = runs.newest(done(3) / variant).best
        assert best is not None
        expected = states(runs.tiny(tmp_path), tmp_path / variant, VARIANTS[variant])
        assert (
            best.shared["theta"].tobytes()
            == expected[max(best.generation - delay, 0)].theta.tobytes()
        )


@pytest.mark.parametrize(
    ("delay", "more"),
    [
        (2, INCREMENTAL),
        pytest.param(2, [], marks=pytest.mark.long),
        pytest.param(1, INCREMENTAL, marks=pytest.mark.long),
        pytest.param(1, [], marks=pytest.mark.long),
    ],
)
def test_run_that_is_ended_again_and_again_has_the_same_results(
    delay: int, more: list[str], tmp_path: Path
) -> None:
    """Killed or interrupted at a random instant of generations 0 to delay + 2,
    each time on other ranks.
    """
    run, slow, dice, ranks = (
        tmp_path / "run",
        tmp_path / "slow",
        random.Random(f"{delay} {more}"),
        0,
    )
    options = [f"algorithm.delay={delay}", "mpi.chunk_size=1", *runs.EVERY, *NORMALISED, *more]
    pauses = f"task.env_kwargs={{pause_file: {slow}, pause_file_seconds: 0.003}}"  # of a step
    slow.touch()
    for generation in range(delay + 3):
        ranks = dice.choice([number for number in (1, 2, 3, 5) if number != ranks])
        with runs.begin(ranks, run, *options, pauses, "stop.generations=10000") as job:
            job.wait_for_output("rank=host:pid", 240.0)
            limit = time.monotonic() + 240.0
            while runs.generation(run) < generation:
                assert job.process.poll() is None and time.monotonic() < limit, (
                    f"generation {generation} did not begin"
                )
                time.sleep(0.005)
            time.sleep(dice.uniform(0.0, 0.2))
            end_of_life(job, dice.choice(["all", "interrupted", *range(ranks)]))
    slow.unlink()
    end = runs.newest(run).state.generation + 2
    runs.finished(4, run, *options, pauses, f"stop.generations={end}")
    runs.here(runs.tiny(tmp_path), tmp_path / "whole", [*options, f"stop.generations={end}"])
    runs.assert_same(run, tmp_path / "whole")
    assert runs.digests(run).items() <= runs.digests(tmp_path / "whole").items()


def end_of_life(job: Job, victim: str | int) -> None:
    """Kill all processes of a job, or one rank, or interrupt the job."""
    if victim == "all":
        job.kill()
    elif victim == "interrupted":
        job.process.send_signal(signal.SIGTERM)
        done = job.wait(240.0)
        assert done.status == 75, str(done)
    else:
        job.signal(int(victim), signal.SIGKILL)
        done = job.wait(240.0)
        assert done.status not in (0, 75) and not done.timed_out, str(done)


def test_best_theta_is_the_measured_one_after_a_restart_from_inputs_of_updates(
    tmp_path: Path,
) -> None:
    """The best evaluation is one of the generations whose updates are computed again."""
    more = ["stop.generations=8", "policy.hidden_dims=[64, 64]", *runs.EVERY]
    options = ["algorithm.delay=2", "evaluation.interval=1", *more]
    runs.here(runs.tiny(tmp_path), tmp_path / "whole", options)
    run, incremental = tmp_path / "run", [*options, "checkpoint.full_interval=10"]
    runs.here(runs.tiny(tmp_path), run, incremental)
    *_, newest, last = Store(run / "checkpoints").paths()
    last.unlink()
    best = load_checkpoint(newest).best
    # only its number is stored
    assert best is not None and 0 < best.generation < 7 and not best.shared
    runs.here(runs.tiny(tmp_path), run, incremental)
    runs.assert_same(run, tmp_path / "whole")


GATE = """
import os, time
import gymnasium
import numpy as np

class Gate(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    episodes = 0  # of this rank

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        with open("begun", "a") as file:
            file.write("x")
        Gate.episodes += 1
        self.needed, self.most = WAITS.get(os.environ["PMI_RANK"], {}).get(Gate.episodes, (0, 0))
        self.limit = time.monotonic() + 30
        return np.zeros(1, np.float32), {}

    def step(self, action):
        ends = os.path.getsize("begun") >= self.needed
        if not ends:
            assert time.monotonic() < self.limit, "the other rank has no episode to begin"
            time.sleep(0.01)
        elif self.needed:
            time.sleep(0.2)
            assert os.path.getsize("begun") <= self.most, "an episode of the generation after the next one began"
        else:
            time.sleep(0.03)  # long enough that no rank gets two episodes at once
        return np.zeros(1, np.float32), float(action[0]), ends, False, {}

gymnasium.register("Gate-v0", Gate)
"""


Waits = dict[str, dict[int, tuple[int, int]]]  # by rank and number of its episode


def run_gate(directory: Path, ranks: int, population: int, generations: int, waits: Waits) -> None:
    """Train with a delay of 1 and one job per chunk; `waits` as in the environment."""
    (directory / "gate.py").write_text(f"WAITS = {waits}\n{GATE}")
    config = directory / "gate.yaml"
    config.write_text(
        "task: {kind: episodes, env_id: 'gate:Gate-v0', on_failed_episode: abort, fresh_environment: true}\n"
        "policy: {kind: mlp, hidden_dims: [2]}\n"
        f"algorithm: {{kind: es, population_size: {population}, delay: 1}}\n"
        f"noise: {{kind: counter}}\nmpi: {{chunk_size: 1, master_evaluates: {str('0' in waits).lower()}}}\n"
        f"evaluation: {{interval: 0}}\nstop: {{generations: {generations}}}\n"
    )
    job = mpiexec(
        ranks,
        ["-m", "hpc_es.main", str(config), "--output", str(directory / "run")],
        120.0,
        cwd=directory,
    )
    assert job.status == 0, str(job)
    assert runs.newest(directory / "run").state.generation == generations


@pytest.mark.parametrize(
    ("ranks", "population", "waits"),
    [
        (3, 4, {"1": {1: (5, 8)}}),  # the fifth episode is one of generation 1
        # of generation 2: an update is made during rank 0's episode
        (2, 2, {"1": {1: (3, 4)}, "0": {2: (5, 6)}}),
    ],
    ids=["of a worker", "of rank 0"],
)
def test_long_episode_does_not_delay_the_next_generation(
    ranks: int, population: int, waits: Waits, tmp_path: Path
) -> None:
    """An episode ends only once a number of episodes have begun,
    but no more than a larger number.
    """
    run_gate(tmp_path, ranks, population, 3, waits)


def test_rank_that_is_ten_times_slower_delays_the_other_by_a_thirtieth(tmp_path: Path) -> None:
    """Four jobs per rank: during three episodes of the slow rank the other one can begin 10, 10 and
    9.

    Episodes of the slow rank are those with the indices 0, 11, 22, 32, 43 and 54 of 64, in
    generations 0, 1, 2, 4, 5 and 6, or later ones. While one of generation t is unfinished,
    generation t + 1 is the last one that has begun: the episode with index 22 has to end when all
    32 of generations 0 to 3 have begun.
    """
    needed = (11, 22, 32, 43, 54, 64)
    run_gate(
        tmp_path, 3, 8, 8, {"1": {number: (count, 64) for number, count in enumerate(needed, 1)}}
    )


WATCHED = """
    import sys
    import hpc_es
    from hpc_es.config.loading import load
    from hpc_es.mpi.world import World
    from hpc_es.training.delayed import DelayedExchange

    phases, calls = [], []

    def watch(name, method):
        def call(self, *arguments):
            assert not phases, f"{name} while ranks evaluate"
            calls.append(name)
            return method(self, *arguments)
        setattr(World, name, call)

    def mark(name, method):
        def generate(self, *arguments):
            phases.append(name)
            try:
                yield from method(self, *arguments) or ()
            finally:
                phases.pop()
        return generate

    for name in ("barrier", "broadcast", "allgather", "gather"):
        watch(name, getattr(World, name))
    serving = mark("worker", DelayedExchange.serve_worker)
    DelayedExchange.serve_worker = lambda *arguments: list(serving(*arguments))
    DelayedExchange.generations = mark("rank 0", DelayedExchange.generations)
    with hpc_es.train(load(sys.argv[1], sys.argv[3:]), sys.argv[2]) as run:
        for row in run:
            pass
    assert calls and not phases
"""


def test_no_collective_operation_is_used_while_ranks_evaluate(tmp_path: Path) -> None:
    arguments = [*script(WATCHED), str(runs.tiny(tmp_path)), str(tmp_path / "run"), *DELAYED]
    job = mpiexec(3, arguments, 60.0, cwd=ROOT)
    assert job.status == 0, str(job)
    assert runs.newest(tmp_path / "run").state.generation == 6


def test_blocks_that_workers_compute_are_the_same(
    done: Callable[[int], Path], tmp_path: Path
) -> None:
    """Workers that wait compute some of the three blocks, if they take long,
    as here from 0 s on.
    """
    program = (
        "import hpc_es.training.delayed\nhpc_es.training.delayed.SHARED_UPDATE_SECONDS = 0.0\n"
    )
    arguments = [
        *script(program + textwrap.dedent(runs.TRAIN_VARIANTS)),
        str(runs.tiny(tmp_path)),
        str(tmp_path),
    ]
    variants = {"blocks": [*VARIANTS["blocks"], "checkpoint.interval=1"]}
    job = mpiexec(5, [*arguments, json.dumps(variants)], 60.0, cwd=ROOT)
    assert job.status == 0, str(job)
    runs.assert_same(tmp_path / "blocks", done(1) / "blocks")


def test_update_that_fails_ends_all_ranks(tmp_path: Path) -> None:
    done = runs.train(
        3,
        tmp_path / "run",
        *DELAYED,
        "algorithm.optimizer.learning_rate=1e39",
        "stop.generations=60",
    )
    assert done.status == 1 and not done.timed_out, str(done)
    assert "theta is not finite after generation 1" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "mpi.schedule=static",
            "mpi.schedule: is 'static', but algorithm.delay is 1: expected on_demand",
        ),
        (
            "mpi.update=replicated",
            "mpi.update: is 'replicated', but algorithm.delay is 1: expected gathered",
        ),
        (
            "mpi.fault_tolerance=true",
            "mpi.fault_tolerance: is true, but algorithm.delay is 1: expected false",
        ),
        ("algorithm.delay=3", "algorithm.delay: "),
        (
            "algorithm={kind: cma_es, delay: 1}",
            "kind 'ars, es, nsga2, pgpe', since the others need the newest state",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load(runs.tiny(tmp_path), ["algorithm.delay=1", override])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 generations with a delay of 2, undisturbed, each of them in a checkpoint."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.here(runs.tiny(run.parent), run, [*DELAYED, "stop.generations=60"])
    return run


@pytest.mark.long
def test_signal_stops_after_the_oldest_generation(reference: Path, tmp_path: Path) -> None:
    run, before = tmp_path / "run", 0
    for ranks in (3, 2):
        with runs.begin(ranks, run, *DELAYED, "stop.generations=100000") as job:
            runs.wait_for(lambda before=before: runs.generation(run) >= before + 2)  # type: ignore[misc]
            job.process.send_signal(signal.SIGTERM)
            done = job.wait(30)
        assert done.status == 75 and "interrupted by a signal after" in done.stdout, str(done)
        before = runs.newest(run).state.generation
        assert len(runs.rows(run)) == before  # no generation is given up
    runs.assert_same(run, reference)


def test_second_signal_gives_up_a_generation_that_hangs(reference: Path, tmp_path: Path) -> None:
    """One step of each third episode takes an hour from generation 3 on."""
    run = tmp_path / "run"
    slow = f"task.env_kwargs={{pause_file: {tmp_path / 'slow'}, pause_file_seconds: 3600}}"
    with runs.begin(3, run, *DELAYED, slow, "stop.generations=100000") as job:
        runs.wait_for(lambda: runs.generation(run) >= 3)
        (tmp_path / "slow").touch()
        time.sleep(2.0)
        job.process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        assert job.process.poll() is None
        job.process.send_signal(signal.SIGUSR1)
        done = job.wait(30)
    assert done.status == 75 and "given up" in done.stdout, str(done)
    runs.assert_same(run, reference)


def test_death_of_a_rank_ends_the_job(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with runs.begin(3, run, *DELAYED, "stop.generations=100000") as job:
        runs.wait_for(lambda: runs.generation(run) >= 3)
        job.signal(2, signal.SIGKILL)
        done = job.wait(60)
    assert done.status not in (0, 75) and not done.timed_out, str(done)
    runs.finished(2, run, *DELAYED, f"stop.generations={runs.newest(run).state.generation + 1}")
    runs.assert_same(run, reference)


@pytest.fixture(scope="module")
def variants_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of all variants, trained in this process."""
    directory = tmp_path_factory.mktemp("here")
    for name, overrides in VARIANTS.items():
        runs.here(runs.tiny(directory), directory / name, [*overrides, "checkpoint.interval=1"])
    return directory


@ulfm.needs_ulfm
@pytest.mark.parametrize("ranks", [2, 5, 17])
def test_results_under_open_mpi_are_the_same(
    ranks: int, variants_here: Path, tmp_path: Path
) -> None:
    variants = json.dumps(
        {name: [*overrides, "checkpoint.interval=1"] for name, overrides in VARIANTS.items()}
    )
    program = [*script(runs.TRAIN_VARIANTS), str(runs.tiny(tmp_path)), str(tmp_path), variants]
    with ulfm.start(ranks, program, (*ulfm.MANY, *ulfm.HERE)) as job:
        done = job.wait(runs.VARIANTS_SECONDS)
    assert done.status == 0, str(done)
    for name in VARIANTS:
        runs.assert_same(tmp_path / name, variants_here / name)


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_end_the_run_in_the_same_generation_on_any_number_of_ranks(
    done: Callable[[int], Path], limit: str
) -> None:
    for ranks in (1, 3):
        status = runs.status(done(ranks) / limit)
        assert status["status"] == "finished" and status["reason"].startswith(
            f"{limit.partition('=')[0]}: "
        )
    runs.assert_same(done(3) / limit, done(1) / limit)
    assert len(runs.rows(done(3) / limit)) == len(runs.rows(done(1) / limit)) < 50


CALLER = """
    import sys
    import hpc_es
    from hpc_es.config.loading import load

    with hpc_es.train(load(sys.argv[1], sys.argv[3:]), sys.argv[2]) as run:
        for number, row in enumerate(run):
            if number == 2:
                break
"""


def test_caller_that_stops_ends_all_ranks(reference: Path, tmp_path: Path) -> None:
    arguments = [*script(CALLER), str(runs.tiny(tmp_path)), str(tmp_path / "run"), *DELAYED]
    job = mpiexec(3, arguments, 60.0, cwd=ROOT)
    assert job.status == 0, str(job)
    runs.assert_same(tmp_path / "run", reference)
    assert runs.newest(tmp_path / "run").state.generation == 3


@pytest.mark.long
def test_full_disk_ends_all_ranks(tmp_path: Path) -> None:
    """Of 300 KB: no rank waits for rank 0, which cannot write its next checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount, and not in every container")
    try:
        done = runs.train(3, disk / "run", *DELAYED, "stop.generations=60")
        assert done.status == 1 and not done.timed_out, str(done)
        assert "No space left on device" in done.stderr and "Traceback" not in done.stderr, (
            done.stderr
        )
        assert runs.newest(disk / "run").state.generation > 1
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
