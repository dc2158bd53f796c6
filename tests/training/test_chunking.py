"""Division of rounds into chunks by the number of ranks and the duration of jobs;
results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

import hpc_es
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.core.data import Chunk, Float64, Rows, State, cut, row_dtype
from hpc_es.core.declarations import Needs, Offers
from hpc_es.core.errors import RunError
from hpc_es.core.keys import Keys
from hpc_es.core.population import Explicit, Layout, Population
from hpc_es.training.chunk_sizes import AS_ASKED, CHUNK_TIME, Cut
from hpc_es.training.chunking import (
    MOST_COORDINATES,
    ChunkPlanner,
    CutPlan,
    _falling_chunks,
    cut_by_time,
    evaluation_size,
    most_jobs,
    seconds_of_jobs,
)
from hpc_es.training.evaluating_ranks import division_message, evaluating_ranks, idle_message
from hpc_es.training.executors import first_units
from hpc_es.training.job_durations import JobDurations
from hpc_es.training.recutting import recut


def plan(
    ranks: int = 2,
    cutting: str = "one by one",
    requested: int | Literal["auto"] = "auto",
    is_fault_tolerant: bool = False,
    asked: int = 64,
    call_size: int = 1,
    algorithm: Any = None,
) -> ChunkPlanner:
    config: Any = SimpleNamespace(
        mpi=SimpleNamespace(chunk_size=requested, master_evaluates="auto"),
        setup=SimpleNamespace(
            needs=Needs(searches="programs"), offers=Offers(problems=("programs",))
        ),
    )
    algorithm = algorithm or SimpleNamespace(ask=lambda state, round, rows, fitness: cut(asked, 16))
    parts: Any = SimpleNamespace(
        cutting=cutting, unit=16, algorithm=algorithm, row=row_dtype(), delay_line=None
    )
    parts.problem, parts.noise = SimpleNamespace(call_size=call_size), None
    parts.repeating = None
    world: Any = SimpleNamespace(
        size=ranks, fault_handler=SimpleNamespace(is_fault_tolerant=is_fault_tolerant)
    )
    return ChunkPlanner(config, parts, world, 10)


def after(
    result: ChunkPlanner, seconds: float, jobs: int = 64, lengths: Any = (1, ()), steps: float = 0.0
) -> CutPlan:
    """The plan after a generation of one chunk, whose jobs took this number of seconds each."""
    rows, measured = np.zeros(jobs, row_dtype()), np.zeros(len(lengths[1]), row_dtype())
    rows["length"], measured["length"] = lengths
    timesteps, elapsed = float(rows["length"].sum()), seconds * jobs
    result.update(
        rows, measured, np.array([(jobs, steps, timesteps, elapsed, elapsed)], CHUNK_TIME)
    )
    return result.plan


@pytest.mark.parametrize(
    ("seconds", "ranks", "expected"),
    [
        (1e-6, 2, Cut(64, 64)),  # 64 us in all: not worth a message
        (1e-4, 2, Cut(32, 32, is_even=True)),  # 6 ms: one chunk a rank
        (1e-3, 2, Cut(32, 32, is_even=True)),  # as long as each other: no further chunks
        (1e-3, 1, Cut(50, 2)),
        (1e-4, 1, Cut(64, 64)),
        (0.02, 2, Cut(2, 1)),
        (1.0, 2, Cut(1, 1)),
    ],
)
def test_cheap_jobs_are_combined_by_duration(seconds: float, ranks: int, expected: Cut) -> None:
    result = plan(ranks)
    assert result.plan.cut == AS_ASKED
    assert after(result, seconds).cut == expected


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        # a wait of 0.05 ms sqrt(2 * 20 log(27)) = 0.6 ms; 4.2 more chunks and the last: 1.3 + 2 ms
        (0.05e-3, Cut(20, 20, is_even=True)),
        (0.5e-3, Cut(50, 2)),  # a wait of 5.7 ms
    ],
)
def test_cheap_jobs_of_equal_length_are_divided_evenly(spread: float, expected: Cut) -> None:
    assert cut_by_time(540, 1e-3, 27, spread) == expected


@pytest.mark.parametrize(("jobs", "ranks"), [(540, 2), (540, 27), (5400, 16), (100, 50)])
def test_number_of_falling_chunks_is_estimated(jobs: int, ranks: int) -> None:
    counted = len(list(Cut(50, 2).sizes(jobs, ranks))) / ranks
    assert _falling_chunks(-(-jobs // ranks), Cut(50, 2)) == pytest.approx(counted, abs=1.6)


def test_even_chunks_take_at_most_a_quarter_of_a_second() -> None:
    assert cut_by_time(5400, 1e-3, 2) == Cut(250, 250, is_even=True)


def test_spread_of_jobs_follows_from_chunks_of_several() -> None:
    """Means of 1 and 3 ms of 4 jobs each: the variance of a mean is 2 ms^2, of a job 8 ms^2."""
    chunks = np.array([(4, 0, 4, 0, 0.004), (4, 0, 4, 0, 0.012), (1, 0, 1, 0, np.nan)], CHUNK_TIME)
    assert seconds_of_jobs(chunks) == pytest.approx((0.002, 8**0.5 * 1e-3))
    assert seconds_of_jobs(chunks[2:]) == (0.0, 0.0)


def test_jobs_that_advance_together_are_divided_evenly() -> None:
    """A step of 64 jobs takes 1 ms; half of it is taken to be shared,
    so each rank gets one chunk.
    """
    assert after(plan(2, "at once"), 0.2 / 64, lengths=(200, ()), steps=200).cut == Cut(
        32, 32, is_even=True
    )


def test_a_generation_without_a_step_leaves_the_plan_as_it_was() -> None:
    """Every episode failed in its first step, so nothing is known about costs."""
    result = plan(2, "free")
    before = result.plan
    assert after(result, 0.0, lengths=(0, ()), steps=1) == before
    assert after(result, 0.0, lengths=(0, ()), steps=1) == before


@pytest.mark.parametrize(
    ("cutting", "candidate", "expected"),
    [
        ("at once", 4 * 67_585, 248),  # 64 MiB over 270 kB, the parameters of two layers of 256
        ("at once", 4 * 1_000, 16_777),
        ("at once", 1 << 30, 1),
        ("free", 4 * 1_000, 16),
        ("free", 1 << 30, 1),
    ],
)
def test_memory_limits_the_jobs_that_advance_together(
    cutting: Any, candidate: int, expected: int
) -> None:
    assert most_jobs(cutting, candidate) == expected


@pytest.mark.parametrize(
    ("jobs", "ranks", "cutting", "expected"),
    [
        (64, 16, "at once", range(16)),  # always up to 16 ranks
        (1440, 1440, "at once", range(1440)),  # one job each; without rank 0 one rank had two
        (1439, 1440, "at once", range(1, 1440)),
        (5760, 1440, "free", range(1440)),  # four each
        (5756, 1440, "free", range(1, 1440)),
        (33 * 1440, 1440, "free", range(1, 1440)),  # 33 or 34 each: hardly a gain
        (1440, 1440, "one by one", range(1440)),
        (2880, 1440, "one by one", range(1, 1440)),  # rank 0 cannot answer during a function call
        (1440, 1440, "fixed", range(1, 1440)),
    ],
)
def test_rank_0_evaluates_where_that_saves_time(
    jobs: int, ranks: int, cutting: Any, expected: range
) -> None:
    assert evaluating_ranks(jobs, ranks, cutting, "auto", "auto") == expected
    assert evaluating_ranks(jobs, ranks, cutting, "auto", False) == range(1, ranks)


def test_chunks_are_unchanged_if_fixed_or_after_the_loss_of_ranks() -> None:
    assert after(plan(requested=5), 0.001).cut == Cut(5, 5)
    assert after(plan(requested=5, call_size=8), 0.001).cut == Cut(5, 5)
    assert (
        after(plan(cutting="fixed"), 0.001).cut
        == after(plan(cutting="fixed", requested=5), 0.001).cut
        == AS_ASKED
    )
    assert after(plan(is_fault_tolerant=True), 0.001).cut == AS_ASKED
    assert after(plan(cutting="free", is_fault_tolerant=True), 0.001).cut == Cut(16, 4)


def test_jobs_are_divided_again_and_keep_their_units() -> None:
    """40 jobs in units of 16, then probes of two parents, in chunks of 10."""
    asked = [*cut(40, 16), *cut(12, 16, 0, "probe", 1), *cut(12, 16, 12, "probe", 2)]
    result = recut(asked, Cut(10, 10), 2)
    assert [
        (item.purpose, item.parent, item.first_job, item.jobs, item.offset) for item in result
    ] == [
        *[
            ("train", 0, 0, 10, 0),
            ("train", 0, 10, 10, 10),
            ("train", 0, 20, 10, 4),
            ("train", 0, 30, 10, 14),
        ],
        *[
            ("probe", 1, 0, 10, 0),
            ("probe", 1, 10, 2, 10),
            ("probe", 2, 12, 10, 0),
            ("probe", 2, 22, 2, 10),
        ],
    ]
    assert recut(asked, AS_ASKED, 2) == asked
    gap = [Chunk(0, 0, 1), Chunk(0, 2, 1)]
    assert [(item.first_job, item.jobs) for item in recut(gap, Cut(9, 9), 1)] == [(0, 1), (2, 1)]


def test_parts_of_one_unit_are_combined() -> None:
    """Units of 16: 10 jobs, 10 more (6 of unit 0, 4 of unit 1), 12 (of unit 1),
    then another round.
    """
    chunks = [
        Chunk(0, 0, 10),
        Chunk(1, 10, 10, offset=10),
        Chunk(3, 20, 12, offset=4),
        Chunk(4, 32, 3),
    ]
    assert first_units(chunks, 16) == {0: 0, 1: 0, 3: 1, 4: 2}
    assert first_units([Chunk(0, 0, 40), Chunk(1, 40, 1, offset=8)], 16) == {0: 0, 1: 2}


@pytest.mark.parametrize(
    ("cutting", "requested", "ranks", "expected"),
    [
        ("fixed", "auto", 4, 16),
        ("free", 3, 4, 16),
        ("free", "auto", 4, 3),
        ("free", "auto", 1, 10),
        ("at once", "auto", 1, 10),
    ],
)
def test_chunks_of_an_evaluation_depend_on_the_number_of_ranks(
    cutting: Any, requested: Any, ranks: int, expected: int
) -> None:
    assert evaluation_size(10, cutting, requested, ranks) == expected


def test_longer_episodes_are_handed_out_first() -> None:
    result = plan(cutting="free")
    assert result.plan.evaluation_first
    assert not after(result, 0.001, lengths=(50, (49, 49))).evaluation_first
    assert not after(result, 0.001).evaluation_first  # nothing was measured
    assert after(result, 0.001, lengths=(50, (50, 50))).evaluation_first


def test_plan_is_sent_as_numbers() -> None:
    sent = CutPlan(Cut(3, 2, 7, True), 5, False, 9, False)
    assert CutPlan.from_numbers(sent.to_numbers()) == sent


@pytest.mark.parametrize(
    ("jobs", "size", "ranks", "is_free", "message"),
    [
        (64, 16, 4, False, None),
        (64, 1, 64, True, None),
        (
            *(64, 16, 8, False),
            "64 jobs per generation are 4 chunks for 8 evaluating ranks, so 4 ranks of 8 will be idle: 128 jobs per "
            "generation (population, batch) would fill them, and so would mpi.chunk_size: 8",
        ),
        (
            *(64, 1, 128, True),
            "64 jobs per generation are 64 chunks for 127 evaluating ranks, so 63 ranks of 128 will be idle: 127 jobs "
            "per generation (population, batch) would fill them",
        ),
        (
            *(20, 16, 3, True),
            "20 jobs per generation are 2 chunks for 3 evaluating ranks, so 1 rank of 3 will be idle: 48 jobs per "
            "generation (population, batch) would fill them, and so would mpi.chunk_size: auto",
        ),
    ],
)
def test_idle_ranks_are_reported(
    jobs: int, size: int, ranks: int, is_free: bool, message: str | None
) -> None:
    busy = ranks if ranks <= 16 else ranks - 1
    assert idle_message(jobs, size, busy, ranks, is_free) == message


@pytest.mark.parametrize(
    ("jobs", "size", "busy", "message"),
    [
        (1438, 1, 1439, None),
        (2878, 1, 1439, None),
        (2200, 1, 1439, None),  # 0.76 of the time
        (
            *(1440, 1, 1439),
            "1,440 jobs per generation do not divide well among 1,439 evaluating ranks: 1 of them evaluates 2 jobs, "
            "the others 1 and wait. 1,438 jobs would take 50% of the time, 2,878 no longer",
        ),
        (
            *(51, 16, 3),
            "51 jobs per generation do not divide well among 3 evaluating ranks: 1 of them evaluates 2 chunks of 16 "
            "jobs, the others 1 and wait. 48 jobs would take 50% of the time, 96 no longer",
        ),
    ],
)
def test_population_that_does_not_fit_the_ranks_is_reported(
    jobs: int, size: int, busy: int, message: str | None
) -> None:
    assert division_message(jobs, size, busy) == message


def test_run_reports_its_idle_ranks_and_chooses_who_evaluates() -> None:
    state = State(0, {}, {})
    result = plan(64, "free")
    assert result.start(state) is None
    assert (result.plan.ranks, result.plan.rank_0_evaluates) == (64, True)  # as there are 64 jobs
    small, fixed = plan(64, "free", asked=16), plan(64, "fixed")
    assert "47 ranks of 64 will be idle" in str(small.start(state))
    assert (small.plan.ranks, small.plan.rank_0_evaluates) == (63, False)
    assert "64 jobs per generation are 4 chunks for 63 evaluating ranks" in str(fixed.start(state))
    assert "do not divide well among 127" in str(
        plan(128, "free", asked=130, is_fault_tolerant=True).start(state)
    )


def test_dependent_jobs_are_refused_if_chunks_depend_on_the_ranks() -> None:
    plan(cutting="free").require_independent(mixed_chunks=0)
    plan(cutting="free", requested=16).require_independent(mixed_chunks=1)
    plan(cutting="fixed").require_independent(mixed_chunks=1)
    with pytest.raises(RunError, match=r"Set mpi\.chunk_size to a number"):
        plan(cutting="free").require_independent(mixed_chunks=1)


def test_results_do_not_depend_on_combined_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    result = []
    for seconds in (1e-9, 1e-5, 1.0):
        monkeypatch.setattr("hpc_es.training.chunking.LARGEST_SECONDS", seconds)
        monkeypatch.setattr("hpc_es.training.chunking.SMALLEST_SECONDS", seconds / 3)
        minimum = hpc_es.minimize(
            lambda x: float((x * x).sum()), np.ones(3), 0.5, algorithm="cma_es", max_evaluations=70
        )
        result.append((minimum.x.tobytes(), minimum.f, minimum.evaluations))
    assert len(set(result)) == 1


DRAWS = """
import random
import gymnasium
import numpy as np

class Draws(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = {reset}
        return np.array([self.x], np.float32), {{}}

    def step(self, action):
        self.x = {step}
        return np.array([self.x], np.float32), self.x, False, False, {{}}

gymnasium.register("Draws-v0", Draws, max_episode_steps=5)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("reset", "step", "chunk_size", "refused"),
    [
        ("random.random()", "0.5", "auto", False),  # each episode's reset has its own seed
        ("0.5", "random.random()", "auto", True),
        ("0.5", "np.random.rand()", "auto", True),
        ("0.5", "np.random.rand()", 4, False),
        ("0.5", "np.random.rand()", 1, False),
    ],
)
def test_environment_that_uses_global_generators_is_detected(
    reset: str,
    step: str,
    chunk_size: Any,
    refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "draws_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(DRAWS.format(reset=reset, step=step))
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {
        "task": {"env_id": f"{module}:Draws-v0"},
        "policy": {"hidden_dims": [2]},
        "algorithm": {"population_size": 6},
        "noise": {"kind": "counter"},
        "mpi": {"chunk_size": chunk_size},
        "stop": {"generations": 2},
    }
    with hpc_es.train(config, tmp_path / "run") as run:
        if refused:
            with pytest.raises(
                RunError, match="draw from Python's or NumPy's global random generator"
            ):
                list(run)
        else:
            assert len(list(run)) == 2


def test_jobs_that_take_long_are_handed_out_first() -> None:
    """Seconds e^x of a number x in one category, and ten times as many in the other one."""
    durations = JobDurations({1: 2})
    assert durations.longest_first(np.zeros((3, 2))).jobs == ()  # nothing is known
    x = np.linspace(-1, 1, 41)
    vectors = np.array([[number, category] for category in (0.0, 1.0) for number in x])
    seconds = np.exp(vectors[:, 0]) * 10 ** vectors[:, 1]
    seconds[::7] = np.nan
    durations.add(vectors, seconds)
    order = durations.longest_first(np.array([[0.9, 0], [-0.9, 1], [0.9, 1], [0.0, 0], [-0.9, 0]]))
    assert order.jobs == (2, 1, 0, 3, 4)
    assert order.longest == pytest.approx(np.nanmax(seconds) / np.nanmean(seconds))


@dataclass(frozen=True)
class Numbered(BaseStrategy[None]):
    """Eight jobs, whose vectors have their number as each coordinate."""

    size: int

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        return cut(8, 2)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        vectors = np.outer(chunk.job_numbers, np.ones(self.size))
        return Explicit(Layout({"x": (self.size,)}), vectors)


@pytest.mark.parametrize(
    ("size", "expected"), [(MOST_COORDINATES, (7, 6, 5, 4, 3, 2, 1, 0)), (MOST_COORDINATES + 1, ())]
)
def test_jobs_have_an_order_unless_their_vectors_need_too_much_memory(
    size: int, expected: tuple[int, ...]
) -> None:
    algorithm = Numbered(None, None, None, Keys(1), 2, size)
    planner = plan(algorithm=algorithm)
    state = State(0, {"theta": np.zeros(size)}, {})
    planner.add_durations(state, np.linspace(0.1, 0.2, 8))
    planner.order(state)
    assert planner.plan.order == expected
    # the mean is 0.15 s, and the longest job takes 0.2 s: 2 * 2 * 0.2 / 0.15 are left at least
    assert planner.plan.plenty == (6 if expected else 0)


@pytest.mark.parametrize("evaluation_first", [True, False])
def test_chunks_of_long_jobs_and_evaluations_have_their_place(evaluation_first: bool) -> None:
    plan = CutPlan(evaluation_first=evaluation_first, order=(3, 0, 2, 1))
    chunks = [*cut(4, 1), *cut(1, 1, purpose="evaluate")]
    jobs = [
        chunk.first_job if chunk.purpose == "train" else "centre" for chunk in plan.in_order(chunks)
    ]
    assert jobs == (["centre", 3, 0, 2, 1] if evaluation_first else [3, 0, 2, 1, "centre"])
    assert CutPlan().in_order(chunks) is chunks
