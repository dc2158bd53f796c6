"""Types of arrays and plain data, and what messages say of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # each use states shape and dtype
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Arrays = Mapping[str, Array]  # arrays by name
FloatDtype = np.dtype[np.float32] | np.dtype[np.float64]
Normaliser = tuple[Float32, Float32, float]  # mean, standard deviation and clip of the observations
# answers messages of other ranks; call it every few milliseconds in long evaluations
Poll = Callable[[], None]
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
# an object of a JSON file, whose nested values are read without checks
JsonObject: TypeAlias = Mapping[str, Any]
Keywords: TypeAlias = Mapping[str, Any]  # keyword arguments of an environment or a function
# a config or a section of it as plain data, as in its YAML file
ConfigData: TypeAlias = Mapping[str, Any]
# bytes; JAX on a CPU reads NumPy arrays whose address is a multiple of it without a copy
ALIGNMENT = 64


def read_only(arrays: Arrays) -> dict[str, Array]:
    """Read-only views of arrays, for code that must not change them."""
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an uninitialised array, dtype[*shape], whose address is a multiple of `ALIGNMENT`.

    NumPy aligns arrays to 16 bytes only. Large arrays need this if they, or views of them, go to
    compiled calls.
    """
    count = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(count + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + count].view(dtype).reshape(shape)


def _as_array(values: object) -> Array | None:
    """Return values as an array; None if they are ragged, or parts of them are masked."""
    try:
        return None if np.ma.is_masked(values) else np.asarray(values)
    except (TypeError, ValueError):
        return None


def form_of(value: object) -> str:
    """Return what a value is, for messages: type or dtype, and shape, such as "float64[2, 3]"."""
    if isinstance(value, np.ndarray):
        masked = "masked " if np.ma.is_masked(value) else ""
        return f"{masked}{value.dtype}{list(value.shape)}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return (
            repr(value)
            if len(repr(value)) <= 60
            else f"{type(value).__name__} {repr(value)[:60]} ..."
        )
    if isinstance(value, list | tuple):
        array = _as_array(value)
        if array is not None and array.dtype.kind in "biufc":
            return f"{array.dtype}{list(array.shape)}"
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f"{list(shape)}" if isinstance(shape, tuple) else "")


def not_finite_text(name: str, values: Array, at: str) -> str:
    """Describe the first element of `values` that is not finite: "NAME is NaN AT", or infinite."""
    index = tuple(int(position) for position in np.argwhere(~np.isfinite(values))[0])
    element = f" in element {', '.join(map(str, index))}" if values.size > 1 else ""
    if np.isnan(values[index]):
        return f"{name} is NaN{element} {at}"
    largest = (
        "" if values.dtype.itemsize > 4 else f" (float32 ends at {np.finfo(np.float32).max:.1e})"
    )
    return f"{name} is infinite{element}{largest} {at}"
