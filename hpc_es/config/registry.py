"""Kinds of algorithms, tasks, policies and noise: the built-in ones, those of extensions, and
custom kinds of the user.

A built-in kind is a module with `Options`, whose field `kind` defaults to the name of the kind,
`build`, and `NEEDS` (algorithms) or `OFFERS` (tasks). Those of an extension (`core.extensions`) are
named like built-in ones, and have the same.

A custom kind is a module, `kind: my_package.my_module`, or an object in a module, `kind:
my_file:Name`, with the same names (see `core/interfaces.py`); its `Options` are made with
`hpc_es.extend.options`. Its module is imported from the current directory or the directory of the
config (`config.user_code`). Rank 0 sends the directories to the other ranks, and checkpoints record
them for `hpc-es eval`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeGuard

from hpc_es.config import extensions
from hpc_es.config.code_names import OWN, CodeName
from hpc_es.config.source_code import is_installed, source_path
from hpc_es.config.user_code import search_path_text
from hpc_es.core.errors import ConfigError, UserError, nearest
from hpc_es.core.paths import current_directory, expanded, followed

Package = Literal["algorithms", "tasks", "policies", "noise"]

MODULES: Mapping[Package, Mapping[str, str]] = {
    "algorithms": {
        "ars": "hpc_es.algorithms.ars",
        "cma_es": "hpc_es.algorithms.cma_es",
        "cma_mae": "hpc_es.algorithms.cma_mae",
        "cma_me": "hpc_es.algorithms.cma_me",
        "como_cma_es": "hpc_es.algorithms.como_cma_es",
        "cr_fm_nes": "hpc_es.algorithms.cr_fm_nes",
        "deep_ga": "hpc_es.algorithms.deep_ga",
        "dms": "hpc_es.algorithms.dms",
        "es": "hpc_es.algorithms.es",
        "map_elites": "hpc_es.algorithms.map_elites",
        "novelty": "hpc_es.algorithms.novelty",
        "nsga2": "hpc_es.algorithms.nsga2",
        "pgpe": "hpc_es.algorithms.pgpe",
        "sep_cma_es": "hpc_es.algorithms.sep_cma_es",
        "snes": "hpc_es.algorithms.snes",
        "random": "hpc_es.algorithms.random",
        "xnes": "hpc_es.algorithms.xnes",
    },
    "tasks": {
        "atari": "hpc_es.tasks.atari.task",
        "command": "hpc_es.tasks.functions.command",
        "episodes": "hpc_es.tasks.episodes.task",
        "function": "hpc_es.tasks.functions.function",
        "jax_episodes": "hpc_es.tasks.jax_episodes.task",
        "model": "hpc_es.tasks.model.task",
    },
    "policies": {
        "cnn": "hpc_es.policies.cnn",
        "lstm": "hpc_es.policies.lstm",
        "mlp": "hpc_es.policies.mlp",
        "network": "hpc_es.policies.network",
    },
    "noise": {
        "counter": "hpc_es.noise.counter",
        "portable": "hpc_es.noise.portable",
        "table": "hpc_es.noise.table",
    },
}


REQUIRED = {"algorithms": ("Options", "build", "NEEDS"), "tasks": ("Options", "build", "OFFERS")}
REQUIRED_ALWAYS = ("Options", "build")
METHODS = frozenset(("problems", "warnings"))  # of options; no option has these names
_USER_KIND = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?", re.ASCII)


def modules(package: Package) -> dict[str, str]:
    """Return the modules of all kinds, built in or of extensions, by the names of the kinds."""
    return {**extensions.modules(package), **MODULES[package]}


def kinds(package: Package) -> tuple[str, ...]:
    """Return the sorted names of all kinds, built in or of extensions."""
    return tuple(sorted(modules(package)))


def is_known(package: Package, kind: object) -> TypeGuard[str]:
    """Return whether a kind is built in or of an extension; it is not imported, so that it may be
    broken.
    """
    if not isinstance(kind, str) or is_user_kind(kind):
        return False
    return _is_own(package, kind) or extensions.owner(package, kind) is not None


def _is_own(package: Package, kind: object) -> bool:
    """Return whether a kind belongs to this distribution."""
    return kind in MODULES[package] or any(
        kind in extension.named(package) for extension in extensions.own().values()
    )


def package_of(package: Package, kind: object) -> extensions.Installed | None:
    """Return the installed package to which a kind belongs; None for kinds of hpc_es and custom
    kinds.
    """
    if _is_own(package, kind) or is_user_kind(kind):
        return None
    return extensions.owner(package, kind)


def is_own_code(text: str) -> bool:
    """Return whether this is the name of an environment or wrapper of hpc_es or an extension."""
    return text in OWN or text in extensions.environments()


def module(package: Package, kind: str) -> Any:
    """Import and return the module of a kind, or the object that a custom kind names.

    Raises ConfigError if there is no such kind.
    """
    if is_user_kind(kind):
        return _load_user_kind(package, kind)
    built_in = find(package, kind)
    if built_in is None:
        names = ", ".join(map(repr, kinds(package)))
        near = nearest(kind, kinds(package)) + extensions.unusable_text()
        raise ConfigError([("kind", f"expected one of {names}, found {kind!r}{near}")])
    return built_in


def built_in(package: Package, section: object) -> Any:
    """Return the module of the kind in a section of a config as plain data.

    None if it is not built in, or cannot be imported. Nothing else is imported.
    """
    kind = section.get("kind") if isinstance(section, dict) else None
    if not isinstance(kind, str) or kind not in kinds(package):
        return None
    try:
        return module(package, kind)
    except UserError:
        return None


def policy_builder(policy: str, algorithm: str) -> Any:
    """Return the function that builds a policy of this kind, from options and spaces.

    It is the one for this algorithm.
    """
    kind = module("policies", policy)
    with_value = (
        getattr(kind, "build_with_value", None)
        if module("algorithms", algorithm).NEEDS.value
        else None
    )
    return kind.build if with_value is None else with_value


def find(package: Package, kind: object) -> Any:
    """Import and return the module of a kind that is built in or of an extension; None if it is
    neither.

    Raises ConfigError if an extension's module cannot be imported or lacks a name.
    """
    if not isinstance(kind, str) or is_user_kind(kind):
        return None
    if kind in MODULES[package]:
        return importlib.import_module(MODULES[package][kind])
    try:
        name = extensions.module_name(package, kind)
    except UserError as error:
        raise ConfigError([("kind", str(error))]) from None
    return None if name is None else _load_extension_kind(package, kind, name)


def _load_extension_kind(package: Package, kind: str, name: str) -> Any:
    """Import and return the kind of an extension; those of hpc_es itself are as they must be."""
    if name.startswith("hpc_es."):
        return importlib.import_module(name)
    found = _load_user_kind(package, name)
    named = {field.name: field.default for field in dataclasses.fields(found.Options)}["kind"]
    if named != kind:
        raise ConfigError(
            [
                (
                    "kind",
                    f"expected Options of {name!r} with {kind!r} as the default of kind, "
                    f"found {named!r}",
                )
            ]
        )
    return found


def is_user_kind(kind: object) -> TypeGuard[str]:
    """Whether this is the name of a custom kind, that is, has a dot or a colon.

    The kind need not exist.
    """
    if not isinstance(kind, str) or not _USER_KIND.fullmatch(kind) or not {".", ":"} & set(kind):
        return False
    return re.split("[.:]", kind)[0] != "hpc_es"


def unknown_hint(kind: object) -> str:
    """Return the end of a message about an unknown kind: how to name a class, if `kind` is a module
    of the user, and which packages are left out.
    """
    return _class_hint(kind) + extensions.unusable_text()


def _class_hint(kind: object) -> str:
    if not isinstance(kind, str) or not kind.isidentifier() or is_installed(kind):
        return ""
    path = source_path(kind)
    return f"; a class in {path} is named {f'{kind}:Name'!r}" if path.endswith(f"{kind}.py") else ""


def _load_user_kind(package: str, kind: str) -> Any:
    """Import and return a custom kind.

    Raises:
        ConfigError: it cannot be imported, or lacks a name.
    """
    module_name, _, name = kind.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the module may raise anything
        last_line = traceback.format_exception_only(error)[-1].strip()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if "importlib" in frame.filename else f" ({frame.filename}, line {frame.lineno})"
        raise ConfigError(
            [
                (
                    "kind",
                    f"expected a module to import, found {module_name!r}: {last_line}{where}; looked "
                    f"in {search_path_text()}",
                )
            ]
        ) from error
    if name and not hasattr(module, name):
        raise ConfigError(
            [
                (
                    "kind",
                    f"expected {name} in the module {module_name!r} "
                    f"({getattr(module, '__file__', '')}), found no such name",
                )
            ]
        )
    user_kind = getattr(module, name) if name else module
    required = REQUIRED.get(package, REQUIRED_ALWAYS)
    missing = [attribute for attribute in required if not hasattr(user_kind, attribute)]
    if missing:
        raise ConfigError(
            [
                (
                    "kind",
                    f"expected {', '.join(required)} in {kind!r}, found no {' and no '.join(missing)}",
                )
            ]
        )
    options = user_kind.Options
    fields = dataclasses.fields(options) if dataclasses.is_dataclass(options) else ()
    names = {field.name for field in fields}
    if "kind" not in names:
        raise ConfigError(
            [
                (
                    "kind",
                    f"expected Options of {kind!r} to be made with @options of hpc_es.extend, with a "
                    f"field kind, found {options!r}",
                )
            ]
        )
    if wrong := METHODS & names:
        raise ConfigError(
            [
                (
                    "kind",
                    f"expected Options of {kind!r} without the field {' and '.join(sorted(wrong))}, "
                    "which are methods of options: give the field another name",
                )
            ]
        )
    return user_kind


# Functions of the user.


def import_function(text: str, key: str, example: str = "my_model:cost") -> Callable[..., object]:
    """Import the function `module:attribute` that a config key names.

    Raises:
        ConfigError: that is not possible.
    """
    try:
        named = CodeName.of(text)
        steps = named.steps()
    except ValueError:
        raise ConfigError(
            [(key, f"expected module:function such as {example}, found {text!r}")]
        ) from None
    module = named.module
    function: object = _import_module(module, key)
    for name in steps:
        if not hasattr(function, name):
            callables = [
                item
                for item in vars(function)
                if callable(getattr(function, item, None)) and item[0] != "_"
            ]
            has = ", ".join(callables) or "no function"
            raise ConfigError([(key, f"there is no {name!r} in {module} (it has: {has})")])
        function = getattr(function, name)
        try:
            named.require_inside(function, name)
        except ValueError as error:
            raise ConfigError([(key, f"found {text!r}, where {error}")]) from None
    if not callable(function):
        raise ConfigError(
            [(key, f"expected a function, found {text!r} to be of type {type(function).__name__}")]
        )
    return function


def _import_module(module: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                [(key, f"the module {module!r} imports {error.name!r}, which is not installed")]
            ) from error
        raise ConfigError(
            [
                (
                    key,
                    f"there is no module {module!r} (searched: {current_directory()}, the config's "
                    "directory and the installed packages)",
                )
            ]
        ) from None
    except (Exception, SystemExit) as error:  # of the user's code
        raise ConfigError(
            [
                (
                    key,
                    f"the module {module!r} fails when it is imported: {type(error).__name__}: {error}",
                )
            ]
        ) from error


# The directory of the config, to which relative paths in it refer.

_config_directory: list[Path] = []


def set_config_directory(directory: str | Path | None) -> None:
    """Set the directory of the config; None: the current one."""
    _config_directory[:] = [followed(directory or ".")]


@contextlib.contextmanager
def within_config_directory(directory: str | Path | None) -> Iterator[None]:
    """Set the directory of a config within the context, and restore the one before it."""
    before = [*_config_directory]
    set_config_directory(directory)
    try:
        yield
    finally:
        _config_directory[:] = before


def config_path(text: str, directory: Path | None = None) -> Path:
    """Return a path of the config, relative to its directory.

    ~ and the variables of this rank are replaced. `directory` replaces that of the config.

    Raises:
        ValueError: a variable is not set.
    """
    return (config_directory() if directory is None else directory) / expanded(text)


def config_directory() -> Path:
    """Return the directory of the config, or the current one if none was set."""
    return _config_directory[0] if _config_directory else current_directory()
