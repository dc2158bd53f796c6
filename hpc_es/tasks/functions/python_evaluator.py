"""What evaluates vectors: a Python function or an external program, behind one contract.

Calls of a Python function: one vector at a time, or a batch; what fails is one failed job, never the run."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpc_es.core.data import Float64, Poll
from hpc_es.core.failures import Failure, failure_from_error, failure_from_text
from hpc_es.core.interfaces import RunContext
from hpc_es.tasks.functions.resolve import Objective
from hpc_es.tasks.timeouts import EpisodeTimeout, Watch


class Measured(NamedTuple):
    """What came of a vector: its value, or NaN and why."""

    value: float
    failure: Failure | None = None
    seconds: float = 0.0


class Evaluator(Protocol):
    """Evaluates the vectors of one chunk, in their order."""

    identity: str  # differs where the same vector may have another value, such as after a change of the source

    def open(self, run: RunContext) -> None:
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
    return Measured(math.nan, failure_from_text(f"the value is {value}"), seconds)


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


LATE = "the evaluation took longer than task.timeout_seconds"


class Calls:
    """Evaluates vectors with a function; see `Evaluator`."""

    def __init__(self, objective: Objective, batch: bool = False, timeout_seconds: float | None = None) -> None:
        self._objective, self._batch = objective, batch
        self._limit = math.inf if timeout_seconds is None else timeout_seconds
        arguments = json.dumps(dict(objective.arguments), sort_keys=True, default=repr)
        self.identity = f"{objective.source} {arguments}"

    def open(self, run: RunContext) -> None:
        """Do nothing: a function needs no files in the run directory."""

    def evaluate(self, vectors: Float64, seeds: Sequence[int], poll: Poll) -> list[Measured]:
        """Call the function for each vector with its seed, or once for all of them with their seeds."""
        with Watch(self._limit, LATE, poll) as watch:
            if self._batch:
                return self._at_once(vectors, seeds, watch)
            found, call = [], watch.timed(0, self._call)
            drawn = list(seeds)  # in one go: after a call that sleeps each takes ten times as long
            for x, seed in zip(vectors, drawn, strict=True):
                watch.restart(0)
                value, failure, seconds = self._called(x, seed, seed, number, call)
                found.append(Measured(math.nan, failure, seconds) if failure else measured(value, seconds))
                poll()  # the timer's looks are 10 ms apart, as long as some chunks
            return found

    def _at_once(self, vectors: Float64, seeds: Sequence[int], watch: Watch) -> list[Measured]:
        count = len(vectors)
        values, failure, seconds = self._called(
            vectors, np.array(seeds), seeds[0], lambda result: numbers(result, count), watch.timed(0, self._call)
        )
        if failure:
            return [Measured(math.nan, failure, seconds / count)] * count
        return [measured(value, seconds / count) for value in values]

    def _called(
        self, values: Float64, seed: Any, global_seed: int, read: Callable[[object], Any], call: Callable[..., Any]
    ) -> tuple[Any, Failure | None, float]:
        """Return what one call gave, or why it failed, and its seconds."""
        random.seed(global_seed)  # for functions that draw from the global generators
        np.random.seed(global_seed)
        since = time.perf_counter()
        try:
            result = read(call(values, seed))
        except (Exception, SystemExit, EpisodeTimeout) as error:  # around one evaluation of code that is not ours
            return None, failure_from_error(error), time.perf_counter() - since
        return result, None, time.perf_counter() - since

    def _call(self, values: Float64, seed: Any) -> Any:
        objective = self._objective
        if not objective.names:
            return objective.function(values.copy(), **objective.keywords((), seed))
        return objective.function(**objective.keywords(values.tolist(), seed))

    def close(self) -> None:
        """Nothing is held."""
