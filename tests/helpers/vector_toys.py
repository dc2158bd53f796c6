"""Vector environments, correct and faulty; importing this module registers them.

`Swarm-v0` has the bits of `tests.helpers.toys:Chaos-v0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from tests.helpers.toys import Chaos, Informative

LIMIT = 60  # steps of an episode, which Swarm itself does not know of


class Swarm(VectorEnv[Any, Any, Any]):
    """Many logistic maps at once; finished ones continue."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    single_observation_space, single_action_space = Chaos.observation_space, Chaos.action_space

    def __init__(
        self, num_envs: int, max_episode_steps: int | None = None, fault: str = ""
    ) -> None:
        self.num_envs, self.fault = num_envs, fault
        self.steps = self.started = 0

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.steps, self.seeds = 0, list(self.episode_seeds(seed))
        assert len(self.seeds) == self.num_envs
        drawn = [
            gymnasium.utils.seeding.np_random(int(item))[0].uniform(0.1, 0.9, 4)
            for item in self.seeds
        ]
        self.x = np.array(drawn)
        return self.x.astype(np.float32), {}

    def episode_seeds(self, seed: Any) -> Sequence[int]:
        if self.fault == "arrays alone" and not isinstance(seed, np.ndarray):
            raise TypeError("expected an array")
        if self.fault == "no seeds":
            self.started += self.num_envs
            return range(self.started - self.num_envs, self.started)
        if self.fault == "one seed":
            return [seed[0] + number for number in range(self.num_envs)]
        return seed  # type: ignore[no-any-return]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        assert actions.shape == (self.num_envs, 2)
        pushes = actions.sum(1).astype(float)
        if self.fault == "neighbours":
            pushes = np.full(self.num_envs, pushes.mean())
        if self.fault == "raise" and self.steps == 5 and 7 in self.seeds:
            raise ValueError("the simulator diverged")
        if self.fault == "exit" and self.steps == 5 and 7 in self.seeds:
            raise SystemExit(0)
        self.x = 3.99 * self.x * (1 - self.x)
        self.x = np.clip(self.x + 0.01 * pushes[:, None], 0.01, 0.99)
        over = np.zeros(self.num_envs, bool)
        return (
            self.x.astype(np.float32),
            self.x[:, 0] + actions[:, 1],
            self.x[:, 1] > 0.985,
            over,
            {},
        )


def sync_pendulum(num_envs: int, max_episode_steps: int | None = None) -> SyncVectorEnv:
    """Gymnasium's own vector of Pendulum-v1, which resets by itself."""
    return SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * num_envs)


class Images(Swarm):
    """Swarm with image observations."""

    single_observation_space: Any = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.observed(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        _, *rest = super().step(actions)
        return self.observed(), *rest  # type: ignore[return-value]

    def observed(self) -> Any:
        return np.zeros((self.num_envs, 4, 84, 84), np.uint8) + (
            255 * self.x[:, :1, None, None]
        ).astype(np.uint8)


class Hasty(Swarm):
    """Swarm whose last observation is the first of the next episode."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012


class Plain(Swarm):
    """Swarm that does not say how it resets."""

    metadata = {}  # noqa: RUF012


def informative(num_envs: int, autoreset_mode: AutoresetMode) -> SyncVectorEnv:
    """Gymnasium's vector of `tests.helpers.toys:Informative-v0`."""
    return SyncVectorEnv([Informative] * num_envs, autoreset_mode=autoreset_mode)


gymnasium.register(
    "InformativeLater-v0",
    vector_entry_point=lambda num_envs: informative(num_envs, AutoresetMode.NEXT_STEP),
)
gymnasium.register(
    "InformativeAtOnce-v0",
    vector_entry_point=lambda num_envs: informative(num_envs, AutoresetMode.SAME_STEP),
)
gymnasium.register(
    "Swarm-v0", Chaos, vector_entry_point=Swarm, max_episode_steps=LIMIT, order_enforce=False
)
gymnasium.register("Images-v0", vector_entry_point=Images)
gymnasium.register("Plain-v0", vector_entry_point=Plain)
gymnasium.register("Hasty-v0", vector_entry_point=Hasty)
gymnasium.register(
    "SyncPendulum-v0",
    "gymnasium.envs.classic_control.pendulum:PendulumEnv",
    vector_entry_point=sync_pendulum,
)
