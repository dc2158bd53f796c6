"""Numbers of the infos that steps come with, as metrics: `report.info: {x_position: final, x_velocity: mean}`.

An episode's number is that of its last step, or the mean or the sum over its steps; those of all jobs become columns of
their rows. No candidate is ranked by them, so that no bit of what is learned depends on them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from hpc_es.config.schema import Reduction
from hpc_es.core.data import Array, Float64
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.messages import nearest
from hpc_es.tasks.episodes.environments import Environment

KEY = "report.info"
LONGEST = 1000  # steps of an episode with random actions

RandomStep = tuple[Any, float, Mapping[str, Any]]  # observation, reward, info


class EpisodeNumbers:
    """The numbers of a chunk's episodes while they run, by job: float64[jobs, keys]; NaN is no number."""

    def __init__(self, wanted: Mapping[str, Reduction], jobs: int) -> None:
        reductions = list(wanted.values())
        self._is_final = np.array([reduction == "final" for reduction in reductions])
        self._is_mean = np.array([reduction == "mean" for reduction in reductions])
        shape = (jobs, len(reductions))
        self._last, self._sums, self._counts = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
        self._totals, self._episodes = np.zeros(shape), np.zeros(shape, np.int64)  # of all episodes of a job

    def begin(self, job: int) -> None:
        """An episode of this job begins."""
        self._last[job], self._sums[job], self._counts[job] = np.nan, 0.0, 0

    def add(self, jobs: Sequence[int], numbers: Float64) -> None:
        """Take in a step of these jobs, float64[len(jobs), keys]."""
        present = ~np.isnan(numbers)
        self._last[jobs] = numbers
        self._sums[jobs] += np.where(present, numbers, 0.0)
        self._counts[jobs] += present

    def end(self, job: int) -> None:
        """The episode of this job is over; a key that it has no number of counts in the job's other episodes only."""
        counts = self._counts[job]
        sums = np.where(self._is_mean, self._sums[job] / np.maximum(counts, 1), self._sums[job])
        values = np.where(self._is_final, self._last[job], np.where(counts > 0, sums, np.nan))
        present = ~np.isnan(values)
        self._totals[job] += np.where(present, values, 0.0)
        self._episodes[job] += present

    def pause(self, job: int) -> tuple[Float64, Array]:
        """Return what an episode that goes on in another chunk has so far, for `resume`."""
        return self._sums[job].copy(), self._counts[job].copy()

    def resume(self, job: int, so_far: tuple[Float64, Array]) -> None:
        """Go on with an episode of an earlier chunk."""
        self.begin(job)
        self._sums[job], self._counts[job] = so_far

    def of_jobs(self) -> Float64:
        """Return the means over the episodes of each job that have the number."""
        return np.where(self._episodes > 0, self._totals / np.maximum(self._episodes, 1), np.nan)


def number(value: Any) -> float:
    """Return an entry of an info as a number, NaN where it is none: text, an array of several numbers, None."""
    if isinstance(value, Real):  # bool, int, float and NumPy's numbers
        return float(value)
    if isinstance(value, np.ndarray | np.bool_) and value.size == 1 and value.dtype.kind in "biuf":
        return float(value.item())
    return np.nan


def numbers(info: Mapping[str, Any], keys: Iterable[str]) -> list[float]:
    """Return these entries of an info."""
    return [number(info.get(key)) for key in keys]


def random_episode(environment: Environment) -> Iterator[RandomStep]:
    """Yield the first observation, then each step of an episode with random actions, at most LONGEST of them."""
    seed = Keys(0).seed31(Purpose.PROBE)
    random.seed(seed)
    np.random.seed(seed)  # as in a rollout
    environment.action_space.seed(seed)
    observation, info = environment.reset(seed=seed)
    yield observation, 0.0, info
    for _ in range(LONGEST):
        observation, reward, terminated, truncated, info = environment.step(environment.action_space.sample())
        yield observation, float(reward), info
        if terminated or truncated:
            return


def never_given(wanted: Iterable[str], name: str, infos: Callable[[], Iterator[Mapping[str, Any]]]) -> str | None:
    """Try an episode with random actions: ConfigError where its steps give none of the numbers that are wanted.

    `infos` plays one and yields the infos of its steps. Return what is to be told where the episode was too long to
    be played to its end, as a number might still come there.
    """
    observed: dict[str, Any] = {}
    steps, missing = 0, list(wanted)
    try:
        with contextlib.closing(infos()) as episode:  # type: ignore[type-var]
            for info in episode:
                steps += 1
                observed.update(info)
                missing = [key for key in missing if np.isnan(number(info.get(key)))]
                if not missing:
                    return None
    except ConfigError:
        raise
    except Exception as error:  # around an episode of a foreign environment
        text = f"{name} fails under random actions: {type(error).__name__}: {error}"
        raise ConfigError([(KEY, text)]) from error
    message = _missing(missing[0], observed, name)
    if steps < LONGEST:
        raise ConfigError([(KEY, message)])
    return f"{KEY}: {message}, in {LONGEST} steps with random actions"


def _missing(key: str, observed: Mapping[str, Any], environment: str) -> str:
    known = sorted(str(name) for name, value in observed.items() if not np.isnan(number(value)))
    if key in observed:
        value = f"{type(observed[key]).__name__} {observed[key]!r:.60}"
        return f"expected numbers, but {key!r} in the infos of {environment} is {value}"
    has = f"numbers: {', '.join(known)}" if known else "no numbers"
    return f"no info of a step of {environment} has {key!r} (there are {has}){nearest(key, known)}"
