"""`task: {kind: function}`: a Python function of a vector or of named parameters.

    task: {kind: function, function: "my_model:cost", dimension: 40, initial: 1.0}

The function gets float64[dimension] (with `parameters`: a keyword for each of them, of its type),
the keywords in `arguments` and, if it has a parameter `seed`, a whole number that is the same for
both candidates of an antithetic pair. It returns a number, or a mapping with objectives,
constraints, measures or metrics that the task declares: see `functions/results.py`. With `batch: K`
it gets float64[k, dimension], k <= K, and int64[k] seeds, and returns float64[k].

The task `command` uses `initial_vector` and `ObjectiveTask` too.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from hpc_es.config.options import Natural, option, options
from hpc_es.config.registry import config_path, import_function
from hpc_es.config.source_code import source_hash
from hpc_es.core.array_files import load_array
from hpc_es.core.data import ConfigData, Float64
from hpc_es.core.declarations import Offers, Searched
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Policy
from hpc_es.core.run_files import read_json, read_text
from hpc_es.tasks.functions.constraints import ConstrainedProblem
from hpc_es.tasks.functions.initial_points import InitialPoints, initial_points
from hpc_es.tasks.functions.options import (
    OF_CONSTRAINTS,
    Bounds,
    ConfigProblem,
    Coordinates,
    SearchOptions,
    limits,
    offers_of_search,
    returned_quantities,
)
from hpc_es.tasks.functions.problem import ObjectiveProblem
from hpc_es.tasks.functions.python_evaluator import KEY, Evaluator, PythonEvaluator, objective

RANDOM = "random"
SUFFIXES = (".npy", ".json", ".txt")


def initial_vector(search: SearchOptions, directory: Path | None = None) -> Float64 | Bounds:
    """Return the initial vector of the objective, or the region of initial search vectors.

    It is float64[size]. NaN is the middle of a discrete parameter, which may be between two levels.
    `directory` is that of the config.

    Raises:
        ConfigError: for `task.initial` or `task.initial_region`.
    """
    values = _initial_values(search, directory)
    if isinstance(values, Bounds) or not search.parameters:
        return values
    own = [parameter.initial for parameter in search.parameters.values()]
    mixed = search.coordinates().mixed
    if mixed is not None:
        values[[*mixed.ordered, *mixed.choices]] = np.nan  # the middle of their scales
    return np.array(
        [
            default if value is None else value
            for default, value in zip(values.tolist(), own, strict=True)
        ]
    )


def _initial_values(search: SearchOptions, directory: Path | None) -> Float64 | Bounds:
    """Return `initial_vector` without the initial values of named parameters."""
    initial = search.initial
    if initial == RANDOM:
        return _initial_region(search, search.coordinates())
    if initial is None:
        coordinates = search.coordinates()
        middle = (
            np.zeros(coordinates.size)
            if coordinates.bounds is None
            else coordinates.bounds.middle()
        )
        vector: Float64 = coordinates.to_objective(middle[np.newaxis])[0][0]
        return vector
    if isinstance(initial, str):
        try:
            path = config_path(initial, directory)
        except ValueError as error:
            raise _error(str(error)) from error
        values = _read_vector(path)
    else:
        values = np.array(initial, np.float64)
        values = np.full(search.size, values) if values.shape == () else values
    # after the file, so that its errors are reported even if the bounds are wrong
    coordinates = search.coordinates()
    if values.shape != (coordinates.size,):
        raise _error(
            f"expected {coordinates.size} numbers, found an array of the shape {list(values.shape)}"
        )
    if not np.isfinite(values).all():
        raise _error(f"expected finite numbers, found {values[~np.isfinite(values)][0]}")
    bounds = None if coordinates.scales else coordinates.bounds
    if bounds is not None and (bounds.clipped(values) != values).any():
        index = int((bounds.clipped(values) != values).argmax())
        low, high = bounds.low[index], bounds.high[index]
        raise _error(
            f"is {values[index]:g} in coordinate {index}: expected a number from {low:g} to {high:g}"
        )
    return values


def _initial_region(search: SearchOptions, coordinates: Coordinates) -> Bounds:
    """Return `task.initial_region`, whose limits default to those of the bounds."""
    size, region = coordinates.size, search.initial_region
    bounds = coordinates.bounds or Bounds(np.full(size, -np.inf), np.full(size, np.inf))
    try:
        low = bounds.low if region.low is None else limits(region.low, size, np.nan)
        high = bounds.high if region.high is None else limits(region.high, size, np.nan)
    except ValueError as error:
        raise ConfigError([("task.initial_region", str(error))]) from error
    if not (np.isfinite(low) & np.isfinite(high)).all():
        text = "is random, but not every coordinate has a lower and an upper limit: set task.initial_region"
        raise _error(f"{text} or task.bounds")
    wrong = (low > high) | (low < bounds.low) | (high > bounds.high)
    if wrong.any():
        index = int(wrong.argmax())
        text = f"is {low[index]:g} to {high[index]:g} in coordinate {index}: expected low <= high"
        raise ConfigError(
            [
                (
                    "task.initial_region",
                    f"{text}, within {bounds.low[index]:g} to {bounds.high[index]:g}",
                )
            ]
        )
    return Bounds(low, high)


def _read_vector(path: Path) -> Float64:
    try:
        match path.suffix:
            case ".npy":
                array = load_array(path.resolve())
            case ".json":
                array = np.array(read_json(path.resolve()))
            case ".txt":
                array = np.loadtxt(
                    io.StringIO(read_text(path.resolve())), ndmin=1, encoding="utf-8"
                )
            case _:
                text = f"expected a number, a list, {RANDOM!r} or a file ({', '.join(SUFFIXES)}), found {path.name!r}"
                raise _error(text)
        if array.dtype.kind not in "iuf":
            raise ValueError(f"it contains {array.dtype} instead of numbers")
        numbers: Float64 = array.astype(np.float64)
        return numbers
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _error(f"expected a file of numbers, but {path} cannot be read: {reason}") from error


def _error(text: str) -> ConfigError:
    return ConfigError([("task.initial", text)])


OFFERS = Offers(
    problems=("vectors",),
    values=True,
    any_chunks=True,
    metrics=OF_CONSTRAINTS,
    noisy=True,
)


@options
class Options(SearchOptions):
    """`task:` with `kind: function`."""

    kind: Literal["function"] = option("name of the task", "function")
    function: str = option(
        "module:function, such as my_model:cost, in the config's or the current directory"
    )
    arguments: ConfigData = option("further keywords of every call", default_factory=dict)
    batch: Natural = option(
        "maximum number of vectors per call, passed as an array; 0: one vector per call", 0
    )

    def problems(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for each mistake that involves several options."""
        yield from super().problems()
        if self.batch and self.parameters:
            yield (
                "batch",
                f"is {self.batch}, but named parameters are passed one vector at a time: expected 0",
            )
        if self.batch and self.close_at is not None:
            yield "batch", f"is {self.batch}, but close_at gives up single evaluations: expected 0"
        both = set(self.arguments) & set(self.parameters or {})
        if both:
            yield (
                "arguments",
                f"has {', '.join(sorted(both))}, which is also in task.parameters: remove it from one",
            )


class ObjectiveTask:
    """A task whose problem is an objective."""

    spaces = None

    def __init__(
        self,
        name: str,
        search: SearchOptions,
        initial: Float64 | Bounds,
        *,
        evaluator: Evaluator,
        batch: int = 0,
        points: InitialPoints | None = None,
    ) -> None:
        self.name, self._search, self._initial = name, search, initial
        self._evaluator, self._batch, self._points = evaluator, batch, points

    def problem(
        self, searched: Searched, policy: Policy | None, keys: Keys, unit: int
    ) -> ObjectiveProblem:
        """Return the problem of maximising this objective."""
        # With several objectives, constraints are columns that algorithms read.
        is_single = len(self._search.quantities.objectives) < 2
        is_constrained = bool(self._search.constraint_names) and is_single
        kind = ConstrainedProblem if is_constrained else ObjectiveProblem
        coordinates, points = self._search.coordinates(), self._points
        return kind(
            self._search, coordinates, self._initial, self._evaluator, keys, self._batch, points
        )

    def close(self) -> None:
        """Close the evaluator."""
        self._evaluator.close()


def offers(options: Options) -> Offers:
    """Return the capabilities under these options."""
    return offers_of_search(OFFERS, options)


def sources(section: ConfigData, directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the function's module or package, which is not imported."""
    return {section["function"]: source_hash(section["function"])}


def build(options: Options, repetition: int = 0) -> ObjectiveTask:
    """Return the task.

    Raises:
        ConfigError: the function cannot be imported or does not accept its arguments.
    """
    problems = Problems()
    with problems.collect():
        function, scales = import_function(options.function, KEY), options.coordinates().scales
        function_objective = objective(function, options.arguments, scales, options.function)
    with problems.collect():
        initial = initial_vector(options)
    with problems.collect():
        points = initial_points(options)
    problems.raise_any()
    returned = returned_quantities(options)
    evaluator = PythonEvaluator(
        function_objective, options.batch > 0, options.timeout_seconds, returned
    )
    return ObjectiveTask(
        options.function,
        options,
        initial,
        evaluator=evaluator,
        batch=options.batch,
        points=points,
    )
