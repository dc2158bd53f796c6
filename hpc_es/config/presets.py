"""Presets: defaults of other sections that an algorithm declares, such as a linear policy.

They stand where the config says nothing; a task or policy that has no such key goes without.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hpc_es.config import foreign, kinds
from hpc_es.config.hints import field_hints, kinds_mark, options_class
from hpc_es.core.errors import ConfigError


def with_presets(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `data` with the presets of its algorithm; `cls` is the class of the whole config."""
    changed = copy.deepcopy(dict(data))
    for key, value in _presets(changed).items():
        section, *inner = key.split(".")
        options = _options(cls, section, changed)
        if options is not None and _has(options, inner):
            _put_default(changed, [section, *inner], value)
    return changed


def _presets(data: Mapping[str, Any]) -> Mapping[str, Any]:
    section = data.get("algorithm")
    kind = section.get("kind", "es") if isinstance(section, Mapping) else "es"
    if not isinstance(kind, str) or not (foreign.is_foreign(kind) or kinds.find("algorithms", kind)):
        return {}
    try:
        presets: Mapping[str, Any] = kinds.module("algorithms", kind).NEEDS.presets
    except ConfigError:  # of a foreign kind, whose own section tells it
        return {}
    return presets


def _options(cls: type[Any], section: str, data: Mapping[str, Any]) -> type[Any] | None:
    """Return the class of a section's options, as its kind says; None where the section is null or wrong."""
    hint = field_hints(cls)[section]
    mark = kinds_mark(hint)
    if mark is None:
        return options_class(hint)
    given = data.get(section, {})
    if given is None or not isinstance(given, Mapping):
        return None
    kind = given.get("kind", mark.chosen(data))
    try:
        found: type[Any] | None = None if kind is None else kinds.module(mark.package, kind).Options
    except ConfigError:
        return None
    return found


def _has(options: type[Any], path: list[str]) -> bool:
    hint: Any = options
    for name in path:
        inner = options_class(hint) if hint is not options else options
        if inner is None or name not in field_hints(inner):
            return False
        hint = field_hints(inner)[name]
    return True


def _put_default(data: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = data.setdefault(name, {})
        if not isinstance(inner, dict):  # which validation tells
            return
        data = inner
    data.setdefault(path[-1], value)
