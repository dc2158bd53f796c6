"""Distributions of bandits: how the arms of an episode are drawn (Wang et al. 2016, Duan et al. 2016, gym-bandits).

    pulls = family("independent").draw(rng, episodes=16)       # Arms: plain arrays, for NumPy and TensorFlow alike
    reward = (uniforms < chance) * (value + spread * normal)       # uniforms ~ U[0, 1), normal ~ N(0, 1), of this pull

Arms are numbered from 0 everywhere. The optimal arm is the one with the highest expected reward, chance * value; the
lowest number where several have it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.errors import ConfigError

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Arms:
    """The arms of some episodes, float32[episodes, 1 | trials, arms] each; 1 where they do not change in an episode."""

    chances: Float32  # that a pull pays at all
    values: Float32  # what it pays then, on average
    spreads: Float32  # standard deviation of that

    def expected(self) -> Float64:
        """Expected reward of a pull, float64[episodes, 1 | trials, arms]."""
        return self.chances.astype(np.float64) * self.values

    def optimal(self) -> Int64:
        """Return the optimal arm, from 0, int64[episodes, 1 | trials]."""
        arms: Int64 = self.expected().argmax(axis=2)
        return arms

    def best(self) -> Float64:
        """Expected reward of the optimal arm, float64[episodes, 1 | trials]."""
        best: Float64 = self.expected().max(axis=2)
        return best

    def regrets(self, pulls: Array) -> Float64:
        """Expected regret of each pull, max - chosen, float64[episodes, trials], of arms int64[episodes, trials]."""
        expected = self.expected()
        everywhere = np.broadcast_to(expected, (*pulls.shape, expected.shape[2]))
        chosen = np.take_along_axis(everywhere, pulls[:, :, np.newaxis], axis=2)[:, :, 0]
        regrets: Float64 = self.best() - chosen
        return regrets

    def rewards(self, trial: int, pulls: Array, uniforms: Float32, normal: Float32 | None = None) -> Float32:
        """float32[episodes] of pulling arms int64[episodes] in a trial; `normal` is needed where spreads are not 0."""
        at = trial if self.chances.shape[1] > 1 else 0
        rows = np.arange(len(pulls))
        paid = self.values[rows, at, pulls]
        if normal is not None:
            paid = paid + self.spreads[rows, at, pulls] * normal
        rewards: Float32 = np.where(uniforms < self.chances[rows, at, pulls], paid, np.float32(0))
        return rewards

    def of(self, episodes: Any) -> Arms:
        """Return those of some of the episodes, an index or a slice."""
        return Arms(self.chances[episodes], self.values[episodes], self.spreads[episodes])


Draw = Callable[[np.random.Generator, int], Arms]


@dataclass(frozen=True)
class Family:
    """A distribution of bandits; make it with `family`."""

    distribution: str
    arms: int
    draw: Draw  # (rng, episodes) -> Arms; the same generator gives the same arms
    is_binary: bool = True  # whether a pull pays 0 or 1
    is_noisy: bool = False  # whether spreads are not 0: a pull takes a normal number too
    changes: bool = False  # whether the arms change in an episode: its Arms have an axis of trials


def _arms(chances: Array, values: Array | float = 1.0, spreads: Array | float = 0.0) -> Arms:
    """Of chances [episodes, arms] or [episodes, trials, arms], and numbers or arrays that fit them."""

    def filled(part: Array | float) -> Float32:
        full = np.empty(chances.shape, np.float32)
        full[...] = part
        return full.reshape(len(chances), -1, chances.shape[-1])

    return Arms(filled(chances), filled(values), filled(spreads))


def _opposite(first: Array) -> Arms:
    """Two arms with the chances p and 1 - p, of float64[...]."""
    both = np.empty((*first.shape, 2))
    both[..., 0] = first
    both[..., 1] = 1.0 - first
    return _arms(both)


def independent() -> Family:
    """Two arms, each with a chance from U[0, 1]; a pull pays 1."""
    return Family("independent", 2, lambda rng, episodes: _arms(rng.random((episodes, 2))))


def uniform() -> Family:
    """Two arms with the chances p and 1 - p, p from U[0, 1]."""
    return Family("uniform", 2, lambda rng, episodes: _opposite(rng.random(episodes)))


def _either(name: str, low: float) -> Family:
    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        return _opposite(np.array([low, 1.0 - low])[rng.integers(2, size=episodes)])

    return Family(name, 2, draw)


def easy() -> Family:
    """Two arms with the chances 0.1 and 0.9, in either order."""
    return _either("easy", 0.1)


def medium() -> Family:
    """Two arms with the chances 0.25 and 0.75, in either order."""
    return _either("medium", 0.25)


def hard() -> Family:
    """Two arms with the chances 0.4 and 0.6, in either order."""
    return _either("hard", 0.4)


def eleven(non_target_reward: float = 1.1, target_reward: float = 5.0) -> Family:
    """Ten arms, one of them the target, and arm 10, which pays 0.1 * (target + 1) and so tells the target; no chance.

    The published code pays 1.1 for the other nine arms, the text of the paper says 1.
    """
    if not target_reward >= max(non_target_reward, 1.0):
        text = f"is {target_reward!r}: the target must pay most (others {non_target_reward!r}, arm 10 up to 1)"
        raise ConfigError([("family.target_reward", text)])

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        targets = rng.integers(10, size=episodes)
        values = np.full((episodes, 11), non_target_reward)
        values[np.arange(episodes), targets] = target_reward
        values[:, 10] = 0.1 * (targets + 1)
        return _arms(np.ones((episodes, 11)), values)

    return Family("eleven", 11, draw, is_binary=False)


def restless(num_trials: int = 100, walk: str = "rescaled", volatilities: Sequence[float] = (0.05, 0.2)) -> Family:
    """Two arms with the chances w and 1 - w, where w walks from trial to trial.

    walk "rescaled": the sum of 150 (or num_trials, if that is more) steps from U(-v, v), rescaled to lowest 0 and
    highest 1, of which the episode has the first; v is of no consequence. walk "gaussian": w begins at U[0, 1] and
    takes steps from N(0, v), reflected at 0 and 1; v is one of `volatilities` for an episode. The values that Wang et
    al. used are not published.
    """
    if walk not in {"rescaled", "gaussian"}:
        raise ConfigError([("family.walk", f"expected one of 'rescaled', 'gaussian', found {walk!r}")])
    _at_least("num_trials", num_trials, 1)
    if not len(volatilities) or any(not 0 <= v < np.inf for v in volatilities):
        text = f"expected a list of numbers of at least 0, not empty, found {volatilities!r}"
        raise ConfigError([("family.volatilities", text)])

    def rescaled(rng: np.random.Generator, episodes: int) -> Arms:
        path = rng.uniform(-1.0, 1.0, (episodes, max(num_trials, 150))).cumsum(axis=1)
        low, high = path.min(axis=1, keepdims=True), path.max(axis=1, keepdims=True)
        return _opposite(((path - low) / (high - low))[:, :num_trials])

    def gaussian(rng: np.random.Generator, episodes: int) -> Arms:
        start = rng.random((episodes, 1))
        v = np.asarray(volatilities, np.float64)[rng.integers(len(volatilities), size=(episodes, 1))]
        path = start + np.cumsum(v * rng.standard_normal((episodes, num_trials)), axis=1)
        path = np.mod(path, 2.0)  # mirrors at 0 and 1: a reflected walk is the walk folded onto [0, 1]
        return _opposite(np.where(path > 1.0, 2.0 - path, path))

    return Family("restless", 2, rescaled if walk == "rescaled" else gaussian, changes=True)


def k_armed(num_arms: int = 5) -> Family:
    """`num_arms` arms, each with a chance from U[0, 1]; a pull pays 1 (the setting of RL^2)."""
    _at_least("num_arms", num_arms, 1)
    return Family("k_armed", num_arms, lambda rng, episodes: _arms(rng.random((episodes, num_arms))))


def k_armed_values(num_arms: int = 10) -> Family:
    """`num_arms` arms that always pay, each a value from U[0, 1]."""
    _at_least("num_arms", num_arms, 1)

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        return _arms(np.ones((episodes, num_arms)), rng.random((episodes, num_arms)))

    return Family("k_armed_values", num_arms, draw, is_binary=False)


def k_armed_chances_and_values(num_arms: int = 10) -> Family:
    """`num_arms` arms, each with a chance and a value from U[0, 1]."""
    _at_least("num_arms", num_arms, 1)

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        chances = rng.random((episodes, num_arms))
        return _arms(chances, rng.random((episodes, num_arms)))

    return Family("k_armed_chances_and_values", num_arms, draw, is_binary=False)


def gaussian(num_arms: int = 10) -> Family:
    """`num_arms` arms that always pay, arm a from N(q_a, 1), q_a from N(0, 1)."""
    _at_least("num_arms", num_arms, 1)

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        return _arms(np.ones((episodes, num_arms)), rng.standard_normal((episodes, num_arms)), 1.0)

    return Family("gaussian", num_arms, draw, is_binary=False, is_noisy=True)


def fixed(chances: Sequence[float] = (1.0, 0.0), values: Sequence[float] | float = 1.0) -> Family:
    """Arms with these chances, and these values or this one, in every episode."""
    if not len(chances) or any(not 0.0 <= chance <= 1.0 for chance in chances):
        text = f"expected a list of numbers from 0 to 1, not empty, found {chances!r}"
        raise ConfigError([("family.chances", text)])
    if not isinstance(values, int | float) and len(values) != len(chances):
        text = f"expected a number, or one for each of the {len(chances)} chances, found {values!r}"
        raise ConfigError([("family.values", text)])
    row, paid = np.array(chances, np.float64), np.array(values, np.float64)

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        return _arms(np.tile(row, (episodes, 1)), paid)

    return Family("fixed", len(row), draw, is_binary=bool((paid == 1).all()))


def _named(name: str, chances: tuple[float, ...]) -> Callable[[], Family]:
    def build() -> Family:
        return Family(name, len(chances), fixed(chances).draw)

    return build


FAMILIES: dict[str, Callable[..., Family]] = {
    "independent": independent,
    "uniform": uniform,
    "easy": easy,
    "medium": medium,
    "hard": hard,
    "eleven": eleven,
    "restless": restless,
    "k_armed": k_armed,
    "k_armed_values": k_armed_values,
    "k_armed_chances_and_values": k_armed_chances_and_values,
    "gaussian": gaussian,
    "fixed": fixed,
    "deterministic": _named("deterministic", (1.0, 0.0)),
    "high_low": _named("high_low", (0.8, 0.2)),
    "high_high": _named("high_high", (0.8, 0.9)),
    "low_low": _named("low_low", (0.1, 0.2)),
}


def family(distribution: str, **keywords: Any) -> Family:
    """Return the distribution of this name; ConfigError names the keys `distribution` or `family.KEYWORD`.

    Keywords are those of the function of this name, such as num_arms for "k_armed".
    """
    if distribution not in FAMILIES:
        text = f"expected one of {', '.join(map(repr, FAMILIES))}, found {distribution!r}"
        raise ConfigError([("distribution", text)])
    known = inspect.signature(FAMILIES[distribution]).parameters
    takes = f"takes {', '.join(known)}" if known else "takes no keywords"
    unknown = [(f"family.{name}", f"is unknown: {distribution!r} {takes}") for name in keywords if name not in known]
    if unknown:
        raise ConfigError(unknown)
    return FAMILIES[distribution](**keywords)


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError([(f"family.{name}", f"expected a whole number of at least {least}, found {value!r}")])
