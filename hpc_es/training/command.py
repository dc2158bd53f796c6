"""What all ranks do next: rank 0 decides it, and sends it to the others before each generation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NoReturn

import numpy as np

from hpc_es.core.errors import RunError, RunFailedError
from hpc_es.mpi.world import Int64, World
from hpc_es.training.chunking import CutPlan
from hpc_es.training.collective import Transfer
from hpc_es.training.outcomes import StoredOutcomes


class Kind(IntEnum):
    """Kinds of commands."""

    RUN = 0  # a generation
    EVALUATE = 1  # the final evaluation
    STOP = 2
    FAIL = 3  # the run has failed
    REPLAY = 4  # the next update since the last full checkpoint, from its stored inputs
    LEARN = 5  # a generation with results of the caller's
    MEMBERS = 6  # further evaluations of the members of a front or archive


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, and what the ranks need for it."""

    kind: Kind
    generation: int = 0  # number of the state
    is_interrupted: bool = False  # whether the run ends by a signal
    plan: CutPlan = field(default_factory=CutPlan)
    transfer: Transfer = field(default_factory=Transfer)  # of the state's shared arrays
    limit: int | None = None  # jobs of the generation; None: all
    stored: StoredOutcomes | None = None  # of the generation, which was cut short before a restart

    def broadcast(self, world: World) -> Command:
        """Return the command of rank 0; every rank calls this.

        On other ranks `stored` has chunks without outcomes.
        """
        order = np.array(self.plan.order, np.int64)
        table = np.zeros(0, np.int64) if self.stored is None else self.stored.table()
        limit = -1 if self.limit is None else self.limit
        header = np.array(
            [
                self.kind,
                self.generation,
                self.is_interrupted,
                limit,
                len(table),
                len(order),
                *self.transfer,
                *self.plan.to_numbers(),
            ],
            np.int64,
        )
        world.broadcast(header)
        (
            kind,
            generation,
            is_interrupted,
            limit,
            in_table,
            in_order,
            to_send,
            mask,
            reshaped,
            *plan,
        ) = header.tolist()
        table, order = _received(world, table, in_table), _received(world, order, in_order)
        stored = (
            self.stored
            if world.rank == 0
            else StoredOutcomes.from_table(table)
            if in_table
            else None
        )
        return Command(
            kind=Kind(kind),
            generation=generation,
            is_interrupted=bool(is_interrupted),
            plan=replace(CutPlan.from_numbers(plan), order=tuple(order.tolist())),
            transfer=Transfer(to_send, mask, reshaped),
            limit=None if limit < 0 else limit,
            stored=stored,
        )


def fail(world: World, reason: str) -> NoReturn:
    """Rank 0: end the run on all ranks, which wait for the next command, with RunFailedError."""
    Command(kind=Kind.FAIL).broadcast(world)
    raise RunFailedError(world.broadcast_text(reason))


@contextlib.contextmanager
def failing_everywhere(world: World, before: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Rank 0: make a RunError in here, such as a full disk, end all ranks.

    `before` lets them wait for it.
    """
    try:
        yield
    except RunError as error:
        before()
        fail(world, str(error))


def _received(world: World, numbers: Int64, count: int) -> Int64:
    """Return `count` numbers of rank 0, which are sent only if there are any."""
    array = numbers if world.rank == 0 else np.empty(count, np.int64)
    if count:
        world.broadcast(array)
    return array
