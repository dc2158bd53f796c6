"""Does a checkpoint fit this experiment? What differs, key by key and array by array."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hpc_es.core.data import Arrays, State
from hpc_es.core.errors import CheckpointError
from hpc_es.storage.files import json_text

_ABSENT = object()


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "in the checkpoint") -> list[str]:
    """Return how an identity in the config differs from the old one, one line a key; [] if they are equal.

    Lists and tuples are equal, as are NaN and NaN, 1 and 1.0; true and 1 are not.
    """
    found = _differences("", json.loads(json_text(old)), json.loads(json_text(new)))
    return [f"{key}: {before} {where}, {after} in the config" for key, before, after in found]


def verify_restored(template: State, restored: State, growing: bool = False) -> None:
    """Check that a restored state has exactly the names, shapes and dtypes of the algorithm's `initial()` state.

    Where the state is `growing`, lengths of axes may differ. Raises CheckpointError that lists every array that is
    missing, unexpected or different.
    """
    form = _growing_form if growing else _form
    problems = [
        *_array_problems("shared", template.shared, restored.shared, form),
        *_array_problems("master", template.master, restored.master, form),
    ]
    if problems:
        raise CheckpointError("the checkpoint does not fit this algorithm and policy:\n  " + "\n  ".join(problems))


def _differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _differences(f"{key}.{name}" if key else name, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif not _same(old, new):
        before, after = _shown(old), _shown(new)
        if before == after:  # the text 1 and the number 1
            before, after = json.dumps(old), json.dumps(new)
        yield key, before, after


def _same(old: Any, new: Any) -> bool:
    if old is _ABSENT or new is _ABSENT:
        return old is new
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    # JSON text tells true from 1 and finds NaN equal to NaN; only for numbers is its answer too strict.
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    return (numbers and bool(old == new)) or json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value)


def _array_problems(group: str, template: Arrays, restored: Arrays, form: Callable[[Any], str]) -> Iterator[str]:
    for name in dict.fromkeys((*template, *restored)):
        expected, found = (form(arrays[name]) if name in arrays else "nothing" for arrays in (template, restored))
        if expected != found:
            yield f"{group}/{name}: expected {expected}, found {found} in the checkpoint"


def _form(array: Any) -> str:
    return f"{np.asarray(array).dtype}[{', '.join(map(str, np.shape(array)))}]"


def _growing_form(array: Any) -> str:
    return f"{np.asarray(array).dtype}[{', '.join('?' * np.ndim(array))}]"
