"""Optimizers on flat vectors, float32 or float64: pure functions from (slots, gradient) to (slots, step)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Fraction, Positive, option, options
from hpc_es.config.warnings import unused_of_kinds
from hpc_es.core.data import Array, Arrays

Kind = Literal["adam", "rmsprop", "sgd", "clipup", "none"]


@options
class Options:
    """`algorithm.optimizer:`."""

    kind: Kind = option("none: theta moves by learning_rate times the gradient", "adam")
    learning_rate: Positive = option("step size", 0.01)
    beta1: Fraction = option("decay of Adam's first moment", 0.9)
    beta2: Fraction = option("decay of Adam's second moment", 0.999)
    epsilon: Positive = option("added to the root of Adam's second moment", 1e-8)
    momentum: Fraction = option("decay of SGD's and ClipUp's velocity", 0.9)
    rmsprop_decay: Fraction = option(
        "decay of RMSProp's mean square, which starts at 1 (TensorFlow 1's default is 0.9)", 0.99
    )
    rmsprop_epsilon: Positive = option("added to RMSProp's mean square, inside of the root", 1e-10)
    max_speed: Positive | None = option("length of ClipUp's longest step; null: twice the learning rate", None)
    anneal_updates: Count | None = option(
        "updates in which the learning rate falls to 0 in a straight line, and stays there; null: it never falls", None
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Options of another kind of optimizer, and a speed that is never reached: (key, text)."""
        yield from unused_of_kinds(self, OWN)
        rate, speed = self.learning_rate, self.max_speed
        if self.kind == "clipup" and rate is not None and speed is not None and speed * (1 - self.momentum) >= rate:
            text = f"learning_rate {rate:g} and momentum {self.momentum:g} are slower"
            yield "max_speed", f"is {speed:g}, but does nothing: {text} (try learning_rate {speed / 2:g}, half of it)"


OWN = {  # options that not all kinds have
    "adam": ("beta1", "beta2", "epsilon"),
    "rmsprop": ("rmsprop_decay", "rmsprop_epsilon"),
    "sgd": ("momentum",),
    "clipup": ("momentum", "max_speed"),
}


WIDE = 1 << 23  # part of the result: sums of more numbers than that are sums of such parts


SLOTS = ("optimizer_steps", "adam_m", "adam_v", "rmsprop_square", "sgd_velocity", "clipup_velocity")  # of all kinds


def slots_of(arrays: Arrays) -> Arrays:
    """Return what the optimizer remembers, of the arrays of a state."""
    return {name: array for name, array in arrays.items() if name in SLOTS}


def initial_slots(options: Options, size: int, dtype: npt.DTypeLike = np.float32) -> Arrays:
    """Return what the optimizer remembers, before the first step.

    The weights are theta, and in the actor-critic those of the value behind it.

    State, master:
        optimizer_steps: int64[]; steps so far; the annealed learning rate follows from them
        adam_m: dtype[weights], if optimizer.kind is adam; first moment
        adam_v: dtype[weights], if optimizer.kind is adam; second moment
        rmsprop_square: dtype[weights], if optimizer.kind is rmsprop; running mean of the squared gradient
        sgd_velocity: dtype[weights], if optimizer.kind is sgd; running mean of the gradient
        clipup_velocity: dtype[weights], if optimizer.kind is clipup; velocity, in units of the learning rate
    """
    steps = np.zeros((), np.int64)
    if options.kind == "adam":
        moments = {"adam_m": np.zeros(size, dtype), "adam_v": np.zeros(size, dtype)}
        return {"optimizer_steps": steps, **moments}
    if options.kind == "rmsprop":
        return {"optimizer_steps": steps, "rmsprop_square": np.ones(size, dtype)}
    if options.kind == "sgd":
        return {"optimizer_steps": steps, "sgd_velocity": np.zeros(size, dtype)}
    if options.kind == "clipup":
        return {"optimizer_steps": steps, "clipup_velocity": np.zeros(size, dtype)}
    return {"optimizer_steps": steps}


PART = 1 << 18  # numbers of a large vector that are moved together, while they are in the cache; no bit depends on it


def step(options: Options, slots: Arrays, gradient: Array) -> tuple[Arrays, Array]:
    """Return the new slots and the step to add to theta, [size] in the gradient's dtype; it goes downhill."""
    if len(gradient) <= PART or options.kind == "clipup":  # whose velocity is clipped by its whole length
        return _step(options, slots, gradient)
    after = {name: np.empty_like(slot) for name, slot in slots.items()}
    move = np.empty_like(gradient)
    for start in range(0, len(gradient), PART):
        here = slice(start, start + PART)
        part = {name: slot[here] if slot.ndim else slot for name, slot in slots.items()}
        new, move[here] = _step(options, part, gradient[here])
        for name, slot in new.items():
            after[name][here if slot.ndim else ...] = slot
    return after, move


def _step(options: Options, slots: Arrays, gradient: Array) -> tuple[Arrays, Array]:
    count = int(slots["optimizer_steps"]) + 1
    steps = np.asarray(count, np.int64)
    rate, number = learning_rate(options, count - 1), gradient.dtype.type
    if options.kind == "adam":  # Kingma & Ba 2015, with epsilon outside of the bias correction
        m = lerp(slots["adam_m"], gradient, options.beta1)
        v = lerp(slots["adam_v"], np.square(gradient), options.beta2)
        scale = rate * (1 - options.beta2**count) ** 0.5 / (1 - options.beta1**count)
        move = -number(scale) * m / (np.sqrt(v) + number(options.epsilon))
        return {"optimizer_steps": steps, "adam_m": m, "adam_v": v}, move
    if options.kind == "rmsprop":  # as TensorFlow 1 had it
        square = lerp(slots["rmsprop_square"], np.square(gradient), options.rmsprop_decay)
        move = -number(rate) * gradient / np.sqrt(square + number(options.rmsprop_epsilon))
        return {"optimizer_steps": steps, "rmsprop_square": square}, move
    if options.kind == "sgd":
        velocity = lerp(slots["sgd_velocity"], gradient, options.momentum)
        return {"optimizer_steps": steps, "sgd_velocity": velocity}, -number(rate) * velocity
    if options.kind == "clipup":  # Toklu et al. 2020 (arXiv:2008.02387), its velocity in units of the learning rate
        velocity = number(options.momentum) * slots["clipup_velocity"] + scaled(gradient, 1.0)
        longest = (options.max_speed or 2 * options.learning_rate) / options.learning_rate
        if norm(velocity) > longest:
            velocity = scaled(velocity, longest)
        return {"optimizer_steps": steps, "clipup_velocity": velocity}, -number(rate) * velocity
    return {"optimizer_steps": steps}, -number(rate) * gradient


class Annealed(Protocol):
    """Options of a learning rate that may fall."""

    @property
    def learning_rate(self) -> float:
        """At the begin."""
        ...

    @property
    def anneal_updates(self) -> int | None:
        """In how many updates it falls to 0; None: it never falls."""
        ...


def learning_rate(options: Annealed, done: int) -> float:
    """Return the learning rate after so many updates (annealed as in Mnih et al. 2016, arXiv:1602.01783)."""
    if options.anneal_updates is None:
        return options.learning_rate
    return options.learning_rate * max(1 - done / options.anneal_updates, 0.0)


def lerp(old: Array, new: Array, decay: float) -> Array:
    """Return decay * old + (1 - decay) * new, in their dtype."""
    number = new.dtype.type
    mixed: Array = number(decay) * old + number(1 - decay) * new
    return mixed


def scaled(vector: Array, length: float) -> Array:
    """Return a vector of this direction and length, in its dtype; 0 of 0, which has no direction."""
    now = norm(vector)
    wide: Array = vector.astype(np.float64) * (length / now) if now else vector
    return wide.astype(vector.dtype)


def norm(vector: Array) -> float:
    """Euclidean length, summed in float64; a part after the other where there are more than WIDE numbers."""
    squares = [np.square(vector[start : start + WIDE], dtype=np.float64).sum() for start in range(0, len(vector), WIDE)]
    return float(np.sqrt(sum(squares)))
