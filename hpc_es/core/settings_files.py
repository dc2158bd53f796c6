"""Settings that libraries read from the current directory, which may be somebody else's.

UCX, below MPI, reads ucx.conf, which names the directory of its modules: compiled code. Numba
reads .numba_config.yaml, which names the directory of its cache: pickled code. Matplotlib reads
matplotlibrc, and would wait for a pipe. W&B reads wandb/settings, which names the server that gets
the key of the user. So whoever may write the current directory, such as /tmp, could run code or get
keys in every job that starts there. Where others may write it, these libraries start in the root
directory, and do not see such a file. Beside code of a run, Numba would read its cache, too.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from hpc_es.core.ownership import stranger
from hpc_es.core.paths import in_root_directory, user_directory
from hpc_es.core.search_path import distributions_hidden, only_others
from hpc_es.core.streams import say_error

UCX, NUMBA, WANDB = "ucx.conf", ".numba_config.yaml", "wandb/settings"


@contextlib.contextmanager
def settings_of_user(name: str, is_said: bool = True) -> Iterator[None]:
    """Hide a file of settings in the current directory from a library, if somebody else may write
    it.

    Within the block the current directory is then the root directory. A warning names the file,
    unless another rank says so.
    """
    if not (reason := _foreign(name)):
        yield
        return
    if is_said and os.path.lexists(name):
        say_error(
            f"WARNING: {name} of the current directory is not read ({reason}): change to a "
            "directory of your own (cd) if it has your settings\n"
        )
    with in_root_directory():
        yield


def _foreign(name: str) -> str:
    """Return why somebody else may have written a file of the current directory, or may write it
    now; "" if nobody may.
    """
    try:
        here = Path.cwd()
    except OSError:  # it was removed, and has no files
        return ""
    if reason := stranger(here):
        return reason
    if os.path.lexists(here / name) and (reason := stranger(here / name)):
        return reason
    # of a sticky directory, `stranger` says who may replace what is there, not who may add to it
    return f"all users may write {here}" if here.stat().st_mode & stat.S_IWOTH else ""


def use_private_numba_cache() -> None:
    """Let Numba keep its compiled functions in a directory of the user's own, unless
    NUMBA_CACHE_DIR is set.

    By default they are in __pycache__ beside the code, which may be somebody else's: pickled code
    that nobody has read.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    try:
        folder = user_directory("XDG_CACHE_HOME", ".cache") / "hpc_es" / "numba"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except (OSError, RuntimeError):  # there is no home, or nothing can be written there
        import atexit
        import tempfile

        temporary = tempfile.TemporaryDirectory(prefix="hpc_es_numba_")
        atexit.register(temporary.cleanup)
        folder = Path(temporary.name)
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    if (config := sys.modules.get("numba.core.config")) is not None:  # which has read it already
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


# within what a module is imported; MPI is imported within `settings_of_user`, too
MODULES: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "matplotlib": partial(settings_of_user, "matplotlibrc"),
    "numba.core.config": partial(settings_of_user, NUMBA),
    "tensorflow": only_others,
    "glfw.library": in_root_directory,  # starts a `python -c`, for MuJoCo
    "torch": only_others,  # looks for libraries of CUDA, if it misses one
    "importlib_metadata": partial(distributions_hidden, "importlib_metadata"),
}


class _Finder(MetaPathFinder):
    """Finds the modules in MODULES, as the finders after it do, and imports them so."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Importer(spec.loader)
        return spec


class _Importer(Loader):
    """Executes a module as its own loader does, within what MODULES says."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        # what else asks for the loader, such as importlib.resources, gets the module's own one
        module.__spec__.loader = module.__loader__ = self._loader
        with MODULES[module.__name__]():
            self._loader.exec_module(module)
        if module.__name__ == "numba.core.config" and _foreign(NUMBA):
            # it reads the file again whenever it compiles
            module._config_fname = ""  # type: ignore[attr-defined]


def guard_imports() -> None:
    """Let the modules in MODULES, and Keras, be imported without settings of somebody else.

    TensorFlow and importlib_metadata get nothing from directories of the user's code.
    """
    home = os.path.expanduser("~")  # noqa: PTH111  without a home it stays "~"
    if not os.access(home, os.W_OK):
        # Keras would read /tmp/.keras/keras.json, with the precision of its numbers
        own = home if os.path.isabs(home) else os.devnull  # noqa: PTH117
        os.environ.setdefault("KERAS_HOME", f"{own}/.keras")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
