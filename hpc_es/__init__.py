"""hpc_es: evolution strategies on clusters.

for row in hpc_es.train("config.yaml"): ...         row is a dict of metrics, one a generation
policy = hpc_es.load_policy("runs/demo")            policy(observation) is an action for env.step
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_es.experiment.library import train
    from hpc_es.load import load_policy

__version__ = "0.1.0"
__all__ = ["__version__", "load_policy", "train"]

_HOMES = {"load_policy": "hpc_es.load", "train": "hpc_es.experiment.library"}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `import hpc_es` alone costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
