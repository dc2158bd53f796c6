"""The one polite wait, and what node memory asks of the ranks it is shared by.

A rank blocked in MPI spins a core and runs no Python signal handler. So every operation is the nonblocking one,
completed here: Test, spin shortly, then sleep a tenth of the time waited.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py import MPI

SPIN_SECONDS = 0.2e-3
SLEEP_SHARE = 0.1  # of the time waited so far, so a wait grows by a tenth (doubling sleeps: 7x slower, 3 ranks a core)
SHORTEST_SECONDS, LONGEST_SECONDS = 20e-6, 1e-3  # of a sleep


class Waiting:
    """Waits for requests; `waited` counts the seconds, `poll` is called in every turn (look at signals there)."""

    def __init__(self) -> None:
        self.waited = 0.0
        self.poll: Callable[[], None] | None = None
        self._abandoned: list[MPI.Request] = []
        self._polling = False

    def wait(self, request: MPI.Request) -> None:
        """Wait for a request without eating the core or keeping Python's signal handlers from running."""
        try:
            self.wait_until(request.Test)
        except BaseException:
            self._abandoned.append(request)  # and its buffers, where MPI may still write
            raise

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until it is done: look, spin shortly, then sleep a tenth of the time waited."""
        if done():
            return
        start, before = time.perf_counter(), self.waited
        while not done():
            self._poll()
            waited = time.perf_counter() - start
            if waited < SPIN_SECONDS:
                os.sched_yield()  # with more ranks than cores the one waited for may be queued here
            else:
                time.sleep(min(max(SLEEP_SHARE * waited, SHORTEST_SECONDS), LONGEST_SECONDS))
        self.waited = before + time.perf_counter() - start  # `poll` waits within this wait

    def _poll(self) -> None:
        if self.poll is None or self._polling:
            return
        self._polling = True  # what it receives waits too, but polls no deeper
        try:
            self.poll()
        finally:
            self._polling = False


class Ranks(Protocol):
    """What the memory of a node asks of the ranks that share it; a World is one."""

    rank: int
    notes: list[str]

    @property
    def host(self) -> str:
        """The name of this rank's host."""
        ...

    def wait(self, request: MPI.Request) -> None:
        """Wait for a request."""
        ...

    def allgather(self, mine: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
        """Every rank's bytes on every rank."""
        ...


class NodeMemory(Protocol):
    """Arrays shared by the ranks of a node."""

    def array(self, world: Ranks, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised array; every rank calls this. Each has one of its own if it cannot be shared."""
        ...

    def __contains__(self, array: npt.NDArray[Any]) -> bool: ...

    def sync(self) -> None:
        """Make what was written visible: before and after a barrier."""
        ...

    def unlock(self) -> None:
        """End the access, at the end of the job."""
        ...
