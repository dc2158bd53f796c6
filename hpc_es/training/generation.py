"""One generation of one state: its rounds of chunks, their rows, and its update. It sends nothing: executors do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.core.data import (
    NO_FITNESS,
    Arrays,
    Chunk,
    Float64,
    Outcome,
    Poll,
    ProblemState,
    Purpose,
    Results,
    Rows,
    State,
    cut,
    numbered,
)
from hpc_es.core.errors import RunError
from hpc_es.tasks.problem_defaults import ranks_returns
from hpc_es.training.build import Parts
from hpc_es.training.chunking import CutPlan, recut

NOTHING_CARRIED = ProblemState()


@dataclass(frozen=True)
class Gathered:
    """What comes to rank 0 besides rows."""

    blocks: Sequence[Arrays] = ()  # of the update, in block order
    chunk_arrays: Sequence[Arrays] = ()  # of each training chunk, in chunk order
    learned: Sequence[Sequence[Arrays]] = ()  # of training and probes, by units in their order: the parts of each


class Generation:
    """The steps of a generation, in this order; every rank of a job calls the same ones.

        while chunks := generation.next_chunks():          a round, the same list on every rank
            outcome = generation.evaluate(chunk, poll)     each chunk on one rank
            generation.add(rows)                           the rows of all chunks of the round, on every rank
        generation.prepare()                               on every rank
        generation.partial_update(block)                   each block on one rank
        generation.results(gathered)                       for the update, on rank 0

    Chunks carry the number of their generation, and nothing is kept outside of this object, so that several
    generations can be evaluated at a time. `evaluation_jobs` jobs of the centre come with the first round; without
    `train` there is nothing else. `ranks` are those that chunks are cut for; no bit depends on them.
    """

    def __init__(
        self,
        parts: Parts,
        state: State,
        evaluation_jobs: int = 0,
        train: bool = True,
        plan: CutPlan | None = None,
        ranks: int = 1,
    ) -> None:
        self.parts, self.number, self.train = parts, state.generation, train
        self.state = state  # with what the probes of earlier rounds have shown
        self._before, self._evaluation_jobs = state, evaluation_jobs
        self._plan, self._ranks = plan or CutPlan(), ranks
        self.round = 0
        self.chunks: list[Chunk] = []  # of all rounds so far
        self._rows: dict[int, Rows] = {}  # by the index of the chunk
        self._training_rows = np.zeros(0, parts.row)
        self._fitness = self._probe_fitness = NO_FITNESS  # of the training jobs and of the probes so far
        self._prepared: Any = None

    # Evaluation.

    def next_chunks(self) -> list[Chunk]:
        """Return the chunks of the next round, once `add` was called for the last one; none where all is evaluated."""
        if self.round and not self.train:
            return []
        asked: Sequence[Chunk] = ()
        if self.train:
            asked = self.parts.algorithm.ask(self.state, self.round, self._training_rows, self._fitness)
        new = recut(asked, self._plan.cut, self._ranks)
        if self.round == 0:
            measuring = cut(self._evaluation_jobs, self._plan.evaluated, purpose="evaluate")
            new = [*measuring, *new] if self._plan.evaluation_first else [*new, *measuring]
        new = numbered(new, len(self.chunks), self.number)
        self.chunks += new
        self.round += 1
        return new

    def evaluate(self, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk of the round."""
        return self.parts.algorithm.evaluate(self.state, chunk, poll)

    def add(self, rows: Mapping[int, Rows]) -> None:
        """Take the rows of the round, by the index of their chunk."""
        self._rows.update(rows)
        if not self.train:
            return
        self._take_training(self.rows("train"))
        if any(chunk.purpose == "probe" and chunk.index in rows for chunk in self.chunks):
            self._take_probes(self.rows("probe"))

    def rows(self, purpose: Purpose) -> Rows:
        """Return the rows of the chunks of one purpose, in job order."""
        rows = [self._rows[chunk.index] for chunk in self.chunks if chunk.purpose == purpose]
        return np.concatenate(rows) if rows else np.zeros(0, self.parts.row)

    def _take_training(self, rows: Rows) -> None:
        self._training_rows, self._fitness = rows, fitness_of(self.parts, self._before, rows)

    def _take_probes(self, rows: Rows) -> None:
        self._probe_fitness = fitness_of(self.parts, self._before, rows)
        self.state = self.parts.algorithm.with_probes(self._before, rows, self._probe_fitness)

    # Update.

    def replay(self, rows: Rows, probes: Rows) -> None:
        """Take the rows of all training jobs and probes from elsewhere, in place of an evaluation."""
        self._take_training(rows)
        if len(probes):
            self._take_probes(probes)

    def prepare(self) -> None:
        """Compute what the blocks need of the rows."""
        self._prepared = self.parts.algorithm.prepare(self.state, self._training_rows, self._fitness)

    @property
    def blocks(self) -> int:
        """The number of blocks of the update."""
        return self.parts.algorithm.blocks(self.state)

    def partial_update(self, block: int) -> Arrays:
        """Compute a block of the update."""
        return self.parts.algorithm.partial_update(self.state, self._prepared, block)

    def results(self, gathered: Gathered, probes: Rows | None = None) -> Results[object]:
        """Return what the update needs; `probes` are those of `replay`."""
        probes = self.rows("probe") if probes is None else probes
        return Results(
            *(self._training_rows, gathered.chunk_arrays, gathered.blocks, self._prepared, probes),
            fitness=self._fitness,
            probe_fitness=self._probe_fitness,
        )


def fitness_of(parts: Parts, state: State, rows: Rows) -> Float64:
    """Return the fitness that the problem derives from the rows of all jobs of a kind, float64[jobs].

    NaN of those that failed, whatever the problem says. RunError where it has another shape.
    """
    if not len(rows):
        return NO_FITNESS
    problem = parts.problem
    if ranks_returns(problem):
        return problem.fitness(rows, NOTHING_CARRIED)  # which it does not look at: functions may cost microseconds
    values = np.array(problem.fitness(rows, parts.carried(state)), np.float64)
    if values.shape != rows.shape:
        expected = f"expected one number of each job, float64[{len(rows)}]"
        raise RunError(f"the fitness of the task: {expected}, found shape {list(values.shape)}")
    values[np.isnan(rows["return_"])] = np.nan
    return values
