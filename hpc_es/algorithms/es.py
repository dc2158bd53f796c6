"""OpenAI-ES (Salimans et al. 2017, arXiv:1703.03864)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from hpc_es.common.optimizers import Options as Optimizer
from hpc_es.options import Count, Natural, NonNegative, Positive, Probability, option, options


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
    optimizer: Optimizer = option("how theta follows the gradient", default_factory=Optimizer)
    observation_normalization: ObservationNormalization = option(
        "statistics of the observations", default_factory=ObservationNormalization
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.mirrored_sampling and self.population_size % 2:
            text = f"is {self.population_size}: mirrored sampling needs an even number (try {self.population_size + 1})"
            yield "population_size", text
