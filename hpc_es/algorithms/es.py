"""OpenAI-ES (Salimans et al. 2017, arXiv:1703.03864).

It is gradient ascent on the Gaussian-smoothed expected return. Antithetic pair i evaluates theta +
sigma eps_i and theta - sigma eps_i with eps_i from N(0, I). With the shaped fitness F and n
evaluations, the gradient estimate is (algorithm 1, with antithetic sampling and rank shaping as in
section 2.1)

    g = 1 / n * sum_i (F(theta + sigma eps_i) - F(theta - sigma eps_i)) * eps_i

divided by sigma if `divide_by_sigma`. The optimizer follows g - weight_decay * theta. With
`anchored_decay` d, theta then becomes anchor + (1 - d) (theta - anchor), with the first theta as
anchor (arXiv:2605.30148).

The sum is divided into blocks of parameters. One rank sums a block over all pairs in order, so that
the result does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import noise_bound, optimizers
from hpc_es.algorithms.common.delay import DelayOptions, needs_of_delayed
from hpc_es.algorithms.common.optimizers import NORM_PART, norm
from hpc_es.algorithms.common.ranking import BY_SIGNS, Shaping, shaped
from hpc_es.algorithms.common.strategy import PairedStrategy, Pairs, Weights, round_of_jobs
from hpc_es.config.options import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Probability,
    option,
    options,
)
from hpc_es.core.data import SIGN_RETURN, Array, Arrays, Chunk, Float64, Results, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.machine import blas_threads
from hpc_es.core.population import Population

# of an update: each holds a part of the gradient, and more would wait for the sums of the noise
MOST_THREADS = 4
ANCHOR = "anchor"  # name of the first theta in the state

NEEDS = Needs(searches="vectors", noise=True, max_rank=np.inf, metrics=noise_bound.METRICS)


@options
class Options(DelayOptions):
    """`algorithm:` with `kind: es`."""

    kind: Literal["es"] = option("name of the algorithm", "es")
    population_size: Count = option("evaluations per round; an antithetic pair counts as two", 64)
    min_timesteps_per_generation: Natural = option(
        "minimum timesteps per generation: rounds are added until it is reached; 0: one round", 0
    )
    sigma: Positive = option("standard deviation of the perturbations", 0.05)
    mirrored_sampling: bool = option(
        "antithetic sampling: evaluate theta + sigma*eps and theta - sigma*eps", True
    )
    fitness_shaping: Shaping = option(
        "transformation of the returns: centred ranks, sum of the signs of the rewards, centred ranks of that sum, "
        "returns minus their mean (advantage, without division by the deviation), or none",
        "centered_rank",
    )
    divide_by_sigma: bool = option("division of the gradient by sigma", False)
    weight_decay: NonNegative = option(
        "weight decay: this factor times theta is subtracted from the gradient", 0.0
    )
    anchored_decay: Probability = option(
        "share of the distance to the first theta that is taken back after each update, against forgetting what the "
        "first theta can do (arXiv:2605.30148); it takes a copy of it in memory and in full checkpoints",
        0.0,
    )
    optimizer: optimizers.Options = option("optimizer of theta", default_factory=optimizers.Options)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if self.mirrored_sampling and self.population_size % 2:
            yield (
                "population_size",
                f"is {self.population_size}: mirrored sampling needs an even number (try "
                f"{self.population_size + 1})",
            )


@dataclass(frozen=True)
class EvolutionStrategy(PairedStrategy):
    """OpenAI-ES.

    State, shared:
        theta: dtype[params]; centre of the distribution
    State, master:
        those of `hpc_es.algorithms.common.optimizers.initial_slots`
        anchor: dtype[params], if anchored_decay; the first theta
    """

    options: Options

    @property
    def pairs(self) -> Pairs:
        """Antithetic pairs, or single jobs without mirrored sampling."""
        return Pairs(self.options.mirrored_sampling)

    def initial(self) -> State:
        """Return theta of the problem and the optimizer's initial slots."""
        theta = self.first_theta()
        slots = optimizers.initial_slots(self.options.optimizer, len(theta), theta.dtype)
        anchor = {ANCHOR: theta.copy()} if self.options.anchored_decay else {}
        return State(0, {"theta": theta}, {**slots, **anchor})

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return rounds of `population_size` jobs until the generation has enough timesteps."""
        size, least_timesteps = (
            self.options.population_size,
            self.options.min_timesteps_per_generation,
        )
        return round_of_jobs(round, rows, size, least_timesteps, chunk_size=self.chunk_size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return theta + sigma eps and theta - sigma eps of the pairs of a chunk."""
        return self.perturbed(state, chunk, self.options.sigma)

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """F(theta + sigma eps_i) - F(theta - sigma eps_i) of each pair, float64[1, pairs]."""
        shaping = self.options.fitness_shaping
        sign_returns = rows["sign_return"].astype(np.float64) if shaping in BY_SIGNS else fitness
        utilities = shaped(shaping, fitness, sign_returns)
        values = self.pairs.differences(utilities)[np.newaxis]
        return Weights(values, noise_bound=noise_bound.noise_bound(utilities))

    def anchor(self, state: State) -> Arrays:
        """Return the first theta by name, {} without `anchored_decay`.

        It is taken at the first update, since a run may begin with other parameters than those of
        the problem (`policy.init_from`).
        """
        if not self.options.anchored_decay:
            return {}
        return {ANCHOR: state.master[ANCHOR] if state.generation else state.theta.copy()}

    def tell(self, state: State, results: Results[Weights]) -> tuple[State, Mapping[str, float]]:
        """Take an optimizer step along the gradient, with weight decay.

        A large theta is updated in parts, without the whole gradient, except for ClipUp, which
        needs the norm of the whole velocity.
        """
        theta, slots = state.theta, optimizers.slots_of(state.master)
        anchor = self.anchor(state)
        evaluations, optimizer = results.prepared.count, self.options.optimizer
        if not evaluations:
            metrics = {
                "gradient_norm": 0.0,
                "update_ratio": 0.0,
                "theta_norm": norm(theta),
                "skipped_update": 1.0,
            }
            return State(state.generation + 1, {"theta": theta}, {**slots, **anchor}), metrics
        if not results.overwrite:
            theta, slots = theta.copy(), {name: slot.copy() for name, slot in slots.items()}
        threads = min(blas_threads(), MOST_THREADS) if results.overwrite else 1
        divisor = theta.dtype.type(
            evaluations * self.options.sigma if self.options.divide_by_sigma else evaluations
        )

        def gradients() -> Iterator[tuple[slice, Array]]:
            width = len(theta) if optimizer.kind == "clipup" else NORM_PART
            for part, sums in self.sums_by_part(results, width, threads):
                yield part, np.divide(sums[0], divisor, out=sums[0])

        slots, squares = optimizers.climb(
            optimizer, theta, slots, gradients(), self.options.weight_decay, threads
        )
        gradient, step, before, after = np.sqrt(squares).tolist()
        if anchor:
            approach(theta, anchor[ANCHOR], self.options.anchored_decay)
            after = norm(theta)
        metrics = {
            "gradient_norm": gradient,
            "update_ratio": step / max(before, 1e-12),
            "theta_norm": after,
            "skipped_update": 0.0,
            **noise_bound.metrics(results.prepared.noise_bound),
        }
        return State(state.generation + 1, {"theta": theta}, {**slots, **anchor}), metrics


def approach(theta: Array, anchor: Array, share: float) -> None:
    """Move theta to the anchor by a share of its distance, in parts and in place."""
    for part in optimizers.pieces_of(len(theta)):
        theta[part] -= theta.dtype.type(share) * (theta[part] - anchor[part])


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    needs = needs_of_delayed(NEEDS, options)
    if not options.mirrored_sampling:
        needs = replace(needs, metrics={})
    return replace(needs, equal_generations=not options.min_timesteps_per_generation)


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    if options.fitness_shaping in BY_SIGNS and SIGN_RETURN not in problem.columns:
        yield (
            "algorithm.fitness_shaping",
            f"is {options.fitness_shaping!r}, but the task has no rewards to take signs of: "
            "try 'centered_rank'",
        )


build = EvolutionStrategy
