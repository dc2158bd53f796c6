"""A normal distribution with the covariance I + v v^T: its samples, and its natural gradient in v and the scales D.

The covariance of a strategy is D (I + v v^T) D with a diagonal D. With u = v / |v|, V = |v|^2 and g = 1 + V a sample is

    y = z + (sqrt(g) - 1) (u . z) u

All of it costs as much as a few vectors. From CR-FM-NES (Nomura & Ono 2022, arXiv:2201.11422). A gradient is (s, t):
the step of log D is s, and that of v is t / |v|.


What mirrored samples weigh by their rank, and by their distance from the centre too while it travels (CR-FM-NES).

Far samples weigh exp(alpha |z|) times as much. Samples that failed are ranked as well: the farther, the worse.
From Nomura & Ono 2022 (arXiv:2201.11422).


CR-FM-NES, for up to millions of parameters that depend on each other (Nomura & Ono 2022, arXiv:2201.11422).

A sample is x = m + sigma D y, where D is diagonal and y has the covariance I + v v^T (`parts/rank_one.py`). Samples
come in mirrored pairs. While the centre travels, samples far from it weigh more (`parts/by_distance.py`).

Of a sample's z the update needs, besides sums in blocks of parameters, its length and how far it lies along v. The rank
that evaluates the sample has both, so they travel in its row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from hpc_es.algorithms.common import distribution, stopping
from hpc_es.algorithms.common.antithetic import Pairs
from hpc_es.algorithms.common.covariance import expected_length
from hpc_es.algorithms.common.distribution import DistributionStrategy, PopulationSize, Ranked
from hpc_es.algorithms.common.gradient import norm
from hpc_es.algorithms.common.ranking import sample_weights, utilities
from hpc_es.config.options import option, options
from hpc_es.core.data import Array, Arrays, Chunk, Column, Float64, Outcome, Poll, Results, Rows, State, with_columns
from hpc_es.core.interfaces import Needs
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Perturbed

Gradient = tuple[Float64, Float64]  # s and t, each float64[size]


def dot(a: Array, b: Array) -> float:
    """Return a . b, summed in float64 in an order that no library chooses."""
    return float((a * b).sum(dtype=np.float64))


@dataclass(frozen=True)
class RankOne:
    """The covariance I + v v^T."""

    v: Array  # [size]

    @cached_property
    def length(self) -> float:
        """|v|."""
        return norm(self.v)

    @cached_property
    def axis(self) -> Array:
        """The direction of v, u."""
        unit: Array = self.v / self.v.dtype.type(self.length)
        return unit

    @property
    def largest(self) -> float:
        """The largest eigenvalue, g."""
        return 1 + self.length**2

    def sample(self, z: Array, along: float) -> Array:
        """Return y of a standard normal z, or of a weighted sum of some; `along` is u . z."""
        stretched: Array = self.axis * self.axis.dtype.type((math.sqrt(self.largest) - 1) * along)
        stretched += z
        return stretched

    def gradient(self, y: Float64) -> Gradient:
        """Return what a sample gives `natural` to make its natural gradient of."""
        u, p = self.axis, dot(self.axis, y)
        return y * y - self.length**2 / self.largest * p * u * y - 1, p * y - (p * p + self.largest) / 2 * u

    def summed(self, along_z: Float64, squares: Float64, along_squared: float) -> Gradient:
        """Return the weighted sum of the gradients of some samples, whose weights sum to 0.

        They need no sample but the sums of w (u . z) z, of w z^2 and of w (u . z)^2.
        """
        u, g, root = self.axis, self.largest, math.sqrt(self.largest)
        of_scales = squares + (root - 1) ** 2 / root * u * (along_z - along_squared * u)
        return of_scales, root * along_z + (g / 2 - root) * along_squared * u

    def natural(self, gradient: Gradient) -> Gradient:
        """Return the natural gradient of the log density, damped where few coordinates have most of v: alpha < 1.

        It is 0 where v has degenerated.
        """
        (s, t), u, big, g = gradient, self.axis, self.length**2, self.largest
        o = u * u
        alpha = min(1.0, math.sqrt(big**2 + (2 * g - math.sqrt(g)) / float(o.max())) / (2 + big))
        b = 2 * alpha**2 - (1 - alpha**2) * big**2 / g
        diagonal = 2 - (b + 2 * alpha**2) * o
        s = s - alpha / g * ((2 + big) * t * u - big * dot(u, t) * o)
        shared = o / diagonal
        determinant = 1 + b * dot(o, shared)
        if not (determinant > 0 and diagonal.min() > 0):  # so large a |v| that no digit of them is right
            return np.zeros_like(s), np.zeros_like(t)
        s = s / diagonal - b * dot(shared, s) / determinant * shared
        return s, t - alpha * ((2 + big) * s * u - dot(o, s) * u)


def far_factor(size: int) -> float:
    """Return h > 0 of (1 + h^2) exp(h^2 / 2) = 0.24 (10 + n), which is alpha of a large population.

    By Newton's method on the logarithms of both sides: nothing overflows, and from a start above h it falls to h.
    """
    goal = math.log(0.24 * (10 + size))
    h = math.sqrt(2 * goal)
    for _ in range(20):
        h -= (math.log1p(h * h) + h * h / 2 - goal) / (2 * h / (1 + h * h) + h)
    return h


def standing(returns: Float64, lengths: Float64) -> Float64:
    """Return numbers in the order of the samples, a larger one is better, float64[samples].

    Those that failed come last, and of them the longest.
    """
    failed = ~np.isfinite(returns)
    places = np.empty(len(returns))
    places[~failed] = np.unique(returns[~failed], return_inverse=True)[1]
    places[failed] = -1.0 - np.unique(lengths[failed], return_inverse=True)[1]
    return places


def by_rank(returns: Float64, lengths: Float64) -> Float64:
    """Return the weights by rank, float64[samples]; they sum to 0, and samples of equal returns have equal ones."""
    return sample_weights(utilities(len(returns)), standing(returns, lengths))


def by_distance(weights: Float64, lengths: Float64, alpha: float) -> Float64:
    """Return the weights by rank and distance of those by rank; they sum to 0."""
    far = (weights + 1 / len(weights)) * np.exp(alpha * (lengths - lengths.max()))
    found: Float64 = far / far.sum() - 1 / len(weights)
    return found


@dataclass(frozen=True)
class Weights:
    """What the samples of a generation weigh in its sums of w z, w (u . z) z and w z^2."""

    each: Float64  # float64[1 or 2, samples], by rank and perhaps by distance
    along: Float64  # float64[samples], u . z
    squares: Float64  # float64[samples], |z|^2
    feasible: int  # samples that did not fail

    @cached_property
    def of_pairs(self) -> Float64:
        """What pairs weigh in each of the sums, float64[3 or 6, pairs]; halves have opposite z."""
        pairs = Pairs(mirrored=True)
        rows = []
        for weights in self.each:
            both, parts = pairs.in_pairs(weights), pairs.in_pairs(weights * self.along)
            rows += [pairs.differences(both), pairs.differences(parts), both.sum(axis=1)]
        return np.stack(rows)

    @property
    def powers(self) -> tuple[int, ...]:
        """Those of z in each of the sums."""
        return (1, 1, 2) * len(self.each)

    def chosen(self, travels: bool, sums: Float64) -> tuple[Float64, Float64]:
        """Return the weights that hold, float64[samples], and their three sums, float64[3, size]."""
        which = len(self.each) - 1 if travels else 0
        return self.each[which], sums[3 * which : 3 * which + 3]


ALONG = Column("along", "<f8")  # of a sample's z, its part along v
LENGTH = Column("norm", "<f8")  # and its length
NEEDS = Needs(searches="vectors", noise=True, columns=(ALONG, LENGTH), growing=True, presets={"noise.kind": "counter"})
MIRRORED = Pairs(mirrored=True)
KEPT = 1 << 20  # numbers, 8 MB a rank
STALLED = 100  # generations without a better return, after which a notice is due
SMALLEST = 0.1  # times which a deviation may shrink in a generation; it must not change its sign


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: cr_fm_nes`."""

    kind: Literal["cr_fm_nes"] = option("name of the algorithm", "cr_fm_nes")
    population_size: PopulationSize | None = option(
        "jobs of a generation, two a mirrored pair; null: 4 + 3 ln(parameters), made even", None
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.population_size and self.population_size % 2:
            text = f"is {self.population_size}: mirrored sampling needs an even number (try {self.population_size + 1})"
            yield "population_size", text


@dataclass(frozen=True)
class Constants:
    """What the sizes of a search say, by the names of the paper (table 1); `feasible` samples did not fail."""

    size: int
    population: int
    mueff: float
    c_s: float  # step-size path
    c_c: float  # covariance path
    chi: float  # expected length of a standard normal vector
    h: float  # how much more a far sample weighs, in a large population

    @property
    def path_step(self) -> float:
        """What the step-size path takes of a generation."""
        return math.sqrt(self.c_s * (2 - self.c_s) * self.mueff)

    def alpha(self, feasible: int) -> float:
        """Return alpha of exp(alpha |z|), by which a sample weighs more while the centre travels."""
        few = min(1.0, math.sqrt(self.population / self.size))
        return self.h * few * math.sqrt(feasible / self.population)

    def c_1(self, feasible: int) -> float:
        """Return the weight of the path in the update of the covariance; 0 for less than 6 parameters."""
        of_cma = 2 / ((self.size + 1.3) ** 2 + self.mueff)
        return of_cma * max(0, self.size - 5) / 6 * feasible / self.population

    def eta_b(self, feasible: int) -> float:
        """Return the learning rate of the covariance."""
        return math.tanh((min(0.02 * feasible, 3 * math.log(self.size)) + 5) / (0.23 * self.size + 25))

    def eta_sigma(self, path: float, feasible: int) -> float:
        """Return the learning rate of sigma, by the length of its path over chi: travelling, stagnating, converging."""
        n = self.size
        if path >= 1:
            return 1.0
        if path >= 0.1:
            return math.tanh((0.024 * feasible + 0.7 * n + 20) / (n + 12))
        return 2 * math.tanh((0.025 * feasible + 0.75 * n + 10) / (n + 4))


@lru_cache(maxsize=64)
def constants(size: int, population: int) -> Constants:
    """Return the constants of the paper."""
    mueff = float(1 / np.square(utilities(population) + 1 / population).sum())
    c_s = (mueff + 2) / (size + mueff + 5)
    c_c = (4 + mueff / size) / (size + 4 + 2 * mueff / size)
    return Constants(size, population, mueff, c_s, c_c, expected_length(size), far_factor(size))


Sampled = tuple[Perturbed, Float64, Float64]  # samples, and of each z its part along v and its length


@dataclass(frozen=True)
class CRFMNES(DistributionStrategy):
    """The strategy.

    State, shared:
        sigma: float64[]; step size
        scales: dtype[params]; the diagonal of D
        v: dtype[params]; v of the covariance I + v v^T
        path_length: float64[]; length of p_sigma
    State, master:
        sigma_path: dtype[params]; p_sigma, the path of the step size
        covariance_path: dtype[params]; p_c, the path of the covariance
    """

    options: Options

    @property
    def pairs(self) -> Pairs:
        """Which samples share a direction."""
        return MIRRORED

    def needed(self, population: int) -> int:
        """Return that one evaluation is enough: samples that failed have an order, too."""
        return 1

    def constants(self, state: State) -> Constants:
        """Return the constants of this search."""
        return constants(self.problem.size, self.population(state))

    def initial_distribution(self, step: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return these deviations, and a random v."""
        size, dtype = self.problem.size, self.problem.dtype
        drawn = self.keys.generator(Purpose.INITIAL_PARAMETERS, index=1).standard_normal(size)
        shared = {"sigma": np.array(step), "scales": ratios.astype(dtype), "v": (drawn / math.sqrt(size)).astype(dtype)}
        paths = {"sigma_path": np.zeros(size, dtype), "covariance_path": np.zeros(size, dtype)}
        return {**shared, "path_length": np.array(0.0)}, paths

    # Samples.

    def candidates(self, state: State, chunk: Chunk) -> Perturbed:
        """Return m + sigma D y and m - sigma D y."""
        return self._drawn(state, chunk)[0]

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk, and give the rows what the update needs of its samples."""
        if chunk.purpose == "train":
            candidates, along, lengths = self._drawn(state, chunk)
            outcome = self.evaluated(state, chunk, candidates, poll)
        else:
            outcome, along, lengths = super().evaluate(state, chunk, poll), np.zeros(chunk.jobs), np.zeros(chunk.jobs)
        return replace(outcome, rows=with_columns(outcome.rows, {ALONG: along, LENGTH: lengths}))

    @cached_property
    def _last(self) -> dict[str, Any]:
        return {"state": None}

    def _drawn(self, state: State, chunk: Chunk) -> Sampled:
        """Return a chunk's samples; the last ones are kept, as `ask` and `tell` want the same."""
        last = self._last
        if last["state"] is not state or last["chunk"] != chunk:
            drawn = self._made(state, chunk)
            if len(drawn[0].directions) * self.problem.size > KEPT:
                return drawn
            last.update(state=state, chunk=chunk, drawn=drawn)
        found: Sampled = last["drawn"]
        return found

    def _made(self, state: State, chunk: Chunk) -> Sampled:
        """Return a chunk's samples, and of each z its part along v and its length, from one draw of the noise."""
        jobs, size, dtype = chunk.job_numbers, self.problem.size, self.problem.dtype
        numbers, shape = self.pairs.among(jobs), RankOne(state.shared["v"])
        scales = state.shared["scales"] * dtype.type(state.shared["sigma"])
        directions, along, lengths = np.empty((len(numbers), size), dtype), *np.empty((2, len(numbers)))
        for place, pair in enumerate(numbers):
            z = self.noise.direction(state.generation, pair, 0, size)
            along[place], lengths[place] = dot(shape.axis, z), norm(z)
            np.multiply(shape.sample(z, along[place]), scales, out=directions[place])
        candidates = self.pairs.along(self.problem.layout, state.theta, directions, jobs)
        return candidates, self.pairs.signs(jobs) * along[candidates.rows], lengths[candidates.rows]

    # The update.

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return the weights of the samples; those by distance only where the path may become long enough."""
        c, along, lengths = self.constants(state), rows[ALONG.name].copy(), rows[LENGTH.name].copy()
        feasible = int(np.isfinite(fitness).sum())
        each = [by_rank(fitness, lengths)]
        moving = np.abs(self.pairs.differences(self.pairs.in_pairs(each[0])))
        longest = (1 - c.c_s) * float(state.shared["path_length"]) + c.path_step * dot(moving, lengths[::2])
        if longest >= c.chi:
            each.append(by_distance(each[0], lengths, c.alpha(feasible)))
        return Weights(np.stack(each), along, np.square(lengths), feasible)

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return the sums over a block of parameters, each direction drawn once for all of them."""
        if prepared.reason:
            return {}
        weights: Weights = prepared.weights
        return {"sums": self.weighted_sums(state, weights.of_pairs, weights.powers, block)}

    def update(self, state: State, weights: Weights, blocks: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the distribution after the equations of the paper, in their order."""
        c, old, dtype, feasible = self.constants(state), state.master, self.problem.dtype, weights.feasible
        sums = np.concatenate([block["sums"] for block in blocks], axis=1).astype(np.float64)
        p_s = (1 - c.c_s) * old["sigma_path"] + c.path_step * sums[0]
        path = norm(p_s)
        w, (z, along_z, squares) = weights.chosen(path >= c.chi, sums)
        shape, scales = RankOne(state.shared["v"].astype(np.float64)), state.shared["scales"].astype(np.float64)
        step, along = float(state.shared["sigma"]), weights.along
        y = scales * shape.sample(z, dot(w, along))
        p_c = (1 - c.c_c) * old["covariance_path"] + math.sqrt(c.c_c * (2 - c.c_c) * c.mueff) * y
        of_population = shape.summed(along_z, squares, dot(w, along * along))
        pairs = zip(of_population, shape.gradient(p_c / scales), strict=True)
        s, t = (c.eta_b(feasible) * of_samples + c.c_1(feasible) * of_path for of_samples, of_path in pairs)
        s, t = shape.natural((s, t))
        v = shape.v + t / shape.length
        scales = scales * np.maximum(1 + s, SMALLEST)
        scales /= math.exp(np.log(scales).mean() + math.log1p(norm(v) ** 2) / (2 * len(v)))
        growth = c.eta_sigma(path / c.chi, feasible) / 2 * dot(w, weights.squares) / len(v)
        vectors = {"theta": state.theta + step * y, "scales": scales, "v": v}
        shared = {name: vector.astype(dtype, copy=False) for name, vector in vectors.items()}
        numbers = {"sigma": np.array(step * math.exp(growth)), "path_length": np.array(path)}
        paths = {"sigma_path": p_s.astype(dtype, copy=False), "covariance_path": p_c.astype(dtype, copy=False)}
        return {**shared, **numbers}, paths

    def view(self, state: State) -> stopping.View:
        """Return what the criteria look at."""
        step, v = float(state.shared["sigma"]), state.shared["v"]
        deviations = step * state.shared["scales"] * np.sqrt(1 + np.square(v))
        path = step * state.master["covariance_path"]
        condition = RankOne(v.astype(np.float64)).largest  # of I + v v^T; past 1e14 v has lost the other coordinates
        return stopping.View(state.theta, self.first_sigma(state), step, deviations, path, condition=condition)

    # What is told.

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the step size, the form of the covariance, and how long the path is to its expected length."""
        scales = state.shared["scales"]
        return {
            "sigma": float(state.shared["sigma"]),
            "axis_ratio": float(scales.max() / scales.min()),
            "direction_norm": norm(state.shared["v"]),
            "path_length": float(state.shared["path_length"]) / expected_length(self.problem.size),
        }

    def notices(self, state: State, results: Results, after: State) -> Sequence[str]:
        """Return what the others say, and that the search makes no progress: its best return is of long ago.

        With many parameters and few samples the step size changes little in a generation.
        """
        told = super().notices(state, results, after)
        if int(after.master["age"]) - int(after.master["least_age"]) < STALLED:
            return told
        text = f"no better return in {STALLED} generations: a population of {self.population(state)} may be too small"
        return [*told, f"{text} for {self.problem.size:,} parameters, or sigma too large"]


build = CRFMNES
