"""hpc_es: evolution strategies on clusters.

for row in hpc_es.train("config.yaml"): ...         row is a dict of metrics, one per generation
policy = hpc_es.load_policy("runs/demo")            policy(observation) is an action for env.step
model = hpc_es.load_model("runs/digits")            model.parameters is the tree or Keras model of a
                                                    task `model`
found = hpc_es.minimize(f, x0, sigma0)              f is called by all ranks of the job
es = hpc_es.Strategy("es", x0=x0, sigma0=0.1)       x = es.ask(); es.tell(values)
if hpc_es.is_main(): print(found.x)                 once, and not by every rank
"""

from __future__ import annotations

import os
import sys

# `python -m hpc_es.main` puts the current directory first in the search path, where a file may
# replace a library. As by `hpc-es`, modules of the user are found after all libraries
# (config/user_code.py).
try:
    _here = os.getcwd()  # noqa: PTH109  pathlib may be replaced, too
except FileNotFoundError:
    _here = ""
if (
    sys.argv[:1] == ["-m"]
    and sys.path[:1] == [_here]
    and not getattr(sys.flags, "safe_path", False)
):
    del sys.path[0]

import importlib
from typing import TYPE_CHECKING, Any

from hpc_es.core.machine import __version__
from hpc_es.core.settings_files import guard_imports

if TYPE_CHECKING:
    from hpc_es.api.minimize import minimize
    from hpc_es.api.strategy import Strategy
    from hpc_es.api.tables import results
    from hpc_es.api.train import train
    from hpc_es.trained.model import load_model
    from hpc_es.trained.policy import load_policy
    from hpc_es.training.triggers import IntervalTrigger

__all__ = [
    "IntervalTrigger",
    "Strategy",
    "__version__",
    "is_main",
    "load_model",
    "load_policy",
    "minimize",
    "rank",
    "results",
    "train",
]

guard_imports()

_MODULES = {
    "IntervalTrigger": "hpc_es.training.triggers",
    "Strategy": "hpc_es.api.strategy",
    "load_model": "hpc_es.trained.model",
    "load_policy": "hpc_es.trained.policy",
    "minimize": "hpc_es.api.minimize",
    "results": "hpc_es.api.tables",
    "train": "hpc_es.api.train",
}


def rank() -> int:
    """Return the rank of this process in its job, 0 without an MPI launcher.

    For scripts that call `minimize` or `train` on all ranks. Under a launcher the first call
    connects the ranks, like those functions: every rank must call one of them. Without a launcher
    MPI is not started. Do not let results depend on the rank.

    Raises:
        hpc_es.core.errors.LaunchError: a launcher has started several tasks that are not connected
            to each other.

    Examples:
        >>> import hpc_es
        >>> hpc_es.rank()
        0
    """
    from hpc_es.mpi.connect import connect, joined
    from hpc_es.mpi.guard import install_hooks
    from hpc_es.mpi.launch import tasks_started

    world = joined()
    if world is None:
        if tasks_started(os.environ)[0] == 1:
            return 0
        world = connect()
        install_hooks()
    return world.rank


def is_main() -> bool:
    """Return whether this process is rank 0, which should print and write files.

    True without an MPI launcher. The first call connects the ranks, like that of `rank`.

    Examples:
        >>> import hpc_es
        >>> if hpc_es.is_main():
        ...     print("once, and not on every rank")
        once, and not on every rank
    """
    return rank() == 0


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import hpc_es` alone is fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
