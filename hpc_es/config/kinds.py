"""Kinds by folder: an algorithm, task, policy or noise is the module or package of its name; no registry to edit.

A module is a kind when it has `Options` with a field `kind` that defaults to the module's name; helpers do not. A name
with a dot or colon is a kind of the user's own: see `foreign.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from types import ModuleType
from typing import Any, Literal

from hpc_es.config import foreign
from hpc_es.core.errors import ConfigError

Package = Literal["algorithms", "tasks", "policies", "noise"]


def kinds(package: Package) -> tuple[str, ...]:
    """Return the sorted names of all kinds in a folder; its modules are imported."""
    return tuple(name for name in _files(package) if _is_kind(_import(package, name)))


def module(package: Package, kind: str) -> Any:
    """The module of a kind, or the object that a foreign one names, and no other; ConfigError if there is none."""
    if foreign.is_foreign(kind):
        return foreign.load(package, kind)
    found = _import(package, kind) if kind in _files(package) else None
    if found is None or not _is_kind(found):
        known = ", ".join(map(repr, kinds(package)))
        raise ConfigError([("kind", f"expected one of {known} (the modules of hpc_es/{package}), found {kind!r}")])
    return found


def find(package: Package, kind: Any) -> ModuleType | None:
    """Return the module of one of our kinds, or None of another; no other module is imported."""
    found = _import(package, kind) if kind in _files(package) else None
    return found if found is not None and _is_kind(found) else None


def _files(package: Package) -> list[str]:
    folder = importlib.import_module(f"hpc_es.{package}")
    return sorted(file.name for file in pkgutil.iter_modules(folder.__path__))


def _import(package: Package, name: str) -> ModuleType:
    return importlib.import_module(f"hpc_es.{package}.{name}")


def _is_kind(found: ModuleType) -> bool:
    options = getattr(found, "Options", None)
    if not dataclasses.is_dataclass(options):
        return False
    name = found.__name__.rpartition(".")[2]
    return any(field.name == "kind" and field.default == name for field in dataclasses.fields(options))
