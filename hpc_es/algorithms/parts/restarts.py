"""Restarts of a search that has ended: with larger populations (IPOP), or with small ones between them (BIPOP).

Auger & Hansen 2005 (CEC), Hansen 2009 (BBOB workshop). A search begins anew, at the problem's initial vector, which is
another one where that is random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hpc_es.core.data import Array, Arrays
from hpc_es.core.keys import Keys, Purpose

Kind = Literal["none", "ipop", "bipop"]


@dataclass(frozen=True)
class Run:
    """One search.

    State, master:
        run_restart: int64[]; number of the search; 0: the first
        run_population: int64[]; samples of a generation
        run_large: bool[]; whether it is one of the searches whose population grows
        run_sigma_factor: float64[]; first step size of this search to that of the first one
        run_growths: int64[]; how often the population has grown so far
        run_limit: int64[]; most evaluations of this search; 0: any number
        run_evaluations: int64[]; evaluations of this search so far
        run_of_small: int64[]; evaluations of earlier searches with small populations, the first one among them
        run_of_large: int64[]; evaluations of earlier searches with large populations
        run_ended_by: int64[]; criteria that ended the search before, as `stopped` has them
    """

    restart: int  # 0: the first
    population: int
    large: bool = False
    sigma_factor: float = 1.0  # of the first sigma
    growths: int = 0  # how often the population has grown so far
    limit: int = 0  # evaluations; 0: no limit
    evaluations: int = 0  # so far
    of_small: int = 0  # evaluations of the searches before, the first one among them
    of_large: int = 0
    ended_by: int = 0  # the criteria that have ended the search before

    def arrays(self) -> dict[str, Array]:
        """Return it as a part of the state."""
        return {f"run_{name}": np.array(value) for name, value in vars(self).items()}

    @classmethod
    def of(cls, arrays: Arrays) -> Run:
        """Return the search that `arrays` gave."""
        return cls(**{name: arrays[f"run_{name}"].item() for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Plan:
    """What follows a search."""

    kind: Kind
    first_population: int
    factor: float  # of a population to the one before
    growths: int  # at most
    pair: int = 1  # of which populations are multiples

    def whole(self, population: float) -> int:
        """Return a population in whole pairs."""
        return -(-int(population) // self.pair) * self.pair


def following(plan: Plan, keys: Keys, run: Run, ended_by: int) -> Run | None:
    """Return the search after one that has ended; None, where that was the last."""
    if plan.kind == "none":
        return None
    of_small = run.of_small + (0 if run.large else run.evaluations)
    of_large = run.of_large + (run.evaluations if run.large else 0)
    new = replace(run, restart=run.restart + 1, of_small=of_small, of_large=of_large, ended_by=ended_by, evaluations=0)
    grown = int(plan.first_population * plan.factor**run.growths)
    if plan.kind == "bipop" and of_small < of_large:
        rng = keys.generator(Purpose.RESTARTS, run.restart + 1)
        ratio = max(1.0, grown / (plan.factor * plan.first_population))
        population = plan.whole(plan.first_population * ratio ** (rng.random() ** 2))
        limit = (run.evaluations if run.large else 2 * run.limit) // 2
        step = float(10 ** (-2 * rng.random()))
        return replace(new, population=population, large=False, sigma_factor=step, limit=limit)
    if run.growths >= plan.growths:
        return None
    larger = plan.whole(plan.first_population * plan.factor ** (run.growths + 1))
    return replace(new, population=larger, large=True, sigma_factor=1.0, growths=run.growths + 1, limit=0)
