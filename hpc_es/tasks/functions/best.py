"""The best vector of a search for one value: what a problem keeps of it, and reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Array, Arrays, Float64, Jobs, Json, Rows, State
from hpc_es.core.quantities import CONSTRAINTS, violations
from hpc_es.tasks.functions.best_arrays import (
    BEST_AT,
    BEST_VALUE,
    BEST_VIOLATION,
    BEST_X,
    has_best,
)
from hpc_es.tasks.functions.initial_points import InitialPoints
from hpc_es.tasks.functions.options import Coordinates, SearchOptions
from hpc_es.tasks.functions.parameters import Scale, decoded

CENTRE = -1  # in place of a job's number: the evaluation of the centre


@dataclass(frozen=True)
class BestVector:
    """The best vector so far, as passed to the objective, and its value in the user's sign."""

    x: Float64  # float64[size]; NaN before the first evaluation
    value: float = math.nan
    generation: int = -1
    job: int = -1
    # sum of the positive constraint values; None: there are no constraints
    violation: float | None = None

    def arrays(self) -> dict[str, Array]:
        """Return arrays of the state."""
        at = np.array([self.generation, self.job], np.int64)
        violation = {} if self.violation is None else {BEST_VIOLATION: np.array(self.violation)}
        return {
            BEST_X: self.x,
            BEST_VALUE: np.array(self.value, np.float64),
            BEST_AT: at,
            **violation,
        }

    @staticmethod
    def from_arrays(arrays: Arrays) -> BestVector:
        """Return the best vector from the result of `arrays`."""
        generation, job = arrays[BEST_AT].tolist()
        violation = float(arrays[BEST_VIOLATION]) if BEST_VIOLATION in arrays else None
        return BestVector(
            np.array(arrays[BEST_X], np.float64),
            float(arrays[BEST_VALUE]),
            generation,
            job,
            violation,
        )

    def better(self, others: Iterable[BestVector], sign: float) -> BestVector:
        """Return the best of this and the others, of equal ones the first; `sign` is -1 for
        minimisation.

        A smaller violation is better than a better value.
        """
        best = self
        for other in others:
            old, new = best.violation or 0.0, other.violation or 0.0
            is_better = new < old if new != old else not sign * other.value <= sign * best.value
            if not math.isnan(other.value) and (is_better or math.isnan(best.value)):
                best = other
        return best


def best_report(arrays: Arrays, scales: Mapping[str, Scale]) -> Mapping[str, Json]:
    """Return the best vector as plain data: value, x (a list, or values by name),
    generation and job; {} if none.
    """
    if not has_best(arrays):
        return {}
    best = BestVector.from_arrays(arrays)
    x: Json = decoded(scales, best.x.tolist()) if scales else best.x.tolist()
    violation = {} if best.violation is None else {"violation": best.violation}
    return {
        "value": best.value,
        **violation,
        "x": x,
        "generation": best.generation,
        "job": best.job,
    }


@dataclass(frozen=True)
class BestRecord:
    """The best vector so far in the state of a problem that searches for one value.

    State, master:
        best_x: float64[params], if the task has one objective; best vector so far, as passed to
            the objective; NaN before the first evaluation
        best_value: float64[], if the task has one objective; value of the objective for best_x;
            NaN before the first evaluation
        best_at: int64[2], if the task has one objective; its generation and job; job -1: an
            evaluation of the centre; -1, -1: a known point, or none
        best_violation: float64[], if the task has one objective and constraints; sum of the
            positive constraint values of best_x; NaN before the first evaluation
    """

    search: SearchOptions
    coordinates: Coordinates
    points: InitialPoints | None = None

    def first(self) -> BestVector:
        """Return the best of the initial points with a known value, as generation -1,
        or no vector.
        """
        known = {} if self.points is None else self.points.known
        best = next(iter(known.items()), None)
        violation = math.nan if self.search.constraint_names else None
        if best is None:
            return BestVector(np.full(self.coordinates.size, np.nan), violation=violation)
        violation = None if violation is None else best[1].violation
        return BestVector(np.frombuffer(best[0], np.float64), best[1].value, violation=violation)

    def units(self, vectors: Float64, rows: Rows, jobs: Jobs) -> list[list[Arrays]]:
        """Return the best vector of a chunk, of equal ones the first;
        [] if all evaluations failed.
        """
        violation = self._violations(rows)
        # NaN is last.
        order = np.lexsort((-self.search.sign * rows["value"], violation))
        row = int(order[0])
        if np.isnan(rows["value"][row]):
            return []
        number = jobs.numbers[row] if jobs.purpose == "train" else CENTRE
        return [[self._found(vectors[row], rows, violation, row, jobs.generation, number).arrays()]]

    def of_centre(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return the successful evaluations of the centre, as units to merge."""
        violation = self._violations(evaluation)
        centre = self.coordinates.to_objective(state.theta[np.newaxis])[0][0]
        return [
            self._found(centre, evaluation, violation, row, state.generation, CENTRE).arrays()
            for row in np.flatnonzero(~np.isnan(evaluation["value"])).tolist()
        ]

    def merged(self, master: Arrays, units: Iterable[Arrays]) -> dict[str, Array]:
        """Return the arrays of the best vector after further units in order."""
        best = BestVector.from_arrays(master)
        return best.better(map(BestVector.from_arrays, units), self.search.sign).arrays()

    def metrics(self, master: Arrays) -> dict[str, float]:
        """Return `best_value`, the best value so far, and `best_violation` with constraints."""
        best = BestVector.from_arrays(master)
        violation = {} if best.violation is None else {BEST_VIOLATION: best.violation}
        return {BEST_VALUE: best.value, **violation}

    def is_reached(self, master: Arrays, target: float) -> bool:
        """Return whether the best vector is feasible and as good as `target`."""
        best = BestVector.from_arrays(master)
        is_feasible = best.violation is None or best.violation == 0
        return is_feasible and self.search.sign * best.value >= self.search.sign * target

    def summary(self, master: Arrays) -> Mapping[str, Json]:
        """Return `best`: the best vector so far."""
        return {"best": best_report(master, self.coordinates.scales)}

    def _violations(self, rows: Rows) -> Float64:
        has_constraints = bool(self.search.constraint_names)
        return violations(rows[CONSTRAINTS]) if has_constraints else np.zeros(len(rows))

    def _found(
        self, x: Float64, rows: Rows, violation: Float64, row: int, generation: int, job: int
    ) -> BestVector:
        of_row = float(violation[row]) if self.search.constraint_names else None
        return BestVector(x, float(rows["value"][row]), generation, job, of_row)
