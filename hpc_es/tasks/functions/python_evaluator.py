"""Evaluation of vectors by a Python function: its import by "module:attribute", checks of its signature, and the calls.

Also the contract of all evaluators, which `tasks/command.py` implements too.

The current directory and the config's directory are importable: they are appended to the path, never put first.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from hpc_es.core.data import Array, Float64, Keywords, Poll, dataclass
from hpc_es.core.errors import (
    ConfigError,
    Failure,
    GenerationClosed,
    failure_from_error,
    failure_from_text,
    require_users,
)
from hpc_es.core.interfaces import RunContext
from hpc_es.tasks.functions.parameters import Scale, decoded
from hpc_es.tasks.timeouts import Watch

T = TypeVar("T")

SEED = "seed"
KEY = "task.function"
TIMEOUT_TEXT = "the evaluation took longer than task.timeout_seconds"
UNDECLARED_CONSTRAINTS = "the result has constraints, but task.constraints is null: expected their number or names"


class EvaluationResult(NamedTuple):
    """The value of a vector, or NaN and the failure."""

    value: float
    failure: Failure | None = None
    seconds: float = 0.0
    constraints: tuple[float, ...] = ()  # constraint values, if the task has constraints and there is no failure


class Evaluator(Protocol):
    """Evaluates the vectors of one chunk, in their order."""

    identity: str  # differs if the same vector may have another value, such as after a change of the source

    def open(self, run: RunContext) -> None:
        """Receive the run directory, once before the first evaluation; not called outside of runs."""
        ...

    def evaluate(self, vectors: Float64, seeds: Sequence[int], poll: Poll) -> list[EvaluationResult]:
        """Evaluate each vector of float64[k, size] with its seed; call `poll` every few milliseconds."""
        ...

    def close(self) -> None:
        """End all processes that it has started."""
        ...


def result_of(value: float, seconds: float) -> EvaluationResult:
    """Return the result of an evaluation; a value that is not finite is a failure."""
    if math.isfinite(value):
        return EvaluationResult(value, None, seconds)
    return EvaluationResult(math.nan, failure_from_text(f"the value is {value}"), seconds)


def constrained_result(result: object, names: Sequence[str], seconds: float) -> EvaluationResult:
    """Return the result of {value: number, constraints: [...]} or {..., constraints: {name: number}}.

    Numbers that are not finite are a failure. Raises ValueError for anything else.
    """
    expected = f"expected {{value: number, constraints: {len(names)} numbers ({', '.join(names)})}}"
    if not isinstance(result, Mapping) or not {"value", "constraints"} <= set(result):
        raise ValueError(f"{expected}, got {type(result).__name__} {str(result)[:40]!r}")
    values = result["constraints"]
    if isinstance(values, Mapping):
        if set(values) != set(names):
            raise ValueError(f"{expected}, got the names {', '.join(map(str, values))}")
        values = [values[name] for name in names]
    numbers = np.atleast_1d(_as_float64(values, "numbers as constraints"))
    if numbers.ndim != 1:
        raise ValueError(f"{expected}, got constraints of the shape {list(numbers.shape)}")
    if numbers.shape != (len(names),):
        raise ValueError(f"{expected}, got {numbers.size} constraint values")
    value = result_of(as_number(result["value"]), seconds)
    if value.failure is None and not np.isfinite(numbers).all():
        name = names[int((~np.isfinite(numbers)).argmax())]
        return EvaluationResult(math.nan, failure_from_text(f"the constraint {name} is not finite"), seconds)
    return value if value.failure is not None else value._replace(constraints=tuple(numbers.tolist()))


# The function


@dataclass(frozen=True)
class Objective:
    """A function to optimise, and how it is called."""

    function: Callable[..., object]
    takes_seed: bool = False
    arguments: Keywords = field(default_factory=dict)  # further keywords of every call
    scales: Mapping[str, Scale] = field(default_factory=dict)  # of parameters passed as keywords; empty: one vector is
    source: str = ""  # SHA-256 of the file in which the function is defined, "" if there is none

    def keywords(self, values: Sequence[float], seed: int | Array) -> Keywords:
        """Return the keywords of a call: arguments, named parameters, and the seed if the function takes one.

        They are copies, since a function may change them.
        """
        named = decoded(self.scales, values) if self.scales else {}
        arguments = {name: _copied(value) for name, value in self.arguments.items()}
        return {**arguments, **named, **({SEED: seed} if self.takes_seed else {})}


def _copied(value: T) -> T:
    """Return a copy of plain data, of which only lists and mappings can change."""
    return copy.deepcopy(value) if isinstance(value, list | Mapping) else value


def objective(
    function: Callable[..., object], arguments: Keywords, scales: Mapping[str, Scale] | None = None, text: str = ""
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
        message = f"{name} has the signature {signature}, which does not take {what}{more}: {error}"
        raise ConfigError([(KEY, message)]) from None
    return result


def _source_hash(function: Callable[..., object]) -> str:
    """Return the SHA-256 of the file of a function, or of the lines that Python has of a file in a .zip or notebook."""
    try:
        function = inspect.unwrap(function)
        file = Path(inspect.getsourcefile(function) or "")
        source = file.read_bytes() if file.is_file() else "".join(inspect.findsource(function)[0]).encode()
        return hashlib.sha256(source).hexdigest()
    except (TypeError, OSError):
        return ""


# Its calls


class PythonEvaluator:
    """Evaluates vectors with a Python function, one per call or a batch per call; an exception fails one call only."""

    def __init__(
        self,
        objective: Objective,
        batch: bool = False,
        timeout_seconds: float | None = None,
        constraints: Sequence[str] = (),
    ) -> None:
        self._objective, self._batch, self._constraints = objective, batch, tuple(constraints)
        self._limit = math.inf if timeout_seconds is None else timeout_seconds
        arguments = json.dumps(dict(objective.arguments), sort_keys=True, default=repr)
        self.identity = f"{objective.source} {arguments}"

    def open(self, run: RunContext) -> None:
        """Do nothing."""

    def evaluate(self, vectors: Float64, seeds: Sequence[int], poll: Poll) -> list[EvaluationResult]:
        with Watch(self._limit, TIMEOUT_TEXT, poll) as watch:
            if self._batch:
                return self._evaluate_batch(vectors, seeds, watch)
            results, call = [], watch.timed(0, self._call)
            all_seeds = list(seeds)  # drawn at once: after a call that sleeps, each draw takes ten times as long
            for x, seed in zip(vectors, all_seeds, strict=True):
                watch.restart(0)
                value, failure, seconds = self._try_call(x, seed, seed, self._read, call)
                if value is None:
                    results.append(EvaluationResult(math.nan, failure, seconds))
                else:
                    results.append(EvaluationResult(value.value, value.failure, seconds, value.constraints))
                with contextlib.suppress(GenerationClosed):  # this job is done
                    poll()  # the timer polls every 10 ms only, which is longer than some chunks take
            return results

    def _read(self, result: object) -> EvaluationResult:
        if self._constraints:
            return constrained_result(result, self._constraints, 0.0)
        if isinstance(result, dict) and "constraints" in result:
            raise ValueError(UNDECLARED_CONSTRAINTS)
        return result_of(as_number(result), 0.0)

    def _evaluate_batch(self, vectors: Float64, seeds: Sequence[int], watch: Watch) -> list[EvaluationResult]:
        count = len(vectors)
        values, failure, seconds = self._try_call(
            vectors, np.array(seeds), seeds[0], lambda result: as_numbers(result, count), watch.timed(0, self._call)
        )
        if values is None:
            return [EvaluationResult(math.nan, failure, seconds / count)] * count
        return [result_of(value, seconds / count) for value in values]

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
        if not objective.scales:
            return objective.function(values.copy(), **objective.keywords((), seed))
        return objective.function(**objective.keywords(values.tolist(), seed))

    def close(self) -> None:
        """Do nothing."""


def as_number(result: object) -> float:
    """Return the result of a call with one vector as a number; ValueError if it is not one."""
    if type(result) is float:  # the usual case, fast
        return result
    array = _as_float64(result, "a number")
    if array.shape != ():
        raise ValueError(f"expected a number, got an array of the shape {list(array.shape)}")
    return float(array)


def as_numbers(result: object, count: int) -> list[float]:
    """Return the result of a call with `count` vectors as numbers; ValueError if it is not an array [count]."""
    array = _as_float64(result, f"float64[{count}]")
    if array.shape != (count,):
        raise ValueError(f"expected an array of the shape [{count}], got one of the shape {list(array.shape)}")
    return [float(value) for value in array]


def _as_float64(result: object, expected: str) -> Float64:
    """Return numbers of any real type; a masked number is NaN, one too large for float64 infinite."""
    array: Any = np.asanyarray(result)
    if isinstance(array, np.ma.MaskedArray):
        # What is below the mask is no result.
        array = np.ma.filled(array.astype(np.float64), np.nan) if array.dtype.kind in "biuf" else array.filled()
    if array.dtype.kind == "O" and array.size and all(isinstance(item, Real | Decimal) for item in array.flat):
        # Whole numbers beyond 64 bits, which programs write too, fractions and decimals.
        found: Float64 = np.array([as_float(item) for item in array.flat], np.float64).reshape(array.shape)
        return found
    if array.dtype.kind not in "biuf":
        got = "None: does it return its value?" if result is None else f"{type(result).__name__} {str(result)[:40]!r}"
        raise ValueError(f"expected {expected}, got {got}")
    numbers: Float64 = array.astype(np.float64)
    return numbers


def as_float(number: Any) -> float:
    """Return a number as float64; infinite if it is too large, such as a whole number of 400 digits."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
