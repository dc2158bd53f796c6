"""What rank 0 tells the others of an experiment: its config, and where modules of the user's own are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpc_es.config import user_kinds
from hpc_es.config.resolved import dump_json, parse_resolved
from hpc_es.config.schema import Config
from hpc_es.config.sources import sources
from hpc_es.mpi.world import World
from hpc_es.training.collective import CollectiveExit, ExitReason


def orders(config: Config) -> dict[str, Any]:
    """Return, on rank 0, what `carried_out` needs."""
    return {"config": dump_json(config), "import_paths": list(user_kinds.used())}


def carried_out(world: World, told: Mapping[str, Any]) -> Config:
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
