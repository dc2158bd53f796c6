"""Rank 0 evaluates generations of cheap functions alone where that is faster,
with identical results.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.core.data import (
    Arrays,
    Chunk,
    Float64,
    Outcome,
    Poll,
    Results,
    Rows,
    State,
    cut,
    row_dtype,
)
from hpc_es.core.keys import Keys
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.world import World
from hpc_es.storage.metrics_log import read_metrics
from hpc_es.tasks.problems import ProblemDefaults
from hpc_es.training.build import Parts
from hpc_es.training.chunking import SHARED_SECONDS
from hpc_es.training.collective import FailureReports
from hpc_es.training.executors import (
    ALONE_SECONDS,
    COMPARED,
    LONGEST_SECONDS,
    TRIAL_BACKOFF,
    MpiExecutor,
    Rank0Alone,
)
from hpc_es.training.generation import Evaluated, Generation
from hpc_es.training.messages import HEADER
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec, script, start
from tests.helpers.stepping import KINDS

CHEAP = SHARED_SECONDS / 2


class Clocked:
    """A Rank0Alone whose clock advances by the duration of the generations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        parts: Any = SimpleNamespace(algorithm=None, row=row_dtype(), unit=1)
        self.alone = Rank0Alone(
            World("none"), parts, lambda: 0, FailureReports(World("none"), None)
        )
        self.now = 100.0
        monkeypatch.setattr(
            "hpc_es.training.executors.time", SimpleNamespace(perf_counter=lambda: self.now)
        )

    def after(self, was_alone: bool, seconds: float, evaluating: float = CHEAP) -> bool:
        """Whether rank 0 evaluates the next generation alone, after one with these measurements."""
        self.now += seconds
        headers = np.zeros(2, HEADER)
        headers["environment"] = evaluating / 2
        evaluated = Evaluated(
            headers, Results(np.zeros(0, row_dtype()), []), np.zeros(0, row_dtype())
        )
        return self.alone.is_next(was_alone, seconds, evaluated)

    def tried(self, together: float, alone: float) -> int:
        """Generations alone in the first trial."""
        assert [self.after(False, together) for _ in range(COMPARED)] == [False] * (
            COMPARED - 1
        ) + [True]
        return 1 + next(count for count in range(10_000) if not self.after(True, alone))


def test_rank_0_evaluates_alone_if_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = Clocked(monkeypatch)
    assert clocked.tried(0.010, 0.008) == pytest.approx(ALONE_SECONDS / 0.008, abs=1)
    assert clocked.after(False, 0.010)  # the next spell begins at once
    assert clocked.after(True, 0.008)
    assert not clocked.after(True, ALONE_SECONDS)


def test_evaluating_alone_is_tried_less_often_if_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = Clocked(monkeypatch)
    # a trial ends with the first generation that takes too long
    assert clocked.tried(0.010, 0.3) == 1
    for wait in (COMPARED * TRIAL_BACKOFF, COMPARED * TRIAL_BACKOFF**2):
        for _ in range(wait - 1):
            assert not clocked.after(False, 0.010)
        assert clocked.after(False, 0.010)
        assert not clocked.after(True, 0.3)


@pytest.mark.parametrize(
    ("seconds", "evaluating"),
    [(LONGEST_SECONDS * 1.1, CHEAP), (0.01, SHARED_SECONDS), (0.01, 0.009)],
)
def test_long_generations_are_evaluated_by_all_ranks(
    monkeypatch: pytest.MonkeyPatch, seconds: float, evaluating: float
) -> None:
    clocked = Clocked(monkeypatch)
    assert not any(clocked.after(False, seconds, evaluating) for _ in range(3 * COMPARED))


def test_rank_0_stops_evaluating_alone_if_evaluations_become_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked = Clocked(monkeypatch)
    assert clocked.tried(0.010, 0.001) > 1 and clocked.after(False, 0.010)
    assert clocked.after(True, 0.001) and not clocked.after(True, 0.001, SHARED_SECONDS)


@pytest.mark.parametrize(
    ("expected", "cutting", "mpi"),
    [
        (True, "one by one", {}),
        (False, "at once", {}),
        (False, "one by one", {"chunk_size": 16}),
        (False, "one by one", {"master_evaluates": False}),
        (False, "one by one", {"update": "replicated"}),
    ],
)
def test_evaluating_alone_needs_automatic_chunks_and_master_evaluation(
    expected: bool, cutting: str, mpi: dict[str, Any]
) -> None:
    usual = {"chunk_size": "auto", "master_evaluates": "auto", "update": "gathered"}
    config: Any = SimpleNamespace(mpi=SimpleNamespace(**{**usual, **mpi}))
    problem = SimpleNamespace(call_size=1)
    parts: Any = SimpleNamespace(
        cutting=cutting, algorithm=None, problem=problem, row=row_dtype(), unit=1
    )

    def is_there(size: int = 2, rank: int = 0, is_fault_tolerant: bool = False) -> bool:
        handler = SimpleNamespace(is_fault_tolerant=is_fault_tolerant)
        world: Any = SimpleNamespace(size=size, rank=rank, fault_handler=handler, library="none")
        return (
            Rank0Alone.from_config(
                config, world, parts, lambda: 0, FailureReports(World("none"), None)
            )
            is not None
        )

    result = [is_there(), is_there(size=1), is_there(rank=1), is_there(is_fault_tolerant=True)]
    assert result == [expected, False, False, False]


# A spell of three generations follows each generation of all ranks, whatever is faster.
SPELLS = """
    import json, sys
    from pathlib import Path
    import numpy as np
    import hpc_es
    from hpc_es.algorithms.common import covariance
    from hpc_es.mpi.connect import connect
    from hpc_es.training.executors import Executor, Rank0Alone

    left = [0]
    def is_next(self, was_alone, measured, evaluated):
        left[0] = left[0] - 1 if was_alone else 3
        return left[0] > 0
    Rank0Alone.is_next = is_next
    taken, run = [0], Executor.run
    def counted(self, generation):
        taken[0] += generation.train
        assert all(array.flags.c_contiguous for array in generation.state.shared.values())
        return run(self, generation)
    Executor.run = counted
    root_of = covariance.root_of
    def across(matrix):  # its columns lie one after the other, until it is sent
        root, *others = root_of(matrix)
        return np.asfortranarray(root), *others
    covariance.root_of = across

    configs, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
    for name, config in configs.items():
        for row in hpc_es.train(config, directory / name):
            pass
        sys.stdout.write(f"rank {connect().rank}: {name} {taken[0]}\\n")
        taken[0] = 0
"""
COMMON: dict[str, Any] = {
    "seed": 1,
    "task": {
        "kind": "function",
        "function": "tests.helpers.toys:ellipsoid",
        "dimension": 300,
    },  # two blocks of a covariance
    "noise": {"kind": "counter"},
    "evaluation": {"interval": 2, "episodes": 3},
    "checkpoint": {"interval": 1, "interval_seconds": 0, "keep_last": 100},
    "report": {"plot_interval_seconds": 0},
    "stop": {"generations": 9},
}


@pytest.mark.long
def test_evaluating_alone_gives_identical_results_for_every_strategy(tmp_path: Path) -> None:
    configs = {kind: {**COMMON, "algorithm": {"kind": kind}} for kind in KINDS}
    for ranks in (1, 3):
        job = mpiexec(
            ranks, [*script(SPELLS), json.dumps(configs), str(tmp_path / str(ranks))], cwd=ROOT
        )
        assert job.status == 0, str(job)
        for kind in KINDS:
            assert f"rank 0: {kind} 9" in job.stdout  # 0, 4 and 8 are of all ranks
            assert ranks == 1 or (
                f"rank 1: {kind} 3" in job.stdout and f"rank 2: {kind} 3" in job.stdout
            )
    for kind in KINDS:
        runs.assert_same(tmp_path / "3" / kind, tmp_path / "1" / kind)


@pytest.mark.long
def test_signal_to_a_waiting_rank_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    cheap = {
        **COMMON,
        "task": {**COMMON["task"], "dimension": 3},
        "checkpoint": {"interval": 0, "interval_seconds": 0},
    }
    config, run, reference = tmp_path / "cheap.yaml", tmp_path / "run", tmp_path / "reference"
    config.write_text(json.dumps({**cheap, "algorithm": {"kind": "es", "population_size": 4}}))

    def by_rank_0(run: Path) -> list[bool]:
        return [row["evaluating_ranks"] == 1 for row in read_metrics(run)]

    def command(run: Path, generations: int) -> list[str]:
        return [
            "-m",
            "hpc_es.main",
            str(config),
            "--output",
            str(run),
            f"stop.generations={generations}",
        ]

    with start(2, command(run, 1_000_000)) as job:
        runs.wait_for(lambda: runs.generation(run) > 100 and any(by_rank_0(run)))
        job.signal(1, signal.SIGUSR1)
        since = time.perf_counter()
        ended = job.wait()
    assert ended.status == 75 and time.perf_counter() - since < 10, str(ended)
    assert not all(by_rank_0(run))
    until = len(by_rank_0(run)) + 20
    for ranks, directory in ((2, run), (1, reference)):
        assert mpiexec(ranks, command(directory, until)).status == 0
    assert runs.digest(runs.newest(run)) == runs.digest(runs.newest(reference))


@dataclass(frozen=True)
class ThreeBlocks(BaseStrategy[None]):
    """A custom strategy of one job; it records which blocks of its update were computed."""

    computed: list[int]

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        return [] if round else cut(1, 1)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        return Outcome(np.ones(chunk.jobs, row_dtype()))

    def blocks(self, state: State) -> int:
        return 3

    def partial_update(self, state: State, prepared: None, block: int) -> Arrays:
        self.computed.append(block)
        return {"block": np.array(block)}


@dataclass(frozen=True)
class ThreeBlocksOnce(ThreeBlocks):
    """The same, but its blocks may be computed when they are read."""

    reads_blocks_once = True


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("strategy", [ThreeBlocks, ThreeBlocksOnce])
def test_blocks_of_a_large_update_are_computed_when_read_if_the_strategy_reads_them_once(
    strategy: type[ThreeBlocks], is_large: bool
) -> None:
    world = World("none")
    algorithm = strategy(None, None, None, Keys(1), 1, [])
    unused: Any = None
    parts = Parts(unused, None, ProblemDefaults(), None, algorithm, row_dtype(), 1, "fixed")
    work, reports = Work(world, "static", True), FailureReports(world, None)
    executor = MpiExecutor(world, work, lambda: 0, reports=reports, is_large=is_large)
    results = executor.run(Generation(parts, State(0, {}, {}))).results
    on_demand = is_large and strategy is ThreeBlocksOnce
    assert algorithm.computed == ([] if on_demand else [0, 1, 2])
    blocks = iter(results.blocks)
    assert [int(next(blocks)["block"]), int(next(blocks)["block"])] == [0, 1]
    assert algorithm.computed == ([0, 1] if on_demand else [0, 1, 2])
    assert int(next(blocks)["block"]) == 2 and next(blocks, None) is None
