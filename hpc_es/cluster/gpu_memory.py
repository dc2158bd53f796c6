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
from hpc_es.core.data import State
from hpc_es.core.errors import UserError
from hpc_es.core.interfaces import CallMemory, KnowsCallMemory
from hpc_es.core.machine import bytes_text
from hpc_es.core.policy import Policy, Traits
from hpc_es.core.text_table import aligned
from hpc_es.training.build import BuiltTask, build_task
from hpc_es.training.check import initial_state
from hpc_es.training.compatibility import factorisation_of
from hpc_es.training.sizes import with_sizes

FLOAT_BYTES = np.dtype(np.float32).itemsize
LARGE = 0.01  # an array of the search, relative to theta, from which it is named
ACTIVATIONS = "activations and what the library keeps"


@dataclass(frozen=True)
class GpuMemory:
    """Bytes that a rank of a run needs, with one rank per GPU."""

    parameters: int  # number of them
    call: CallMemory
    arrays: Mapping[str, int]  # of the search, in the memory of rank 0
    noise_table: int  # of a node

    @property
    def theta(self) -> int:
        """Bytes of theta on the GPU."""
        return FLOAT_BYTES * self.parameters

    @property
    def device(self) -> int:
        """Bytes on the GPU."""
        return self.theta + self.call.total


def gpu_memory(config: Config) -> GpuMemory:
    """Return what a run of a valid config needs.

    Raises:
        ConfigError: the task or its call cannot be built.
        UserError: nothing of it is computed in calls that a GPU can take.
    """
    built = build_task(config)
    try:
        config, built, _ = with_sizes(config, built)
        call, layout = _call(config, built), built.problem.layout
        state = initial_state(config, built.problem)
        return GpuMemory(layout.size, call, _arrays(state), _noise_table(config))
    finally:
        close(built.task.name, built.task.close)


def _call(config: Config, built: BuiltTask) -> CallMemory:
    if isinstance(built.problem, KnowsCallMemory):
        return built.problem.call_memory()
    if built.policy is not None and Traits.of(built.policy).compiled_by is not None:
        return _call_of_policy(config, built.policy)
    text = "nothing of this config is computed on a GPU: its task and policy use NumPy"
    raise UserError(f"--gpu: {text}; see docs/guides/gpus.md for those that a GPU can take")


def _call_of_policy(config: Config, policy: Policy) -> CallMemory:
    """Return the memory of the parameters of a call; the environment runs on the CPU."""
    factorisation = factorisation_of(config, policy.layout)
    numbers = policy.layout.size if factorisation is None else factorisation.compact.size
    candidates = Traits.of(policy).candidates_per_call
    size = FLOAT_BYTES * numbers * candidates
    return CallMemory(candidates, size, size, "policy.candidates_per_call", ACTIVATIONS)


def _arrays(state: State | None) -> Mapping[str, int]:
    """Return the bytes of the arrays of a state by name; {} if only a run builds it."""
    if state is None:
        return {}
    return {name: array.nbytes for name, array in {**state.shared, **state.master}.items()}


def _noise_table(config: Config) -> int:
    has_table = config.setup.needs.noise and config.noise.kind == "table"
    return FLOAT_BYTES * config.noise.table_size if has_table else 0


def text(config_name: str, memory: GpuMemory) -> str:
    """Return the table that the command prints."""
    call = memory.call
    rows = [
        (f"theta float32[{memory.parameters:,}]", bytes_text(memory.theta), ""),
        (
            f"a call of {call.jobs} candidate{'s' * (call.jobs > 1)}",
            bytes_text(call.total),
            f"of it candidates and data {bytes_text(call.arguments)}; see {call.option}",
        ),
        ("together", bytes_text(memory.device), f"without {call.uncounted}" * bool(call.uncounted)),
    ]
    least = LARGE * memory.theta
    named = [name for name, size in memory.arrays.items() if size >= least]
    if memory.arrays:
        rows.append(
            (
                "rank 0, in the memory of its node",
                bytes_text(sum(memory.arrays.values())),
                f"the search: {', '.join(named)}",
            )
        )
    if memory.noise_table:
        rows.append(("each node", bytes_text(memory.noise_table), "the noise table"))
    lines = [
        f"{config_name}: memory of a rank with a GPU of its own, as compiled on this machine",
        *(f"  {line}" for line in aligned(rows, right=[1])),
    ]
    return "\n".join(lines) + "\n"


def as_json(memory: GpuMemory) -> str:
    """Return the same as JSON, in bytes."""
    return (
        json.dumps(
            {
                "parameters": memory.parameters,
                "theta_bytes": memory.theta,
                "call": asdict(memory.call),
                "device_bytes": memory.device,
                "search_bytes": dict(memory.arrays),
                "noise_table_bytes": memory.noise_table,
            },
            indent=2,
        )
        + "\n"
    )
