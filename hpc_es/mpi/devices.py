"""Which GPU a rank computes on: those that it sees are dealt out in turn to the ranks of its node.

Where SLURM has given each rank one GPU to see (--gpus-per-task), that is number 0 for all of them, whatever its number
on the node; the same rule holds. TensorFlow is imported in functions only.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.quiet import quiet_stderr
from hpc_es.core.slurm import TABLE, variable_value
from hpc_es.mpi.connect import joined
from hpc_es.mpi.world import World

NVIDIA = Path("/proc/driver/nvidia")  # where there is a driver
STARTUP = re.compile(r"\s*$|I\d{4} |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl::InitializeLog")


@dataclass(frozen=True)
class Bound:
    """What a rank computes on; `index` is among the GPUs that it sees, None is the CPU."""

    host: str
    index: int | None
    visible: int
    name: str = ""  # of the GPU's model
    note: str = ""  # what a user should know


def bind_device(world: World) -> str:
    """Let TensorFlow see one GPU of this rank's node, and take its memory as needed; every rank calls this.

    Call it before TensorFlow computes anything, where a policy uses it; again, it changes nothing. Returns a line for
    the log, the same on every rank, that says what each has.
    """
    job = joined() or world  # a group of ranks shares its nodes with other groups
    mine = _bind(job.node_rank, job.size, job.host)
    every = world.allgather(np.frombuffer(json.dumps(asdict(mine)).encode(), np.uint8))
    return line([Bound(**json.loads(each.tobytes())) for each in every])


@functools.cache
def _bind(node_rank: int, size: int, host: str) -> Bound:
    tf = import_tensorflow()
    local, note = local_rank(node_rank, size, os.environ)
    gpus = tf.config.list_physical_devices("GPU")
    index = choose(local, len(gpus))
    if index is None:
        return Bound(host, None, 0, note=note)
    try:
        tf.config.set_visible_devices(gpus[index], "GPU")
        tf.config.experimental.set_memory_growth(gpus[index], True)
    except RuntimeError as error:  # somebody has used TensorFlow already
        note = f"not bound, all GPUs are in use by this rank: {error}"
    return Bound(host, index, len(gpus), _model(tf, gpus[index]), note)


def import_tensorflow() -> Any:
    """Return the module; what it writes when it starts is dropped, on rank 0 but for warnings and errors."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    world = joined()
    with quiet_stderr(keep=_is_worth_showing if world is None or world.rank == 0 else None):
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")  # which looks for drivers
    return tf


def _is_worth_showing(line: str) -> bool:
    """Return whether a line is more than information, or the complaint of a machine that has no GPU."""
    return not STARTUP.match(line) and ("cuInit" not in line or NVIDIA.is_dir())


def _model(tf: Any, gpu: Any) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def local_rank(node_rank: int, size: int, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the rank's number on its node, and a note if SLURM has another than the MPI library.

    SLURM's is taken then, since it is SLURM that hands out a node's GPUs: the library sees a part of the node, as in a
    container. Where something else than srun started the ranks, SLURM_LOCALID is inherited and means nothing.
    """
    text = variable_value(environ, "local_rank") or ""
    if variable_value(environ, "step_tasks") != str(size) or not text.isdecimal() or int(text) == node_rank:
        return node_rank, ""
    variable = TABLE["local_rank"].variable
    return int(text), f"{variable} is {text}, but the MPI library says {node_rank}: the former is taken"


def choose(local: int, visible: int) -> int | None:
    """Return which of the visible GPUs a rank takes: in turn; None if it sees none."""
    return local % visible if visible else None


def line(every: Sequence[Bound]) -> str:
    """Return what the ranks compute on, in rank order, for the log."""
    if all(bound.index is None for bound in every):
        return "TensorFlow sees no GPU on any rank: it computes on the CPU"
    places = [
        f"{rank}={bound.host}:{'CPU' if bound.index is None else f'{bound.index} of {bound.visible} ({bound.name})'}"
        for rank, bound in enumerate(every)
    ]
    notes = [f"rank {rank}: {bound.note}" for rank, bound in enumerate(every) if bound.note]
    return "; ".join(["  ".join(["rank=host:GPU", *places]), *notes])
