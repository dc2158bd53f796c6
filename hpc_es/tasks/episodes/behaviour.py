"""Behaviours for novelty search: numbers that describe an episode, such as its final position.

    task: {behaviour: {info: [x_position, y_position]}}

The number of numbers is determined before the run, from the observation space or by an episode with
random actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.config.options import Natural, option, options
from hpc_es.config.registry import import_function
from hpc_es.core.closing import closing
from hpc_es.core.data import Array, Float64
from hpc_es.core.errors import ConfigError, error_text, nearest, one_line
from hpc_es.tasks.episodes.environments import Environment, Info, name_of
from hpc_es.tasks.episodes.infos import random_episode

KEY = "task.behaviour"


@options
class BehaviourOptions:
    """`task.behaviour:`, which takes exactly one of its keys."""

    final_observation: bool | tuple[Natural, ...] = option(
        "last observation: true for all of it, or a list of indices", False
    )
    info: str | tuple[str, ...] | None = option(
        "entries of the last info: a key or a list of keys; null: none", None
    )
    function: str | None = option(
        "module:function, called with the last observation, the last info, the return and the length; null: none",
        None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) if not exactly one key is set."""
        set_keys = [
            name for name in ("final_observation", "info", "function") if getattr(self, name)
        ]
        if len(set_keys) != 1:
            names = " and ".join(set_keys) or "none"
            yield (
                "final_observation",
                f"expected one of final_observation, info and function, found {names}",
            )


@dataclass(frozen=True)
class EpisodeEnd:
    """The end of an episode: its last observation [*shape] and info, its return and length."""

    observation: Array
    info: Info
    return_: float
    length: int  # in steps


@dataclass(frozen=True)
class Behaviour:
    """The function that computes the behaviour of an episode, and how many numbers it returns."""

    measure: Callable[[EpisodeEnd], object]
    size: int

    def compute(self, end: EpisodeEnd) -> Float64:
        """Return the behaviour, float64[size].

        Raises:
            ValueError: it has another size or is not finite.
        """
        numbers = _flat(self.measure(end))
        if len(numbers) != self.size:
            raise ValueError(
                f"the behaviour has {len(numbers)} numbers, not {self.size} as in other episodes"
            )
        if not np.isfinite(numbers).all():
            raise ValueError(f"the behaviour is {numbers.tolist()}")
        return numbers


def _flat(value: object) -> Float64:
    return np.asarray(value, np.float64).ravel()


def behaviour_from_options(
    options: BehaviourOptions | None, width: int, make: Callable[[], Environment]
) -> Behaviour | None:
    """Return the behaviour of episodes with `width` observations, or None.

    `make` returns a new environment.

    Raises:
        ConfigError: it cannot be computed.
    """
    if options is None:
        return None
    if options.final_observation:
        return _from_observation(options.final_observation, width)
    if options.info is not None:
        keys = (options.info,) if isinstance(options.info, str) else options.info
        return _from_random_episode(
            f"{KEY}.info", lambda end: _info_entries(end.info, keys), make, keys
        )
    function = import_function(str(options.function), f"{KEY}.function")
    measure = lambda end: function(end.observation, end.info, end.return_, end.length)  # noqa: E731
    return _from_random_episode(f"{KEY}.function", measure, make)


def _from_observation(indices: bool | tuple[int, ...], width: int) -> Behaviour:
    if isinstance(indices, bool):
        return Behaviour(lambda end: end.observation, width)
    wrong = [index for index in indices if index >= width]
    if wrong:
        raise ConfigError(
            [
                (
                    f"{KEY}.final_observation",
                    f"has {wrong[0]}, but an observation has {width} numbers: expected 0 to {width - 1}",
                )
            ]
        )
    chosen = list(indices)
    return Behaviour(lambda end: end.observation.ravel()[chosen], len(chosen))


def _info_entries(info: Info, keys: Sequence[str]) -> Float64:
    missing = [key for key in keys if key not in info]
    if missing:
        known = ", ".join(sorted(map(str, info))) or "nothing"
        near = nearest(missing[0], map(str, info))
        raise ValueError(f"the info of the last step has no {missing[0]!r} (it has: {known}){near}")
    return np.concatenate([_flat(info[key]) for key in keys])


def _from_random_episode(
    key: str,
    measure: Callable[[EpisodeEnd], object],
    make: Callable[[], Environment],
    needed: Sequence[str] | None = None,
) -> Behaviour:
    """Return the behaviour with the size that `measure` gives in an episode with random actions.

    The episode is stopped early once its info has all entries that are `needed`.
    """
    try:
        environment = make()
        with closing(name_of(environment), environment):
            end = _play_random_episode(environment, needed)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            [(key, f"the environment fails under random actions: {one_line(error_text(error))}")]
        ) from error
    try:
        size = len(_flat(measure(end)))
    except Exception as error:  # of the user's function
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            [(key, f"expected numbers at the end of an episode, but {reason}")]
        ) from error
    return Behaviour(measure, size)


def _play_random_episode(environment: Environment, needed: Sequence[str] | None) -> EpisodeEnd:
    total, length = 0.0, -1  # the first item is the observation of reset, not a step
    for step in random_episode(environment):
        observation, reward, info = step
        total, length = total + reward, length + 1
        if length and needed is not None and all(key in info for key in needed):
            break
    return EpisodeEnd(np.asarray(observation), info, total, length)
