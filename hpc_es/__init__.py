"""hpc_es: evolution strategies on clusters.

for row in hpc_es.train("config.yaml"): ...         row is a dict of metrics, one per generation
policy = hpc_es.load_policy("runs/demo")            policy(observation) is an action for env.step
model = hpc_es.load_model("runs/digits")            model.parameters is the tree or Keras model of a task `model`
found = hpc_es.minimize(f, x0, sigma0)              f is called by all ranks of the job
es = hpc_es.Strategy("es", x0=x0, sigma0=0.1)       x = es.ask(); es.tell(values)
if hpc_es.is_main(): print(found.x)                 once, and not by every rank
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpc_es.core.machine import __version__

if TYPE_CHECKING:
    from hpc_es.api.minimize import minimize
    from hpc_es.api.ranks import is_main, rank
    from hpc_es.api.strategy import Strategy
    from hpc_es.api.train import train
    from hpc_es.report.saved_policy import load_model, load_policy
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
    "train",
]

_MODULES = {
    "IntervalTrigger": "hpc_es.training.triggers",
    "Strategy": "hpc_es.api.strategy",
    "is_main": "hpc_es.api.ranks",
    "load_model": "hpc_es.report.saved_policy",
    "load_policy": "hpc_es.report.saved_policy",
    "minimize": "hpc_es.api.minimize",
    "rank": "hpc_es.api.ranks",
    "train": "hpc_es.api.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import hpc_es` alone is fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
