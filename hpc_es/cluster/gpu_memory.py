"""`hpc-es plan --gpu`: the memory that a rank needs on its GPU and beside it, before a job is paid.

Calls are compiled on this machine, where a GPU need not be. Nothing is evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from hpc_es.config.schema import Config
from hpc_es.core.closing import close
from hpc_es.core.data import Arrays
from hpc_es.core.errors import UserError
from hpc_es.core.interfaces import CallMemory, KnowsCallMemory
from hpc_es.core.machine import bytes_text
from hpc_es.core.policy import Policy, Traits
from hpc_es.core.text_table import aligned
from hpc_es.training.build import BuiltTask, build_task
from hpc_es.training.compatibility import candidate_numbers
from hpc_es.training.generation_jobs import initial_state
from hpc_es.training.sizes import with_sizes

FLOAT_BYTES = np.dtype(np.float32).itemsize
SMALL = 0.01  # of the largest array of the search; smaller ones are not named
ACTIVATIONS = "activations and what the library keeps"


@dataclass(frozen=True)
class GpuMemory:
    """What a rank of a run needs, in bytes, if it has a GPU of its own."""

    call: CallMemory  # on the GPU
    parameters: int  # number of them
    # arrays of the search by name, in the memory of each rank, and of rank 0 in addition
    shared: Mapping[str, int]
    master: Mapping[str, int]
    noise_table: int  # of a node


def gpu_memory(config: Config) -> GpuMemory:
    """Return what a run of a valid config needs.

    Raises:
        ConfigError: the task or its call cannot be built.
        UserError: nothing of it is computed in calls that a GPU can take.
    """
    built = build_task(config)
    try:
        config, built, _ = with_sizes(config, built)
        size = built.problem.layout.size
        state = initial_state(config, built.problem)
        # a search that only a run builds has at least theta
        shared = {"theta": FLOAT_BYTES * size} if state is None else _bytes(state.shared)
        master = {} if state is None else _bytes(state.master)
        return GpuMemory(_call(config, built), size, shared, master, _noise_table(config))
    finally:
        close(built.task.name, built.task.close)


def _bytes(arrays: Arrays) -> Mapping[str, int]:
    return {name: array.nbytes for name, array in arrays.items()}


def _call(config: Config, built: BuiltTask) -> CallMemory:
    if isinstance(built.problem, KnowsCallMemory):
        return built.problem.call_memory()
    if built.policy is not None and Traits.of(built.policy).compiled_by is not None:
        return _call_of_policy(config, built.policy)
    raise UserError(
        "--gpu: nothing of this config is computed on a GPU: its task and policy use NumPy; "
        "see docs/guides/gpus.md for those that a GPU can take"
    )


def _call_of_policy(config: Config, policy: Policy) -> CallMemory:
    """Return the memory of the parameters of a call; the environment runs on the CPU."""
    candidates = Traits.of(policy).candidates_per_call
    size = FLOAT_BYTES * candidates * candidate_numbers(config, policy.layout)
    return CallMemory(candidates, size, size, "policy.candidates_per_call", ACTIVATIONS)


def _noise_table(config: Config) -> int:
    has_table = config.setup.needs.noise and config.noise.kind == "table"
    return FLOAT_BYTES * config.noise.table_size if has_table else 0


def text(config_name: str, memory: GpuMemory) -> str:
    """Return the table that the command prints."""
    call = memory.call
    inside = f"a call of {call.jobs} candidate{'s' * (call.jobs > 1)}"
    inside += f", of it parameters and data {bytes_text(call.arguments)}; see {call.option}"
    rows = [("on the GPU", bytes_text(call.total), inside)]
    if call.uncounted:
        rows.append(("", "", f"without {call.uncounted}"))
    rows.append(
        (
            "in main memory, each rank",
            bytes_text(sum(memory.shared.values())),
            _named(memory.shared),
        )
    )
    if memory.master:
        rows.append(
            (
                "in main memory, rank 0",
                bytes_text(sum(memory.master.values())),
                _named(memory.master),
            )
        )
    if memory.noise_table:
        rows.append(
            ("in main memory, each node", bytes_text(memory.noise_table), "the noise table")
        )
    lines = [
        f"{config_name}: {memory.parameters:,} parameters; memory of a rank with a GPU of its own, "
        "its calls compiled on this machine",
        *(f"  {line}" for line in aligned(rows, right=[1])),
    ]
    return "\n".join(lines) + "\n"


def _named(arrays: Mapping[str, int]) -> str:
    """Return the names of all arrays but the small ones."""
    least = SMALL * max(arrays.values())
    return ", ".join(name for name, size in arrays.items() if size >= least)


def as_json(memory: GpuMemory) -> str:
    """Return the same as JSON, in bytes."""
    return json.dumps(asdict(memory), indent=2) + "\n"
