"""Hidden state: whether an episode depends on earlier episodes of the same environment.

Statistics of a wrapper that normalises, or attributes that `reset` does not clear, are such a
state. Each rank, and each process, has its own, and checkpoints do not contain it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpc_es.core.closing import closing
from hpc_es.core.data import Array
from hpc_es.core.errors import ConfigError, error_text, one_line
from hpc_es.core.keys import Keys, Purpose
from hpc_es.tasks.episodes import environments
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.policy_spaces import spaces
from hpc_es.tasks.episodes.returned_values import reset_values, step_values

COMPARED_EPISODES = 4
PROBE_STEPS = 200

NORMALIZATION = (
    "set task.observation_normalization: {enabled: true}, whose statistics are part of checkpoints"
)
REMEDIES = {  # by the class of a wrapper
    "NormalizeObservation": f"In place of it {NORMALIZATION}",
    "NormalizeReward": "Leave it out, or set task.fresh_environment: true",
}


def hidden_state_warning(options: Any, seconds: float) -> str | None:
    """Return a warning if episodes differ between a reused and a new environment, or fail.

    None if not. `options` are those of the task. The comparison ends after `seconds`, even if it
    has compared little by then.
    """

    def make(wrappers: int) -> Environment:
        return environments.make(
            options.env_id,
            options.env_kwargs,
            options.max_episode_steps,
            options.wrappers[:wrappers],
        )

    def difference(wrappers: int) -> str | None:
        return hidden_state_difference(partial(make, wrappers), PROBE_STEPS, seconds)

    count = len(options.wrappers)
    try:
        found = difference(count)
    except ConfigError:
        raise
    except Exception as error:  # of a custom environment
        return f"{options.env_id} fails under random actions: {one_line(error_text(error))}"
    if not found:
        return None
    name, remedy = options.env_id, "Set task.fresh_environment: true"
    with contextlib.suppress(Exception):  # some wrappers only work inside of others
        first = next(
            wrappers for wrappers in range(count + 1) if wrappers == count or difference(wrappers)
        )
        if first:
            wrapper = options.wrappers[first - 1]
            name = wrapper if isinstance(wrapper, str) else next(iter(wrapper))
            remedy = f"{remedy}; if it normalises observations, rather {NORMALIZATION}"
            remedy = REMEDIES.get(name.rpartition(":")[2], remedy)
    return (
        f"{name} gives other episodes when it is reused than when it is new ({found}): it keeps state that reset does "
        "not clear, so results would depend on which rank ran which episode, and a resumed run, hpc-es eval and "
        f"load_policy begin without that state. {remedy}"
    )


def hidden_state_difference(
    make: Callable[[], Environment], steps: int, seconds: float = float("inf")
) -> str | None:
    """Return the first difference between episodes of a reused and of a new environment.

    None if there is none. Episodes have random actions, fixed seeds and at most `steps` steps; the
    last ones are left out after `seconds`.
    """
    deadline = time.monotonic() + seconds
    reused = make()
    with closing(environments.name_of(reused), reused):
        for episode in range(COMPARED_EPISODES):
            if time.monotonic() >= deadline:
                return None
            recorded = _record_episode(reused, episode, steps, deadline)
            with closing(environments.name_of(reused), make()) as new:
                expected = _record_episode(new, episode, steps, deadline)
            for step, (a, b) in enumerate(zip(recorded, expected, strict=False)):
                is_same_reward = a[1] == b[1] or (np.isnan(a[1]) and np.isnan(b[1]))
                if not (np.array_equal(a[0], b[0], equal_nan=True) and is_same_reward):
                    return f"from step {step} of episode {episode}"
            if len(recorded) != len(expected) and time.monotonic() < deadline:
                return f"episode {episode} has {len(recorded)} steps instead of {len(expected)}"
    return None


def _record_episode(
    environment: Environment, number: int, steps: int, deadline: float
) -> list[tuple[Array, float]]:
    """Return (observation, reward) of the reset and of each step until the deadline.

    The reset has the reward 0.
    """
    spec = spaces(environment).observations
    seed = Keys(0).seed31(Purpose.PROBE, index=number)
    random.seed(seed)
    np.random.seed(seed)  # as in a rollout
    environment.action_space.seed(seed)
    observation, _ = reset_values(environment.reset(seed=seed))
    record = [(np.array(spec.require(observation)), 0.0)]
    while len(record) <= steps and time.monotonic() < deadline:
        returned = environment.step(environment.action_space.sample())
        observation, reward, terminated, truncated, _ = step_values(returned)
        record.append((np.array(spec.require(observation)), reward))
        if terminated or truncated:
            break
    return record
