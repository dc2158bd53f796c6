"""Simulates generations in flight (`algorithm.delay`) event by event.

`training/delayed.py` runs them. Rank 0 opens generation t when the update of generation t - delay -
1 is made, hands out chunks of the oldest generation first, and makes each update when its
generation is complete.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hpc_es.training.delayed import AHEAD_SECONDS, SHARED_UPDATE_SECONDS

Rounds = Sequence[Sequence[float]]  # seconds of the chunks of each round of a generation


@dataclass(frozen=True)
class DelayOverheads:
    """Seconds that are not spent on evaluations."""

    update: float = 0.0  # of rank 0, per generation, without the blocks
    block: float = 0.0  # of a block of the update
    blocks: int = 0  # which rank 0 shares with workers that wait, if they take long
    dispatch: float = 0.0  # of rank 0, per message
    latency: float = 0.0  # of a message
    transfer: float = 0.0  # of rank 0's link, to send the state of a generation to one worker
    poll: float = 0.0  # until rank 0 looks at a message during its own chunk


class DelayedSimulation:
    """Workers that evaluate the chunks of up to `delay` + 1 open generations.

    Rank 0 is worker 0 if it evaluates.
    """

    def __init__(
        self,
        generations: Sequence[Rounds],
        delay: int,
        workers: Sequence[int],
        overheads: DelayOverheads | None = None,
    ) -> None:
        self._generations, self._delay, self._workers = generations, delay, list(workers)
        self._costs = overheads or DelayOverheads()
        self._answer = self._costs.latency + (self._costs.poll if 0 in workers else 0.0)
        chunks = [chunk for rounds in generations for one_round in rounds for chunk in one_round]
        self._may_be_ahead = sum(chunks) < AHEAD_SECONDS * len(chunks)
        # generation, number and seconds of a chunk: a heap
        self._queue: list[tuple[int, int, float]] = []
        # end of a chunk, worker, generation: a heap
        self._events: list[tuple[float, int, int]] = []
        self._ahead: dict[int, deque[tuple[float, int, float]]] = {
            worker: deque() for worker in workers
        }
        self._tasks = dict.fromkeys(workers, 0)
        # generations whose state it has
        self._received: dict[int, set[int]] = {worker: set() for worker in workers}
        self._missing = [0] * len(generations)  # chunks of the current round
        self._rounds = [0] * len(generations)  # that have started
        self._opened = 0
        self._free_at = self._link_free_at = 0.0  # rank 0, and its link
        self.update_times: list[float] = []  # of each generation

    def run(self) -> list[float]:
        """Return the time of each update, in seconds from the start."""
        self._open_generations()
        self._hand_out(self._workers)
        while self._events:
            end, worker, generation = heapq.heappop(self._events)
            self._free_at = max(
                self._free_at, end + (self._answer if worker else 0.0)
            ) + self._dispatch_to(worker)
            self._tasks[worker] -= 1
            if self._ahead[worker]:
                arrival, following, seconds = self._ahead[worker].popleft()
                heapq.heappush(self._events, (max(end, arrival) + seconds, worker, following))
            self._missing[generation] -= 1
            self._hand_out([worker])
            if not self._missing[generation] and self._begin_work(generation):
                self._hand_out(self._workers)
        return self.update_times

    def _dispatch_to(self, worker: int) -> float:
        return self._costs.dispatch if worker else 0.0

    def _open_generations(self) -> None:
        known = len(self.update_times)
        while self._opened < min(known + self._delay + 1, len(self._generations)):
            self._begin_round(self._opened)
            self._opened += 1

    def _begin_round(self, generation: int) -> None:
        chunks = self._generations[generation][self._rounds[generation]]
        self._rounds[generation] += 1
        self._missing[generation] = len(chunks)
        for number, seconds in enumerate(chunks):
            heapq.heappush(self._queue, (generation, number, seconds))

    def _begin_work(self, generation: int) -> bool:
        """Begin the next round of a generation, or make updates.

        Returns:
            Whether there are new chunks.
        """
        if self._rounds[generation] < len(self._generations[generation]):
            self._begin_round(generation)
            return True
        before = self._opened
        while (known := len(self.update_times)) < self._opened and not self._missing[known]:
            if self._rounds[known] < len(self._generations[known]):
                break
            self._free_at += self._update_seconds()
            self.update_times.append(self._free_at)
            self._open_generations()
        return self._opened > before

    def _update_seconds(self) -> float:
        costs, count = self._costs, self._costs.blocks
        if count * costs.block <= SHARED_UPDATE_SECONDS:
            return costs.update + count * costs.block
        waiting = sum(not tasks for worker, tasks in self._tasks.items() if worker)
        return (
            costs.update
            + costs.block * -(-count // (min(waiting, count - 1) + 1))
            + 2 * costs.latency
        )

    def _hand_out(self, workers: Sequence[int]) -> None:
        """Send chunks to workers without any, then short ones ahead to those that evaluate."""
        for tasks in range(1 + self._may_be_ahead):
            least = len(self._workers) if tasks else 1
            for worker in workers:
                if len(self._queue) < least:
                    break
                if self._tasks[worker] == tasks and not (tasks and worker == 0):
                    self._send(worker)

    def _send(self, worker: int) -> None:
        generation, _, seconds = heapq.heappop(self._queue)
        self._free_at += self._dispatch_to(worker)
        arrival = self._free_at
        if worker:
            if generation not in self._received[worker]:
                self._received[worker].add(generation)
                self._link_free_at = max(self._link_free_at, arrival) + self._costs.transfer
                arrival = self._link_free_at
            arrival += self._costs.latency
        if self._tasks[worker]:
            self._ahead[worker].append((arrival, generation, seconds))
        else:
            heapq.heappush(self._events, (arrival + seconds, worker, generation))
        self._tasks[worker] += 1
