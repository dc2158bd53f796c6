"""All jobs of a chunk through a recurrent network, in one stacked matrix product a layer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.policies.lstm.network import Network, matrices
from hpc_es.policies.networks import lstm
from hpc_es.policies.networks.inputs import normalise


class NumpyActor:
    """Each job's actions with its own weights; a job's numbers do not depend on which others are in the stack.

    Rows are jobs, or with `with_episodes` episodes of jobs: episode e of job j is row j * episodes + e.
    """

    def __init__(self, network: Network, stack: Float32, normaliser: Normaliser | None, episodes: int = 1) -> None:
        self._network, self._normaliser, self._episodes = network, normaliser, episodes
        self._layers = [lstm.InPlace(units) for units in network.hidden_dims]
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
