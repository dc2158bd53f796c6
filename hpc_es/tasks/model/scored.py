"""Problems whose candidates have scores on batches: what compiled and uncompiled models share.

A subclass scores the candidates of a chunk (`scores`). Rows, objectives, constraints, failures and
the seeds of batches are here.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from hpc_es.core.data import (
    INFO,
    Array,
    Float64,
    Jobs,
    Outcome,
    Poll,
    ProblemState,
    Rows,
    info_numbers,
    row_dtype,
)
from hpc_es.core.errors import Failure, RunError, failure_from_text
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Layout, Population
from hpc_es.core.quantities import fill_finite, fitness_of, ranked_by
from hpc_es.tasks.model.quantities import ModelQuantities
from hpc_es.tasks.problems import PARAMETER_SPREAD, PROBE_BLOCK, VectorProblemDefaults


class ScoredTask(Protocol):
    """What the problem reads of its task."""

    info: tuple[str, ...]  # numbers beside the score that become metrics
    quantities: ModelQuantities
    aborts: bool  # whether a failed evaluation ends the run

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the numbers beside the score, in the order of `Scores.metrics`."""
        ...


@dataclass(frozen=True)
class Scores:
    """Results of jobs, in their order; those of a job that failed are NaN."""

    fitness: Float64  # [jobs]
    metrics: Float64  # [jobs, metrics]
    # of user code; their positions are those of the jobs in the chunk
    failures: Sequence[Failure] = ()


def joined(scores: Sequence[Scores]) -> Scores:
    """Return the results of all these jobs."""
    return Scores(
        np.concatenate([one.fitness for one in scores]),
        np.concatenate([one.metrics for one in scores]),
        [failure for one in scores for failure in one.failures],
    )


class ScoredProblem(VectorProblemDefaults):
    """The search for the parameters with the highest score.

    The batch of a generation, or of each of its pairs, follows from its key.
    """

    dtype = np.dtype(np.float32)
    derives_fitness = False
    less_noise = "larger batches"

    def __init__(self, task: ScoredTask, keys: Keys, layout: Layout) -> None:
        self._scoring, self._keys, self.layout = task, keys, layout
        self.quantities = task.quantities.quantities
        self.derives_fitness = ranked_by(self.quantities)
        self.relative_fitness = bool(self.quantities.constraints)
        info = (info_numbers(len(task.info)),) if task.info else ()
        self.columns = (*self.quantities.columns, *info)

    @cached_property
    def spread(self) -> Array:
        return np.broadcast_to(np.float32(PARAMETER_SPREAD), (self.size,))

    @abstractmethod
    def scores(self, population: Population, jobs: Jobs, poll: Poll) -> Scores:
        """Return the results of the candidates of a chunk, in job order."""

    def evaluate(
        self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll
    ) -> Outcome:
        since = time.perf_counter()
        scores = self.scores(population, jobs, poll)
        rows = np.zeros(len(jobs), row_dtype(self.columns))
        rows["return_"] = np.where(np.isfinite(scores.fitness), scores.fitness, np.nan)
        rows["length"] = 1
        if self._scoring.info:
            names = list(self._scoring.metrics)
            rows[INFO] = scores.metrics[:, [names.index(name) for name in self._scoring.info]]
        scores = self._with_quantities(rows, scores)
        seconds = {"environment": time.perf_counter() - since}
        return Outcome(rows, seconds=seconds, failures=self._failures(scores, jobs))

    def _with_quantities(self, rows: Rows, scores: Scores) -> Scores:
        """Fill the columns of the quantities.

        Returns:
            The scores, of which those without a finite number fail.
        """
        quantities = self._scoring.quantities
        if not quantities.sources:
            return scores
        table = quantities.table(scores.fitness, self._scoring.metrics, scores.metrics)
        failing = fill_finite(self.quantities, rows, table, quantities.sources)
        failures = [failure_from_text(text, position=row) for row, text in failing]
        fitness = np.where(np.isnan(rows["return_"]), np.nan, scores.fitness)
        return Scores(fitness, scores.metrics, [*scores.failures, *failures])

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        """Return the fitness by the first objective, by default the score, and constraints."""
        return fitness_of(self.quantities, rows)

    def _failures(self, scores: Scores, jobs: Jobs) -> list[Failure]:
        failed = np.flatnonzero(~np.isfinite(scores.fitness)).tolist()
        known = {failure.position: failure for failure in scores.failures}
        failures = [
            known.get(row) or failure_from_text(f"the score is {scores.fitness[row]}", position=row)
            for row in failed
        ]
        if failures and self._scoring.aborts:
            raise RunError(
                "an evaluation failed and task.on_failed_evaluation is abort: job "
                f"{jobs.numbers[failed[0]]}: {failures[0].text}"
            )
        return failures

    def all_failed(self, rows: range, failure: Failure) -> Scores:
        """Return the results of jobs that have all failed in this way."""
        fitness = np.full(len(rows), np.nan)
        metrics = np.full((len(rows), len(self._scoring.metrics)), np.nan)
        return Scores(fitness, metrics, [replace(failure, position=row) for row in rows])

    def batch_seed(self, jobs: Jobs, group: int) -> int:
        """Return the seed of the batch of a group of jobs."""
        purpose = Purpose.ENVIRONMENT if jobs.purpose == "train" else Purpose.EVALUATION
        block = PROBE_BLOCK if jobs.purpose == "probe" else 0
        return self._keys.seed31(purpose, jobs.generation, group, block)
