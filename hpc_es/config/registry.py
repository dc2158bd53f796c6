"""The kinds of algorithms, tasks, policies and noise, and the module of each.

A kind's module has `Options`, with a field `kind` that defaults to the kind's name, `build`, and `NEEDS` (algorithms)
or `OFFERS` (tasks). A name with a dot or colon is a custom kind of the user: see `user_kinds.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

from hpc_es.config import user_kinds
from hpc_es.core.errors import ConfigError
from hpc_es.core.messages import nearest

Package = Literal["algorithms", "tasks", "policies", "noise"]

MODULES: Mapping[Package, Mapping[str, str]] = {
    "algorithms": {
        "actor_critic": "hpc_es.algorithms.actor_critic",
        "ars": "hpc_es.algorithms.ars",
        "cma_es": "hpc_es.algorithms.cma_es",
        "cr_fm_nes": "hpc_es.algorithms.cr_fm_nes",
        "deep_ga": "hpc_es.algorithms.deep_ga",
        "es": "hpc_es.algorithms.es",
        "ga": "hpc_es.programs.ga",
        "novelty": "hpc_es.algorithms.novelty",
        "pgpe": "hpc_es.algorithms.pgpe",
        "policy_gradient": "hpc_es.programs.policy_gradient",
        "random_search": "hpc_es.programs.random_search",
        "sep_cma_es": "hpc_es.algorithms.sep_cma_es",
        "snes": "hpc_es.algorithms.snes",
        "xnes": "hpc_es.algorithms.xnes",
    },
    "tasks": {
        "bandits": "hpc_es.bandits.task",
        "command": "hpc_es.tasks.command",
        "episodes": "hpc_es.tasks.episodes",
        "function": "hpc_es.tasks.function",
        "jax_episodes": "hpc_es.tasks.jax_episodes",
        "programs": "hpc_es.programs.task",
    },
    "policies": {"lstm": "hpc_es.policies.lstm", "mlp": "hpc_es.policies.mlp"},
    "noise": {"counter": "hpc_es.noise.counter", "table": "hpc_es.noise.table"},
}


def kinds(package: Package) -> tuple[str, ...]:
    """Return the sorted names of all built-in kinds."""
    return tuple(sorted(MODULES[package]))


def module(package: Package, kind: str) -> Any:
    """Import and return the module of a kind, or the object that a custom kind names.

    Raises ConfigError if there is no such kind.
    """
    if user_kinds.is_foreign(kind):
        return user_kinds.load(package, kind)
    found = find(package, kind)
    if found is None:
        known = ", ".join(map(repr, kinds(package)))
        raise ConfigError([("kind", f"expected one of {known}, found {kind!r}{nearest(kind, kinds(package))}")])
    return found


def find(package: Package, kind: Any) -> ModuleType | None:
    """Import and return the module of a built-in kind; None if it is not one."""
    name = MODULES[package].get(kind) if isinstance(kind, str) else None
    return None if name is None else importlib.import_module(name)
