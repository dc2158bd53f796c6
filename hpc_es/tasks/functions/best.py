"""The best vector so far, over all that were evaluated: a part of the state, so that it is exact on any ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.core.data import Arrays, Float64

X, VALUE, AT = "best_x", "best_value", "best_at"
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
        return {X: self.x, VALUE: np.array(self.value, np.float64), AT: at}

    @staticmethod
    def of(arrays: Arrays) -> BestVector:
        """Return what `arrays` gave."""
        generation, job = arrays[AT].tolist()
        return BestVector(np.array(arrays[X], np.float64), float(arrays[VALUE]), generation, job)

    def better(self, others: Iterable[BestVector], sign: float) -> BestVector:
        """Return the best of this and the others, the first of several; `sign` is -1 where small values are wanted."""
        best = self
        for other in others:
            if not math.isnan(other.value) and not sign * other.value <= sign * best.value:
                best = other
        return best


def has_best(arrays: Arrays) -> bool:
    """Return whether these arrays of a state hold a best vector."""
    return X in arrays and not math.isnan(float(arrays[VALUE]))


def best_report(arrays: Arrays, names: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return the best vector as plain data: a list, or numbers by name where the parameters have names."""
    best = BestVector.of(arrays)
    if math.isnan(best.value):
        return {}
    x: Any = dict(zip(names, best.x.tolist(), strict=True)) if names else best.x.tolist()
    where = {"generation": best.generation, "job": best.job}
    return {"value": best.value, "x": x, **where}
