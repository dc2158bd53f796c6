"""Behaviours: numbers that say what an episode did, such as where it ended, for novelty search.

    task: {behaviour: {info: [x_position, y_position]}}

How many numbers there are is known before the run: where the spaces do not say it, an episode with random actions does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.config.options import Natural, option, options
from hpc_es.core.data import Array, Float64
from hpc_es.core.errors import ConfigError
from hpc_es.core.messages import nearest
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.infos import random_episode
from hpc_es.tasks.functions.resolve import named

KEY = "task.behaviour"


@options
class Options:
    """`task.behaviour:`, one of its keys."""

    final_observation: bool | tuple[Natural, ...] = option(
        "the last observation: true, or a list of the places of some of its numbers", False
    )
    info: str | tuple[str, ...] | None = option("entries of the last step's info: a key, or a list of keys", None)
    function: str | None = option(
        "module:function of one's own, called with the last observation, the last info, the return and the length", None
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        given = [name for name in ("final_observation", "info", "function") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            yield "final_observation", f"expected one of final_observation, info and function, found {found}"


@dataclass(frozen=True)
class End:
    """What is known of an episode when it is over."""

    observation: Array
    info: Mapping[str, Any]
    return_: float
    length: int  # in steps


@dataclass(frozen=True)
class Behaviour:
    """How an episode's behaviour is found, and how many numbers it has."""

    measure: Callable[[End], Any]
    size: int

    def of(self, end: End) -> Float64:
        """Return the behaviour, float64[size]; ValueError where it is of another size, or not finite."""
        found = _numbers(self.measure(end))
        if len(found) != self.size:
            raise ValueError(f"the behaviour has {len(found)} numbers, not {self.size} as in other episodes")
        if not np.isfinite(found).all():
            raise ValueError(f"the behaviour is {found.tolist()}")
        return found


def _numbers(value: Any) -> Float64:
    return np.asarray(value, np.float64).ravel()


def behaviour_of(options: Options | None, width: int, make: Callable[[], Environment]) -> Behaviour | None:
    """Return how behaviours are found in episodes with `width` observations; ConfigError where they cannot be.

    `make` gives a new environment.
    """
    if options is None:
        return None
    if options.final_observation:
        return _of_observation(options.final_observation, width)
    if options.info is not None:
        keys = (options.info,) if isinstance(options.info, str) else options.info
        return _tried(f"{KEY}.info", lambda end: _entries(end.info, keys), make, keys)
    function = named(str(options.function), f"{KEY}.function")
    called = lambda end: function(end.observation, end.info, end.return_, end.length)  # noqa: E731
    return _tried(f"{KEY}.function", called, make)


def _of_observation(places: bool | tuple[int, ...], width: int) -> Behaviour:
    if isinstance(places, bool):
        return Behaviour(lambda end: end.observation, width)
    wrong = [place for place in places if place >= width]
    if wrong:
        text = f"has {wrong[0]}, but an observation has {width} numbers: expected 0 to {width - 1}"
        raise ConfigError([(f"{KEY}.final_observation", text)])
    chosen = list(places)
    return Behaviour(lambda end: end.observation.ravel()[chosen], len(chosen))


def _entries(info: Mapping[str, Any], keys: Sequence[str]) -> Float64:
    missing = [key for key in keys if key not in info]
    if missing:
        known = ", ".join(sorted(map(str, info))) or "nothing"
        near = nearest(missing[0], map(str, info))
        raise ValueError(f"the info of the last step has no {missing[0]!r} (it has: {known}){near}")
    return np.concatenate([_numbers(info[key]) for key in keys])


def _tried(
    key: str, measure: Callable[[End], Any], make: Callable[[], Environment], needed: Sequence[str] | None = None
) -> Behaviour:
    """Return this measure with the size that it has in an episode with random actions.

    The episode need not end where all entries of the info that are `needed` are there before.
    """
    try:
        with contextlib.closing(make()) as environment:
            end = _random_end(environment, needed)
    except ConfigError:
        raise
    except Exception as error:  # around an episode of a foreign environment
        text = f"the environment fails under random actions: {type(error).__name__}: {error}"
        raise ConfigError([(key, text)]) from error
    try:
        size = len(_numbers(measure(end)))
    except Exception as error:  # around a function that is not ours
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ConfigError([(key, f"expected numbers at the end of an episode, but {said}")]) from error
    return Behaviour(measure, size)


def _random_end(environment: Environment, needed: Sequence[str] | None) -> End:
    total, length = 0.0, -1  # the first observation comes before all steps
    for step in random_episode(environment):
        observation, reward, info = step
        total, length = total + reward, length + 1
        if length and needed is not None and all(key in info for key in needed):
            break
    return End(np.asarray(observation), info, total, length)
