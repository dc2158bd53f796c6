"""CR-FM-NES, for up to millions of parameters that depend on each other.

Nomura & Ono 2022, arXiv:2201.11422, whose symbols are used here. A sample is x = m + sigma D y,
where D is diagonal and y has the covariance I + v v^T. Samples come in antithetic pairs. With the
utilities w_i by rank (and by distance from m while m moves far in one direction)

    p_sigma <- (1 - c_sigma) p_sigma + sqrt(c_sigma (2 - c_sigma) mu_eff) sum_i w_i z_i
    p_c     <- (1 - c_c) p_c + sqrt(c_c (2 - c_c) mu_eff) D sum_i w_i y_i
    m       <- m + sigma D sum_i w_i y_i
    D, v    <- natural gradient step with eta_B for the samples and c_1 for D^-1 p_c, then scaled to
            determinant 1
    sigma   <- sigma exp(eta_sigma / 2 * sum_i w_i (|z_i|^2 - n) / n)

The update needs three sums over the samples, in blocks of parameters, and two numbers of each
sample: the length of z and its component along v. The rank that evaluates a sample writes these two
numbers to its row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from hpc_es.algorithms.common import distribution, stopping
from hpc_es.algorithms.common.covariance import expected_length
from hpc_es.algorithms.common.distribution import DistributionStrategy, PopulationSize, Ranked
from hpc_es.algorithms.common.metrics import WITH_PATH
from hpc_es.algorithms.common.optimizers import norm
from hpc_es.algorithms.common.ranking import sample_weights, utilities
from hpc_es.algorithms.common.strategy import Pairs
from hpc_es.config.options import option, options
from hpc_es.core.data import (
    Array,
    Arrays,
    Chunk,
    Column,
    Float64,
    Outcome,
    Poll,
    Results,
    Rows,
    State,
    with_columns,
)
from hpc_es.core.declarations import Needs
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Perturbed

ALONG = Column("along", "<f8")  # component of a sample's z along v
LENGTH = Column("norm", "<f8")  # |z|
NEEDS = Needs(
    metrics=WITH_PATH,
    searches="vectors",
    noise=True,
    columns=(ALONG, LENGTH),
    growing=True,
    presets={"noise.kind": "counter"},
)
MIRRORED = Pairs(mirrored=True)
MAX_CACHED = 1 << 20  # elements of the directions of a chunk, 8 MB per rank
STALLED = 100  # generations without a better return after which a notice is logged
MIN_FACTOR = 0.1  # smallest factor of a scale per generation; it must stay positive


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: cr_fm_nes`."""

    kind: Literal["cr_fm_nes"] = option("name of the algorithm", "cr_fm_nes")
    population_size: PopulationSize | None = option(
        "evaluations per generation, two per antithetic pair; null: 4 + 3 ln(parameters), rounded up to an even number",
        None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        yield from super().problems()
        if self.population_size and self.population_size % 2:
            yield (
                "population_size",
                f"is {self.population_size}: mirrored sampling needs an even number (try "
                f"{self.population_size + 1})",
            )


# The covariance I + v v^T.

Gradient = tuple[Float64, Float64]  # (s, t), each float64[size]: log D changes by s, v by t / |v|


def dot(a: Array, b: Array) -> float:
    """Return a . b of two vectors, [size], in float64.

    Not by BLAS, whose order of summation varies.
    """
    return float((a * b).sum(dtype=np.float64))


@dataclass(frozen=True)
class RankOne:
    """The covariance I + v v^T: its samples, and the natural gradient for v and the scales D.

    u = v / |v|, V = |v|^2 and g = 1 + V. All methods cost as much as a few vector operations.
    """

    v: Array  # [size]

    @cached_property
    def length(self) -> float:
        """|v|."""
        return norm(self.v)

    @cached_property
    def axis(self) -> Array:
        """u = v / |v|, [size]."""
        unit: Array = self.v / self.v.dtype.type(self.length)
        return unit

    @property
    def largest(self) -> float:
        """The largest eigenvalue, g."""
        return 1 + self.length**2

    def sample(self, z: Array, along: float) -> Array:
        """Return y = z + (sqrt(g) - 1) (u . z) u, [size]; `along` is u . z. It is linear in z."""
        y: Array = self.axis * self.axis.dtype.type((math.sqrt(self.largest) - 1) * along)
        y += z
        return y

    def gradient(self, y: Float64) -> Gradient:
        """Return the gradient of one sample y, float64[size]; `natural` completes it."""
        u, p = self.axis, dot(self.axis, y)
        return y * y - self.length**2 / self.largest * p * u * y - 1, p * y - (
            p * p + self.largest
        ) / 2 * u

    def summed(self, along_z: Float64, squares: Float64, along_squared: float) -> Gradient:
        """Return sum_i w_i times the gradient of sample i, for weights w that sum to 0.

        `along_z` is sum_i w_i (u . z_i) z_i and `squares` sum_i w_i z_i^2, each float64[size];
        `along_squared` is sum_i w_i (u . z_i)^2.
        """
        u, g, root = self.axis, self.largest, math.sqrt(self.largest)
        s = squares + (root - 1) ** 2 / root * u * (along_z - along_squared * u)
        return s, root * along_z + (g / 2 - root) * along_squared * u

    def natural(self, gradient: Gradient) -> Gradient:
        """Return the natural gradient, 0 if v is degenerate.

        It is damped (alpha < 1) if a few coordinates have most of v.
        """
        (s, t), u, V, g = gradient, self.axis, self.length**2, self.largest
        u2 = u * u
        alpha = min(1.0, math.sqrt(V**2 + (2 * g - math.sqrt(g)) / float(u2.max())) / (2 + V))
        b = 2 * alpha**2 - (1 - alpha**2) * V**2 / g
        diagonal = 2 - (b + 2 * alpha**2) * u2
        s = s - alpha / g * ((2 + V) * t * u - V * dot(u, t) * u2)
        scaled_u2 = u2 / diagonal
        determinant = 1 + b * dot(u2, scaled_u2)
        # |v| is so large that rounding left no correct digit
        if not (determinant > 0 and diagonal.min() > 0):
            return np.zeros_like(s), np.zeros_like(t)
        s = s / diagonal - b * dot(scaled_u2, s) / determinant * scaled_u2
        return s, t - alpha * ((2 + V) * s * u - dot(u2, s) * u)


# Weights by rank and by distance.


def far_factor(size: int) -> float:
    """Return h > 0 with (1 + h^2) exp(h^2 / 2) = 0.24 (10 + n).

    That is alpha for a large population. Newton's method on the logarithms of both sides, which
    cannot overflow; it decreases to h from its starting point.
    """
    target = math.log(0.24 * (10 + size))
    h = math.sqrt(2 * target)
    for _ in range(20):
        h -= (math.log1p(h * h) + h * h / 2 - target) / (2 * h / (1 + h * h) + h)
    return h


def standing(returns: Float64, lengths: Float64) -> Float64:
    """Return a score of each sample that orders them, higher is better, float64[samples].

    Failed samples are the worst, in the order of their |z|, float64[samples] `lengths`: the longest
    is last.
    """
    failed = ~np.isfinite(returns)
    scores = np.empty(len(returns))
    scores[~failed] = np.unique(returns[~failed], return_inverse=True)[1]
    scores[failed] = -1.0 - np.unique(lengths[failed], return_inverse=True)[1]
    return scores


def by_rank(returns: Float64, lengths: Float64) -> Float64:
    """Return the weights by rank, float64[samples] like both arguments.

    They sum to 0, and ties share theirs.
    """
    return sample_weights(utilities(len(returns)), standing(returns, lengths))


def by_distance(weights: Float64, lengths: Float64, alpha: float) -> Float64:
    """Return weights by rank and distance: those by rank times exp(alpha |z|).

    They are float64[samples], like both arguments, and sum to 0.
    """
    far = (weights + 1 / len(weights)) * np.exp(alpha * (lengths - lengths.max()))
    result: Float64 = far / far.sum() - 1 / len(weights)
    return result


@dataclass(frozen=True)
class SampleWeights:
    """Weights of the samples of a generation, and the two numbers that each sample's row has."""

    weights: Float64  # float64[1 or 2, samples], by rank, and perhaps by rank and distance
    along: Float64  # float64[samples], u . z
    squares: Float64  # float64[samples], |z|^2
    feasible: int  # number of samples that did not fail

    @cached_property
    def of_pairs(self) -> Float64:
        """Weights of the pairs in the sums of w z, w (u . z) z and w z^2, float64[3 or 6, pairs].

        Both samples of a pair have the same z with opposite signs.
        """
        rows = []
        for weights in self.weights:
            w, w_along = MIRRORED.in_pairs(weights), MIRRORED.in_pairs(weights * self.along)
            rows += [MIRRORED.differences(w), MIRRORED.differences(w_along), w.sum(axis=1)]
        return np.stack(rows)

    @property
    def powers(self) -> tuple[int, ...]:
        """Power of z in each of these sums."""
        return (1, 1, 2) * len(self.weights)

    def chosen(self, by_distance: bool, sums: Float64) -> tuple[Float64, Float64]:
        """Return the weights to use, float64[samples], and their three sums, float64[3, size]."""
        index = len(self.weights) - 1 if by_distance else 0
        return self.weights[index], sums[3 * index : 3 * index + 3]


@dataclass(frozen=True)
class CrFmNesConstants:
    """Strategy parameters of the paper (table 1).

    `feasible` is the number of samples that did not fail.
    """

    size: int
    population: int
    mu_eff: float
    c_sigma: float
    c_c: float
    chi_n: float  # E|N(0, I)|
    h: float  # alpha for a large population

    @property
    def path_step(self) -> float:
        """Factor of sum_i w_i z_i in the update of p_sigma."""
        return math.sqrt(self.c_sigma * (2 - self.c_sigma) * self.mu_eff)

    def alpha(self, feasible: int) -> float:
        """Return alpha of the weights by distance, exp(alpha |z|)."""
        few = min(1.0, math.sqrt(self.population / self.size))
        return self.h * few * math.sqrt(feasible / self.population)

    def c_1(self, feasible: int) -> float:
        """Return the learning rate of the rank-one update; 0 for fewer than 6 parameters."""
        c_1_of_cma = 2 / ((self.size + 1.3) ** 2 + self.mu_eff)
        return c_1_of_cma * max(0, self.size - 5) / 6 * feasible / self.population

    def eta_b(self, feasible: int) -> float:
        """Return the learning rate of the covariance."""
        return math.tanh(
            (min(0.02 * feasible, 3 * math.log(self.size)) + 5) / (0.23 * self.size + 25)
        )

    def eta_sigma(self, path: float, feasible: int) -> float:
        """Return the learning rate of sigma; `path` is |p_sigma| / chi_n."""
        n = self.size
        if path >= 1:  # moving
            return 1.0
        if path >= 0.1:  # stagnating
            return math.tanh((0.024 * feasible + 0.7 * n + 20) / (n + 12))
        # converging
        return 2 * math.tanh((0.025 * feasible + 0.75 * n + 10) / (n + 4))


@lru_cache(maxsize=64)
def constants(size: int, population: int) -> CrFmNesConstants:
    """Return the constants for this number of parameters."""
    mu_eff = float(1 / np.square(utilities(population) + 1 / population).sum())
    c_sigma = (mu_eff + 2) / (size + mu_eff + 5)
    c_c = (4 + mu_eff / size) / (size + 4 + 2 * mu_eff / size)
    return CrFmNesConstants(
        size, population, mu_eff, c_sigma, c_c, expected_length(size), far_factor(size)
    )


class ChunkSamples(NamedTuple):
    """Candidates of a chunk, with two numbers per sample."""

    candidates: Perturbed
    along: Float64  # float64[samples], u . z
    lengths: Float64  # float64[samples], |z|


@dataclass(frozen=True)
class CRFMNES(DistributionStrategy):
    """CR-FM-NES.

    State, shared:
        sigma: float64[]; step size
        scales: dtype[params]; diagonal of D
        v: dtype[params]; v of the covariance I + v v^T
        path_length: float64[]; |p_sigma|
    State, master:
        sigma_path: dtype[params]; p_sigma, evolution path of the step size
        covariance_path: dtype[params]; p_c, evolution path of the covariance
    """

    options: Options

    @property
    def pairs(self) -> Pairs:
        """Antithetic pairs."""
        return MIRRORED

    def needed(self, population: int) -> int:
        """Return 1: failed samples are ranked too."""
        return 1

    def constants(self, state: State) -> CrFmNesConstants:
        """Return the constants of the current search."""
        return constants(self.problem.size, self.population(state))

    def initial_distribution(self, sigma: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return the initial scales, a random v of about length 1, and paths of 0."""
        size, dtype = self.problem.size, self.problem.dtype
        v = self.keys.generator(Purpose.INITIAL_PARAMETERS, index=1).standard_normal(
            size
        ) / math.sqrt(size)
        shared = {"sigma": np.array(sigma), "scales": ratios.astype(dtype), "v": v.astype(dtype)}
        paths = {"sigma_path": np.zeros(size, dtype), "covariance_path": np.zeros(size, dtype)}
        return {**shared, "path_length": np.array(0.0)}, paths

    # Samples.

    def candidates(self, state: State, chunk: Chunk) -> Perturbed:
        """Return m + sigma D y and m - sigma D y."""
        return self._samples(state, chunk).candidates

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk; rows get the component along v and the length of each sample's z."""
        if chunk.purpose == "train":
            samples = self._samples(state, chunk)
            outcome = self.evaluated(state, chunk, samples.candidates, poll)
            along, lengths = samples.along, samples.lengths
        else:
            outcome = super().evaluate(state, chunk, poll)
            along, lengths = np.zeros(chunk.jobs), np.zeros(chunk.jobs)
        return replace(outcome, rows=with_columns(outcome.rows, {ALONG: along, LENGTH: lengths}))

    @cached_property
    def _cache(self) -> list[tuple[State, Chunk, ChunkSamples]]:
        """The samples of the last chunk: those asked for and evaluated are the same."""
        return []

    def _samples(self, state: State, chunk: Chunk) -> ChunkSamples:
        """Compute a chunk's samples, or return them from the cache."""
        cache = self._cache
        if cache and cache[0][0] is state and cache[0][1] == chunk:
            return cache[0][2]
        jobs, size, dtype = chunk.job_numbers, self.problem.size, self.problem.dtype
        pairs, shape = self.pairs.among(jobs), RankOne(state.shared["v"])
        scales = state.shared["scales"] * dtype.type(state.shared["sigma"])
        directions, along, lengths = np.empty((len(pairs), size), dtype), *np.empty((2, len(pairs)))
        for row, pair in enumerate(pairs):
            z = self.noise.direction(state.generation, pair, 0, size)
            along[row], lengths[row] = dot(shape.axis, z), norm(z)
            np.multiply(shape.sample(z, along[row]), scales, out=directions[row])
        candidates = self.pairs.along(self.problem.layout, state.theta, directions, jobs)
        rows = candidates.rows
        samples = ChunkSamples(candidates, self.pairs.signs(jobs) * along[rows], lengths[rows])
        if directions.size <= MAX_CACHED:
            cache[:] = [(state, chunk, samples)]
        return samples

    # The update.

    def weights(self, state: State, rows: Rows, fitness: Float64) -> SampleWeights:
        """Return the weights by rank.

        They are also by distance if |p_sigma| can reach chi_n in this generation.
        """
        c, along, lengths = self.constants(state), rows[ALONG.name].copy(), rows[LENGTH.name].copy()
        feasible = int(np.isfinite(fitness).sum())
        weights = [by_rank(fitness, lengths)]
        changes = np.abs(self.pairs.differences(self.pairs.in_pairs(weights[0])))
        bound = (1 - c.c_sigma) * float(state.shared["path_length"]) + c.path_step * dot(
            changes, lengths[::2]
        )
        if bound >= c.chi_n:
            weights.append(by_distance(weights[0], lengths, c.alpha(feasible)))
        return SampleWeights(np.stack(weights), along, np.square(lengths), feasible)

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return the weighted sums over a block of parameters, dtype[3 or 6, block]."""
        if prepared.reason:
            return {}
        weights: SampleWeights = prepared.weights
        return {"sums": self.weighted_sums(state, weights.of_pairs, weights.powers, block)}

    def update(
        self, state: State, weights: SampleWeights, blocks: Iterable[Arrays]
    ) -> tuple[Arrays, Arrays]:
        """Return the distribution after a generation, by the paper's equations in their order."""
        c, old, dtype, feasible = (
            self.constants(state),
            state.master,
            self.problem.dtype,
            weights.feasible,
        )
        sums = np.concatenate([block["sums"] for block in blocks], axis=1).astype(np.float64)
        p_sigma = (1 - c.c_sigma) * old["sigma_path"] + c.path_step * sums[0]
        path_length = norm(p_sigma)
        w, (z_w, along_z, squares) = weights.chosen(path_length >= c.chi_n, sums)
        shape, D = (
            RankOne(state.shared["v"].astype(np.float64)),
            state.shared["scales"].astype(np.float64),
        )
        sigma, along = float(state.shared["sigma"]), weights.along
        y_w = D * shape.sample(z_w, dot(w, along))
        p_c = (1 - c.c_c) * old["covariance_path"] + math.sqrt(c.c_c * (2 - c.c_c) * c.mu_eff) * y_w
        s_mu, t_mu = shape.summed(along_z, squares, dot(w, along * along))
        s_1, t_1 = shape.gradient(p_c / D)
        eta_b, c_1 = c.eta_b(feasible), c.c_1(feasible)
        s, t = shape.natural((eta_b * s_mu + c_1 * s_1, eta_b * t_mu + c_1 * t_1))
        v = shape.v + t / shape.length
        D = D * np.maximum(1 + s, MIN_FACTOR)
        D /= math.exp(np.log(D).mean() + math.log1p(norm(v) ** 2) / (2 * len(v)))  # determinant 1
        log_growth = (
            c.eta_sigma(path_length / c.chi_n, feasible) / 2 * dot(w, weights.squares) / len(v)
        )
        shared = {
            "theta": (state.theta + sigma * y_w).astype(dtype, copy=False),
            "scales": D.astype(dtype, copy=False),
            "v": v.astype(dtype, copy=False),
            "sigma": np.array(sigma * math.exp(log_growth)),
            "path_length": np.array(path_length),
        }
        paths = {
            "sigma_path": p_sigma.astype(dtype, copy=False),
            "covariance_path": p_c.astype(dtype, copy=False),
        }
        return shared, paths

    def view(self, state: State) -> stopping.View:
        """Return the quantities that the stopping criteria test."""
        sigma, v = float(state.shared["sigma"]), state.shared["v"]
        deviations = sigma * state.shared["scales"] * np.sqrt(1 + np.square(v))
        path = sigma * state.master["covariance_path"]
        # of I + v v^T; above 1e14, v dominates the other coordinates
        condition = RankOne(v.astype(np.float64)).largest
        return stopping.View(
            state.theta, self.first_sigma(state), sigma, deviations, path, condition=condition
        )

    # Reports.

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the step size, the axis ratio of D, |v|, and |p_sigma| / chi_n."""
        scales = state.shared["scales"]
        return {
            "sigma": float(state.shared["sigma"]),
            "axis_ratio": float(scales.max() / scales.min()),
            "direction_norm": norm(state.shared["v"]),
            "path_length": float(state.shared["path_length"]) / expected_length(self.problem.size),
        }

    def notices(self, state: State, results: Results[Ranked], after: State) -> Sequence[str]:
        """Return why there was no update, restarts, and whether there was no progress for long.

        With many parameters and few samples, the step size changes little per generation.
        """
        lines = super().notices(state, results, after)
        if (
            self.problem.changing_fitness
            or int(after.master["age"]) - int(after.master["least_age"]) < STALLED
        ):
            return lines
        return [
            *lines,
            (
                f"no better return in {STALLED} generations: a population of "
                f"{self.population(state)} may be too small for {self.problem.size:,} parameters, "
                "or sigma too large"
            ),
        ]


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    return distribution.needs_of_searches(NEEDS, options)


build = CRFMNES
