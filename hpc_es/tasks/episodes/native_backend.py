"""Native stepping: which environments are stepped without Gymnasium.

This is decided by comparing both bit for bit. Rank 0 plays episodes with both, once for each
environment and its keywords, and stores the result in `stepping.stepping_differences`. Native
stepping is used only if all observations, rewards and ends of episodes are identical.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.tasks.episodes import classic_control, mujoco
from hpc_es.tasks.episodes.environment_backend import (
    ComparisonRun,
    EnvironmentBackend,
    NativeKind,
    NotNativeError,
    RunningEpisodes,
)
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.stepping import stepping_differences

NAMES = "the environments of MuJoCo and classic control"


def is_known(environment: Environment) -> bool:
    """Return whether native stepping supports this kind of environment."""
    return classic_control.is_known(environment) or mujoco.is_known(environment)


def kind_of(environment: Environment) -> NativeKind:
    """Return the kind of an environment for which `is_known` is true."""
    return classic_control if classic_control.is_known(environment) else mujoco


def backend_factory(environment: Environment) -> Callable[[], EnvironmentBackend]:
    """Return a function that creates native backends.

    Raises:
        NotNativeError: the environment needs Gymnasium.
    """
    kind, limit = kind_of(environment), time_limit(environment)
    if environment.unwrapped.render_mode is not None:
        raise NotNativeError("it is rendered")
    name = key(environment)
    try:
        make = kind.backend_factory(environment)
        if name not in stepping_differences:
            text = difference(environment, make, kind.TRIAL)
            text = (
                f"native stepping gives other numbers than {_listed(_installed(kind))}: {text}"
                if text
                else ""
            )
            stepping_differences[name] = text
    except NotNativeError:
        raise
    except (
        Exception
    ) as error:  # such as a model that lacks a body: Gymnasium then reports its own error
        stepping_differences[name] = (
            f"it fails with this model or these keywords: {type(error).__name__}: {error}"
        )
    reason = stepping_differences[name]
    if not reason:
        return lambda: make(limit)
    if _installed(kind) == kind.COMPARED:
        raise NotNativeError(reason)
    raise NotNativeError(
        reason, f"install {_listed(kind.COMPARED)}, which native stepping was written for"
    )


def _installed(kind: NativeKind) -> dict[str, str]:
    """Return the versions of the packages that the kind was compared with.

    Reading them takes 6 ms.
    """
    from importlib.metadata import version

    return {package: version(package) for package in kind.COMPARED}


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{package} {version}" for package, version in versions.items())


def time_limit(environment: Environment) -> int | None:
    """Return the limit of TimeLimit in steps, None if there is none.

    Raises:
        NotNativeError: there are other wrappers.
    """
    limit = None
    while isinstance(environment, gymnasium.Wrapper):
        if type(environment) is gymnasium.wrappers.TimeLimit and limit is None:
            limit = environment._max_episode_steps
        elif type(environment) is not gymnasium.wrappers.OrderEnforcing:
            raise NotNativeError(f"its wrapper {type(environment).__name__} needs Gymnasium")
        environment = environment.env
    return limit


def key(environment: Environment) -> str:
    """Return a text that identifies the environment, its keywords and its model file.

    It is the same on every rank.
    """
    assert environment.spec is not None
    keywords = environment.spec.kwargs
    model = Path(str(keywords.get("xml_file", "")))
    content = hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else ""
    return json.dumps([environment.spec.id, keywords, content], sort_keys=True, default=repr)


# The comparison


class ComparedStep(NamedTuple):
    """The result of a step; step 0 is the reset, whose reward is 0."""

    episode: int
    step: int
    observation: Float32
    reward: float
    is_over: bool = False
    is_cut: bool = False  # by the time limit


def difference(
    environment: Environment, make: Callable[[int | None], EnvironmentBackend], trial: ComparisonRun
) -> str:
    """Return the first number that differs between native stepping and Gymnasium's.

    "" if all bits agree. Infos are not compared: native stepping has none, and a config that needs
    them is stepped by Gymnasium.
    """
    native, actions = record_native(environment, make(trial.limit), trial)
    reference = gymnasium.wrappers.TimeLimit(environment.unwrapped, trial.limit)
    for row, steps in enumerate(native):
        for step, expected in zip(
            steps, _record_gymnasium(reference, actions[:, row], row), strict=False
        ):
            if text := _step_difference(step, expected):
                return f"{text} at step {step.step} of episode {step.episode} in row {row}"
    return ""


def record_native(
    environment: Environment, backend: EnvironmentBackend, trial: ComparisonRun
) -> tuple[list[list[ComparedStep]], Array]:
    """Return the steps of each row, and the actions [steps, rows, ...].

    At every other step the rows are advanced in two groups, as if the rows of the other group were
    not running.
    """
    shape, rows, rng = (
        environment.observation_space.shape,
        list(range(trial.rows)),
        np.random.default_rng(0),
    )
    assert shape is not None
    observations, rewards, actions = (
        np.zeros((trial.rows, *shape), np.float32),
        np.zeros(trial.rows),
        [],
    )
    with backend.chunk(rows):
        steps = [[_recorded_reset(backend.reset(row, row), 0)] for row in rows]
        for number in range(trial.steps):
            actions.append(_actions(environment.action_space, observations, rng))
            for group in [rows] if number % 2 else [rows[::2], rows[1::2]]:
                result = backend.advance(
                    RunningEpisodes(group, group), actions[-1], observations, rewards
                )
                for _, error in result.failed:
                    raise error
                for row in group:
                    previous, is_over = steps[row][-1], row in result.ended
                    numbers = (
                        previous.episode,
                        previous.step + 1,
                        observations[row].copy(),
                        float(rewards[row]),
                    )
                    steps[row].append(ComparedStep(*numbers, is_over, row in result.cut))
                    if is_over:
                        episode = previous.episode + 1
                        steps[row].append(
                            _recorded_reset(backend.reset(row, row + 100 * episode), episode)
                        )
    backend.close()
    return steps, np.array(actions)


def _actions(space: gymnasium.Space, observations: Float32, rng: np.random.Generator) -> Array:
    """Return actions [rows, ...]: some are random, the others at a bound.

    The bound follows the sign of the last observation. In classic control that is a velocity;
    actions in its direction reach the goals.
    """
    rows, is_up = len(observations), observations[:, -1] > 0
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.where(
            rng.random(rows) < 0.3,
            rng.integers(int(space.n), size=rows),
            is_up * (int(space.n) - 1),
        )
    pushes = np.where(is_up[:, None], space.high, space.low)
    drawn, is_drawn = (
        rng.uniform(space.low, space.high, pushes.shape),
        rng.random(pushes.shape) < 0.5,
    )
    actions: Array = np.where(is_drawn, drawn, pushes).astype(np.float32)
    return actions


def _record_gymnasium(environment: Environment, actions: Array, row: int) -> Iterator[ComparedStep]:
    """Yield the steps of a row, whose actions are [steps, ...]."""
    episode = step = 0
    yield _recorded_reset(environment.reset(seed=row)[0], 0)
    for action in actions.tolist() if actions.ndim == 1 else list(actions):
        observation, reward, terminated, truncated, _ = environment.step(action)
        step += 1
        is_over = bool(terminated or truncated)
        recorded = np.array(observation, np.float32)
        yield ComparedStep(
            episode, step, recorded, float(reward), is_over, is_over and not terminated
        )
        if is_over:
            episode, step = episode + 1, 0
            yield _recorded_reset(environment.reset(seed=row + 100 * episode)[0], episode)


def _recorded_reset(observation: Array, episode: int) -> ComparedStep:
    return ComparedStep(episode, 0, np.array(observation, np.float32), 0.0)


def _step_difference(step: ComparedStep, expected: ComparedStep) -> str:
    """Return a description of the first difference in any bit (NaN equals NaN), or ""."""
    native, reference = step.observation, expected.observation
    if native.tobytes() != reference.tobytes():
        index = int(np.flatnonzero(native.view(np.uint32) != reference.view(np.uint32))[0])
        return f"observation[{index}] is {native[index]!r} instead of {reference[index]!r}"
    if np.float64(step.reward).tobytes() != np.float64(expected.reward).tobytes():
        return f"the reward is {step.reward!r} instead of {expected.reward!r}"
    if (step.is_over, step.is_cut) != (expected.is_over, expected.is_cut):
        return f"terminated is {step.is_over and not step.is_cut} and truncated {step.is_cut}, unlike Gymnasium's"
    return ""
