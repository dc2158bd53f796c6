"""Optimizers on flat vectors: pure functions from (slots, gradient) to (new slots, step).

Vectors are float32 or float64. Strategies call `step` or `climb` with an estimated gradient;
algorithms that differentiate a loss call `descend`, which sums the gradients of the chunks and
clips them first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Fraction, Positive, option, options, unused_of_kinds
from hpc_es.core.data import Array, Arrays, Float32, Float64
from hpc_es.core.errors import RunError

if TYPE_CHECKING:
    from concurrent.futures import Future

A = TypeVar("A")
B = TypeVar("B")
Kind = Literal["adam", "rmsprop", "sgd", "clipup", "none"]

# of all kinds
SLOTS = ("optimizer_steps", "adam_m", "adam_v", "rmsprop_square", "sgd_velocity", "clipup_velocity")
GRADIENT = "gradient"  # name of a chunk's gradient among its arrays
NORM_PART = 1 << 23  # elements per partial sum of a norm; results depend on it
# Elements of a large vector that are updated together, to stay in the cache; results do not depend
# on it.
STEP_PART = 1 << 18
SQUARES = 1 << 15  # elements whose squares are summed together, which fit the cache too

OPTIONS_OF_KINDS = {  # options that only this kind uses
    "adam": ("beta1", "beta2", "epsilon"),
    "rmsprop": ("rmsprop_decay", "rmsprop_epsilon"),
    "sgd": ("momentum",),
    "clipup": ("momentum", "max_speed"),
}


@options
class Options:
    """Options of the section `algorithm.optimizer`."""

    kind: Kind = option(
        "optimizer; none: theta changes by learning_rate times the gradient", "adam"
    )
    learning_rate: Positive = option("learning rate", 0.01)
    beta1: Fraction = option("decay rate of Adam's first moment", 0.9)
    beta2: Fraction = option("decay rate of Adam's second moment", 0.999)
    epsilon: Positive = option("constant added to the square root of Adam's second moment", 1e-8)
    momentum: Fraction = option("decay rate of the velocity of SGD and ClipUp", 0.9)
    rmsprop_decay: Fraction = option(
        "decay rate of RMSProp's mean square, which starts at 1 (TensorFlow 1's default is 0.9)",
        0.99,
    )
    rmsprop_epsilon: Positive = option(
        "constant added to RMSProp's mean square, inside the square root", 1e-10
    )
    max_speed: Positive | None = option(
        "maximum norm of a ClipUp step; null: twice the learning rate", None
    )
    anneal_updates: Count | None = option(
        "number of updates over which the learning rate decays linearly to 0; null: constant learning rate",
        None,
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text): options of other optimizers, and a max_speed that no step reaches."""
        yield from unused_of_kinds(self, OPTIONS_OF_KINDS)
        rate, speed = self.learning_rate, self.max_speed
        if (
            self.kind == "clipup"
            and rate is not None
            and speed is not None
            and speed * (1 - self.momentum) >= rate
        ):
            yield (
                "max_speed",
                f"is {speed:g}, but does nothing: no step is that long with learning_rate "
                f"{rate:g} and momentum {self.momentum:g} (try "
                f"learning_rate {speed / 2:g}, half of it)",
            )


def initial_slots(options: Options, size: int, dtype: npt.DTypeLike = np.float32) -> Arrays:
    """Return the optimizer's slots before the first step, each dtype[size].

    The weights are theta and, in the actor-critic, the weights of the value network after it.

    Args:
        options: the section `optimizer`.
        size: number of weights.
        dtype: that of the slots.

    State, master:
        optimizer_steps: int64[]; number of steps so far, from which the annealed learning rate
            follows
        adam_m: dtype[weights], if optimizer.kind is adam; first moment
        adam_v: dtype[weights], if optimizer.kind is adam; second moment
        rmsprop_square: dtype[weights], if optimizer.kind is rmsprop; running mean of the squared
            gradient
        sgd_velocity: dtype[weights], if optimizer.kind is sgd; running mean of the gradient
        clipup_velocity: dtype[weights], if optimizer.kind is clipup; velocity, in units of the
            learning rate
    """
    steps = np.zeros((), np.int64)
    if options.kind == "adam":
        return {
            "optimizer_steps": steps,
            "adam_m": np.zeros(size, dtype),
            "adam_v": np.zeros(size, dtype),
        }
    if options.kind == "rmsprop":
        return {"optimizer_steps": steps, "rmsprop_square": np.ones(size, dtype)}
    if options.kind == "sgd":
        return {"optimizer_steps": steps, "sgd_velocity": np.zeros(size, dtype)}
    if options.kind == "clipup":
        return {"optimizer_steps": steps, "clipup_velocity": np.zeros(size, dtype)}
    return {"optimizer_steps": steps}


def slots_of(arrays: Arrays) -> Arrays:
    """Return the optimizer's slots among the arrays of a state."""
    return {name: array for name, array in arrays.items() if name in SLOTS}


def pieces_of(size: int) -> Iterator[slice]:
    """Yield slices of STEP_PART elements of a vector."""
    for start in range(0, size, STEP_PART):
        yield slice(start, min(start + STEP_PART, size))


def step(options: Options, slots: Arrays, gradient: Array) -> tuple[Arrays, Array]:
    """Return the new slots and the step that descends along a gradient.

    Adam is that of Kingma & Ba 2015 (arXiv:1412.6980) with epsilon outside the bias correction,
    ClipUp that of Toklu et al. 2020 (arXiv:2008.02387), RMSProp that of TensorFlow 1.

    Args:
        options: the section `optimizer`.
        slots: those of the state, by name; not modified.
        gradient: dtype[size].

    Returns:
        The new slots, and the step to add to theta, dtype[size].

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import OptimizerOptions, initial_slots, optimizer_step
        >>> sgd = OptimizerOptions(kind="sgd", learning_rate=0.5, momentum=0.0)
        >>> gradient = np.array([1.0, -2.0], np.float32)
        >>> slots, step = optimizer_step(sgd, initial_slots(sgd, size=2), gradient)
        >>> step
        array([-0.5,  1. ], dtype=float32)
    """
    if options.kind == "clipup" or len(gradient) <= STEP_PART:  # ClipUp needs a whole norm
        return _step(options, slots, gradient)
    new_slots = {name: np.empty_like(slot) for name, slot in slots.items()}
    whole_step = np.empty_like(gradient)
    for part in pieces_of(len(gradient)):
        new_parts, whole_step[part] = _step(options, _views(slots, part), gradient[part])
        for name, slot in new_parts.items():
            new_slots[name][part if slot.ndim else ...] = slot
    return new_slots, whole_step


def _views(slots: Arrays, part: slice) -> Arrays:
    return {name: slot[part] if slot.ndim else slot for name, slot in slots.items()}


def climb(
    options: Options,
    theta: Array,
    slots: Arrays,
    parts: Iterable[tuple[slice, Array]],
    decay: float,
    threads: int = 1,
) -> tuple[Arrays, Float64]:
    """Take a step that ascends along a gradient minus `decay` * theta, part by part.

    It overwrites theta and the slots.

    Args:
        options: the section `optimizer`.
        theta: dtype[size].
        slots: those of the state, by name.
        parts: slices of NORM_PART elements of the gradient, in order, and their elements,
            dtype[NORM_PART], which are overwritten; `threads` of them at once. ClipUp needs one
            slice with all elements.
        decay: weight decay.
        threads: number of parts that are computed at the same time; results do not depend on it.

    Returns:
        The slots, and the sums of squares of the gradient, the step, and theta before and after,
        float64[4].
    """
    # Threads need longer operations: with short ones they wait for Python's lock.
    is_whole, piece_size = options.kind == "clipup", SQUARES if threads == 1 else STEP_PART

    def ascend(item: tuple[slice, Array]) -> Float64:
        part, gradient = item
        views = theta[part], _views(slots, part), gradient
        return (
            _climb_whole(options, *views, decay)
            if is_whole
            else _climb(options, *views, decay, piece_size)
        )

    squares = sum(in_threads(ascend, parts, threads), np.zeros(4))
    return {**slots, "optimizer_steps": np.asarray(slots["optimizer_steps"] + 1, np.int64)}, squares


def _climb(
    options: Options, theta: Array, slots: Arrays, gradient: Array, decay: float, piece_size: int
) -> Float64:
    """Do the same for one part, in pieces that stay in the cache, divided like sums of squares."""
    if len(theta) > piece_size:
        half = half_of(len(theta))
        first, second = (
            _climb(options, theta[piece], _views(slots, piece), gradient[piece], decay, piece_size)
            for piece in (slice(half), slice(half, None))
        )
        return first + second
    of_gradient, of_theta = _sum_of_squares(gradient), _sum_of_squares(theta)
    np.subtract(theta.dtype.type(decay) * theta, gradient, out=gradient)
    new_slots, change = _step(options, slots, gradient)
    for name, slot in slots.items():
        if slot.ndim:
            slot[:] = new_slots[name]
    theta += change
    return np.array([of_gradient, _sum_of_squares(change), of_theta, _sum_of_squares(theta)])


def _climb_whole(
    options: Options, theta: Array, slots: Arrays, gradient: Array, decay: float
) -> Float64:
    """Do the same for a whole vector at once."""
    of_gradient, of_theta = squares_of_parts(gradient), squares_of_parts(theta)
    for piece in pieces_of(len(theta)):
        np.subtract(theta.dtype.type(decay) * theta[piece], gradient[piece], out=gradient[piece])
    new_slots, change = _step(options, slots, gradient)
    for name, slot in slots.items():
        if slot.ndim:
            slot[:] = new_slots[name]
    theta += change
    squares = of_gradient, squares_of_parts(change), of_theta, squares_of_parts(theta)
    return np.array([sum(parts) for parts in squares])


def in_threads(function: Callable[[A], B], items: Iterable[A], threads: int) -> Iterator[B]:
    """Yield function(item) for all items in order; at most `threads` calls exist at a time."""
    if threads == 1:
        yield from map(function, items)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[B]] = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) == threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _step(options: Options, slots: Arrays, gradient: Array) -> tuple[Arrays, Array]:
    count = int(slots["optimizer_steps"]) + 1
    steps = np.asarray(count, np.int64)
    rate, scalar = learning_rate(options, count - 1), gradient.dtype.type
    if options.kind == "adam":  # Kingma & Ba 2015, with epsilon outside the bias correction
        m = lerp(slots["adam_m"], gradient, options.beta1)
        v = lerp(slots["adam_v"], np.square(gradient), options.beta2)
        scale = rate * (1 - options.beta2**count) ** 0.5 / (1 - options.beta1**count)
        change = -scalar(scale) * m / (np.sqrt(v) + scalar(options.epsilon))
        return {"optimizer_steps": steps, "adam_m": m, "adam_v": v}, change
    if options.kind == "rmsprop":  # as in TensorFlow 1
        square = lerp(slots["rmsprop_square"], np.square(gradient), options.rmsprop_decay)
        change = -scalar(rate) * gradient / np.sqrt(square + scalar(options.rmsprop_epsilon))
        return {"optimizer_steps": steps, "rmsprop_square": square}, change
    if options.kind == "sgd":
        velocity = lerp(slots["sgd_velocity"], gradient, options.momentum)
        return {"optimizer_steps": steps, "sgd_velocity": velocity}, -scalar(rate) * velocity
    # Toklu et al. 2020 (arXiv:2008.02387); velocity in units of the learning rate
    if options.kind == "clipup":
        velocity = scalar(options.momentum) * slots["clipup_velocity"] + scaled(gradient, 1.0)
        max_norm = (options.max_speed or 2 * options.learning_rate) / options.learning_rate
        if norm(velocity) > max_norm:
            velocity = scaled(velocity, max_norm)
        return {"optimizer_steps": steps, "clipup_velocity": velocity}, -scalar(rate) * velocity
    return {"optimizer_steps": steps}, -scalar(rate) * gradient


@dataclass(frozen=True)
class Descent:
    """Result of a descent step on a loss."""

    theta: Float32  # float32[params]
    slots: Arrays
    metrics: Mapping[str, float]


def total_gradient(theta: Float32, chunks: Sequence[Arrays]) -> Float32:
    """Return the sum of the gradients of the chunks in their order, float32[params]."""
    total = np.zeros_like(theta)
    for arrays in chunks:
        total += arrays[GRADIENT]
    return total


def descend(
    options: Options, theta: Float32, slots: Arrays, chunks: Sequence[Arrays], clip: float | None
) -> Descent:
    """Take a step from theta, float32[params], against the sum of the gradients of the chunks.

    Each chunk has the gradient of its share of the loss under GRADIENT, float32[params], already
    divided by the number of jobs of the whole batch. The sum, in chunk order, does not depend on
    the number of ranks. It is clipped to the norm `clip`.

    Raises:
        RunError: the gradient is not finite.
    """
    total = total_gradient(theta, chunks)
    gradient_norm = norm(total)
    if not np.isfinite(gradient_norm):
        raise RunError(
            "the gradient is not finite: try a lower learning rate or a lower gradient clip"
        )
    if clip is not None and gradient_norm > clip:
        total = total * np.float32(clip / gradient_norm)
    new_slots, change = step(options, slots, total)
    new_theta = theta + change
    metrics = {
        "gradient_norm": gradient_norm,
        "update_ratio": norm(change) / max(norm(theta), 1e-12),
        "theta_norm": norm(new_theta),
    }
    return Descent(new_theta, new_slots, metrics)


class Annealed(Protocol):
    """Options of a learning rate that may decay linearly."""

    @property
    def learning_rate(self) -> float:
        """Initial learning rate."""
        ...

    @property
    def anneal_updates(self) -> int | None:
        """Number of updates until the learning rate is 0; None: constant."""
        ...


def learning_rate(options: Annealed, updates: int) -> float:
    """Return the learning rate after some updates.

    It decays linearly to 0 in `anneal_updates` updates, if set (Mnih et al. 2016,
    arXiv:1602.01783).

    Args:
        options: the section `optimizer`.
        updates: number of updates so far.
    """
    if options.anneal_updates is None:
        return options.learning_rate
    return options.learning_rate * max(1 - updates / options.anneal_updates, 0.0)


def lerp(old: Array, new: Array, decay: float) -> Array:
    """Return decay * old + (1 - decay) * new, in the shape and dtype of both."""
    scalar = new.dtype.type
    mixed: Array = scalar(decay) * old + scalar(1 - decay) * new
    return mixed


def scaled(vector: Array, length: float) -> Array:
    """Return a vector of the same direction with this Euclidean norm; 0 stays 0.

    Shape and dtype stay the same, too.
    """
    old_length = norm(vector)
    result: Array = vector.astype(np.float64) * (length / old_length) if old_length else vector
    return result.astype(vector.dtype)


def norm(vector: Array) -> float:
    """Return the Euclidean norm of a vector, [size].

    It is computed in float64, as a sum of parts of `NORM_PART` elements.
    """
    return norm_of_parts(squares_of_parts(vector))


def squares_of_parts(vector: Array) -> list[np.float64]:
    """Return the sums of squares of parts of NORM_PART elements of a vector, [size], in float64."""
    return [_sum_of_squares(vector[i : i + NORM_PART]) for i in range(0, len(vector), NORM_PART)]


def _sum_of_squares(vector: Array) -> np.float64:
    """Return np.square(vector, dtype=np.float64).sum(), without an array of this size.

    The vector is divided as NumPy's pairwise summation divides it, and the sum is bit-identical.
    """
    if len(vector) <= SQUARES:
        squares: np.float64 = np.square(vector, dtype=np.float64).sum()
        return squares
    half = half_of(len(vector))
    return _sum_of_squares(vector[:half]) + _sum_of_squares(vector[half:])


def half_of(size: int) -> int:
    """Return the size of the first half in NumPy's pairwise summation of `size` numbers."""
    return size // 2 - size // 2 % 8


def norm_of_parts(squares: Sequence[np.float64]) -> float:
    """Return the Euclidean norm of a vector from the `squares_of_parts` of it, in order."""
    return float(np.sqrt(sum(squares)))
