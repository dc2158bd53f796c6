"""The contract of the libraries that compute policies and tasks, and where they are found.

A backend is a file of the package `hpc_es.backends` with an object BACKEND. The name of the file is
that of the backend in configs, `Computes.backend` and `Traits.compiled_by`. Backends with networks
are subclasses of `NetworkBackend` (`policies/networks/backend.py`). A file is imported when its
backend is first asked for, and imports its library when that is set up.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import ConfigError, nearest
from hpc_es.core.interfaces import RunContext
from hpc_es.devices.placement import Kind

FOLDER = "hpc_es.backends"
USED_BEFORE = (
    "{title} was used in this process before hpc_es has set its threads, and keeps its own: the last bits of results may "
    "differ from those of other jobs. Call hpc_es first, and {title} in functions, not while a module is imported"
)


def warn_of_use(title: str) -> None:
    """Warn that a library has started its threads before hpc_es has set them."""
    warnings.warn(USED_BEFORE.format(title=title), RuntimeWarning, stacklevel=3)


class Backend:
    """A library that computes policies or tasks.

    The defaults are those of one that needs no preparation.
    """

    name: str  # of its file
    title: str  # in messages
    package: str  # that is imported
    takes: str = ""  # what networks it computes, in messages, such as "modules of PyTorch"
    extra: str = ""  # of hpc_es, which installs it
    cuda_extra: str = ""  # of hpc_es, which installs it for NVIDIA GPUs
    has_device: bool = True  # whether it computes on a device that is decided for it
    compiles: bool = True  # whether its actors compute calls of a fixed number of candidates
    # Whether nothing may be computed before the run has decided on the device, as it cannot be
    # changed after a use.
    waits_for_run: bool = False

    def missing(self) -> str:
        """Return "PACKAGE, which is not installed: pip install ...".

        "" if the package is installed.
        """
        if importlib.util.find_spec(self.package) is not None:
            return ""
        return f"{self.package}, which is not installed: pip install 'hpc_es[{self.extra}]'"

    def set_up(self) -> None:
        """Import the library and set up its device, its threads and deterministic operations."""

    # The device.

    def has_gpu_build(self) -> bool:
        """Return False if the package is known not to support GPUs; it is not imported for this."""
        return True

    def obstacle(self) -> str:
        """Return why this process cannot use a visible GPU, such as "has no CUDA support".

        "" if it can.
        """
        return ""

    def choose(self, kind: Kind, index: int | None) -> None:
        """Set the device of this process.

        `index` of a GPU is among the visible ones, None if it is not here.
        """

    def release(self) -> None:
        """Use the CPU if the library is needed although another one computes, or none."""

    def gpu_model(self) -> str:
        """Set up the chosen GPU and return its model, "" if it is not known.

        Raises:
            ConfigError: it cannot be used.
        """
        return ""

    def only_traces(self) -> bool:
        """Whether nothing can be computed here, because the chosen GPU is that of another node."""
        return False

    # Compiled code of a run.

    def use_cache(self, run: RunContext) -> None:
        """Use the cache of the run directory for compiled code; every rank calls this."""

    def use_stored_cache(self, checkpoint: Path) -> None:
        """Use the cache of a checkpoint's run if it is trusted."""

    def compile(self, run: RunContext, function: Callable[[], None]) -> None:
        """Call a function that compiles; every rank calls this."""
        function()

    def compilation_info(self) -> JsonObject:
        """Return what compiled code depends on, for checkpoints.

        Config and versions are not repeated.
        """
        return {}


_used: dict[str, Backend] = {}


def backend(name: str) -> Backend:
    """Import and return a backend; ConfigError if there is none of this name."""
    if name in _used:
        return _used[name]
    if name not in names():
        raise ConfigError(
            [
                (
                    "policy.backend",
                    f"expected one of {', '.join(map(repr, names()))}, found "
                    f"{name!r}{nearest(name, names())}",
                )
            ]
        )
    _used[name] = importlib.import_module(f"{FOLDER}.{name}").BACKEND
    return _used[name]


def used() -> Sequence[Backend]:
    """Return the backends that this process has asked for; the others have no device."""
    return [*_used.values()]


def is_one_imported() -> bool:
    """Return whether this process has imported a library that computes on devices."""
    known = (importlib.import_module(f"{FOLDER}.{name}").BACKEND for name in names())
    return any(one.has_device and one.package in sys.modules for one in known)


def names() -> tuple[str, ...]:
    """Return the sorted names of all backends."""
    folder = importlib.import_module(FOLDER)
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folder.__path__)))
