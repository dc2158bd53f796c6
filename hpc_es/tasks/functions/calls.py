"""Calls of a Python function: one vector at a time, or a batch; what fails is one failed job, never the run."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import Float64, Poll
from hpc_es.core.failures import Failure, of_error
from hpc_es.core.places import RunPlace
from hpc_es.tasks.functions.evaluator import Measured, measured, number, numbers
from hpc_es.tasks.functions.resolve import Objective
from hpc_es.tasks.timeouts import EpisodeTimeout, Watch

LATE = "the evaluation took longer than task.timeout_seconds"


class Calls:
    """Evaluates vectors with a function; see `Evaluator`."""

    def __init__(self, objective: Objective, batch: bool = False, timeout_seconds: float | None = None) -> None:
        self._objective, self._batch = objective, batch
        self._limit = math.inf if timeout_seconds is None else timeout_seconds
        arguments = json.dumps(dict(objective.arguments), sort_keys=True, default=repr)
        self.identity = f"{objective.source} {arguments}"

    def open(self, place: RunPlace) -> None:
        """A function needs no place."""

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
            return None, of_error(error), time.perf_counter() - since
        return result, None, time.perf_counter() - since

    def _call(self, values: Float64, seed: Any) -> Any:
        objective = self._objective
        if not objective.names:
            return objective.function(values.copy(), **objective.keywords((), seed))
        return objective.function(**objective.keywords(values.tolist(), seed))

    def close(self) -> None:
        """Nothing is held."""
