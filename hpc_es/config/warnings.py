"""Options that do nothing where they stand: no mistake, but told of by --check and at the start.

A class of options says so by `warnings()`, beside `problems()`: it yields (key, text). Only what is not the default can
be told: that a key was written down is not known any more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpc_es.config.yaml_text import ConfigProblem
from hpc_es.core.messages import as_yaml, join


def warnings_of(options: Any, key: str = "") -> list[str]:
    """Return the warnings of a config, or of one section below `key`, a line each."""
    return [f"{place}: {text}" for place, text in _warnings(options, key)]


def _warnings(options: Any, key: str) -> Iterator[ConfigProblem]:
    if hasattr(options, "warnings"):
        yield from ((join(key, name), text) for name, text in options.warnings())
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            yield from _warnings(value, join(key, field.name))


def unused(options: Any, names: Iterable[str], why: str) -> Iterator[ConfigProblem]:
    """Yield a warning for each of these options that is not at its default; `why` says what makes it do nothing."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    for name in names:
        value = getattr(options, name)
        if value != fields[name].default:
            yield name, f"is {as_yaml(list(value) if isinstance(value, tuple) else value)}, but does nothing: {why}"


def unused_of_kinds(options: Any, names: Mapping[str, Iterable[str]]) -> Iterator[ConfigProblem]:
    """Yield the same for options that some kinds alone have: `names` by kind."""
    owners: dict[str, list[str]] = {}
    for kind, own in names.items():
        for name in own:
            owners.setdefault(name, []).append(kind)
    for name, kinds in owners.items():
        if options.kind not in kinds:
            yield from unused(options, (name,), f"it is for kind {' or '.join(kinds)}, and this is {options.kind}")
