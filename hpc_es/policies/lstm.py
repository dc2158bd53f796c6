"""`policy: {kind: lstm}`: a recurrent network of LSTM layers and a linear output layer.

All jobs of a chunk are evaluated together, with one batched matrix product per layer and step.

Parameter vector: for each LSTM layer the kernel [inputs + units, 4 * units], then the bias [4 *
units]; the kernel and bias of the output layer follow. The memory, h and c of each layer, is 0 at
the start of an episode. LSTM kernels are initialised uniformly (Glorot and Bengio 2010), output
columns are normal and scaled to length 0.01, biases are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Limits, option, options
from hpc_es.core.data import Array, Float32, Normaliser, Spaces
from hpc_es.core.policy import Actor, Pure, Tensor
from hpc_es.core.population import Layout, Population
from hpc_es.devices.backend import backend
from hpc_es.policies.networks import feed_forward as shared
from hpc_es.policies.networks.backend import network_backend
from hpc_es.policies.networks.compiled_actor import CompiledActor, CompiledCall
from hpc_es.policies.networks.heads import ActionHead, Head, PureHead, normalise, require_flat
from hpc_es.policies.networks.layers import (
    FORGET_BIAS,
    ArrayOps,
    Memory,
    Weights,
    glorot_uniform,
    lstm_layout,
    lstm_step,
    normalised_columns,
    weights_of,
)


@dataclass(frozen=True)
class LSTMNetwork:
    """A recurrent network without its parameters and memory."""

    observations: int
    hidden_dims: tuple[int, ...]
    outputs: int
    layout: Layout
    head: ActionHead

    def parameters(self, xp: ModuleType, theta: Tensor) -> dict[str, Tensor]:
        """Return the parts of theta [params] by name."""
        return self.layout.split(theta, xp.reshape)

    def step(
        self, xp: ModuleType, parameters: Tensor, memory: Memory, observations: Tensor
    ) -> tuple[Memory, Tensor]:
        """Return (new memory, outputs [outputs]) of one row, from [observations].

        `xp` is the array namespace.
        """
        outputs, new_memory = lstm_step(ArrayOps(xp), parameters, observations, memory)
        return new_memory, outputs


class InPlaceGates:
    """`lstm_gates` for float32 arrays, with few temporary arrays; it overwrites z.

    There is one tanh for all four gates.
    """

    def __init__(self, units: int) -> None:
        self._units = units
        # sigmoid(x) = tanh(x / 2) / 2 + 1/2
        self._scale = np.repeat(np.array([0.5, 1.0, 0.5, 0.5], np.float32), units)
        self._before = np.repeat(np.array([0.0, 0.0, 0.5 * FORGET_BIAS, 0.0], np.float32), units)
        self._after = np.repeat(np.array([0.5, 0.0, 0.5, 0.5], np.float32), units)

    def gates(self, z: Float32, c: Float32) -> tuple[Float32, Float32]:
        """Return the new (h, c), float32[..., units] each.

        z is [..., 4 * units], c the previous one.
        """
        z *= self._scale
        z += self._before
        np.tanh(z, out=z)
        z *= self._scale
        z += self._after
        n = self._units
        c = c * z[..., 2 * n : 3 * n]
        c += z[..., :n] * z[..., n : 2 * n]
        h = np.tanh(c)
        h *= z[..., 3 * n :]
        return h, c


def lstm_matrices(stack: Float32, layout: Layout) -> list[Float32]:
    """Return views [jobs, inputs + 1, outputs] of each layer of float32[jobs, params].

    The last row is the bias.
    """
    views, start = [], 0
    for shape in layout.shapes.values():
        if len(shape) == 2:  # a kernel; its bias follows it in the vector
            rows, columns = shape[0] + 1, shape[1]
            views.append(stack[:, start : start + rows * columns].reshape(-1, rows, columns))
            start += rows * columns
    return views


class LSTMActor:
    """Computes the actions of all rows with NumPy.

    A row's results do not depend on the other rows, except with `low_rank_product: matrix`. A row
    is a job, or with `with_episodes` an episode of a job: episode e of job j is row j * episodes +
    e.
    """

    def __init__(
        self,
        network: LSTMNetwork,
        weights: Weights,
        normaliser: Normaliser | None,
        episodes: int = 1,
    ) -> None:
        self._network, self._normaliser, self._episodes = network, normaliser, episodes
        self._layers = [InPlaceGates(units) for units in network.hidden_dims]
        memory = [
            np.zeros((len(weights) * episodes, 2, units), np.float32)
            for units in network.hidden_dims
        ]
        self._bind(weights, memory)

    def _bind(self, weights: Weights, memory: list[Float32]) -> None:
        """Create a buffer for each layer's input [x, h, 1]; the 1 multiplies the bias.

        `memory` is h and c of each layer, float32[rows, 2, units].
        """
        self._weights, jobs, episodes = weights, len(weights), self._episodes
        widths = (self._network.observations, *self._network.hidden_dims)
        self._inputs = [
            np.ones((jobs, episodes, n + units + 1), np.float32) for n, units in pairwise(widths)
        ]
        self._cells = []
        for inputs, h_and_c, n in zip(self._inputs, memory, widths, strict=False):
            shape = (jobs, episodes, h_and_c.shape[2])
            inputs[:, :, n:-1] = h_and_c[:, 0].reshape(shape)
            self._cells.append(h_and_c[:, 1].reshape(shape).copy())
        self._last = np.ones((jobs, episodes, widths[-1] + 1), np.float32)

    def with_episodes(self, episodes: int) -> LSTMActor:
        """Return a new actor with this many rows per job, each at the start of an episode."""
        return LSTMActor(self._network, self._weights, self._normaliser, episodes)

    def act(self, observations: Float32) -> Array:
        if self._normaliser is not None:
            observations = normalise(observations.astype(np.float32), self._normaliser)
        below = observations.reshape(len(self._weights), self._episodes, self._network.observations)
        for number, inputs in enumerate(self._inputs):
            n = below.shape[2]
            inputs[:, :, :n] = below
            z = self._weights.product(number, inputs)
            below, self._cells[number] = self._layers[number].gates(z, self._cells[number])
            inputs[:, :, n:-1] = below
        self._last[:, :, :-1] = below
        outputs = self._weights.product(len(self._inputs), self._last)
        return self._network.head.actions(outputs.reshape(len(observations), self._network.outputs))

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Keep these rows, int[kept], which must be all episodes of the jobs that remain."""
        jobs = rows[:: self._episodes] // self._episodes
        self._bind(self._weights.kept(jobs), [h_and_c[rows] for h_and_c in self.memory()])

    def memory(self) -> list[Float32]:
        """Return h and c of each layer, float32[rows, 2, units]."""
        memory = []
        for inputs, cells in zip(self._inputs, self._cells, strict=True):
            units = cells.shape[2]
            h = inputs[:, :, -1 - units : -1]
            memory.append(np.stack([part.reshape(-1, units) for part in (h, cells)], axis=1))
        return memory

    def remember(self, memory: list[Float32]) -> None:
        self._bind(self._weights, memory)

    def restart(self, row: int) -> None:
        job, episode = divmod(row, self._episodes)
        for inputs, cells in zip(self._inputs, self._cells, strict=True):
            inputs[job, episode, -1 - cells.shape[2] : -1] = 0.0
            cells[job, episode] = 0.0


@options
class Options(shared.Options):
    """`policy:` with `kind: lstm`."""

    kind: Literal["lstm"] = option("name of the policy", "lstm")
    hidden_dims: Annotated[tuple[Count, ...], Limits(min_length=1)] = option(
        "number of units of each LSTM layer", (48,)
    )


class LSTM:
    """Normalisation of the observations, LSTM layers, output layer, action head."""

    def __init__(self, options: Options, spaces: Spaces) -> None:
        self.options = options
        self.rows_are_independent = options.low_rank_product == "rows"
        self.observations = spaces.observations.size
        self.hidden_dims = options.hidden_dims
        head = Head.of(spaces.actions, options.action_bins, options.action_bounds)
        self.layout = lstm_layout(self.observations, options.hidden_dims, head.outputs)
        self.network = LSTMNetwork(
            self.observations, options.hidden_dims, head.outputs, self.layout, head
        )
        self.head = head
        self.action_noise_std = options.action_noise_std
        self.compiled_by = options.backend if backend(options.backend).compiles else None
        self.candidates_per_call = options.candidates_per_call if self.compiled_by else 1

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size].

        Kernels are Glorot-uniform, output weights small, biases 0.
        """
        arrays: dict[str, Float32] = {}
        for name, shape in self.layout.shapes.items():
            if len(shape) == 1:
                arrays[name] = np.zeros(shape, np.float32)
            elif name == "output_kernel":
                arrays[name] = normalised_columns(rng, (shape[0], shape[1]), 0.01)
            else:
                arrays[name] = glorot_uniform(rng, (shape[0], shape[1]))
        return self.layout.join(arrays)

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        return self.bind_with(self.head, parameters, normaliser)

    def bind_with(
        self, head: ActionHead, parameters: Population, normaliser: Normaliser | None
    ) -> Actor:
        """Return an actor with another head, such as one that samples actions."""
        if self.compiled_by:
            return CompiledActor(self._call, parameters, head, normaliser)
        names = [*(f"lstm_{number}" for number in range(len(self.hidden_dims))), "output"]
        matrices = partial(lstm_matrices, layout=self.layout)
        weights = weights_of(parameters, names, matrices, self.options.low_rank_product)
        return LSTMActor(replace(self.network, head=head), weights, normaliser)

    @cached_property
    def _call(self) -> CompiledCall:
        library = network_backend(self.options.backend)
        return library.call(library.lstm(self, self.hidden_dims), self.candidates_per_call)

    def pure(self, xp: Any) -> Pure:
        return self.pure_with(self.head, xp)

    def pure_with(self, head: PureHead, xp: Any) -> Pure:
        """Return the pure functions with another head, such as one that returns logits."""

        def apply(parameters: Any, memory: Any, observations: Any) -> tuple[Any, Any]:
            new_memory, outputs = self.network.step(xp, parameters, memory, observations)
            return new_memory, head.pure(xp, outputs)

        memory = tuple(
            (xp.zeros(units, np.float32), xp.zeros(units, np.float32)) for units in self.hidden_dims
        )
        return Pure(partial(self.network.parameters, xp), apply, memory)


def build(options: Any, spaces: Spaces) -> LSTM:
    """Return the policy; ConfigError if observations are not flat."""
    require_flat(spaces, "lstm", lambda flat: LSTM(options, flat).layout.size)
    return LSTM(options, spaces)


computes = shared.computes
