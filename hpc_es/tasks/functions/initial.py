"""The vector that a search begins with, or the region that it is drawn from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.functions.bounds import Bounds
from hpc_es.tasks.functions.coordinates import Coordinates, limits
from hpc_es.tasks.functions.options import Search

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
