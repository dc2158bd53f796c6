"""What a policy observes of its last step, against values by hand."""

from __future__ import annotations

import numpy as np

from hpc_es.core.tabulated import LastStepInputs, slots


def test_rewards_are_numbered_by_slots() -> None:  # T23
    rewards = {0: 0, 0.1: 1, 0.7: 7, 1.0: 10, 1.1: 11, 5: 12}
    assert slots(np.array(list(rewards), np.float32)).tolist() == list(rewards.values())
    message = np.arange(1, 11, dtype=np.float32) * np.float32(0.1)
    assert slots(message).tolist() == list(range(1, 11))


def test_inputs_are_reward_action_and_time_of_the_previous_step() -> None:  # T6
    """All are 0 in the first step."""
    plain = LastStepInputs(2, 4)
    assert plain.first(1).tolist() == [[0, 0, 0, 0]]
    after = plain.after(0, np.array([1, 0]), np.array([1, 0.5], np.float32))
    assert after.tolist() == [[1, 0, 1, 0.25], [0.5, 1, 0, 0.25]]
    number = LastStepInputs(2, 4, time="number").after(2, np.array([1]), np.array([1], np.float32))
    assert number.tolist() == [[1, 0, 1, 3]]
    assert LastStepInputs(2, 4, reward="none", time="none").after(
        2, np.array([1]), np.array([1])
    ).tolist() == [[0, 1]]
    coded = LastStepInputs(2, 4, reward="one_hot", action=False)
    assert coded.first(1).tolist() == [[1] + [0] * 13]
    assert coded.after(1, np.array([1]), np.array([1.1])).tolist() == [[0] * 11 + [1, 0, 0.5]]
    assert LastStepInputs(11, 5, reward="one_hot").width == 25
