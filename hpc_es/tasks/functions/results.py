"""What an evaluation of a vector returns, as numbers: by a function, a program or the caller.

    1.5                                                     a number
    {"value": 1.5, "constraints": [-0.2, 0.1]}              declared by task.constraints
    {"objectives": {"cost": 12.0, "mass": 3.5}}             by task.objectives, in place of a value
    {"value": 1.5, "measures": [0.1, 0.9], "metrics": {"iterations": 7}}

A group is a list in the declared order, or a mapping by name. A batch of k vectors has arrays of k
numbers in place of numbers: float64[k], and float64[k, names] or {name: float64[k]} for a group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.core.errors import Failure, failure_from_text
from hpc_es.core.quantities import CONSTRAINTS, MEASURES, METRICS, OBJECTIVES, Group, Quantities

VALUE = "value"
# groups that a result has only if they are declared
DECLARED: tuple[Group, ...] = (OBJECTIVES, CONSTRAINTS, MEASURES)
NUMBERS_WORTH_NAMING = 6


class EvaluationResult(NamedTuple):
    """The value of a vector, or NaN and the failure."""

    value: float  # the first objective if there are objectives
    failure: Failure | None = None
    seconds: float = 0.0
    numbers: tuple[float, ...] = ()  # the task's quantities in their order, if there is no failure
    # evaluations whose mean it is; 0: one that is left out, since the value is known
    evaluations: int = 1
    standard_error: float = math.nan  # of the mean


def result_of(value: float, seconds: float) -> EvaluationResult:
    """Return the result of an evaluation; a value that is not finite is a failure."""
    if math.isfinite(value):
        return EvaluationResult(value, None, seconds)
    return EvaluationResult(math.nan, failure_from_text(f"the value is {value}"), seconds)


def read_result(result: object, quantities: Quantities, seconds: float) -> EvaluationResult:
    """Return the result of one evaluation.

    Numbers that are not finite are a failure, except for metrics.

    Raises ValueError for anything but what the quantities declare.
    """
    if (usual := _usual_result(result, quantities, seconds)) is not None:
        return usual
    result = _with_names(result, quantities)
    if not isinstance(result, Mapping):
        if quantities.names:
            raise ValueError(f"{expected(quantities)}, got {_found(result)}")
        return result_of(as_number(result), seconds)
    _require_declared(result, quantities)
    groups = [
        _group(result, group, names, quantities) for group, names in quantities.groups.items()
    ]
    numbers = tuple(float(number) for group in groups for number in group)
    value = numbers[0] if quantities.objectives else as_number(result[VALUE])
    return with_numbers(value, numbers, quantities, seconds)


def _usual_result(
    result: object, quantities: Quantities, seconds: float
) -> EvaluationResult | None:
    """Return a result of the form that nearly all have: finite floating-point numbers, the groups
    as lists or arrays. None for every other one.

    The general way takes as long as some functions.
    """
    if type(result) is not dict:
        return None
    value, numbers = result.get(VALUE), list[Any]()
    if not isinstance(value, float) or not math.isfinite(value) or quantities.objectives:
        return None
    for group, names in quantities.groups.items():
        values = result.get(group)
        if type(values) is np.ndarray:
            values = values.tolist()
        if type(values) is not list or len(values) != len(names):
            return None
        numbers += values
    if len(result) != len(quantities.groups) + 1:
        return None
    for number in numbers:
        if type(number) is not float or not math.isfinite(number):
            return None
    return EvaluationResult(float(value), None, seconds, tuple(numbers))


def with_numbers(
    value: float, numbers: Sequence[float], quantities: Quantities, seconds: float
) -> EvaluationResult:
    """Return the result with this value and the numbers of the quantities.

    It is a failure if one of them is not finite.
    """
    if not quantities.objectives and not math.isfinite(value):
        return result_of(value, seconds)
    if text := _not_finite(numbers, quantities):
        return EvaluationResult(math.nan, failure_from_text(text), seconds)
    return EvaluationResult(value, None, seconds, tuple(numbers))


def read_batch(
    result: object, quantities: Quantities, count: int, seconds: float
) -> list[EvaluationResult]:
    """Return the results of a call with `count` vectors.

    Each has its share of the seconds.

    Raises:
        ValueError: as for a single one.
    """
    share = seconds / count
    result = _with_names(result, quantities)
    if not isinstance(result, Mapping):
        if quantities.names:
            raise ValueError(f"{expected(quantities, count)}, got {_found(result)}")
        return [result_of(value, share) for value in as_numbers(result, count)]
    _require_declared(result, quantities, count)
    groups = [
        _group(result, group, names, quantities, count)
        for group, names in quantities.groups.items()
    ]
    table = np.concatenate(groups, axis=1) if groups else np.zeros((count, 0))
    values = table[:, 0].tolist() if quantities.objectives else as_numbers(result[VALUE], count)
    rows = zip(values, table.tolist(), strict=True)
    if np.isfinite(table).all() and np.isfinite(values).all():  # the usual case, fast
        return [EvaluationResult(value, None, share, tuple(numbers)) for value, numbers in rows]
    return [with_numbers(value, numbers, quantities, share) for value, numbers in rows]


def expected(quantities: Quantities, count: int | None = None) -> str:
    """Return the mapping that a result should be, in words."""
    number = "number" if count is None else f"float64[{count}]"
    parts = [] if quantities.objectives else [f"{VALUE}: {number}"]
    for group, names in quantities.groups.items():
        size = f"{len(names)} numbers" if count is None else f"float64[{count}, {len(names)}]"
        listed = ", ".join(names[:NUMBERS_WORTH_NAMING]) + (
            ", ..." if len(names) > NUMBERS_WORTH_NAMING else ""
        )
        parts.append(f"{group}: {size} ({listed})")
    return f"expected {{{', '.join(parts)}}}"


def _with_names(result: object, quantities: Quantities) -> object:
    """Return the mapping that numbers stand for if there are objectives only."""
    is_plain = not isinstance(result, Mapping) and list(quantities.groups) == [OBJECTIVES]
    return {OBJECTIVES: result} if is_plain else result


def _require_declared(
    result: Mapping[Any, object], quantities: Quantities, count: int | None = None
) -> None:
    """Raise ValueError unless a result has the value and the groups that are declared.

    Further metrics are ignored.
    """
    declared = quantities.groups
    for group in DECLARED:
        given = result.get(group)
        # such as an empty list
        says_nothing = len(given) == 0 if isinstance(given, Sized) else given is None
        if group not in declared and not says_nothing:
            kind = {
                OBJECTIVES: "names",
                CONSTRAINTS: "number or names",
                MEASURES: "names and ranges",
            }[group]
            raise ValueError(
                f"the result has {group}, but task.{group} is null: expected their {kind}"
            )
    needed = {*declared} if quantities.objectives else {VALUE, *declared}
    if not needed <= set(result):
        raise ValueError(f"{expected(quantities, count)}, got {_found(dict(result))}")


def _group(
    result: Mapping[Any, object],
    group: Group,
    names: Sequence[str],
    quantities: Quantities,
    count: int | None = None,
) -> Float64:
    """Return the numbers of a group, float64[names], or float64[count, names] of a batch.

    Raises:
        ValueError: they are something else.
    """
    values = result[group]
    if isinstance(values, Mapping):
        if set(values) != set(names):
            raise ValueError(
                f"{expected(quantities, count)}, got the names {', '.join(map(str, values))}"
            )
        columns = [_as_float64(values[name], f"numbers as {group}") for name in names]
        if any(column.shape != (() if count is None else (count,)) for column in columns):
            shapes = ", ".join(str(list(column.shape)) for column in columns)
            raise ValueError(f"{expected(quantities, count)}, got {group} of the shapes {shapes}")
        return np.stack(columns, axis=-1)
    numbers = _as_float64(values, f"numbers as {group}")
    if count is None:
        numbers = np.atleast_1d(numbers)
        if numbers.ndim == 1 and numbers.size != len(names):
            what = "constraint values" if group == CONSTRAINTS else group
            raise ValueError(f"{expected(quantities)}, got {numbers.size} {what}")
    if numbers.shape != ((len(names),) if count is None else (count, len(names))):
        raise ValueError(
            f"{expected(quantities, count)}, got {group} of the shape {list(numbers.shape)}"
        )
    return numbers


def _not_finite(numbers: Sequence[float], quantities: Quantities) -> str:
    """Return which number other than a metric is not finite, "" if none is."""
    start = 0
    for group, names in quantities.groups.items():
        for name, number in zip(names, numbers[start : start + len(names)], strict=True):
            if not math.isfinite(number) and group != METRICS:
                is_constraint = group == CONSTRAINTS
                return f"the {group[:-1]} {name} is {'not finite' if is_constraint else number}"
        start += len(names)
    return ""


# Numbers.


def as_number(result: object) -> float:
    """Return the result of a call with one vector as a number; ValueError if it is not one."""
    if type(result) is float:  # the usual case, fast
        return result
    array = _as_float64(result, "a number")
    if array.shape != ():
        raise ValueError(f"expected a number, got an array of the shape {list(array.shape)}")
    return float(array)


def as_numbers(result: object, count: int) -> list[float]:
    """Return the result of a call with `count` vectors as numbers.

    Raises:
        ValueError: it is not an array [count].
    """
    array = _as_float64(result, f"float64[{count}]")
    if array.shape != (count,):
        raise ValueError(
            f"expected an array of the shape [{count}], got one of the shape {list(array.shape)}"
        )
    numbers: list[float] = array.tolist()
    return numbers


def _as_float64(result: object, expected: str) -> Float64:
    """Return numbers of any real type.

    A masked number is NaN, one too large for float64 infinite.
    """
    array: Any = np.asanyarray(result)
    if isinstance(array, np.ma.MaskedArray):
        # What is below the mask is no result.
        array = (
            np.ma.filled(array.astype(np.float64), np.nan)
            if array.dtype.kind in "biuf"
            else array.filled()
        )
    if (
        array.dtype.kind == "O"
        and array.size
        and all(isinstance(item, Real | Decimal) for item in array.flat)
    ):
        # Whole numbers beyond 64 bits, which programs write too, fractions and decimals.
        found: Float64 = np.array([as_float(item) for item in array.flat], np.float64).reshape(
            array.shape
        )
        return found
    if array.dtype.kind not in "biuf":
        raise ValueError(f"expected {expected}, got {_found(result)}")
    numbers: Float64 = array.astype(np.float64)
    return numbers


def _found(result: object) -> str:
    return (
        "None: does it return its value?"
        if result is None
        else f"{type(result).__name__} {str(result)[:40]!r}"
    )


def as_float(number: Any) -> float:
    """Return a number as float64.

    It is infinite if it is too large, such as a whole number of 400 digits.
    """
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
