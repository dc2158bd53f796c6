"""Episodes per second of actor-critic training on bandits on one core, compared with a bare LSTM.

An update is complete: it samples the arms, plays 32 episodes of 100 trials, differentiates them and
changes the parameters. The bare LSTM is the compiled gradient of the sum of its outputs at the same
shapes: derived from the loop by TensorFlow (`over_bare`), or written out as in this project
(`over_written`). All three alternate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from hpc_es.config.loading import validate
from hpc_es.core.data import NO_FITNESS, ROW, Results, State
from hpc_es.mpi.world import World
from hpc_es.training.build import build_parts, build_task

BATCH, TRIALS, UNITS = 32, 100, 48
REPEATS, UPDATES = 15, 5
TARGETS = {"over_bare": 2.0, "episodes_per_second": 1500.0}


def run() -> list[dict[str, Any]]:
    """Return one row; the three functions alternate."""
    update, bare, written = training(), forward_and_backward(False), forward_and_backward(True)
    times = [[seconds(work) for work in (update, bare, written)] for _ in range(REPEATS)]
    over_bare, over_written = (median(row[0] / row[other] for row in times) for other in (1, 2))
    rate = BATCH / median(row[0] for row in times)
    met = over_bare <= TARGETS["over_bare"] and rate >= TARGETS["episodes_per_second"]
    return [
        {
            "batch": BATCH,
            "episodes_per_second": rate,
            "best": BATCH / min(row[0] for row in times),
            "over_bare": over_bare,
            "over_written": over_written,
            "target": f"{TARGETS['over_bare']:g} x bare, {TARGETS['episodes_per_second']:g} episodes/s",
            "met": met,
        }
    ]


def training() -> Callable[[], None]:
    """Return a function that runs one update."""
    config = validate(
        {
            "task": {"kind": "bandits", "distribution": "independent", "num_trials": TRIALS},
            "policy": {"kind": "lstm", "hidden_dims": [UNITS]},
            "algorithm": {"kind": "actor_critic", "batch_size": BATCH},
            "mpi": {"chunk_size": BATCH},
        }
    )
    algorithm = build_parts(config, World("none"), build_task(config)).algorithm
    states: list[State] = [algorithm.initial()]

    def update() -> None:
        (chunk,) = algorithm.ask(states[0], 0, np.zeros(0, ROW), NO_FITNESS)
        outcome = algorithm.evaluate(states[0], chunk, lambda: None)
        states[0], _ = algorithm.tell(states[0], Results(outcome.rows, [outcome.arrays], []))

    return update


def forward_and_backward(is_written: bool) -> Callable[[], None]:
    """Return a function that computes the gradient of the sum of an LSTM's outputs,
    at the shapes of two arms.
    """
    from hpc_es.policies.networks import layers
    from hpc_es.policies.networks.tensorflow_actors import tensorflow
    from hpc_es.policies.networks.tensorflow_sequences import lstm_sequence

    tf = tensorflow()
    rng, width = np.random.default_rng(0), 4
    x, kernel = (
        rng.standard_normal(shape).astype("f4")
        for shape in ((TRIALS, BATCH, width), (width + UNITS, 4 * UNITS))
    )
    inputs, kernel, bias = tf.constant(x), tf.constant(0.1 * kernel), tf.zeros(4 * UNITS)

    def derived(kernel: Any, bias: Any) -> Any:
        z = tf.reshape(
            tf.reshape(inputs, (-1, width)) @ kernel[:width] + bias, (TRIALS, BATCH, 4 * UNITS)
        )

        def body(t: Any, h: Any, c: Any, outputs: Any) -> Any:
            h, c = layers.lstm_gates(layers.TensorFlowOps(tf), z[t] + h @ kernel[width:], c)
            return t + 1, h, c, outputs.write(t, h)

        empty = tf.zeros((BATCH, UNITS))
        outputs = tf.TensorArray(tf.float32, TRIALS, element_shape=(BATCH, UNITS))
        start = (0, empty, empty, outputs)
        return tf.while_loop(lambda t, *_: t < TRIALS, body, start, maximum_iterations=TRIALS)[
            -1
        ].stack()

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def both(kernel: Any, bias: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((kernel, bias))
            outputs = (
                lstm_sequence(tf, inputs, kernel, bias) if is_written else derived(kernel, bias)
            )
            total = tf.reduce_sum(outputs)
        return tape.gradient(total, (kernel, bias))

    def work() -> None:
        both(kernel, bias)[0].numpy()

    return work


def seconds(work: Callable[[], Any]) -> float:
    """Return the mean seconds of UPDATES calls after a first one."""
    work()
    since = time.perf_counter()
    for _ in range(UPDATES):
        work()
    return (time.perf_counter() - since) / UPDATES
