"""Whether a vector environment can be used: each of its episodes has to follow from its own seed alone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from hpc_es.core.data import Array
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes import environments
from hpc_es.tasks.episodes.environments import Vector
from hpc_es.tasks.episodes.vector_stepping import Single, begun, idle_actions

KEY = "task.stepping"
OTHERS = ", or auto, native or gymnasium"
STEPS = 100  # of the trial
TRIED = ((11, 22), (22, 33, 11), (11, 22))  # seeds of the trial's vectors, in the order of their episodes


class Vectors:
    """The vector environments of an id."""

    def __init__(self, options: Any) -> None:
        refuse(options)
        self._options = options
        with contextlib.closing(self.make(1)) as first:
            self.spaces = environments.spaces_of(first.single_observation_space, first.single_action_space)
            spec = getattr(first.unwrapped, "spec", None)
            if options.behaviour and first.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
                text = f"asks for the last observation, which {options.env_id} replaces by the next episode's first"
                raise ConfigError([("task.behaviour", f"{text}: expected one that resets a step later, or never")])
        # The limit that Gymnasium's TimeLimit would keep; a vector has to do it by itself, but some do not.
        self.time_limit = options.max_episode_steps or (None if spec is None else spec.max_episode_steps)
        self._refuse_shared_seeds()

    def make(self, count: int) -> Vector:
        """Return one of so many environments; ConfigError where it cannot be made."""
        o = self._options
        return environments.vector(o.env_id, o.env_kwargs, count, o.max_episode_steps)

    def single(self) -> Any:
        """Return one of them as an environment by itself, for an episode with random actions."""
        return Single(self.make(1), self.time_limit)

    def _refuse_shared_seeds(self) -> None:
        """Play the same seeds at other places, and beside others; ConfigError where that gives other episodes."""
        played: dict[int, list[bytes]] = {}  # by seed
        env_id = self._options.env_id
        with contextlib.ExitStack() as stack:
            made = {count: stack.enter_context(contextlib.closing(self.make(count))) for count in {*map(len, TRIED)}}
            for seeds in TRIED:
                try:
                    found = _episodes(made[len(seeds)], seeds)
                except Exception as error:  # of code that is not ours
                    text = f"is vector, but reset(seed={list(seeds)}) and steps of {env_id} fail: "
                    text += f"{type(error).__name__}: {error}; expected one that takes a seed for each environment"
                    raise ConfigError([(KEY, text + OTHERS)]) from error
                for seed, episode in found.items():
                    if played.setdefault(seed, episode) != episode:
                        text = f"is vector, but with {env_id} the episode of a seed differs by its place in the vector"
                        text += ", or from one time to the next: results would depend on the number of ranks; expected"
                        raise ConfigError([(KEY, text + OTHERS.removeprefix(", or"))])


def refuse(options: Any) -> None:
    """Raise ConfigError where other options need environments one by one."""
    text = "needs environments one by one, but task.stepping is vector: expected {}"
    wrong = {
        "wrappers": (options.wrappers, "none"),
        "episodes_per_job": (options.episodes_per_job > 1, "1"),
        "episode_timeout_seconds": (options.episode_timeout_seconds, "null"),
        "fresh_environment": (options.fresh_environment, "false"),
    }
    if found := [(f"task.{key}", text.format(wanted)) for key, (is_wrong, wanted) in wrong.items() if is_wrong]:
        raise ConfigError(found)


def _episodes(environment: Vector, seeds: Sequence[int]) -> dict[int, list[bytes]]:
    """Return what each seed's episode gives under random actions of its own, step by step."""
    rngs = [np.random.default_rng(seed) for seed in seeds]
    observations = begun(environment, seeds)
    told = {seed: [observations[place].tobytes()] for place, seed in enumerate(seeds)}
    live = np.ones(len(seeds), bool)
    for _ in range(STEPS):
        observations, rewards, terminated, truncated, _ = environment.step(_actions(environment, rngs))
        for place, seed in enumerate(seeds):
            if live[place]:
                numbers = (observations, rewards, terminated, truncated)
                told[seed].append(b" ".join(np.asarray(values[place]).tobytes() for values in numbers))
        live &= ~(np.asarray(terminated) | np.asarray(truncated))
        if not live.any():
            break
    return told


def _actions(environment: Vector, rngs: Sequence[np.random.Generator]) -> Array:
    space: Any = environment.single_action_space
    actions = idle_actions(environment)
    for place, rng in enumerate(rngs):
        if hasattr(space, "n"):
            actions[place] = int(space.start) + rng.integers(int(space.n))
        elif hasattr(space, "nvec"):
            actions[place] = rng.integers(space.nvec)
        else:
            low, high = np.maximum(space.low, -1.0), np.minimum(space.high, 1.0)
            actions[place] = rng.uniform(low, np.maximum(low, high))
    return actions
