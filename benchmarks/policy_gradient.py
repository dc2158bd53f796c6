"""CPU time of a policy-gradient update on 64 programs of 100 characters, relative to a bare LSTM of
the same shape.

The bare LSTM is the forward and backward pass of two layers of 35 units over 64 sequences of 100
steps, with Keras layers, and with TensorFlow's kernel for a whole layer. CPU seconds are compared,
since one thread works.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from hpc_es.core.data import CORRECT, NO_FITNESS, Results, row_dtype
from hpc_es.core.keys import Keys
from hpc_es.policies.networks.layers import FORGET_BIAS
from hpc_es.policies.networks.tensorflow_actors import tensorflow
from hpc_es.programs import task as programs
from hpc_es.programs.policy_gradient.algorithm import build
from hpc_es.programs.policy_gradient.options import Options

BATCH, LENGTH, UNITS, INPUTS, REPEATS = 64, 100, 35, 10, 15
TARGETS = {"keras": 1.0, "kernel": 1.3}
NO_ROWS = np.zeros(0, row_dtype((CORRECT,)))


def run() -> list[dict[str, Any]]:
    """Return one row per bare LSTM; all functions alternate."""
    works = {"all": update(), "sampling": sampling(), "keras": keras(), "kernel": kernel()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        for name, work in works.items():
            times[name].append(seconds(work))
    medians = {name: median(values) for name, values in times.items()}
    common = {
        "update_seconds": medians["all"],
        "sampling_share": medians["sampling"] / medians["all"],
        "programs_per_second": BATCH / medians["all"],
    }
    rows = []
    for bare in ("keras", "kernel"):
        ratio = medians["all"] / medians[bare]
        target = TARGETS[bare]
        compared = {
            "bare_seconds": medians[bare],
            "ratio": ratio,
            "target": target,
            "met": ratio <= target,
        }
        rows.append({"bare": bare, **compared, **common})
    return rows


def algorithm() -> Any:
    """Return the algorithm with the network and the priority queue of the paper;
    programs are not executed.
    """
    options: Any = Options
    coding: Any = programs.Options
    task = programs.build(coding(name="reverse", max_code_length=LENGTH))
    return build(options(topk=10, topk_loss_hparam=50.0), task, None, Keys(1), BATCH)


def update() -> Callable[[], Any]:
    """Return a function that samples programs, computes the gradient and updates the parameters."""
    search = algorithm()
    state = search.initial()
    (chunk,) = search.ask(state, 0, NO_ROWS, NO_FITNESS)
    rows = search.evaluate(state, chunk, lambda: None).rows

    def work() -> Any:
        writing = search.sampled(state, chunk, search.loss.forced_tokens(state.shared, 0, 1))
        arrays = search.loss.chunk_arrays(state.shared, writing, rows["return_"], 0, 1)
        return search.tell(state, Results(rows, [arrays], []))

    work()
    return work


def sampling() -> Callable[[], Any]:
    """Return a function that samples programs."""
    search = algorithm()
    state = search.initial()
    (chunk,) = search.ask(state, 0, NO_ROWS, NO_FITNESS)
    search.sampled(state, chunk)
    return lambda: search.sampled(state, chunk)


def keras() -> Callable[[], Any]:
    """Return a function that runs two Keras layers in one compiled graph."""
    tf = tensorflow()
    layers = [tf.keras.layers.LSTM(UNITS, return_sequences=True) for _ in range(2)]
    x = tf.constant(np.random.default_rng(0).standard_normal((BATCH, LENGTH, INPUTS)), tf.float32)
    layers[1](layers[0](x))

    @tf.function
    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(layers[1](layers[0](x)))
        return tape.gradient(
            total, [weight.value for layer in layers for weight in layer.trainable_variables]
        )

    return called(both, x)


def kernel() -> Callable[[], Any]:
    """Return a function that runs two layers with TensorFlow's kernel."""
    tf = tensorflow()
    rng = np.random.default_rng(0)
    x = tf.constant(rng.standard_normal((LENGTH, BATCH, INPUTS)), tf.float32)
    weights = [
        tf.constant(rng.uniform(-0.1, 0.1, shape), tf.float32)
        for inputs in (INPUTS, UNITS)
        for shape in ((inputs + UNITS, 4 * UNITS), (4 * UNITS,))
    ]

    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            total = tf.reduce_sum(fused(tf, fused(tf, x, *weights[:2]), *weights[2:]))
        return tape.gradient(total, weights)

    return called(tf.function(both, autograph=False), x)


def fused(tf: Any, x: Any, kernel: Any, bias: Any) -> Any:
    """Return h of every step, float32[steps, rows, units],
    by TensorFlow's kernel for a whole layer.
    """
    units = kernel.shape[1] // 4
    zero, none = tf.zeros([tf.shape(x)[1], units], x.dtype), tf.zeros([units], x.dtype)
    layer = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.constant(x.shape[0], tf.int64),
        x=x,
        cs_prev=zero,
        h_prev=zero,
        w=kernel,
        **dict.fromkeys(("wci", "wcf", "wco"), none),  # no peepholes
        b=bias,
        forget_bias=FORGET_BIAS,
        cell_clip=-1.0,
    )
    return layer.h


def called(function: Any, x: Any) -> Callable[[], Any]:
    """Return a function that calls the compiled `function` and waits for its results."""

    def work() -> Any:
        return [np.asarray(result) for result in function(x)]

    work()
    return work


def seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call."""
    since = time.process_time()
    work()
    return time.process_time() - since
