"""What a rank keeps between updates in the middle of an episode (A3C): its environments and its policy's memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpc_es.algorithms.actor_critic.episodes import Memory, Recorder, Sampled
from hpc_es.core.acting import Batch, Segments
from hpc_es.core.data import EPISODE_LENGTH, Outcome, Poll
from hpc_es.core.errors import RunError

FAILURES_IN_A_ROW = 20  # updates in which every environment of the rank failed: this is no accident


class Worker:
    """One rank's environments, whose episodes go on from update to update, and what the policy remembers of them."""

    def __init__(self, segments: Segments, memory_shapes: Sequence[tuple[int, int, int]]) -> None:
        self._segments = segments
        self._failures = 0  # updates in a row
        self.memory: Memory = [np.zeros(shape, np.float32) for shape in memory_shapes]

    def play(self, actor: Sampled, recorder: Recorder, batch: Batch, steps: int, poll: Poll) -> Outcome:
        """Run the environments on for so many steps, each with what it remembers; RunError where they always fail."""
        if self.memory:
            actor.remember(self.memory)
        outcome = self._segments.play(recorder, batch, steps, poll)
        failed = np.isnan(outcome.rows["return_"])
        self._failures = self._failures + 1 if failed.all() else 0
        if self._failures == FAILURES_IN_A_ROW:
            text = f"every environment of a rank has failed in {self._failures} updates in a row, the last time by"
            raise RunError(f"{text} {outcome.failures[-1].text}")
        if self.memory:
            goes_on = ~failed & (outcome.rows[EPISODE_LENGTH.name] == 0)
            self.memory = [np.where(goes_on[:, None, None], held, np.float32(0)) for held in actor.memory()]
        return outcome
