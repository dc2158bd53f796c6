"""Sources of the user's modules: the files and hashes of what a custom kind or function is made of.

They are found without importing anything: on disk, in a .zip file on the path, or from any other
importer that has the source. The module `__main__`, a script or a notebook, is running already.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import io
import os
import pkgutil
import sys
import tokenize
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder, all_suffixes
from pathlib import Path, PurePosixPath
from typing import Any
from zipimport import zipimporter

from hpc_es.config.code_names import is_module_name
from hpc_es.config.user_code import (
    LIBRARIES,
    CheckedFinder,
    ModuleFile,
    is_installed_in,
    read_code,
)

MAIN = "__main__"
MOST_IMPORTS = 10_000  # names that a source file imports
_ENDS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_SKIPPED = (tokenize.NL, tokenize.COMMENT, tokenize.ENCODING)
_imports: dict[tuple[str, str], list[str]] = {}  # by SHA-256 of a file, and package


def source_files(kind: str) -> dict[str, bytes]:
    """Return the source of a custom kind by the name of its file.

    It is a module, or all .py files of its package. Compiled files take the place of missing .py
    files. {} if there is no source.
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
    """Return the file of a custom kind, or that of its package, for messages.

    "" if it is not a file.
    """
    if kind.partition(":")[0] == MAIN:
        return str(getattr(sys.modules[MAIN], "__file__", ""))
    spec = _module_spec(kind)
    return str(spec.origin) if spec is not None and spec.has_location else ""


def is_installed(kind: str) -> bool:
    """Return whether a module belongs to Python or to an installed distribution."""
    spec = _module_spec(kind)
    if spec is None or spec.origin is None or not spec.has_location:
        return spec is not None and spec.origin in ("built-in", "frozen")
    return is_installed_in(str(Path(spec.origin).parent))


def has_module(module: str) -> bool:
    """Return whether a module, or a package that it is in, can be imported."""
    if not is_module_name(module):
        return False
    return module in sys.modules or _module_spec(module) is not None


def _module_spec(kind: str) -> ModuleSpec | None:
    """Return the spec of the first part of a module's name that is no mere folder.

    That is a folder without __init__.py. None if it is missing. `importlib.util.find_spec` would
    import the packages above the module.
    """
    for spec in _specs(kind.partition(":")[0]):
        if spec.origin is not None or spec.submodule_search_locations is None:
            return spec
    return None


def _specs(module: str) -> Iterator[ModuleSpec]:
    """Yield the specs of the packages that a module is in, from the top, and its own.

    As far as they exist.
    """
    locations: list[str] | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:count]), locations)
        if spec is None:
            return
        yield spec
        if spec.submodule_search_locations is None:
            return
        locations = list(spec.submodule_search_locations)


def _find_spec(name: str, locations: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if isinstance(finder, CheckedFinder):  # of a run that was opened before
            continue
        if locations is not None and finder is PathFinder:
            spec = _find_in_folders(name, locations)
        else:
            spec = finder.find_spec(name, locations)
        if spec is not None:
            return spec
    return None


def _find_in_folders(name: str, locations: list[str]) -> ModuleSpec | None:
    """Return what `PathFinder` finds in these folders.

    For a folder in it, that one needs the imported parent.
    """
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
    """Return the content of a module's file, or the source that its importer has, or None."""
    loader: Any = spec.loader
    # the loader has no files, or this one has gone
    with contextlib.suppress(AttributeError, OSError):
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
    waiting = [folder]
    while waiting:  # os.walk calls itself for each level before Python 3.12
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                    waiting.append(path)
                elif entry.name.endswith(suffixes):
                    with contextlib.suppress(OSError):  # what cannot be read as code cannot run
                        yield path.relative_to(folder).as_posix(), read_code(path)


def is_in_main(kind: str) -> bool:
    """Whether this is a class or function of the running script or notebook.

    Its name tells, as far as it can.
    """
    module, _, name = kind.partition(":")
    found = getattr(sys.modules[MAIN], name.partition(".")[0], None)
    return module == MAIN and (name.startswith("<") or getattr(found, "__module__", None) == MAIN)


def _main_sources(name: str) -> dict[str, bytes]:
    """Return the source of the running script, or of a class or function of a notebook.

    {} if `name` is not in it.
    """
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

    For a module it is the hash of the file; for a package that of the lines "<sha256>  <path>" of
    its files, sorted by path.
    """
    hashes = {
        name: hashlib.sha256(content).hexdigest() for name, content in source_files(kind).items()
    }
    if len(hashes) <= 1:
        return "".join(hashes.values())
    lines = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def source_hashes(kinds: Iterable[str]) -> dict[str, str]:
    """Return `source_hash` of each; what is in one package is read once."""
    by_place: dict[object, str] = {}
    found = {}
    for kind in kinds:
        spec = None if kind.partition(":")[0] == MAIN else _module_spec(kind)
        place = kind if spec is None else (spec.name, spec.origin)
        if place not in by_place:
            by_place[place] = source_hash(kind)
        found[kind] = by_place[place]
    return found


# All files that would run.


def code_modules(names: Iterable[str]) -> dict[str, ModuleFile]:
    """Return the modules that would run for these modules or objects, by name.

    Objects are `module:object` names. These are the modules, the packages that they are in, and
    what these import, as far as import statements tell. Installed packages, hpc_es and what is in a
    .zip file are left out.
    """
    found: dict[str, ModuleFile] = {}
    seen, waiting = {MAIN}, [name.partition(":")[0] for name in names]
    while waiting:
        module = waiting.pop()
        if module in seen or module.partition(".")[0] in {*LIBRARIES, *sys.stdlib_module_names}:
            continue
        seen.add(module)
        for spec in _specs(module):
            seen.add(spec.name)
            if not spec.has_location or isinstance(spec.loader, zipimporter):
                continue
            path = Path(str(spec.origin))
            if is_installed_in(str(path.parent)):
                continue
            with contextlib.suppress(OSError):
                content = read_code(path)
                is_package = spec.submodule_search_locations is not None
                digest = hashlib.sha256(content).hexdigest()
                found[spec.name] = ModuleFile(str(path), digest, is_package)
                package = spec.name if is_package else spec.name.rpartition(".")[0]
                if path.suffix == ".py":
                    if (digest, package) not in _imports:
                        _imports[digest, package] = _imported(content, package)
                    waiting += _imports[digest, package]
    return found


def _imported(content: bytes, package: str) -> list[str]:
    """Return the modules that a source file of this package imports.

    Names that may be modules are among them. Only import statements are parsed: a parser takes
    minutes for some small files, which are not trusted yet. What it does not find may not run.
    """
    found: list[str] = []
    for node in _import_statements(content):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            )
            module = ".".join(filter(None, [*above, node.module]))
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        if len(found) >= MOST_IMPORTS:
            break
    return [name for name in found if name]


def _import_statements(content: bytes) -> Iterator[ast.stmt]:
    """Yield the import statements of a source file, as far as it can be read."""
    statement: list[str] | None = []  # the tokens since it began; None: it is no import
    try:
        for kind, text, *_ in tokenize.tokenize(io.BytesIO(content).readline):
            if kind in _SKIPPED:
                continue
            if kind in _ENDS or (kind == tokenize.OP and text in (";", ":")):
                if statement:
                    with contextlib.suppress(SyntaxError, ValueError):
                        yield from ast.parse(" ".join(statement)).body
                statement = []
            elif statement == [] and text not in ("import", "from"):
                statement = None
            elif statement is not None:
                statement.append(text)
    except (SyntaxError, tokenize.TokenError, ValueError):  # as the import will say
        return
