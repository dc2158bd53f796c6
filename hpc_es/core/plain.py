"""Values of Python as the data of a config: what a YAML file could hold."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import Json
from hpc_es.core.errors import ConfigError, Problems, join, one_line

EXPECTED = "expected text, a number, true, false, None, a list or a mapping"
MOST_CHARACTERS = 60  # of a value in a message


def plain(value: object, key: str = "") -> Any:
    """Return data of NumPy, PyTorch, JAX and Python as numbers, lists and text.

    Arrays and tuples are lists, paths are text.

    Raises:
        ConfigError: for each value that a config cannot hold, such as a function, with its key.
    """
    problems = Problems()
    try:
        result = _plain(value, key, problems)
    except RecursionError:
        raise ConfigError([(key, f"{EXPECTED}, found one that contains itself")]) from None
    problems.raise_any()
    return result


SCALARS = {str, bool, int, float, type(None)}


def _plain(value: Any, key: str, problems: Problems) -> Json:
    result: Json = None
    if type(value) in SCALARS:
        result = value
    elif isinstance(value, bool | np.bool_):
        result = bool(value)
    elif isinstance(value, int | np.integer):
        result = int(value)
    elif isinstance(value, float | np.floating):
        result = float(value)
    elif isinstance(value, str):
        result = str.__str__(value)  # also of a text enum
    elif isinstance(value, os.PathLike):
        result = _plain(os.fspath(value), key, problems)
    elif isinstance(value, Mapping):
        result = {
            name: _plain(item, join(key, name), problems)
            for name, item in _named(value, key, problems)
        }
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        are_scalars = SCALARS.issuperset(map(type, value))  # fast for a long list
        result = (
            list(value)
            if are_scalars
            else [_plain(v, f"{key}[{i}]", problems) for i, v in enumerate(value)]
        )
    elif hasattr(value, "__array__"):
        result = _plain_array(value, key, problems)
    else:
        remedy = ""
        if isinstance(value, set | frozenset):
            remedy = ": a set has no order, give a list, such as sorted(...)"
        elif callable(value):
            remedy = ": name a function or class of a module as 'my_module:name'"
        problems.append((key, f"{EXPECTED}, found {_described(value)}{remedy}"))
    return result


def _named(value: Mapping[Any, Any], key: str, problems: Problems) -> list[tuple[str, Any]]:
    """Return the items of a mapping; keys that are not text are problems."""
    wrong = [name for name in value if not isinstance(name, str)]
    problems += [(key, f"expected text as a key, found {_described(name)}") for name in wrong]
    return [(str.__str__(name), item) for name, item in value.items() if isinstance(name, str)]


def _plain_array(value: Any, key: str, problems: Problems) -> Json:
    try:
        items = value.tolist() if hasattr(value, "tolist") else np.asarray(value).tolist()
    except Exception as error:  # of the library
        problems.append(
            (
                key,
                f"expected numbers, found {_described(value)}, which cannot be read: "
                f"{one_line(str(error))}",
            )
        )
        return None
    if hasattr(items, "__array__") and not isinstance(items, np.generic):
        problems.append((key, f"{EXPECTED}, found {_described(value)}"))
        return None
    return _plain(items, key, problems)


def _described(value: object) -> str:
    text = one_line(repr(value))
    text = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
    return f"{type(value).__name__} {text}"
