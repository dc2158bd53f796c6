"""Dynamic scheduling: ranks request chunks from rank 0 as they become free.

Each evaluating rank starts with the chunk of its own index and requests the next chunk in advance,
so that it need not wait for the answer; if there is none yet when it has finished, it reports that
it is free. The last chunks, one per rank, are only assigned to free ranks: otherwise a slightly
faster rank would hold two of them while another has none. Where jobs differ much in length, more
chunks have to be left (`Work.plenty`), so that none waits behind a long one. With `close_at`, the
ranks that still evaluate when that share of the chunks is done give their chunks up. If rank 0
evaluates too, it answers between the steps of its own batch. Messages are two-sided, because a
one-sided counter would stall while its target computes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from hpc_es.core.data import Chunk, Outcome, Poll
from hpc_es.core.errors import GIVEN_UP, GenerationClosed, Interruption
from hpc_es.core.handlers import OwnProcess
from hpc_es.mpi.tags import Tag
from hpc_es.mpi.waiting import InProgress, LongWait, Silence
from hpc_es.mpi.world import Int64, World, from_words, to_words

DONE = -1
# maximum number of ranks for which rank 0 evaluates if mpi.master_evaluates is auto
MASTER_EVALUATES_UP_TO = 16
POLL_SECONDS = 0.2e-3  # minimum interval of polls between the steps of a batch
LEAD_SECONDS = 1.0  # by which ranks tell about a long chunk before rank 0 reports it
HANGING_SECONDS = 1.0  # time without a poll after which a chunk counts as hanging

Evaluate = Callable[[Chunk, Poll], Outcome]


class GiveUp(Interruption):
    """A second signal was received: the generation is abandoned."""


class OtherRankFailed(Interruption):
    """Another rank has failed and is about to end the job."""


def tell_failure(world: World, reason: str) -> None:
    """Send the reason of this rank's failure to rank 0."""
    world.send(0, Tag.FAILED, to_words(np.frombuffer(reason.encode(), np.uint8)))


def evaluators(ranks: int, master_evaluates: Literal["auto"] | bool) -> range:
    """Return the ranks that evaluate, given the number of ranks."""
    if master_evaluates == "auto":
        master_evaluates = ranks <= MASTER_EVALUATES_UP_TO
    return range(0 if master_evaluates or ranks == 1 else 1, ranks)


class Work:
    """Assigns and evaluates the chunks of a round; `poll` also checks for signals.

    Requests and signals are also looked at while a rank waits: `with
    world.polling(work.check_messages)`.
    """

    def __init__(
        self,
        world: World,
        schedule: Literal["on_demand", "static"],
        master_evaluates: Literal["auto"] | bool,
        *,
        signals: Callable[[], int] = lambda: 0,
        beat: Callable[[], None] = lambda: None,
        close_at: float | None = None,
        may_close: Callable[[int], bool] = lambda generation: True,
        on_long_wait: Callable[[LongWait], None] = lambda wait: None,
    ) -> None:
        self._world, self._static, self._signals = world, schedule == "static", signals
        # a share of the chunks, and of (generation)
        self._close_at, self._may_close = close_at, may_close
        # rank 0: chunks that have to be left for ranks that still evaluate one to get another
        self.plenty = 0.0 if close_at is None else math.inf
        self._unfinished: dict[int, int] = {}  # rank 0: number of chunks that a rank has
        # rank 0: chunks that are given up; 0: the round is not closed early
        self._most_unfinished = 0
        # rank 0 has closed the round; this rank's chunk may be given up
        self._is_closed = self._gives_up = False
        self._closed_ranks: set[int] = set()  # rank 0: ranks that get a message about it
        self.closed: set[int] = set()  # rank 0: numbers of the generations that it closed
        self._beat = beat  # called at each poll, on rank 0
        self._process = OwnProcess()
        self._on_long_wait = on_long_wait  # on rank 0
        self._silence = Silence(time.perf_counter)
        self._in_progress: InProgress | None = None  # on this rank
        self._reported: dict[int, InProgress] = {}  # rank 0: long chunks of other ranks
        self.evaluators = list(evaluators(world.size, master_evaluates))
        # ranks with an unanswered request -> whether they are free
        self._waiting: dict[int, bool] = {}
        self._generation = -1  # number, on rank 0
        self._left: deque[int] | None = None  # chunks to assign; None outside a round
        self._busy = 0  # ranks that do not know yet that no chunk is left
        self._last_poll = 0.0
        self._is_polling = self._evaluating = False
        # rank 0: (source, values) of messages other than requests
        self.arrived: deque[tuple[int, Int64]] = deque()

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
        """Raise GiveUp if the chunk in progress hangs.

        A signal handler calls this after a second signal.
        """
        if self._evaluating and time.perf_counter() - self._last_poll > HANGING_SECONDS:
            raise GiveUp("a second signal was received, and the chunk in progress hangs")

    @contextlib.contextmanager
    def evaluating(self, chunk: Chunk) -> Iterator[None]:
        """Mark that user code, which may hang, evaluates a chunk in this context."""
        self._last_poll, self._evaluating = time.perf_counter(), True
        self._in_progress = InProgress.of(chunk)
        self._silence.restart()
        try:
            yield
        finally:
            self._evaluating, self._in_progress = False, None
            self._silence.end()

    def _evaluate_share(self, chunks: Sequence[Chunk], evaluate: Evaluate) -> dict[int, Outcome]:
        if self._world.rank not in self.evaluators:
            return {}
        mine = chunks[self.evaluators.index(self._world.rank) :: len(self.evaluators)]
        return {chunk.index: evaluate(chunk, self.poll) for chunk in mine}

    def _evaluated(self, chunk: Chunk, evaluate: Evaluate) -> Outcome:
        """Evaluate a chunk, which may be given up if it trains."""
        self._gives_up = chunk.purpose == "train"
        try:
            return evaluate(chunk, self.poll)
        finally:
            self._gives_up = False

    def _evaluate_as_worker(
        self, chunks: Sequence[Chunk], evaluate: Evaluate
    ) -> dict[int, Outcome]:
        outcomes = {}
        number = self.evaluators.index(self._world.rank)
        if number >= len(chunks):
            return {}
        self._is_closed, has_message = False, False
        while number != DONE:
            self._world.send(0, Tag.AHEAD, [])
            outcomes[chunks[number].index] = self._evaluated(chunks[number], evaluate)
            answer = self._world.receive_now(0, Tag.ANSWER)
            if answer is None:
                self._world.send(0, Tag.FREE, [])
                answer = self._world.receive(0, Tag.ANSWER)
            number, has_message = int(answer[0]), len(answer) > 1
        if has_message and not self._is_closed:  # the message that closed the round was too late
            self._world.receive(0, Tag.CLOSE)
        return outcomes

    def _evaluate_as_master(
        self, chunks: Sequence[Chunk], evaluate: Evaluate
    ) -> dict[int, Outcome]:
        outcomes = {}
        started = min(len(self.evaluators), len(chunks))
        self._left = deque(range(started, len(chunks)))
        self._unfinished = {
            rank: int(not self._waiting.get(rank)) for rank in self.evaluators[:started]
        }
        self._is_closed, self._most_unfinished, self._closed_ranks = False, 0, set()
        self._silence.restart()
        self._generation = chunks[0].generation if chunks else -1
        if self._close_at is not None and chunks and self._may_close(chunks[0].generation):
            self._most_unfinished = int((1 - self._close_at) * len(chunks) + 1e-9)
        self._busy = started - (self.evaluators[0] == 0 and started > 0)
        self._answer(list(self._waiting))
        number = 0 if self.evaluators[0] == 0 and chunks else DONE
        while number != DONE:
            outcomes[chunks[number].index] = self._evaluated(chunks[number], evaluate)
            self._unfinished[0] = 0
            self.check_messages()
            number = self._next()
            self._unfinished[0] = int(number != DONE)
        self._world.wait_until(lambda: self._busy == 0)  # while polls answer requests
        self._left = None
        return outcomes

    def _next(self) -> int:
        return self._left.popleft() if self._left else DONE

    def _handle(self, source: int, tag: int, values: Int64) -> None:
        if tag == Tag.GIVE_UP:
            raise GiveUp(f"rank {source} received a second signal")
        if tag == Tag.LONG:
            self._reported[source] = InProgress(*values.tolist())
            return
        self._silence.end()
        self._reported.pop(source, None)
        if tag == Tag.FAILED:
            raise OtherRankFailed(f"rank {source}: {from_words(values).tobytes().decode()}")
        if tag == Tag.AHEAD:
            self._waiting[source] = False
            self._unfinished[source] = 1
            self._answer([source])
        elif tag == Tag.FREE:
            if source in self._waiting:  # else the answer has been sent
                self._waiting[source], self._unfinished[source] = True, 0
                self._answer([source])
        else:
            self.arrived.append((source, values))

    def _answer(self, ranks: Sequence[int]) -> None:
        """Assign chunks to these waiting ranks if possible.

        Early requests for the next round are kept until then. Other waiting ranks are not affected
        by a new request, so with thousands of ranks only one is examined.
        """
        if self._left is None:
            return
        for rank in ranks:
            is_plenty = len(self._left) >= max(self.plenty, len(self.evaluators))
            if self._waiting[rank] or is_plenty:
                number = self._next()
                del self._waiting[rank]
                self._unfinished[rank] += number != DONE
                self._world.send(
                    rank,
                    Tag.ANSWER,
                    [number, 1] if number == DONE and rank in self._closed_ranks else [number],
                )
                self._busy -= number == DONE

    def poll(self) -> None:
        """Check for signals and requests, at most every POLL_SECONDS.

        It is called between the steps of a batch.
        """
        now = time.perf_counter()
        if self._in_progress is not None:
            self._in_progress.polls += 1
        if now - self._last_poll > POLL_SECONDS:
            self._last_poll = now
            self.check_messages()
        if self._is_closed and self._gives_up:
            self._gives_up = False
            raise GenerationClosed(GIVEN_UP)

    def _close_if_due(self) -> None:
        """Rank 0: tell ranks to give up their chunks if enough others are done."""
        unfinished = sum(self._unfinished.values())
        if (
            self._left
            or self._left is None
            or self._is_closed
            or not 0 < unfinished <= self._most_unfinished
        ):
            return
        self._is_closed = True
        self.closed.add(self._generation)
        self._closed_ranks = {rank for rank, chunks in self._unfinished.items() if chunks and rank}
        for rank in sorted(self._closed_ranks):
            self._world.send(rank, Tag.CLOSE, [])

    def check_messages(self) -> None:
        """Check for signals and, on rank 0, answer requests.

        `poll` calls this, and this rank while it waits.
        """
        self._process.end_forked()  # before it takes part in the messages of its parent
        if self._signals() >= 2:
            raise GiveUp("a second signal was received")
        if self._world.rank != 0:
            self._tell_long_chunk()
            if self._gives_up and self._close_at is not None and not self._is_closed:
                self._is_closed = self._world.receive_now(0, Tag.CLOSE) is not None
            return
        self._beat()
        if self._is_polling:
            return
        # waiting for a message polls again, but messages must be handled in order
        self._is_polling = True
        try:
            while (message := self._world.receive_any()) is not None:
                self._handle(*message)
            if self._most_unfinished:
                self._close_if_due()
            self._report_long_wait()
        finally:
            self._is_polling = False

    def _tell_long_chunk(self) -> None:
        """Tell rank 0 what this rank has been evaluating for long."""
        chunk = self._in_progress
        if chunk is not None and self._silence.is_due(self._last_poll + LEAD_SECONDS):
            self._world.send(0, Tag.LONG, [chunk.first_job, chunk.jobs, chunk.polls])

    def _report_long_wait(self) -> None:
        """Rank 0: report that no evaluation has finished for long, if some rank is evaluating."""
        is_waiting = self._evaluating or self._left is not None or bool(self._reported)
        if not is_waiting or not self._silence.is_due(time.perf_counter()):
            return
        chunks = self._reported | ({0: self._in_progress} if self._in_progress is not None else {})
        unfinished = (
            [rank for rank, count in self._unfinished.items() if count]
            if self._left is not None
            else []
        )
        silent = tuple(rank for rank in unfinished if rank not in chunks)
        self._on_long_wait(LongWait(self._silence.seconds(), chunks, silent))
