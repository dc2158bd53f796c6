"""`task.wrappers` as functions of observations and actions.

They let a trained policy act in an unwrapped environment. A wrapper can be applied if it is a
`gymnasium.ObservationWrapper` or `ActionWrapper` whose result depends on its input only. Wrappers
that observe or change rewards only need not be applied. All others, such as frame stacks, need the
environment's steps and are refused.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from hpc_es.core.data import Keywords
from hpc_es.core.errors import ConfigError, error_text, one_line
from hpc_es.tasks.episodes import environments
from hpc_es.tasks.episodes.environments import Action, Environment, Info, Observation
from hpc_es.tasks.episodes.returned_values import reset_values, step_values

Effect = Literal["observations", "actions", "none"]

# of the episodes in which the methods of wrappers are compared with the wrappers' effect
STEPS = 20
PASSIVE = (  # wrappers of Gymnasium that define `step` but change neither observations nor actions
    gymnasium.wrappers.Autoreset,
    gymnasium.wrappers.HumanRendering,
    gymnasium.wrappers.NormalizeReward,
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.RecordEpisodeStatistics,
    gymnasium.wrappers.RecordVideo,
    gymnasium.wrappers.RenderCollection,
    gymnasium.wrappers.TimeLimit,
)


class WrappedEnvironment(Protocol):
    """The options of an environment and its wrappers."""

    env_id: str
    env_kwargs: Keywords
    max_episode_steps: int | None
    wrappers: tuple[environments.Wrapper, ...]


@dataclass(frozen=True)
class WrapperLayer:
    """A wrapper and its effect."""

    index: int  # in `task.wrappers`, from the inside out
    name: str
    wrapper: gymnasium.Wrapper
    effect: Effect

    def refusal(self, reason: str) -> ConfigError:
        """Return the error with the reason why this wrapper cannot be applied."""
        return ConfigError([(f"task.wrappers[{self.index}]", f"{self.name} {reason}")])


@dataclass(frozen=True)
class AppliedWrappers:
    """The wrappers of a task, from the inside out, and the spaces of the environment below them."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    layers: tuple[WrapperLayer, ...]

    def observation(self, observation: Observation) -> Observation:
        """Return the policy's observation from one of the unwrapped environment."""
        for layer in self.layers:
            if layer.effect == "observations":
                observation = layer.wrapper.observation(observation)
        return observation

    def action(self, action: Action) -> Action:
        """Return the action for the unwrapped environment from one of the policy."""
        for layer in reversed(self.layers):
            if layer.effect == "actions":
                action = layer.wrapper.action(action)
        return action

    def rows(self, observations: Observation) -> tuple[Sequence[Observation], bool]:
        """Return observations as a sequence, and whether there was only one, without a batch axis.

        Observations are [*shape] or [n, *shape]; ValueError for other shapes. Those that are not
        arrays, such as dicts, are always single.
        """
        shape = self.observation_space.shape
        if shape is None:
            return [observations], True
        is_array = isinstance(observations, np.ndarray)
        array = observations if is_array else np.asarray(observations, self.observation_space.dtype)
        if array.shape == shape:
            return [array[()]], True
        if array.ndim and array.shape[1:] == shape:
            return list(array), False
        batch = f"(n, {', '.join(map(str, shape))})" if shape else "(n,)"
        raise ValueError(
            f"expected an observation of shape {shape}, or {batch}, found {array.shape}"
        )


def applied_wrappers(options: WrappedEnvironment) -> AppliedWrappers:
    """Return the wrappers of a task; ConfigError for the first wrapper that cannot be applied.

    If a wrapper changes observations or actions, two short episodes are played to check that its
    method alone does too.
    """
    layers, recorders = _make_recorded(options)
    environment = recorders[0].env
    recorders[-1].close()
    if any(layer.effect != "none" for layer in layers):
        _compare(layers, options)
    return AppliedWrappers(environment.observation_space, environment.action_space, tuple(layers))


def _make_recorded(options: WrappedEnvironment) -> tuple[list[WrapperLayer], list[_Recorder]]:
    """Return the wrappers around a new environment, with recorders.

    These are below each of them and above the outermost.
    """
    environment = environments.make(options.env_id, options.env_kwargs, options.max_episode_steps)
    layers, recorders = [], [_Recorder(environment)]
    for index, item in enumerate(options.wrappers):
        wrapper = environments.wrap(recorders[-1], item, index)
        layers.append(_layer(index, item if isinstance(item, str) else next(iter(item)), wrapper))
        recorders.append(_Recorder(wrapper))
    return layers, recorders


def _layer(index: int, name: str, wrapper: gymnasium.Wrapper) -> WrapperLayer:
    """Return a wrapper with its effect, determined by its class.

    Raises:
        ConfigError: that is not possible.
    """
    cls = type(wrapper)
    bases: Sequence[tuple[type[gymnasium.Wrapper], Effect]] = (
        (gymnasium.ObservationWrapper, "observations"),
        (gymnasium.ActionWrapper, "actions"),
        (gymnasium.RewardWrapper, "none"),
        (gymnasium.Wrapper, "none"),
    )
    for base, effect in bases:
        if isinstance(wrapper, base) and cls.step is base.step and cls.reset is base.reset:
            return WrapperLayer(index, name, wrapper, effect)
    layer = WrapperLayer(index, name, wrapper, "none")
    if cls in PASSIVE:
        return layer
    raise layer.refusal("defines `step` or `reset`, which only the environment can call")


class _Recorder(gymnasium.Wrapper):  # type: ignore[misc]
    """Records the observations and actions that pass through it."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.observations: list[Observation] = []
        self.actions: list[Action] = []

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[Observation, Info]:
        observation, info = reset_values(self.env.reset(seed=seed, options=options))
        self.observations.append(copy.deepcopy(observation))
        return observation, info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        self.actions.append(copy.deepcopy(action))
        observation, *rest = step_values(self.env.step(action))
        self.observations.append(copy.deepcopy(observation))
        return observation, *rest


def _compare(layers: Sequence[WrapperLayer], options: WrappedEnvironment) -> None:
    """Compare the methods of `layers` with the effect of the same wrappers in an episode.

    The methods are called in reverse order of time, so that a dependence on earlier calls is
    detected.

    Raises:
        ConfigError: they differ.
    """
    _, recorders = _make_recorded(options)
    try:
        _play(recorders[-1])
    except Exception as error:
        raise ConfigError(
            [
                (
                    "task.wrappers",
                    f"{options.env_id} fails under random actions, with which wrappers are compared "
                    f"with their methods: {one_line(error_text(error))}",
                )
            ]
        ) from error
    finally:
        recorders[-1].close()
    for layer, below, above in zip(layers, recorders, recorders[1:], strict=False):
        if layer.effect == "observations":
            method, before, after = (
                layer.wrapper.observation,
                below.observations,
                above.observations,
            )
        elif layer.effect == "actions":
            method, before, after = layer.wrapper.action, above.actions, below.actions
        else:
            continue
        for value, expected in zip(reversed(before), reversed(after), strict=True):
            try:
                is_same = data_equivalence(method(copy.deepcopy(value)), expected, exact=True)
            except Exception as error:
                raise layer.refusal(
                    f"needs a running environment: {type(error).__name__}: {error}"
                ) from error
            if not is_same:
                raise layer.refusal(
                    "has memory, is random or uses the environment: its results differ between calls"
                )


def _play(environment: Environment) -> None:
    """Take STEPS steps with random actions from fixed seeds."""
    environment.reset(seed=0)
    environment.action_space.seed(0)
    for step in range(STEPS):
        action = environment.action_space.sample()
        action = (
            int(action)
            if isinstance(environment.action_space, gymnasium.spaces.Discrete)
            else action
        )
        _, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            environment.reset(seed=step + 1)
