"""The actor of compiled networks, which evaluates candidates in calls of a fixed size.

A row's bits depend on its parameters, its observation and the size of the call, but neither on its
position in the call nor on the other rows. Therefore all calls have the same size, and the last one
is padded with copies of the last row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.core.callbacks import callback_errors
from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.core.errors import ConfigError
from hpc_es.core.machine import bytes_text, memory_bytes
from hpc_es.core.population import Layout, Population, candidate_parts
from hpc_es.policies.networks.heads import ActionHead, normalise

LARGE = 1 << 30  # bytes, below which the memory of the machine is not asked for


class CompiledCall(Protocol):
    """A compiled network, of a fixed number of candidates.

    Arrays of the library are not interpreted.

    `size` None: for any number of rows with the same parameters, so that parameters are [1, ...].
    """

    size: int | None
    layout: Layout  # of the parameters
    # the matrices that it takes as common weights and the factors of each candidate
    factored: Sequence[str]
    memory: Sequence[Array]  # leaves of the memory at the start of an episode, [*shape]

    def load(self, parts: Mapping[str, Float32], common: Mapping[str, Float32]) -> Any:
        """Return parameters as arrays of the library.

        `parts` are float32[size, *shape] by name; for a factored matrix "<name>:left" [size, rank,
        rows] and "<name>:right" [size, rank, columns]. `common` are the common weights,
        float32[*shape], of such matrices.
        """
        ...

    def step(
        self, parameters: Any, memory: Sequence[Any], observations: Array
    ) -> tuple[Any, Sequence[Any]]:
        """Return the outputs, float32[size, outputs], and the next memory.

        Observations are [size, *shape]. The result may be computed later; `np.asarray` waits for
        it.
        """
        ...


class CompiledActor:
    """Computes the actions of all rows, one row per job, in ceil(rows / size) calls per step."""

    def __init__(
        self,
        call: CompiledCall,
        parameters: Population,
        head: ActionHead,
        normaliser: Normaliser | None,
        kept: Sequence[int] = (),
    ) -> None:
        """Bind the parameters; `kept` are the elements of observations that are not normalised."""
        self._call, self._head, self._normaliser = call, head, normaliser
        self._kept = list(kept)
        rows = len(parameters)
        self._common, parts = candidate_parts(parameters, call.layout, call.factored)
        self._parts: dict[str, Float32] = {
            name: np.asarray(part, np.float32) for name, part in parts.items()
        }
        self._bind(rows, [np.repeat(leaf[np.newaxis], rows, axis=0) for leaf in call.memory])

    def _bind(self, rows: int, memory: Sequence[Array]) -> None:
        """Divide the rows into calls; leaves of the memory are [rows, *shape]."""
        assert self._call.size is not None
        size = self._call.size
        calls = -(-rows // size)
        one = sum(part[0].nbytes for part in self._parts.values())
        needed = calls * size * one
        if needed > LARGE and needed > (has := memory_bytes()):
            text = f"is {size}, but the parameters of its calls take {bytes_text(needed)}"
            remedy = f"expected a number that fits the {bytes_text(has)} of this machine"
            raise ConfigError([("policy.candidates_per_call", f"{text}: {remedy}")])
        self._rows = rows
        self._padding = np.minimum(np.arange(calls * size), rows - 1)
        self._spans = [slice(start, start + size) for start in range(0, calls * size, size)]
        padded = [self._padding[span] for span in self._spans]  # the rows of each call
        self._parameters = [
            self._call.load(
                {name: part[indices] for name, part in self._parts.items()}, self._common
            )
            for indices in padded
        ]
        self._memory: list[list[Any]] = [[leaf[indices] for leaf in memory] for indices in padded]

    def act(self, observations: Array) -> Array:
        if self._normaliser is not None:
            raw = observations
            observations = normalise(raw.astype(np.float32), self._normaliser)
            if self._kept:
                observations[:, self._kept] = raw[:, self._kept]
        padded = observations if len(self._padding) == self._rows else observations[self._padding]
        outputs = []
        with callback_errors:
            for index, span in enumerate(self._spans):
                output, memory = self._call.step(
                    self._parameters[index], self._memory[index], padded[span]
                )
                outputs.append(output)
                self._memory[index] = list(memory)
            results = np.concatenate([np.asarray(output) for output in outputs])
        return self._head.actions(results[: self._rows])

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        memory = [leaf[rows] for leaf in self.memory()]
        self._parts = {name: part[rows] for name, part in self._parts.items()}
        self._bind(len(rows), memory)

    def memory(self) -> list[Array]:
        """Return the leaves of the memory of all rows, [rows, *shape]."""
        leaves = range(len(self._call.memory))
        return [
            np.concatenate([np.asarray(memory[leaf]) for memory in self._memory])[: self._rows]
            for leaf in leaves
        ]

    def remember(self, memory: Sequence[Array]) -> None:
        """Set the memory to that of another actor of the policy with as many rows."""
        self._memory = [[leaf[self._padding[span]] for leaf in memory] for span in self._spans]

    def restart(self, row: int) -> None:
        assert self._call.size is not None
        index, position = divmod(row, self._call.size)
        for leaf, initial in enumerate(self._call.memory):
            changed = np.array(self._memory[index][leaf])
            changed[position] = initial
            self._memory[index][leaf] = changed


class SharedActor:
    """Computes the actions of rows with the same parameters, in one call per step.

    A row keeps its position in the call, whose number of rows is the initial one. So its bits
    depend neither on the other rows nor on which of them are kept, but on its position and on the
    number of rows.
    """

    def __init__(self, call: CompiledCall, theta: Float32, rows: int, head: ActionHead) -> None:
        """Bind the parameters theta, float32[params]."""
        assert call.size is None
        self._call, self._head = call, head
        self._parameters = call.load(call.layout.split(theta[np.newaxis]), {})
        self._rows, self._positions = rows, np.arange(rows)
        self._observations: Array | None = None  # of all positions
        self._memory: list[Any] = [
            np.repeat(leaf[np.newaxis], rows, axis=0) for leaf in call.memory
        ]

    def act(self, observations: Array) -> Array:
        if self._observations is None:
            self._observations = np.zeros((self._rows, *observations.shape[1:]), observations.dtype)
        self._observations[self._positions] = observations
        with callback_errors:
            outputs, memory = self._call.step(self._parameters, self._memory, self._observations)
            self._memory = list(memory)
            results = np.asarray(outputs)
        return self._head.actions(results[self._positions])

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        self._positions = self._positions[rows]

    def memory(self) -> list[Array]:
        """Return the leaves of the memory of all rows, [rows, *shape]."""
        return [np.asarray(leaf)[self._positions] for leaf in self._memory]

    def remember(self, memory: Sequence[Array]) -> None:
        """Set the memory to that of another actor of the policy, before rows are dropped."""
        self._memory = list(memory)

    def restart(self, row: int) -> None:
        for leaf, initial in enumerate(self._call.memory):
            changed = np.array(self._memory[leaf])
            changed[self._positions[row]] = initial
            self._memory[leaf] = changed
