"""The vector that a search begins with, or the region that it is drawn from.

`task: {kind: function}`: a Python function of one's own, of a vector or of named parameters.

    task: {kind: function, function: "my_model:cost", dimension: 40, initial: 1.0}

The function gets float64[dimension] (or, with `parameters`, one keyword each), the `arguments` and, where it has a
parameter `seed`, a whole number that is the same for both halves of a mirrored pair; it returns a number. With `batch:
K` it gets float64[<= K, dimension] and returns float64[<= K], `seed` is then an array.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpc_es.config.options import Natural, option, options
from hpc_es.config.registry import source_hash
from hpc_es.core.data import Float64
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.interfaces import Offers, Searched
from hpc_es.core.keys import Keys
from hpc_es.core.paths import config_directory
from hpc_es.core.policy import Policy
from hpc_es.tasks.functions.options import Bounds, ConfigProblem, Coordinates, Search, limits
from hpc_es.tasks.functions.problem import ObjectiveProblem, first_values
from hpc_es.tasks.functions.python_evaluator import Calls, Evaluator
from hpc_es.tasks.functions.resolve import resolve

KEY, REGION = "task.initial", "task.initial_region"
RANDOM = "random"
SUFFIXES = (".npy", ".json", ".txt")


def initial_values(search: Search, directory: Path) -> Float64 | Bounds:
    """Return what the objective sees first, float64[size], or between which search vectors to draw; ConfigError."""
    initial = search.initial
    if initial == RANDOM:
        return _region(search, search.coordinates())
    if initial is None:
        coordinates = search.coordinates()
        values = np.zeros(coordinates.size) if coordinates.bounds is None else coordinates.bounds.middle()
        seen: Float64 = coordinates.seen(values[np.newaxis])[0][0]
        return seen
    if isinstance(initial, str):
        values = _read(directory / initial)
    else:
        values = np.array(initial, np.float64)
        values = np.full(search.size, values) if values.shape == () else values
    coordinates = search.coordinates()  # after the file, which is checked also where the bounds are wrong
    if values.shape != (coordinates.size,):
        raise _error(f"expected {coordinates.size} numbers, found an array of the shape {list(values.shape)}")
    if not np.isfinite(values).all():
        raise _error(f"expected finite numbers, found {values[~np.isfinite(values)][0]}")
    bounds = None if coordinates.ranges else coordinates.bounds
    if bounds is not None and (bounds.clipped(values) != values).any():
        index = int((bounds.clipped(values) != values).argmax())
        low, high = bounds.low[index], bounds.high[index]
        raise _error(f"is {values[index]:g} in coordinate {index}: expected a number from {low:g} to {high:g}")
    return values


def _region(search: Search, coordinates: Coordinates) -> Bounds:
    """Return `task.initial_region`; a side that is not given is that of the bounds."""
    size, given = coordinates.size, search.initial_region
    bounds = coordinates.bounds or Bounds(np.full(size, -np.inf), np.full(size, np.inf))
    try:
        low = bounds.low if given.low is None else limits(given.low, size, np.nan)
        high = bounds.high if given.high is None else limits(given.high, size, np.nan)
    except ValueError as error:
        raise ConfigError([(REGION, str(error))]) from error
    if not (np.isfinite(low) & np.isfinite(high)).all():
        text = "is random, but not every coordinate has a lower and an upper limit: set task.initial_region"
        raise _error(f"{text} or task.bounds")
    wrong = (low > high) | (low < bounds.low) | (high > bounds.high)
    if wrong.any():
        index = int(wrong.argmax())
        text = f"is {low[index]:g} to {high[index]:g} in coordinate {index}: expected low <= high"
        raise ConfigError([(REGION, f"{text}, within {bounds.low[index]:g} to {bounds.high[index]:g}")])
    return Bounds(low, high)


def _read(path: Path) -> Float64:
    try:
        match path.suffix:
            case ".npy":
                found = np.load(path, allow_pickle=False)
            case ".json":
                found = np.array(json.loads(path.read_text()))
            case ".txt":
                found = np.loadtxt(path, ndmin=1)
            case _:
                text = f"expected a number, a list, {RANDOM!r} or a file ({', '.join(SUFFIXES)}), found {path.name!r}"
                raise _error(text)
        if found.dtype.kind not in "iuf":
            raise ValueError(f"it holds {found.dtype}, no numbers")
        numbers: Float64 = found.astype(np.float64)
        return numbers
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _error(f"expected a file of numbers, but {path} cannot be read: {reason}") from error


def _error(text: str) -> ConfigError:
    return ConfigError([(KEY, text)])


OFFERS = Offers(problems=("vectors",), values=True, any_chunks=True)


@options
class Options(Search):
    """`task:` with `kind: function`."""

    kind: Literal["function"] = option("name of the task", "function")
    function: str = option("module:function, such as my_model:cost; beside the config or in the current directory")
    arguments: Mapping[str, Any] = option("further keywords of every call", default_factory=dict)
    batch: Natural = option("vectors of a call, as an array; 0: one vector a call", 0)

    def problems(self) -> Iterator[ConfigProblem]:
        """Mistakes that no single field shows: (key, text)."""
        yield from super().problems()
        if self.batch and self.parameters:
            yield "batch", f"is {self.batch}, but named parameters come one vector at a time: expected 0"
        both = set(self.arguments) & set(self.parameters or {})
        if both:
            yield "arguments", f"has {', '.join(sorted(both))}, which is a parameter that is searched: remove it there"


class VectorTask:
    """A task whose problem is an objective."""

    spaces = None

    def __init__(
        self, name: str, search: Search, first: Float64 | Bounds, evaluator: Evaluator, batch: int = 0
    ) -> None:
        self.name, self._search, self._first, self._evaluator, self._batch = name, search, first, evaluator, batch

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> ObjectiveProblem:
        """Return the objective."""
        return ObjectiveProblem(
            self._search, self._search.coordinates(), self._first, self._evaluator, keys, self._batch
        )

    def close(self) -> None:
        """End what evaluates."""
        self._evaluator.close()


def first_vector(search: Search) -> Float64 | Bounds:
    """Return what the objective sees first, or between which search vectors to draw it; ConfigError."""
    return first_values(search, initial_values(search, config_directory()))


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the function's module, or of its package; it is not imported."""
    return {section["function"]: source_hash(section["function"])}


def build(options: Options, repetition: int = 0) -> VectorTask:
    """Return the task of `task: {kind: function}`; ConfigError where the function cannot be called."""
    problems = Problems()
    with problems.collect():
        objective = resolve(options.function, options.arguments, tuple(options.parameters or ()))
    with problems.collect():
        first = first_vector(options)
    problems.raise_any()
    calls = Calls(objective, options.batch > 0, options.timeout_seconds)
    return VectorTask(options.function, options, first, calls, options.batch)
