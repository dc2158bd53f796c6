"""What rank 0 finds out alone, every rank gets to know: a mistake ends all alike, without a hang or an abort.

What rank 0 tells the others of an experiment: its config, and where modules of the user's own are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from hpc_es.config import user_kinds
from hpc_es.config.resolved import dump_json, parse_resolved
from hpc_es.config.schema import Config
from hpc_es.config.sources import sources
from hpc_es.core.errors import DeniedError, InUseError, UserError
from hpc_es.mpi.world import World

INTERRUPTED = 75  # exit status: the same command resumes the run (EX_TEMPFAIL)
T = TypeVar("T")


@dataclass(frozen=True)
class ExitReason:
    """How a run, or the attempt to begin it, ended; the same on every rank."""

    status: int  # 0 finished, INTERRUPTED, 2 a mistake of the user's, 1 failed
    text: str = ""
    in_use: bool = False  # another process has the directory


class CollectiveExit(Exception):  # noqa: N818  (no error of the code: the end)
    """All ranks end here, for the same reason; on rank 0 its cause is what was raised."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason.text)
        self.reason = reason


def _tell_nothing(value: object) -> Mapping[str, Any]:
    return {}


def on_rank_0(
    world: World, work: Callable[[], T | ExitReason], told: Callable[[T], Mapping[str, Any]] = _tell_nothing
) -> tuple[T | None, Mapping[str, Any]]:
    """Run `work` on rank 0; return its value there (None on the others), and what every rank is told of it.

    `told` makes JSON-able data of the value. Where `work` gives an ExitReason, or raises a UserError or a
    PermissionError, every rank raises Ended.
    """
    value: T | None = None
    message: Mapping[str, Any] = {}
    cause: UserError | SystemExit | None = None
    if world.rank == 0:
        try:
            found = work()
            if isinstance(found, ExitReason):
                message = {"ended": asdict(found)}
            else:
                value, message = found, {"told": dict(told(found))}
        except (UserError, PermissionError, SystemExit) as error:
            cause = DeniedError(error) if isinstance(error, PermissionError) else error
            message = {"ended": asdict(_reason(cause))}
    message = json.loads(world.broadcast_text(json.dumps(message)))
    if "ended" in message:
        raise CollectiveExit(ExitReason(**message["ended"])) from cause
    return value, message["told"]


def _reason(error: UserError | SystemExit) -> ExitReason:
    if isinstance(error, SystemExit):  # argparse has said all
        return ExitReason(error.code if isinstance(error.code, int) else 2)
    return ExitReason(error.status, str(error), isinstance(error, InUseError))


def config_message(config: Config) -> dict[str, Any]:
    """Return, on rank 0, what `carried_out` needs."""
    return {"config": dump_json(config), "import_paths": list(user_kinds.used())}


def config_from_message(world: World, told: Mapping[str, Any]) -> Config:
    """Return the config on every rank; Ended where ranks would run different code. Every rank calls this."""
    if world.rank:
        user_kinds.use(*told["import_paths"])
    mine = json.dumps(sources(json.loads(told["config"]))).encode()
    hashes = [json.loads(each.tobytes()) for each in world.allgather(np.frombuffer(mine, np.uint8))]
    problems = [
        f"the source of {name} is not the same on all ranks: SHA-256 {_shown(hashes[0][name])} on rank 0 "
        f"({host_of(world, 0)}), {_shown(other[name])} on rank {rank} ({host_of(world, rank)})"
        for rank, other in enumerate(hashes)
        for name in hashes[0]
        if other.get(name, hashes[0][name]) != hashes[0][name]
    ]
    if problems:
        raise CollectiveExit(ExitReason(2, "\n".join(problems)))
    return parse_resolved(told["config"])


def host_of(world: World, rank: int) -> str:
    """Return the name of the machine that a rank runs on."""
    return next((host for number, host, _ in world.table() if number == rank), "")


def _shown(sha256: str) -> str:
    return sha256 or "nothing"
