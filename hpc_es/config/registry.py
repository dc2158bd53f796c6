"""Kinds of algorithms, tasks, policies and noise: the built-in ones, and custom kinds of the user.

A built-in kind is a module with `Options`, whose field `kind` defaults to the name of the kind, `build`, and `NEEDS`
(algorithms) or `OFFERS` (tasks).

A custom kind is a module, `kind: my_package.my_module`, or an object in a module, `kind: my_file:Name`, with the same
names (see `core/interfaces.py`); its `Options` are made with `hpc_es.extend.options`. Its module is imported from the
current directory or the directory of the config. Both are appended to sys.path, so that no file there replaces a
library, but never a run directory, which may come from somebody else. Rank 0 sends the directories to the other ranks,
and checkpoints record them for `hpc-es eval`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeGuard

from hpc_es.core.errors import ConfigError, nearest

Package = Literal["algorithms", "tasks", "policies", "noise"]

MODULES: Mapping[Package, Mapping[str, str]] = {
    "algorithms": {
        "actor_critic": "hpc_es.algorithms.actor_critic.algorithm",
        "ars": "hpc_es.algorithms.ars",
        "cma_es": "hpc_es.algorithms.cma_es",
        "cr_fm_nes": "hpc_es.algorithms.cr_fm_nes",
        "deep_ga": "hpc_es.algorithms.deep_ga",
        "es": "hpc_es.algorithms.es",
        "ga": "hpc_es.programs.ga",
        "novelty": "hpc_es.algorithms.novelty",
        "pgpe": "hpc_es.algorithms.pgpe",
        "policy_gradient": "hpc_es.programs.policy_gradient.algorithm",
        "random_search": "hpc_es.programs.random_search",
        "sep_cma_es": "hpc_es.algorithms.sep_cma_es",
        "snes": "hpc_es.algorithms.snes",
        "xnes": "hpc_es.algorithms.xnes",
    },
    "tasks": {
        "atari": "hpc_es.tasks.atari.task",
        "bandits": "hpc_es.bandits.task",
        "command": "hpc_es.tasks.command",
        "episodes": "hpc_es.tasks.episodes.task",
        "function": "hpc_es.tasks.function",
        "jax_episodes": "hpc_es.tasks.jax_episodes.task",
        "model": "hpc_es.tasks.model.task",
        "programs": "hpc_es.programs.task",
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


RUN_MARKS = ("checkpoints/*.h5", "checkpoint_*.h5", "trials.json", "repetition_*/config.yaml")
REQUIRED = {"algorithms": ("Options", "build", "NEEDS"), "tasks": ("Options", "build", "OFFERS")}
REQUIRED_ALWAYS = ("Options", "build")
INSTALLED = {"site-packages", "dist-packages"}  # directories of installed packages
_USER_KIND = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?", re.ASCII)
_import_directories: list[str] = []


def kinds(package: Package) -> tuple[str, ...]:
    """Return the sorted names of all built-in kinds."""
    return tuple(sorted(MODULES[package]))


def module(package: Package, kind: str) -> Any:
    """Import and return the module of a kind, or the object that a custom kind names.

    Raises ConfigError if there is no such kind.
    """
    if is_user_kind(kind):
        return _load_user_kind(package, kind)
    built_in = find(package, kind)
    if built_in is None:
        names = ", ".join(map(repr, kinds(package)))
        raise ConfigError([("kind", f"expected one of {names}, found {kind!r}{nearest(kind, kinds(package))}")])
    return built_in


def policy_builder(policy: str, algorithm: str) -> Any:
    """Return the function that builds a policy of this kind from its options and spaces for an algorithm."""
    kind = module("policies", policy)
    with_value = getattr(kind, "build_with_value", None) if module("algorithms", algorithm).NEEDS.value else None
    return kind.build if with_value is None else with_value


def find(package: Package, kind: object) -> ModuleType | None:
    """Import and return the module of a built-in kind; None if it is not one."""
    name = MODULES[package].get(kind) if isinstance(kind, str) else None
    return None if name is None else importlib.import_module(name)


def is_user_kind(kind: object) -> TypeGuard[str]:
    """Return whether this is the name of a custom kind, that is, has a dot or a colon; the kind need not exist."""
    if not isinstance(kind, str) or not _USER_KIND.fullmatch(kind) or not {".", ":"} & set(kind):
        return False
    return re.split("[.:]", kind)[0] != "hpc_es"


def class_hint(kind: object) -> str:
    """Return the end of a message that shows how to name a class, if `kind` is a module of the user, else ""."""
    if not isinstance(kind, str) or not kind.isidentifier() or is_installed(kind):
        return ""
    paths = [path for path in source_files(kind).values() if path.name == f"{kind}.py"]
    return f"; a class in {paths[0]} is named {f'{kind}:Name'!r}" if paths else ""


def _load_user_kind(package: str, kind: str) -> Any:
    """Import and return a custom kind; raise ConfigError if it cannot be imported or lacks a name."""
    module_name, _, name = kind.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module may raise anything
        last_line = traceback.format_exception_only(error)[-1].strip()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if "importlib" in frame.filename else f" ({frame.filename}, line {frame.lineno})"
        text = f"expected a module to import, found {module_name!r}: {last_line}{where}"
        raise ConfigError([("kind", f"{text}; looked in {search_path_text()}")]) from error
    if name and not hasattr(module, name):
        text = f"expected {name} in the module {module_name!r} ({getattr(module, '__file__', '')}), found no such name"
        raise ConfigError([("kind", text)])
    user_kind = getattr(module, name) if name else module
    required = REQUIRED.get(package, REQUIRED_ALWAYS)
    missing = [attribute for attribute in required if not hasattr(user_kind, attribute)]
    if missing:
        text = f"expected {', '.join(required)} in {kind!r}, found no {' and no '.join(missing)}"
        raise ConfigError([("kind", text)])
    options = user_kind.Options
    fields = dataclasses.fields(options) if dataclasses.is_dataclass(options) else ()
    if "kind" not in {field.name for field in fields}:
        text = "made with @options of hpc_es.extend, with a field kind"
        raise ConfigError([("kind", f"expected Options of {kind!r} to be {text}, found {options!r}")])
    return user_kind


# Functions of the user.


def import_function(text: str, key: str, example: str = "my_model:cost") -> Callable[..., object]:
    """Import the function `module:attribute` that a config key names; ConfigError if that is not possible."""
    module, _, attribute = text.partition(":")
    if not module or not attribute:
        raise ConfigError([(key, f"expected module:function such as {example}, found {text!r}")])
    function: object = _import_module(module, key)
    for name in attribute.split("."):
        if not hasattr(function, name):
            callables = [item for item in vars(function) if callable(getattr(function, item, None)) and item[0] != "_"]
            has = ", ".join(callables) or "no function"
            raise ConfigError([(key, f"there is no {name!r} in {module} (it has: {has})")])
        function = getattr(function, name)
    if not callable(function):
        raise ConfigError([(key, f"expected a function, found {text!r} to be of type {type(function).__name__}")])
    return function


def _import_module(module: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            text = f"the module {module!r} imports {error.name!r}, which is not installed"
            raise ConfigError([(key, text)]) from error
        searched = f"{Path.cwd()}, the config's directory and the installed packages"
        raise ConfigError([(key, f"there is no module {module!r} (searched: {searched})")]) from None
    except Exception as error:  # of the user's code
        text = f"the module {module!r} fails when it is imported: {type(error).__name__}: {error}"
        raise ConfigError([(key, text)]) from error


# Directories of the user's modules.


def make_importable(*directories: Path | str) -> None:
    """Make modules in the current directory and in these directories importable, in addition to earlier ones.

    Outputs of runs and tunings, and directories directly within them, are left out.
    """
    candidates = [Path.cwd(), *(Path(directory).absolute() for directory in directories)]
    allowed = []
    for directory in filter(Path.is_dir, candidates):
        if not any(any(path.glob(mark)) for path in (directory, directory.parent) for mark in RUN_MARKS):
            allowed.append(str(directory))
    import_from(allowed)


def import_from(directories: Iterable[str]) -> None:
    """Make modules in these directories importable, which `make_importable` has checked on rank 0."""
    _import_directories[:] = dict.fromkeys(directories)
    on_path = {str(Path(entry).absolute()) for entry in sys.path}  # "" is the current directory
    sys.path += [directory for directory in _import_directories if directory not in on_path]


def import_directories() -> tuple[str, ...]:
    """Return the directories of the last call of `make_importable`."""
    return tuple(_import_directories)


def search_path_text() -> str:
    """Return the directories that custom kinds are imported from, for an error message."""
    directories = ", ".join(import_directories())
    return f"{directories} and the Python path" if directories else "the Python path"


# Sources of the user's modules, which are found without importing them.


def source_files(kind: str) -> dict[str, Path]:
    """Return the source files of a custom kind by name: its module, or all .py files of its package; {} if missing."""
    spec = _module_spec(kind)
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return {origin.name: origin}
    files: dict[str, Path] = {}
    for folder, _, names in os.walk(origin.parent):
        inside = Path(folder).relative_to(origin.parent)
        files |= {(inside / name).as_posix(): Path(folder, name) for name in names if name.endswith(".py")}
    return files


def is_installed(kind: str) -> bool:
    """Return whether a module belongs to Python or to an installed distribution."""
    spec = _module_spec(kind)
    if spec is None or spec.origin is None:
        return kind.partition(":")[0] in sys.builtin_module_names
    import sysconfig

    origin = Path(spec.origin)
    return bool(INSTALLED & set(origin.parts)) or origin.is_relative_to(sysconfig.get_path("stdlib"))


def _module_spec(kind: str) -> ModuleSpec | None:
    """Return the spec of the first part of a module's name that is a file, or a package with one; None if missing."""
    locations = None
    parts = kind.partition(":")[0].split(".")
    for count in range(1, len(parts) + 1):
        specs = (finder.find_spec(".".join(parts[:count]), locations) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or (spec.origin is not None and spec.has_location):
            return spec
        locations = list(spec.submodule_search_locations or [])  # a directory without __init__.py
    return None


def source_hash(kind: str) -> str:
    """Return the SHA-256 of the source of a custom kind in hexadecimal, "" if there is no source.

    For a module it is the hash of the file; for a package that of the lines "<sha256>  <path>" of its files, sorted by
    path.
    """
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in source_files(kind).items()}
    if len(hashes) <= 1:
        return "".join(hashes.values())
    lines = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


# The directory of the config, to which relative paths in it refer.

_config_directory: list[Path] = []


def set_config_directory(directory: str | Path | None) -> None:
    """Set the directory of the config; None: the current one."""
    _config_directory[:] = [Path(directory or ".").resolve()]


@contextlib.contextmanager
def within_config_directory(directory: str | Path | None) -> Iterator[None]:
    """Set the directory of a config within the context, and restore the one before it."""
    before = [*_config_directory]
    set_config_directory(directory)
    try:
        yield
    finally:
        _config_directory[:] = before


def config_directory() -> Path:
    """Return the directory of the config, or the current one if none was set."""
    return _config_directory[0] if _config_directory else Path.cwd()
