"""Further evaluations of the members of a front or archive, at the end of a run.

Such a collection keeps the best results, so under noise it keeps lucky ones. Here all ranks
evaluate each member again, as they evaluate a centre, with random numbers of their own. The means
are columns of front.csv or archive.csv, and give a corrected score; the search does not depend on
them. Without `evaluation.members`, one member of a search on a function, program or model is
evaluated once more, and the others only if its result differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpc_es.algorithms.common.archive import score_of
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.core.data import Array, Chunk, Json, Outcome, Poll, Results, Rows, State
from hpc_es.core.domination import nondominated
from hpc_es.core.elites import Elites
from hpc_es.core.interfaces import DeclaresNoise, Problem
from hpc_es.core.keys import Keys
from hpc_es.core.population import Explicit
from hpc_es.core.quantities import MEASURES, OBJECTIVES, Quantities
from hpc_es.storage.members import Again
from hpc_es.training.executors import MpiExecutor, SerialExecutor
from hpc_es.training.generation import Generation
from hpc_es.training.this_rank import ThisRank

VECTORS = "members"  # name of the array of vectors, among those that a chunk is evaluated with
BLOCK_BYTES = 1 << 26  # of vectors that are sent at once
IF_NOISY = 8  # evaluations of each member, if noise was found


def corrected(elites: Elites, again: Again, quantities: Quantities) -> dict[str, Json]:
    """Return what result.json has: of an archive the corrected score, of a front how many members
    no other one dominates by its means.
    """
    found: dict[str, Json] = {"evaluations": again.evaluations, "of_each": again.each}
    columns = again.columns
    costs = -quantities.signs * np.asarray(columns.get(OBJECTIVES, np.zeros((0, 0))), np.float64)
    if elites.division is not None and MEASURES in columns:
        merit = columns["return_"] if "return_" in columns else -costs[:, 0]
        score = score_of(elites.division, columns[MEASURES], np.asarray(merit, np.float64))
        found |= vars(score)
    elif len(costs):
        known = costs[np.isfinite(costs).all(axis=1)]
        found["members"] = int(nondominated(known).sum()) if len(known) else 0
    return found


@dataclass(frozen=True)
class MembersAgain(BaseStrategy[None]):
    """Evaluates vectors of the state in the place of a centre; `options` is how often each."""

    def initial(self) -> State:
        """Return nothing: there is no search."""
        raise AssertionError("members are evaluated, not searched for")

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Return nothing: there is no update."""
        raise AssertionError("members are evaluated, not searched for")

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate the vectors of a chunk."""
        rows = np.array(chunk.job_numbers) // self.options
        vectors = state.shared[VECTORS][rows]
        return self.evaluated(state, chunk, Explicit(self.problem.layout, vectors), poll)


def evaluations_of_each(given: int | None, problem: Problem) -> int:
    """Return how often each member is evaluated again if results are noisy; 0: never.

    `given` is `evaluation.members`.
    """
    if given is not None:
        return given
    is_exact = isinstance(problem, DeclaresNoise) and problem.is_noisy is False
    return IF_NOISY if problem.is_objective and not is_exact else 0


def evaluated_again(rank: ThisRank, elites: Elites | None) -> Again | None:
    """Return, on rank 0, what the members returned again; None if the first one returned the same.

    Every rank calls this; rank 0 has the members, of which there is at least one.
    """
    given, generation = rank.config.evaluation.members, rank.state.generation + 1
    each, probed = evaluations_of_each(given, rank.parts.problem), 0
    if given is None:
        first = None if elites is None else _first(elites)
        rows = _rows(rank, first, 1, generation)
        if first is not None and rows is not None and _is_same(first, rows):
            elites = None
        generation, probed = generation + 1, 1
    rows = _rows(rank, elites, each, generation)
    if elites is None or rows is None:
        return None
    columns = {
        name: _means(rows[name], each)
        for name in elites.columns
        if name in (rows.dtype.names or ())
    }
    return Again(each, len(rows) + probed, columns)


def _first(elites: Elites) -> Elites:
    """Return the first member."""
    columns = {name: column[:1] for name, column in elites.columns.items()}
    return Elites(elites.vectors[:1], elites.generations[:1], elites.jobs[:1], columns)


def _is_same(elites: Elites, rows: Rows) -> bool:
    """Return whether members returned the same again.

    Elites may have columns that rows lack, such as constraints of a task without any.
    """
    measured = [name for name in elites.columns if name in (rows.dtype.names or ())]
    return all(np.array_equal(elites.columns[name], rows[name]) for name in measured)


def _means(values: Array, each: int) -> Array:
    """Return the means of consecutive evaluations without the failed ones, [members, ...]."""
    by_member = np.asarray(values, np.float64).reshape(-1, each, *values.shape[1:])
    succeeded = ~np.isnan(by_member)
    counts = succeeded.sum(axis=1)
    sums = np.where(succeeded, by_member, 0.0).sum(axis=1)
    means: Array = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def _rows(rank: ThisRank, elites: Elites | None, each: int, generation: int) -> Rows | None:
    """Return the rows of `each` evaluations of each member, in their order; None without members.

    Every rank calls this; rank 0 has the members. `generation` is that of the random numbers.
    """
    problem: Any = rank.parts.problem  # of vectors
    count = np.array(0 if elites is None else len(elites), np.int64)
    rank.world.broadcast(count)
    if not int(count):
        return None
    algorithm = MembersAgain(each, problem, None, Keys(rank.config.seed), 1)
    parts = replace(rank.parts, algorithm=algorithm)
    executor = rank.executor
    if not isinstance(executor, MpiExecutor):  # its processes have other parts
        executor = SerialExecutor(rank.work, rank.signals, rank.reports)
    found = []
    for number, block in enumerate(_blocks(int(count), problem.size * problem.dtype.itemsize)):
        vectors = np.empty((block.stop - block.start, problem.size), problem.dtype)
        if elites is not None:
            vectors[:] = elites.vectors[block]
        rank.world.broadcast(vectors)
        state = State(
            generation + number, {**rank.state.shared, VECTORS: vectors}, rank.state.master
        )
        evaluated = Generation(parts, state, len(vectors) * each, train=False)
        found.append(executor.run(evaluated).evaluation)
    return np.concatenate(found)


def _blocks(count: int, bytes_each: int) -> Iterator[slice]:
    """Yield the members that are sent at once."""
    step = max(1, BLOCK_BYTES // bytes_each)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
