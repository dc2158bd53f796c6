"""`task.initial` and `task.initial_region`: where the search for a vector starts."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from hpc_es.config.registry import config_path
from hpc_es.core.array_files import load_array
from hpc_es.core.data import Float64
from hpc_es.core.errors import ConfigError
from hpc_es.core.run_files import named_by_user, read_json, read_text
from hpc_es.tasks.functions.options import (
    Bounds,
    Coordinates,
    SearchOptions,
    limits,
)

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
        raise _error(
            "is random, but not every coordinate has a lower and an upper limit: set "
            "task.initial_region or task.bounds"
        )
    wrong = (low > high) | (low < bounds.low) | (high > bounds.high)
    if wrong.any():
        index = int(wrong.argmax())
        raise ConfigError(
            [
                (
                    "task.initial_region",
                    f"is {low[index]:g} to {high[index]:g} in coordinate {index}: expected low <= "
                    f"high, within {bounds.low[index]:g} to {bounds.high[index]:g}",
                )
            ]
        )
    return Bounds(low, high)


def _read_vector(path: Path) -> Float64:
    try:
        match path.suffix:
            case ".npy":
                array = load_array(named_by_user(path))
            case ".json":
                array = np.array(read_json(named_by_user(path)))
            case ".txt":
                array = np.loadtxt(
                    io.StringIO(read_text(named_by_user(path))), ndmin=1, encoding="utf-8"
                )
            case _:
                raise _error(
                    f"expected a number, a list, {RANDOM!r} or a file ({', '.join(SUFFIXES)}), "
                    f"found {path.name!r}"
                )
        if array.dtype.kind not in "iuf":
            raise ValueError(f"it contains {array.dtype} instead of numbers")
        numbers: Float64 = array.astype(np.float64)
        return numbers
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _error(f"expected a file of numbers, but {path} cannot be read: {reason}") from error


def _error(text: str) -> ConfigError:
    return ConfigError([("task.initial", text)])
