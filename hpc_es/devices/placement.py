"""The rule that assigns GPUs to ranks.

It knows no library, and every rank computes it from the same input.

Each rank lists the GPUs that it may use (`visible_gpus`), and the ranks of a node exchange their
lists. Ranks with equal lists take the entries in turn, in the order of their index on the node; a
rank with a list of its own takes its first entry. This covers every way of requesting GPUs from
SLURM, whether all ranks of a node see the same GPUs (`--gpus-per-node`, `--gres`) or each rank sees
its own (`--gpus-per-task`, `--ntasks-per-gpu`, `--gpu-bind`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpc_es.core.errors import ConfigError
from hpc_es.core.slurm import TABLE, variable_value

CUDA = "CUDA_VISIBLE_DEVICES"
DRIVERS = Path("/proc/driver/nvidia/gpus")  # one folder per GPU, named after its PCI bus id
KEY = "mpi.ranks_per_gpu"

Kind = Literal["cpu", "gpu"]
Source = Literal["CUDA", "SLURM", "driver"]


@dataclass(frozen=True)
class VisibleGpus:
    """The GPUs that a process may use.

    `names` are numbers or UUIDs, and comparable between the ranks of a node.
    """

    names: tuple[str, ...]
    # of the names: CUDA_VISIBLE_DEVICES, SLURM's numbers of the node, or all GPUs of the driver
    source: Source


@dataclass(frozen=True)
class RankGpus:
    """A rank, and the names of the GPUs that it may use."""

    host: str
    node: str  # the same for all ranks of a node
    local: int  # index of the rank on its node
    gpus: tuple[str, ...]


def assign(ranks: Sequence[RankGpus], ranks_per_gpu: int = 1) -> list[int]:
    """Return for each rank the index of its GPU in its own list; no list may be empty.

    Raises ConfigError if more than `ranks_per_gpu` ranks would use the same GPU.
    """
    indices = [0] * len(ranks)
    nodes: dict[str, list[int]] = {}
    for number, rank in enumerate(ranks):
        nodes.setdefault(rank.node, []).append(number)
    problems = []
    for members in nodes.values():
        by_list: dict[tuple[str, ...], list[int]] = {}
        for number in sorted(members, key=lambda member: (ranks[member].local, member)):
            by_list.setdefault(ranks[number].gpus, []).append(number)
        for gpus, sharing in by_list.items():
            for position, number in enumerate(sharing):
                indices[number] = position % len(gpus)
        problems += _overload(ranks, members, indices, ranks_per_gpu)
    if problems:
        raise ConfigError([(KEY, text) for text in problems])
    return indices


def _overload(
    ranks: Sequence[RankGpus], members: Sequence[int], indices: Sequence[int], limit: int
) -> list[str]:
    """Return a problem if a GPU of a node has more ranks than allowed."""
    users: dict[str, list[int]] = {}
    for number in members:
        users.setdefault(ranks[number].gpus[indices[number]], []).append(number)
    gpu, crowd = max(users.items(), key=lambda item: len(item[1]))
    if len(crowd) <= limit:
        return []
    host, count = (
        ranks[members[0]].host,
        len({name for number in members for name in ranks[number].gpus}),
    )
    expected = f"is {limit}: expected at most {limit} rank{'s'[: limit > 1]} per GPU"
    if len(members) > limit * count:
        actual = f"found {len(members)} ranks and {count} GPU{'s'[: count > 1]} on {host}"
        most = limit * count
        remedy = f"start at most {most} rank{'s'[: most > 1]} per node, request more GPUs"
    else:
        actual = f"found ranks {', '.join(map(str, crowd))} with GPU {gpu} on {host}, because their lists of GPUs overlap"
        remedy = "request GPUs with --gpus-per-node, or with --gpus-per-task=1"
    return [
        f"{expected}, {actual}: {remedy}, let ranks share them ({KEY}: {len(crowd)}), or set device: cpu"
    ]


def visible_gpus(environ: Mapping[str, str], drivers: Path = DRIVERS) -> VisibleGpus:
    """Return the GPUs that a process may use.

    SLURM's numbers of the node replace those of CUDA_VISIBLE_DEVICES, which start at 0 in each rank
    if the ranks are confined to their GPUs.
    """
    step, job = (
        gpu_names(variable_value(environ, concept) or "") for concept in ("step_gpus", "job_gpus")
    )
    if CUDA in environ:
        cuda = gpu_names(environ[CUDA])
        return VisibleGpus(step, "SLURM") if len(step) == len(cuda) else VisibleGpus(cuda, "CUDA")
    if job:
        return VisibleGpus(job, "SLURM")
    return VisibleGpus(tuple(str(number) for number in range(len(driver_gpus(drivers)))), "driver")


def gpu_names(text: str) -> tuple[str, ...]:
    """Return the names in a list such as "0,2-3" or "GPU-5a2f,MIG-77e0".

    Like CUDA, stop at anything else ("-1").
    """
    names: list[str] = []
    for item in text.split(","):
        numbers = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        if numbers:
            first, last = int(numbers[1]), int(numbers[2] or numbers[1])
            names += map(str, range(first, last + 1))
        elif item.strip().startswith(("GPU-", "MIG-")):
            names.append(item.strip())
        else:
            break
    return tuple(names)


def local_rank(node_rank: int, size: int, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the rank's index on its node, and a note if SLURM and the MPI library disagree.

    SLURM's index is used then, because SLURM assigns the GPUs of a node, and the library may only
    see a part of the node, such as a container. If srun did not start the ranks, SLURM_LOCALID is
    inherited and has no meaning.
    """
    text = variable_value(environ, "local_rank") or ""
    if not started_by_srun(size, environ) or not text.isdecimal() or int(text) == node_rank:
        return node_rank, ""
    variable = TABLE["local_rank"].variable
    return int(text), f"{variable} is {text}, but the MPI library says {node_rank}: using {text}"


def node_name(host: str, size: int, environ: Mapping[str, str]) -> str:
    """Return a name that all ranks of the node share: SLURM's number of it, or the host."""
    node = variable_value(environ, "node_index")
    return f"node {node}" if node and started_by_srun(size, environ) else host


def started_by_srun(size: int, environ: Mapping[str, str]) -> bool:
    """Whether one srun has started all ranks.

    Then SLURM's variables describe each of them.
    """
    return variable_value(environ, "step_tasks") == str(size)


# What the driver says about the GPUs of a node.


@dataclass(frozen=True)
class Gpu:
    """A GPU of the node; model and UUID are "" if they are unknown."""

    model: str = ""
    uuid: str = ""
    minor: str = ""  # number of its device file, which SLURM uses


def driver_gpus(drivers: Path = DRIVERS) -> list[Gpu]:
    """Return the GPUs of the NVIDIA driver in the order of their PCI bus ids."""
    try:
        folders = sorted(drivers.iterdir())
    except OSError:
        return []
    return [_gpu(folder / "information") for folder in folders]


def _gpu(file: Path) -> Gpu:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Gpu()
    values = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    uuid = values.get("GPU UUID", "")
    return Gpu(values.get("Model", ""), "" if "?" in uuid else uuid, values.get("Device Minor", ""))


def describe(name: str, source: Source, gpus: Sequence[Gpu]) -> Gpu:
    """Return model and UUID of a visible GPU, given those of the driver.

    A UUID may be abbreviated.
    """
    if not name.isdecimal():
        return next((gpu for gpu in gpus if gpu.uuid.startswith(name)), Gpu(uuid=name))
    if source == "SLURM":
        numbered = [gpu for gpu in gpus if gpu.minor == name]
        if numbered:
            return numbered[0]
    return gpus[int(name)] if int(name) < len(gpus) else Gpu()
