"""Packages that give hpc_es kinds and commands: those of this distribution, and those from
elsewhere.

A package declares what it gives in an `Extension`, by the names of modules, so that none of them is
imported before it is used. The extensions of this distribution are the files `extension.py` in the
folders of hpc_es, with an `EXTENSION`; another distribution names its object as an entry point of
the group `hpc_es.kinds`. Both are read on demand: a command or kind of the core asks for neither,
and only what no folder of hpc_es has is looked up among the installed distributions.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_es.config.user_code import installed_path
from hpc_es.core.errors import UserError
from hpc_es.core.extensions import FIRST_NUMBER, Extension, Section

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "hpc_es.kinds"  # of the entry points
FILE = "extension.py"


@dataclass(frozen=True)
class Installed:
    """The extension of another distribution."""

    extension: Extension
    distribution: str
    version: str


@dataclass(frozen=True)
class Unusable:
    """An entry point that gives no extension."""

    name: str  # of the distribution
    reason: str


@functools.cache
def own() -> Mapping[str, Extension]:
    """Return the extensions of this distribution by the names of their folders."""
    root = Path(__file__).parents[1]
    with os.scandir(root) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir())
    return {
        name: importlib.import_module(f"hpc_es.{name}.extension").EXTENSION
        for name in folders
        if (root / name / FILE).is_file()
    }


@functools.cache
def _installed() -> tuple[Mapping[str, Installed], tuple[Unusable, ...]]:
    """Return the extensions of other distributions by name, and those that cannot be used.

    Directories with code of the user are left out: nobody has installed what lies there, and it may
    have come with a run of somebody else.
    """
    from importlib.metadata import distributions

    usable: dict[str, Installed] = {}
    unusable: list[Unusable] = []
    # A distribution that is found twice in the search path counts once, the first time.
    points: dict[tuple[str, str], tuple[Distribution, EntryPoint]] = {}
    for distribution in distributions(path=installed_path()):
        for point in distribution.entry_points:
            if point.group == GROUP:
                points.setdefault((point.name, point.value), (distribution, point))
    for (name, value), (distribution, point) in sorted(points.items(), key=lambda item: item[0]):
        try:
            extension = point.load()
        # the package may raise anything
        except (Exception, SystemExit) as error:
            unusable.append(
                Unusable(name, f"{value} cannot be imported: {type(error).__name__}: {error}")
            )
            continue
        if not isinstance(extension, Extension):
            kind = type(extension).__name__
            unusable.append(
                Unusable(
                    name,
                    f"expected {value} to be an hpc_es.extend.Extension, found one of type {kind}",
                )
            )
        elif name in {**own(), **usable}:
            unusable.append(Unusable(name, f"{value} has the name of another package's extension"))
        elif low := [key for key, number in extension.purposes.items() if number < FIRST_NUMBER]:
            unusable.append(
                Unusable(
                    name,
                    "expected numbers of purpose_number(...) as purposes, "
                    f"found another one for {low[0]}",
                )
            )
        else:
            usable[name] = Installed(extension, distribution.name, distribution.version)
    return usable, tuple(unusable)


def installed() -> Mapping[str, Extension]:
    """Return the extensions of other distributions by the names of their entry points."""
    return {name: package.extension for name, package in _installed()[0].items()}


def unusable() -> tuple[Unusable, ...]:
    """Return the entry points that give no extension."""
    return _installed()[1]


def unusable_text() -> str:
    """Return the end of a message about an unknown name: which packages are left out, and why."""
    texts = [f"the package {item.name!r} is left out: {item.reason}" for item in unusable()]
    return "".join(f"; {text}" for text in texts)


def every() -> Iterator[tuple[str, Extension]]:
    """Yield all extensions with their names: those of this distribution first, the others when
    they are asked for.
    """
    yield from own().items()
    yield from installed().items()


def modules(section: Section) -> dict[str, str]:
    """Return the modules that all extensions have in a section, by name; the first one counts."""
    found: dict[str, str] = {}
    for _, extension in every():
        for name, module in extension.named(section).items():
            found.setdefault(name, module)
    return found


def module_name(section: Section, name: str) -> str | None:
    """Return the module of a kind or command; None if no extension has it.

    Raises UserError if several installed packages have it.
    """
    for extension in own().values():
        if name in extension.named(section):
            return extension.named(section)[name]
    owners = [key for key, extension in installed().items() if name in extension.named(section)]
    if len(owners) > 1:
        raise UserError(
            f"{section}: the packages {' and '.join(map(repr, owners))} both have {name!r}: uninstall one of them"
        )
    return installed()[owners[0]].named(section)[name] if owners else None


def owner(section: Section, name: object) -> Installed | None:
    """Return the other distribution that has a kind; None if none has it."""
    for package in _installed()[0].values():
        if name in package.extension.named(section):
            return package
    return None


def environments() -> frozenset[str]:
    """Return the whole names of environments that belong to extensions."""
    return frozenset(name for _, extension in every() for name in extension.environments)


def load(name: str) -> Callable[..., Any]:
    """Import and return the function "module:name"."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function
