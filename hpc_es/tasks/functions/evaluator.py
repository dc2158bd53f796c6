"""What evaluates vectors: a Python function or an external program, behind one contract."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hpc_es.core.data import Float64, Poll
from hpc_es.core.failures import Failure, of_text
from hpc_es.core.places import RunPlace


class Measured(NamedTuple):
    """What came of a vector: its value, or NaN and why."""

    value: float
    failure: Failure | None = None
    seconds: float = 0.0


class Evaluator(Protocol):
    """Evaluates the vectors of one chunk, in their order."""

    identity: str  # differs where the same vector may have another value, such as after a change of the source

    def open(self, place: RunPlace) -> None:
        """Get to know the run; called once, before the first evaluation, where there is a run."""
        ...

    def evaluate(self, vectors: Float64, seeds: Sequence[int], poll: Poll) -> list[Measured]:
        """Return the value of each vector, float64[k, size]; `poll` is called while it takes long."""
        ...

    def close(self) -> None:
        """End what it has started."""
        ...


def measured(value: float, seconds: float) -> Measured:
    """Return a value that came, which is a failure where it is not finite."""
    if math.isfinite(value):
        return Measured(value, None, seconds)
    return Measured(math.nan, of_text(f"the value is {value}"), seconds)


def number(result: object) -> float:
    """Return what a function gave for one vector as a number; ValueError."""
    if type(result) is float:  # as most functions give
        return result
    array = _real(result, "a number")
    if array.shape != ():
        raise ValueError(f"expected a number, got an array of the shape {list(array.shape)}")
    return float(array)


def numbers(result: object, count: int) -> list[float]:
    """Return what a function gave for a batch of `count` vectors; ValueError."""
    array = _real(result, f"float64[{count}]")
    if array.shape != (count,):
        raise ValueError(f"expected an array of the shape [{count}], got one of the shape {list(array.shape)}")
    return [float(value) for value in array]


def _real(result: object, wanted: str) -> Float64:
    array = np.asarray(result)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"expected {wanted}, got {_shown(result)}")
    return array.astype(np.float64)


def _shown(result: object) -> str:
    return "None: does it return its value?" if result is None else f"{type(result).__name__} {str(result)[:40]!r}"
