"""The strategies that are compared on the BBOB functions: all of hpc_es with their defaults, and
pycma.

All start at 0; those of the CMA-ES and NES families with the standard deviation 2, as is usual on
these functions. A search with restarts starts at random points between -4 and 4, where all optima
lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import hpc_es
from hpc_es.config import registry
from hpc_es.core.data import Float64

FUNCTIONS = (1, 2, 8, 9, 10, 15, 21)
DIMENSIONS, LARGE = (2, 5, 10, 20), 40
ALL_DIMENSIONS = (*DIMENSIONS, LARGE)
INSTANCES = (1, 2, 3, 4, 5)
MULTIMODAL = (15, 21)  # functions that need restarts
SIGMA, REGION, RESTARTS = 2.0, 4.0, 9
BUDGET = 10_000  # evaluations per dimension

# budgets of strategies that do not aim at exact optima
SLOW = {"es": 1000, "pgpe": 1000, "ars": 1000, "deep_ga": 1000}
EXCLUDED = ("novelty",)  # needs episodes with behaviours
ALSO_LARGE = ("cma_es", "sep_cma_es", "cr_fm_nes", "pycma")

Restarts = Literal["none", "ipop", "bipop"]
Function = Callable[[Float64], float]


@dataclass(frozen=True)
class Contender:
    """A strategy and its settings."""

    kind: str  # of hpc_es/algorithms, or pycma
    restarts: Restarts = "none"
    noise: str = "counter"  # kind of noise; pycma has its own

    @property
    def name(self) -> str:
        """The name in files and tables."""
        name = self.kind if self.noise == "counter" else f"{self.kind}+{self.noise}"
        return name if self.restarts == "none" else f"{name}-{self.restarts}"

    @property
    def budget(self) -> int:
        """Evaluations per dimension."""
        return SLOW.get(self.kind, BUDGET)

    def takes(self, function: int, dimension: int) -> bool:
        """Return whether the contender is run on this function."""
        if self.restarts != "none" and function not in MULTIMODAL:
            return False
        return dimension != LARGE or self.kind in ALSO_LARGE

    def search(self, function: Function, dimension: int, seed: int) -> str:
        """Run the search to its own end, and return the reason;
        `function` raises to end it earlier.
        """
        if self.kind == "pycma":
            return _pycma(self.restarts, function, dimension, seed)
        return _ours(self, function, dimension, seed)


def contenders() -> list[Contender]:
    """Return all contenders, references first."""
    ours = [
        kind
        for kind in registry.kinds("algorithms")
        if registry.module("algorithms", kind).NEEDS.searches == "vectors" and kind not in EXCLUDED
    ]
    variants: list[tuple[str, Restarts]] = [
        ("pycma", "bipop"),
        ("cma_es", "bipop"),
        ("cma_es", "ipop"),
    ]
    return [*map(Contender, ("pycma", *ours)), *(Contender(*variant) for variant in variants)]


def _ours(contender: Contender, function: Function, dimension: int, seed: int) -> str:
    options: dict[str, Any] = {} if contender.kind in SLOW else {"sigma0": SIGMA}
    if contender.restarts == "none":
        options["x0"] = np.zeros(dimension)
    else:
        options |= {"region": (np.full(dimension, -REGION), REGION), "restarts": contender.restarts}
        options["max_restarts"] = RESTARTS
    es = hpc_es.Strategy(contender.kind, seed=seed, noise=contender.noise, **options)
    while (reason := es.stop()) is None:
        es.tell([function(x) for x in es.ask()])
    return reason


def _pycma(restarts: Restarts, function: Function, dimension: int, seed: int) -> str:
    import cma

    rng = np.random.default_rng(seed)
    x0: Any = (
        np.zeros(dimension)
        if restarts == "none"
        else lambda: rng.uniform(-REGION, REGION, dimension)
    )
    count = 0 if restarts == "none" else RESTARTS
    quiet = {"seed": seed, "verbose": -9, "verb_log": 0}
    _, es = cma.fmin2(function, x0, SIGMA, quiet, restarts=count, bipop=restarts == "bipop")
    return ", ".join(sorted(es.stop()))
