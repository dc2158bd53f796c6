"""Presets: defaults of other sections that an algorithm declares, such as a linear policy.

They stand where the config says nothing. A task or policy that has no such key goes without, and so do a policy of
another kind than the algorithm's own and a section that the config has switched off by `enabled: false`.
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
    needs = _needs(changed)
    for key, value in (needs.presets if needs else {}).items():
        section, *inner = key.split(".")
        options = _options(cls, section, changed, needs.policy if section == "policy" else None)
        if options is not None and _has(options, inner):
            _put_default(changed, [section, *inner], value)
    return changed


def _needs(data: Mapping[str, Any]) -> Any:
    """Return the NEEDS of the algorithm; None of a wrong one."""
    section = data.get("algorithm")
    kind = section.get("kind", "es") if isinstance(section, Mapping) else "es"
    if not isinstance(kind, str) or not (foreign.is_foreign(kind) or kinds.find("algorithms", kind)):
        return None
    try:
        return kinds.module("algorithms", kind).NEEDS
    except ConfigError:  # of a foreign kind, whose own section tells it
        return None


def _options(cls: type[Any], section: str, data: Mapping[str, Any], only: str | None) -> type[Any] | None:
    """Return the class of a section's options, as its kind says; None where the section is null or wrong.

    And where its kind is not `only`, if that is given.
    """
    hint = field_hints(cls)[section]
    mark = kinds_mark(hint)
    if mark is None:
        return options_class(hint)
    given = data.get(section, {})
    if given is None or not isinstance(given, Mapping):
        return None
    kind = given.get("kind", mark.chosen(data))
    if only is not None and kind != only:
        return None
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
    if data.get("enabled") is False:
        return
    data.setdefault(path[-1], value)
