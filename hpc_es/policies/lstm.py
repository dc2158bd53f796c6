"""All jobs of a chunk through a recurrent network, in one stacked matrix product a layer.

A recurrent network: LSTM layers (`networks/lstm.py`) and a linear output.

Each layer's parameters lie as kernel [inputs + units, 4 * units], then bias [4 * units]; the output's follow. The
memory, h and c of each layer, begins at 0 and is 0 again after `restart`. LSTM kernels begin uniform as Glorot and
Bengio (2010) have it, output columns normal and scaled to length 0.01, biases 0.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import MinLen

from hpc_es.config.options import Count, option, options
from hpc_es.core.data import Array, Float32, Normaliser, Spaces
from hpc_es.core.policy import Actor, Pure
from hpc_es.core.population import Population
from hpc_es.policies.networks import feed_forward as shared
from hpc_es.policies.networks import layers
from hpc_es.policies.networks.heads import ActionHead, Head, normalise, require_flat
from hpc_es.policies.networks.layers import LSTMNetwork, glorot_uniform, layout, matrices, normalised_columns


class NumpyActor:
    """Each job's actions with its own weights; a job's numbers do not depend on which others are in the stack.

    Rows are jobs, or with `with_episodes` episodes of jobs: episode e of job j is row j * episodes + e.
    """

    def __init__(self, network: LSTMNetwork, stack: Float32, normaliser: Normaliser | None, episodes: int = 1) -> None:
        self._network, self._normaliser, self._episodes = network, normaliser, episodes
        self._layers = [layers.InPlace(units) for units in network.hidden_dims]
        memory = [np.zeros((len(stack) * episodes, 2, units), np.float32) for units in network.hidden_dims]
        self._bind(stack, memory)

    def _bind(self, stack: Float32, memory: list[Float32]) -> None:
        """Views of the weights, and a buffer for each layer's input [x, h, 1]; the 1 meets the bias.

        `memory` is h and c of each layer, float32[rows, 2, units].
        """
        self._stack, jobs, episodes = stack, len(stack), self._episodes
        widths = (self._network.observations, *self._network.hidden_dims)
        self._matrices = matrices(stack, self._network.layout)
        self._inputs = [np.ones((jobs, episodes, n + units + 1), np.float32) for n, units in pairwise(widths)]
        self._cells = []
        for inputs, held, n in zip(self._inputs, memory, widths, strict=False):
            shape = (jobs, episodes, held.shape[2])
            inputs[:, :, n:-1] = held[:, 0].reshape(shape)
            self._cells.append(held[:, 1].reshape(shape).copy())
        self._last = np.ones((jobs, episodes, widths[-1] + 1), np.float32)

    def with_episodes(self, episodes: int) -> NumpyActor:
        """Return a new actor with so many rows a job, which begin an episode."""
        return NumpyActor(self._network, self._stack, self._normaliser, episodes)

    def act(self, observations: Float32) -> Array:
        """Actions of all rows from float32[rows, observations]."""
        if self._normaliser is not None:
            observations = normalise(observations.astype(np.float32), self._normaliser)
        below = observations.reshape(len(self._stack), self._episodes, self._network.observations)
        for number, (inputs, matrix) in enumerate(zip(self._inputs, self._matrices, strict=False)):
            n = below.shape[2]
            inputs[:, :, :n] = below
            below, self._cells[number] = self._layers[number].gates(np.matmul(inputs, matrix), self._cells[number])
            inputs[:, :, n:-1] = below
        self._last[:, :, :-1] = below
        outputs = np.matmul(self._last, self._matrices[-1])
        return self._network.head.actions(outputs.reshape(len(observations), self._network.outputs))

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Copy the rows that remain; they must be all episodes of the jobs that remain."""
        jobs = rows[:: self._episodes] // self._episodes
        self._bind(self._stack[jobs], [held[rows] for held in self.memory()])

    def memory(self) -> list[Float32]:
        """Return h and c of each layer, float32[rows, 2, units]."""
        held = []
        for inputs, cells in zip(self._inputs, self._cells, strict=True):
            units = cells.shape[2]
            h = inputs[:, :, -1 - units : -1]
            held.append(np.stack([part.reshape(-1, units) for part in (h, cells)], axis=1))
        return held

    def remember(self, memory: list[Float32]) -> None:
        """Take over what another actor of the network, with as many rows, had in its `memory`."""
        self._bind(self._stack, memory)

    def restart(self, row: int) -> None:
        """The memory of a row is 0 again."""
        job, episode = divmod(row, self._episodes)
        for inputs, cells in zip(self._inputs, self._cells, strict=True):
            inputs[job, episode, -1 - cells.shape[2] : -1] = 0.0
            cells[job, episode] = 0.0


OUTPUT_LENGTH = 0.01  # of the columns of the output kernel


@options
class Options(shared.Options):
    """`policy:` with `kind: lstm`."""

    kind: Literal["lstm"] = option("name of the policy", "lstm")
    hidden_dims: Annotated[tuple[Count, ...], MinLen(1)] = option("units of the LSTM layers, one on the other", (48,))


class LSTM:
    """The policy: normalise, LSTM layers, output layer, action head."""

    def __init__(self, options: Options, spaces: Spaces) -> None:
        self.options = options
        self.observations = spaces.observations.size
        self.hidden_dims = options.hidden_dims
        head = Head.of(spaces.actions, options.action_bins)
        self.layout = layout(self.observations, options.hidden_dims, head.outputs)
        self.network = LSTMNetwork(self.observations, options.hidden_dims, head.outputs, self.layout, head)
        self.head = head
        self.action_noise_std = options.action_noise_std
        self.rows_are_independent = options.backend == "numpy"

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return Glorot-uniform kernels, a small output layer and biases of 0, float32[layout.size]."""
        arrays: dict[str, Float32] = {}
        for name, shape in self.layout.shapes.items():
            if len(shape) == 1:
                arrays[name] = np.zeros(shape, np.float32)
            elif name == "output_kernel":
                arrays[name] = normalised_columns(rng, (shape[0], shape[1]), OUTPUT_LENGTH)
            else:
                arrays[name] = glorot_uniform(rng, (shape[0], shape[1]))
        return self.layout.join(arrays)

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """Return an actor for the jobs of a chunk, which begin an episode."""
        return self.bind_with(self.head, parameters, normaliser)

    def bind_with(self, head: ActionHead, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """As `bind`, with another head, such as one that samples."""
        network = replace(self.network, head=head)
        if self.options.backend == "tensorflow":
            from hpc_es.policies.networks.tensorflow_actors import TensorFlowLSTM

            return TensorFlowLSTM(network, parameters.stacked(), normaliser)
        return NumpyActor(network, parameters.stacked(), normaliser)

    def pure(self, xp: Any) -> Pure:
        """Return the policy as pure functions over an array namespace."""

        def apply(parameters: Any, memory: Any, observations: Any) -> tuple[Any, Any]:
            after, outputs = self.network.step(xp, parameters, memory, observations)
            return after, self.head.pure(xp, outputs)

        return Pure(partial(self.network.parameters, xp), apply, self.network.first_memory(xp))


def build(options: Any, spaces: Spaces) -> LSTM:
    """Return the policy of `policy: {kind: lstm}`."""
    require_flat(spaces, "lstm", lambda flat: LSTM(options, flat).layout.size)
    return LSTM(options, spaces)
