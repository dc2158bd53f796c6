"""PGPE with symmetric sampling (Sehnke et al. 2010), optimised by ClipUp.

ClipUp is that of Toklu et al. 2020 (arXiv:2008.02387). A pair is x = mu +- s z with z from N(0, I)
and a standard deviation s for each parameter. With the fitness F+_i and F-_i of both candidates of
P pairs, and the mean fitness b,

    grad_mu = s / P * sum_i (F+_i - F-_i) / 2 * z_i
    grad_s  = s / P * sum_i ((F+_i + F-_i) / 2 - b) * (z_i^2 - 1)

The optimizer follows grad_mu. The standard deviations follow grad_s with a learning rate and a
maximum relative change. Both sums are divided into blocks of parameters; one rank sums a block over
all pairs in order. The weights of the second sum add up to 0, so that its -1 has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import noise_bound, optimizers
from hpc_es.algorithms.common.delay import DelayOptions, needs_of_delayed
from hpc_es.algorithms.common.metrics import STEP_SIZE
from hpc_es.algorithms.common.optimizers import norm
from hpc_es.algorithms.common.ranking import default_population, nothing_to_learn, shaped
from hpc_es.algorithms.common.strategy import (
    PairedStrategy,
    Weights,
    first_deviations,
    round_of_jobs,
)
from hpc_es.config.options import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    option,
    options,
    unused,
)
from hpc_es.core.data import Array, Chunk, Float64, Results, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.population import Population

NEEDS = Needs(
    metrics={**STEP_SIZE, **noise_bound.METRICS},
    searches="vectors",
    noise=True,
    max_rank=1,
    presets={"noise.kind": "counter"},
)
# initial radius divided by ClipUp's maximum speed, as in the paper for Walker2d and LunarLander
RADIUS_IN_SPEEDS = 15


@options
class Optimizer(optimizers.Options):
    """`algorithm.optimizer:` of PGPE."""

    kind: optimizers.Kind = option(
        "optimizer; none: theta changes by learning_rate times the gradient", "clipup"
    )
    learning_rate: Positive | None = option(  # type: ignore[assignment]  # `PGPE.optimizer` replaces None by a number
        "learning rate; null: half of ClipUp's max_speed, 0.01 for other optimizers", None
    )
    max_speed: Positive | None = option(
        "maximum norm of a ClipUp step; null: twice the learning rate, or a fifteenth of the initial radius",
        None,
    )


@options
class Options(DelayOptions):
    """`algorithm:` with `kind: pgpe`."""

    kind: Literal["pgpe"] = option("name of the algorithm", "pgpe")
    population_size: Count | None = option(
        "evaluations per round, two per pair; null: twice 4 + 3 ln(parameters)", None
    )
    min_timesteps_per_generation: Natural = option(
        "minimum timesteps per generation: rounds are added until it is reached; 0: one round", 0
    )
    max_population_size: Count | None = option(
        "maximum evaluations per generation; null: unlimited", None
    )
    sigma: Positive | None = option("initial standard deviation; null: from the radius", None)
    radius: Positive | None = option(
        "norm of the vector of initial standard deviations, sigma times the square root of the number of parameters; "
        "null: 15 times max_speed; if that is null too, sigma is 0.3 of the range between the bounds, "
        "or 0.3; for policies 0.1",
        None,
    )
    sigma_learning_rate: NonNegative = option(
        "learning rate of the standard deviations; 0: constant", 0.1
    )
    sigma_max_change: Fraction = option(
        "maximum relative change of a standard deviation per generation", 0.2
    )
    sigma_min: Positive = option("minimum standard deviation", 1e-10)
    fitness_shaping: Literal["centered_rank", "none"] = option(
        "transformation of the returns: centred ranks, or none", "centered_rank"
    )
    optimizer: Optimizer = option("optimizer of theta", default_factory=Optimizer)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        for name in ("population_size", "max_population_size"):
            jobs = getattr(self, name)
            if jobs is not None and jobs % 2:
                yield name, f"is {jobs}: pairs need an even number (try {jobs + 1})"
        least, most = self.population_size, self.max_population_size
        if least is not None and most is not None and most < least:
            yield "max_population_size", f"is {most}: expected at least population_size, {least}"
        if self.sigma is not None and self.radius is not None:
            yield (
                "radius",
                f"is {self.radius:g}, but sigma is {self.sigma:g}: leave one of them out",
            )
        if self.sigma is not None and self.sigma < self.sigma_min:
            yield "sigma", f"is {self.sigma:g}: expected at least sigma_min, {self.sigma_min:g}"

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        if not self.min_timesteps_per_generation and self.population_size is not None:
            yield from unused(
                self,
                ("max_population_size",),
                "min_timesteps_per_generation is 0: one round is enough",
            )
        if not self.sigma_learning_rate or not self.sigma_max_change:
            yield from unused(self, ("sigma_min",), "the standard deviations are constant")


@dataclass(frozen=True)
class PGPE(PairedStrategy):
    """PGPE.

    State, shared:
        theta: dtype[params]; mu, the mean
        deviations: dtype[params]; s, standard deviation of each parameter
    State, master:
        those of `hpc_es.algorithms.common.optimizers.initial_slots`
    """

    options: Options

    powers = (1, 2)

    @cached_property
    def first_deviations(self) -> Float64:
        """The initial standard deviations, float64[size]."""
        options, max_speed = self.options, _configured_speed(self.options.optimizer)
        radius = options.radius or (RADIUS_IN_SPEEDS * max_speed if max_speed else None)
        sigma = options.sigma or (radius / math.sqrt(self.problem.size) if radius else None)
        step, ratios = first_deviations(sigma, self.problem)
        return np.maximum(step * ratios, options.sigma_min)

    @cached_property
    def optimizer(self) -> optimizers.Options:
        """The optimizer's options, with the defaults that depend on other options filled in."""
        options = self.options.optimizer
        if options.kind != "clipup":
            return replace(
                options, learning_rate=options.learning_rate or optimizers.Options.learning_rate
            )
        max_speed = _configured_speed(options) or norm(self.first_deviations) / RADIUS_IN_SPEEDS
        return replace(
            options, max_speed=max_speed, learning_rate=options.learning_rate or max_speed / 2
        )

    def population(self, state: State) -> int:
        """Return the number of jobs per round, which is even."""
        return self.options.population_size or 2 * default_population(self.problem.size)

    def initial(self) -> State:
        """Return the problem's initial theta, initial standard deviations and optimizer slots."""
        theta = self.first_theta()
        deviations = self.first_deviations.astype(theta.dtype)
        slots = optimizers.initial_slots(self.optimizer, len(theta), theta.dtype)
        return State(0, {"theta": theta, "deviations": deviations}, slots)

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return rounds of `population_size` jobs until there are enough timesteps or jobs."""
        least, most = self.options.min_timesteps_per_generation, self.options.max_population_size
        return round_of_jobs(
            round, rows, self.population(state), least, most, chunk_size=self.chunk_size
        )

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return mu + s z and mu - s z."""
        return self.perturbed(state, chunk, 1.0, state.shared["deviations"])

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return (F+ - F-) / 2, the weights of z, and (F+ + F-) / 2 - b, those of z^2.

        They are float64[2, pairs].
        """
        utilities = shaped(self.options.fitness_shaping, fitness, fitness)
        values = np.stack(
            [self.pairs.differences(utilities) / 2, utilities.mean(axis=1) - utilities.mean()]
        )
        return Weights(
            values,
            nothing_to_learn(fitness.ravel(), 1),
            noise_bound=noise_bound.noise_bound(utilities),
            deviations=state.shared["deviations"],
        )

    def tell(self, state: State, results: Results[Weights]) -> tuple[State, Mapping[str, float]]:
        """Take an optimizer step along grad_mu, and change the standard deviations along grad_s."""
        prepared = results.prepared
        mu, s, scalar = state.theta, state.shared["deviations"], state.theta.dtype.type
        if prepared.reason:
            zeros = np.zeros_like(mu)
            return replace(state, generation=state.generation + 1), _metrics(
                mu, zeros, zeros, s, skipped=True
            )
        sum_z, sum_z2 = self.summed(results)
        pairs = scalar(prepared.count // 2)
        drawn_with = prepared.deviations  # with a delay these are older than s
        grad_mu, grad_s = drawn_with * sum_z / pairs, drawn_with * sum_z2 / pairs
        slots, step = optimizers.step(self.optimizer, state.master, -grad_mu)
        max_change = self.options.sigma_max_change
        new_s = s + scalar(self.options.sigma_learning_rate) * grad_s
        new_s = np.clip(new_s, scalar(1 - max_change) * s, scalar(1 + max_change) * s)
        new_s = new_s.clip(scalar(self.options.sigma_min))
        metrics = {
            **_metrics(mu, step, grad_mu, new_s, skipped=False),
            **noise_bound.metrics(prepared.noise_bound),
        }
        return State(
            state.generation + 1, {"theta": mu + step, "deviations": new_s}, slots
        ), metrics


def _configured_speed(options: Optimizer) -> float | None:
    """Return ClipUp's maximum speed if the config sets it, directly or by the learning rate."""
    if options.kind != "clipup":
        return None
    return options.max_speed or (2 * options.learning_rate if options.learning_rate else None)


def _metrics(
    mu: Array, step: Array, gradient: Array, s: Array, skipped: bool
) -> Mapping[str, float]:
    """Return the metrics; `sigma` is the geometric mean of the standard deviations."""
    return {
        "gradient_norm": norm(gradient),
        "update_ratio": norm(step) / max(norm(mu), 1e-12),
        "theta_norm": norm(mu + step),
        "sigma": float(np.exp(np.log(s, dtype=np.float64).mean())),
        "sigma_min": float(s.min()),
        "sigma_max": float(s.max()),
        "skipped_update": float(skipped),
    }


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    needs = needs_of_delayed(NEEDS, options)
    return replace(needs, equal_generations=not options.min_timesteps_per_generation)


build = PGPE
