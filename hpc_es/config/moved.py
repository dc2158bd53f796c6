"""Keys that have moved since an earlier version: what is at an old place is taken to the new one, with a notice.

A key that has gone is left out, with a notice too.

data, notices = moved(Config, data)                     a config as in its file, or resolved
data, notices = overridden(Config, data, overrides)     with key=value, by the old name or the new
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from hpc_es.config import registry
from hpc_es.config.type_hints import field_hints, kinds_mark, options_class
from hpc_es.config.yaml_text import ConfigProblem, override
from hpc_es.core.errors import ConfigError

MOVED = {"algorithm.observation_normalization": "task.observation_normalization"}
GONE = ("noise.table_size",)  # which kind: counter had too

Data = dict[str, Any]
Notices = list[str]
_ABSENT: Any = object()


def moved(cls: type[Any], data: Mapping[str, Any], table: Mapping[str, str] | None = None) -> tuple[Data, Notices]:
    """Return a copy of `data` with its keys at their new places, and a notice of each; ConfigError if both are given.

    `cls` is the class of the whole config. Keys that `applying` leaves out stay where they are.
    """
    return overridden(cls, data, (), table)


def overridden(
    cls: type[Any], data: Mapping[str, Any], overrides: Iterable[str], table: Mapping[str, str] | None = None
) -> tuple[Data, Notices]:
    """Return `data` with each "a.b=value" put in, all keys at their new places, and the notices; ConfigError.

    A file and an override may use different names of a key: they meet at the new place.
    """
    items = list(overrides)
    entries = applying(cls, override(data, items), table)  # the kinds may be overridden too
    changed, notices = _taken(data, entries)
    from_old = {new for old, new in entries.items() if _get(data, old) is not _ABSENT}
    for item in items:
        key, equals, value = item.partition("=")
        name = renamed(key, entries)
        before, changed = changed, override(changed, [name + equals + value])
        for old, new in entries.items():
            inside = _get(changed, old)  # of a section that is overridden as a whole
            if inside is not _ABSENT:
                _put(changed, new, _take(changed, old))
            elif new in from_old and _get(changed, new) is _ABSENT:  # the section is replaced, the old one was not
                _put(changed, new, _get(before, new))
            if inside is not _ABSENT or renamed(key, {old: new}) != key:
                notices.append(_notice(old, new))
    return changed, list(dict.fromkeys(notices + _left_out(cls, changed)))


def applying(cls: type[Any], data: Mapping[str, Any], table: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the moves that concern this config: its kinds are ours, know the new key, and do not know the old one."""
    entries = MOVED if table is None else table
    return {old: new for old, new in entries.items() if _knows(cls, data, new) and _knows(cls, data, old) is False}


def renamed(key: str, entries: Mapping[str, str]) -> str:
    """Return a dotted key by its new name."""
    for old, new in entries.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key


@functools.cache
def tell(notice: str) -> None:
    """Say a notice on stderr: each of them once in a process, however many configs have the key."""
    sys.stderr.write(f"NOTICE: {notice}\n")
    sys.stderr.flush()


def _taken(data: Mapping[str, Any], entries: Mapping[str, str]) -> tuple[Data, Notices]:
    """Return a copy of `data` with what is at old places at the new ones; ConfigError."""
    changed, problems, notices = copy.deepcopy(dict(data)), list[ConfigProblem](), Notices()
    for old, new in entries.items():
        if _get(changed, old) is _ABSENT:
            continue
        if _get(changed, new) is not _ABSENT:
            problems.append((old, f"is now {new}, which is given too: remove {old!r}"))
            continue
        _put(changed, new, _take(changed, old))
        notices.append(_notice(old, new))
    if problems:
        raise ConfigError(problems)
    return changed, notices


def _left_out(cls: type[Any], data: Data) -> Notices:
    """Remove, in place, the options that kinds of ours have no more."""
    gone = [key for key in GONE if _get(data, key) is not _ABSENT and _knows(cls, data, key) is False]
    for key in gone:
        _take(data, key)
    return [f"{key} is no option of this kind: left out" for key in gone]


def _notice(old: str, new: str) -> str:
    return f"{old} is now {new}: taken from the old place"


def _knows(cls: type[Any], data: Mapping[str, Any], key: str) -> bool | None:
    """Return whether this config may have that key; None if a kind on the way to it is not one of ours."""
    section: Any = data
    *path, last = key.split(".")
    for name in path:
        hint = field_hints(cls).get(name)
        mark, inner = kinds_mark(hint), section.get(name, {})
        if not isinstance(inner, Mapping):
            return None
        ours = registry.find(mark.package, inner.get("kind", mark.chosen(data))) if mark else None
        found = ours.Options if ours else options_class(hint)
        if found is None:
            return None
        cls, section = found, inner
    return last in {field.name for field in dataclasses.fields(cls)}


def _get(data: Mapping[str, Any], key: str) -> Any:
    found: Any = data
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return _ABSENT
        found = found[name]
    return found


def _put(data: Data, key: str, value: Any) -> None:
    *path, last = key.split(".")
    for name in path:
        data = data.setdefault(name, {})
    data[last] = value


def _take(data: Data, key: str) -> Any:
    *path, last = key.split(".")
    for name in path:
        data = data[name]
    return data.pop(last)
