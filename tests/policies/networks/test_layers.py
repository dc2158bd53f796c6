"""LSTM layers in NumPy: outputs against the cell, gradients against central differences."""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import Array
from hpc_es.policies.networks import layers as layers_module
from hpc_es.programs.policy_gradient.token_lstm import STEPS_PER_PRODUCT, LSTMLayers

INPUTS, SIZES, ROWS = 2, (3, 4), 3
STEPS = STEPS_PER_PRODUCT + 2  # more than are differentiated at once
RNG = np.random.default_rng(0)
X = RNG.standard_normal((STEPS, INPUTS, ROWS))
FACTORS = RNG.standard_normal((STEPS, SIZES[-1], ROWS))  # the loss is a sum of h with these factors
WEIGHTS = [
    (RNG.standard_normal((before + units, 4 * units)), RNG.standard_normal(4 * units))
    for before, units in ((INPUTS, 3), (3, 4))
]


def forwards(layers: LSTMLayers, x: Array) -> Array:
    layers.set(WEIGHTS)
    for t in range(len(x)):
        layers.input(t)[:] = x[t]
        layers.step(t)
    return layers.h[: len(x)]


def created() -> LSTMLayers:
    return LSTMLayers(INPUTS, SIZES, STEPS, ROWS, "float64")


def test_lstm_outputs_equal_those_of_the_cell() -> None:
    result, ops = forwards(created(), X), layers_module.ArrayOps(np)
    memory = [(np.zeros((ROWS, units)), np.zeros((ROWS, units))) for units in SIZES]
    for t in range(STEPS):
        x = X[t].T
        for number, (kernel, bias) in enumerate(WEIGHTS):
            h, c = memory[number]
            x, c = layers_module.lstm_gates(ops, np.concatenate([x, h], axis=1) @ kernel + bias, c)
            memory[number] = (x, c)
        np.testing.assert_allclose(result[t], x.T, rtol=1e-12)


def test_lstm_gradient_equals_central_differences() -> None:
    layers = created()
    forwards(layers, X)
    weights, by_x = layers.backwards(FACTORS)
    result = [by_x, *(array for pair in weights for array in pair)]
    step = 1e-6
    for array, gradient in zip(
        [X, *(array for pair in WEIGHTS for array in pair)], result, strict=True
    ):
        assert gradient.shape == array.shape
        for index in np.ndindex(array.shape):
            kept, ends = array[index], []
            for update in (kept + step, kept - step):
                array[index] = update
                ends.append((forwards(created(), X) * FACTORS).sum())
            array[index] = kept
            np.testing.assert_allclose(
                gradient[index], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-8
            )


def test_lstm_computes_only_the_steps_in_use() -> None:
    layers = created()
    forwards(layers, X)
    few = LSTMLayers(INPUTS, SIZES, 5, ROWS, "float64")
    assert np.array_equal(forwards(layers, X[:5]), forwards(few, X[:5]))
    for one, other in zip(
        layers.backwards(FACTORS[:5])[0], few.backwards(FACTORS[:5])[0], strict=True
    ):
        assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])
