"""Assignment of GPUs: the visible GPUs of a node are assigned to its ranks in turn.

If SLURM makes one GPU visible to each rank (--gpus-per-task), it has index 0 for all of them, and the same rule holds.
TensorFlow is imported within functions only.
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

NVIDIA = Path("/proc/driver/nvidia")  # exists if the driver is installed
STARTUP = re.compile(r"\s*$|I\d{4} |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl::InitializeLog")


@dataclass(frozen=True)
class DeviceBinding:
    """The device of a rank."""

    host: str
    index: int | None  # among the visible GPUs; None: the CPU
    visible: int  # number of visible GPUs
    name: str = ""  # model of the GPU
    note: str = ""  # for the log


def bind_device(world: World) -> str:
    """Restrict TensorFlow to one GPU, with memory allocated as needed; every rank calls this.

    Call it before TensorFlow computes anything; further calls change nothing. Returns a line for the log, the same on
    every rank, with the devices of all ranks.
    """
    job = joined() or world  # a group of ranks shares its nodes with other groups
    binding = _bind(job.node_rank, job.size, job.host)
    messages = world.allgather(np.frombuffer(json.dumps(asdict(binding)).encode(), np.uint8))
    return devices_line([DeviceBinding(**json.loads(message.tobytes())) for message in messages])


@functools.cache
def _bind(node_rank: int, size: int, host: str) -> DeviceBinding:
    tf = import_tensorflow()
    local, note = local_rank(node_rank, size, os.environ)
    gpus = tf.config.list_physical_devices("GPU")
    index = choose(local, len(gpus))
    if index is None:
        return DeviceBinding(host, None, 0, note=note)
    try:
        tf.config.set_visible_devices(gpus[index], "GPU")
        tf.config.experimental.set_memory_growth(gpus[index], True)
    except RuntimeError as error:  # TensorFlow has been used before
        note = f"not bound to one GPU, this rank uses all of them: {error}"
    return DeviceBinding(host, index, len(gpus), _model(tf, gpus[index]), note)


def import_tensorflow() -> Any:
    """Return the module; drop its messages at start-up, except for warnings and errors on rank 0."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    world = joined()
    with quiet_stderr(keep=_is_worth_showing if world is None or world.rank == 0 else None):
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")  # loads the drivers
    return tf


def _is_worth_showing(line: str) -> bool:
    """Return whether a line is neither information nor a complaint about a missing GPU."""
    return not STARTUP.match(line) and ("cuInit" not in line or NVIDIA.is_dir())


def _model(tf: Any, gpu: Any) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def local_rank(node_rank: int, size: int, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the rank's index on its node, and a note if SLURM and the MPI library disagree.

    SLURM's index is used then, because SLURM assigns the GPUs of a node, and the library may only see a part of the
    node, such as a container. If srun did not start the ranks, SLURM_LOCALID is inherited and has no meaning.
    """
    text = variable_value(environ, "local_rank") or ""
    if variable_value(environ, "step_tasks") != str(size) or not text.isdecimal() or int(text) == node_rank:
        return node_rank, ""
    variable = TABLE["local_rank"].variable
    return int(text), f"{variable} is {text}, but the MPI library says {node_rank}: using {text}"


def choose(local: int, visible: int) -> int | None:
    """Return the index of the visible GPU that a rank uses; None if it sees none."""
    return local % visible if visible else None


def devices_line(bindings: Sequence[DeviceBinding]) -> str:
    """Return the line for the log; bindings are in rank order."""
    if all(bound.index is None for bound in bindings):
        return "TensorFlow sees no GPU on any rank and uses the CPU"
    devices = [
        f"{rank}={bound.host}:{'CPU' if bound.index is None else f'{bound.index} of {bound.visible} ({bound.name})'}"
        for rank, bound in enumerate(bindings)
    ]
    notes = [f"rank {rank}: {bound.note}" for rank, bound in enumerate(bindings) if bound.note]
    return "; ".join(["  ".join(["rank=host:GPU", *devices]), *notes])
