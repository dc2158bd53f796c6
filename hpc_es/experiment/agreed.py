"""What rank 0 finds out alone, every rank gets to know: a mistake ends all alike, without a hang or an abort."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpc_es.errors import InUseError, UserError
from hpc_es.mpi.world import World

INTERRUPTED = 75  # exit status: the same command carries on (EX_TEMPFAIL)


@dataclass(frozen=True)
class Ended:
    """How an experiment, or the attempt to begin it, ended; the same on every rank."""

    status: int  # 0 finished, INTERRUPTED, 2 a mistake of the user's, 1 failed
    reason: str = ""
    in_use: bool = False  # another process has the directory


def agreed(world: World, work: Callable[[], Mapping[str, Any] | Ended]) -> Mapping[str, Any] | Ended:
    """Run `work` on rank 0; every rank gets its JSON-able result, or how it ended if it raised a UserError."""
    told: Mapping[str, Any] = {}
    if world.rank == 0:
        try:
            result = work()
        except UserError as error:
            result = Ended(error.status, str(error), isinstance(error, InUseError))
        except SystemExit as error:  # argparse has said all
            result = Ended(error.code if isinstance(error.code, int) else 2)
        told = {"ended": asdict(result)} if isinstance(result, Ended) else {"result": dict(result)}
    told = json.loads(world.broadcast_text(json.dumps(told)))
    return Ended(**told["ended"]) if "ended" in told else told["result"]
