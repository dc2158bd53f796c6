"""Kinds by folder: an algorithm, a task or a policy is the module of its name; no registry to edit.

A module is a kind when it has `Options` with a field `kind` that defaults to the module's name; helpers do not.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from types import ModuleType
from typing import Literal

from hpc_es.errors import ConfigError

Package = Literal["algorithms", "tasks", "policies"]


def kinds(package: Package) -> tuple[str, ...]:
    """The sorted names of all kinds in a folder; its modules are imported."""
    return tuple(name for name in _files(package) if _is_kind(_import(package, name)))


def module(package: Package, kind: str) -> ModuleType:
    """The module of a kind, the only one that is imported; ConfigError where there is none."""
    found = _import(package, kind) if kind in _files(package) else None
    if found is None or not _is_kind(found):
        known = ", ".join(map(repr, kinds(package)))
        raise ConfigError([("kind", f"expected one of {known} (the modules of hpc_es/{package}), found {kind!r}")])
    return found


def _files(package: Package) -> list[str]:
    folder = importlib.import_module(f"hpc_es.{package}")
    return sorted(file.name for file in pkgutil.iter_modules(folder.__path__) if not file.ispkg)


def _import(package: Package, name: str) -> ModuleType:
    return importlib.import_module(f"hpc_es.{package}.{name}")


def _is_kind(found: ModuleType) -> bool:
    options = getattr(found, "Options", None)
    if not dataclasses.is_dataclass(options):
        return False
    name = found.__name__.rpartition(".")[2]
    return any(field.name == "kind" and field.default == name for field in dataclasses.fields(options))
