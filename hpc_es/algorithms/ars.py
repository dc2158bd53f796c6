"""ARS, augmented random search (Mania, Guy and Recht 2018, arXiv:1803.07055): large steps along the best directions.

Each direction delta_k is tried both ways, theta +- nu delta_k, and gives the returns F+_k and F-_k. Of the b directions
with the largest max(F+_k, F-_k)

    theta <- theta + alpha / (b sigma_R) * sum_k (F+_k - F-_k) delta_k

where sigma_R is the standard deviation of their 2b returns. V2 normalises observations, V1 does not: that is
`task.observation_normalization`. With b smaller than the number of directions they are V2-t and V1-t.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from hpc_es.algorithms.common.gradient import norm
from hpc_es.algorithms.common.optimizers import learning_rate
from hpc_es.algorithms.common.strategy import PairedStrategy, Weights, first_deviations
from hpc_es.config.options import Count, Positive, option, options
from hpc_es.core.data import Array, Chunk, Float64, Results, Rows, State
from hpc_es.core.interfaces import Needs
from hpc_es.core.population import Population

NEEDS = Needs(
    searches="vectors",
    noise=True,
    presets={
        "noise.kind": "counter",
        "policy.hidden_dims": [],
        "policy.bias": False,
        "policy.initial": "zeros",
        "task.observation_normalization.enabled": True,
        "task.observation_normalization.probability": 1.0,
        "task.observation_normalization.clip": None,
        "task.observation_normalization.deviation": "sample",
    },
)


@options
class Options:
    """`algorithm:` with `kind: ars`."""

    kind: Literal["ars"] = option("name of the algorithm", "ars")
    population_size: Annotated[int, Ge(2)] = option("jobs of a generation, two a direction", 16)
    top_directions: Count | None = option("b, the directions that are followed; null: all", None)
    learning_rate: Positive = option("alpha, the step size", 0.02)
    anneal_updates: Count | None = option(
        "updates in which the learning rate falls to 0 in a straight line, and stays there; null: it never falls", None
    )
    sigma: Positive | None = option(
        "nu, the standard deviation of the perturbations; null: 0.3 of the range between the bounds, or 0.3; of a "
        "policy 0.1",
        0.03,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        jobs, top = self.population_size, self.top_directions
        if jobs % 2:
            text = f"is {jobs}: a direction has two jobs, so it must be an even number (try {jobs + 1})"
            yield "population_size", text
        elif top is not None and top > jobs // 2:
            text = f"is {top}, but a population_size of {jobs} has {jobs // 2} directions (try {jobs // 2})"
            yield "top_directions", text


@dataclass(frozen=True)
class AugmentedRandomSearch(PairedStrategy):
    """The strategy.

    State, shared:
        theta: dtype[params]; the centre of the perturbations
    State, master:
        updates: int64[]; updates so far, without skipped ones: the annealed learning rate follows from them
    """

    options: Options

    called = "direction"

    @cached_property
    def _deviations(self) -> tuple[float, Array | None]:
        """nu, and each coordinate's share of it; None where all have the same."""
        step, ratios = first_deviations(self.options.sigma, self.problem)
        return step, None if (ratios == 1).all() else ratios.astype(self.problem.dtype)

    def initial(self) -> State:
        """Return theta from the problem; no updates were made."""
        return State(0, {"theta": self.first_theta()}, {"updates": np.array(0)})

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return theta +- nu delta."""
        sigma, ratios = self._deviations
        return self.perturbed(state, chunk, sigma, ratios)

    def whole(self, fitness: Float64) -> Array:
        """Return bool[directions], those both of whose returns are finite: sigma_R is not, with another one."""
        infinite: Array = np.logical_not(np.isfinite(self.pairs.in_pairs(fitness)))
        return np.logical_not(infinite.any(axis=1))

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return (F+ - F-) / (b sigma_R), 0 of those not followed; of equal better returns the first goes before."""
        weights = np.zeros((1, len(fitness)))
        order = np.argsort(-fitness.max(axis=1), kind="stable")
        best = np.sort(order[: self.options.top_directions])
        used = fitness[best]
        if used.min() == used.max():
            return Weights(weights, "all returns of the directions to follow are equal: no update")
        deviation = float(used.std())
        weights[0, best] = self.pairs.differences(used) / (len(best) * deviation)
        return Weights(weights, deviation=deviation)

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Take the step; it is 0 and not counted where nothing was learned."""
        prepared: Weights = results.prepared
        done, ratios = int(state.master["updates"]), self._deviations[1]
        rate, ascent = learning_rate(self.options, done), self.summed(results)[0]
        ascent = ascent if ratios is None else ratios * ascent
        theta = state.theta + state.theta.dtype.type(rate) * ascent
        metrics = {
            "gradient_norm": norm(ascent),
            "update_ratio": rate * norm(ascent) / max(norm(state.theta), 1e-12),
            "theta_norm": norm(theta),
            "return_deviation": prepared.deviation,
            "learning_rate": rate,
            "skipped_update": float(prepared.reason is not None),
        }
        updates = np.array(done + (prepared.reason is None))
        return State(state.generation + 1, {"theta": theta}, {"updates": updates}), metrics


build = AugmentedRandomSearch
