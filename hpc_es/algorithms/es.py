"""OpenAI-ES (Salimans et al. 2017, arXiv:1703.03864): theta climbs the gradient of its smoothed expected return.

    g = 1 / n * sum_i w_i * eps_i          (divided by sigma if divide_by_sigma)

over the n returns of a generation; eps_i is the direction of pair i, w_i = u(theta + sigma eps_i) - u(theta - sigma
eps_i) for mirrored pairs, u the shaped fitness. The sum is cut into blocks of parameters; each block is summed over
all pairs in their order by one rank, so that the result does not depend on how many ranks there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from hpc_es.common import optimizers
from hpc_es.common.gradient import norm
from hpc_es.common.normaliser import Moments
from hpc_es.common.ranking import centered_ranks
from hpc_es.errors import RunError
from hpc_es.interfaces import (
    Arrays,
    Batch,
    Chunk,
    Float32,
    Float64,
    Noise,
    Outcome,
    Perturbed,
    Policy,
    Poll,
    Results,
    Rows,
    State,
    Task,
    cut,
)
from hpc_es.keys import Keys, Purpose
from hpc_es.noise.counter import BLOCK
from hpc_es.options import Count, Natural, NonNegative, Positive, Probability, option, options

POLICY = "mlp"
NOISE = True
TENSORFLOW = False


@options
class ObservationNormalization:
    """`algorithm.observation_normalization:`, running mean and standard deviation of the observations."""

    enabled: bool = option("normalise what the policy sees", False)
    probability: Probability = option("share of pairs whose observations are added to the statistics", 0.01)
    clip: Positive = option("normalised observations are clipped to [-clip, clip]", 5.0)


@options
class Options:
    """`algorithm:` with `kind: es`."""

    kind: Literal["es"] = option("the algorithm's module in hpc_es/algorithms", "es")
    population_size: Count = option("jobs a round; a mirrored pair counts two", 64)
    min_timesteps_per_generation: Natural = option("further rounds are added until a generation has as many", 0)
    sigma: Positive = option("standard deviation of the perturbations", 0.05)
    mirrored_sampling: bool = option("evaluate theta + sigma*eps and theta - sigma*eps", True)
    fitness_shaping: Literal["centered_rank", "sign", "centered_sign_rank", "none"] = option(
        "what a return is turned into: its centred rank, the sum of its rewards' signs, that sum's rank, itself",
        "centered_rank",
    )
    divide_by_sigma: bool = option("divide the gradient by sigma", False)
    weight_decay: NonNegative = option("times theta is subtracted from the ascent gradient", 0.0)
    optimizer: optimizers.Options = option("how theta follows the gradient", default_factory=optimizers.Options)
    observation_normalization: ObservationNormalization = option(
        "statistics of the observations", default_factory=ObservationNormalization
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.mirrored_sampling and self.population_size % 2:
            text = f"is {self.population_size}: mirrored sampling needs an even number (try {self.population_size + 1})"
            yield "population_size", text


@dataclass(frozen=True)
class EvolutionStrategy:
    """The algorithm; every method is a pure function of its arguments, the options and the seed."""

    options: Options
    task: Task
    policy: Policy
    noise: Noise
    keys: Keys
    chunk_size: int

    def initial(self) -> State:
        """theta from the policy, empty optimizer slots, an empty normaliser."""
        theta = self.policy.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS))
        slots = optimizers.initial_slots(self.options.optimizer, self.policy.size)
        return self._state(0, theta, slots, self._nothing_seen())

    def _nothing_seen(self) -> Moments:
        assert self.task.spaces
        return Moments.initial(self.task.spaces.observations)

    def _state(self, generation: int, theta: Float32, slots: Arrays, moments: Moments) -> State:
        if not self.options.observation_normalization.enabled:
            return State(generation, {"theta": theta}, dict(slots))
        shared = {"theta": theta, "observation_mean": moments.mean(), "observation_std": moments.deviation()}
        return State(generation, shared, {**slots, **moments.arrays()})

    def ask(self, state: State, round: int, first_index: int) -> list[Chunk]:
        """A round is `population_size` jobs, in chunks of `chunk_size`; the last may be shorter."""
        population = self.options.population_size
        return cut(population, self.chunk_size, first_index, round * population)

    def enough(self, rows: Rows) -> bool:
        """Both minima, of jobs and of timesteps, are met; episodes that all end before a step would never meet them."""
        timesteps = int(rows["length"].sum())
        return timesteps >= self.options.min_timesteps_per_generation or timesteps == 0

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Episodes of perturbed theta, or of theta itself."""
        perturbed = self._perturbed(state, chunk) if chunk.training else self._unperturbed(state, chunk)
        actor = self.policy.bind(perturbed, self._normaliser(state))
        return self.task.evaluate(actor, self._batch(state, chunk), poll)

    def _pair(self, job: int) -> int:
        return job // 2 if self.options.mirrored_sampling else job

    def _perturbed(self, state: State, chunk: Chunk) -> Perturbed:
        pairs = [self._pair(job) for job in chunk.job_numbers]
        first = pairs[0]
        directions = [
            self.noise.direction(state.generation, pair, 0, self.policy.size) for pair in range(first, pairs[-1] + 1)
        ]
        scales = np.full(chunk.jobs, self.options.sigma, np.float32)
        if self.options.mirrored_sampling:
            scales[[job % 2 == 1 for job in chunk.job_numbers]] *= -1
        return Perturbed(state.theta, np.stack(directions), np.array(pairs) - first, scales)

    def _unperturbed(self, state: State, chunk: Chunk) -> Perturbed:
        none = np.empty((0, self.policy.size), np.float32)
        return Perturbed(state.theta, none, np.zeros(chunk.jobs, np.intp), np.zeros(chunk.jobs, np.float32))

    def _normaliser(self, state: State) -> tuple[Float32, Float32, float] | None:
        if not self.options.observation_normalization.enabled:
            return None
        clip = self.options.observation_normalization.clip
        return state.shared["observation_mean"], state.shared["observation_std"], clip

    def _batch(self, state: State, chunk: Chunk) -> Batch:
        """Seeds by pair, so that both halves of a pair meet the same episodes; evaluation has seeds of its own."""
        purpose = Purpose.ENVIRONMENT if chunk.training else Purpose.EVALUATION
        groups = [self._pair(job) if chunk.training else job for job in chunk.job_numbers]
        seeds = {
            group: self.keys.generator(purpose, state.generation, group).integers(
                2**31, size=self.task.episodes_per_job
            )
            for group in dict.fromkeys(groups)
        }
        return Batch(
            seeds=np.stack([seeds[group] for group in groups]),
            training=chunk.training,
            observe=np.array([chunk.training and self._observed(state.generation, group) for group in groups]),
            action_noise_std=self.policy.action_noise_std,
            action_noise=partial(self._action_noise, state.generation, chunk.first_job),
        )

    def _observed(self, generation: int, pair: int) -> bool:
        normalization = self.options.observation_normalization
        if not normalization.enabled:
            return False
        drawn = self.keys.generator(Purpose.OBSERVATION_SAMPLING, generation, pair).random()
        return bool(drawn < normalization.probability)

    def _action_noise(self, generation: int, first_job: int, place: int) -> np.random.Generator:
        return self.keys.generator(Purpose.ACTION_NOISE, generation, first_job + place)

    def blocks(self) -> int:
        """Blocks of BLOCK parameters."""
        return -(-self.policy.size // BLOCK)

    def contribute(self, state: State, rows: Rows, block: int) -> Float32:
        """sum_i w_i eps_i of one block of parameters, over all pairs in their order, float32[block]."""
        start, stop = block * BLOCK, min((block + 1) * BLOCK, self.policy.size)
        weights, _ = self.weights(rows)
        total, scaled = np.zeros(stop - start, np.float32), np.empty(stop - start, np.float32)
        for pair in np.flatnonzero(weights):
            direction = self.noise.direction(state.generation, int(pair), start, stop)
            np.multiply(direction, weights[pair], out=scaled)
            total += scaled
        return total

    def weights(self, rows: Rows) -> tuple[Float32, int]:
        """w_i, float32[pairs], and how many returns they come from; failed pairs are dropped whole and weigh 0."""
        per_pair = 2 if self.options.mirrored_sampling else 1
        returns = rows["return_"].reshape(-1, per_pair)
        kept = ~np.isnan(returns).any(axis=1)
        weights = np.zeros(len(returns), np.float32)
        fitness = self._shaped(returns[kept], rows["sign_return"].reshape(-1, per_pair)[kept].astype(np.float64))
        weights[kept] = fitness[:, 0] - fitness[:, 1] if per_pair == 2 else fitness[:, 0]
        return weights, int(kept.sum()) * per_pair

    def _shaped(self, returns: Float64, sign_returns: Float64) -> Float64:
        match self.options.fitness_shaping:
            case "centered_rank":
                return centered_ranks(returns)
            case "centered_sign_rank":
                return centered_ranks(sign_returns)
            case "sign":
                return sign_returns
            case _:
                return returns

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Add weight decay, take an optimizer step, merge the observations in chunk order."""
        _, count = self.weights(results.rows)
        if not count:
            raise RunError(f"every pair of generation {state.generation} has a failed episode: nothing to learn from")
        divisor = count * self.options.sigma if self.options.divide_by_sigma else count
        ascent = np.concatenate(list(results.blocks)) / np.float32(divisor)
        gradient = np.float32(self.options.weight_decay) * state.theta - ascent
        slots, step = optimizers.step(self.options.optimizer, state.master, gradient)
        theta = state.theta + step
        moments = self._nothing_seen()
        if self.options.observation_normalization.enabled:
            moments = Moments.of(state.master)
            for arrays in results.chunk_arrays:
                moments = moments.plus(Moments.of(arrays)) if arrays else moments
        metrics = {
            "gradient_norm": norm(ascent),
            "update_ratio": norm(step) / max(norm(state.theta), 1e-12),
            "theta_norm": norm(theta),
            "observation_count": moments.count,
        }
        return self._state(state.generation + 1, theta, slots, moments), metrics

    def finished(self, state: State) -> str | None:
        """Never: a return can always be better."""
        return None

    def summary(self, state: State) -> Mapping[str, Any]:
        """Nothing besides theta."""
        return {}


def misfits(options: Options, task: Task, policy: Policy | None) -> Iterator[tuple[str, str]]:
    """Why this task or policy cannot be had: (key, text)."""
    if task.spaces is None:
        yield "task.kind", "has no episodes for a policy to act in: expected 'episodes', or another algorithm"
    elif policy is None:
        yield "policy", "is null, but evolution strategies perturb the parameters of one"


def build(options: Any, task: Task, policy: Policy, noise: Noise, keys: Keys, chunk_size: int) -> EvolutionStrategy:
    """The algorithm of `algorithm: {kind: es}`."""
    return EvolutionStrategy(options, task, policy, noise, keys, chunk_size)
