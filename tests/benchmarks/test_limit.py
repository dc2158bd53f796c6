"""The bare loops of `benchmarks.limit` do the work of the environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from benchmarks.limit import bare
from benchmarks.limit.works import PATHS


@pytest.mark.parametrize(
    ("env_id", "outputs", "action"),
    [
        ("Pendulum-v1", [[0.4]], np.array([0.8])),  # the loop scales outputs by 2
        ("CartPole-v1", [[0.1, 0.2]], 1),
        ("Acrobot-v1", [[0.3, 0.2, 0.1]], 0),
    ],
)
def test_steps_are_those_of_gymnasium(env_id: str, outputs: list[list[float]], action: Any) -> None:
    environment: Any = gymnasium.make(env_id).unwrapped
    environment.reset(seed=3)
    width, step, observe, inputs, count, steps = bare.CLASSIC[env_id]
    state = np.array(environment.state, np.float64)[np.newaxis]
    assert state.shape == (1, width) and len(outputs[0]) == count
    for _ in range(6):
        observation, reward, *_ = environment.step(action)
        state, rewards = step(state, np.array(outputs))
        np.testing.assert_allclose(observe(state)[0], observation, atol=1e-4)
        np.testing.assert_allclose(rewards, [reward], atol=1e-6)
    assert observe(state).shape == (1, inputs)
    limit = gymnasium.spec(env_id).max_episode_steps
    assert steps == limit


def test_loops_count_what_they_did() -> None:
    assert bare.numpy("Pendulum-v1", jobs=4, hidden=8)() == 4 * 200
    assert bare.function("benchmarks.limit.parts:ten_microseconds", 3)() == 64
    assert bare.rate(lambda: 5, 0.01) > 0


def test_every_work_has_a_loop() -> None:
    works = [work for path in PATHS.values() for work in path()]
    assert {work.loop for work in works} <= set(bare.LOOPS)
    assert len({(work.path, work.name) for work in works}) == len(works)
