"""What libraries look for in sys.path besides modules: not in the directories that hpc_es adds.

Those are the directories that code of the user is imported from (`config.user_code`), which a run
of somebody else may name. The modules there are checked before they run. But entry points in a
folder of metadata (dist-info) would run any function of any library: cProfile:main executes the
file that the command line names. And TensorFlow loads all compiled libraries in a folder of plugins
in directories that are called site-packages. And `pkgutil.extend_path`, which MuJoCo calls, adds to
the directories of the package those that a file mujoco.pkg there lists, wherever they are.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

added: set[str] = set()  # to sys.path, by `config.user_code`


def _others(path: Iterable[str]) -> list[str]:
    return [item for item in path if os.path.normpath(item or os.curdir) not in added]


@contextlib.contextmanager
def only_others() -> Iterator[None]:
    """Leave the directories that were added out of sys.path within the block."""
    before = [*sys.path]
    sys.path[:] = others = _others(before)
    try:
        yield
    finally:
        new = [item for item in sys.path if item not in others]
        gone = {*others} - {*sys.path}
        sys.path[:] = [item for item in before if item not in gone] + new


@functools.cache  # once
def hide_distributions(metadata: ModuleType) -> None:
    """Let `importlib.metadata`, or the package importlib_metadata, find no distributions there,
    unless its caller names the directories.
    """
    finder = metadata.MetadataPathFinder
    find, context_of = finder.find_distributions, metadata.DistributionFinder.Context

    def find_distributions(context: object = None) -> object:
        given = {} if context is None else vars(context)
        return find(context_of(**{"path": _others(sys.path), **given}))

    finder.find_distributions = staticmethod(find_distributions)


@contextlib.contextmanager
def distributions_hidden(name: str) -> Iterator[None]:
    """Import this package of metadata within the block, and call `hide_distributions` for it."""
    yield
    hide_distributions(sys.modules[name])


@functools.cache  # once
def hide_portions() -> None:
    """Let `pkgutil.extend_path` find no parts of packages there, nor lists of them.

    A package that is in one of these directories, or in a package there, is only what it is.
    """
    extend = pkgutil.extend_path

    def extend_path(path: Any, name: str) -> Any:
        package = name.rpartition(".")[0]
        if package and any(map(_is_added, sys.modules[package].__path__)):
            return path
        with only_others():
            return extend(path, name)

    pkgutil.extend_path = extend_path


def _is_added(directory: str) -> bool:
    """Whether this directory, or one above it, was added."""
    place = Path(os.path.normpath(directory))
    return not added.isdisjoint(map(str, (place, *place.parents)))
