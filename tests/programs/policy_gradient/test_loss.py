"""The buffer of programs that are drawn by weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.programs.policy_gradient.loss import ReplayBuffer, digests, first_occurrences

BUFFER = ReplayBuffer(capacity=3, length=2, temperature=0.5)


def tokens(*programs: int) -> Any:
    """Programs of two tokens, such as 12 of 1 and 2."""
    return np.array([divmod(program, 10) for program in programs], np.uint8).reshape(-1, 2)


def cached(arrays: Any) -> dict[int, float]:
    """The rewards by program."""
    count = int(arrays["replay_count"])
    programs = [int(10 * row[0] + row[1]) for row in arrays["replay_tokens"][:count]]
    assert (
        arrays["replay_names"][:count].tolist() == digests(arrays["replay_tokens"][:count]).tolist()
    )
    return dict(zip(programs, arrays["replay_rewards"][:count].tolist(), strict=True))


def added(arrays: Any, **rewards: float) -> Any:
    """The state after adding programs such as p12=0.5."""
    programs = [int(name[1:]) for name in rewards]
    return BUFFER.with_programs(arrays, tokens(*programs), np.array(list(rewards.values())))


def test_buffer_has_each_program_once_with_its_first_reward() -> None:
    some = BUFFER.with_programs(BUFFER.empty(), tokens(11, 12, 11), np.array([0.1, 0.2, 0.9]))
    assert cached(some) == {11: 0.1, 12: 0.2}
    assert cached(added(some, p12=0.7, p13=0.3)) == {11: 0.1, 12: 0.2, 13: 0.3}


def test_buffer_drops_the_smallest_rewards_and_newer_ones_of_equal() -> None:
    full = added(BUFFER.empty(), p11=0.1, p12=0.2, p13=0.2)
    assert list(cached(added(full, p14=0.3))) == [12, 13, 14]
    assert list(cached(added(full, p14=0.3, p15=0.4))) == [12, 14, 15]
    assert list(cached(added(full, p14=0.1))) == [11, 12, 13]
    assert list(cached(added(full, p14=-5.0))) == [11, 12, 13]


def test_buffer_accepts_a_dropped_program_again() -> None:
    full = added(BUFFER.empty(), p11=0.1, p12=0.2, p13=0.2, p14=0.3)
    assert 11 not in cached(full)
    assert cached(added(full, p11=0.5))[11] == 0.5


def test_adding_returns_a_new_buffer_of_the_same_shapes() -> None:
    before = BUFFER.empty()
    after = added(before, p11=0.1)
    assert cached(before) == {}
    assert [(name, a.shape, a.dtype) for name, a in after.items()] == [
        (n, a.shape, a.dtype) for n, a in before.items()
    ]


def test_probabilities_by_hand() -> None:
    odds = BUFFER.probabilities(added(BUFFER.empty(), p11=0.0, p12=1.0, p13=-1000.0))
    weight = np.exp(1.0 / 0.5)
    np.testing.assert_allclose(odds, [1 / (1 + weight), weight / (1 + weight), 0], rtol=1e-12)


def test_probabilities_of_large_rewards_do_not_overflow() -> None:
    odds = BUFFER.probabilities(added(BUFFER.empty(), p11=5000.0, p12=5000.0))
    assert odds.tolist() == [0.5, 0.5]


def test_draws_have_these_probabilities() -> None:
    some = added(BUFFER.empty(), p11=0.0, p12=0.5, p13=0.1)
    places = BUFFER.sample(some, 20_000, np.random.default_rng(0))
    counts = np.bincount(places, minlength=3) / 20_000
    # three standard deviations
    np.testing.assert_allclose(counts, BUFFER.probabilities(some), atol=0.01)


def test_names_distinguish_programs() -> None:
    every = np.array([[a, b] for a in range(9) for b in range(9)], np.uint8)
    assert digests(every).dtype == np.uint64 and len(set(digests(every).tolist())) == 81
    assert digests(every[:0]).shape == (0,)


def test_first_of_each_keeps_the_order_of_items() -> None:
    assert first_occurrences(np.array([5, 3, 5, 1, 3])).tolist() == [0, 1, 3]
