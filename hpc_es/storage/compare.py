"""Comparison of a checkpoint with an experiment: differing config keys and arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from hpc_es.core.data import Array, Arrays, JsonObject, State
from hpc_es.core.errors import CheckpointError
from hpc_es.storage.files import json_text

_ABSENT = object()


def differences(old: JsonObject, new: JsonObject, where: str = "in the checkpoint") -> list[str]:
    """Return the differences between two identities, one line per key; [] if they are equal.

    Lists equal tuples, NaN equals NaN, and 1 equals 1.0, but not true.
    """
    changes = _differences("", json.loads(json_text(old)), json.loads(json_text(new)))
    return [f"{key}: {before} {where}, {after} in the config" for key, before, after in changes]


def verify_restored(template: State, restored: State, growing: bool = False) -> None:
    """Check that a restored state has the names, shapes and dtypes of the `initial()` one.

    If the state is `growing`, only the number of axes must agree.

    Raises:
        CheckpointError: with every array that is missing, unexpected or different.
    """
    problems = [
        *_array_problems("shared", template.shared, restored.shared, growing),
        *_array_problems("master", template.master, restored.master, growing),
    ]
    if problems:
        raise CheckpointError(
            "the checkpoint does not fit this algorithm and policy:\n  " + "\n  ".join(problems)
        )


def _differences(key: str, old: object, new: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _differences(
                f"{key}.{name}" if key else name, old.get(name, _ABSENT), new.get(name, _ABSENT)
            )
    elif not _same(old, new):
        before, after = _display(old), _display(new)
        if before == after:  # the text 1 and the number 1
            before, after = json.dumps(old), json.dumps(new)
        yield key, before, after


def _same(old: object, new: object) -> bool:
    if old is _ABSENT or new is _ABSENT:
        return old is new
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    # JSON text distinguishes true from 1 and gives NaN equal to NaN; for numbers it is too strict.
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new)
    )
    return (numbers and bool(old == new)) or json.dumps(old, sort_keys=True) == json.dumps(
        new, sort_keys=True
    )


def _display(value: object) -> str:
    if value is _ABSENT:
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value)


def _array_problems(group: str, template: Arrays, restored: Arrays, growing: bool) -> Iterator[str]:
    def form(array: Array) -> str:
        shape = "?" * np.ndim(array) if growing else map(str, np.shape(array))
        return f"{np.asarray(array).dtype}[{', '.join(shape)}]"

    for name in dict.fromkeys((*template, *restored)):
        expected, actual = (
            form(arrays[name]) if name in arrays else "nothing" for arrays in (template, restored)
        )
        if expected != actual:
            yield f"{group}/{name}: expected {expected}, found {actual} in the checkpoint"
