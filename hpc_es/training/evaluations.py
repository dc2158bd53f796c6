"""When the centre of a search is measured without noise, in how many jobs, and what came of the last time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpc_es.config.sections import Config
from hpc_es.core.data import Rows
from hpc_es.core.interfaces import Problem


@dataclass(frozen=True)
class Evaluations:
    """How often, and in how many jobs."""

    jobs: int  # that measure the centre; 0 where nothing does
    interval: int  # generations between evaluations; 0: there are none

    @classmethod
    def of(cls, config: Config, problem: Problem) -> Evaluations:
        """Return those of a config; some problems know how many jobs it takes."""
        own = problem.evaluation_episodes
        jobs = config.evaluation.episodes if own is None else own
        return cls(jobs, config.evaluation.interval if jobs else 0)

    def due(self, generation: int) -> int:
        """Return the evaluation jobs of a generation."""
        return self.jobs if self.interval and generation % self.interval == 0 else 0

    def next_after(self, generation: int) -> float:
        """Return the next generation with an evaluation."""
        return (generation // self.interval + 1) * self.interval if self.interval else math.inf


def final_returns(rows: Rows) -> dict[str, float]:
    """Return what the evaluation at the end of a run has found; nothing where every job failed."""
    returns = rows["return_"][~np.isnan(rows["return_"])]
    if not len(returns):
        return {}
    return {"final_return_mean": float(returns.mean()), "final_return_std": float(returns.std())}
