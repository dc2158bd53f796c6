"""Processes on this machine that evaluate chunks for a `PoolExecutor`; one that dies is replaced.

They are started by a fresh server process (forkserver), so that a threaded library or MPI in this
process does no harm. Functions that only this process knows, such as those of a notebook, are
inherited by fork instead.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

from hpc_es.core.errors import RunError, UserError
from hpc_es.core.machine import blas_threads
from hpc_es.core.paths import in_root_directory
from hpc_es.core.search_path import only_others
from hpc_es.training import worker as work
from hpc_es.training.worker import Item, Recipe, Reply

POLL_SECONDS = 0.05
MOST_DEATHS = 2  # of processes that evaluate the same chunk
THREADED = ("jax", "tensorflow", "torch")  # libraries whose threads do not survive a fork


class Processes:
    """A fixed number of processes, started when they are first needed."""

    def __init__(self, count: int, recipe: Recipe, poll: Callable[[], None]) -> None:
        self._count, self._recipe, self._poll = count, recipe, poll
        self._context = multiprocessing.get_context(_start_method(recipe))
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, int] = {}  # position of its item

    def evaluate(self, items: Sequence[Item]) -> Iterator[Reply]:
        """Yield the reply to each item, in order; RunError if a worker cannot evaluate one."""
        left, replies, following = deque(range(len(items))), dict[int, Reply](), 0
        deaths = dict.fromkeys(left, 0)
        try:
            while following < len(items):
                while left and len(self._busy) < self._count:
                    worker = (
                        self._idle.pop() if self._idle else _Worker(self._context, self._recipe)
                    )
                    self._busy[worker] = left.popleft()
                    worker.send(items[self._busy[worker]])
                ready = wait([worker.connection for worker in self._busy], POLL_SECONDS)
                self._poll()
                for worker in [worker for worker in self._busy if worker.connection in ready]:
                    position = self._busy.pop(worker)
                    reply = worker.receive()
                    if reply is not None:
                        replies[position] = reply
                        self._idle.append(worker)
                        continue
                    deaths[position] += 1
                    if deaths[position] == MOST_DEATHS:
                        jobs = items[position].chunk.job_numbers
                        raise RunError(
                            f"{MOST_DEATHS} workers died while they evaluated the jobs "
                            f"{jobs[0]} to {jobs[-1]} ({worker.end()}): "
                            "see what your code wrote before"
                        )
                    worker.end()
                    left.appendleft(position)
                while following in replies:
                    yield replies.pop(following)
                    following += 1
        finally:
            for worker in self._busy:  # in the middle of a chunk
                worker.end()
            self._busy.clear()

    def close(self) -> None:
        """End all processes."""
        for worker in (*self._idle, *self._busy):
            worker.end()
        self._idle, self._busy = [], {}


class _Worker:
    """A process, and this end of the connection to it."""

    def __init__(self, context: Any, recipe: Recipe) -> None:
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, recipe, blas_threads()), daemon=True
        )
        if context.get_start_method() == "forkserver":
            # It begins as a `python -c`; its children change to the directory of this process.
            with in_root_directory():
                forkserver.ensure_running()
        # it gets sys.path, and would look for hpc_es in the directories that code of the user is
        # imported from, before `user_code` says what is found there
        with _without_main(), only_others():
            self._process.start()
        theirs.close()

    def send(self, item: Item) -> None:
        with contextlib.suppress(OSError):  # it has died, as `receive` will see
            self.connection.send(item)

    def receive(self) -> Reply | None:
        """Return the reply, or None if the process has died; raise what it raised."""
        try:
            reply = self.connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(reply, Reply):
            return reply
        raise RunError(reply)

    def end(self) -> str:
        """End the process; return how it ended."""
        # While the connection is open, a reply that it is sending does not fail with a traceback.
        self._process.kill()
        self._process.join()
        self.connection.close()
        code = self._process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit status {code}"


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep new processes from running the user's script again.

    It needs no `if __name__ == "__main__"` then.
    """
    main = sys.modules["__main__"]
    names: tuple[str, ...] = ("__file__", "__spec__")
    before = {name: vars(main).pop(name) for name in names if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(before)


def _start_method(recipe: Recipe) -> str:
    """Return how processes start.

    Raises:
        UserError: a function is only known here, and a fork would not be safe.
    """
    try:
        is_known_elsewhere = b"__main__" not in pickle.dumps(recipe)
    except (pickle.PicklingError, AttributeError, TypeError):
        is_known_elsewhere = False
    if is_known_elsewhere:
        return "forkserver"
    if loaded := [name for name in THREADED if name in sys.modules]:
        raise UserError(
            "the function exists in this process only, which cannot be copied once "
            f"{loaded[0]} is imported: put it into a module, "
            "or call with workers before that import"
        )
    return "fork"


def _serve(connection: Connection, recipe: Recipe, threads: int) -> None:
    """Evaluate items until the connection closes; the main function of a process."""
    from threadpoolctl import threadpool_limits

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # for the main process, which ends this one
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with threadpool_limits(threads, "blas"):
        while True:
            try:
                item = connection.recv()
            except (EOFError, OSError):
                os._exit(0)
            try:
                work.build(recipe)
                reply: object = work.evaluate(item)
            except RunError as error:
                reply = str(error)
            except BaseException:
                reply = f"a worker failed: {traceback.format_exc()}"
            try:
                connection.send(reply)
            except OSError:  # the main process has gone
                os._exit(0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
