"""Numbers of the environment's infos as metrics: `report.info: {x_position: final, x_velocity:
mean}`.

The number of an episode is that of its last step, or the mean or the sum over its steps. The
numbers of a job become a column of its row. They are reported only: no candidate is ranked by them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real

import numpy as np

from hpc_es.config.schema import Reduction
from hpc_es.core.data import Array, Float64
from hpc_es.core.errors import ConfigError, error_text, nearest, one_line
from hpc_es.core.keys import Keys, Purpose
from hpc_es.tasks.episodes.environments import Environment, Info, Observation
from hpc_es.tasks.episodes.returned_values import reset_values, step_values

KEY = "report.info"
LONGEST = 1000  # steps of an episode with random actions

RandomStep = tuple[Observation, float, Info]  # observation, reward, info


class InfoAccumulator:
    """Reduces the numbers of the steps of a chunk's episodes, for each job:
    float64[jobs, keys]; NaN: missing.
    """

    def __init__(self, reductions: Sequence[Reduction], jobs: int) -> None:
        self._is_final = np.array([reduction == "final" for reduction in reductions])
        self._is_mean = np.array([reduction == "mean" for reduction in reductions])
        shape = (jobs, len(reductions))
        self._last, self._sums, self._counts = (
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape, np.int64),
        )
        # over the job's ended episodes
        self._totals, self._episodes = np.zeros(shape), np.zeros(shape, np.int64)

    def begin(self, job: int) -> None:
        """Start an episode of this job."""
        self._last[job], self._sums[job], self._counts[job] = np.nan, 0.0, 0

    def add(self, jobs: Sequence[int], numbers: Float64) -> None:
        """Add a step of these jobs; `numbers` are float64[len(jobs), keys]."""
        present = ~np.isnan(numbers)
        self._last[jobs] = numbers
        self._sums[jobs] += np.where(present, numbers, 0.0)
        self._counts[jobs] += present

    def end(self, job: int) -> None:
        """End the episode of this job; it does not count for keys without a number."""
        counts = self._counts[job]
        sums = np.where(self._is_mean, self._sums[job] / np.maximum(counts, 1), self._sums[job])
        values = np.where(self._is_final, self._last[job], np.where(counts > 0, sums, np.nan))
        present = ~np.isnan(values)
        self._totals[job] += np.where(present, values, 0.0)
        self._episodes[job] += present

    def pause(self, job: int) -> tuple[Float64, Array]:
        """Return the sums and counts of an episode that another chunk continues.

        They are float64[keys] and int64[keys].
        """
        return self._sums[job].copy(), self._counts[job].copy()

    def resume(self, job: int, sums_and_counts: tuple[Float64, Array]) -> None:
        """Continue an episode of an earlier chunk from the result of `pause`."""
        self.begin(job)
        self._sums[job], self._counts[job] = sums_and_counts

    def complete_means(self, episodes: int) -> Float64:
        """Return the means, float64[jobs, keys].

        NaN for jobs in which one of so many episodes lacks the number.
        """
        return np.where(self._episodes == episodes, self.job_means(), np.nan)

    def job_means(self) -> Float64:
        """Return the mean over each job's episodes that have the number, float64[jobs, keys]."""
        return np.where(self._episodes > 0, self._totals / np.maximum(self._episodes, 1), np.nan)


def as_number(value: object) -> float:
    """Return an entry of an info as a number.

    NaN if it is text, None, an array of several numbers or the like.
    """
    if isinstance(value, Real):  # bool, int, float and NumPy's scalars
        return float(value)
    if isinstance(value, np.ndarray | np.bool_) and value.size == 1 and value.dtype.kind in "biuf":
        return float(value.item())
    return np.nan


def as_numbers(info: Mapping[str, object], keys: Iterable[str]) -> list[float]:
    """Return these entries of an info as numbers, NaN if missing."""
    return [as_number(info.get(key)) for key in keys]


def random_episode(environment: Environment) -> Iterator[RandomStep]:
    """Yield the first observation, then each step of an episode with random actions.

    There are at most LONGEST steps.
    """
    seed = Keys(0).seed31(Purpose.PROBE)
    random.seed(seed)
    np.random.seed(seed)  # as in a rollout
    environment.action_space.seed(seed)
    observation, info = reset_values(environment.reset(seed=seed))
    yield observation, 0.0, info
    for _ in range(LONGEST):
        returned = environment.step(environment.action_space.sample())
        observation, reward, terminated, truncated, info = step_values(returned)
        yield observation, reward, info
        if terminated or truncated:
            return


def check_info_keys(
    wanted: Iterable[str],
    name: str,
    infos: Callable[[], Iterator[Mapping[str, object]]],
    option: str = KEY,
) -> str | None:
    """Check in an episode with random actions that the infos have the wanted numbers.

    `infos` plays the episode and yields the infos of its steps; `option` names the keys in
    messages. If the episode is longer than LONGEST steps, a missing number may still appear at its
    end: a text for the user is returned instead.

    Raises:
        ConfigError: they have not.
    """
    merged_infos: dict[str, object] = {}
    steps, missing = 0, list(wanted)
    try:
        with contextlib.closing(infos()) as episode:  # type: ignore[type-var]
            for info in episode:
                steps += 1
                merged_infos.update(info)
                missing = [key for key in missing if np.isnan(as_number(info.get(key)))]
                if not missing:
                    return None
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            [(option, f"{name} fails under random actions: {one_line(error_text(error))}")]
        ) from error
    message = _missing_key_message(missing[0], merged_infos, name)
    if steps < LONGEST:
        raise ConfigError([(option, message)])
    return f"{option}: {message}, in {LONGEST} steps with random actions"


def _missing_key_message(key: str, merged_infos: Mapping[str, object], environment: str) -> str:
    known = sorted(
        str(name) for name, value in merged_infos.items() if not np.isnan(as_number(value))
    )
    if key in merged_infos:
        return (
            f"expected numbers, but {key!r} in the infos of {environment} is "
            f"{type(merged_infos[key]).__name__} {merged_infos[key]!r:.60}"
        )
    has = f"numbers: {', '.join(known)}" if known else "no numbers"
    return f"no info of a step of {environment} has {key!r} (it has {has}){nearest(key, known)}"
