"""Evaluation of vectors by a Python function: its import, checks and calls.

It is named "module:attribute", and its signature is checked. Also the contract of all evaluators,
which `subprocess_evaluator.py` implements too.

The current directory and the config's directory are importable: they are appended to the path,
never put first.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from hpc_es.core.data import Array, Float64, Keywords, Poll
from hpc_es.core.errors import (
    ConfigError,
    Failure,
    GenerationClosed,
    failure_from_error,
    failure_from_text,
    require_users,
)
from hpc_es.core.interfaces import RunContext
from hpc_es.core.quantities import NONE, Quantities
from hpc_es.tasks.functions.parameters import Scale, decoded
from hpc_es.tasks.functions.results import EvaluationResult, read_batch, read_result, result_of
from hpc_es.tasks.timeouts import Watch

T = TypeVar("T")

SEED = "seed"
KEY = "task.function"
TIMEOUT_TEXT = "the evaluation took longer than task.timeout_seconds"


class Evaluator(Protocol):
    """Evaluates the vectors of one chunk, in their order."""

    # differs if the same vector may have another value, such as after a change of the source
    identity: str

    def open(self, run: RunContext) -> None:
        """Receive the run directory, once before the first evaluation.

        Not called outside of runs.
        """
        ...

    def evaluate(
        self, vectors: Float64, seeds: Sequence[int], poll: Poll
    ) -> list[EvaluationResult]:
        """Evaluate each vector of float64[k, size] with its seed.

        Call `poll` every few milliseconds.
        """
        ...

    def close(self) -> None:
        """End all processes that it has started."""
        ...


# The function


@dataclass(frozen=True)
class Objective:
    """A function to optimise, and how it is called."""

    function: Callable[..., object]
    takes_seed: bool = False
    arguments: Keywords = field(default_factory=dict)  # further keywords of every call
    # of parameters passed as keywords; empty: one vector is
    scales: Mapping[str, Scale] = field(default_factory=dict)
    source: str = ""  # SHA-256 of the file in which the function is defined, "" if there is none

    @cached_property
    def is_plain(self) -> bool:
        """Whether a call has the vector only."""
        return not (self.takes_seed or self.arguments or self.scales)

    def keywords(self, values: Sequence[float], seed: int | Array) -> Keywords:
        """Return the keywords of a call: arguments, named parameters, and the seed.

        The seed only if the function takes one. They are copies, since a function may change them.
        """
        named = decoded(self.scales, values) if self.scales else {}
        arguments = {name: _copied(value) for name, value in self.arguments.items()}
        return {**arguments, **named, **({SEED: seed} if self.takes_seed else {})}


def _copied(value: T) -> T:
    """Return a copy of plain data, of which only lists and mappings can change."""
    return copy.deepcopy(value) if isinstance(value, list | Mapping) else value


def objective(
    function: Callable[..., object],
    arguments: Keywords,
    scales: Mapping[str, Scale] | None = None,
    text: str = "",
) -> Objective:
    """Return a function as an objective; ConfigError if its signature does not accept the call.

    `text` is the function's name in messages.
    """
    takes_seed, scales = False, scales or {}
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # compiled functions may have none
        return Objective(function, False, arguments, scales, _source_hash(function))
    parameter = signature.parameters.get(SEED)
    if parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
        takes_seed = SEED not in arguments and SEED not in scales
    result = Objective(function, takes_seed, arguments, scales, _source_hash(function))
    try:
        first = [scale.value(0.0) for scale in scales.values()]
        signature.bind(*([] if scales else [np.zeros(1)]), **result.keywords(first, 0))
    except TypeError as error:
        what = f"{', '.join(scales)} as keywords" if scales else "the vector"
        more = f" and the arguments {', '.join(arguments)}" if arguments else ""
        name = text or repr(function)
        raise ConfigError(
            [
                (
                    KEY,
                    f"{name} has the signature {signature}, which does not take {what}{more}: {error}",
                )
            ]
        ) from None
    return result


def _source_hash(function: Callable[..., object]) -> str:
    """Return the SHA-256 of the file of a function.

    In a .zip or notebook it is that of the lines that Python has of the file.
    """
    try:
        function = inspect.unwrap(function)
        file = Path(inspect.getsourcefile(function) or "")
        source = (
            file.read_bytes()
            if file.is_file()
            else "".join(inspect.findsource(function)[0]).encode()
        )
        return hashlib.sha256(source).hexdigest()
    except (TypeError, OSError):
        return ""


# Its calls


class PythonEvaluator:
    """Evaluates vectors with a Python function, one per call or a batch per call.

    An exception fails one call only.
    """

    def __init__(
        self,
        objective: Objective,
        batch: bool = False,
        timeout_seconds: float | None = None,
        quantities: Quantities = NONE,
    ) -> None:
        self._objective, self._batch, self._quantities = objective, batch, quantities
        self._limit = math.inf if timeout_seconds is None else timeout_seconds
        arguments = json.dumps(dict(objective.arguments), sort_keys=True, default=repr)
        self.identity = f"{objective.source} {arguments}"

    def open(self, run: RunContext) -> None:
        """Do nothing."""

    def evaluate(
        self, vectors: Float64, seeds: Sequence[int], poll: Poll
    ) -> list[EvaluationResult]:
        with Watch(self._limit, TIMEOUT_TEXT, poll) as watch:
            if self._batch:
                return self._evaluate_batch(vectors, seeds, watch)
            results, call = [], watch.timed(0, self._call)
            # drawn at once: after a call that sleeps, each draw takes ten times as long
            all_seeds = list(seeds)
            for x, seed in zip(vectors, all_seeds, strict=True):
                watch.restart(0)
                value, failure, seconds = self._try_call(x, seed, seed, self._read, call)
                if value is None:
                    results.append(EvaluationResult(math.nan, failure, seconds))
                else:
                    results.append(
                        EvaluationResult(value.value, value.failure, seconds, value.numbers)
                    )
                # the timer polls every 10 ms only, which is longer than some chunks take
                try:  # noqa: SIM105  a context takes a microsecond
                    poll()
                except GenerationClosed:
                    pass  # this job is done
            return results

    def _read(self, result: object) -> EvaluationResult:
        if type(result) is float and not self._quantities.names:  # the usual case, fast
            return result_of(result, 0.0)
        return read_result(result, self._quantities, 0.0)

    def _evaluate_batch(
        self, vectors: Float64, seeds: Sequence[int], watch: Watch
    ) -> list[EvaluationResult]:
        count = len(vectors)
        # drawing them takes longer than some functions
        passed = np.array(seeds) if self._objective.takes_seed else np.zeros(0, np.int64)
        since = time.perf_counter()

        def read(result: object) -> list[EvaluationResult]:
            return read_batch(result, self._quantities, count, time.perf_counter() - since)

        results, failure, seconds = self._try_call(
            vectors, passed, seeds[0], read, watch.timed(0, self._call)
        )
        if results is None:
            return [EvaluationResult(math.nan, failure, seconds / count)] * count
        return results

    def _try_call(
        self,
        values: Float64,
        seed: int | Array,
        global_seed: int,
        read: Callable[[object], T],
        call: Callable[..., object],
    ) -> tuple[T | None, Failure | None, float]:
        """Return the result of one call, or its failure, and its seconds."""
        random.seed(global_seed)  # for functions that draw from the global generators
        np.random.seed(global_seed)
        since = time.perf_counter()
        try:
            result = read(call(values, seed))
        except GenerationClosed as error:
            return None, failure_from_text(str(error)), time.perf_counter() - since
        except BaseException as error:
            require_users(error)
            return None, failure_from_error(error), time.perf_counter() - since
        return result, None, time.perf_counter() - since

    def _call(self, values: Float64, seed: int | Array) -> object:
        objective = self._objective
        if objective.is_plain:
            return objective.function(values.copy())
        if not objective.scales:
            return objective.function(values.copy(), **objective.keywords((), seed))
        return objective.function(**objective.keywords(values.tolist(), seed))

    def close(self) -> None:
        """Do nothing."""
