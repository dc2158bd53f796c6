"""OpenAI-ES (Salimans et al. 2017, arXiv:1703.03864): theta climbs the gradient of its smoothed expected return.

    g = 1 / n * sum_i w_i * eps_i          (divided by sigma if divide_by_sigma)

over the n returns of a generation; eps_i is the direction of pair i, w_i = u(theta + sigma eps_i) - u(theta - sigma
eps_i) for mirrored pairs, u the shaped fitness. The sum is cut into blocks of parameters; each block is summed over
all pairs in their order by one rank, so that the result does not depend on how many ranks there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.common.antithetic import Pairs
from hpc_es.algorithms.common.gradient import norm
from hpc_es.algorithms.common.ranking import BY_SIGNS, Shaping, shaped
from hpc_es.algorithms.common.strategy import PairedStrategy, Weights, round_of_jobs
from hpc_es.config.options import Count, Natural, NonNegative, Positive, option, options
from hpc_es.core.data import SIGN_RETURN, Chunk, Float64, Results, Rows, State
from hpc_es.core.interfaces import Needs, VectorProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Population

NEEDS = Needs(searches="vectors", noise=True)


@options
class Options:
    """`algorithm:` with `kind: es`."""

    kind: Literal["es"] = option("name of the algorithm", "es")
    population_size: Count = option("jobs a round; a mirrored pair counts two", 64)
    min_timesteps_per_generation: Natural = option("further rounds are added until a generation has as many", 0)
    sigma: Positive = option("standard deviation of the perturbations", 0.05)
    mirrored_sampling: bool = option("evaluate theta + sigma*eps and theta - sigma*eps", True)
    fitness_shaping: Shaping = option(
        "what a return is turned into: its centred rank, the sum of its rewards' signs, that sum's rank, itself",
        "centered_rank",
    )
    divide_by_sigma: bool = option("divide the gradient by sigma", False)
    weight_decay: NonNegative = option("times theta is subtracted from the ascent gradient", 0.0)
    optimizer: optimizers.Options = option("how theta follows the gradient", default_factory=optimizers.Options)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.mirrored_sampling and self.population_size % 2:
            text = f"is {self.population_size}: mirrored sampling needs an even number (try {self.population_size + 1})"
            yield "population_size", text


@dataclass(frozen=True)
class EvolutionStrategy(PairedStrategy):
    """The strategy.

    State, shared:
        theta: dtype[params]; the centre of the perturbations
    State, master:
        those of `hpc_es.algorithms.common.optimizers.initial_slots`
    """

    options: Options

    @property
    def pairs(self) -> Pairs:
        """Which jobs share a direction."""
        return Pairs(self.options.mirrored_sampling)

    def initial(self) -> State:
        """Return theta from the problem, and empty optimizer slots."""
        theta = self.problem.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS))
        return State(0, {"theta": theta}, optimizers.initial_slots(self.options.optimizer, len(theta), theta.dtype))

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return rounds of `population_size` jobs until there are enough timesteps."""
        given = self.options
        return round_of_jobs(
            round, rows, given.population_size, given.min_timesteps_per_generation, chunk_size=self.chunk_size
        )

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return perturbed thetas."""
        return self.perturbed(state, chunk, self.options.sigma)

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return w_i of the pairs."""
        signs = rows["sign_return"].astype(np.float64) if _by_signs(self.options) else fitness
        utilities = shaped(self.options.fitness_shaping, fitness, signs)
        return Weights(self.pairs.differences(utilities)[np.newaxis])

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Add weight decay, and take an optimizer step."""
        count = results.prepared.count
        if not count:
            still = {"gradient_norm": 0.0, "update_ratio": 0.0, "theta_norm": norm(state.theta), "skipped_update": 1.0}
            return State(state.generation + 1, {"theta": state.theta}, optimizers.slots_of(state.master)), still
        divisor, number = count * self.options.sigma if self.options.divide_by_sigma else count, state.theta.dtype.type
        ascent = self.summed(results)[0]
        ascent /= number(divisor)
        length = norm(ascent)
        gradient = number(self.options.weight_decay) * state.theta
        gradient -= ascent
        del ascent  # of a large vector there are enough
        slots, step = optimizers.step(self.options.optimizer, state.master, gradient)
        theta = state.theta + step
        metrics = {
            "gradient_norm": length,
            "update_ratio": norm(step) / max(norm(state.theta), 1e-12),
            "theta_norm": norm(theta),
            "skipped_update": 0.0,
        }
        return State(state.generation + 1, {"theta": theta}, slots), metrics


def _by_signs(options: Options) -> bool:
    return options.fitness_shaping in BY_SIGNS


def misfits(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield why this problem does not fit: (key, text)."""
    if _by_signs(options) and SIGN_RETURN not in problem.columns:
        text = f"is {options.fitness_shaping!r}, but the task has no rewards to take signs of: try 'centered_rank'"
        yield "algorithm.fitness_shaping", text


build = EvolutionStrategy
