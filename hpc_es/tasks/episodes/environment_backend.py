"""The contract of environment backends, which step the environments of a chunk's jobs.

What several of them share is here, too. Environments belong to jobs and are kept from chunk to
chunk; a row is an index of the actor's batch. Implementations:

- `gymnasium_backend.py`: any environment, one after another, and vector environments
- `classic_control.py` and `mujoco/`: classic control and MuJoCo without Gymnasium's overhead
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.episodes.environments import Environment

Index = slice | npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class RunningEpisodes:
    """The episodes that are running. It stays the same object until one of them ends."""

    rows: list[int]  # ascending
    jobs: list[int]  # the job of each of these rows


@dataclass
class StepResult:
    """The result of a step of all running episodes, except observations and rewards."""

    ended: list[int] = field(default_factory=list)  # rows whose episode ended
    # the rows of `ended` whose episode a time limit truncated
    cut: list[int] = field(default_factory=list)
    # rows whose step raised; not in `ended`
    failed: list[tuple[int, BaseException]] = field(default_factory=list)
    # last infos of the rows in `ended`, if there are any
    infos: dict[int, Any] = field(default_factory=dict)
    # numbers of `report.info`, float64[running rows, keys]; NaN: missing
    numbers: Float64 | None = None


class EnvironmentBackend(Protocol):
    """Steps the environments of a chunk's jobs."""

    def chunk(self, seeds: Sequence[int]) -> AbstractContextManager[None]:
        """Provide an environment for each job of a chunk within the context.

        `seeds` are those of the jobs' first episodes.
        """
        ...

    def reset(self, job: int, seed: int) -> Array:
        """Start an episode and return its first observation, [*shape].

        Exceptions of the environment propagate.
        """
        ...

    def resume(self, job: int, seconds: float) -> None:
        """Continue the job's episode of an earlier chunk, which has taken `seconds` so far."""
        ...

    def advance(
        self, running: RunningEpisodes, actions: Array, observations: Array, rewards: Float64
    ) -> StepResult:
        """Take a step in all running episodes; write into their observations and rewards.

        `actions` [rows, ...], `observations` [rows, *shape] and `rewards` [rows] also have rows
        that are not running.
        """
        ...

    def seconds(self, job: int) -> float:
        """Return the seconds that the job's episode has taken.

        0 if episodes have no time limit in seconds.
        """
        ...

    def renew(self, job: int) -> None:
        """Replace the job's environment by a new one."""
        ...

    def close(self) -> None:
        """Release the environments and their processes."""
        ...


# Native backends: classic control and MuJoCo


class NotNativeError(Exception):
    """The reason why an environment of a supported kind has no native stepping, and the remedy."""

    def __init__(
        self, reason: str, remedy: str = "change that, or accept it by task.stepping: gymnasium"
    ) -> None:
        super().__init__(reason)
        self.remedy = remedy


class ComparisonRun(NamedTuple):
    """The size of the run that compares native stepping with Gymnasium's."""

    rows: int
    steps: int  # per row
    limit: int  # time limit of the episodes in steps


class NativeKind(Protocol):
    """A module that steps a family of environments without Gymnasium."""

    TRIAL: ComparisonRun
    COMPARED: dict[str, str]  # versions of packages that the tests compare with
    SLOWDOWN: str  # slowdown of Gymnasium's stepping (docs/speed.md)

    def is_known(self, environment: Environment) -> bool:
        """Return whether the environment belongs to the family."""
        ...

    def backend_factory(
        self, environment: Environment
    ) -> Callable[[int | None], EnvironmentBackend]:
        """Return a function from a time limit in steps to a backend.

        Raises:
            NotNativeError: it is not supported.
        """
        ...


class RowIndex:
    """Indices of the running rows and their jobs, as slices if possible."""

    def __init__(self, running: RunningEpisodes, batch_rows: int) -> None:
        self.running, self.are_all = running, len(running.rows) == batch_rows
        self.rows, self.jobs = _index(running.rows), _index(running.jobs)


def _index(positions: list[int]) -> Index:
    if positions == list(range(len(positions))):
        return slice(len(positions))
    return np.array(positions, np.intp)


class StepClock:
    """Counts the steps of each job's episode and applies the time limit; `limit` is in steps, None:
    no limit.

    Steps are counted for all running jobs at once and added to the jobs' own counts when other jobs
    begin to run.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        # steps of each job, without the `_steps` of the jobs in `_index`
        self._elapsed = np.zeros(0, np.int64)
        self._index: RowIndex | None = None
        self._steps, self._steps_left = 0, 0  # until the first job of `_index` reaches the limit

    def grow(self, jobs: int) -> None:
        """Add this many jobs."""
        self._flush()
        self._elapsed = np.concatenate([self._elapsed, np.zeros(jobs, np.int64)])

    def restart(self, job: int) -> None:
        """Set the job's count to 0, at the start of an episode."""
        self._flush()
        self._elapsed[job] = 0

    def count_step(
        self,
        index: RowIndex,
        terminated: Array | None,
        failed: Mapping[int, Exception] | None = None,
    ) -> StepResult:
        """Count a step of the running rows and return which of them ended.

        `terminated` is bool[running rows], or None if none did; `failed` maps positions in the
        running rows to exceptions.
        """
        if index is not self._index:
            self._flush()
            self._index = index
            if self._limit is not None:
                self._steps_left = self._limit - int(self._elapsed[index.jobs].max(initial=0))
        self._steps += 1
        is_terminated = terminated is not None and bool(terminated.any())
        if (
            not is_terminated
            and not failed
            and (self._limit is None or self._steps < self._steps_left)
        ):
            return StepResult()
        self._flush()
        rows, failed = index.running.rows, failed or {}
        ended = set[int]() if terminated is None else set(np.flatnonzero(terminated).tolist())
        cut = set[int]()
        if self._limit is not None:
            cut = set(np.flatnonzero(self._elapsed[index.jobs] >= self._limit).tolist())
        return StepResult(
            ended=[rows[position] for position in sorted((ended | cut) - failed.keys())],
            cut=[rows[position] for position in sorted(cut - ended - failed.keys())],
            failed=[(rows[position], error) for position, error in failed.items()],
        )

    def _flush(self) -> None:
        if self._index is not None:
            self._elapsed[self._index.jobs] += self._steps
        self._index, self._steps = None, 0
