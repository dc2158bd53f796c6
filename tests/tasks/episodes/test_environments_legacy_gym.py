"""Environments of the old gym, through shimmy:
`make test-gym` runs these in a separate virtual environment.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from hpc_es.api.train import train
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes import environments, policy_spaces
from hpc_es.tasks.episodes.hidden_state import hidden_state_difference

pytest.importorskip("gym", reason="the old gym is not installed here: make test-gym")

MODULE = '''
import gym
import numpy as np

class Old(gym.Env):
    """Pays 1 for action 1; ends never by itself."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, pay=1.0):
        self.pay = pay

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(3).astype(np.float32), {}

    def step(self, action):
        return self.np_random.random(3).astype(np.float32), self.pay * action, False, False, {}

gym.register("OldOne-v0", entry_point=Old, max_episode_steps=20)
'''


@pytest.fixture(autouse=True)
def old_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_legacy_environment_keeps_its_limit_seeds_and_keywords() -> None:
    environment = environments.make("old_module:OldOne-v0", {"pay": 2.5})
    first, _ = environment.reset(seed=3)
    rewards, truncated = [], False
    while not truncated:
        _, reward, _, truncated, _ = environment.step(1)
        rewards.append(reward)
    assert rewards == [2.5] * 20
    again, _ = environment.reset(seed=3)
    assert np.array_equal(first, again)
    assert policy_spaces.spaces(environment).observations.size == 3


def test_time_limit_of_the_config_shortens_a_legacy_environment() -> None:
    environment = environments.make("old_module:OldOne-v0", {}, max_episode_steps=4)
    environment.reset(seed=0)
    assert [environment.step(0)[3] for _ in range(4)] == [False, False, False, True]


def test_legacy_environment_trains(tmp_path: Path) -> None:
    config = {
        "task": {"env_id": "old_module:OldOne-v0"},
        "policy": {"hidden_dims": [4]},
        "algorithm": {"population_size": 8},
        "noise": {"kind": "counter"},
        "stop": {"generations": 2},
    }
    rows = list(train(config, tmp_path / "run"))
    assert [row["timesteps_total"] for row in rows] == [160, 320]


def test_unknown_ids_and_keywords_of_legacy_environments_are_refused() -> None:
    with pytest.raises(ConfigError, match="NoSuchThing"):
        environments.make("NoSuchThing-v0", {})
    assert (
        hidden_state_difference(lambda: environments.make("old_module:OldOne-v0", {}), 30) is None
    )


@pytest.mark.skipif(find_spec("Box2D") is not None, reason="Box2D is installed")
def test_missing_package_of_a_legacy_environment_is_said() -> None:
    with pytest.raises(ConfigError, match=r"LunarLander-v2 cannot be created: .*[Bb]ox2[Dd]"):
        environments.make("LunarLander-v2", {})
