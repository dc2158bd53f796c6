"""Decisions that rank 0 makes for all ranks: values that it computes alone, errors that end every rank, the config."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from hpc_es.config import registry
from hpc_es.config.resolved import dump_json, parse_resolved, sources
from hpc_es.config.schema import Config
from hpc_es.core.data import JsonObject
from hpc_es.core.errors import DeniedError, InUseError, UserError
from hpc_es.mpi.world import World

INTERRUPTED = 75  # exit status of a run that the same command resumes (EX_TEMPFAIL)
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
    """Call `work` on rank 0; return its value there (None on other ranks) and, on every rank, a message made from it.

    `message_of` converts the value to JSON-able data. If `work` returns an ExitReason or raises UserError,
    PermissionError or SystemExit, every rank raises CollectiveExit.
    """
    value: T | None = None
    packet: JsonObject = {}
    cause: UserError | SystemExit | None = None
    if world.rank == 0:
        try:
            result = work()
            if isinstance(result, ExitReason):
                packet = {"exit": asdict(result)}
            else:
                value, packet = result, {"message": dict(message_of(result))}
        except SystemExit as error:  # from argparse, which has printed its message
            cause = error
            packet = {"exit": asdict(ExitReason(error.code if isinstance(error.code, int) else 2))}
        except (UserError, PermissionError) as error:
            cause = DeniedError(error) if isinstance(error, PermissionError) else error
            packet = {"exit": asdict(ExitReason(cause.status, str(cause), isinstance(cause, InUseError)))}
    packet = json.loads(world.broadcast_text(json.dumps(packet)))
    if "exit" in packet:
        raise CollectiveExit(ExitReason(**packet["exit"])) from cause
    return value, packet["message"]


def config_message(config: Config) -> JsonObject:
    """Return, on rank 0, what `config_from_message` needs on every rank."""
    return {"config": dump_json(config), "import_paths": list(registry.import_directories())}


def config_from_message(world: World, message: JsonObject) -> Config:
    """Return the config on every rank; CollectiveExit if the source of custom code differs between ranks.

    Every rank calls this.
    """
    if world.rank:
        registry.make_importable(*message["import_paths"])
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
