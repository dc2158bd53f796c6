"""A recurrent network: LSTM layers (`common/lstm.py`) and a linear output, all jobs of a chunk in one stacked product.

Each layer's parameters lie as kernel [inputs + units, 4 * units], then bias [4 * units]; the output's follow. The
memory, h and c of each layer, begins at 0 and is 0 again after `restart`. LSTM kernels begin uniform as Glorot and
Bengio (2010) have it, output columns normal and scaled to length 0.01, biases 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, MinLen

from hpc_es.common import lstm
from hpc_es.common.layout import Layout
from hpc_es.interfaces import Actor, Array, Float32, Perturbed, Spaces
from hpc_es.options import Count, NonNegative, option, options
from hpc_es.policies.actions import Head
from hpc_es.policies.mlp import Normaliser, normalise

OUTPUT_LENGTH = 0.01  # of the columns of the output kernel


@options
class Options:
    """`policy:` with `kind: lstm`."""

    kind: Literal["lstm"] = option("the policy's module in hpc_es/policies", "lstm")
    hidden_dims: Annotated[tuple[Count, ...], MinLen(1)] = option("units of the LSTM layers, one on the other", (48,))
    action_noise_std: NonNegative = option("normal noise added to Box actions, in training episodes only", 0.0)
    action_bins: Annotated[int, Ge(2)] | None = option("uniform bins per action dimension; null: continuous", None)
    backend: Literal["numpy", "tensorflow"] = option("what computes the actions", "numpy")
    init_from: str | None = option("a run directory or checkpoint whose theta is the start", None, may_change=True)


def layout(observations: int, hidden_dims: tuple[int, ...], outputs: int) -> Layout:
    """lstm_0_kernel, lstm_0_bias, lstm_1_kernel, ..., output_kernel [units, outputs], output_bias [outputs]."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (inputs, units) in enumerate(pairwise((observations, *hidden_dims))):
        shapes |= {f"lstm_{number}_{name}": shape for name, shape in lstm.shapes(inputs, units).items()}
    return Layout(shapes | {"output_kernel": (hidden_dims[-1], outputs), "output_bias": (outputs,)})


def normalised_columns(rng: np.random.Generator, shape: tuple[int, int], length: float) -> Float32:
    """Normal columns scaled to this length, float32[inputs, outputs]."""
    columns = rng.standard_normal(shape)
    scaled: Float32 = (length * columns / np.sqrt(np.square(columns).sum(axis=0))).astype(np.float32)
    return scaled


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Float32:
    """U(-b, b) with b = sqrt(6 / (inputs + outputs)), float32[inputs, outputs]."""
    bound = np.sqrt(6.0 / sum(shape))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


class LSTM:
    """The policy: normalise, LSTM layers, output layer, action head."""

    def __init__(self, options: Options, spaces: Spaces) -> None:
        self.options = options
        self.observations = spaces.observations
        self.hidden_dims = options.hidden_dims
        self.head = Head.of(spaces.actions, options.action_bins)
        self.layout = layout(spaces.observations, options.hidden_dims, self.head.outputs)
        self.size = self.layout.size
        self.action_noise_std = options.action_noise_std

    def initial(self, rng: np.random.Generator) -> Float32:
        """float32[size]."""
        arrays: dict[str, Float32] = {}
        for name, shape in self.layout.shapes.items():
            if len(shape) == 1:
                arrays[name] = np.zeros(shape, np.float32)
            elif name == "output_kernel":
                arrays[name] = normalised_columns(rng, (shape[0], shape[1]), OUTPUT_LENGTH)
            else:
                arrays[name] = glorot_uniform(rng, (shape[0], shape[1]))
        return self.layout.joined(arrays)

    def bind(self, parameters: Perturbed, normaliser: Normaliser | None) -> Actor:
        """An actor for the jobs of a chunk, which begin an episode."""
        if self.options.backend == "tensorflow":
            from hpc_es.policies.lstm_tensorflow import TensorFlowActor

            return TensorFlowActor(self, parameters.stacked(), normaliser)
        return NumpyActor(self, parameters.stacked(), normaliser)


class NumpyActor:
    """Each job's actions with its own weights; a job's numbers do not depend on which others are in the stack.

    Rows are jobs, or with `abreast` episodes of jobs: episode e of job j is row j * episodes + e.
    """

    def __init__(self, policy: LSTM, stack: Float32, normaliser: Normaliser | None, episodes: int = 1) -> None:
        self._policy, self._normaliser, self._episodes = policy, normaliser, episodes
        self._layers = [lstm.InPlace(units) for units in policy.hidden_dims]
        memory = [np.zeros((len(stack) * episodes, 2, units), np.float32) for units in policy.hidden_dims]
        self._bind(stack, memory)

    def _bind(self, stack: Float32, memory: list[Float32]) -> None:
        """Views of the weights, and a buffer for each layer's input [x, h, 1]; the 1 meets the bias.

        `memory` is h and c of each layer, float32[rows, 2, units].
        """
        self._stack, jobs, episodes = stack, len(stack), self._episodes
        widths = (self._policy.observations, *self._policy.hidden_dims)
        self._matrices = matrices(stack, self._policy.layout)
        self._inputs = [np.ones((jobs, episodes, n + units + 1), np.float32) for n, units in pairwise(widths)]
        self._cells = []
        for inputs, held, n in zip(self._inputs, memory, widths, strict=False):
            shape = (jobs, episodes, held.shape[2])
            inputs[:, :, n:-1] = held[:, 0].reshape(shape)
            self._cells.append(held[:, 1].reshape(shape).copy())
        self._last = np.ones((jobs, episodes, widths[-1] + 1), np.float32)

    def abreast(self, episodes: int) -> NumpyActor:
        """A new actor with so many rows a job, which begin an episode."""
        return NumpyActor(self._policy, self._stack, self._normaliser, episodes)

    def act(self, observations: Float32) -> Array:
        """Actions of all rows from float32[rows, observations]."""
        if self._normaliser is not None:
            observations = normalise(observations.astype(np.float32), self._normaliser)
        below = observations.reshape(len(self._stack), self._episodes, self._policy.observations)
        for number, (inputs, matrix) in enumerate(zip(self._inputs, self._matrices, strict=False)):
            n = below.shape[2]
            inputs[:, :, :n] = below
            below, self._cells[number] = self._layers[number].gates(np.matmul(inputs, matrix), self._cells[number])
            inputs[:, :, n:-1] = below
        self._last[:, :, :-1] = below
        outputs = np.matmul(self._last, self._matrices[-1])
        return self._policy.head.actions(outputs.reshape(len(observations), -1))

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Copy the rows that remain; they must be all episodes of the jobs that remain."""
        jobs = rows[:: self._episodes] // self._episodes
        memory = []
        for inputs, cells in zip(self._inputs, self._cells, strict=True):
            units = cells.shape[2]
            h = inputs[:, :, -1 - units : -1]
            memory.append(np.stack([part.reshape(-1, units)[rows] for part in (h, cells)], axis=1))
        self._bind(self._stack[jobs], memory)

    def restart(self, row: int) -> None:
        """The memory of a row is 0 again."""
        job, episode = divmod(row, self._episodes)
        for inputs, cells in zip(self._inputs, self._cells, strict=True):
            inputs[job, episode, -1 - cells.shape[2] : -1] = 0.0
            cells[job, episode] = 0.0


def matrices(stack: Float32, layout: Layout) -> list[Float32]:
    """Views [jobs, inputs + 1, outputs] of float32[jobs, size], of layers and output; the last row is biases."""
    found, start = [], 0
    for shape in layout.shapes.values():
        if len(shape) == 2:  # a kernel, with its bias behind it
            rows, columns = shape[0] + 1, shape[1]
            found.append(stack[:, start : start + rows * columns].reshape(-1, rows, columns))
            start += rows * columns
    return found


def build(options: Any, spaces: Spaces) -> LSTM:
    """The policy of `policy: {kind: lstm}`."""
    return LSTM(options, spaces)
