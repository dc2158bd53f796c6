"""The best vector so far, over all that were evaluated: a part of the state, so that it is exact on any ranks.

An objective as a VectorProblem: a job is one evaluation, an episode of length 1 with the return +value or -value.

A job fails where its evaluation fails. What it gives depends on its vector and seed alone; the seed is that of its
group, so that both halves of a mirrored pair have the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hpc_es.core.data import (
    BEHAVIOUR,
    Arrays,
    Column,
    Float64,
    Jobs,
    Outcome,
    Poll,
    ProblemState,
    Results,
    Rows,
    State,
    behaviour,
    row_dtype,
)
from hpc_es.core.errors import RunError
from hpc_es.core.failures import Failure
from hpc_es.core.interfaces import Evaluation, RunContext
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Layout, Population
from hpc_es.tasks.functions.journal import EvaluationJournal, remove_finished
from hpc_es.tasks.functions.options import Bounds, Coordinates, Search
from hpc_es.tasks.functions.python_evaluator import Evaluator, Measured
from hpc_es.tasks.problem_defaults import ProblemDefaults

BEST_X, BEST_VALUE, BEST_AT = "best_x", "best_value", "best_at"
CENTRE = -1  # in place of a job's number: the evaluation of the centre


@dataclass(frozen=True)
class BestVector:
    """A vector as the objective saw it, its value in the user's sign, and where it was found."""

    x: Float64  # float64[size]; NaN before the first evaluation
    value: float = math.nan
    generation: int = -1
    job: int = -1

    def arrays(self) -> dict[str, Any]:
        """Return it as arrays of the state."""
        at = np.array([self.generation, self.job], np.int64)
        return {BEST_X: self.x, BEST_VALUE: np.array(self.value, np.float64), BEST_AT: at}

    @staticmethod
    def of(arrays: Arrays) -> BestVector:
        """Return what `arrays` gave."""
        generation, job = arrays[BEST_AT].tolist()
        return BestVector(np.array(arrays[BEST_X], np.float64), float(arrays[BEST_VALUE]), generation, job)

    def better(self, others: Iterable[BestVector], sign: float) -> BestVector:
        """Return the best of this and the others, the first of several; `sign` is -1 where small values are wanted."""
        best = self
        for other in others:
            if not math.isnan(other.value) and not sign * other.value <= sign * best.value:
                best = other
        return best


def has_best(arrays: Arrays) -> bool:
    """Return whether these arrays of a state hold a best vector."""
    return BEST_X in arrays and not math.isnan(float(arrays[BEST_VALUE]))


def best_report(arrays: Arrays, names: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return the best vector as plain data: a list, or numbers by name where the parameters have names."""
    best = BestVector.of(arrays)
    if math.isnan(best.value):
        return {}
    x: Any = dict(zip(names, best.x.tolist(), strict=True)) if names else best.x.tolist()
    where = {"generation": best.generation, "job": best.job}
    return {"value": best.value, "x": x, **where}


VALUE = Column("value", "<f8")  # as the objective gave it, without sign and penalty
SEEN = "seen"  # what was evaluated, float64[jobs, size]
SPREAD = 0.3  # of a range, as is usual for CMA-ES
PROBE_BLOCK = 3  # of evaluation's keys, as episodes have it


class Seeds(Sequence[int]):
    """The seeds of a chunk's jobs, those of their groups, each computed when it is asked for."""

    def __init__(self, of_group: Callable[[int], int], groups: Sequence[int]) -> None:
        self._of_group, self._groups = of_group, groups

    def __getitem__(self, place: Any) -> Any:
        return self._of_group(self._groups[place])

    def __len__(self) -> int:
        return len(self._groups)


class ObjectiveProblem(ProblemDefaults):
    """The search for the vector with the best value.

    State, master:
        best_x: float64[params]; best vector so far, as the objective gets it; NaN before
        best_value: float64[]; its value, as the objective gave it; NaN before
        best_at: int64[2]; its generation and job; job -1: an evaluation of the centre; both -1 before
    """

    dtype = np.dtype(np.float64)
    is_objective = True
    evaluation_episodes: int | None = 1

    def __init__(
        self,
        search: Search,
        coordinates: Coordinates,
        first: Float64 | Bounds,
        evaluator: Evaluator,
        keys: Keys,
        batch: int = 0,
    ) -> None:
        self._search, self._coordinates, self._first = search, coordinates, first
        self._evaluator, self._keys = evaluator, keys
        keeps_failures = search.on_failed_evaluation == "drop"  # else a run that ended by one would end by it again
        self._journal = EvaluationJournal(search.journal, evaluator.identity, keeps_failures)
        self._run: RunContext | None = None
        self.size = coordinates.size
        self.columns: tuple[Column, ...] = (VALUE, behaviour(self.size)) if search.vector_behaviour else (VALUE,)
        self.layout = Layout({"x": (coordinates.size,)})
        self.spread = _spread(coordinates)
        self.chunk_size = batch or 1
        self._at_once = batch > 0
        self.cutting = "fixed" if batch else "one by one"
        self.coordinate_names = coordinates.names if search.record_evaluations else ()

    def initial(self, rng: np.random.Generator) -> Float64:
        """Return the search vector to begin with, float64[size]."""
        if isinstance(self._first, Bounds):
            drawn: Float64 = rng.uniform(self._first.low, self._first.high)
            return drawn
        return np.array(self._coordinates.searched(self._first), np.float64)

    def open(self, run: RunContext) -> None:
        """Read what a killed run has evaluated already."""
        self._run = run
        self._evaluator.open(run)
        self._journal.open(run.directory, run.call_on_rank_0)

    def on_checkpoint(self, generation: int) -> None:
        """Remove the journal of the generations that a checkpoint holds now; on rank 0 only."""
        if self._run is not None:
            remove_finished(self._run.directory, generation)

    def seen(self, population: Population) -> Float64:
        """Return what the objective sees of some candidates, float64[jobs, size]."""
        return self._coordinates.seen(population.stacked())[0]

    def evaluate(self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll) -> Outcome:
        """Evaluate a chunk."""
        seen, penalties = self._coordinates.seen(population.stacked())
        found = self._measured(seen, jobs, poll)
        rows = np.zeros(len(jobs), row_dtype(self.columns))
        rows["value"] = [each.value for each in found]
        rows["return_"] = self._search.sign * rows["value"] - penalties
        rows["length"] = 1
        if self._search.vector_behaviour:
            rows[BEHAVIOUR] = seen
        arrays = {SEEN: seen} if jobs.purpose == "train" and self._search.record_evaluations else {}
        seconds = {"environment": sum(each.seconds for each in found)}
        return Outcome(rows, arrays, seconds, self._failures(jobs, found), self._best(seen, rows, jobs))

    def _measured(self, seen: Float64, jobs: Jobs, poll: Poll) -> list[Measured]:
        seeds = Seeds(partial(self._seed, jobs), jobs.groups)
        if not self._journal.is_open:
            return self._tried(seen, seeds, poll)
        numbered = zip(jobs.numbers, seen, seeds, strict=True)
        keys = [self._journal.key(f"{jobs.purpose} {number}", x, seed) for number, x, seed in numbered]
        known = self._journal.known(jobs.generation, keys)
        if known is not None:
            return known
        found = self._tried(seen, seeds, poll)
        self._journal.add(jobs.generation, keys, found)
        return found

    def _tried(self, seen: Float64, seeds: Sequence[int], poll: Poll) -> list[Measured]:
        """Evaluate, and again what failed: of a batch the whole, since its values may depend on each other."""
        found = self._evaluator.evaluate(seen, seeds, poll)
        for _ in range(self._search.retries):
            failed = [row for row, each in enumerate(found) if each.failure is not None]
            if not failed:
                break
            again = list(range(len(found))) if self._at_once else failed
            new = self._evaluator.evaluate(seen[again], [seeds[row] for row in again], poll)
            for row, each in zip(again, new, strict=True):
                found[row] = Measured(each.value, each.failure, found[row].seconds + each.seconds)
        return found

    def _seed(self, jobs: Jobs, group: int) -> int:
        purpose = Purpose.ENVIRONMENT if jobs.purpose == "train" else Purpose.EVALUATION
        block = PROBE_BLOCK if jobs.purpose == "probe" else 0
        return self._keys.seed31(purpose, jobs.generation, group, block)

    def _failures(self, jobs: Jobs, found: Sequence[Measured]) -> list[Failure]:
        failures = [
            replace(each.failure, position=position) for position, each in enumerate(found) if each.failure is not None
        ]
        if failures and self._search.on_failed_evaluation == "abort":
            first = f"job {jobs.numbers[failures[0].position]}: {failures[0].text}"
            raise RunError(f"an evaluation failed and task.on_failed_evaluation is abort: {first}")
        return failures

    def _best(self, seen: Float64, rows: Rows, jobs: Jobs) -> list[list[Arrays]]:
        """Return the best of a chunk, the first of several, where one did not fail."""
        values = np.where(np.isnan(rows["value"]), -np.inf, self._search.sign * rows["value"])
        row = int(values.argmax())
        if values[row] == -np.inf:
            return []
        number = jobs.numbers[row] if jobs.purpose == "train" else CENTRE
        return [[BestVector(seen[row], float(rows["value"][row]), jobs.generation, number).arrays()]]

    def carried(self) -> ProblemState:
        """Return that nothing was evaluated yet."""
        return ProblemState({}, BestVector(np.full(self.size, np.nan)).arrays())

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        """Return the best vector so far."""
        best = BestVector.of(carried.master)
        return ProblemState({}, best.better(map(BestVector.of, units), self._search.sign).arrays())

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return the best value so far."""
        return {"best_value": BestVector.of(carried.master).value}

    def is_reached(self, carried: ProblemState, target: float) -> bool:
        """Return whether the best value is at least as good as the target."""
        sign = self._search.sign
        return sign * BestVector.of(carried.master).value >= sign * target

    def summary(self, carried: ProblemState) -> Mapping[str, Any]:
        """Return the best vector so far."""
        return {"best": best_report(carried.master, tuple(self._search.parameters or ()))}

    def evaluation_units(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return the evaluation of the centre as units to merge."""
        values = [float(value) for value in evaluation["value"] if not math.isnan(value)]
        seen = self._coordinates.seen(state.theta[np.newaxis])[0][0]
        return [BestVector(seen, value, state.generation, CENTRE).arrays() for value in values]

    def evaluations(self, state: State, results: Results[object], evaluation: Rows) -> Iterator[Evaluation]:
        """Yield what a generation has evaluated, for evaluations.csv: the jobs, then the centre as job -1."""
        job = 0
        for arrays in results.chunk_arrays:
            for x in arrays[SEEN].tolist():
                yield job, float(results.rows["value"][job]), x
                job += 1
        if len(evaluation):
            seen = self._coordinates.seen(state.theta[np.newaxis])[0][0].tolist()
            yield from ((CENTRE, float(value), seen) for value in evaluation["value"])


def _spread(coordinates: Coordinates) -> Float64:
    """Return SPREAD of the range between the bounds of each coordinate, or SPREAD where it has not both."""
    bounds = coordinates.bounds
    ranges = np.ones(coordinates.size) if bounds is None else bounds.high - bounds.low
    found: Float64 = SPREAD * np.where(np.isfinite(ranges), ranges, 1.0)
    return found


def first_values(search: Search, values: Float64 | Bounds) -> Float64 | Bounds:
    """Return the initial values with those that named parameters have of their own put in."""
    if isinstance(values, Bounds) or not search.parameters:
        return values
    given = [each.initial for each in search.parameters.values()]
    return np.array([old if new is None else new for old, new in zip(values.tolist(), given, strict=True)])
