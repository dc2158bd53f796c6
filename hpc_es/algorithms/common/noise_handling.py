"""Noisy objectives: is there noise, how much does it disturb the ranking, and what follows from it.

The method is Probe-and-Switch with RB-PEM (Wang & Lu 2026, arXiv:2606.06555).

The last candidate of the first generation is evaluated a second time, with another seed. If both
values are equal to the byte, the function counts as noiseless, and nothing else happens. Otherwise
all candidates of the generation are evaluated a second time. This is a probe, which measures the
misranking

    M = mean_i |rank_1(i) - rank_2(i)| / population

where rank_1 and rank_2 are the ranks by the first and by the second values: 0 without noise, and
1/3 - 1/(3 population^2) if there is nothing but noise. A restart has a probe of its own. If M is
below THRESHOLD, updates are the usual ones. Otherwise a generation

1. evaluates the candidates next to the boundary between the selected and the others once more, at
   most REEVALUATED of the population; a candidate counts with the mean of its values,
2. keeps the residuals of candidates with two values, r = f - mean, in a pool of POOL_SIZE as
   z = r / (s_0 + s_1 |f|), where s_0 and s_1 are fitted to |r| by least squares, both at least 0,
3. draws DRAWS rankings by f_i + (s_0 + s_1 |f_i|) z*, with z* from the pool, and updates with the
   mean of the weights that each candidate has in them; positive and negative weights, where there
   are any, have a mean each.

The residuals have the spread of a mean of two values, and so 1 / sqrt(2) of that of the noise.

A further evaluation is a job with a number of its own, and so a row with a seed of its own. Its
chunk has the difference between the numbers of job and candidate as `parent`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from hpc_es.algorithms.common.ranking import ranking
from hpc_es.core.data import Array, Arrays, Chunk, Column, Float64, Rows, State, cut, with_columns
from hpc_es.core.declarations import Metric, NoiseReport
from hpc_es.core.keys import Keys, Purpose

Mode = Literal["auto", "none", "reevaluate", "learning_rate"]
Chosen = Literal["boundary", "drawn"]

THRESHOLD = 0.12  # misranking from which updates use the mean weights of DRAWS rankings
REEVALUATED = 0.3  # largest share of the candidates that are evaluated again
LEAST_REEVALUATED = 2
BAND = 2  # ranks on both sides of the boundary whose candidates are evaluated again
DRAWS = 32  # rankings over which weights are averaged
POOL_SIZE = 512  # newest residuals
LEAST_RESIDUALS = 6  # of a fit of the scale
SMOOTHING = 0.25  # weight of a new fit
LONGEST_RESIDUAL = 10.0  # in units of the scale
LEAST_CANDIDATES = 6

CANDIDATE = Column("candidate", "<i4")  # the candidate that a job evaluates
REPEAT = Column("repeat", "<i4")  # its earlier evaluations in the same generation
COLUMNS = (CANDIDATE, REPEAT)

METRICS: Mapping[str, Metric] = {
    "misranking": Metric(
        "misranking of the last probe", is_log=True, short="misranking", is_stated=True
    ),
    "reevaluations": Metric("evaluations of a candidate beyond its first, per generation"),
}

UNKNOWN, NOISELESS, NOISY = range(3)  # values of noise_kind


@dataclass(frozen=True)
class Noise:
    """What is known about the noise.

    State, shared:
        noise_kind: int64[], if noise is handled; 0: unknown, 1: there is none, 2: there is noise
        noise_misranking: float64[], if noise is handled; M; NaN before the probe of a search
        noise_scale: float64[2], if noise is handled; s_0 and s_1
        noise_residuals: float64[512], if noise is handled; z of the newest residuals, oldest first;
            NaN: fewer so far
        noise_reevaluations: int64[], if noise is handled; further evaluations so far
    """

    kind: int = UNKNOWN
    misranking: float = math.nan
    scale: Float64 = field(default_factory=lambda: np.full(2, np.nan))
    residuals: Float64 = field(default_factory=lambda: np.full(POOL_SIZE, np.nan))
    reevaluations: int = 0

    def arrays(self) -> dict[str, Array]:
        """Return arrays of the state."""
        return {f"noise_{name}": np.array(value) for name, value in vars(self).items()}

    @classmethod
    def of(cls, shared: Arrays) -> Noise | None:
        """Return what a state knows; None if its search does not handle noise."""
        if "noise_kind" not in shared:
            return None
        return cls(
            int(shared["noise_kind"]),
            float(shared["noise_misranking"]),
            np.array(shared["noise_scale"], np.float64),
            np.array(shared["noise_residuals"], np.float64),
            int(shared["noise_reevaluations"]),
        )

    @property
    def pool(self) -> Float64:
        """The residuals in units of the scale, float64[at most POOL_SIZE]."""
        return self.residuals[~np.isnan(self.residuals)]

    @property
    def misranks(self) -> bool:
        """Whether the ranking is disturbed so much that updates use mean weights."""
        return self.kind == NOISY and self.misranking >= THRESHOLD

    def with_residuals(self, values: Float64, residuals: Float64) -> Noise:
        """Return this with further residuals, float64[k], at these values, float64[k]."""
        scale = self.scale
        if len(residuals) >= LEAST_RESIDUALS or (len(residuals) and np.isnan(scale).any()):
            fitted = fitted_scale(np.abs(values), np.abs(residuals))
            scale = fitted if np.isnan(scale).any() else scale + SMOOTHING * (fitted - scale)
        if not len(residuals):
            return self
        units = np.maximum(scale[0] + scale[1] * np.abs(values), np.finfo(np.float64).tiny)
        z = np.clip(residuals / units, -LONGEST_RESIDUAL, LONGEST_RESIDUAL)
        return replace(
            self, scale=scale, residuals=np.concatenate([self.residuals, z])[-POOL_SIZE:]
        )


def fitted_scale(sizes: Float64, residuals: Float64) -> Float64:
    """Return the s_0, s_1 >= 0 with which s_0 + s_1 size is nearest to the residuals.

    Args:
        sizes: |f|, float64[k].
        residuals: |r|, float64[k].
    """
    mean, spread = sizes.mean(), sizes - sizes.mean()
    squares = float(np.square(spread).sum())
    slope = float((spread * residuals).sum()) / squares if squares > 0 else 0.0
    offset = float(residuals.mean() - slope * mean)
    if slope < 0:
        return np.array([float(residuals.mean()), 0.0])
    if offset < 0:
        return np.array([0.0, float((sizes * residuals).sum() / np.square(sizes).sum())])
    return np.array([offset, slope])


def misranking(first: Float64, second: Float64) -> float:
    """Return M of two evaluations of the same candidates, float64[candidates] each.

    NaN if fewer than two candidates succeeded twice.
    """
    both = np.isfinite(first) & np.isfinite(second)
    count = int(both.sum())
    if count < 2:
        return math.nan
    distances = np.abs(_ranks(first[both]) - _ranks(second[both]))
    return float(distances.mean()) / count


def _ranks(values: Float64) -> Float64:
    """Return the rank of each value, float64[k], from 0."""
    ranks = np.empty(len(values))
    ranks[ranking(values)] = np.arange(len(values))
    return ranks


@dataclass(frozen=True)
class Samples:
    """The values of the candidates of a generation.

    Attributes:
        combined: mean value of each candidate, float64[candidates]; NaN if all its jobs failed.
        noise: what is known after them.
        reevaluations: evaluations of this generation beyond the first of each candidate.
    """

    combined: Float64
    noise: Noise
    reevaluations: int


@dataclass(frozen=True)
class NoiseHandling:
    """The handling of noise in one search.

    Attributes:
        keys: of the run.
        checks_first: whether one candidate decides whether there is noise, before a probe.
        always: whether candidates are evaluated again whatever the misranking, which is measured
            once.
        chosen: which candidates are evaluated again: those at the boundary of the selection, in a
            round of their own; or some that are drawn by key, in the first round.
    """

    keys: Keys
    checks_first: bool = True
    always: bool = False
    chosen: Chosen = "boundary"

    # Jobs.

    def first_round(self, state: State, population: int, chunk_size: int) -> list[Chunk]:
        """Return the further chunks of the first round of a generation."""
        noise = self._noise(state)
        if noise.kind == NOISELESS:
            return []
        if noise.kind == UNKNOWN and self.checks_first:
            return self._again([population - 1], population)
        if math.isnan(noise.misranking):
            return cut(population, chunk_size, population, parent=population)
        if self.averages(noise) and self.chosen == "drawn":
            rng = self.keys.generator(Purpose.NOISE_HANDLING, state.generation, 1)
            drawn = rng.permutation(population)[: self.most(population)]
            return self._again(np.sort(drawn).tolist(), population)
        return []

    def second_round(
        self, state: State, population: int, chunk_size: int, *, selected: int, fitness: Float64
    ) -> list[Chunk]:
        """Return the chunks of the second round.

        Args:
            selected: number of candidates with a positive weight.
            fitness: float64[jobs] of the first round.
        """
        noise, first = self._noise(state), fitness[:population]
        if noise.kind == NOISELESS or len(fitness) == 2 * population:
            return []
        if noise.kind == UNKNOWN:
            again = fitness[population]
            if not self.differ(first[-1], again):
                return []
            return cut(population - 1, chunk_size, population + 1, parent=population + 1)
        if not self.averages(noise) or self.chosen == "drawn":
            return []
        order = ranking(first)
        near = sorted(
            range(max(0, selected - BAND), min(population, selected + BAND + 1)),
            key=lambda rank: (abs(rank - selected + 0.5), rank),
        )
        band = [int(order[rank]) for rank in near if np.isfinite(first[order[rank]])]
        return self._again(sorted(band[: self.most(population)]), population)

    @staticmethod
    def differ(first: float, second: float) -> bool:
        """Return whether both evaluations succeeded, with different values: there is noise."""
        return bool(np.isfinite(first) and np.isfinite(second) and first != second)

    @staticmethod
    def most(population: int) -> int:
        """Return how many candidates of a generation are evaluated again."""
        return max(LEAST_REEVALUATED, int(REEVALUATED * population))

    def averages(self, noise: Noise) -> bool:
        """Return whether a generation evaluates candidates again and averages weights."""
        return noise.misranks or (self.always and noise.kind == NOISY)

    @staticmethod
    def _again(candidates: Sequence[int], population: int) -> list[Chunk]:
        """Return chunks of further evaluations of candidates, in ascending order."""
        jobs = range(population, population + len(candidates))
        return [
            Chunk(0, job, 1, parent=job - candidate)
            for job, candidate in zip(jobs, candidates, strict=True)
        ]

    @staticmethod
    def _noise(state: State) -> Noise:
        noise = Noise.of(state.shared)
        assert noise is not None, "a search with this handling has its arrays"
        return noise

    # Values.

    def samples(self, state: State, population: int, rows: Rows, fitness: Float64) -> Samples:
        """Return the values of the candidates, and what is known about the noise after them."""
        noise, candidates = self._noise(state), rows[CANDIDATE.name]
        first, second = fitness[:population].copy(), np.full(population, np.nan)
        second[candidates[population:]] = fitness[population:]
        combined = np.where(np.isnan(first), second, first)
        both = np.isfinite(first) & np.isfinite(second)
        # equal values stay as they are, so that a noiseless search is what it is without handling
        different = both & (first != second)
        combined[different] = 0.5 * (first[different] + second[different])
        reevaluations = len(rows) - population
        noise = replace(noise, reevaluations=noise.reevaluations + reevaluations)
        if both.any() and noise.kind != NOISELESS:
            noise = self._learned(noise, first, second)
        return Samples(combined, noise, reevaluations)

    def _learned(self, noise: Noise, first: Float64, second: Float64) -> Noise:
        """Return what is known after candidates with two values, float64[candidates] each."""
        both = np.isfinite(first) & np.isfinite(second)
        is_equal = not (first[both] != second[both]).any()
        if noise.kind == UNKNOWN and is_equal and not self.always:
            return replace(noise, kind=NOISELESS)
        probed = not np.isnan(second).all() and int(both.sum()) > self.most(len(first))
        if noise.kind == UNKNOWN and not probed:
            return noise
        r = 0.5 * (first - second)[both]  # f - mean
        values = 0.5 * (first + second)[both]
        noise = replace(
            noise.with_residuals(np.tile(values, 2), np.concatenate([r, -r])), kind=NOISY
        )
        return replace(noise, misranking=misranking(first, second)) if probed else noise

    def draws(self, state: State, samples: Samples) -> Iterator[Float64] | None:
        """Yield fitness that could have been measured instead, float64[candidates] each.

        None if the update uses the measured one.
        """
        if not self.averages(self._noise(state)) or not len(samples.noise.pool):
            return None
        return self._draws(state.generation, samples.noise, samples)

    def _draws(self, generation: int, noise: Noise, samples: Samples) -> Iterator[Float64]:
        values, pool = samples.combined, noise.pool
        scale = noise.scale[0] + noise.scale[1] * np.abs(values)
        rng = self.keys.generator(Purpose.NOISE_HANDLING, generation)
        for _ in range(DRAWS):
            yield values + scale * pool[rng.integers(len(pool), size=len(values))]

    def metrics(self, samples: Samples) -> dict[str, float]:
        """Return the values of METRICS after a generation."""
        return {
            "misranking": samples.noise.misranking,
            "reevaluations": float(samples.reevaluations),
        }

    def notices(self, before: State, after: State) -> list[str]:
        """Return what a generation has found out, for the log."""
        old, new = Noise.of(before.shared), Noise.of(after.shared)
        if old is None or new is None:
            return []
        if old.kind == UNKNOWN and new.kind == NOISELESS:
            return [
                "noise: two evaluations of a candidate gave the same value, so the function is taken as noiseless"
            ]
        is_first = math.isnan(old.misranking) and not math.isnan(new.misranking)
        if new.kind != NOISY or not is_first:
            return []
        measured = f"noise: misranking {new.misranking:.2f}"
        if self.averages(new):
            least = "" if self.always else f", at least {THRESHOLD}"
            return [
                f"{measured}{least}: up to {REEVALUATED:.0%} of the candidates are evaluated again, and updates average the weights of {DRAWS} possible rankings"
            ]
        return [f"{measured}, below {THRESHOLD}: updates as without noise"]


@dataclass(frozen=True)
class NoiseCheck(NoiseHandling):
    """One candidate shows whether there is noise; the search is that of the first evaluations."""

    def first_round(self, state: State, population: int, chunk_size: int) -> list[Chunk]:
        """Return a second evaluation of the last candidate of the first generation."""
        is_unknown = self._noise(state).kind == UNKNOWN
        return self._again([population - 1], population) if is_unknown else []

    def second_round(
        self, state: State, population: int, chunk_size: int, *, selected: int, fitness: Float64
    ) -> list[Chunk]:
        """Return no chunk."""
        return []

    def samples(self, state: State, population: int, rows: Rows, fitness: Float64) -> Samples:
        """Return the first values of the candidates, and whether there is noise."""
        noise, (first, again) = self._noise(state), np.split(fitness, [population])
        noise = replace(noise, reevaluations=noise.reevaluations + len(again))
        if len(again) and np.isfinite([first[-1], again[0]]).all():
            kind = NOISY if self.differ(first[-1], again[0]) else NOISELESS
            noise = replace(noise, kind=kind)
        return Samples(first, noise, len(again))

    def notices(self, before: State, after: State) -> list[str]:
        """Return that there is noise, for the log."""
        if self._noise(before).kind == UNKNOWN and self._noise(after).kind == NOISY:
            return ["noise: two evaluations of a candidate gave different values"]
        return []

    def metrics(self, samples: Samples) -> dict[str, float]:
        """Return {}: nothing is measured later."""
        return {}


def _cost_text(shared: Arrays) -> str | None:
    """Return what noise handling can cost, for --check; None if the first state handles none."""
    if Noise.of(shared) is None:
        return None
    population = int(shared["population"])
    most = NoiseHandling.most(population)
    return (
        f"1 to {population} further evaluations in the first generation (docs/guides/noise.md), with noise up to {most} per "
        "generation"
    )


def is_noisy(shared: Arrays) -> bool:
    """Return whether a search has measured noise, from the shared arrays of its state."""
    noise = Noise.of(shared)
    return noise is not None and noise.kind == NOISY


def report(chosen: Chosen) -> NoiseReport:
    """Return how to read what a search knows that evaluates these candidates again."""

    def rounds(population: int) -> tuple[int, ...]:
        most = NoiseHandling.most(population)
        return (population + most,) if chosen == "drawn" else (population, most)

    return NoiseReport(is_noisy, _cost_text, rounds)


def report_of_one() -> NoiseReport:
    """Return how to read what a search knows that evaluates only one candidate again."""

    def cost_text(shared: Arrays) -> str | None:
        handles = Noise.of(shared) is not None
        return "1 further evaluation in the first generation" if handles else None

    return NoiseReport(is_noisy, cost_text, lambda population: (population,))


def with_candidates(rows: Rows, chunk: Chunk) -> Rows:
    """Return the rows of a chunk, row_dtype[jobs], with COLUMNS; the centre is no candidate, -1."""
    is_candidate = chunk.purpose == "train"
    candidates = np.arange(chunk.jobs) + chunk.first_job - chunk.parent
    repeats = np.full(chunk.jobs, int(is_candidate and chunk.parent > 0))
    return with_columns(
        rows,
        {CANDIDATE: candidates if is_candidate else np.full_like(candidates, -1), REPEAT: repeats},
    )
