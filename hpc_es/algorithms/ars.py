"""ARS, augmented random search (Mania, Guy and Recht 2018, arXiv:1803.07055).

Direction delta_k from N(0, I) is evaluated with both signs, theta + nu delta_k and theta - nu
delta_k, with the returns F+_k and F-_k. The update uses the b directions with the largest max(F+_k,
F-_k) (algorithm 2):

    theta <- theta + alpha / (b sigma_R) * sum_k (F+_k - F-_k) delta_k

where sigma_R is the standard deviation of their 2 b returns. V2 of the paper normalises
observations, V1 does not: see `task.observation_normalization`. With b smaller than the number of
directions, they are called V2-t and V1-t.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np

from hpc_es.algorithms.common import noise_bound
from hpc_es.algorithms.common.delay import DelayOptions, needs_of_delayed
from hpc_es.algorithms.common.optimizers import learning_rate, norm
from hpc_es.algorithms.common.strategy import PairedStrategy, Weights, first_deviations
from hpc_es.config.options import Count, Limits, Positive, option, options
from hpc_es.core.data import Array, Chunk, Float64, Results, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.population import Population

NEEDS = Needs(
    searches="vectors",
    noise=True,
    metrics=noise_bound.METRICS,
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
class Options(DelayOptions):
    """`algorithm:` with `kind: ars`."""

    kind: Literal["ars"] = option("name of the algorithm", "ars")
    population_size: Annotated[int, Limits(ge=2)] = option(
        "evaluations per generation, two per direction", 16
    )
    top_directions: Count | None = option(
        "number of best directions used in the update, b; null: all", None
    )
    learning_rate: Positive = option("learning rate, alpha", 0.02)
    anneal_updates: Count | None = option(
        "number of updates over which the learning rate decays linearly to 0; null: constant learning rate",
        None,
    )
    sigma: Positive | None = option(
        "standard deviation of the perturbations, nu; null: "
        "0.3 of the range between the bounds, or 0.3; for policies 0.1",
        0.03,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        jobs, top = self.population_size, self.top_directions
        if jobs % 2:
            yield (
                "population_size",
                f"is {jobs}: a direction has two jobs, "
                f"so it must be an even number (try {jobs + 1})",
            )
        elif top is not None and top > jobs // 2:
            yield (
                "top_directions",
                f"is {top}, but a population_size of {jobs} has "
                f"{jobs // 2} directions (try {jobs // 2})",
            )


@dataclass(frozen=True)
class AugmentedRandomSearch(PairedStrategy):
    """Augmented random search.

    State, shared:
        theta: dtype[params]; centre of the distribution
    State, master:
        updates: int64[]; number of updates so far, without skipped ones, from which the annealed
            learning rate follows
    """

    options: Options

    pair_name = "direction"

    @cached_property
    def _deviations(self) -> tuple[float, Array | None]:
        """nu, and the ratio of each coordinate's standard deviation to it, dtype[params].

        The ratios are None if all are equal.
        """
        step, ratios = first_deviations(self.options.sigma, self.problem)
        return step, None if (ratios == 1).all() else ratios.astype(self.problem.dtype)

    def initial(self) -> State:
        """Return the problem's initial theta."""
        return State(0, {"theta": self.first_theta()}, {"updates": np.array(0)})

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return theta + nu delta and theta - nu delta."""
        sigma, ratios = self._deviations
        return self.perturbed(state, chunk, sigma, ratios)

    def whole(self, fitness: Float64) -> Array:
        """Return which directions have two finite returns, bool[directions].

        sigma_R must be finite.
        """
        infinite: Array = np.logical_not(np.isfinite(self.pairs.in_pairs(fitness)))
        return np.logical_not(infinite.any(axis=1))

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return (F+_k - F-_k) / (b sigma_R), float64[1, directions].

        It is 0 for directions that are not used. Of directions with the same better return, the
        first is preferred.
        """
        weights = np.zeros((1, len(fitness)))
        order = np.argsort(-fitness.max(axis=1), kind="stable")
        best = np.sort(order[: self.options.top_directions])
        used = fitness[best]
        if used.min() == used.max():
            return Weights(weights, "all returns of the best directions are equal: no update")
        deviation = float(used.std())
        weights[0, best] = self.pairs.differences(used) / (len(best) * deviation)
        bound = noise_bound.noise_bound(fitness)
        return Weights(weights, deviation=deviation, noise_bound=bound)

    def tell(self, state: State, results: Results[Weights]) -> tuple[State, Mapping[str, float]]:
        """Take the step; it is 0 and not counted if there is no update."""
        prepared = results.prepared
        updates, ratios = int(state.master["updates"]), self._deviations[1]
        rate, ascent = learning_rate(self.options, updates), self.summed(results)[0]
        ascent = ascent if ratios is None else ratios * ascent
        theta = state.theta + state.theta.dtype.type(rate) * ascent
        metrics = {
            "gradient_norm": norm(ascent),
            "update_ratio": rate * norm(ascent) / max(norm(state.theta), 1e-12),
            "theta_norm": norm(theta),
            "return_deviation": prepared.deviation,
            "learning_rate": rate,
            "skipped_update": float(prepared.reason is not None),
            **noise_bound.metrics(prepared.noise_bound),
        }
        master = {"updates": np.array(updates + (prepared.reason is None))}
        return State(state.generation + 1, {"theta": theta}, master), metrics


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    return needs_of_delayed(NEEDS, options)


build = AugmentedRandomSearch
