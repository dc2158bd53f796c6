"""An algorithm whose state grows: each generation adds its best job to an archive.

Configs name it as `kind: tests.helpers.growing:Walk`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.config.options import Count, option, options
from hpc_es.core.data import Chunk, Float64, Results, Rows, State, cut
from hpc_es.core.declarations import Needs
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Population
from tests.helpers.populations import explicit


@options
class Options:
    """`algorithm:` with `kind: tests.helpers.growing:Walk`."""

    kind: str = option("the kind")
    population_size: Count = option("jobs of a generation", 6)


@dataclass(frozen=True)
class Walker(BaseStrategy):
    """Jobs are steps from the mean of the archive, float32[entries, params], a shared array."""

    def initial(self) -> State:
        theta = self.problem.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS))
        return State(0, {"theta": theta, "archive": theta[np.newaxis]}, {"scores": np.zeros(1)})

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        return [] if round else cut(self.options.population_size, self.chunk_size)

    def _steps(self, state: State, jobs: range) -> Any:
        mean = state.shared["archive"].mean(axis=0)
        rngs = [self.keys.generator(Purpose.PERTURBATION, state.generation, job) for job in jobs]
        return np.stack(
            [mean + 0.1 * rng.standard_normal(len(mean)).astype(mean.dtype) for rng in rngs]
        )

    def candidates(self, state: State, chunk: Chunk) -> Population:
        return explicit(self._steps(state, chunk.job_numbers))

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        best = int(np.nanargmax(results.rows["return_"]))
        archive = np.concatenate(
            [state.shared["archive"], self._steps(state, range(best, best + 1))]
        )
        scores = np.append(state.master["scores"], results.rows["return_"][best])
        shared = {"theta": archive.mean(axis=0), "archive": archive}
        return State(state.generation + 1, shared, {"scores": scores}), {
            "archive": float(len(archive))
        }


class Walk:
    """The kind."""

    Options = Options
    NEEDS = Needs(searches="vectors", growing=True)
    build = Walker
