"""PGPE with symmetric sampling (Sehnke et al. 2010), followed by ClipUp (Toklu et al. 2020, arXiv:2008.02387).

A pair is x = mu +- s z, with a standard deviation s for each parameter. Over the P pairs of a generation, with the
fitness F+ and F- of both halves and its mean b,

    grad_mu = s / P * sum_i (F+_i - F-_i) / 2 * z_i
    grad_s  = s / P * sum_i ((F+_i + F-_i) / 2 - b) * (z_i^2 - 1)

The optimizer follows grad_mu; s changes by its learning rate times grad_s, and by no more than a share of itself. Both
sums are cut into blocks of parameters, each over all pairs in their order by one rank. As the weights of the second sum
to 0, so does their part of the -1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.common.optimizers import norm
from hpc_es.algorithms.common.ranking import default_population, nothing_to_learn, shaped
from hpc_es.algorithms.common.strategy import PairedStrategy, Weights, first_deviations, round_of_jobs
from hpc_es.config.options import Count, Fraction, Natural, NonNegative, Positive, option, options
from hpc_es.config.warnings import unused
from hpc_es.core.data import Array, Chunk, Float64, Results, Rows, State
from hpc_es.core.interfaces import Needs
from hpc_es.core.population import Population

NEEDS = Needs(searches="vectors", noise=True, presets={"noise.kind": "counter"})
SPEEDS = 15  # of ClipUp that the first radius is, as its authors have it for Walker2d and LunarLander


@options
class Optimizer(optimizers.Options):
    """`algorithm.optimizer:` of PGPE."""

    kind: optimizers.Kind = option("none: theta moves by learning_rate times the gradient", "clipup")
    learning_rate: Positive | None = option(  # type: ignore[assignment]  # `PGPE.optimizer` has a number
        "step size; null: half of ClipUp's max_speed, and 0.01 of the others", None
    )
    max_speed: Positive | None = option(
        "length of ClipUp's longest step; null: twice the learning rate, or a fifteenth of the first radius", None
    )


@options
class Options:
    """`algorithm:` with `kind: pgpe`."""

    kind: Literal["pgpe"] = option("name of the algorithm", "pgpe")
    population_size: Count | None = option("jobs a round, two a pair; null: twice 4 + 3 ln(parameters)", None)
    min_timesteps_per_generation: Natural = option("further rounds are added until a generation has as many", 0)
    max_population_size: Count | None = option("jobs of a generation, of all rounds; null: any", None)
    sigma: Positive | None = option("standard deviation to begin with; null: from the radius", None)
    radius: Positive | None = option(
        "length of all standard deviations to begin with, sigma times the root of the parameters; null: 15 times "
        "max_speed, and without that sigma is 0.3 of the range between the bounds, or 0.3; of a policy 0.1",
        None,
    )
    sigma_learning_rate: NonNegative = option("of the standard deviations; 0: they stay", 0.1)
    sigma_max_change: Fraction = option("largest share by which a standard deviation changes in a generation", 0.2)
    sigma_min: Positive = option("smallest standard deviation", 1e-10)
    fitness_shaping: Literal["centered_rank", "none"] = option(
        "what a return is turned into: its centred rank, itself", "centered_rank"
    )
    optimizer: Optimizer = option("how theta follows the gradient", default_factory=Optimizer)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        for name in ("population_size", "max_population_size"):
            jobs = getattr(self, name)
            if jobs is not None and jobs % 2:
                yield name, f"is {jobs}: pairs need an even number (try {jobs + 1})"
        least, most = self.population_size, self.max_population_size
        if least is not None and most is not None and most < least:
            yield "max_population_size", f"is {most}: expected at least population_size, {least}"
        if self.sigma is not None and self.radius is not None:
            yield "radius", f"is {self.radius:g}, but sigma is {self.sigma:g}: leave one of them out"
        if self.sigma is not None and self.sigma < self.sigma_min:
            yield "sigma", f"is {self.sigma:g}: expected at least sigma_min, {self.sigma_min:g}"

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect: (key, text)."""
        if not self.min_timesteps_per_generation and self.population_size is not None:
            yield from unused(self, ("max_population_size",), "min_timesteps_per_generation is 0: one round is enough")
        if not self.sigma_learning_rate or not self.sigma_max_change:
            yield from unused(self, ("sigma_min",), "the standard deviations stay as they are")


@dataclass(frozen=True)
class PGPE(PairedStrategy):
    """The strategy.

    State, shared:
        theta: dtype[params]; mu, the mean
        deviations: dtype[params]; s, the standard deviation of each parameter
    State, master:
        those of `hpc_es.algorithms.common.optimizers.initial_slots`
    """

    options: Options

    powers = (1, 2)

    @cached_property
    def first_deviations(self) -> Float64:
        """The standard deviations to begin with, float64[size]."""
        given, speed = self.options, _given_speed(self.options.optimizer)
        radius = given.radius or (SPEEDS * speed if speed else None)
        sigma = given.sigma or (radius / math.sqrt(self.problem.size) if radius else None)
        step, ratios = first_deviations(sigma, self.problem)
        return np.maximum(step * ratios, given.sigma_min)

    @cached_property
    def optimizer(self) -> optimizers.Options:
        """The optimizer, with what the config leaves open."""
        given = self.options.optimizer
        if given.kind != "clipup":
            return replace(given, learning_rate=given.learning_rate or optimizers.Options.learning_rate)
        speed = _given_speed(given) or norm(self.first_deviations) / SPEEDS
        return replace(given, max_speed=speed, learning_rate=given.learning_rate or speed / 2)

    def population(self, state: State) -> int:
        """Return the jobs of a round, an even number."""
        return self.options.population_size or 2 * default_population(self.problem.size)

    def initial(self) -> State:
        """Return theta from the problem, the first standard deviations, and empty optimizer slots."""
        theta = self.first_theta()
        deviations = self.first_deviations.astype(theta.dtype)
        slots = optimizers.initial_slots(self.optimizer, len(theta), theta.dtype)
        return State(0, {"theta": theta, "deviations": deviations}, slots)

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return rounds of `population_size` jobs until there are enough timesteps, or the most jobs."""
        least, most = self.options.min_timesteps_per_generation, self.options.max_population_size
        return round_of_jobs(round, rows, self.population(state), least, most, chunk_size=self.chunk_size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return mu + s z and mu - s z."""
        return self.perturbed(state, chunk, 1.0, state.shared["deviations"])

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return the weights of z and of its square."""
        utilities = shaped(self.options.fitness_shaping, fitness, fitness)
        values = np.stack([self.pairs.differences(utilities) / 2, utilities.mean(axis=1) - utilities.mean()])
        return Weights(values, nothing_to_learn(fitness.ravel(), 1))

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Take an optimizer step, and change the standard deviations."""
        prepared: Weights = results.prepared
        theta, old, number = state.theta, state.shared["deviations"], state.theta.dtype.type
        if prepared.reason:
            nothing = np.zeros_like(theta)
            metrics = _metrics(theta, nothing, nothing, old, True)
            return replace(state, generation=state.generation + 1), metrics
        sums, squares = self.summed(results)
        ascent, growth = (old * each / number(prepared.count // 2) for each in (sums, squares))
        slots, step = optimizers.step(self.optimizer, state.master, -ascent)
        shared = {"theta": theta + step, "deviations": self._changed(old, growth)}
        metrics = _metrics(theta, step, ascent, shared["deviations"], False)
        return State(state.generation + 1, shared, slots), metrics

    def _changed(self, deviations: Array, gradient: Array) -> Array:
        given, number = self.options, deviations.dtype.type
        lower, upper = (number(1 + sign * given.sigma_max_change) for sign in (-1, 1))
        changed = deviations + number(given.sigma_learning_rate) * gradient
        kept: Array = np.clip(changed, lower * deviations, upper * deviations)
        return kept.clip(number(given.sigma_min))


def _given_speed(given: Optimizer) -> float | None:
    """Return the speed that a config gives ClipUp, itself or by the learning rate, where it does."""
    if given.kind != "clipup":
        return None
    return given.max_speed or (2 * given.learning_rate if given.learning_rate else None)


def _metrics(theta: Array, step: Array, ascent: Array, deviations: Array, skipped: bool) -> Mapping[str, float]:
    """Return the metrics; `sigma` is the geometric mean of the deviations."""
    return {
        "gradient_norm": norm(ascent),
        "update_ratio": norm(step) / max(norm(theta), 1e-12),
        "theta_norm": norm(theta + step),
        "sigma": float(np.exp(np.log(deviations, dtype=np.float64).mean())),
        "sigma_min": float(deviations.min()),
        "sigma_max": float(deviations.max()),
        "skipped_update": float(skipped),
    }


build = PGPE
