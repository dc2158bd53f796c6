"""Episodes in segments, for updates in the middle of an episode: environments that go on from batch to batch.

A segment has at most so many steps and ends with its episode, so that a job never sees the ends of two episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import EPISODE_LENGTH, Array, Float64, Outcome, Poll, with_columns
from hpc_es.core.policy import Actor, Batch
from hpc_es.tasks.episodes.environment_backend import Stepped, Stepping
from hpc_es.tasks.episodes.rollout import Played, Rollout


@dataclass(frozen=True)
class Paused:
    """An episode that goes on with the next batch: what its environment does not know of it."""

    observation: Array  # the last
    return_: float  # so far, as are the others
    signs: float
    steps: int
    seconds: float  # that its environment took, where they are limited
    numbers: tuple[Float64, Array] | None  # of its infos


class Segments:
    """The environments of one worker, one a job (`core/acting.Segments`)."""

    def __init__(self, task: Played) -> None:
        self._task, self._stepping = task, task.stepping()
        self._paused: Mapping[int, Paused] = {}  # by job

    def play(self, actor: Actor, batch: Batch, steps: int, poll: Poll) -> Outcome:
        """Run every job's episode on for so many steps, or to its end; rows have EPISODE_LENGTH too."""
        with self._stepping.chunk(batch.seeds[:, 0].tolist()):
            segment = Segment(self._task, self._stepping, actor, batch, steps, self._paused)
            outcome = segment.run(poll)
        self._paused = segment.paused
        return outcome

    def close(self) -> None:
        """Close the environments."""
        self._stepping.close()


class Segment(Rollout):
    """One batch. Rows are jobs: the stack is never compacted, as what the actor remembers of them goes on too."""

    def __init__(
        self,
        task: Played,
        stepping: Stepping,
        actor: Actor,
        batch: Batch,
        steps: int,
        before: Mapping[int, Paused],
    ) -> None:
        super().__init__(task, stepping, actor, batch)
        self._last_step, self._before = steps, before
        self.paused: dict[int, Paused] = {}

    def _begin(self, row: int) -> None:
        """Go on with the job's episode, or begin one."""
        if row not in self._before:
            super()._begin(row)
            return
        before = self._before[row]
        self._stepping.resume(row, before.seconds)
        self._observations[row] = before.observation
        self._episode_return[row], self._episode_signs[row] = before.return_, before.signs
        self._began[row] = -before.steps
        if self._numbers is not None and before.numbers is not None:
            self._numbers.resume(row, before.numbers)

    def _advance(self, actions: Array) -> Stepped:
        """At the last step the episodes that go on are told of as cut off: they are worth the value of their state."""
        stepped = super()._advance(actions)
        if self._taken + 1 == self._last_step:
            stepped.cut += [row for row in self._live if row not in stepped.ended]
        return stepped

    def _step(self) -> None:
        super()._step()
        if self._taken == self._last_step:
            for row in self._live:
                self._pause(row)
            self._live = []

    def _pause(self, row: int) -> None:
        so_far = float(self._episode_return[row]), float(self._episode_signs[row])
        if not np.isfinite(so_far[0]):
            self._fail(row, ValueError(f"the return is {so_far[0]}"))
            return
        steps = self._taken - self._began[row]
        seconds = self._stepping.seconds(row)
        numbers = None if self._numbers is None else self._numbers.pause(row)
        self.paused[row] = Paused(self._observations[row].copy(), *so_far, steps, seconds, numbers)
        self._total_return[row], self._total_signs[row] = so_far
        self._total_length[row] = steps

    def _compact(self) -> None:
        """Leave the stack as it is."""

    def _outcome(self) -> Outcome:
        outcome = super()._outcome()
        whole = self._total_length.copy()
        whole[[*self.paused, *np.flatnonzero(np.isnan(self._total_return))]] = 0
        rows = with_columns(outcome.rows, {EPISODE_LENGTH: whole})
        for row, before in self._before.items():
            rows["length"][row] -= before.steps
        return Outcome(rows, {}, outcome.seconds, outcome.failures, outcome.learned)
