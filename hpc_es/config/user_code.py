"""The directories that code of the user is imported from, and how its modules are loaded.

The directories are appended to sys.path, so that no file there replaces a library that is
installed; the libraries of hpc_es are not looked for there even if they are missing. A module there
is compiled from its source, whatever compiled file lies beside it: what runs is what
`config.source_code` hashes. If only some files may run (`Limits`), as for a run of somebody else
(`storage.trust`), each is checked before it is executed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from hpc_es.core import search_path
from hpc_es.core.errors import UserError, as_command
from hpc_es.core.ownership import stranger
from hpc_es.core.paths import current_directory
from hpc_es.core.run_files import owner

RUN_MARKS = ("checkpoints/*.h5", "checkpoint_*.h5", "trials.json", "repetition_*/config.yaml")
_LIBRARIES = """Box2D PIL ale_py annotated_types array_api_compat attr brax bsuite chex cloudpickle craftax cv2
deepmind_lab dm_control dm_env equinox farama_notifications flax gest_api glfw gym gymnasium
gymnax h5py haiku hpc_es imageio imageio_ffmpeg jax jax_cuda12_pjrt jax_cuda12_plugin
jax_cuda13_pjrt jax_cuda13_plugin jax_plugins jaxlib jumanji keras libtpu lz4 matplotlib
meltingpot ml_collections mlflow moviepy mpi4py mujoco mujoco_playground mujoco_py numba numpy
nvidia onnx optax optuna orbax pettingzoo pydantic pygame pyspiel rich safetensors scipy shimmy
shtab tensorboard tensorflow threadpoolctl torch transformers typing_extensions wandb yaml"""
LIBRARIES = frozenset(_LIBRARIES.split())  # what hpc_es imports, and what these libraries look for
_PACKAGE = str(Path(__file__).parents[1])
_INSTALLED = ("site-packages", "dist-packages")

MOST_SOURCE, MOST_COMPILED = 1 << 22, 1 << 29  # bytes of a file of code


@dataclass(frozen=True)
class Limits:
    """Which files may run: those with these keys (`file_key`).

    Maybe also those that nobody else may have written.
    """

    keys: frozenset[str] = frozenset()
    own: bool = False

    def refusal(self, path: str, digest: str) -> str:
        """Return why a file with this SHA-256 may not run; "" if it may."""
        if file_key(path, digest) in self.keys:
            return ""
        reason = stranger(Path(path)) if self.own else ""
        if self.own and not reason:
            return ""
        return f"is not among its trusted files{reason and f', and somebody else may have written it ({reason})'}"


class ModuleFile(NamedTuple):
    """The file of a module, as it was checked."""

    path: str
    digest: str  # SHA-256
    is_package: bool


NOTHING = Limits()

_directories: dict[str, Limits | None] = {}  # and what may run there; None: all files
_current: list[str] = []  # the directories of the last call
_appended = search_path.added  # to sys.path
_checked: dict[str, ModuleFile] = {}  # modules of the last run that was opened, by name
_executed: dict[str, str] = {}  # SHA-256 of the files that were imported from there
_of_code: set[str] = set()  # what that code has put on sys.path, within these directories
_before_code: list[set[str]] = []  # sys.path as it was before each module that is being executed


# The directories.


def make_importable(*directories: Path | str) -> None:
    """Make the user's own modules in the current directory and in these directories importable."""
    _checked.clear()  # runs that were opened before say nothing about what this user starts
    import_from(importable(*directories))
    import_only(None)


def add_importable(directory: Path | str, limits: Limits | None = None) -> None:
    """Make modules in one more directory importable; which files may run in known ones stays as it
    is.

    In directories that are new, which may include the current one, files within these limits may
    run (None: all).
    """
    directories = importable(*import_directories(), directory)
    for path in (str(Path(directory).absolute()), *directories):
        new = os.path.normpath(path)
        if new not in _directories and (within := _limits(new) or limits) is not None:
            _directories[new] = within
    import_from(directories)


def importable(*directories: Path | str) -> list[str]:
    """Return the current directory and those of these that exist, as absolute paths.

    Outputs of runs and tunings, and directories directly within them, are left out: they may come
    from somebody else.
    """
    candidates = [current_directory(), *(Path(directory).absolute() for directory in directories)]
    allowed = []
    for directory in filter(_is_directory, candidates):
        if not (_has_runs(directory, directory) or _has_runs(directory.parent, directory)):
            allowed.append(str(directory))
    return allowed


def _has_runs(place: Path, directory: Path) -> bool:
    """Return whether a place, a directory or the one above it, has runs.

    Only those of the owner of one of the two count: everybody writes into /tmp.
    """
    owners = {directory.stat().st_uid, place.stat().st_uid}
    return any(owner(path) in owners for mark in RUN_MARKS for path in place.glob(mark))


def _is_directory(path: Path | str) -> bool:
    # Path.is_dir raises errors for names that are too long, and below what is private to others
    return os.path.isdir(path)  # noqa: PTH112


def import_from(directories: Iterable[str]) -> None:
    """Make modules in these directories importable, which `importable` returned on rank 0."""
    # of two spellings one would have no limits
    _current[:] = dict.fromkeys(map(os.path.normpath, directories))
    # of an interactive Python, whose user imports from there
    own = str(current_directory()) if "" in sys.path else ""
    for directory in _current:
        # "" and "." do not count: code of the user may change the current directory. Archives
        # belong on PYTHONPATH.
        if directory not in sys.path and _is_directory(directory):
            sys.path.append(directory)
            _appended.update({directory} - {own})
        _directories.setdefault(directory, None)
    _install()


def installed_path() -> list[str]:
    """Return the part of sys.path in which packages are installed: without the directories with
    code of the user, and without that of an interactive Python.
    """
    return [path for path in sys.path if path and os.path.normpath(path) not in _directories]


def import_only(limits: Limits | None) -> None:
    """Let only these files run that are imported from the present directories; None: all files.

    What the user has put on sys.path stays as it is.
    """
    added = [
        directory for directory in _current if directory in _appended or directory not in sys.path
    ]
    _directories.update(dict.fromkeys(added, limits))


def import_as_checked(modules: Mapping[str, ModuleFile]) -> None:
    """Import these modules from these files as they were checked, wherever they are.

    In directories of the user's own Python path, others may write too, and Python would read
    compiled files there.
    """
    _checked.update(modules)
    if not any(isinstance(finder, CheckedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, CheckedFinder())


@contextlib.contextmanager
def undone_if_refused() -> Iterator[None]:
    """Restore the import settings if the block raises UserError.

    These are the directories, which files may run there, and sys.path.
    """
    before = {**_directories}, [*_current], {*_appended}, [*sys.path]
    try:
        yield
    except UserError:
        _directories.clear()
        _appended.clear()
        _of_code.intersection_update(before[3])
        _directories.update(before[0])
        _appended.update(before[2])
        _current[:], sys.path[:] = before[1], before[3]
        raise


@contextlib.contextmanager
def before_code() -> Iterator[None]:
    """Leave out of sys.path, within the block, what code of the user has put there: where code is
    found before it runs.
    """
    before = [*sys.path]
    sys.path[:] = [path for path in before if path not in _of_code]
    try:
        yield
    finally:
        sys.path[:] = before


def import_directories() -> tuple[str, ...]:
    """Return the directories of the last call of `make_importable`."""
    return tuple(_current)


def search_path_text() -> str:
    """Return the directories that custom kinds are imported from, for an error message."""
    directories = ", ".join(import_directories())
    return f"{directories} and the Python path" if directories else "the Python path"


def imported_files() -> dict[Path, str]:
    """Return the files of modules that were imported from the present directories.

    The values are the SHA-256 of what was executed, which a file may no longer have.
    """
    return {Path(path): digest for path, digest in _executed.items() if _is_present(path)}


def other_modules() -> list[Path]:
    """Return the files there of modules that something else than `_Finder` has imported."""
    files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    return [
        Path(file)
        for file in files
        if file is not None and file not in _executed and _is_present(file)
    ]


def _is_present(path: str) -> bool:
    """Whether a file is in one of the present directories.

    Those of installed packages there do not count.
    """
    return _owner(str(Path(path).parent)) in _current


def is_installed_in(directory: str) -> bool:
    """Whether this directory, or one above it, has installed packages of this Python."""
    named = [
        path
        for path in sys.path
        if os.path.basename(path) in _INSTALLED and path not in _appended and not _is_of_code(path)  # noqa: PTH119
    ]
    return any(_is_within(directory, site) for site in (*_site_directories(), *named))


def is_of_user(file: str) -> bool:
    """Return whether the file of a frame of a traceback is neither of hpc_es nor installed."""
    directory = os.path.dirname(file)  # noqa: PTH120
    is_file = not file.startswith("<")  # of text that Python executes, such as <frozen importlib>
    return is_file and not (_is_within(directory, _PACKAGE) or is_installed_in(directory))


@functools.cache
def _site_directories() -> tuple[str, ...]:
    import site

    users = (site.getusersitepackages(),) if site.ENABLE_USER_SITE else ()
    return str(Path(os.__file__).parent), *site.getsitepackages(), *users


def _is_within(path: str, directory: str) -> bool:
    path = os.path.normpath(path)
    return path == directory or path.startswith(directory.rstrip("/") + "/")


# The loading of their modules.


def _install() -> None:
    """Let Python load the modules of these directories and their folders by `_Finder`.

    Libraries look there for nothing else.
    """
    from importlib import metadata  # few commands need it

    search_path.hide_distributions(metadata)
    search_path.hide_portions()
    if _importer not in sys.path_hooks:
        sys.path_hooks.insert(0, _importer)
    for path, finder in [*sys.path_importer_cache.items()]:
        if not isinstance(finder, _Finder) and _owner(path) is not None:
            del sys.path_importer_cache[path]


def _owner(directory: str) -> str | None:
    """Return the directory of the user's code that this one is in.

    None if there is none, or it has installed packages.
    """
    owner = max(
        (known for known in _directories if _is_within(directory, known)), key=len, default=None
    )
    return (
        None
        if owner is None or _is_within(directory, _PACKAGE) or is_installed_in(directory)
        else owner
    )


def _limits(directory: str) -> Limits | None:
    """Return which files may run in this directory; None: all, as where the user has put it."""
    owner = _owner(directory)
    if owner is None:
        return None
    own = _of_user(sys.path)
    is_own = any(_is_within(directory, path) and len(path) >= len(owner) for path in own)
    return None if is_own else _directories[owner]


def _of_user(paths: Iterable[str]) -> set[str]:
    """Return those of these parts of sys.path that neither hpc_es nor a run's code has added."""
    return {_whole(path) for path in paths if path not in _appended and not _is_of_code(path)}


def _is_of_code(path: str) -> bool:
    """Whether code of the user has put this part on sys.path, or does so now."""
    return path in _of_code or (bool(_before_code) and path not in _before_code[0])


def _whole(path: str) -> str:
    return os.path.normpath(path if os.path.isabs(path) else current_directory() / path)  # noqa: PTH117


@contextlib.contextmanager
def _path_of_code() -> Iterator[None]:
    """Remember what code of the user that runs within the block puts on sys.path.

    What lies within the directories of a run stays limited there: a file that is trusted must not
    bring in those beside it, however their directory is spelled.
    """
    _before_code.append({*sys.path})
    try:
        yield
    finally:
        new = [path for path in sys.path if _is_of_code(path) and _owner(_whole(path))]
        _of_code.update({*new} - {path for path in new if _whole(path) in _of_user(sys.path)})
        _before_code.pop()


def _importer(path: str) -> FileFinder:
    """Return the finder of a directory with code of the user, as sys.path_hooks expect it.

    An archive that takes the place of a directory has no modules, but one that the user has put on
    sys.path has.

    Raises:
        ImportError: the directory is another one.
    """
    directory = _whole(path)
    is_archive = (
        not _is_directory(directory)
        and directory not in _directories
        and _limits(directory) is None
    )
    if _owner(directory) is None or is_archive:
        raise ImportError(path)
    return _Finder(directory, *_loaders())


def _loaders() -> tuple[tuple[type[Any], list[str]], ...]:
    """Return the loaders of code of the user with the ends of their files, in Python's order."""
    return (
        (_ExtensionLoader, EXTENSION_SUFFIXES),
        (_SourceLoader, SOURCE_SUFFIXES),
        (_CompiledLoader, BYTECODE_SUFFIXES),
    )


class _Finder(FileFinder):
    """Finds the modules of a directory.

    In one that hpc_es has added to the path, no library and no part of one.
    """

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        is_library = fullname in LIBRARIES or fullname in sys.stdlib_module_names
        if self.path in _appended and (is_library or _limits(self.path) == NOTHING):
            return None
        return super().find_spec(fullname, target)


def file_key(path: Path | str, digest: str) -> str:
    """Return what is trusted of a file: its SHA-256 and its name.

    Of `__init__.py` also the name of its package.
    """
    name = Path(path).name
    if name.partition(".")[0] == "__init__":
        name = f"{Path(path).parent.name}/{name}"
    return f"file-{digest}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def read_code(path: Path | str) -> bytes:
    """Return the content of a file of code, also through a link.

    Raises:
        OSError: it is a pipe, a device, or too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with io.BufferedReader(io.FileIO(descriptor)) as file:
        status = os.fstat(file.fileno())
        most = MOST_COMPILED if str(path).endswith(tuple(EXTENSION_SUFFIXES)) else MOST_SOURCE
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "expected a regular file of code", str(path))
        if status.st_size > most:
            raise OSError(
                errno.EFBIG, f"expected a file of code of at most {most:,} bytes", str(path)
            )
        return file.read(most)


def _require_allowed(path: str, content: bytes) -> None:
    """Raise UserError if only other files may run in the directory of this one."""
    limits, digest = _limits(str(Path(path).parent)), hashlib.sha256(content).hexdigest()
    known = {one.digest for one in _checked.values() if one.path == path}
    if known and digest not in known:
        raise UserError(f"{path} has changed since it was checked: start again")
    if limits is not None and (refusal := limits.refusal(path, digest)):
        raise UserError(
            f"code of a run would import {path}, which {refusal}: read it, and run "
            f"{as_command('hpc-es', 'trust', path)}, or give --trust (trust=True)"
        )
    _executed[path] = digest


class _SourceLoader(SourceFileLoader):
    """Compiles the source, and neither reads nor writes compiled files."""

    def get_data(self, path: str) -> bytes:
        return read_code(path)

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        content = self.get_data(path)
        _require_allowed(path, content)
        code: CodeType = self.source_to_code(content, path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        with _path_of_code():
            super().exec_module(module)


class _CompiledLoader(SourcelessFileLoader):
    """Loads a module without source."""

    # once for its code, which is made of the bytes that are compared
    def get_data(self, path: str) -> bytes:
        content = read_code(path)
        if path == self.path:
            _require_allowed(path, content)
        return content

    def exec_module(self, module: ModuleType) -> None:
        with _path_of_code():
            super().exec_module(module)


class _ExtensionLoader(ExtensionFileLoader):
    """Loads a compiled library, which the dynamic linker reads again."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _require_allowed(self.path, read_code(self.path))
        return super().create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _path_of_code():
            super().exec_module(module)


class CheckedFinder(MetaPathFinder):
    """Finds the modules of the last run that was opened in the files that were checked for it.

    A module of the same name that Python would find in another directory is another one.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (found := _checked.get(fullname)) is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        usual = next(
            filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None
        )
        folder = Path(found.path).parents[1 if found.is_package else 0]
        if usual is None or not _is_within(str(usual.origin), str(folder)):
            return None
        loader = next(kind for kind, suffixes in _loaders() if found.path.endswith(tuple(suffixes)))
        return spec_from_file_location(
            fullname,
            found.path,
            loader=loader(fullname, found.path),
            submodule_search_locations=[os.path.dirname(found.path)] if found.is_package else None,  # noqa: PTH120
        )
