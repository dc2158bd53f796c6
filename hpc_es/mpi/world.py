"""What a world does when ranks are lost: by default, nothing; `faults.py` has the other answer.

The MPI side of a world of several ranks.

The ranks of the job: collectives, small messages and node-shared memory, none of which ever blocks inside MPI.

Every operation is the nonblocking one, completed by `waiting.Waiting.wait`. A world of one rank needs no MPI library.
"""

from __future__ import annotations

import enum
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.mpi.launch import abort
from hpc_es.mpi.shared_memory import Windows
from hpc_es.mpi.waiting import NodeMemory, Waiting

if TYPE_CHECKING:
    from mpi4py import MPI


class Regroup(enum.Enum):
    """What the survivors have agreed on; the same on all of them."""

    DONE = enum.auto()  # nothing is left to do
    CONTINUE = enum.auto()  # all of them can go on where they are, rank 0 among them
    RESTART = enum.auto()  # rank 0 is another one, or not all ranks are at the same place


class RestartFromCheckpoint(BaseException):
    """The ranks have met, and begin again at the last checkpoint."""


class FaultHandler(Protocol):
    """How a world takes the loss of ranks."""

    @property
    def is_fault_tolerant(self) -> bool:
        """Whether the others go on."""
        ...

    @property
    def lost(self) -> Sequence[tuple[str, int]]:
        """Host and process id of the ranks that were lost."""
        ...

    def is_rank_loss(self, error: Exception) -> bool:
        """Return whether an error says that a rank was lost."""
        ...

    def regroup(self, is_done: bool, can_continue: bool) -> Regroup:
        """Come together with every rank that lives, and go on without the others."""
        ...

    def wait_for_others(self) -> bool:
        """Wait shortly for the others, at the end; False where MPI_Finalize does it."""
        ...


class NoFaultTolerance:
    """A world that ends when a rank dies."""

    is_fault_tolerant = False
    lost: Sequence[tuple[str, int]] = ()

    def is_rank_loss(self, error: Exception) -> bool:
        """No error is one that can be outlived."""
        return False

    def regroup(self, is_done: bool, can_continue: bool) -> Regroup:
        """Nobody was lost."""
        return Regroup.DONE

    def wait_for_others(self) -> bool:
        """Return the ranks part by MPI_Finalize."""
        return False


Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Communicators:
    """Communicators: each kind of traffic has its own."""

    mpi: Any  # the module mpi4py.MPI
    collectives: MPI.Comm
    messages: MPI.Comm
    node: MPI.Comm
    place: tuple[int, int]  # rank on the node, ranks there
    memory: NodeMemory

    def sent(self, mine: Array) -> Any:
        """Bytes as MPI takes them."""
        assert mine.dtype == np.uint8, f"bytes are uint8, not {mine.dtype}: use .view(np.uint8)"
        return [np.ascontiguousarray(mine).reshape(-1), self.mpi.BYTE]

    def received(self, every: Array, lengths: Array) -> Any:
        """Room for so many bytes of each rank."""
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return [every, lengths.tolist(), starts.tolist(), self.mpi.BYTE]

    def part(self, group: int, rank: int) -> Communicators:
        """Links among the ranks that name the same group; blocking, as is `connected`."""
        return connected(self.mpi, self.collectives.Split(group, rank))


def connected(mpi: Any, ranks: Any) -> Communicators:
    """Links among these ranks; blocking, so they come here together."""
    node = ranks.Split_type(mpi.COMM_TYPE_SHARED)
    return Communicators(mpi, ranks.Dup(), ranks.Dup(), node, (node.rank, node.size), Windows(mpi, node))


Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]

PIECE_BYTES = 1 << 30  # of a broadcast: below the 2 GiB that an int counts


class World(Waiting):
    """All ranks of the job as one of them sees it. Use `connect()` to get it.

    `waited` is the time in seconds spent waiting for others, `poll` is called in every turn of a wait (look at
    signals there), `notes` are what a user should be told, such as memory that is not shared.
    """

    def __init__(self, library: str, comms: Communicators | None = None) -> None:
        super().__init__()
        self.library = library
        self.notes: list[str] = []
        self.fault_handler: FaultHandler = NoFaultTolerance()
        self._parts: dict[int, World] = {}
        self._shared: dict[str, Array] = {}
        self._sending: list[MPI.Request] = []
        self._to_myself: deque[tuple[int, Int64]] = deque()  # messages of a world of one
        self._finalized = False
        self.use_comms(comms)
        me = f"{socket.gethostname()}\n{os.getpid()}".encode()
        told = [bytes(text).decode().split("\n") for text in self.allgather(np.frombuffer(me, np.uint8))]
        self._table = [(rank, host, int(pid)) for rank, (host, pid) in enumerate(told)]

    def use_comms(self, comms: Communicators | None, survivors: Sequence[int] = ()) -> None:
        """Go on over these comms; `survivors` are the ranks that those who are left had, in their new order."""
        self.comms = comms
        self.rank, self.size = (comms.collectives.rank, comms.collectives.size) if comms else (0, 1)
        self.node_rank, self.node_size = comms.place if comms else (0, 1)
        self._abandoned += self._sending
        self._sending = []
        self._shared.clear()  # not all ranks may have got as far as to have an array: it is made again
        if survivors:
            self._table = [(rank, *self._table[old][1:]) for rank, old in enumerate(survivors)]

    @property
    def host(self) -> str:
        """The name of this rank's host."""
        return self._table[self.rank][1]

    @property
    def hosts(self) -> list[str]:
        """The host of each rank."""
        return [host for _, host, _ in self._table]

    def table(self) -> list[tuple[int, str, int]]:
        """(rank, host, process id) of every rank, for the log."""
        return list(self._table)

    def split(self, groups: int) -> World:
        """Return the group of this rank, a world of its own: contiguous ranks, sizes that differ by at most one.

        Every rank of the world calls this; the same number of groups gives the same world again.
        """
        assert 1 <= groups <= self.size, f"{groups} groups of {self.size} ranks"
        if groups == 1 or not self.comms:
            return self
        if groups not in self._parts:
            group = next(g for g in range(groups) if self.rank < -(-self.size * (g + 1) // groups))
            self.barrier()  # politely, so that all meet in the blocking calls
            self._parts[groups] = World(self.library, self.comms.part(group, self.rank))
        return self._parts[groups]

    # Collectives: every rank calls them, in the same order.

    def barrier(self) -> None:
        """Return when every rank has come here."""
        if self.comms:
            self.wait(self.comms.collectives.Ibarrier())

    def broadcast(self, buffer: Array) -> None:
        """Overwrite `buffer` with that of rank 0, which has the same shape and dtype; C-contiguous, of any size."""
        assert buffer.flags.c_contiguous, f"broadcast needs a C-contiguous array, not strides {buffer.strides}"
        if self.comms:
            flat = buffer.reshape(-1).view(np.uint8)
            for start in range(0, flat.size, PIECE_BYTES):
                piece = flat[start : start + PIECE_BYTES]
                self.wait(self.comms.collectives.Ibcast([piece, self.comms.mpi.BYTE], 0))

    def broadcast_text(self, text: str | None) -> str:
        """Return the text of rank 0; the others' is ignored."""
        if self.rank == 0:
            assert text is not None, "rank 0 has no text to broadcast"
        coded = np.frombuffer((text or "").encode(), np.uint8)
        length = np.array(coded.size, np.int64)
        self.broadcast(length)
        buffer = coded.copy() if self.rank == 0 else np.empty(int(length), np.uint8)
        self.broadcast(buffer)
        return buffer.tobytes().decode()

    def allgather(self, mine: Bytes) -> list[Bytes]:
        """Every rank's bytes on every rank, in rank order; their lengths may differ."""
        if not self.comms:
            return [mine.copy()]
        lengths = np.empty(self.size, np.int64)
        self.wait(self.comms.collectives.Iallgather(np.array([mine.size], np.int64), lengths))
        every = np.empty(int(lengths.sum()), np.uint8)
        self.wait(self.comms.collectives.Iallgatherv(self.comms.sent(mine), self.comms.received(every, lengths)))
        return np.split(every, np.cumsum(lengths)[:-1])

    def gather(self, mine: Bytes) -> list[Bytes] | None:
        """Every rank's bytes on rank 0, in rank order; None on the others."""
        if not self.comms:
            return [mine.copy()]
        lengths = np.empty(self.size, np.int64) if self.rank == 0 else None
        self.wait(self.comms.collectives.Igather(np.array([mine.size], np.int64), lengths, 0))
        if lengths is None:
            self.wait(self.comms.collectives.Igatherv(self.comms.sent(mine), None, 0))
            return None
        every = np.empty(int(lengths.sum()), np.uint8)
        self.wait(self.comms.collectives.Igatherv(self.comms.sent(mine), self.comms.received(every, lengths), 0))
        return np.split(every, np.cumsum(lengths)[:-1])

    # Messages: int64 from one rank to another; in order between two ranks.

    def send(self, dest: int, tag: int, values: Sequence[int] | Int64) -> None:
        """Start sending and return at once."""
        message = np.array(values, np.int64)
        if not self.comms:
            assert dest == 0, f"there is no rank {dest} in a world of one"
            self._to_myself.append((tag, message))
            return
        self._reap()
        self._sending.append(self.comms.messages.Isend([message, self.comms.mpi.INT64_T], dest, tag))

    def receive_any(self) -> tuple[int, int, Int64] | None:
        """(source, tag, values) of a message that is there, or None."""
        if not self.comms:
            return (0, *self._to_myself.popleft()) if self._to_myself else None
        self._reap()
        return self._receive(self.comms.mpi.ANY_SOURCE, self.comms.mpi.ANY_TAG)

    def receive_now(self, source: int, tag: int) -> Int64 | None:
        """Return the values of the next message with this tag from another rank if it is there already."""
        message = self._receive(source, tag) if self.comms else None
        return None if message is None else message[2]

    def receive(self, source: int, tag: int) -> Int64:
        """Return the values of the next message with this tag from this rank; waits for it."""
        if not self.comms:
            place = next((i for i, (found, _) in enumerate(self._to_myself) if found == tag), None)
            assert place is not None, f"a world of one waits for a message with tag {tag} that it never sent"
            self._to_myself.rotate(-place)
            _, message = self._to_myself.popleft()
            self._to_myself.rotate(place)
            return message
        found: list[Int64] = []

        def look() -> bool:
            message = self._receive(source, tag)
            if message is not None:
                found.append(message[2])
            return message is not None

        self.wait_until(look)
        return found[0]

    def _receive(self, source: int, tag: int) -> tuple[int, int, Int64] | None:
        assert self.comms
        mpi = self.comms.mpi
        status = mpi.Status()
        found = self.comms.messages.Improbe(source, tag, status)
        if found is None:
            return None
        values = np.empty(status.Get_count(mpi.INT64_T), np.int64)
        self.wait(found.Irecv([values, mpi.INT64_T]))
        return status.Get_source(), status.Get_tag(), values

    def _reap(self) -> None:
        """Forget the sends that are complete; the others keep their buffers."""
        self._sending = [request for request in self._sending if not request.Test()]

    # Memory shared by the ranks of a node.

    def shared_array(self, name: str, count: int, dtype: npt.DTypeLike = np.float32) -> Array:
        """One uninitialised array for all ranks of the node; every rank of the world calls this.

        The same name, count and dtype give the same memory again, once all ranks of the node ask for it. Where shared
        memory is too small each rank gets an array of its own, and `notes` says so. Either way the rank fills its
        part, as `filling(array)` says, and then calls `node_barrier()`.
        """
        key = f"{name} {count} {np.dtype(dtype)}"
        if key in self._shared:
            self.node_barrier()  # nobody reads the old content any more
        else:
            kind = np.dtype(dtype)
            self._shared[key] = self.comms.memory.array(self, count, kind) if self.comms else np.empty(count, kind)
        return self._shared[key]

    def filling(self, array: Array) -> tuple[int, int]:
        """(part, parts): which part of an array of `shared_array` this rank fills; (0, 1) where it is private."""
        is_shared = self.comms is not None and array in self.comms.memory
        return (self.node_rank, self.node_size) if is_shared else (0, 1)

    def node_barrier(self) -> None:
        """Return when every rank of the node has come here; what each wrote to shared arrays is then seen by all."""
        if self.comms:
            self.comms.memory.sync()
            self.wait(self.comms.node.Ibarrier())
            self.comms.memory.sync()

    # The end.

    def abort(self, status: int) -> NoReturn:
        """End all ranks at once, with this status where the launcher passes it on."""
        abort(status)

    def finalize(self) -> None:
        """End MPI: every rank comes here last; a second call does nothing.

        Not for a `finally`: a rank that failed would wait here for others that wait for it.
        """
        if self._finalized:
            return
        self._finalized = True
        if self.fault_handler.wait_for_others():
            return
        if self.comms:
            worlds = (self, *self._parts.values())
            for request in [request for world in worlds for request in world._sending]:
                self.wait(request)
            self.wait(self.comms.messages.Ibarrier())  # politely, so that all meet in the blocking calls below
            for world in worlds:
                if world.comms:
                    world.comms.memory.unlock()
        if "mpi4py.MPI" in sys.modules:
            sys.modules["mpi4py.MPI"].Finalize()
