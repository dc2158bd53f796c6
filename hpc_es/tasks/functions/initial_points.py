"""`task.initial_points`: vectors that are evaluated first, or whose values are known.

They may be those of an earlier run.

CSV    a column per parameter (x0, x1, ... without names), and optionally `value` and one per
       constraint. An empty value is unknown; the columns `generation` and `job` of
       evaluations.csv are ignored, as are failed rows. With `task.repeats`, a value that is the
       mean of several evaluations (`repeats`), or has a `standard_error`, is not evaluated again.
JSON   a list of vectors, or of objects {parameter: value, ...} or {"x": [numbers]}, which may
       also have "value" and "constraints".

`hpc_es.minimize` takes such a file, or the content of a JSON file as Python values, with arrays in
place of lists.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hpc_es.config.registry import config_path
from hpc_es.core.data import Float64
from hpc_es.core.errors import ConfigError
from hpc_es.core.quantities import CONSTRAINTS, MEASURES, METRICS, OBJECTIVES, Group, Quantities
from hpc_es.core.run_files import named_by_user, open_text, parse_json, read_text
from hpc_es.tasks.functions.options import (
    RESULT_COLUMNS,
    Coordinates,
    SearchOptions,
    returned_quantities,
)
from hpc_es.tasks.functions.parameters import Choices, Scale, Value, is_number
from hpc_es.tasks.functions.repeats import ERROR, FEWEST, RECORDED, REPEATS, recorded_names

KEY = "task.initial_points"
VALUE, X = "value", "x"
GROUPS: tuple[Group, ...] = (OBJECTIVES, CONSTRAINTS, MEASURES, METRICS)
MOST_ERRORS, LONGEST_TEXT = 5, 100  # that are listed, and characters of a value


class Known(NamedTuple):
    """The result of a point from the file."""

    value: float
    numbers: tuple[float, ...] = ()  # the quantities that an evaluation returns
    violation: float = 0.0  # sum of the positive constraint values
    evaluations: int = 1  # whose mean the value is
    standard_error: float = math.nan  # of the mean; NaN: unknown


@dataclass(frozen=True)
class InitialPoints:
    """The points of a file: those without a value first, in its order.

    Then there are the others, the best first.
    """

    vectors: Float64  # float64[points, size], as given, and so passed to the objective
    search_vectors: Float64  # float64[points, size]
    unknown: int  # number of points without a value
    known: Mapping[bytes, Known]  # by the bytes of the vector as given, the best first
    # the vectors as given by the bytes of what the search makes of them
    given: Mapping[bytes, Float64]

    def first_candidates(self, population: int) -> Float64:
        """Return the search vectors of the first generation, float64[k, size].

        Points with a known value are at most half of the population, so that the other half samples
        the distribution.
        """
        return self.search_vectors[: min(max(self.unknown, population // 2), population)]

    def as_given(self, vectors: Float64) -> Float64:
        """Return vectors for the objective with the points as they were given.

        Between the scales of the objective and of the search a number may change in its last bits.
        """
        return np.array([self.given.get(vector.tobytes(), vector) for vector in vectors])

    def use_text(self, population: int) -> str:
        """Return which points are candidates of the first generation, as text."""
        count, known = len(self.first_candidates(population)), len(self.known)
        parts = [f"{self.unknown:,} without a value"] if self.unknown else []
        if known:
            parts.append(f"the best {count - self.unknown:,} of {known:,} with a value")
        text = f"initial points: {count:,} of {len(self.vectors):,} are among the {population:,} candidates of the"
        rule = "; those with a value take at most half of them" if count < len(self.vectors) else ""
        return f"{text} first generation: {' and '.join(parts)}{rule}"


# see `points_from`
Points: TypeAlias = "Sequence[Mapping[str, object] | npt.ArrayLike] | npt.NDArray[np.float64]"


def initial_points(search: SearchOptions, directory: Path | None = None) -> InitialPoints | None:
    """Return the points of `task.initial_points`, None without.

    `directory` is that of the config.

    Raises:
        ConfigError: the file or a point is not valid.
    """
    if search.initial_points is None:
        return None
    try:
        path = config_path(search.initial_points, directory)
    except ValueError as error:
        raise ConfigError([(KEY, str(error))]) from error
    return points_from(path, search)


def points_from(source: Path | Points, search: SearchOptions) -> InitialPoints:
    """Return the points of a file, or of a list.

    Its items are vectors, float64[size], or mappings as in a JSON file.

    Raises:
        ConfigError: for `task.initial_points`, with the points that are not valid.
    """
    coordinates, errors, returned = search.coordinates(), list[str](), returned_quantities(search)
    results: dict[bytes, Known | None] = {}
    try:
        for where, values, result in _points(source, search, coordinates):
            try:
                vector, known = _vector(values, coordinates), _known(result, returned)
            except ValueError as error:
                errors.append(f"{where}: {error}")
                continue
            if known is None or not math.isnan(known.value):  # failed evaluations are left out
                results[vector.tobytes()] = known or results.get(vector.tobytes())
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        text = f"expected a CSV or JSON file of points, but {source} cannot be read: {reason}"
        raise ConfigError([(KEY, text if isinstance(source, Path) else reason)]) from error
    name = f"{source.name}: " if isinstance(source, Path) else ""
    if errors:
        more = f"; and {len(errors) - MOST_ERRORS} more" if len(errors) > MOST_ERRORS else ""
        raise ConfigError([(KEY, f"{name}{'; '.join(errors[:MOST_ERRORS])}{more}")])
    if not results:
        raise ConfigError(
            [(KEY, f"{name}expected at least one point that did not fail, found none")]
        )
    return _ordered(results, coordinates, search.sign)


def _ordered(
    results: Mapping[bytes, Known | None], coordinates: Coordinates, sign: float
) -> InitialPoints:
    unknown = [key for key, known in results.items() if known is None]
    known = [(key, result) for key, result in results.items() if result is not None]
    # stable: of equal ones the first
    known.sort(key=lambda item: (item[1].violation, -sign * item[1].value))
    vectors = np.array(
        [np.frombuffer(key, np.float64) for key in (*unknown, *(key for key, _ in known))]
    )
    inside = np.array([coordinates.to_search(vector) for vector in vectors])
    evaluated = coordinates.to_objective(inside)[0]
    given = {row.tobytes(): vector for row, vector in zip(evaluated, vectors, strict=True)}
    return InitialPoints(vectors, inside, len(unknown), dict(known), given)


# Reading.

# where, values by parameter, value and constraints
Item = tuple[str, Mapping[str, object], Mapping[str, object]]


def _points(
    source: Path | Points, search: SearchOptions, coordinates: Coordinates
) -> Iterator[Item]:
    """Yield the points; ValueError if a file or a list has another format."""
    if not isinstance(source, Path):
        yield from _listed_points(_plain(source), coordinates.names)
    elif source.suffix == ".json":
        content = parse_json(read_text(named_by_user(source)), _without_repeated_names)
        yield from _listed_points(content, coordinates.names)
    elif source.suffix == ".csv":
        yield from _csv_points(source, coordinates, search)
    else:
        raise ValueError(f"expected the suffix .csv or .json, found {source.name!r}")


def _plain(value: object) -> object:
    """Return a value with arrays, tuples and NumPy numbers as lists and numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _without_repeated_names(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} stands twice in one object")
        found[name] = value
    return found


def _csv_points(path: Path, coordinates: Coordinates, search: SearchOptions) -> Iterator[Item]:
    groups = returned_quantities(search).groups
    # utf-8-sig: spreadsheets begin a file with a mark
    raw = open_text(named_by_user(path))
    with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        others = (*search.quantities.names, *recorded_names(search.quantities))
        _require_names(header, coordinates.names, (*RESULT_COLUMNS, *others))
        for cells in reader:
            if not any(text.strip() for text in cells):
                continue
            if len(cells) != len(header):
                raise ValueError(
                    f"line {reader.line_num}: expected {len(header)} cells, found {len(cells)}"
                )
            row = dict(zip(header, cells, strict=True))
            values = {
                name: _parsed(row[name], coordinates.scales.get(name)) for name in coordinates.names
            }
            result: dict[str, object] = {}
            if row.get(VALUE, "").strip():
                result[VALUE] = _parsed(row[VALUE], None)
                for group, names in groups.items():
                    result[group] = [_parsed(row.get(name, ""), None) for name in names]
                for name in RECORDED:
                    if row.get(name, "").strip():
                        result[name] = _parsed(row[name], None)
            yield f"line {reader.line_num}", values, result


def _require_names(names: Sequence[str], expected: Sequence[str], others: Sequence[str]) -> None:
    missing = [name for name in expected if name not in names]
    unknown = [name for name in names if name not in expected and name not in others]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if missing or unknown or twice:
        text = ", ".join(expected[:10]) + (", ..." if len(expected) > 10 else "")
        problem = (
            f"without {missing[0]}"
            if missing
            else f"with {unknown[0]}"
            if unknown
            else f"with {twice[0]} twice"
        )
        raise ValueError(f"expected the parameters {text}, found names {problem}")


def _parsed(text: str, scale: Scale | None) -> Value:
    """Return the value of a cell; text that is not valid is returned as it is."""
    text = text.strip()
    if isinstance(scale, Choices):
        return next((item for item in scale.categories if text in (item, json.dumps(item))), text)
    try:
        return float(text)
    except ValueError:
        return text


def _listed_points(items: object, names: Sequence[str]) -> Iterator[Item]:
    if not isinstance(items, list):
        raise ValueError(f"expected a list of points, found {type(items).__name__}")
    for number, listed in enumerate(items):
        where, item = f"point {number}", {X: listed} if isinstance(listed, list) else listed
        if not isinstance(item, dict):
            raise ValueError(
                f"{where}: expected an object {{parameter: value, ...}} or a list of numbers, "
                f"found {_text(item)}"
            )
        values = {
            name: value
            for name, value in item.items()
            if name in names or name not in (VALUE, *GROUPS, *RECORDED, X)
        }
        result = {
            name: item[name]
            for name in (VALUE, *GROUPS, *RECORDED)
            if name not in names and item.get(name) is not None
        }
        if X in item and X not in names:
            if not isinstance(item[X], list) or len(item[X]) != len(names):
                raise ValueError(
                    f"{where}: expected {len(names)} numbers as x, found {_text(item[X])}"
                )
            values |= dict(zip(names, item[X], strict=True))
        try:
            _require_names(list(values), names, ())
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        yield where, {name: values[name] for name in names}, result


# Checks.


def _text(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def _vector(values: Mapping[str, object], coordinates: Coordinates) -> Float64:
    """Return a point as passed to the objective, float64[size]; ValueError names the parameter."""
    numbers = []
    for index, (name, value) in enumerate(values.items()):
        scale = coordinates.scales.get(name)
        try:
            if scale is not None:
                numbers.append(scale.number(value))  # type: ignore[arg-type]  # which it checks
            else:
                numbers.append(_bounded(value, coordinates, index))
        except (ValueError, TypeError) as error:  # TypeError: not a value of JSON
            raise ValueError(f"{name} is {_text(value)}: {error}") from None
    return np.array(numbers, np.float64)


def _bounded(value: object, coordinates: Coordinates, index: int) -> float:
    low, high = -math.inf, math.inf
    if coordinates.bounds is not None:
        low, high = float(coordinates.bounds.low[index]), float(coordinates.bounds.high[index])
    if not is_number(value) or not low <= value <= high:
        limits = "" if math.isinf(low) and math.isinf(high) else f" from {low:g} to {high:g}"
        raise ValueError(f"expected a number{limits}")
    return float(value)


def _known(result: Mapping[str, object], quantities: Quantities) -> Known | None:
    """Return the result of a point, None if it is not known; ValueError if a number is missing."""
    if VALUE not in result and not (quantities.objectives and OBJECTIVES in result):
        return None
    value = result.get(VALUE, 0.0)
    if isinstance(value, float) and math.isnan(value):
        return Known(math.nan)
    if not is_number(value):
        raise ValueError(f"value is {_text(value)}: expected a number")
    numbers = {
        group: _group(result.get(group, []), group, names)
        for group, names in quantities.groups.items()
    }
    if CONSTRAINTS not in numbers and result.get(CONSTRAINTS, []) != []:
        _group(result[CONSTRAINTS], CONSTRAINTS, ())
    violation = sum(max(number, 0.0) for number in numbers.get(CONSTRAINTS, ()))
    flat = tuple(number for group in numbers.values() for number in group)
    known = Known(flat[0] if quantities.objectives else float(value), flat, violation)
    return known._replace(**_of_mean(result))


def _of_mean(result: Mapping[str, object]) -> dict[str, Any]:
    """Return how many evaluations a value is the mean of, and its standard error, as far as they
    are given; ValueError if they are no such numbers.
    """
    count: Any = result.get(REPEATS.name, 1)
    error: Any = result.get(ERROR.name, math.nan)
    if not is_number(count) or count < 1 or count != int(count):
        raise ValueError(
            f"{REPEATS.name} is {_text(count)}: expected the number of evaluations whose mean "
            "the value is, at least 1"
        )
    if not _is_number_or_nan(error) or error < 0:
        raise ValueError(f"{ERROR.name} is {_text(error)}: expected a number that is at least 0")
    found: dict[str, Any] = {"evaluations": int(count), "standard_error": float(error)}
    # an error is known from several evaluations only
    if not math.isnan(found["standard_error"]) and REPEATS.name not in result:
        found["evaluations"] = FEWEST
    return found


def _group(values: object, group: Group, names: Sequence[str]) -> list[float]:
    """Return the numbers of a group in the declared order; ValueError if one is missing."""
    if isinstance(values, Mapping):
        values = [values.get(name) for name in names]
    is_valid = is_number if group != METRICS else _is_number_or_nan
    if not isinstance(values, list) or len(values) != len(names) or not all(map(is_valid, values)):
        expected = f"{len(names)} numbers ({', '.join(names)})" if names else "none"
        raise ValueError(f"{group} are {_text(values)}: expected {expected}, or no value")
    return [float(number) for number in values]


def _is_number_or_nan(value: object) -> bool:
    return is_number(value) or (isinstance(value, float) and math.isnan(value))
