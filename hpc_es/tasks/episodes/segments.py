"""Episodes in segments, for updates in the middle of an episode: environments that go on from batch to batch.

A segment has at most so many steps and ends with its episode, so that a job never sees the ends of two episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.core.data import EPISODE_LENGTH, Float32, Outcome, Poll, with_fields
from hpc_es.core.interfaces import Actor, Batch
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.rollout import Played, Rollout
from hpc_es.tasks.timeouts import Watch


@dataclass(frozen=True)
class Paused:
    """An episode that goes on with the next batch: what its environment does not know of it."""

    observation: Float32  # float32[observations], the last
    return_: float  # so far, as are the others
    signs: float
    steps: int
    seconds: float  # that its environment took, where they are limited


class Segments:
    """The environments of one worker, one a job (`core/interfaces.Segments`)."""

    def __init__(self, task: Played) -> None:
        self._task = task
        self.pool: list[Environment] = []
        self._paused: Mapping[int, Paused] = {}  # by job

    def play(self, actor: Actor, batch: Batch, steps: int, poll: Poll) -> Outcome:
        """Run every job's episode on for so many steps, or to its end; rows have EPISODE_LENGTH too."""
        self._task.fill(self.pool, len(batch.seeds))
        with self._task.watch() as watch:
            segment = Segment(self._task, self.pool, actor, batch, watch, steps, self._paused)
            outcome = segment.run(poll)
        self._paused = segment.paused
        return outcome


class Segment(Rollout):
    """One batch. Rows are jobs: the stack is never compacted, as what the actor remembers of them goes on too."""

    def __init__(
        self,
        task: Played,
        pool: list[Environment],
        actor: Actor,
        batch: Batch,
        watch: Watch | None,
        steps: int,
        before: Mapping[int, Paused],
    ) -> None:
        super().__init__(task, pool, actor, batch, watch)
        self._last_step, self._before = steps, before
        self.paused: dict[int, Paused] = {}

    def _begin(self, row: int) -> None:
        """Go on with the job's episode, or begin one."""
        if row not in self._before:
            super()._begin(row)
            return
        before, step = self._before[row], self._pool[row].step
        if self._watch is not None:
            self._watch.restart(row, before.seconds)
            step = self._watch.timed(row, step)
        self._observations[row], self._steps[row] = before.observation, step
        self._episode_return[row], self._episode_signs[row] = before.return_, before.signs
        self._began[row] = -before.steps

    def _advance(self, actions: list[Any]) -> list[int]:
        """At the last step the episodes that go on are told of as cut off: they are worth the value of their state."""
        ended = super()._advance(actions)
        if self._taken + 1 == self._last_step:
            self._cut += [row for row in self._live if row not in ended]
        return ended

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
        seconds = 0.0 if self._watch is None else self._watch.spent(row)
        self.paused[row] = Paused(self._observations[row].copy(), *so_far, steps, seconds)
        self._total_return[row], self._total_signs[row] = so_far
        self._total_length[row] = steps

    def _compact(self) -> None:
        """Leave the stack as it is."""

    def _outcome(self) -> Outcome:
        outcome = super()._outcome()
        whole = self._total_length.copy()
        whole[[*self.paused, *np.flatnonzero(np.isnan(self._total_return))]] = 0
        rows = with_fields(outcome.rows, {EPISODE_LENGTH: whole})
        for row, before in self._before.items():
            rows["length"][row] -= before.steps
        return Outcome(rows, {}, outcome.seconds, outcome.failures, outcome.learned)
