"""Optimizers on flat float32 vectors: pure functions from (slots, gradient) to (slots, step)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpc_es.interfaces import Arrays, Float32
from hpc_es.options import Count, Fraction, Positive, option, options

# RMSProp as TensorFlow 1 had it: the mean square starts at one, and epsilon is inside of the root.
RMSPROP_DECAY = 0.99
RMSPROP_EPSILON = 1e-10


@options
class Options:
    """`algorithm.optimizer:`."""

    kind: Literal["adam", "rmsprop", "sgd", "none"] = option(
        "none: theta moves by learning_rate times the gradient", "adam"
    )
    learning_rate: Positive = option("step size", 0.01)
    beta1: Fraction = option("decay of Adam's first moment", 0.9)
    beta2: Fraction = option("decay of Adam's second moment", 0.999)
    epsilon: Positive = option("added to the root of Adam's second moment", 1e-8)
    momentum: Fraction = option("decay of SGD's velocity", 0.9)
    anneal_updates: Count | None = option(
        "updates in which the learning rate falls to 0 in a straight line, and stays there; null: it never falls", None
    )


def initial_slots(options: Options, size: int) -> Arrays:
    """What the optimizer remembers, before the first step."""
    steps = np.zeros((), np.int64)
    if options.kind == "adam":
        moments = {"adam_m": np.zeros(size, np.float32), "adam_v": np.zeros(size, np.float32)}
        return {"optimizer_steps": steps, **moments}
    if options.kind == "rmsprop":
        return {"optimizer_steps": steps, "rmsprop_square": np.ones(size, np.float32)}
    if options.kind == "sgd":
        return {"optimizer_steps": steps, "sgd_velocity": np.zeros(size, np.float32)}
    return {"optimizer_steps": steps}


def step(options: Options, slots: Arrays, gradient: Float32) -> tuple[Arrays, Float32]:
    """The new slots and the step to add to theta, float32[size]; it descends along `gradient`."""
    count = int(slots["optimizer_steps"]) + 1
    steps = np.asarray(count, np.int64)
    rate = learning_rate(options, count - 1)
    if options.kind == "adam":  # Kingma & Ba 2015, with epsilon outside of the bias correction
        m = lerp(slots["adam_m"], gradient, options.beta1)
        v = lerp(slots["adam_v"], np.square(gradient), options.beta2)
        scale = rate * (1 - options.beta2**count) ** 0.5 / (1 - options.beta1**count)
        move = -np.float32(scale) * m / (np.sqrt(v) + np.float32(options.epsilon))
        return {"optimizer_steps": steps, "adam_m": m, "adam_v": v}, move
    if options.kind == "rmsprop":
        square = lerp(slots["rmsprop_square"], np.square(gradient), RMSPROP_DECAY)
        move = -np.float32(rate) * gradient / np.sqrt(square + np.float32(RMSPROP_EPSILON))
        return {"optimizer_steps": steps, "rmsprop_square": square}, move
    if options.kind == "sgd":
        velocity = lerp(slots["sgd_velocity"], gradient, options.momentum)
        return {"optimizer_steps": steps, "sgd_velocity": velocity}, -np.float32(rate) * velocity
    return {"optimizer_steps": steps}, -np.float32(rate) * gradient


def learning_rate(options: Options, done: int) -> float:
    """The learning rate after so many updates (annealed as in Mnih et al. 2016, arXiv:1602.01783)."""
    if options.anneal_updates is None:
        return options.learning_rate
    return options.learning_rate * max(1 - done / options.anneal_updates, 0.0)


def lerp(old: Float32, new: Float32, decay: float) -> Float32:
    """decay * old + (1 - decay) * new, in float32."""
    mixed: Float32 = np.float32(decay) * old + np.float32(1 - decay) * new
    return mixed
