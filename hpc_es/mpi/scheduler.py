"""Chunks on demand: whoever is free asks rank 0 for the next one.

Each evaluating rank begins with the chunk of its own number and keeps one request in flight ahead, so that nobody
waits for an answer; it says that it is free where there is none yet. The last chunks, one a rank, are not handed out
ahead: a rank slightly faster than the others would hold two of them while another has none. Rank 0 answers between the
steps of its own batch when it evaluates too.
Messages are two-sided: a one-sided counter would stall while its target computes.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from hpc_es.core.data import Chunk, Outcome, Poll
from hpc_es.mpi.serialize import from_words, to_words
from hpc_es.mpi.world import Int64, World

AHEAD, FREE, ANSWER, GIVE_UP = 1, 2, 3, 4
FAILED = 6  # 5 is a result of training/asynchronous.py
DONE = -1
MASTER_EVALUATES_UP_TO = 16  # ranks, when mpi.master_evaluates is auto
POLL_SECONDS = 0.2e-3  # at most so often between the steps of a batch
HANGING_SECONDS = 1.0  # without a look in the middle of a chunk

Evaluate = Callable[[Chunk, Poll], Outcome]


class GiveUp(BaseException):
    """A second signal came: the generation is given up."""


class OtherRankFailed(BaseException):
    """Another rank has failed, and is about to end the job."""


def tell_failure(world: World, reason: str) -> None:
    """Tell rank 0 why this rank ends."""
    world.send(0, FAILED, to_words(np.frombuffer(reason.encode(), np.uint8)))


def evaluators(ranks: int, master_evaluates: Literal["auto"] | bool) -> range:
    """Return the ranks that evaluate, of so many."""
    if master_evaluates == "auto":
        master_evaluates = ranks <= MASTER_EVALUATES_UP_TO
    return range(0 if master_evaluates or ranks == 1 else 1, ranks)


class Work:
    """Hands out and evaluates the chunks of a round; `poll` also looks for signals."""

    def __init__(
        self,
        world: World,
        schedule: Literal["on_demand", "static"],
        master_evaluates: Literal["auto"] | bool,
        signals: Callable[[], int] = lambda: 0,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._world, self._static, self._signals = world, schedule == "static", signals
        self._beat = beat  # called at each look, on rank 0
        self.evaluators = list(evaluators(world.size, master_evaluates))
        self._waiting: dict[int, bool] = {}  # ranks that asked ahead and have no answer yet: whether they are free
        self._left: deque[int] | None = None  # chunks to hand out; None outside of a round
        self._busy = 0  # ranks that do not know yet that there is no more
        self._last_poll = 0.0
        self._looking = self._evaluating = False
        self.arrived: deque[tuple[int, Int64]] = deque()  # rank 0: (source, values) of messages that are no request
        world.poll = self._look

    def evaluate(self, chunks: Sequence[Chunk], evaluate: Evaluate) -> dict[int, Outcome]:
        """Return the outcomes of this rank's chunks, by chunk index; returns when no chunk is left to hand out."""
        if self._static or len(self.evaluators) == 1:
            return self._evaluate_share(chunks, evaluate)
        if self._world.rank == 0:
            return self._master(chunks, evaluate)
        return self._worker(chunks, evaluate)

    def abort_if_hung(self) -> None:
        """Called after a second signal, amid whatever this rank does: GiveUp where a chunk keeps it from looking."""
        if self._evaluating and time.perf_counter() - self._last_poll > HANGING_SECONDS:
            raise GiveUp("a second signal came, and the chunk in progress hangs")

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Code of others runs in this block, and may hang."""
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

    def _worker(self, chunks: Sequence[Chunk], evaluate: Evaluate) -> dict[int, Outcome]:
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

    def _master(self, chunks: Sequence[Chunk], evaluate: Evaluate) -> dict[int, Outcome]:
        outcomes = {}
        started = min(len(self.evaluators), len(chunks))
        self._left = deque(range(started, len(chunks)))
        self._busy = started - (self.evaluators[0] == 0 and started > 0)
        self._answer(list(self._waiting))
        number = 0 if self.evaluators[0] == 0 and chunks else DONE
        while number != DONE:
            outcomes[chunks[number].index] = evaluate(chunks[number], self.poll)
            self._look()
            number = self._next()
        self._world.wait_until(lambda: self._busy == 0)  # while _look answers
        self._left = None
        return outcomes

    def _next(self) -> int:
        return self._left.popleft() if self._left else DONE

    def _take(self, source: int, tag: int, values: Int64) -> None:
        if tag == GIVE_UP:
            raise GiveUp(f"rank {source} got a second signal")
        if tag == FAILED:
            raise OtherRankFailed(f"rank {source}: {from_words(values).tobytes().decode()}")
        if tag == AHEAD:
            self._waiting[source] = False
            self._answer([source])
        elif tag == FREE:
            if source in self._waiting:  # else the answer is on its way
                self._waiting[source] = True
                self._answer([source])
        else:
            self.arrived.append((source, values))

    def _answer(self, ranks: Sequence[int]) -> None:
        """Answer those who may be; requests of the next round that came early wait for it.

        A request alters nothing for the others that wait: of thousands of ranks one is looked at.
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
        """Between the steps of a batch: at most every POLL_SECONDS, look for signals and requests."""
        now = time.perf_counter()
        if now - self._last_poll > POLL_SECONDS:
            self._last_poll = now
            self._look()

    def _look(self) -> None:
        if self._signals() >= 2:
            raise GiveUp("a second signal came")
        if self._world.rank != 0:
            return
        self._beat()
        if self._looking:
            return
        self._looking = True  # a message that is waited for lets others be looked at, but none may overtake it
        try:
            while (message := self._world.receive_any()) is not None:
                self._take(*message)
        finally:
            self._looking = False
