"""Dynamic scheduling: ranks request chunks from rank 0 as they become free.

Each evaluating rank starts with the chunk of its own index and requests the next chunk in advance, so that it need not
wait for the answer; if there is none yet when it has finished, it reports that it is free. The last chunks, one per
rank, are only assigned to free ranks: otherwise a slightly faster rank would hold two of them while another has none.
If rank 0 evaluates too, it answers between the steps of its own batch. Messages are two-sided, because a one-sided
counter would stall while its target computes.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from hpc_es.core.data import Chunk, Outcome, Poll
from hpc_es.mpi.world import Int64, World, from_words, to_words

AHEAD, FREE, ANSWER, GIVE_UP = 1, 2, 3, 4
FAILED = 6  # 5: see training/asynchronous.py
DONE = -1
MASTER_EVALUATES_UP_TO = 16  # maximum number of ranks for which rank 0 evaluates if mpi.master_evaluates is auto
POLL_SECONDS = 0.2e-3  # minimum interval of polls between the steps of a batch
HANGING_SECONDS = 1.0  # time without a poll after which a chunk counts as hanging

Evaluate = Callable[[Chunk, Poll], Outcome]


class GiveUp(BaseException):
    """A second signal was received: the generation is abandoned."""


class OtherRankFailed(BaseException):
    """Another rank has failed and is about to end the job."""


def tell_failure(world: World, reason: str) -> None:
    """Send the reason of this rank's failure to rank 0."""
    world.send(0, FAILED, to_words(np.frombuffer(reason.encode(), np.uint8)))


def evaluators(ranks: int, master_evaluates: Literal["auto"] | bool) -> range:
    """Return the ranks that evaluate, given the number of ranks."""
    if master_evaluates == "auto":
        master_evaluates = ranks <= MASTER_EVALUATES_UP_TO
    return range(0 if master_evaluates or ranks == 1 else 1, ranks)


class Work:
    """Assigns and evaluates the chunks of a round; `poll` also checks for signals."""

    def __init__(
        self,
        world: World,
        schedule: Literal["on_demand", "static"],
        master_evaluates: Literal["auto"] | bool,
        signals: Callable[[], int] = lambda: 0,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._world, self._static, self._signals = world, schedule == "static", signals
        self._beat = beat  # called at each poll, on rank 0
        self.evaluators = list(evaluators(world.size, master_evaluates))
        self._waiting: dict[int, bool] = {}  # ranks with an unanswered request -> whether they are free
        self._left: deque[int] | None = None  # chunks to assign; None outside a round
        self._busy = 0  # ranks that do not know yet that no chunk is left
        self._last_poll = 0.0
        self._is_polling = self._evaluating = False
        self.arrived: deque[tuple[int, Int64]] = deque()  # rank 0: (source, values) of messages other than requests
        world.poll = self._check_messages

    def set_evaluators(self, rank_0_evaluates: bool) -> None:
        """Choose, on all ranks alike and between rounds, whether rank 0 evaluates."""
        self.evaluators = list(range(0 if rank_0_evaluates else 1, self._world.size))

    def evaluate(self, chunks: Sequence[Chunk], evaluate: Evaluate) -> dict[int, Outcome]:
        """Return the outcomes of this rank's chunks by chunk index, when no chunk is left."""
        if self._static or len(self.evaluators) == 1:
            return self._evaluate_share(chunks, evaluate)
        if self._world.rank == 0:
            return self._evaluate_as_master(chunks, evaluate)
        return self._evaluate_as_worker(chunks, evaluate)

    def abort_if_hung(self) -> None:
        """Raise GiveUp if the chunk in progress hangs; called from a signal handler after a second signal."""
        if self._evaluating and time.perf_counter() - self._last_poll > HANGING_SECONDS:
            raise GiveUp("a second signal was received, and the chunk in progress hangs")

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Mark that user code, which may hang, runs in this context."""
        self._last_poll, self._evaluating = time.perf_counter(), True
        try:
            yield
        finally:
            self._evaluating = False

    def _evaluate_share(self, chunks: Sequence[Chunk], evaluate: Evaluate) -> dict[int, Outcome]:
        if self._world.rank not in self.evaluators:
            return {}
        mine = chunks[self.evaluators.index(self._world.rank) :: len(self.evaluators)]
        return {chunk.index: evaluate(chunk, self.poll) for chunk in mine}

    def _evaluate_as_worker(self, chunks: Sequence[Chunk], evaluate: Evaluate) -> dict[int, Outcome]:
        outcomes = {}
        number = self.evaluators.index(self._world.rank)
        if number >= len(chunks):
            return {}
        while number != DONE:
            self._world.send(0, AHEAD, [])
            outcomes[chunks[number].index] = evaluate(chunks[number], self.poll)
            answer = self._world.receive_now(0, ANSWER)
            if answer is None:
                self._world.send(0, FREE, [])
                answer = self._world.receive(0, ANSWER)
            number = int(answer[0])
        return outcomes

    def _evaluate_as_master(self, chunks: Sequence[Chunk], evaluate: Evaluate) -> dict[int, Outcome]:
        outcomes = {}
        started = min(len(self.evaluators), len(chunks))
        self._left = deque(range(started, len(chunks)))
        self._busy = started - (self.evaluators[0] == 0 and started > 0)
        self._answer(list(self._waiting))
        number = 0 if self.evaluators[0] == 0 and chunks else DONE
        while number != DONE:
            outcomes[chunks[number].index] = evaluate(chunks[number], self.poll)
            self._check_messages()
            number = self._next()
        self._world.wait_until(lambda: self._busy == 0)  # while polls answer requests
        self._left = None
        return outcomes

    def _next(self) -> int:
        return self._left.popleft() if self._left else DONE

    def _handle(self, source: int, tag: int, values: Int64) -> None:
        if tag == GIVE_UP:
            raise GiveUp(f"rank {source} received a second signal")
        if tag == FAILED:
            raise OtherRankFailed(f"rank {source}: {from_words(values).tobytes().decode()}")
        if tag == AHEAD:
            self._waiting[source] = False
            self._answer([source])
        elif tag == FREE:
            if source in self._waiting:  # else the answer has been sent
                self._waiting[source] = True
                self._answer([source])
        else:
            self.arrived.append((source, values))

    def _answer(self, ranks: Sequence[int]) -> None:
        """Assign chunks to these waiting ranks if possible; early requests for the next round are kept until then.

        Other waiting ranks are not affected by a new request, so with thousands of ranks only one is examined.
        """
        if self._left is None:
            return
        for rank in ranks:
            if self._waiting[rank] or len(self._left) >= len(self.evaluators):
                number = self._next()
                del self._waiting[rank]
                self._world.send(rank, ANSWER, [number])
                self._busy -= number == DONE

    def poll(self) -> None:
        """Check for signals and requests, at most every POLL_SECONDS; called between the steps of a batch."""
        now = time.perf_counter()
        if now - self._last_poll > POLL_SECONDS:
            self._last_poll = now
            self._check_messages()

    def _check_messages(self) -> None:
        if self._signals() >= 2:
            raise GiveUp("a second signal was received")
        if self._world.rank != 0:
            return
        self._beat()
        if self._is_polling:
            return
        self._is_polling = True  # waiting for a message polls again, but messages must be handled in order
        try:
            while (message := self._world.receive_any()) is not None:
                self._handle(*message)
        finally:
            self._is_polling = False
