"""One generation of a toy problem on real ranks: rounds, probes, columns, units, blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hpc_es
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.core.data import (
    Arrays,
    Chunk,
    Float64,
    Outcome,
    Poll,
    ProblemState,
    Rows,
    State,
    cut,
    row_dtype,
)
from hpc_es.core.errors import RunError
from hpc_es.tasks.problems import ProblemDefaults, VectorTask
from hpc_es.training.build import Parts
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation, fitness_of
from tests.helpers.harness import mpiexec, script
from tests.helpers.runs import TINY

# Return 100 * generation + job; an additional column with (job, parent). Each unit of 2 jobs learns
# the sum of their numbers, except the unit that starts at job 2. The fitness is twice the return
# minus the greatest one so far.
TOY = """
import json
import numpy as np
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.core.data import ProblemState, Chunk, Column, Outcome, State, cut, row_dtype
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import guarded
from hpc_es.mpi.scheduler import Work
from hpc_es.tasks.problems import ProblemDefaults
from hpc_es.training.collective import FailureReports
from hpc_es.training.build import Parts
from hpc_es.training.chunking import CutPlan
from hpc_es.training.executors import MpiExecutor
from hpc_es.training.generation import Generation

ROW = row_dtype((Column("own", "<f8", (2,)),))
asked, measured = [], []

class Relative(ProblemDefaults):
    def carried(self):
        return ProblemState({"factor": np.array(1.0)}, {"of_rank_0": np.array(0)})

    def fitness(self, rows, carried):
        assert list(carried.shared) == ["factor"] and not carried.master
        return carried.shared["factor"] * rows["return_"] - rows["return_"].max()

class Toy(BaseStrategy):
    def ask(self, state, round, rows, fitness):
        asked.append((round, rows["return_"].tolist(), rows["own"][:, 1].tolist(), fitness.tolist()))
        if round == 0:
            return [*cut(5, 2), *cut(3, 2, 0, "probe", 7)]
        return [*cut(2, 1, 5, parent=1), *cut(1, 2, 3, "probe", 8)] if round == 1 else []

    def evaluate(self, state, chunk, poll):
        numbers = np.array(chunk.job_numbers)
        rows = np.zeros(chunk.jobs, ROW)
        rows["return_"] = 100 * state.generation + numbers + (0.5 if chunk.purpose == "probe" else 0)
        rows["own"] = np.stack([numbers, np.full(chunk.jobs, chunk.parent)], axis=1)
        units = [range(at, min(at + 2, chunk.first_job + chunk.jobs)) for at in numbers[::2]]
        learned = [[{} if unit.start == 2 else {"sum": np.array(sum(unit))}] for unit in units]
        return Outcome(rows, {"index": np.array(chunk.index)}, {"policy_calls": 1.0}, learned=learned)

    def with_probes(self, state, probes, fitness):
        measured.append((probes["return_"].tolist(), fitness.tolist()))
        return state

    def prepare(self, state, rows, fitness):
        return float(fitness.sum())

    def blocks(self, state):
        return 4

    def partial_update(self, state, prepared, block):
        return {"twice": np.array(2 * block), "all": np.array(prepared)} if block != 1 else {}

def body():
    world = connect()
    work = Work(world, "on_demand", "auto")
    toy = Toy(None, None, None, None, 2)
    executor = MpiExecutor(world, work, lambda: 0, reports=FailureReports(world, None))
    parts = Parts(None, None, Relative(), None, toy, ROW, 2, "fixed")
    plan = CutPlan(ranks=len(executor.evaluators))
    with world.polling(work.check_messages):
        evaluated = executor.run(Generation(parts, State(3, {"factor": np.array(2.0)}, {}), 4, plan=plan))
    told = world.allgather(np.frombuffer(json.dumps([asked, measured]).encode(), np.uint8))
    if world.rank == 0:
        results = evaluated.results
        listed = lambda rows: [rows["return_"].tolist(), rows["own"].tolist()]
        print(json.dumps({
            "asked": [json.loads(each.tobytes())[0] for each in told],
            "measured": [json.loads(each.tobytes())[1] for each in told],
            "fitness": [results.fitness.tolist(), results.probe_fitness.tolist()],
            "rows": listed(results.rows), "probes": listed(results.probes), "evaluation": listed(evaluated.evaluation),
            "indices": [int(arrays["index"]) for arrays in results.chunk_arrays],
            "learned": [int(arrays["sum"]) for (arrays,) in evaluated.learned],
            "blocks": [[int(array) for array in arrays.values()] for arrays in results.blocks],
            "prepared": results.prepared, "calls": float(evaluated.headers["policy_calls"].sum()),
            "chunks": int(evaluated.headers["chunks"].sum()),
        }))
    world.finalize()
    return 0

guarded(body)
"""


@pytest.fixture(scope="module", params=[1, 3])
def message(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Results of rank 0 at the end of the generation, on this number of ranks."""
    done = mpiexec(request.param, script(TOY), timeout_seconds=60)
    assert done.status == 0, str(done)
    result: dict[str, Any] = json.loads(done.stdout)
    assert len(result["asked"]) == request.param
    return result


def test_ask_gets_the_rows_of_earlier_rounds_on_every_rank(message: dict[str, Any]) -> None:
    """Training rows only, in job order, with the columns of the strategy."""
    first, second = [300.0, 301, 302, 303, 304], [305.0, 306]
    expected = [[0, [], []], [1, first, [0] * 5], [2, first + second, [0] * 5 + [1] * 2]]
    assert [[asked[:3] for asked in of_rank] for of_rank in message["asked"]] == [expected] * len(
        message["asked"]
    )


def test_fitness_covers_all_rows_so_far_on_every_rank(message: dict[str, Any]) -> None:
    """2 r - 304 in the first round, 2 r - 306 in both; for probes 2 r - 302.5, then 2 r - 303.5."""
    expected = [[], [296, 298, 300, 302, 304], [294, 296, 298, 300, 302, 304, 306]]
    assert [[asked[3] for asked in of_rank] for of_rank in message["asked"]] == [expected] * len(
        message["asked"]
    )
    probes = (
        [[300.5, 301.5, 302.5], [298.5, 300.5, 302.5]],
        [[300.5, 301.5, 302.5, 303.5], [297.5, 299.5, 301.5, 303.5]],
    )
    assert message["measured"] == [list(probes)] * len(message["measured"])
    assert message["fitness"] == [expected[2], probes[1][1]]


def test_rows_of_training_and_probes_are_separate_and_in_job_order(message: dict[str, Any]) -> None:
    assert message["rows"] == [
        [300, 301, 302, 303, 304, 305, 306],
        [[job, job > 4] for job in range(7)],
    ]
    assert message["probes"] == [[300.5, 301.5, 302.5, 303.5], [[0, 7], [1, 7], [2, 7], [3, 8]]]
    assert message["evaluation"] == [[300, 301, 302, 303], [[job, 0] for job in range(4)]]


def test_chunk_arrays_exclude_probes_and_units_include_them_in_order(
    message: dict[str, Any],
) -> None:
    """Chunk indices: the evaluation, three chunks and two probes, then two chunks and a probe."""
    assert message["indices"] == [1, 2, 3, 6, 7]
    assert message["learned"] == [1, 4, 1, 5, 6, 3]


def test_blocks_are_in_order_and_use_the_prepared_weights(message: dict[str, Any]) -> None:
    """A block may be empty if there is no information."""
    assert message["prepared"] == 2 * (7 * 300 + 21) - 7 * 306
    assert message["blocks"] == [[0, 2100], [], [4, 2100], [6, 2100]]


def test_ranks_report_all_chunks_of_all_rounds(message: dict[str, Any]) -> None:
    assert message["calls"] == message["chunks"] == 9


@dataclass(frozen=True)
class Twice(BaseStrategy):
    """Two rounds of three jobs; the second is requested after the first;
    job j returns g + j / 10.
    """

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        assert len(rows) == 3 * round, "the rows of another generation"
        return cut(3, 2, 3 * round) if round < 2 else []

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        assert chunk.generation == state.generation
        rows = np.zeros(chunk.jobs, row_dtype())
        rows["return_"] = state.generation + np.array(chunk.job_numbers) / 10
        return Outcome(rows)


def test_interleaved_generations_equal_separate_ones() -> None:
    """Rounds alternate between the two: a Generation object holds its whole state."""
    parts = Parts(
        None,
        None,
        ProblemDefaults(),
        None,
        Twice(None, None, None, None, 2),
        row_dtype(),
        2,
        "fixed",
    )  # type: ignore[arg-type]
    states = [State(number, {"theta": np.zeros(1)}, {}) for number in (4, 5)]
    apart = [SerialExecutor().run(Generation(parts, state)).results.rows for state in states]
    generations = [Generation(parts, state) for state in states]
    for _ in range(2):
        asked = [generation.next_chunks() for generation in generations]
        for generation, chunks in reversed(list(zip(generations, asked, strict=True))):
            generation.add(
                {chunk.index: generation.evaluate(chunk, lambda: None).rows for chunk in chunks}
            )
    assert not any(generation.next_chunks() for generation in generations)
    together = [generation.rows("train") for generation in generations]
    assert [rows.tobytes() for rows in together] == [rows.tobytes() for rows in apart]
    assert together[1]["return_"].tolist() == [5, 5.1, 5.2, 5.3, 5.4, 5.5]


# The fitness.


def parts_of(problem: Any) -> Parts:
    """Parts of a run with a problem and placeholders."""
    return Parts(None, None, problem, None, None, row_dtype(), 2, "fixed")  # type: ignore[arg-type]


def rows_of(*returns: float) -> Rows:
    rows = np.zeros(len(returns), row_dtype())
    rows["return_"] = returns
    return rows


class Shorter(ProblemDefaults):
    """The fitness is minus the length, of a failed job too."""

    def fitness(self, rows: Rows, carried: ProblemState) -> Any:
        return -rows["length"]


class Mean(ProblemDefaults):
    """One number for all jobs."""

    def fitness(self, rows: Rows, carried: ProblemState) -> Any:
        return rows["return_"].mean()


def test_fitness_equal_to_the_return_is_not_copied() -> None:
    rows = rows_of(1.0, np.nan)
    assert np.shares_memory(fitness_of(parts_of(ProblemDefaults()), State(0, {}, {}), rows), rows)


def test_failed_job_has_no_fitness_for_any_columns() -> None:
    result = fitness_of(parts_of(Shorter()), State(0, {}, {}), rows_of(1.0, np.nan))
    assert result.dtype == np.float64 and result[0] == 0 and np.isnan(result[1])


def test_fitness_of_no_jobs_is_empty() -> None:
    assert fitness_of(parts_of(Mean()), State(0, {}, {}), rows_of()).shape == (0,)


def test_fitness_of_wrong_shape_ends_the_run() -> None:
    with pytest.raises(
        RunError, match=r"expected one number per job, float64\[3\], got shape \[\]"
    ):
        fitness_of(parts_of(Mean()), State(0, {}, {}), rows_of(1.0, 2.0, 3.0))


def test_observations_are_counted_per_generation_and_in_total(tmp_path: Path) -> None:
    """With probability 1 each timestep of training is an observation; the count starts at 0.01."""
    config = yaml.safe_load(TINY)
    config["task"]["observation_normalization"] = {"enabled": True, "probability": 1.0}
    with hpc_es.train({**config, "stop": {"generations": 3}}, tmp_path / "run") as run:
        rows = list(run)
    steps = [row["timesteps_this_generation"] for row in rows]
    assert [row["observations_this_generation"] for row in rows] == steps and len(steps) == 3
    assert abs(rows[-1]["observation_count"] - 0.01 - sum(steps)) < 1e-6


# What the problem learned.


@dataclass(frozen=True)
class Learning(BaseStrategy):
    """One chunk of 7 jobs, whose outcome has these items; units have 3 jobs: 3, 3 and 1."""

    learned: Sequence[Sequence[Arrays]] = ()

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        return [] if round else cut(7, 7)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        return Outcome(np.zeros(chunk.jobs, row_dtype()), learned=self.learned)


class Adding(ProblemDefaults):
    """A problem that combines the parts of a unit."""

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        return {"n": sum((part["n"] for part in parts), np.array(0))}


ITEM = {"n": np.array(1)}


@pytest.mark.parametrize(
    ("problem", "cutting", "learned", "message"),
    [
        (Adding(), "free", [[ITEM], [ITEM], [ITEM]], ""),
        (Adding(), "free", [[ITEM]], ""),
        (ProblemDefaults(), "fixed", [[ITEM], [ITEM], [ITEM]], ""),
        (ProblemDefaults(), "free", [[{}]], ""),
        (
            Adding(),
            "fixed",
            [[ITEM]] * 7,
            "at most 3 items in Outcome.learned for a chunk of 7 jobs, .* found 7",
        ),
        (
            Adding(),
            "free",
            [[ITEM] * 3],
            r"at most 1 dict in Outcome.learned\[0\], this unit is whole, found 3",
        ),
        (
            ProblemDefaults(),
            "free",
            [[ITEM]],
            "cutting 'free' divides units of 3 jobs among chunks: set cutting",
        ),
    ],
)
def test_wrong_number_of_learned_items_ends_the_run_with_both_numbers(
    problem: ProblemDefaults, cutting: Any, learned: Sequence[Sequence[Arrays]], message: str
) -> None:
    algorithm = Learning(None, None, None, None, 7, learned)  # type: ignore[arg-type]
    task = VectorTask("wells", lambda keys: problem)
    generation = Generation(
        Parts(task, None, problem, None, algorithm, row_dtype(), 3, cutting), State(0, {}, {})
    )
    (chunk,) = generation.next_chunks()
    if not message:
        assert generation.evaluate(chunk, lambda: None).learned == learned
        return
    with pytest.raises(RunError, match=f"task wells: .*{message}"):
        generation.evaluate(chunk, lambda: None)


def test_problem_that_does_not_combine_parts_reports_their_number() -> None:
    assert ProblemDefaults().unit([ITEM]) is ITEM
    with pytest.raises(
        RunError,
        match=r"ProblemDefaults: expected 1 dict .* for each unit of jobs, found 2: return 1, or",
    ):
        ProblemDefaults().unit([ITEM, ITEM])
