"""Which runs end exactly at `stop.episodes`, after how many evaluations the others end,
and what a cut leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.core.data import (
    Arrays,
    Chunk,
    Column,
    Float64,
    Outcome,
    Poll,
    Rows,
    State,
    cut,
    info_numbers,
    row_dtype,
)
from hpc_es.core.errors import CheckpointError
from hpc_es.core.keys import Keys
from hpc_es.tasks.problems import ProblemDefaults
from hpc_es.training.budget import budget_warning, may_be_cut
from hpc_es.training.build import Parts, build_task, valid_config
from hpc_es.training.chunk_sizes import AS_ASKED, Cut
from hpc_es.training.chunking import CutPlan
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation
from hpc_es.training.outcomes import StoredOutcomes, continued
from hpc_es.training.recutting import first_jobs, recut, without_first_jobs

# Budgets.

FUNCTION = {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 4}


def warning(
    algorithm: str,
    episodes: int,
    task: str = "",
    used: int = 0,
    generation: int = 0,
    interval: int = 0,
) -> Any:
    """The warning about a budget, and whether the last generation is cut to it."""
    data = {
        "task": yaml.safe_load(task) if task else FUNCTION,
        "algorithm": yaml.safe_load(algorithm),
        "evaluation": {"interval": interval},
        "stop": {"episodes": episodes},
    }
    config = valid_config(data)
    built = build_task(config)
    try:
        return budget_warning(config, built.problem, used, generation), may_be_cut(config)
    finally:
        built.task.close()


def test_most_searches_are_cut_to_the_budget() -> None:
    for kind in ("es", "cma_es", "pgpe", "ars", "novelty", "deep_ga"):
        task = "{kind: function, function: 'tests.helpers.toys:ellipsoid', dimension: 4, vector_behaviour: true}"
        assert warning(f"{{kind: {kind}}}", 601, task) == (None, True)


def test_others_say_where_they_end() -> None:
    """Generations of 10, with the centre in generations 0, 3, 6: 11, 21, 31, 42, 52, 62."""
    delayed = "{kind: es, population_size: 10, delay: 1}"
    why = "algorithm.delay is 1"
    text = "stop.episodes: 35 is not the end of a generation, and {}: the run ends after {}"
    assert warning(delayed, 35) == (text.format(why, "40; 30 and 40 fit"), False)
    assert warning(delayed, 35, interval=3) == (text.format(why, "42; 31 and 42 fit"), False)
    assert warning(delayed, 35, used=31, generation=3, interval=3) == (
        text.format(why, "42; 31 and 42 fit"),
        False,
    )
    assert warning(delayed, 42, interval=3) == (None, False)
    assert warning(delayed, 35, used=40) == (None, False)
    assert warning(delayed, 5)[0].endswith("the run ends after 10; 10 fits")
    unknown = "stop.episodes: 35 may fall within a generation, and {}: the run then ends after that generation"
    side = "{kind: cma_es, restarts: bipop, side_by_side: true}"
    assert warning(side, 35) == (unknown.format("algorithm.side_by_side is true"), False)
    rounds = "{kind: es, population_size: 10, delay: 1, min_timesteps_per_generation: 20}"
    assert warning(rounds, 35) == (unknown.format(why), False)


def test_jobs_of_several_episodes_are_not_divided() -> None:
    task = "{env_id: 'tests.helpers.toys:Survival-v0', episodes_per_job: 3}"
    text = "stop.episodes: 50 is not a multiple of task.episodes_per_job, 3: the run ends after 51; 48 and 51 fit"
    assert warning("{kind: es}", 50, task) == (text, True)
    assert warning("{kind: es}", 51, task) == (None, True)


# Divided chunks.


def jobs_of(chunks: Sequence[Chunk]) -> list[tuple[int, int, int]]:
    return [(chunk.first_job, chunk.jobs, chunk.offset) for chunk in chunks]


def test_first_jobs_and_the_others_are_all_jobs() -> None:
    asked = cut(10, 4)
    assert jobs_of(first_jobs(asked, 6)) == [(0, 4, 0), (4, 2, 0)]
    assert jobs_of(without_first_jobs(asked, 6)) == [(6, 2, 2), (8, 2, 0)]
    assert first_jobs(asked, 10) == asked == without_first_jobs(asked, 0)
    assert first_jobs(asked, 0) == [] == without_first_jobs(asked, 10)
    assert recut(asked, AS_ASKED, 1, 6) == without_first_jobs(asked, 6)


def test_recut_chunks_without_the_first_jobs_keep_their_units() -> None:
    """Units of 4 jobs: job 6 is the third of its unit."""
    assert jobs_of(recut(cut(10, 4), Cut(3, 3), 1, 6)) == [(6, 3, 2), (9, 1, 1)]
    probes = [*cut(3, 4, purpose="probe"), *cut(8, 4)]
    assert jobs_of(recut(probes, Cut(8, 8), 1, 5)) == [(2, 6, 2)]


def test_stored_chunks_that_no_longer_fit_are_ignored() -> None:
    stored = [*cut(3, 3, purpose="probe"), *cut(4, 2)]
    assert continued(stored, [*cut(3, 1, purpose="probe"), *cut(8, 4)]) == (stored, 7)
    assert continued(stored, [*cut(3, 1, purpose="probe"), *cut(3, 4)]) == (stored[:2], 5)
    assert continued(stored, [*cut(3, 1, purpose="probe", parent=1)]) == ([], 0)


# A generation.

OWN = Column("own", "<f8", (2,))
ROW = row_dtype((OWN,))


class Objective(ProblemDefaults):
    is_objective = True

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        return parts[0]


class Toy(BaseStrategy[None]):
    """Three probes, then rounds of five and two jobs; each unit of two jobs learns something."""

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        if round == 0:
            return cut(3, 2, purpose="probe", parent=7)
        return [cut(5, 2), cut(2, 2, 5), []][round - 1]

    def with_probes(self, state: State, probes: Rows, fitness: Float64) -> State:
        assert len(probes) == 3
        return state

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        rows = np.zeros(chunk.jobs, ROW)
        rows["return_"] = list(chunk.job_numbers)
        learned = [[{"first": np.array(job)}] for job in range(-chunk.offset, chunk.jobs, 2)]
        return Outcome(rows, {"jobs": np.array(chunk.job_numbers)}, learned=learned)

    def blocks(self, state: State) -> int:
        return 0


def generation(
    limit: int | None, stored: StoredOutcomes | None = None, cutting: Any = "fixed", **more: Any
) -> Any:
    """The evaluated generation, with one evaluation of the centre,
    and the jobs that were evaluated now.
    """
    problem = Objective()
    parts = Parts(None, None, problem, None, Toy({}, problem, None, Keys(1), 2), ROW, 2, cutting)  # type: ignore[arg-type]
    new = Generation(
        parts, State(4, {"theta": np.zeros(1)}, {}), 1, limit=limit, stored=stored, **more
    )
    evaluated: list[tuple[str, int, int]] = []
    evaluate = new.evaluate

    def counted(chunk: Chunk, poll: Poll) -> Outcome:
        evaluated.append((chunk.purpose, chunk.first_job, chunk.jobs))
        return evaluate(chunk, poll)

    new.evaluate = counted  # type: ignore[method-assign]
    return SerialExecutor().run(new), evaluated


@pytest.mark.parametrize(
    ("limit", "jobs"),
    [
        (0, []),
        (1, [("evaluate", 0, 1)]),
        (3, [("evaluate", 0, 1), ("probe", 0, 2)]),
        # the probes are complete, the generation is not
        (4, [("evaluate", 0, 1), ("probe", 0, 2), ("probe", 2, 1)]),
        (
            7,
            [
                ("evaluate", 0, 1),
                ("probe", 0, 2),
                ("probe", 2, 1),
                ("train", 0, 2),
                ("train", 2, 1),
            ],
        ),
    ],
)
def test_last_jobs_are_left_out(limit: int, jobs: list[tuple[str, int, int]]) -> None:
    found, evaluated = generation(limit)
    assert evaluated == jobs and found.is_cut
    assert found.outcomes.jobs(with_evaluations=True) == limit
    assert len(found.results.rows) == sum(count for purpose, _, count in jobs if purpose == "train")


def test_generation_within_the_limit_is_not_cut() -> None:
    for limit in (None, 11, 12):
        found, evaluated = generation(limit)
        assert not found.is_cut and found.outcomes is None and len(evaluated) == 1 + 2 + 3 + 1


def test_evaluations_of_a_policy_do_not_count() -> None:
    problem_is_objective = Objective.is_objective
    try:
        Objective.is_objective = False
        found, evaluated = generation(2)
    finally:
        Objective.is_objective = problem_is_objective
    assert (
        evaluated == [("evaluate", 0, 1), ("probe", 0, 2)]
        and found.outcomes.jobs(with_evaluations=False) == 2
    )


@pytest.mark.parametrize(
    "plan", [CutPlan(), CutPlan(evaluation_first=False), CutPlan(Cut(3, 1), ranks=2)]
)
@pytest.mark.parametrize("first", range(12))
def test_only_missing_jobs_are_evaluated(first: int, plan: CutPlan) -> None:
    """Cut after any number of jobs, stored, cut again and completed in chunks of other sizes."""
    whole, _ = generation(None)
    part, _ = generation(first, cutting="one by one", plan=plan)
    for limit in (*([first + 1] if first < 10 else []), None):
        if first >= 11:
            break
        stored = StoredOutcomes.unpack(part.outcomes.pack(), ROW)
        before = stored.jobs(with_evaluations=True)
        part, evaluated = generation(limit, stored, "one by one")
        assert sum(count for _, _, count in evaluated) == (11 if limit is None else limit) - before
    assert part.results.rows.tobytes() == whole.results.rows.tobytes()
    assert part.results.probes.tobytes() == whole.results.probes.tobytes()
    assert part.evaluation.tobytes() == whole.evaluation.tobytes()
    numbers = [arrays["jobs"] for arrays in part.results.chunk_arrays]
    assert np.concatenate(numbers).tolist() == list(range(7))


def test_fixed_chunk_that_was_cut_is_evaluated_again() -> None:
    part, _ = generation(7)  # the second chunk of two training jobs has one
    stored = StoredOutcomes.unpack(part.outcomes.pack(), ROW)
    assert generation(7, stored)[1] == []
    assert generation(None, stored)[1] == [("train", 2, 2), ("train", 4, 1), ("train", 5, 2)]


# Stored outcomes.


def test_stored_outcomes_are_restored_bit_for_bit() -> None:
    part, _ = generation(7)
    back = StoredOutcomes.unpack(part.outcomes.pack(), ROW)
    assert list(back.chunks) == list(part.outcomes.chunks)
    for ours, theirs in zip(back.outcomes, part.outcomes.outcomes, strict=True):
        assert ours.rows.tobytes() == theirs.rows.tobytes() and ours.rows.dtype == ROW
        assert ours.arrays["jobs"].tolist() == theirs.arrays["jobs"].tolist()
        assert [[*map(dict, parts)] for parts in ours.learned] == [
            [*map(dict, parts)] for parts in theirs.learned
        ]
    table = StoredOutcomes.from_table(part.outcomes.table())
    assert list(table.chunks) == list(back.chunks) and not table.outcomes
    assert StoredOutcomes.unpack(StoredOutcomes([]).pack(), ROW) == StoredOutcomes([], [])


def test_numbers_of_infos_may_be_missing_and_other_columns_not() -> None:
    part, _ = generation(1)
    with_info = row_dtype((OWN, info_numbers(2)))
    (outcome,) = StoredOutcomes.unpack(part.outcomes.pack(), with_info).outcomes
    assert np.isnan(outcome.rows["info"]).all() and outcome.rows["return_"].tolist() == [0]
    with pytest.raises(CheckpointError, match="no column 'new' float64"):
        StoredOutcomes.unpack(part.outcomes.pack(), row_dtype((Column("new", "<f8"),)))


def test_old_checkpoints_have_no_cut(tmp_path: Path) -> None:
    from hpc_es.storage.checkpoint import CutShort, Snapshot, load, save

    snapshot = Snapshot(State(1, {"theta": np.zeros(2)}, {}), {}, None, {}, "", "", {}, {}, {})
    save(tmp_path / "old.h5", snapshot)
    assert load(tmp_path / "old.h5").cut is None
    cut_short = CutShort({"episodes": 7}, b"\0outcomes")
    save(
        tmp_path / "new.h5",
        Snapshot(snapshot.state, {}, None, {}, "", "", {}, {}, {}, cut=cut_short),
    )
    assert load(tmp_path / "new.h5").cut == cut_short
