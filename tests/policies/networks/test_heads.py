"""Action heads: from outputs of the network to actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_es.config.loading import validate
from hpc_es.core.data import Box, Discrete, MultiDiscrete
from hpc_es.core.errors import ConfigError
from hpc_es.policies.networks.heads import Head

BOUND = st.floats(-1e6, 1e6, width=32)


def box(low: Any, high: Any) -> Box:
    return Box(np.array(low, np.float32), np.array(high, np.float32))


@pytest.mark.parametrize(("bins", "values"), [(5, [-1, -0.5, 0, 0.5, 1]), (2, [-1, 1])])  # T46
def test_bins_divide_the_box_evenly(bins: int, values: list[float]) -> None:
    head = Head.of(box([-1], [1]), bins)
    assert head.actions(np.eye(bins, dtype=np.float32)).ravel().tolist() == values


def test_bins_of_each_dimension_have_their_own_outputs_and_bounds() -> None:
    """Outputs are [dimension 0's bins, dimension 1's bins]; the highest output of each wins."""
    head = Head.of(box([-1, 0], [1, 10]), 3)
    assert head.outputs == 6
    actions = head.actions(np.array([[0, 9, 1, 7, 8, 9], [3, 2, 1, -1, -3, -2]], np.float32))
    assert actions.tolist() == [[0, 10], [-1, 0]]
    assert actions.dtype == np.float32


@given(BOUND, BOUND, st.integers(2, 9))
def test_bins_stay_in_the_box(a: float, b: float, bins: int) -> None:
    low, high = min(a, b), max(a, b)
    actions = Head.of(box([low], [high]), bins).actions(np.eye(bins, dtype=np.float32))
    assert low <= actions.min()
    assert actions.max() <= high


def test_single_bin_is_refused() -> None:  # T46
    config = {"task": {"env_id": "Pendulum-v1"}, "policy": {"action_bins": 1}, "algorithm": {}}
    with pytest.raises(
        ConfigError,
        match=r"policy\.action_bins: expected a whole number of at least 2, or null, found 1",
    ):
        validate(config)


def test_bins_that_do_not_fit_the_space_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"policy.action_bins: is 3, but the actions are Discrete\(4\)"
    ):
        Head.of(Discrete(4), 3)
    for low, high in (([-np.inf], [1]), ([0], [np.inf])):
        with pytest.raises(
            ConfigError, match=r"policy.action_bins: requires finite action bounds.*RescaleAction"
        ):
            Head.of(box(low, high), 3)


def test_continuous_actions_are_clipped_to_their_bounds() -> None:
    head = Head.of(box([-1, 0, -np.inf], [1, 2, np.inf]), None)
    assert head.outputs == 3
    actions = head.actions(np.array([[-5, -5, -5e9], [0.5, 3, 5e9]], np.float32))
    assert actions.tolist() == [[-1, 0, np.float32(-5e9)], [0.5, 2, np.float32(5e9)]]


def test_squashed_actions_are_tanh_scaled_to_the_bounds() -> None:
    """An output of atanh(0.5) gives low + 3/4 (high - low)."""
    head = Head.of(box([-1, 0], [1, 10]), None, "squash")
    assert head.outputs == 2
    actions = head.actions(np.array([[0, 0], [0.5493061, -0.5493061], [99, -99]], np.float32))
    np.testing.assert_allclose(actions, [[0, 5], [0.5, 2.5], [1, 0]], rtol=1e-6, atol=1e-7)
    assert actions.dtype == np.float32
    one = head.pure(np, np.array([0.5493061, -0.5493061], np.float32))
    np.testing.assert_allclose(one, [0.5, 2.5], rtol=1e-6)


@given(BOUND, BOUND)
def test_squashed_actions_stay_in_the_box(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    actions = Head.of(box([low], [high]), None, "squash").actions(
        np.array([[-99], [0], [99]], np.float32)
    )
    assert low <= actions.min()
    assert actions.max() <= high


def test_squashing_without_finite_bounds_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"policy.action_bounds: is squash, but the actions are Discrete\(4\)"
    ):
        Head.of(Discrete(4), None, "squash")
    with pytest.raises(ConfigError, match=r"policy.action_bounds: requires finite action bounds"):
        Head.of(box([-np.inf], [1]), None, "squash")


def test_discrete_actions_begin_at_start() -> None:
    head = Head.of(Discrete(3, start=-1), None)
    assert head.outputs == 3
    actions = head.actions(np.eye(3, dtype=np.float32))
    assert actions.tolist() == [-1, 0, 1]
    assert actions.dtype == np.int64


# Several choices at once.

SEVERAL = MultiDiscrete((2, 3))
LOGITS = np.array([[1, 2, 5, 4, 3], [7, 6, 0, 1, 9]], np.float32)


def test_each_choice_is_the_largest_of_its_own_outputs() -> None:
    """Outputs are [choice 0's 2, choice 1's 3]; the largest of all, 5 and 9, belong to choice 1."""
    head = Head.of(SEVERAL, None)
    assert head.outputs == 5
    actions = head.actions(LOGITS)
    assert actions.tolist() == [[1, 0], [0, 2]]
    assert actions.dtype == np.int64 and actions.shape == (2, 2)


def test_multidiscrete_head_is_identical_for_other_array_namespaces() -> None:
    head = Head.of(SEVERAL, None)
    assert [head.pure(np, row).tolist() for row in LOGITS] == [[1, 0], [0, 2]]


def test_equal_outputs_select_the_first_action() -> None:
    assert Head.of(SEVERAL, None).actions(np.zeros((1, 5), np.float32)).tolist() == [[0, 0]]


def test_bins_are_refused_for_multidiscrete_actions() -> None:
    with pytest.raises(
        ConfigError,
        match=r"policy.action_bins: is 3, but the actions are MultiDiscrete\(\[2, 3\]\)",
    ):
        Head.of(SEVERAL, 3)


# Outputs that are NaN.

SPACES = [Discrete(3, start=5), MultiDiscrete((2, 1)), box([-1], [1])]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_rows_with_nan_outputs_have_nan_actions(space: Any) -> None:
    """argmax takes NaN for the largest number; the other rows are as without it."""
    bins = 3 if isinstance(space, Box) else None
    head = Head.of(space, bins)
    outputs = np.array([[0.5, 0, 1], [0.5, np.nan, 1], [0, 1, -np.inf]], np.float32)
    actions = head.actions(outputs)
    rows = actions.reshape(3, -1)
    assert (
        np.isnan(rows).all(axis=1).tolist() == [False, True, False] and actions.dtype == np.float64
    )
    assert rows[[0, 2]].tolist() == head.actions(outputs[[0, 2]]).reshape(2, -1).tolist()
    pure = [np.asarray(head.pure(np, row)).ravel() for row in outputs]
    assert np.array_equal(np.stack(pure), rows.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("space", SPACES[:2], ids=str)
def test_infinite_and_large_outputs_have_whole_numbers_as_actions(space: Any) -> None:
    outputs = np.array([[1e38, np.inf, -np.inf], [-3e38, 3e38, 3e38]], np.float32)
    assert Head.of(space, None).actions(outputs).dtype == np.int64
