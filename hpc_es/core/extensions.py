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
import hashlib
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpc_es.core.errors import UserError

GROUP = "hpc_es.kinds"  # of the entry points
FILE = "extension.py"
FIRST_NUMBER = 2**31  # of the purposes of other distributions
Section = Literal["algorithms", "tasks", "policies", "noise", "commands"]
SECTIONS: tuple[Section, ...] = ("algorithms", "tasks", "policies", "noise", "commands")
_KIND = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_COMMAND = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_OBJECT = re.compile(r"\w+(\.\w+)*(:\w+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What a package gives hpc_es.

    Names are those of configs and of the command line; values are the names of modules, or
    "module:name". The module of a kind has `Options`, `build` and `NEEDS` or `OFFERS`, as that of a
    custom kind. The module of the command `my-table` has `add_my_table_arguments(parser)` and
    `run_my_table(arguments)`, which returns the exit status; its docstring is the help text.

    Raises ValueError for a name or module of another form.

    Example:
        EXTENSION = Extension(
            algorithms={"my_search": "my_package.search"},
            commands={"my-table": "my_package.table"},
        )
    """

    algorithms: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    noise: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    # Module with `reads(text)` and `parse_config_string(text, task)`, for configs that are written
    # as one text, name=value,...
    config_strings: str = ""
    # Function `(arrays) -> BestMember | None`: the best solution among the arrays of a state on
    # rank 0, of an algorithm that does not move a centre.
    best_member: str = ""
    # function `(runs) -> sections` for the HTML report
    report_sections: str = ""
    # Modules that register Gymnasium environments, which configs name as "module:id". They belong
    # to the package, so that nobody is asked to trust them.
    environments: tuple[str, ...] = ()
    # numbers of its purposes of random numbers by name, see `purpose_number`
    purposes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for section in SECTIONS:
            form = _COMMAND if section == "commands" else _KIND
            for name in self.named(section):
                if not form.fullmatch(name):
                    example = "my-command" if section == "commands" else "my_kind"
                    raise ValueError(
                        f"{section} of the extension: expected names such as {example!r}, found {name!r}"
                    )
        values = [value for section in SECTIONS for value in self.named(section).values()]
        values += [self.config_strings, self.best_member, self.report_sections, *self.environments]
        for value in values:
            if value and not _OBJECT.fullmatch(value):
                raise ValueError(
                    f"expected the name of a module, or module:name, in the extension, found {value!r}"
                )

    def named(self, section: Section) -> Mapping[str, str]:
        """Return the modules of a section by name."""
        by_section = {
            "algorithms": self.algorithms,
            "tasks": self.tasks,
            "policies": self.policies,
            "noise": self.noise,
            "commands": self.commands,
        }
        return by_section[section]


def purpose_number(name: str) -> int:
    """Return the number of a purpose of random numbers, such as "my_package.mutation".

    It follows from the name, which must not change since results depend on it, and differs from
    the numbers of hpc_es.
    """
    return FIRST_NUMBER | int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


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
    root = Path(__file__).parent.parent
    with os.scandir(root) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir())
    return {
        name: importlib.import_module(f"hpc_es.{name}.extension").EXTENSION
        for name in folders
        if (root / name / FILE).is_file()
    }


@functools.cache
def _installed() -> tuple[Mapping[str, Installed], tuple[Unusable, ...]]:
    """Return the extensions of other distributions by name, and those that cannot be used."""
    from importlib.metadata import entry_points

    usable: dict[str, Installed] = {}
    unusable: list[Unusable] = []
    # A distribution that is found twice in the search path counts once.
    points = {(point.name, point.value): point for point in entry_points(group=GROUP)}
    for (name, value), point in sorted(points.items()):
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
            text = f"expected {value} to be an hpc_es.extend.Extension, found one of type {kind}"
            unusable.append(Unusable(name, text))
        elif name in {**own(), **usable}:
            unusable.append(Unusable(name, f"{value} has the name of another package's extension"))
        elif low := [key for key, number in extension.purposes.items() if number < FIRST_NUMBER]:
            text = f"expected numbers of purpose_number(...) as purposes, found another one for {low[0]}"
            unusable.append(Unusable(name, text))
        else:
            of = point.dist
            usable[name] = Installed(extension, of.name if of else name, of.version if of else "")
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
    """Return the modules whose environments belong to extensions."""
    return frozenset(module for _, extension in every() for module in extension.environments)


def load(name: str) -> Callable[..., Any]:
    """Import and return the function "module:name"."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function
