"""The table of rewards that a compiled graph plays, against a hand calculation and the task."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.bandits.families import Arms
from hpc_es.bandits.setting import BanditEpisodes, Lockstep, setting
from hpc_es.core.tabulated import TabulatedEpisodes


def test_payouts_are_the_rewards_of_all_arms() -> None:
    chances = np.array([[[0.5, 0.9]]], np.float32)
    values, spreads = np.array([[[1.0, 5.0]]], np.float32), np.array([[[0.0, 2.0]]], np.float32)
    uniforms, normal = (
        np.array([[0.4, 0.5, 0.95]], np.float32),
        np.array([[1.0, -1.0, 1.0]], np.float32),
    )
    result = BanditEpisodes(Arms(chances, values, spreads), uniforms, normal).potential_rewards()
    assert result[:, 0].tolist() == [[1.0, 7.0], [0.0, 3.0], [0.0, 0.0]]
    plain = BanditEpisodes(Arms(chances, values, 0 * spreads), uniforms, None).potential_rewards()
    assert plain[:, 0].tolist() == [[1.0, 5.0], [0.0, 5.0], [0.0, 0.0]]


@pytest.mark.parametrize("distribution", ["independent", "restless", "k_armed"])
def test_table_has_the_rewards_of_the_episodes_of_its_seeds(distribution: str) -> None:
    problem, seeds = setting(distribution, 6), [3, 4, 5]
    assert isinstance(problem, TabulatedEpisodes)
    table = problem.table(seeds)
    lockstep = Lockstep(problem, problem.episodes_of_seeds(seeds))
    pulls = np.array([0, 1, 0])
    for trial in range(problem.inputs.steps):
        rewards = lockstep.pull(pulls)
        assert rewards.tolist() == table.rewards[trial, np.arange(3), pulls].tolist()
    assert table.info_values is None
