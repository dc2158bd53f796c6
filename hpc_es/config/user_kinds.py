"""Where modules of the user's own are looked for: the current directory and the config's, after Python's own places.

Appended to sys.path, never put first, so that no file there stands in for a library; and never a run directory of ours,
which may have come from elsewhere. Rank 0 tells the others, and the checkpoint remembers the places for `hpc-es eval`.


Kinds of the user's own: `kind: my_package.my_module`, or `kind: my_file:Name`.

The first is a module, the second an object in a module, such as a class that is never instantiated. Either has what a
kind of ours has (see `core/interfaces.py`): `Options`, made with `hpc_es.extend.options`, whose field `kind` may have
any type and default; `build`; and NEEDS (an algorithm) or OFFERS (a task).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from hpc_es.core.errors import ConfigError

RUN_MARKS = ("checkpoints/*.h5", "checkpoint_*.h5", "trials.json", "repetition_*/config.yaml")
_used: list[str] = []


def use(*directories: Path | str) -> None:
    """Make the modules in the current directory and in these importable; those used before are so still."""
    wanted = [Path.cwd(), *(Path(directory).absolute() for directory in directories)]
    fit = [directory for directory in wanted if directory.is_dir() and not is_of_a_run(directory)]
    _used[:] = dict.fromkeys(map(str, fit))
    there = {str(Path(entry).absolute()) for entry in sys.path}  # "" is the current directory
    sys.path += [directory for directory in _used if directory not in there]


def used() -> tuple[str, ...]:
    """Return the directories of the last `use`."""
    return tuple(_used)


def is_of_a_run(directory: Path) -> bool:
    """Return whether it is the output of a run or tuning, or directly within one."""
    return any(any(place.glob(mark)) for place in (directory, directory.parent) for mark in RUN_MARKS)


def described(directories: Iterable[str] | None = None) -> str:
    """Return the places in words, for an error."""
    return " and ".join([*filter(None, [", ".join(used() if directories is None else directories)]), "the Python path"])


REQUIRED = {"algorithms": ("Options", "build", "NEEDS"), "tasks": ("Options", "build", "OFFERS")}
ALWAYS = ("Options", "build")
INSTALLED = {"site-packages", "dist-packages"}  # folders of what is installed
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?", re.ASCII)


def is_foreign(kind: Any) -> bool:
    """Return whether this names a kind of the user's own, be it there or not: it has a dot or a colon."""
    if not isinstance(kind, str) or not _NAME.fullmatch(kind) or not {".", ":"} & set(kind):
        return False
    return re.split("[.:]", kind)[0] != "hpc_es"


def hint(kind: Any) -> str:
    """Return how to name a class in the user's module of this name, as the end of a message; "" if there is none."""
    if not isinstance(kind, str) or not kind.isidentifier() or is_installed(kind):
        return ""
    found = [path for path in files(kind).values() if path.name == f"{kind}.py"]
    return f"; a class in {found[0]} is named {f'{kind}:Name'!r}" if found else ""


def load(package: str, kind: str) -> Any:
    """Import a foreign kind; ConfigError says what was looked for, and where."""
    module, _, name = kind.partition(":")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # around a module that is not ours
        text = f"expected a module to import, found {module!r}: {_last_line(error)}"
        raise ConfigError([("kind", f"{text}; looked in {described()}")]) from error
    if name and not hasattr(found, name):
        text = f"expected {name} in the module {module!r} ({getattr(found, '__file__', '')}), found no such name"
        raise ConfigError([("kind", text)])
    found = getattr(found, name) if name else found
    missing = [each for each in REQUIRED.get(package, ALWAYS) if not hasattr(found, each)]
    if missing:
        text = f"expected {', '.join(REQUIRED.get(package, ALWAYS))} in {kind!r}, found no {' and no '.join(missing)}"
        raise ConfigError([("kind", text)])
    fields = dataclasses.fields(found.Options) if dataclasses.is_dataclass(found.Options) else ()
    if "kind" not in {field.name for field in fields}:
        text = "made with @options of hpc_es.extend, with a field kind"
        raise ConfigError([("kind", f"expected Options of {kind!r} to be {text}, found {found.Options!r}")])
    return found


def _last_line(error: Exception) -> str:
    """Return the error as Python's last line has it, and where it was raised, if that is not in the import itself."""
    text = traceback.format_exception_only(error)[-1].strip()
    place = traceback.extract_tb(error.__traceback__)[-1]
    return text if "importlib" in place.filename else f"{text} ({place.filename}, line {place.lineno})"


def files(kind: str) -> dict[str, Path]:
    """Return the source files of a foreign kind by name: its module, or all .py files of its package; {} if not there.

    Nothing of it is imported.
    """
    spec = _origin(kind)
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return {origin.name: origin}
    return {path.relative_to(origin.parent).as_posix(): path for path in origin.parent.rglob("*.py")}


def is_installed(kind: str) -> bool:
    """Return whether a module is Python's own or one of an installed distribution; it is not imported."""
    spec = _origin(kind)
    if spec is None or spec.origin is None:
        return kind.partition(":")[0] in sys.builtin_module_names
    origin = Path(spec.origin)
    return bool(INSTALLED & set(origin.parts)) or origin.is_relative_to(sysconfig.get_path("stdlib"))


def _origin(kind: str) -> ModuleSpec | None:
    """Return where the first part of a module's name lies that is no mere folder; None where there is none."""
    locations = None
    parts = kind.partition(":")[0].split(".")
    for count in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:count]), locations)
        if spec is None or (spec.origin is not None and spec.has_location):
            return spec
        locations = list(spec.submodule_search_locations or [])  # a folder without __init__.py
    return None


def _spec(name: str, locations: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, locations)
        if spec is not None:
            return spec
    return None


def source_hash(kind: str) -> str:
    """Return the SHA-256 of the source, in hexadecimal; "" where there is none.

    Of a module as sha256sum has it; of a package that of the lines "<sha256>  <path>" of its files, sorted by path.
    """
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files(kind).items()}
    if len(hashes) <= 1:
        return "".join(hashes.values())
    lines = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()
