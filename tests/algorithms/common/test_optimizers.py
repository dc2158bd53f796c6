"""Optimizers as pure functions, and descent along summed gradients."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.common.optimizers import GRADIENT as SUMMED
from hpc_es.algorithms.common.optimizers import (
    SQUARES,
    Kind,
    Options,
    climb,
    descend,
    in_threads,
    initial_slots,
    norm,
    squares_of_parts,
    step,
)
from hpc_es.core.data import Arrays, Float32
from hpc_es.core.errors import RunError

GRADIENT = np.array([1, -2, 0.5], np.float32)
KINDS: tuple[Kind, ...] = ("adam", "rmsprop", "sgd", "clipup", "none")


def steps(options: Options, *gradients: Float32) -> list[Float32]:
    slots: Arrays = initial_slots(options, 3)
    moves = []
    for gradient in gradients:
        slots, move = step(options, slots, gradient)
        moves.append(move)
    return moves


def test_adam_by_hand() -> None:  # T38
    first, second = steps(Options(kind="adam", learning_rate=0.01), GRADIENT, GRADIENT / 2)
    np.testing.assert_allclose(first, [-0.01, 0.01, -0.01], rtol=1e-5)
    np.testing.assert_allclose(second, [-0.00932179, 0.0093218, -0.00932179], rtol=1e-5)


def test_adam_against_the_paper_in_float64() -> None:
    """Kingma & Ba 2015, end of section 2: alpha_t = alpha sqrt(1 - b2^t) / (1 - b1^t),
    then m / (sqrt(v) + eps).
    """
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((20, 3)).astype(np.float32)
    options = Options(kind="adam", learning_rate=0.3, beta1=0.8, beta2=0.95, epsilon=1e-3)
    m = v = np.zeros(3)
    expected = []
    for t, g in enumerate(gradients.astype(np.float64), start=1):
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        expected.append(-0.3 * np.sqrt(1 - 0.95**t) / (1 - 0.8**t) * m / (np.sqrt(v) + 1e-3))
    np.testing.assert_allclose(steps(options, *gradients), expected, rtol=1e-4, atol=1e-6)


def test_sgd_by_hand() -> None:  # T39
    first, second = steps(Options(kind="sgd", learning_rate=0.01, momentum=0.9), GRADIENT, GRADIENT)
    np.testing.assert_allclose(first, [-0.001, 0.002, -0.0005], rtol=1e-5)
    np.testing.assert_allclose(second, [-0.0019, 0.0038, -0.00095], rtol=1e-5)


def test_rmsprop_by_hand() -> None:
    """ms = 0.99 ms + 0.01 g^2 from 1, then -rate g / sqrt(ms + 1e-10)."""
    first, second = steps(Options(kind="rmsprop", learning_rate=0.01), GRADIENT, GRADIENT)
    np.testing.assert_allclose(first, [-0.01, 0.02 / 1.03**0.5, -0.005 / 0.9925**0.5], rtol=1e-5)
    np.testing.assert_allclose(
        second, [-0.01, 0.02 / 1.0597**0.5, -0.005 / 0.985075**0.5], rtol=1e-5
    )


def test_rmsprop_adds_epsilon_inside_the_root() -> None:
    options, slots = (
        Options(kind="rmsprop", learning_rate=1.0),
        initial_slots(Options(kind="rmsprop"), 1),
    )
    _, move = step(
        options, {**slots, "rmsprop_square": np.zeros(1, np.float32)}, np.array([1e-5], np.float32)
    )
    np.testing.assert_allclose(move, -1e-5 / np.sqrt(0.01 * 1e-10 + 1e-10), rtol=1e-4)


def test_decay_and_epsilon_of_rmsprop_are_options() -> None:
    """ms = 0.5 * 1 + 0.5 * 4 = 2.5, and -1 * 2 / sqrt(2.5 + 1.5) = -1."""
    options = Options(kind="rmsprop", learning_rate=1.0, rmsprop_decay=0.5, rmsprop_epsilon=1.5)
    _, move = step(options, initial_slots(options, 1), np.array([2], np.float32))
    np.testing.assert_allclose(move, [-1.0])


def test_optimizer_none_steps_by_rate_times_gradient() -> None:
    np.testing.assert_allclose(
        steps(Options(kind="none", learning_rate=0.1), GRADIENT)[0], [-0.1, 0.2, -0.05]
    )


CLIPUP = Options(kind="clipup", learning_rate=0.2, max_speed=0.3)


def test_clipup_equals_other_implementations() -> None:
    gradients = [np.array(item, np.float32) for item in ([3, 4, 0], [3, 4, 0], [0, -5, 12])]
    # the second is clipped
    expected = [[0.12, 0.16, 0], [0.18, 0.24, 0], [0.162, 0.1390769231, 0.1846153846]]
    np.testing.assert_allclose(steps(CLIPUP, *gradients), -np.array(expected), rtol=1e-6)


def test_clipup_max_speed_defaults_to_twice_the_learning_rate() -> None:
    """Speeds in one direction: a, 1.9 a, 2 a instead of 2.71 a."""
    moves = steps(Options(kind="clipup", learning_rate=0.1), *[7 * GRADIENT] * 3)
    np.testing.assert_allclose(
        [np.linalg.norm(item) for item in moves], [0.1, 0.19, 0.2], rtol=1e-6
    )


def test_clipup_slows_down_with_a_zero_gradient() -> None:
    none = np.zeros(3, np.float32)
    first, second, third = steps(CLIPUP, none, np.array([3, 4, 0], np.float32), none)
    assert first.tolist() == [0, 0, 0]
    np.testing.assert_allclose(third, 0.9 * second, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-40, 1e30])
def test_clipup_step_does_not_depend_on_the_norm_of_the_gradient(scale: float) -> None:
    (move,) = steps(CLIPUP, np.array([3 * scale, 4 * scale, 0], np.float32))
    np.testing.assert_allclose(move, [-0.12, -0.16, 0], rtol=1e-4)


@pytest.mark.parametrize(("rate", "message"), [(0.03, True), (0.031, False), (0.15, False)])
def test_unreachable_clipup_max_speed_is_warned_about(rate: float, message: bool) -> None:
    """Momentum 0.9 reaches ten times the learning rate; the paper uses half of the speed."""
    result = list(Options(kind="clipup", learning_rate=rate, max_speed=0.3001).warnings())
    assert [key for key, _ in result] == (["max_speed"] if message else [])
    assert all(text.endswith("(try learning_rate 0.15005, half of it)") for _, text in result)


@pytest.mark.parametrize("kind", KINDS)
def test_learning_rate_decays_linearly_to_zero(kind: Kind) -> None:
    """Steps of the constant rate times 1, 3/4, 1/2, 1/4, 0, 0."""
    gradients = [GRADIENT, 2 * GRADIENT, GRADIENT, GRADIENT, -GRADIENT, GRADIENT]
    constant = steps(Options(kind=kind, learning_rate=0.1), *gradients)
    annealed = steps(Options(kind=kind, learning_rate=0.1, anneal_updates=4), *gradients)
    for share, before, after in zip([1, 0.75, 0.5, 0.25, 0, 0], constant, annealed, strict=True):
        assert (before != 0).all()
        np.testing.assert_allclose(after, share * before, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_slots_keep_names_shapes_and_dtypes_and_count_steps(kind: Kind) -> None:
    options = Options(kind=kind)
    slots = before = initial_slots(options, 3)
    for _ in range(3):
        slots, move = step(options, slots, GRADIENT)
        assert move.dtype == np.float32
    kept = {name: (np.shape(array), array.dtype) for name, array in before.items()}
    assert {name: (np.shape(array), array.dtype) for name, array in slots.items()} == kept
    assert (int(before["optimizer_steps"]), int(slots["optimizer_steps"])) == (0, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_step_changes_none_of_its_arguments(kind: Kind) -> None:
    options = Options(kind=kind)
    slots, _ = step(options, initial_slots(options, 3), GRADIENT)
    copies, gradient = {name: array.copy() for name, array in slots.items()}, GRADIENT.copy()
    _, first = step(options, slots, gradient)
    _, second = step(options, slots, gradient)
    assert np.array_equal(first, second)
    assert np.array_equal(gradient, GRADIENT)
    assert all(np.array_equal(slots[name], copies[name]) for name in copies)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_climbing_in_parts_equals_a_step_of_whole_arrays(
    kind: Kind, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are divided into pieces, and the last part is shorter;
    bits and metrics do not depend on the threads.
    """
    monkeypatch.setattr(optimizers, "NORM_PART", width := 3 * SQUARES + 100)
    monkeypatch.setattr(optimizers, "STEP_PART", 2 * SQUARES)
    options, size, decay = Options(kind=kind), 5 * width + 3, 0.01
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(size).astype(np.float32)
    slots, plain, climbing = (
        initial_slots(options, size),
        initial_slots(options, size),
        theta.copy(),
    )
    for _ in range(2):
        gradient = rng.standard_normal(size).astype(np.float32)
        plain, change = step(options, plain, np.float32(decay) * theta - gradient)
        expected = [norm(gradient), norm(change), norm(theta), norm(theta + change)]
        theta = theta + change
        part = size if kind == "clipup" else width
        parts = [(slice(i, i + part), gradient[i : i + part].copy()) for i in range(0, size, part)]
        slots, squares = climb(options, climbing, slots, parts, decay, threads)
        assert climbing.tobytes() == theta.tobytes()
        assert [(n, slot.dtype, slot.tobytes()) for n, slot in slots.items()] == [
            (n, slot.dtype, slot.tobytes()) for n, slot in plain.items()
        ]
        assert np.sqrt(squares).tolist() == expected


def test_results_of_threads_are_in_order_and_few_items_exist_at_once() -> None:
    alive, most = set[int](), 0

    def items() -> Iterator[int]:
        nonlocal most
        for number in range(20):
            alive.add(number)
            most = max(most, len(alive))
            yield number

    def slow(number: int) -> int:
        time.sleep(0.01 * (number % 3 == 0))
        alive.discard(number)
        return number

    assert list(in_threads(slow, items(), 4)) == list(range(20))
    assert most <= 4


def test_error_in_a_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda number: 1 // number, [2, 1, 0, 1], 2))


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_descends_a_quadratic(kind: Kind) -> None:
    """Steps of ClipUp shrink only with the learning rate, not with the gradient."""
    options = Options(
        kind=kind, learning_rate=0.05, anneal_updates=300 if kind == "clipup" else None
    )
    x, slots = np.array([1, -2, 3], np.float32), initial_slots(options, 3)
    for _ in range(300):
        slots, move = step(options, slots, 2 * x)
        x = x + move
    assert np.abs(x).max() < 0.05


PLAIN = Options(kind="none", learning_rate=1.0)


def vector(*values: float) -> Float32:
    return np.array(values, np.float32)


def update(clip: float | None, *gradients: Float32) -> tuple[Float32, dict[str, float]]:
    """The change of theta, and the metrics."""
    slots: Arrays = {"optimizer_steps": np.zeros((), np.int64)}
    descent = descend(
        PLAIN, vector(0, 0), slots, [{SUMMED: gradient} for gradient in gradients], clip
    )
    return descent.theta, dict(descent.metrics)


@pytest.mark.parametrize(
    ("clip", "gradient", "expected"),
    [
        (40, [30, 40], [24, 32]),  # T10
        (50, [30, 40], [30, 40]),
        (40, [-3, 4], [-3, 4]),
        (None, [3000, 4000], [3000, 4000]),
    ],
)
def test_gradients_are_clipped_by_the_global_norm(
    clip: float | None, gradient: list[float], expected: list[float]
) -> None:
    theta, metrics = update(clip, vector(*gradient))
    np.testing.assert_allclose(-theta, expected, rtol=1e-6)
    assert metrics["gradient_norm"] == pytest.approx(np.hypot(*gradient))
    assert metrics["theta_norm"] == pytest.approx(np.hypot(*expected))


def test_sum_of_chunk_gradients_is_clipped_not_its_terms() -> None:
    np.testing.assert_allclose(-update(5, vector(300, 0), vector(-300, 4))[0], [0, 4])


def test_chunk_gradients_are_summed_in_chunk_order() -> None:
    """1e8 + 1 is 1e8 in float32, so the order affects the result."""
    assert update(None, vector(1e8, 0), vector(1, 0), vector(-1e8, 0))[0].tolist() == [0, 0]
    assert update(None, vector(1e8, 0), vector(-1e8, 0), vector(1, 0))[0].tolist() == [-1, 0]


def test_gradient_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(RunError, match="lower learning rate"):
        update(5, vector(np.nan, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 7, 129, 32_769, 65_543, 1_000_003])
def test_sums_of_squares_have_the_bits_of_the_sum_of_one_array(
    size: int, dtype: type[np.floating]
) -> None:
    vector = (np.random.default_rng(size).standard_normal(size) * 1e3).astype(dtype)
    expected = [np.square(vector, dtype=np.float64).sum()] if size else []
    assert squares_of_parts(vector) == expected
