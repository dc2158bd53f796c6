"""The ranks of the job: collectives, messages and memory of a node, without blocking in MPI.

A rank that blocks in MPI spins a core and runs no Python signal handlers. Therefore every operation
is the nonblocking one, completed by `Waiting.wait`: test, spin, then sleep for a tenth of the time
waited so far. Ranks that share cores spin briefly. A world of one rank needs no MPI library.
"""

from __future__ import annotations

import contextlib
import enum
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array
from hpc_es.core.errors import Interruption
from hpc_es.core.machine import AVAILABLE_CORES
from hpc_es.mpi.launch import abort
from hpc_es.mpi.shared_memory import NodeMemory, Windows

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]  # uint8[...]
Int64 = npt.NDArray[np.int64]  # int64[...]

SENDS_TESTED = 2  # more than one, so that completed sends do not accumulate
MAX_BROADCAST_BYTES = 1 << 30  # per call: below 2 GiB, the largest count in an int
SPIN_SECONDS = 0.2e-3
# of ranks that have a core each, which wake up a millisecond late from a sleep
OWN_CORE_SPIN_SECONDS = 5e-3
# of the time waited so far; doubling sleeps were 7 times slower with 3 ranks per core
SLEEP_FRACTION = 0.1
MIN_SLEEP_SECONDS, MAX_SLEEP_SECONDS = 20e-6, 1e-3
# while rank 0 works alone for seconds, on a core that it shares with waiting ranks
PATIENT_SLEEP_SECONDS = 20e-3
MOST_CORES = 4096  # of a node


class Waiting:
    """Waits for requests; `waited` is the total time in seconds."""

    def __init__(self) -> None:
        self.waited = 0.0
        self.spin_seconds = SPIN_SECONDS
        self._poll: Callable[[], None] | None = None
        self._abandoned: list[MPI.Request] = []
        self._polling = False
        self._max_sleep = MAX_SLEEP_SECONDS

    @contextlib.contextmanager
    def patiently(self, is_patient: bool = True) -> Iterator[None]:
        """Sleep longer in this context, where ranks wait for rank 0 to start or to end a run."""
        before = self._max_sleep
        if is_patient:
            self._max_sleep = PATIENT_SLEEP_SECONDS
        try:
            yield
        finally:
            self._max_sleep = before

    @contextlib.contextmanager
    def polling(self, poll: Callable[[], None] | None) -> Iterator[None]:
        """Call `poll` repeatedly while this rank waits in this context.

        It may check for signals.
        """
        before, self._poll = self._poll, poll
        try:
            yield
        finally:
            self._poll = before

    def wait(self, request: MPI.Request) -> None:
        """Wait for a request without occupying the core or blocking Python's signal handlers."""
        try:
            self.wait_until(request.Test)
        except BaseException:
            self._abandoned.append(request)  # keeps its buffers, into which MPI may still write
            raise

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()` is true."""
        if done():
            return
        start, before = time.perf_counter(), self.waited
        while not done():
            self._call_poll()
            waited = time.perf_counter() - start
            if waited < self.spin_seconds:
                # with more ranks than cores, the awaited rank may be queued for this core
                os.sched_yield()
            else:
                time.sleep(min(max(SLEEP_FRACTION * waited, MIN_SLEEP_SECONDS), self._max_sleep))
        # not +=: waits inside `poll` are part of this wait
        self.waited = before + time.perf_counter() - start

    def _call_poll(self) -> None:
        if self._poll is None or self._polling:
            return
        self._polling = True  # waits inside `poll` do not poll again
        try:
            self._poll()
        finally:
            self._polling = False


class Regroup(enum.Enum):
    """The decision of the surviving ranks, the same on all of them."""

    DONE = enum.auto()  # all ranks have finished
    CONTINUE = enum.auto()  # rank 0 survived and all ranks can continue from where they are
    # rank 0 was lost, or the ranks are at different points: restart from the last checkpoint
    RESTART = enum.auto()


class RestartFromCheckpoint(Interruption):
    """The ranks have regrouped and restart from the last checkpoint."""


class FaultHandler(Protocol):
    """The reaction of a world to the loss of ranks."""

    @property
    def is_fault_tolerant(self) -> bool:
        """Whether the surviving ranks continue."""
        ...

    @property
    def lost(self) -> Sequence[tuple[str, int]]:
        """Host and process id of the lost ranks."""
        ...

    def is_rank_loss(self, error: Exception) -> bool:
        """Return whether an error reports the loss of a rank."""
        ...

    def regroup(self, is_done: bool, can_continue: bool) -> Regroup:
        """Agree with all surviving ranks on how to continue.

        If a rank was lost, the communicators are replaced. `is_done`: this rank has finished its
        work. `can_continue`: otherwise it could continue with its work.
        """
        ...

    def wait_for_others(self) -> bool:
        """Wait briefly for the other ranks at the end; return False if MPI_Finalize has to."""
        ...


class NoFaultTolerance:
    """A world that ends when a rank is lost."""

    is_fault_tolerant = False
    lost: Sequence[tuple[str, int]] = ()

    def is_rank_loss(self, error: Exception) -> bool:
        """Return False: the loss of a rank ends the job."""
        return False

    def regroup(self, is_done: bool, can_continue: bool) -> Regroup:
        """Return DONE: no rank was lost."""
        return Regroup.DONE

    def wait_for_others(self) -> bool:
        """Return False: MPI_Finalize waits."""
        return False


@dataclass(frozen=True)
class Communicators:
    """The communicators of a world, one for each kind of traffic."""

    mpi: ModuleType  # mpi4py.MPI
    collectives: MPI.Comm
    messages: MPI.Comm
    node: MPI.Comm
    node_position: tuple[int, int]  # rank on the node, number of ranks there
    has_own_cores: bool  # whether the node's ranks have at least one core each
    memory: NodeMemory

    def send_buffer(self, mine: Bytes) -> Any:
        """Return bytes as a send buffer of MPI."""
        assert mine.dtype == np.uint8, f"bytes are uint8, not {mine.dtype}: use .view(np.uint8)"
        return [np.ascontiguousarray(mine).reshape(-1), self.mpi.BYTE]

    def receive_buffer(self, every: Bytes, lengths: Int64) -> Any:
        """Return `every` as a receive buffer for lengths[rank] bytes of each rank."""
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return [every, lengths.tolist(), starts.tolist(), self.mpi.BYTE]

    def split(self, group: int, rank: int) -> Communicators:
        """Return the communicators of the ranks that pass the same group; blocking."""
        return create_communicators(self.mpi, self.collectives.Split(group, rank))


def create_communicators(mpi: ModuleType, ranks: MPI.Comm) -> Communicators:
    """Return the communicators of these ranks; blocking, so all of them must call it together."""
    node = ranks.Split_type(mpi.COMM_TYPE_SHARED)
    return Communicators(
        mpi,
        ranks.Dup(),
        ranks.Dup(),
        node,
        (node.rank, node.size),
        cores_of_node(mpi, node) >= node.size,
        Windows(mpi, node),
    )


def cores_of_node(mpi: ModuleType, node: MPI.Comm) -> int:
    """Return the number of cores that the ranks of a node may use together; blocking."""
    if not AVAILABLE_CORES:  # unknown on this system
        return os.cpu_count() or 1
    is_used = np.zeros(MOST_CORES, np.uint8)
    is_used[[core for core in AVAILABLE_CORES if core < MOST_CORES]] = 1
    node.Allreduce(mpi.IN_PLACE, [is_used, mpi.BYTE], mpi.BOR)
    return int(is_used.sum())


class World(Waiting):
    """The ranks of the job, as seen by one of them; a world of one rank needs no communicators.

    `notes` are lines for the log, such as about memory that is not shared.
    """

    def __init__(self, library: str, comms: Communicators | None = None) -> None:
        super().__init__()
        self.library = library
        self.notes: list[str] = []
        self.fault_handler: FaultHandler = NoFaultTolerance()
        self._groups: dict[int, World] = {}
        self._shared: dict[str, Array] = {}
        self._sending: deque[MPI.Request] = deque()
        self._own_messages: deque[tuple[int, Int64]] = deque()  # of a world of one rank
        self._finalized = False
        self.use_comms(comms)
        # That of a world of one rank; `connect` asks the other ranks.
        self._table = [(self.rank, os.uname().nodename, os.getpid())]

    @classmethod
    def connect(cls, library: str, comms: Communicators) -> World:
        """Return the world of these ranks, which tell each other their hosts.

        Every one of them calls this.
        """
        world = cls(library, comms)
        (_, host, pid) = world._table[0]
        own = np.frombuffer(f"{host}\n{pid}".encode(), np.uint8)
        processes = [bytes(text).decode().split("\n") for text in world.allgather(own)]
        world._table = [(rank, host, int(pid)) for rank, (host, pid) in enumerate(processes)]
        return world

    def use_comms(self, comms: Communicators | None, survivors: Sequence[int] = ()) -> None:
        """Use these communicators from now on.

        `survivors` are the previous ranks of the remaining ones, in order.
        """
        self.comms = comms
        self.rank, self.size = (comms.collectives.rank, comms.collectives.size) if comms else (0, 1)
        self.node_rank, self.node_size = comms.node_position if comms else (0, 1)
        own_cores = comms is None or comms.has_own_cores
        self.spin_seconds = OWN_CORE_SPIN_SECONDS if own_cores else SPIN_SECONDS
        self._abandoned += self._sending
        self._sending.clear()
        # allocated again, because a rank may have been interrupted before it had an array
        self._shared.clear()
        if survivors:
            self._table = [(rank, *self._table[old][1:]) for rank, old in enumerate(survivors)]

    @property
    def host(self) -> str:
        """Name of this rank's host."""
        return self._table[self.rank][1]

    @property
    def hosts(self) -> list[str]:
        """Host of each rank."""
        return [host for _, host, _ in self._table]

    def table(self) -> list[tuple[int, str, int]]:
        """Return (rank, host, process id) of every rank."""
        return list(self._table)

    def split(self, groups: int) -> World:
        """Return the world of this rank's group of contiguous ranks.

        Sizes of groups differ by at most one. Every rank of the world calls this. Repeated calls
        with the same number of groups return the same world.
        """
        assert 1 <= groups <= self.size, f"{groups} groups of {self.size} ranks"
        if groups == 1 or not self.comms:
            return self
        if groups not in self._groups:
            group = next(g for g in range(groups) if self.rank < -(-self.size * (g + 1) // groups))
            self.barrier()  # so that all ranks enter the blocking calls together
            self._groups[groups] = World.connect(self.library, self.comms.split(group, self.rank))
        return self._groups[groups]

    # Collectives, which every rank calls in the same order.

    def barrier(self) -> None:
        """Return when every rank has called this."""
        if self.comms:
            self.wait(self.comms.collectives.Ibarrier())

    def broadcast(self, buffer: Array) -> None:
        """Overwrite `buffer`, a C-contiguous array, with that of rank 0.

        It has any size; shape and dtype are equal on all ranks.
        """
        assert buffer.flags.c_contiguous, (
            f"broadcast needs a C-contiguous array, not strides {buffer.strides}"
        )
        if self.comms:
            flat = buffer.reshape(-1).view(np.uint8)
            for start in range(0, flat.size, MAX_BROADCAST_BYTES):
                piece = flat[start : start + MAX_BROADCAST_BYTES]
                self.wait(self.comms.collectives.Ibcast([piece, self.comms.mpi.BYTE], 0))

    def broadcast_text(self, text: str | None) -> str:
        """Return the text of rank 0 on every rank; the argument is ignored on other ranks."""
        if self.rank == 0:
            assert text is not None, "rank 0 has no text to broadcast"
        coded = np.frombuffer((text or "").encode(), np.uint8)
        length = np.array(coded.size, np.int64)
        self.broadcast(length)
        buffer = coded.copy() if self.rank == 0 else np.empty(int(length), np.uint8)
        self.broadcast(buffer)
        return buffer.tobytes().decode()

    def allgather(self, mine: Bytes) -> list[Bytes]:
        """Return the bytes of every rank on every rank, in rank order; lengths may differ."""
        if not self.comms:
            return [mine.copy()]
        lengths = np.empty(self.size, np.int64)
        self.wait(self.comms.collectives.Iallgather(np.array([mine.size], np.int64), lengths))
        every = np.empty(int(lengths.sum()), np.uint8)
        self.wait(
            self.comms.collectives.Iallgatherv(
                self.comms.send_buffer(mine), self.comms.receive_buffer(every, lengths)
            )
        )
        return np.split(every, np.cumsum(lengths)[:-1])

    def gather(self, mine: Bytes) -> list[Bytes] | None:
        """Return the bytes of every rank on rank 0, in rank order; None on the other ranks."""
        if not self.comms:
            return [mine.copy()]
        lengths = np.empty(self.size, np.int64) if self.rank == 0 else None
        self.wait(self.comms.collectives.Igather(np.array([mine.size], np.int64), lengths, 0))
        if lengths is None:
            self.wait(self.comms.collectives.Igatherv(self.comms.send_buffer(mine), None, 0))
            return None
        every = np.empty(int(lengths.sum()), np.uint8)
        self.wait(
            self.comms.collectives.Igatherv(
                self.comms.send_buffer(mine), self.comms.receive_buffer(every, lengths), 0
            )
        )
        return np.split(every, np.cumsum(lengths)[:-1])

    # Messages: int64[...] from one rank to another, in order between two ranks.

    def send(self, dest: int, tag: int, values: Sequence[int] | Int64) -> None:
        """Start sending and return immediately; `values` must not be changed afterwards."""
        message = np.asarray(values, np.int64)
        if not self.comms:
            assert dest == 0, f"no rank {dest} in a world of one rank"
            self._own_messages.append((tag, message))
            return
        self._release_sends()
        self._sending.append(
            self.comms.messages.Isend([message, self.comms.mpi.INT64_T], dest, tag)
        )

    def deliver(self, seconds: float) -> None:
        """Sleep, and let MPI transfer pending messages meanwhile:
        to another node a message may need several calls.
        """
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            if self.comms:
                with contextlib.suppress(Exception):  # MPI itself may have failed
                    self.comms.messages.Iprobe()
            time.sleep(min(left, MAX_SLEEP_SECONDS))

    def receive_any(self) -> tuple[int, int, Int64] | None:
        """Return (source, tag, values) of a message that has arrived, or None."""
        if not self.comms:
            return (0, *self._own_messages.popleft()) if self._own_messages else None
        self._release_sends()
        return self._receive(self.comms.mpi.ANY_SOURCE, self.comms.mpi.ANY_TAG)

    def receive_now(self, source: int, tag: int) -> Int64 | None:
        """Return the values of the next message from `source` with this tag.

        None if none has arrived.
        """
        message = self._receive(source, tag) if self.comms else None
        return None if message is None else message[2]

    def receive(self, source: int, tag: int) -> Int64:
        """Wait for the next message from `source` with this tag and return its values."""
        if not self.comms:
            index = next(
                (i for i, (own_tag, _) in enumerate(self._own_messages) if own_tag == tag), None
            )
            assert index is not None, (
                f"a world of one rank waits for a message with tag {tag} that it never sent"
            )
            _, values = self._own_messages[index]
            del self._own_messages[index]
            return values
        received: list[Int64] = []

        def has_arrived() -> bool:
            message = self._receive(source, tag)
            if message is not None:
                received.append(message[2])
            return message is not None

        self.wait_until(has_arrived)
        return received[0]

    def _receive(self, source: int, tag: int) -> tuple[int, int, Int64] | None:
        assert self.comms
        mpi = self.comms.mpi
        status, improbe = mpi.Status(), self.comms.messages.Improbe
        # A probe of MPICH that finds nothing may fetch a message that has arrived, which the next
        # probe then finds.
        message = improbe(source, tag, status) or improbe(source, tag, status)
        if message is None:
            return None
        values = np.empty(status.Get_count(mpi.INT64_T), np.int64)
        self.wait(message.Irecv([values, mpi.INT64_T]))
        return status.Get_source(), status.Get_tag(), values

    def _release_sends(self) -> None:
        """Release the buffers of completed sends among the next SENDS_TESTED.

        A call takes constant time.
        """
        for _ in range(min(SENDS_TESTED, len(self._sending))):
            request = self._sending.popleft()
            if not request.Test():
                self._sending.append(request)

    # Memory shared by the ranks of a node.

    def shared_array(self, name: str, count: int, dtype: npt.DTypeLike = np.float32) -> Array:
        """Return an uninitialised array, dtype[count], shared by the ranks of the node.

        Every rank calls this. Repeated calls with the same arguments return the same memory, after
        a barrier of the node. If shared memory is too small, each rank gets its own array, and
        `notes` says so. In either case the rank fills the part given by `filling(array)` and then
        calls `node_barrier()`.
        """
        key = f"{name} {count} {np.dtype(dtype)}"
        if key in self._shared:
            self.node_barrier()  # no rank reads the old content any more
        else:
            kind = np.dtype(dtype)
            self._shared[key] = (
                self.comms.memory.array(self, count, kind) if self.comms else np.empty(count, kind)
            )
        return self._shared[key]

    def filling(self, array: Array) -> tuple[int, int]:
        """Return (part, number of parts) of a `shared_array`, [count], to fill by this rank.

        It is (0, 1) if the array is private.
        """
        is_shared = self.comms is not None and array in self.comms.memory
        return (self.node_rank, self.node_size) if is_shared else (0, 1)

    def node_barrier(self) -> None:
        """Return when every rank of the node has called this.

        All see what each wrote to shared arrays before.
        """
        if self.comms:
            self.comms.memory.sync()
            self.wait(self.comms.node.Ibarrier())
            self.comms.memory.sync()

    # The end.

    def abort(self, status: int) -> NoReturn:
        """End all ranks immediately, with this exit status if the launcher passes it on."""
        abort(status)

    def finalize(self) -> None:
        """Finalize MPI; every rank calls this last, further calls do nothing.

        Do not call it in a `finally` clause: a failed rank would wait for ranks that wait for it.
        """
        if self._finalized:
            return
        self._finalized = True
        if self.fault_handler.wait_for_others():
            return
        if self.comms:
            worlds = (self, *self._groups.values())
            for request in [request for world in worlds for request in world._sending]:
                self.wait(request)
            # so that all ranks enter the blocking calls below together
            self.wait(self.comms.messages.Ibarrier())
            for world in worlds:
                if world.comms:
                    world.comms.memory.unlock()
        if "mpi4py.MPI" in sys.modules:
            sys.modules["mpi4py.MPI"].Finalize()


# Named arrays as bytes: a JSON header, then the memory of each array, aligned to 8 bytes. No
# pickle.


def encode(arrays: Mapping[str, Array]) -> Bytes:
    """Return uint8[...]: the length of the header in 8 bytes, the header, then the arrays."""
    assert all(array.dtype.kind in "biufc" for array in arrays.values()), "only numbers can be sent"
    entries = [_entry(name, array.dtype, array.shape) for name, array in arrays.items()]
    header = f"[{', '.join(entries)}]".encode()
    parts = [
        len(header).to_bytes(8, "little") + header,
        *(array.tobytes() for array in arrays.values()),
    ]
    return np.frombuffer(bytearray().join(map(_padded, parts)), np.uint8)


@lru_cache(maxsize=4096)  # many small arrays are the same ones in each generation
def _entry(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return the entry of an array in the header, JSON."""
    return json.dumps((name, dtype.str, shape))


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 8) if len(part) % 8 else part


def decode(coded: Bytes) -> dict[str, Array]:
    """Return the arrays in the result of `encode`, uint8[bytes], as views of it.

    Raises:
        ValueError: the header is not that of these bytes.
    """
    length = 8 + int.from_bytes(coded[:8].tobytes(), "little")
    start, arrays = _aligned(length), {}
    for name, code, shape in json.loads(coded[8:length].tobytes()):
        dtype = _number(code)
        size = math.prod(shape) * dtype.itemsize
        if not 0 <= size <= coded.size - start:
            raise ValueError(f"{name!r} has {size:,} bytes of {coded.size - start:,}")
        arrays[name] = np.ndarray(shape, dtype, coded, start)
        start += _aligned(size)
    return arrays


@lru_cache(maxsize=64)
def _number(code: str) -> np.dtype[Any]:
    """Return a dtype of numbers."""
    dtype = np.dtype(code)
    if dtype.kind not in "biufc":
        raise ValueError(f"expected a type of numbers, found {code!r}")
    return dtype


def _aligned(count: int) -> int:
    return -(-count // 8) * 8


def to_words(coded: Bytes) -> npt.NDArray[np.int64]:
    """Return the bytes as int64[...], for a message: their number, then the padded bytes."""
    words = np.zeros(1 + -(-coded.size // 8), np.int64)
    words[0] = coded.size
    words[1:].view(np.uint8)[: coded.size] = coded
    return words


def from_words(words: npt.NDArray[np.int64]) -> Bytes:
    """Return the bytes, uint8[...], in the result of `to_words`, as a view."""
    return words[1:].view(np.uint8)[: int(words[0])]
