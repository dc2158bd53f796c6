"""Returns and advantages against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_es.actor_critic.loss import discounted, later, targets

REWARDS, VALUES, GAMMA = np.array([1.0, 0.0, 1.0]), np.array([0.5, 0.4, 0.3]), 0.9


def test_discounted_sums_by_hand() -> None:
    assert discounted(np.ones(4), 0.5).tolist() == [1.875, 1.75, 1.5, 1.0]
    assert discounted(np.array([[1.0, 2.0], [4.0, 8.0]]), 0.5).tolist() == [[3.0, 6.0], [4.0, 8.0]]
    assert discounted(np.ones(3), 0.0).tolist() == [1.0, 1.0, 1.0]
    assert discounted(np.ones(1), 0.5).tolist() == [1.0]


def test_discounting_does_not_change_its_argument() -> None:
    x = np.ones(4)
    discounted(x, 0.5)
    assert x.tolist() == [1.0] * 4


def test_shifted_values_are_zero_after_the_end() -> None:
    assert later(np.array([1.0, 2.0, 3.0])).tolist() == [2.0, 3.0, 0.0]
    assert later(np.array([1.0, 2.0, 3.0]), 5).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("bootstrap", "gae_lambda", "returns", "advantages"),
    [
        (0.0, 1.0, [1.81, 0.9, 1.0], [1.31, 0.5, 0.7]),
        (2.0, 1.0, [3.268, 2.52, 2.8], [2.768, 2.12, 2.5]),
        (2.0, 0.5, [3.268, 2.52, 2.8], [1.30775, 0.995, 2.5]),
    ],
)
def test_targets_of_an_episode_by_hand(
    bootstrap: float, gae_lambda: float, returns: list[float], advantages: list[float]
) -> None:
    rewards = REWARDS + np.array([0, 0, GAMMA * bootstrap])
    result = targets(rewards, VALUES, GAMMA, gae_lambda)
    np.testing.assert_allclose(result, (returns, advantages), atol=1e-12)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=20),
    st.floats(0, 1),
)
def test_advantage_with_lambda_1_is_return_minus_value(
    steps: list[tuple[float, float]], gamma: float
) -> None:
    rewards, values = np.array(steps).T
    returns, advantages = targets(rewards, values, gamma, 1.0)
    np.testing.assert_allclose(advantages, returns - values, atol=1e-9)


def test_targets_are_zero_after_an_early_end() -> None:
    padded = [np.append(x, [0.0, 0.0]) for x in (REWARDS, VALUES)]
    returns, advantages = targets(padded[0], padded[1], GAMMA, 0.5)
    whole = targets(REWARDS, VALUES, GAMMA, 0.5)
    np.testing.assert_allclose([returns[:3], advantages[:3]], whole, atol=1e-12)
    assert returns[3:].tolist() == advantages[3:].tolist() == [0.0, 0.0]
