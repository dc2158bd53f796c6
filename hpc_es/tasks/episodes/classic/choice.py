"""Whether an environment is one of classic control's, and whether its bits come out here as Gymnasium's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from hpc_es.tasks.episodes import native
from hpc_es.tasks.episodes.classic import dynamics
from hpc_es.tasks.episodes.classic.stepping import ClassicStepping
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.stepping import Running, Stepping

PACKAGE = "gymnasium.envs.classic_control"
KINDS: dict[str, Callable[[Any], dynamics.Dynamics]] = {  # by the class of Gymnasium's
    f"{PACKAGE}.cartpole:CartPoleEnv": dynamics.CartPole,
    f"{PACKAGE}.pendulum:PendulumEnv": dynamics.Pendulum,
    f"{PACKAGE}.mountain_car:MountainCarEnv": dynamics.MountainCar,
    f"{PACKAGE}.continuous_mountain_car:Continuous_MountainCarEnv": dynamics.MountainCarContinuous,
    f"{PACKAGE}.acrobot:AcrobotEnv": dynamics.Acrobot,
}
SEEDS, STEPS = (1, 2, 3), 60  # of the trial


def is_known(environment: Environment) -> bool:
    """Return whether it is one of Gymnasium's five."""
    return _name(environment) in KINDS


def _name(environment: Environment) -> str:
    found = type(environment.unwrapped)
    return f"{found.__module__}:{found.__name__}"


def stepping(environment: Environment) -> Callable[[], Stepping]:
    """Return what makes steppings of it; NotNativeError with the reason."""
    limit = native.time_limit(environment)
    native.refuse_versions("gymnasium", native.GYMNASIUM)
    bare = environment.unwrapped
    if bare.render_mode is not None:
        raise native.NotNativeError("it is rendered")
    try:
        found = KINDS[_name(environment)](bare)
        same = all(_is_same(bare, found, seed) for seed in SEEDS)
    except Exception as error:  # such as a keyword that is no number: Gymnasium fails in its own way
        raise native.NotNativeError(f"it fails with these keywords: {type(error).__name__}: {error}") from error
    if not same:
        raise native.NotNativeError("this processor computes other bits of it for many at once")
    return lambda: ClassicStepping(found, limit)


def _is_same(bare: Any, found: dynamics.Dynamics, seed: int) -> bool:
    """Play random actions with Gymnasium, and without it in the second of three rows; return whether all bits agree."""
    stepping, rng, running = ClassicStepping(found, None), np.random.default_rng(seed), Running([1, 2], [1, 2])
    space = bare.action_space
    observations, rewards = np.zeros((3, *bare.observation_space.shape), np.float32), np.zeros(3)
    with stepping.chunk([seed] * 3):
        for job in (1, 2):
            observations[job] = stepping.reset(job, seed)
        expected = np.array(bare.reset(seed=seed)[0], np.float32)
        for _ in range(STEPS):
            if expected.tobytes() != observations[1].tobytes():
                return False
            if isinstance(space, gymnasium.spaces.Discrete):
                actions = rng.integers(int(space.n), size=3)
            else:
                actions = rng.uniform(space.low, space.high, (3, *space.shape)).astype(space.dtype)
            action = int(actions[1]) if actions.ndim == 1 else actions[1]
            expected, reward, terminated, _, _ = bare.step(action)
            stepped = stepping.advance(running, actions, observations, rewards)
            if float(reward) != rewards[1] or terminated != (1 in stepped.ended):
                return False
            if terminated or stepped.ended:
                break
    return True
