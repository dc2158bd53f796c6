"""The device on which the ranks of this job compute: the CPU, or one GPU per rank.

All ranks decide together, once the config is known and before the library that computes is used.
The decision is kept for the process, so that the parts of a run need not know it. Choosing the CPU
although `device` is `auto` is never silent: the reason is logged.

Backends get the index of their GPU. For code of the user and programs, the GPU of their rank is the
only one that they see, by CUDA_VISIBLE_DEVICES. They see none if the ranks compute on the CPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from hpc_es.core.errors import CheckpointError, ConfigError
from hpc_es.devices.backend import backend, is_one_imported, used
from hpc_es.devices.placement import (
    CUDA,
    Kind,
    RankGpus,
    Source,
    assign,
    describe,
    driver_gpus,
    gpu_names,
    local_rank,
    node_name,
    visible_gpus,
)
from hpc_es.mpi.world import World

CUSTOM = "custom code"
MOST_LISTED = 64  # with more ranks, the log lists nodes instead of ranks


@dataclass(frozen=True)
class DeviceRequest:
    """The device that a config requests, and the library that computes on it."""

    library: str | None  # the backend that computes; None: only code that names none
    device: Literal["auto", "cpu", "gpu"] = "auto"
    ranks_per_gpu: int = 1
    key: str = "device"  # key of the config that sets `device`
    # whether a process sees no other GPU than its own, for code that names no library
    hides_others: bool = False
    # whether something computes on a device: code of the user's may use NumPy alone
    is_certain: bool = True

    @property
    def title(self) -> str:
        """What computes, in messages."""
        return CUSTOM if self.library is None else backend(self.library).title


@dataclass(frozen=True)
class RankDevice:
    """The CPU or GPU of one rank, by host and process id."""

    host: str
    pid: int
    gpu: str = ""  # name, such as the number on the node; "" for the CPU
    model: str = ""
    uuid: str = ""
    note: str = ""  # for the log

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.host}:{self.gpu or 'CPU'}", self.model, self.uuid)))


@dataclass(frozen=True)
class DeviceDecision:
    """The kind of device on which all ranks compute, and the device of each rank."""

    request: DeviceRequest
    kind: Kind
    devices: tuple[RankDevice, ...]  # in rank order
    reason: str = ""  # why the CPU is used, or why the GPU is not here

    @property
    def is_elsewhere(self) -> bool:
        """Whether the device is a GPU of other nodes, for which a config is only checked here."""
        return self.kind == "gpu" and bool(self.reason)

    def of(self, world: World) -> list[RankDevice]:
        """Return the devices of the ranks of a world, such as a group of ranks."""
        known = {(device.host, device.pid): device for device in self.devices}
        return [known.get((host, pid), RankDevice(host, pid)) for _, host, pid in world.table()]

    def lines(self, world: World) -> list[str]:
        """Return lines for the log of a world, once the code that computes has been imported."""
        library = self.request.title
        if self.kind == "cpu":
            is_idle = self.request.device == "auto" and not self.request.is_certain
            if is_idle and not is_one_imported():
                return []
            return [f"{library} computes on the CPU: {self.reason}"]
        devices = self.of(world)
        lines = [f"{library} computes on GPUs: {_listed(devices)}"]
        lines += [
            f"rank {rank}: {device.note}" for rank, device in enumerate(devices) if device.note
        ]
        models = sorted({device.model for device in devices})
        if len(models) > 1:
            lines.append(
                f"WARNING: the ranks compute on different GPUs ({', '.join(models)}), so "
                "results depend on which rank evaluates a candidate: request GPUs of one model"
            )
        return lines

    def provenance(self, world: World) -> dict[str, Any]:
        """Return the devices of a world as an entry for checkpoints."""
        info: dict[str, Any] = {"library": self.request.library, "kind": self.kind}
        if self.kind == "gpu":
            ranks = [
                {"host": d.host, "gpu": d.gpu, "model": d.model, "uuid": d.uuid}
                for d in self.of(world)
            ]
            info["ranks"] = ranks
        return {"device": info}


_decisions: list[DeviceDecision] = []  # the one of this process


def current_decision() -> DeviceDecision | None:
    """Return the decision for this process, None if there is none."""
    return _decisions[0] if _decisions else None


def forget() -> None:
    """Remove the decision, for runs that need none."""
    _decisions.clear()
    _show_all()
    for library in used():
        library.release()


def can_compute() -> bool:
    """Whether the device of this process is here, so that it can try what it computes."""
    decision = current_decision()
    if decision is None:
        return True
    if decision.request.library is None:
        return not decision.is_elsewhere
    return not backend(decision.request.library).only_traces()


def decide(world: World, request: DeviceRequest, only_checks: bool = False) -> DeviceDecision:
    """Decide on which devices the ranks compute, and set the library up for a GPU.

    Every rank of the world calls this. With `only_checks` a requested GPU may be missing, as on a
    login node.

    Raises:
        ConfigError: the same on every rank.
    """
    own = _offer(world, request)
    offers = [_Offer(**offer) for offer in _exchange(world, asdict(own))]
    devices = [RankDevice(offer.host, offer.pid) for offer in offers]
    kind: Kind = "cpu" if request.device == "cpu" else "gpu"
    index: int | None = None
    reason = f"{request.key} is cpu" if kind == "cpu" else _first_obstacle(offers)
    if not reason:
        index = _assigned(offers, request)[world.rank]
    elif request.device == "auto":
        kind = "cpu"
    elif kind == "gpu" and not only_checks:
        raise ConfigError(
            [
                (
                    request.key,
                    f"is gpu, but {reason}: request GPUs, such as with --gpus-per-node, or set "
                    f"{request.key}: cpu",
                )
            ]
        )
    forget()
    if request.hides_others and (kind == "cpu" or index is not None):
        _hide_others(own, index)
    if request.library is not None:
        backend(request.library).choose(
            kind, 0 if request.hides_others and index is not None else index
        )
    if index is not None:
        devices = _set_up(world, request, own, index)
    _decisions[:] = [DeviceDecision(request, kind, tuple(devices), reason)]
    return _decisions[0]


@dataclass(frozen=True)
class _Offer:
    """The GPUs that a rank sees, as sent to the other ranks before the decision."""

    host: str
    pid: int
    node: str
    local: int
    gpus: Sequence[str]
    source: Source
    obstacle: str  # why this rank cannot use a GPU; "" if it can
    note: str


def _offer(world: World, request: DeviceRequest) -> _Offer:
    _show_all()
    visible = visible_gpus(os.environ)
    if CUDA not in os.environ and visible.source == "SLURM":
        os.environ[CUDA] = ",".join(visible.names)  # other jobs of the node may use the others
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the numbers of SLURM and nvidia-smi
    local, note = local_rank(world.node_rank, world.size, os.environ)
    node = node_name(world.host, world.size, os.environ)
    obstacle = "" if request.device == "cpu" else _obstacle(request, visible.names)
    return _Offer(
        world.host, os.getpid(), node, local, visible.names, visible.source, obstacle, note
    )


_before: list[str | None] = []  # CUDA_VISIBLE_DEVICES before GPUs were hidden, if they are


def _hide_others(own: _Offer, index: int | None) -> None:
    """Let this process and its children see only one of its GPUs, or none."""
    value = os.environ.get(CUDA)
    _before[:] = [value]
    # The names of an offer may be SLURM's numbers of the node, which differ from those of CUDA
    # within a container.
    names = own.gpus if value is None else gpu_names(value)
    os.environ[CUDA] = "" if index is None else names[index]


def _show_all() -> None:
    """Let this process see again what a former decision has hidden."""
    for value in _before:
        os.environ.pop(CUDA, None)
        if value is not None:
            os.environ[CUDA] = value
    _before.clear()


def check_number_of_gpus(world: World, request: DeviceRequest) -> None:
    """Raise ConfigError, the same on every rank, if there are more ranks than GPUs.

    Every rank of the world calls this. Nothing is set up. Ranks without a GPU are accepted, as on a
    login node.
    """
    offers = [_Offer(**offer) for offer in _exchange(world, asdict(_offer(world, request)))]
    if request.device != "cpu" and not _first_obstacle(offers):
        _assigned(offers, request)


def _first_obstacle(offers: Sequence[_Offer]) -> str:
    """Return which rank cannot use a GPU and why; "" if all ranks can."""
    obstacles = (
        f"rank {rank} ({offer.host}) {offer.obstacle}"
        for rank, offer in enumerate(offers)
        if offer.obstacle
    )
    return next(obstacles, "")


def _assigned(offers: Sequence[_Offer], request: DeviceRequest) -> list[int]:
    """Return the index of the GPU of each rank; ConfigError if there are more ranks than GPUs."""
    ranks = [RankGpus(offer.host, offer.node, offer.local, tuple(offer.gpus)) for offer in offers]
    return assign(ranks, request.ranks_per_gpu)


def _obstacle(request: DeviceRequest, visible: Sequence[str]) -> str:
    """Return why this process cannot use one of its visible GPUs.

    "" if it can, as far as can be seen.
    """
    if not visible:
        return "sees no GPU"
    return "" if request.library is None else backend(request.library).obstacle()


def _set_up(world: World, request: DeviceRequest, own: _Offer, index: int) -> list[RankDevice]:
    """Set the library up on this rank's GPU, and return the devices of all ranks.

    Raises:
        ConfigError: one rank fails.
    """
    name, problem, model = own.gpus[index], "", ""
    try:
        model = "" if request.library is None else backend(request.library).gpu_model()
    except ConfigError as error:
        problem = error.problems[0][1]
    gpu = describe(name, own.source, driver_gpus())
    device = RankDevice(own.host, own.pid, name, gpu.model or model, gpu.uuid, own.note)
    messages = _exchange(world, {"device": asdict(device), "problem": problem})
    for rank, message in enumerate(messages):
        if message["problem"]:
            raise ConfigError(
                [
                    (
                        request.key,
                        f"{message['problem']} (rank {rank}, {message['device']['host']}, GPU "
                        f"{message['device']['gpu']}); "
                        f"expected a GPU that {request.title} can use, or cpu",
                    )
                ]
            )
    return [RankDevice(**message["device"]) for message in messages]


def _exchange(world: World, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the message of every rank on every rank."""
    return [
        json.loads(item.tobytes())
        for item in world.allgather(np.frombuffer(json.dumps(message).encode(), np.uint8))
    ]


def _listed(devices: Sequence[RankDevice]) -> str:
    """Return the devices in rank order, or for many ranks the number of ranks per node."""
    if len(devices) <= MOST_LISTED:
        return "  ".join(
            ["rank=host:GPU", *(f"{rank}={device}" for rank, device in enumerate(devices))]
        )
    hosts: dict[str, list[RankDevice]] = {}
    for device in devices:
        hosts.setdefault(device.host, []).append(device)
    items = []
    for host, members in hosts.items():
        gpus = ",".join(dict.fromkeys(device.gpu for device in members))
        models = ", ".join(dict.fromkeys(device.model for device in members))
        items.append(f"{host}: {len(members)} ranks on {gpus} ({models})")
    return "; ".join(items)


def changes(recorded: Mapping[str, Any], decision: DeviceDecision | None) -> list[str]:
    """Return warnings if a run continues on other GPUs than those in its checkpoint's provenance.

    Raises CheckpointError if it would continue on the CPU instead of GPUs, or the other way round.
    """
    old = recorded.get("device", {})
    before = old.get("kind") or recorded.get("compiled_for", {}).get("platform")  # of version 0.2
    if decision is None or before is None:
        return []
    if before != decision.kind:
        text = f"the run was computed on the {before.upper()}, and would continue on the {decision.kind.upper()}"
        why = f" ({decision.reason})" if decision.reason else ""
        raise CheckpointError(f"{text}{why}: set device: {before}, or choose another --output")
    was = ", ".join(sorted({rank["model"] for rank in old.get("ranks", ())} - {""}))
    now = ", ".join(sorted({device.model for device in decision.devices} - {""}))
    if was and now and was != now:
        return [
            f"the run was computed on {was} and continues on {now}: the last bits of its results may differ"
        ]
    return []
