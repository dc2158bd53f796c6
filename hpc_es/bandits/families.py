"""Distributions of bandits (Wang et al. 2016, Duan et al. 2016, gym-bandits).

    arms = family("independent").draw(rng, episodes=16)
    reward = (uniform < chance) * (value + spread * normal)

with uniform ~ U[0, 1) and normal ~ N(0, 1) for each trial. Arms are numbered from 0. The optimal
arm is the first of those with the highest expected reward, chance * value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_type_hints

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Limits, require_fit
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.errors import ConfigError

Int64 = npt.NDArray[np.int64]

ArmCount = Annotated[int, Limits(ge=1, le=10_000)]
Chance = Annotated[float, Limits(ge=0, le=1)]
NotNegative = Annotated[float, Limits(ge=0)]


@dataclass(frozen=True)
class Arms:
    """The arms of several episodes, each float32[episodes, 1 | trials, arms].

    1 if they are constant in an episode.
    """

    chances: Float32  # probability of a reward
    values: Float32  # mean of that reward
    spreads: Float32  # standard deviation of that reward

    def expected(self) -> Float64:
        """Return the expected reward of a pull, float64[episodes, 1 | trials, arms]."""
        return self.chances.astype(np.float64) * self.values

    def optimal(self) -> Int64:
        """Return the index of the optimal arm, int64[episodes, 1 | trials]."""
        arms: Int64 = self.expected().argmax(axis=2)
        return arms

    def best(self) -> Float64:
        """Return the expected reward of the optimal arm, float64[episodes, 1 | trials]."""
        best: Float64 = self.expected().max(axis=2)
        return best

    def regrets(self, pulls: Array) -> Float64:
        """Return the expected regret of each pull, float64[episodes, trials].

        Arms are int64[episodes, trials].
        """
        expected = self.expected()
        by_trial = np.broadcast_to(expected, (*pulls.shape, expected.shape[2]))
        chosen = np.take_along_axis(by_trial, pulls[:, :, np.newaxis], axis=2)[:, :, 0]
        regrets: Float64 = self.best() - chosen
        return regrets

    def rewards(
        self, trial: int, pulls: Array, uniforms: Float32, normal: Float32 | None = None
    ) -> Float32:
        """Return the rewards of a trial, float32[episodes].

        `pulls` are int64[episodes], random numbers float32[episodes]; `normal` is needed if spreads
        are not 0.
        """
        column = trial if self.chances.shape[1] > 1 else 0
        rows = np.arange(len(pulls))
        amounts = self.values[rows, column, pulls]
        if normal is not None:
            amounts = amounts + self.spreads[rows, column, pulls] * normal
        rewards: Float32 = np.where(
            uniforms < self.chances[rows, column, pulls], amounts, np.float32(0)
        )
        return rewards

    def select(self, episodes: npt.NDArray[np.intp] | slice) -> Arms:
        """Return the arms of the episodes with these indices, intp[selected], or in this slice."""
        return Arms(self.chances[episodes], self.values[episodes], self.spreads[episodes])


DrawArms = Callable[[np.random.Generator, int], Arms]


@dataclass(frozen=True)
class Family:
    """A distribution of bandits; `family` creates it."""

    distribution: str
    arms: int
    draw: DrawArms  # (rng, episodes) -> Arms
    is_binary: bool = True  # whether rewards are 0 or 1
    is_noisy: bool = False  # whether spreads are not 0, so that a pull also draws a normal number
    # whether arms change within an episode, so that Arms have an axis of trials
    changes: bool = False


def _arms(chances: Array, values: Array | float = 1.0, spreads: Array | float = 0.0) -> Arms:
    """Return arms from chances, and numbers or arrays of that shape.

    They are [episodes, arms] or [episodes, trials, arms].
    """

    def filled(part: Array | float) -> Float32:
        full = np.empty(chances.shape, np.float32)
        full[...] = part
        return full.reshape(len(chances), -1, chances.shape[-1])

    return Arms(filled(chances), filled(values), filled(spreads))


def _opposite(first: Array) -> Arms:
    """Return two arms with the chances p and 1 - p.

    p is float64[episodes] or [episodes, trials].
    """
    both = np.empty((*first.shape, 2))
    both[..., 0] = first
    both[..., 1] = 1.0 - first
    return _arms(both)


def independent() -> Family:
    """Two arms, each with a chance from U[0, 1]; the reward is 1."""
    return Family("independent", 2, lambda rng, episodes: _arms(rng.random((episodes, 2))))


def uniform() -> Family:
    """Two arms with the chances p and 1 - p, p from U[0, 1]."""
    return Family("uniform", 2, lambda rng, episodes: _opposite(rng.random(episodes)))


def _two_arms(name: str, low: float) -> Callable[[], Family]:
    """Return the function that creates two arms with the chances `low` and 1 - `low`.

    They are in either order.
    """

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        return _opposite(np.array([low, 1.0 - low])[rng.integers(2, size=episodes)])

    return lambda: Family(name, 2, draw)


def eleven(non_target_reward: float = 1.1, target_reward: float = 5.0) -> Family:
    """Ten arms, one of them the target, and arm 10, which reveals it; deterministic.

    The reward of arm 10 is 0.1 * (target + 1). The other nine arms give 1.1 as in the published
    code; the text of the paper says 1.
    """
    if not target_reward >= max(non_target_reward, 1.0):
        raise ConfigError(
            [
                (
                    "family.target_reward",
                    f"is {target_reward!r}: the target must give the highest reward (others "
                    f"{non_target_reward!r}, arm 10 up to 1)",
                )
            ]
        )

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        targets = rng.integers(10, size=episodes)
        values = np.full((episodes, 11), non_target_reward)
        values[np.arange(episodes), targets] = target_reward
        values[:, 10] = 0.1 * (targets + 1)
        return _arms(np.ones((episodes, 11)), values)

    return Family("eleven", 11, draw, is_binary=False)


def restless(
    num_trials: Count = 100,
    walk: Literal["rescaled", "gaussian"] = "rescaled",
    volatilities: Sequence[NotNegative] = (0.05, 0.2),
) -> Family:
    """Two arms with the chances w and 1 - w, where w is a random walk over the trials.

    With walk "rescaled", w is the cumulative sum of max(150, num_trials) steps from U(-1, 1),
    rescaled to the range [0, 1] and cut to num_trials; volatilities have no effect. With walk
    "gaussian", w begins at U[0, 1] and takes steps from N(0, v), reflected at 0 and 1, where v is
    one of `volatilities` for each episode. Wang et al. did not publish the volatilities of their
    walks.
    """
    if not len(volatilities):
        raise ConfigError([("family.volatilities", "expected at least one number")])

    def rescaled(rng: np.random.Generator, episodes: int) -> Arms:
        path = rng.uniform(-1.0, 1.0, (episodes, max(num_trials, 150))).cumsum(axis=1)
        low, high = path.min(axis=1, keepdims=True), path.max(axis=1, keepdims=True)
        return _opposite(((path - low) / (high - low))[:, :num_trials])

    def gaussian(rng: np.random.Generator, episodes: int) -> Arms:
        start = rng.random((episodes, 1))
        v = np.asarray(volatilities, np.float64)[
            rng.integers(len(volatilities), size=(episodes, 1))
        ]
        path = start + np.cumsum(v * rng.standard_normal((episodes, num_trials)), axis=1)
        # mirrors at 0 and 1: a reflected walk is the walk folded onto [0, 1]
        path = np.mod(path, 2.0)
        return _opposite(np.where(path > 1.0, 2.0 - path, path))

    return Family("restless", 2, rescaled if walk == "rescaled" else gaussian, changes=True)


def k_armed(num_arms: ArmCount = 5) -> Family:
    """`num_arms` arms, each with a chance from U[0, 1]; the reward is 1 (as in RL^2)."""
    return Family(
        "k_armed", num_arms, lambda rng, episodes: _arms(rng.random((episodes, num_arms)))
    )


def k_armed_values(num_arms: ArmCount = 10) -> Family:
    """`num_arms` arms with the chance 1, each with a value from U[0, 1]."""

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        return _arms(np.ones((episodes, num_arms)), rng.random((episodes, num_arms)))

    return Family("k_armed_values", num_arms, draw, is_binary=False)


def k_armed_chances_and_values(num_arms: ArmCount = 10) -> Family:
    """`num_arms` arms, each with a chance and a value from U[0, 1]."""

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        chances = rng.random((episodes, num_arms))
        return _arms(chances, rng.random((episodes, num_arms)))

    return Family("k_armed_chances_and_values", num_arms, draw, is_binary=False)


def gaussian(num_arms: ArmCount = 10) -> Family:
    """`num_arms` arms with the chance 1 and rewards from N(q_a, 1), each q_a from N(0, 1)."""

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        return _arms(np.ones((episodes, num_arms)), rng.standard_normal((episodes, num_arms)), 1.0)

    return Family("gaussian", num_arms, draw, is_binary=False, is_noisy=True)


def fixed(chances: Sequence[Chance] = (1.0, 0.0), values: Sequence[float] | float = 1.0) -> Family:
    """The same arms in every episode, with these chances and values."""
    if not len(chances):
        raise ConfigError([("family.chances", "expected at least one number")])
    if not isinstance(values, int | float) and len(values) != len(chances):
        raise ConfigError(
            [
                (
                    "family.values",
                    f"expected a number, or one for each of the {len(chances)} chances, "
                    f"found {values!r}",
                )
            ]
        )
    row, value_row = np.array(chances, np.float64), np.array(values, np.float64)

    def draw(rng: np.random.Generator, episodes: int) -> Arms:
        return _arms(np.tile(row, (episodes, 1)), value_row)

    return Family("fixed", len(row), draw, is_binary=bool((value_row == 1).all()))


def _named(name: str, chances: tuple[float, ...]) -> Callable[[], Family]:
    def build() -> Family:
        return Family(name, len(chances), fixed(chances).draw)

    return build


FAMILIES: dict[str, Callable[..., Family]] = {
    "independent": independent,
    "uniform": uniform,
    "easy": _two_arms("easy", 0.1),
    "medium": _two_arms("medium", 0.25),
    "hard": _two_arms("hard", 0.4),
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


def family(distribution: str, **keywords: float) -> Family:
    """Create the distribution of this name.

    Keywords are those of the function of this name, such as num_arms for "k_armed".

    Raises:
        ConfigError: for the keys `distribution` or `family.KEYWORD`.
    """
    if distribution not in FAMILIES:
        raise ConfigError(
            [
                (
                    "distribution",
                    f"expected one of {', '.join(map(repr, FAMILIES))}, found {distribution!r}",
                )
            ]
        )
    known = inspect.signature(FAMILIES[distribution]).parameters
    takes = f"takes {', '.join(known)}" if known else "takes no keywords"
    unknown = [
        (f"family.{name}", f"is unknown: {distribution!r} {takes}")
        for name in keywords
        if name not in known
    ]
    if unknown:
        raise ConfigError(unknown)
    hints = get_type_hints(FAMILIES[distribution], include_extras=True)
    for name, value in keywords.items():
        try:
            require_fit(hints[name], _plain(value), name)
        except TypeError as error:
            text = str(error).removeprefix(f"{name}: ")
            raise ConfigError([(f"family.{name}", text)]) from None
    return FAMILIES[distribution](**keywords)


def _plain(value: object) -> object:
    """Return a number or list, as YAML has them, of one that Python code passes."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
