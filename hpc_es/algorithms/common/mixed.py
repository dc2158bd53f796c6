"""Mixed search vectors: a margin for ordered levels, a distribution of their own for choices.

CMA-ES with Margin (Hamano et al. 2022, arXiv:2205.13482) rounds discrete coordinates to levels.
After each update it corrects the mean m_j and a factor A_j of the standard deviation, so that the
probability of another level never falls below alpha = 1 / (n lambda). Samples are v = m + sigma A
y; the update uses y and z as if all A_j were 1.

CatCMA (Hamano et al. 2024, arXiv:2405.09962) samples the category of each choice with probabilities
q_j, which follow the natural gradient with the step size adaptation of ASNG (Akimoto et al. 2019)
and are kept above a minimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common import stopping
from hpc_es.algorithms.common.injection import injected_in
from hpc_es.core.data import Array, Arrays, Float64, State
from hpc_es.core.interfaces import MixedCoordinates
from hpc_es.core.keys import Keys, Purpose

# of the probabilities that the margin inverts, which are at most 0.5 minus this number
LEAST_TAIL = 1e-10
# probability that a sample has the most likely category of every choice, at the end
CATEGORY_MARGIN = 0.73
STEP_RATIO = 1.5  # signal-to-noise ratio of the step size of the probabilities, alpha of ASNG
MARGIN = "margin"  # name of A in the state
PROBABILITIES = "probabilities"  # name of q in the state


def tail(distance: float) -> float:
    """Return P(N(0, 1) > distance)."""
    return 0.5 * math.erfc(distance / math.sqrt(2))


def tail_distance(probability: float) -> float:
    """Return the distance that N(0, 1) exceeds with this probability."""
    from statistics import NormalDist

    return -NormalDist().inv_cdf(probability)


def corrected(
    mean: float, factor: float, deviation: float, low: float, high: float, alpha: float
) -> tuple[float, float]:
    """Return the corrected mean m and factor A of a coordinate between two thresholds.

    One of the thresholds is infinite for the levels at both ends. `deviation` is sigma sqrt(C_jj),
    without A.
    """
    s = deviation * factor
    if math.isinf(low) or math.isinf(high):  # an end level: keep the only threshold within reach
        threshold, side = (low, 1.0) if math.isinf(high) else (high, -1.0)
        if tail(abs(mean - threshold) / s) < alpha:
            mean = threshold + side * s * tail_distance(alpha)
        return mean, factor
    below, above = tail((mean - low) / s), tail((high - mean) / s)
    least = alpha / 2
    if below >= least and above >= least:
        return mean, factor
    stay = 1 - below - above
    p_low, p_high = max(below, least), max(above, least)
    excess = (1 - p_low - p_high - stay) / (p_low + stay + p_high - 3 * least)
    p_low, p_high = p_low + excess * (p_low - least), p_high + excess * (p_high - least)
    q_low, q_high = (
        tail_distance(min(max(p, LEAST_TAIL), 0.5 - LEAST_TAIL)) for p in (p_low, p_high)
    )
    return (low * q_high + high * q_low) / (q_low + q_high), (high - low) / (
        (q_low + q_high) * deviation
    )


@dataclass(frozen=True)
class Categories:
    """The categorical distribution of several choices.

    State, shared:
        probabilities: float64[categories], if the problem has choices; q, of each category of all
            choices in order
    State, master:
        category_path: float64[free], if the problem has choices; s, evolution path of the
            probabilities
        category_weight: float64[], if the problem has choices; gamma, expected squared length of s
        category_trust: float64[], if the problem has choices; Delta
        category_step: float64[], if the problem has choices; delta, step size of the next update
    """

    counts: tuple[int, ...]  # number of categories of each choice
    keys: Keys

    def _parts(self, flat: Float64) -> list[Float64]:
        """Return the part of each choice of an array over all categories, as views."""
        return np.split(flat, np.cumsum(self.counts)[:-1])

    def initial(self) -> tuple[Arrays, Arrays]:
        """Return the arrays (shared, master) of a new search: equal probabilities."""
        probabilities = np.concatenate([np.full(count, 1 / count) for count in self.counts])
        path = np.zeros(sum(self.counts) - len(self.counts))
        numbers = {"category_weight": 0.0, "category_trust": 1.0, "category_step": 1.0}
        return {PROBABILITIES: probabilities}, {
            "category_path": path,
            **{name: np.array(number) for name, number in numbers.items()},
        }

    def sample(
        self, probabilities: Float64, generation: int, samples: Sequence[int]
    ) -> npt.NDArray[np.int64]:
        """Return the categories of these samples, int64[samples, choices]."""
        sums = [np.cumsum(part) for part in self._parts(probabilities)]
        result = np.empty((len(samples), len(self.counts)), np.int64)
        for row, sample in enumerate(samples):
            uniforms = self.keys.borrowed(Purpose.CATEGORIES, generation, sample).random(
                len(self.counts)
            )
            for column, (ends, uniform) in enumerate(zip(sums, uniforms.tolist(), strict=True)):
                result[row, column] = min(
                    int(np.searchsorted(ends, uniform, "right")), len(ends) - 1
                )
        return result

    def most_likely(self, probabilities: Float64) -> npt.NDArray[np.int64]:
        """Return the most likely category of each choice, int64[choices].

        Of equal ones it is the first.
        """
        return np.array([int(part.argmax()) for part in self._parts(probabilities)], np.int64)

    def least(self, choices: int) -> Float64:
        """Return the minimum probability of each choice's categories, float64[choices]."""
        return np.array(
            [(1 - CATEGORY_MARGIN ** (1 / choices)) / (count - 1) for count in self.counts]
        )

    def updated(
        self, old: Float64, master: Arrays, weights: Float64, categories: npt.NDArray[np.int64]
    ) -> tuple[Arrays, Arrays]:
        """Return the arrays (shared, master) after a generation.

        `old` is q, float64[categories]; `weights`, float64[samples], are at least 0 and sum to 1;
        `categories` are int64[samples, choices].
        """
        gradient, natural = np.zeros(len(old)), []
        for column, (q, part) in enumerate(
            zip(self._parts(old), self._parts(gradient), strict=True)
        ):
            part[:] = np.bincount(categories[:, column], weights, len(q)) - weights.sum() * q
            root = np.sqrt(q)
            natural.append(part[:-1] / root[:-1] + root[:-1] * part[:-1].sum() / (q[-1] + root[-1]))
        v = np.concatenate(natural)
        length = float(np.sqrt(np.square(v).sum()))
        if length == 0:
            return {}, {}
        step, trust, weight = (
            float(master[f"category_{name}"]) for name in ("step", "trust", "weight")
        )
        q = old + step * gradient / length
        step = 1 / trust
        beta = step / math.sqrt(len(v))
        path = (1 - beta) * master["category_path"] + math.sqrt(beta * (2 - beta)) * v / length
        weight = (1 - beta) ** 2 * weight + beta * (2 - beta)
        trust *= math.exp(beta * (weight - float(np.square(path).sum()) / STEP_RATIO))
        for part, least in zip(self._parts(q), self.least(len(self.counts)).tolist(), strict=True):
            raised = np.maximum(part, least)
            total = float(raised.sum())
            raised -= (total - 1) * (raised - least) / (total - len(raised) * least)
            part[:] = raised / raised.sum()
        numbers = {"category_weight": weight, "category_trust": trust, "category_step": step}
        return {PROBABILITIES: q}, {
            "category_path": path,
            **{name: np.array(number) for name, number in numbers.items()},
        }


class MixedVector:
    """The discrete part of a search vector of `size` numbers.

    State, shared:
        margin: float64[normal], if the problem has ordered discrete coordinates; A, 1 for
            continuous coordinates
        those of `hpc_es.algorithms.common.mixed.Categories`
    """

    def __init__(self, size: int, mixed: MixedCoordinates, keys: Keys) -> None:
        self._mixed = mixed
        self.choices = np.array(list(mixed.choices), np.intp)  # indices of the choices
        # indices that the normal distribution covers
        self.normal = np.setdiff1d(np.arange(size), self.choices)
        # among the normal ones
        self._ordered = np.searchsorted(self.normal, np.array(mixed.ordered, np.intp)).tolist()
        self._categories = (
            Categories(tuple(mixed.choices.values()), keys) if mixed.choices else None
        )

    def initial(self) -> tuple[Arrays, Arrays]:
        """Return the arrays (shared, master) of a new search."""
        shared, master = self._categories.initial() if self._categories else ({}, {})
        return {**({MARGIN: np.ones(len(self.normal))} if self._ordered else {}), **shared}, master

    @property
    def tested(self) -> int:
        """How many numbers `view` tests: those of the normal distribution, or the probabilities."""
        return len(self.normal) or (sum(self._categories.counts) if self._categories else 0)

    def view(self, shared: Arrays, view: stopping.View) -> stopping.View:
        """Return the input of the stopping criteria, with the factors A.

        `view` has the arrays without them. Without a normal distribution the probabilities are
        tested instead of the mean.
        """
        view = replace(
            view,
            flat_generations=3 + 30 * (len(self._ordered) + len(self.choices)) / len(view.theta),
        )
        if not len(self.normal):
            ones = np.ones(self.tested)
            return replace(view, theta=shared[PROBABILITIES], deviations=ones, path=ones, axes=None)
        axes = view.axes
        if MARGIN in shared and axes is not None:
            axes = axes[0], shared[MARGIN][:, np.newaxis] * axes[1]
        deviations = self.scaled(shared, view.deviations)
        return replace(view, theta=view.theta[self.normal], deviations=deviations, axes=axes)

    def stepped(self, theta: Array, step: Array) -> Array:
        """Return theta, dtype[size], after a step of the normal distribution's mean, [normal]."""
        mean: Array = theta.copy()
        mean[self.normal] += step
        return mean

    def scaled(self, shared: Arrays, y: Array) -> Array:
        """Return A y, [..., normal]."""
        scaled: Array = shared[MARGIN] * y if MARGIN in shared else y
        return scaled

    def unscaled(self, shared: Arrays, steps: Array) -> Array:
        """Return y of steps A y, [..., normal]."""
        y: Array = steps / shared[MARGIN] if MARGIN in shared else steps
        return y

    def candidates(
        self, shared: Arrays, generation: int, samples: Sequence[int], steps: Array
    ) -> Array:
        """Return search vectors, dtype[samples, size], from steps and categories.

        `steps`, [samples, normal], are added to theta.
        """
        vectors: Array = np.tile(shared["theta"], (len(samples), 1))
        vectors[:, self.normal] += self.scaled(shared, steps)
        if self._categories:
            vectors[:, self.choices] = self._categories.sample(
                shared[PROBABILITIES], generation, samples
            )
        return vectors

    def after_update(
        self, state: State, weights: Float64, theta: Array, deviations: Float64
    ) -> tuple[dict[str, Array], Arrays]:
        """Return the arrays that change after an update of the normal distribution.

        They are (shared, with theta; master).

        Args:
            state: the state of the generation, before the update.
            weights: float64[samples], at least 0, with the sum 1.
            theta: dtype[size], with the new mean.
            deviations: float64[normal], sigma sqrt(C_jj) after the update.
        """
        before, theta = state.shared, theta.copy()
        shared: Arrays = {}
        own: Arrays = {}
        if self._categories:
            categories = self._categories.sample(
                before[PROBABILITIES], state.generation, range(len(weights))
            )
            if (injected := injected_in(before)) is not None:
                categories[: len(injected)] = injected[:, self.choices]
            shared, own = self._categories.updated(
                before[PROBABILITIES], state.master, weights, categories
            )
            theta[self.choices] = self._categories.most_likely(
                shared.get(PROBABILITIES, before[PROBABILITIES])
            )
        if self._ordered:
            factors, alpha = before[MARGIN].copy(), 1 / (len(self.normal) * len(weights))
            for index, position in zip(self._mixed.ordered, self._ordered, strict=True):
                mean, factor = float(theta[index]), float(factors[position])
                thresholds = self._mixed.thresholds(index, mean)
                theta[index], factors[position] = corrected(
                    mean, factor, float(deviations[position]), *thresholds, alpha
                )
            shared = {**shared, MARGIN: factors}
        return {"theta": theta, **shared}, own
