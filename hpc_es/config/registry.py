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
import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder, all_suffixes
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, Literal, TypeGuard
from zipimport import zipimporter

from hpc_es.core.errors import ConfigError, nearest
from hpc_es.core.paths import current_directory, expanded

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
    path = source_path(kind)
    return f"; a class in {path} is named {f'{kind}:Name'!r}" if path.endswith(f"{kind}.py") else ""


def _load_user_kind(package: str, kind: str) -> Any:
    """Import and return a custom kind; raise ConfigError if it cannot be imported or lacks a name."""
    module_name, _, name = kind.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the module may raise anything
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
        searched = f"{current_directory()}, the config's directory and the installed packages"
        raise ConfigError([(key, f"there is no module {module!r} (searched: {searched})")]) from None
    except (Exception, SystemExit) as error:  # of the user's code
        text = f"the module {module!r} fails when it is imported: {type(error).__name__}: {error}"
        raise ConfigError([(key, text)]) from error


# Directories of the user's modules.


def make_importable(*directories: Path | str) -> None:
    """Make modules in the current directory and in these directories importable, in addition to earlier ones.

    Outputs of runs and tunings, and directories directly within them, are left out.
    """
    candidates = [current_directory(), *(Path(directory).absolute() for directory in directories)]
    allowed = []
    for directory in filter(Path.is_dir, candidates):
        if not any(any(path.glob(mark)) for path in (directory, directory.parent) for mark in RUN_MARKS):
            allowed.append(str(directory))
    import_from(allowed)


def import_from(directories: Iterable[str]) -> None:
    """Make modules in these directories importable, which `make_importable` has checked on rank 0."""
    _import_directories[:] = dict.fromkeys(directories)
    # "" and "." do not count: they mean another directory as soon as code of the user changes the current one.
    sys.path += [directory for directory in _import_directories if directory not in sys.path]


def import_directories() -> tuple[str, ...]:
    """Return the directories of the last call of `make_importable`."""
    return tuple(_import_directories)


def search_path_text() -> str:
    """Return the directories that custom kinds are imported from, for an error message."""
    directories = ", ".join(import_directories())
    return f"{directories} and the Python path" if directories else "the Python path"


# Sources of the user's modules, which are found without importing them: on disk, in a .zip file on the path, or from
# any other importer that has the source. The module `__main__`, a script or a notebook, is running already.

MAIN = "__main__"


def source_files(kind: str) -> dict[str, bytes]:
    """Return the source of a custom kind by the name of its file: a module, or all .py files of its package.

    Compiled files take the place of missing .py files. {} if there is no source.
    """
    if kind.partition(":")[0] == MAIN:
        return _main_sources(kind.partition(":")[2])
    spec = _module_spec(kind)
    if spec is None:
        return {}
    if spec.submodule_search_locations is not None and spec.has_location:
        files = dict(_package_files(spec))
        return {name: content for name, content in files.items() if name.endswith(".py")} or files
    content = _module_content(spec)
    return {} if content is None else {Path(spec.origin or spec.name).name: content}


def source_path(kind: str) -> str:
    """Return the file of a custom kind, or that of its package, for messages; "" if it is not a file."""
    if kind.partition(":")[0] == MAIN:
        return str(getattr(sys.modules[MAIN], "__file__", ""))
    spec = _module_spec(kind)
    return str(spec.origin) if spec is not None and spec.has_location else ""


def is_installed(kind: str) -> bool:
    """Return whether a module belongs to Python or to an installed distribution."""
    spec = _module_spec(kind)
    if spec is None or spec.origin is None or not spec.has_location:
        return re.split("[.:]", kind)[0] in sys.stdlib_module_names
    import sysconfig

    origin = Path(spec.origin)
    return bool(INSTALLED & set(origin.parts)) or origin.is_relative_to(sysconfig.get_path("stdlib"))


def _module_spec(kind: str) -> ModuleSpec | None:
    """Return the spec of the first part of a module's name that is not a folder without __init__.py; None if missing.

    `importlib.util.find_spec` would import the packages above the module.
    """
    locations: list[str] | None = None
    parts = kind.partition(":")[0].split(".")
    for count in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:count]), locations)
        if spec is None or spec.origin is not None or spec.submodule_search_locations is None:
            return spec
        locations = list(spec.submodule_search_locations)
    return None


def _find_spec(name: str, locations: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if locations is not None and finder is PathFinder:
            spec = _find_in_folders(name, locations)
        else:
            spec = finder.find_spec(name, locations)
        if spec is not None:
            return spec
    return None


def _find_in_folders(name: str, locations: list[str]) -> ModuleSpec | None:
    """Return what `PathFinder` finds in these folders; for a folder in it, that one needs the imported parent."""
    portions: list[str] = []
    for entry in locations:
        importer: Any = pkgutil.get_importer(entry)
        spec: ModuleSpec | None = None if importer is None else importer.find_spec(name)
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        portions += spec.submodule_search_locations or ()
    if not portions:
        return None
    folder = ModuleSpec(name, None, is_package=True)
    folder.submodule_search_locations = portions
    return folder


def _module_content(spec: ModuleSpec) -> bytes | None:
    """Return the content of a module's file, or the source that its importer has; None without both."""
    loader: Any = spec.loader
    with contextlib.suppress(AttributeError, OSError):  # the loader has no files, or this one has gone
        if spec.has_location:
            content: bytes = loader.get_data(spec.origin)
            return content
    with contextlib.suppress(AttributeError, ImportError, OSError):
        source: str | None = loader.get_source(spec.name)
        return None if source is None else source.encode()
    return None


def _package_files(spec: ModuleSpec) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the code files of a package."""
    folder, suffixes = Path(str(spec.origin)).parent, tuple(all_suffixes())
    if isinstance(spec.loader, zipimporter):
        from zipfile import ZipFile  # few ranks need it

        inside = folder.relative_to(spec.loader.archive)
        with ZipFile(spec.loader.archive) as archive:
            for name in archive.namelist():
                if name.endswith(suffixes) and PurePosixPath(name).is_relative_to(inside):
                    yield PurePosixPath(name).relative_to(inside).as_posix(), archive.read(name)
        return
    for parent, _, names in os.walk(folder):
        if not parent.endswith("__pycache__"):
            for path in (Path(parent, name) for name in names if name.endswith(suffixes)):
                yield path.relative_to(folder).as_posix(), path.read_bytes()


def is_in_main(kind: str) -> bool:
    """Return whether this is a class or function of the running script or notebook, as far as its name tells."""
    module, _, name = kind.partition(":")
    found = getattr(sys.modules[MAIN], name.partition(".")[0], None)
    return module == MAIN and (name.startswith("<") or getattr(found, "__module__", None) == MAIN)


def _main_sources(name: str) -> dict[str, bytes]:
    """Return the source of the running script, or of a class or function of a notebook; {} if `name` is not in it."""
    if not is_in_main(f"{MAIN}:{name}"):
        return {}
    main: Any = sys.modules[MAIN]
    if file := getattr(main, "__file__", None):
        with contextlib.suppress(AttributeError, OSError):
            return {Path(file).name: main.__loader__.get_data(file)}
    # Of a class in a notebook Python finds the methods only.
    found = getattr(main, name.partition(".")[0], None)
    functions = [found, *vars(found).values()] if isinstance(found, type) else [found]
    parts = []
    for function in functions:
        with contextlib.suppress(TypeError, OSError):  # no function, or no source
            parts.append(inspect.getsource(function))  # type: ignore[arg-type]
    return {name: "".join(parts).encode()} if parts else {}


def source_hash(kind: str) -> str:
    """Return the SHA-256 of the source of a custom kind in hexadecimal, "" if there is no source.

    For a module it is the hash of the file; for a package that of the lines "<sha256>  <path>" of its files, sorted by
    path.
    """
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in source_files(kind).items()}
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


def config_path(text: str, directory: Path | None = None) -> Path:
    """Return a path of the config, relative to its directory, with ~ and the variables of this rank replaced.

    `directory` replaces that of the config. Raises ValueError for a variable that is not set.
    """
    return (config_directory() if directory is None else directory) / expanded(text)


def config_directory() -> Path:
    """Return the directory of the config, or the current one if none was set."""
    return _config_directory[0] if _config_directory else current_directory()
