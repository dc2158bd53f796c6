"""Collective operations: decisions of rank 0, errors, broadcasts, reports of failed jobs.

Broadcasts are those of config and state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from hpc_es.config import user_code
from hpc_es.config.resolved import dump_json, parse_resolved, sources
from hpc_es.config.schema import Config
from hpc_es.core.data import Array, Arrays, Chunk, JsonObject, State, aligned_empty
from hpc_es.core.errors import (
    DeniedError,
    Exit,
    Failure,
    InUseError,
    UserError,
    exits_as_errors,
    long_names_refused,
)
from hpc_es.core.paths import current_directory
from hpc_es.mpi.world import Bytes, World

T = TypeVar("T")


@dataclass(frozen=True)
class ExitReason:
    """Exit status and message of a run, or of the attempt to start it; the same on every rank."""

    status: int  # 0 finished, INTERRUPTED, 2 user error, 1 failed
    text: str = ""
    in_use: bool = False  # another process uses the directory


class CollectiveExit(Exception):  # noqa: N818  (ends all ranks; not always an error)
    """Ends all ranks for the same reason; on rank 0 its cause is the original exception."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason.text)
        self.reason = reason


def on_rank_0(
    world: World,
    work: Callable[[], T | ExitReason],
    message_of: Callable[[T], JsonObject] = lambda value: {},
) -> tuple[T | None, JsonObject]:
    """Call `work` on rank 0 and send a message made from its value to every rank.

    `message_of` converts the value to JSON-able data. If `work` returns an ExitReason or raises
    UserError, PermissionError or Exit, every rank raises CollectiveExit.

    Returns:
        The value, which is None on other ranks, and the message.
    """
    value: T | None = None
    packet: JsonObject = {}
    cause: UserError | Exit | None = None
    if world.rank == 0:
        try:
            with long_names_refused(), exits_as_errors():
                result = work()
            if isinstance(result, ExitReason):
                packet = {"exit": asdict(result)}
            else:
                value, packet = result, {"message": dict(message_of(result))}
        except Exit as error:  # from argparse, which has printed its message
            cause = error
            packet = {"exit": asdict(ExitReason(error.code if isinstance(error.code, int) else 2))}
        except (UserError, PermissionError) as error:
            cause = DeniedError(error) if isinstance(error, PermissionError) else error
            packet = {
                "exit": asdict(ExitReason(cause.status, str(cause), isinstance(cause, InUseError)))
            }
    with world.patiently():
        packet = json.loads(world.broadcast_text(json.dumps(packet)))
    if "exit" in packet:
        raise CollectiveExit(ExitReason(**packet["exit"])) from cause
    return value, packet["message"]


def on_all_ranks(work: Callable[[], T]) -> T:
    """Return the result of `work`, which raises UserError either on every rank or on none:
    then CollectiveExit.
    """
    try:
        return work()
    except UserError as error:
        raise CollectiveExit(ExitReason(error.status, str(error))) from error


def config_message(config: Config) -> JsonObject:
    """Return, on rank 0, what `config_from_message` needs on every rank.

    Without a directory of its own, the config has the current one, which code of the user may
    change during the run.
    """
    config = replace(config, directory=config.directory or str(current_directory()))
    return {"config": dump_json(config), "import_paths": list(user_code.import_directories())}


def config_from_message(world: World, message: JsonObject) -> Config:
    """Return the config on every rank.

    Every rank calls this.

    Raises:
        CollectiveExit: the source of custom code differs between ranks.
    """
    if world.rank:
        user_code.import_from(message["import_paths"])
    own = json.dumps(sources(json.loads(message["config"]))).encode()
    hashes = [json.loads(item.tobytes()) for item in world.allgather(np.frombuffer(own, np.uint8))]
    problems = [
        f"the source of {name} is not the same on all ranks: SHA-256 {hashes[0][name] or 'none'} on rank 0 "
        f"({host_of(world, 0)}), {other[name] or 'none'} on rank {rank} ({host_of(world, rank)})"
        for rank, other in enumerate(hashes)
        for name in hashes[0]
        if other.get(name, hashes[0][name]) != hashes[0][name]
    ]
    if problems:
        raise CollectiveExit(ExitReason(2, "\n".join(problems)))
    return parse_resolved(message["config"])


def host_of(world: World, rank: int) -> str:
    """Return the host name of a rank."""
    return next((host for number, host, _ in world.table() if number == rank), "")


# Broadcast of the state: rank 0 sends the shared arrays in each generation, or all arrays once in a
# replicated update. A read-only array that was part of the previous broadcast is not sent again,
# such as a large matrix that an algorithm updates only now and then. Shapes are sent only when they
# change.

LARGE = 1 << 20  # bytes from which an array is sent in a message of its own
MOST = 62  # arrays that fit the bit mask of unchanged arrays; the others are always sent


class SharedArrays:
    """The arrays of the last broadcast on this rank.

    Every rank calls `broadcast` with rank 0's plan.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.reset()

    def reset(self) -> None:
        """Forget the last broadcast, because not all ranks may have received it."""
        self._known: dict[str, Array] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def plan(self, shared: Arrays) -> tuple[int, int]:
        """Return, on rank 0, a bit mask of arrays not to be sent, and whether shapes are sent."""
        mask = 0
        for bit, (name, array) in enumerate(list(shared.items())[:MOST]):
            if self._known.get(name) is array and not array.flags.writeable:
                mask |= 1 << bit
        shapes = {name: array.shape for name, array in shared.items()}
        return mask, int(shapes != self._shapes)

    def broadcast(self, shared: Arrays, plan: tuple[int, int]) -> Arrays:
        """Return rank 0's arrays.

        Other ranks pass arrays with the same names and dtypes, of any shape.
        """
        if self._world.rank == 0:
            shared = contiguous(shared)
        mask, reshaped = plan
        if reshaped:
            shapes = json.dumps({name: array.shape for name, array in shared.items()})
            received = json.loads(self._world.broadcast_text(shapes))
            self._shapes = {name: tuple(shape) for name, shape in received.items()}
        unchanged = [name for bit, name in enumerate(shared) if bit < MOST and mask >> bit & 1]
        # frees the others before new ones arrive
        self._known = {name: self._known[name] for name in unchanged}
        to_send = {name: array for name, array in shared.items() if name not in self._known}
        self._known |= self._send(to_send) if self._world.size > 1 else to_send
        arrays = {name: self._known[name] for name in shared}
        if self._world.rank == 0:  # others are sent again, and may be large
            self._known = {
                name: array for name, array in arrays.items() if not array.flags.writeable
            }
        return arrays

    def _send(self, arrays: Arrays) -> dict[str, Array]:
        """Broadcast large arrays one by one, and all small ones in one message."""
        sizes = {
            name: math.prod(self._shapes[name]) * array.itemsize for name, array in arrays.items()
        }
        is_rank_0, received = self._world.rank == 0, dict(arrays)
        small = {name: array for name, array in arrays.items() if sizes[name] < LARGE}
        packed, start = np.empty(sum(sizes[name] for name in small), np.uint8), 0
        for name, array in small.items():
            stop = start + sizes[name]
            view = packed[start:stop].view(array.dtype).reshape(self._shapes[name])
            if is_rank_0:
                view[...] = array
            else:
                received[name] = view
            start = stop
        if small:
            self._world.broadcast(packed)
        for name, array in arrays.items():
            if name not in small:
                received[name] = (
                    array if is_rank_0 else aligned_empty(self._shapes[name], array.dtype)
                )
                self._world.broadcast(received[name])
        return received


def contiguous(arrays: Arrays) -> dict[str, Array]:
    """Return the arrays in C order, as after a broadcast:
    bits of matrix products depend on the memory layout.
    """
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}


class Transfer(NamedTuple):
    """How the shared arrays of a state are sent; see `SharedState.plan`."""

    to_send: int = 0  # whether any are sent
    mask: int = 0  # of those that changed
    reshaped: int = 0  # of those with another shape


class SharedState:
    """The state on every rank.

    In a replicated update, where every rank updates it, it is sent completely and once.
    """

    def __init__(self, world: World, replicated: bool, initial: State) -> None:
        self._world, self._arrays, self._replicated = world, SharedArrays(world), replicated
        groups = (initial.shared, initial.master)
        self._empty = State(
            0,
            *(
                {name: np.empty(0, array.dtype) for name, array in group.items()}
                for group in groups
            ),
        )
        self._was_sent = False  # of a replicated update

    def reset(self) -> None:
        """Forget the last broadcast, because not all ranks may have received it."""
        self._arrays.reset()
        self._was_sent = False

    def plan(self, state: State) -> Transfer:
        """Return, on rank 0, whether to send the state, and the plan of `SharedArrays`."""
        return Transfer(0 if self._was_sent else 1, *self._arrays.plan(self._sent_arrays(state)))

    def without_arrays(self, state: State, to_send: int) -> State:
        """Return the argument of `broadcast`.

        On ranks that receive arrays it has empty arrays, to free memory.
        """
        return (
            state
            if self._world.rank == 0 or not to_send
            else replace(self._empty, generation=state.generation)
        )

    def broadcast(self, state: State, transfer: Transfer) -> State:
        """Return the state with rank 0's arrays.

        On other ranks `master` is empty unless the update is replicated.
        """
        to_send, mask, reshaped = transfer
        if not to_send:
            return state
        arrays = self._arrays.broadcast(self._sent_arrays(state), (mask, reshaped))
        if not self._replicated:
            return State(
                state.generation, {name: arrays[name] for name in state.shared}, state.master
            )
        self._was_sent = True
        self._arrays.reset()  # they are not sent again
        return State(
            state.generation,
            {name: arrays[f"shared/{name}"] for name in state.shared},
            {name: arrays[f"master/{name}"] for name in state.master},
        )

    def _sent_arrays(self, state: State) -> Arrays:
        if not self._replicated:
            return state.shared
        groups = {"shared": state.shared, "master": state.master}
        return {
            f"{group}/{name}": array
            for group, arrays in groups.items()
            for name, array in arrays.items()
        }


# Reports of failed jobs: each rank sends rank 0 the first failure of each kind, and rank 0 logs
# each kind once. Reports follow the rows of a round, in a message that is sent only if some rank
# has a new kind to report.

MOST_KINDS = 64  # reported by a rank
LABELS = {"train": "job", "probe": "probe", "evaluate": "evaluation"}  # by purpose of the chunk


@dataclass(frozen=True)
class FailureReport:
    """The first failure of its kind on a rank."""

    generation: int  # from 0, as in metrics.jsonl
    purpose: str  # a key of LABELS
    job: int
    rank: int
    host: str
    failure: Failure

    def line(self) -> str:
        """Return the line for the log.

        It has the number of the generation that progress lines show, from 1.
        """
        return (
            f"[rank {self.rank}] generation {self.generation + 1}: {LABELS[self.purpose]} "
            f"{self.job}: {self.failure.text}"
        )


class FailureReports:
    """The reports of this rank.

    On rank 0, `on_report` is called once for each kind of failure on any rank.
    """

    def __init__(self, world: World, on_report: Callable[[FailureReport], None] | None) -> None:
        self._rank, self._host, self._on_report = world.rank, world.host, on_report
        self._kinds: set[str] = set()  # that this rank has reported
        self._written: set[str] = set()  # kinds that rank 0 has written
        self.pending: list[FailureReport] = []  # not sent yet
        self.first = ""  # rank 0: the text of the first report

    def add(self, generation: int, chunk: Chunk, failures: Sequence[Failure]) -> None:
        """Add the failures of a chunk whose kind is new on this rank."""
        for failure in failures:
            if failure.kind not in self._kinds and len(self._kinds) < MOST_KINDS:
                self._kinds.add(failure.kind)
                job = chunk.first_job + failure.position
                self.pending.append(
                    FailureReport(generation, chunk.purpose, job, self._rank, self._host, failure)
                )

    def collect(self, world: World) -> None:
        """Send pending reports to rank 0, which writes them; every rank of `world` calls this."""
        received = world.gather(self.take())
        if received is not None:
            self.write(received)

    def take(self) -> Bytes:
        """Return the pending reports as uint8[bytes] and clear them."""
        packed = np.frombuffer(
            json.dumps([asdict(report) for report in self.pending]).encode(), np.uint8
        )
        self.pending.clear()
        return packed

    def write(self, messages: Sequence[Bytes]) -> None:
        """Write reports from `take` on rank 0, in job order."""
        assert self._on_report is not None
        entries = [entry for message in messages for entry in json.loads(message.tobytes())]
        reports = [
            FailureReport(**{**entry, "failure": Failure(**entry["failure"])}) for entry in entries
        ]
        for report in sorted(
            reports, key=lambda report: (report.generation, report.purpose, report.job)
        ):
            if report.failure.kind not in self._written:
                self._written.add(report.failure.kind)
                self.first = self.first or report.failure.text
                self._on_report(report)
