"""Stepping without Gymnasium, used where it gives the same bits: both are played and compared, whatever the versions.

Rank 0 compares, once for each environment and its keywords; the result is in `native_differences`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.tasks.episodes import classic_control as classic
from hpc_es.tasks.episodes.environment_backend import ComparisonRun, NotNativeError, Running, Stepping
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.mujoco import compatibility as mujoco
from hpc_es.tasks.native_differences import differences

NAMES = "the environments of MuJoCo and classic control"


def is_known(environment: Environment) -> bool:
    """Return whether its kind can be stepped without Gymnasium."""
    return classic.is_known(environment) or mujoco.is_known(environment)


def slowdown(environment: Environment) -> str:
    """Return how much slower Gymnasium's stepping of this kind is (docs/speed.md)."""
    slowdown: str = _kind(environment).SLOWDOWN
    return slowdown


def stepping(environment: Environment) -> Callable[[], Stepping]:
    """Return what makes steppings of an environment of a known kind; NotNativeError where it needs Gymnasium."""
    kind, limit = _kind(environment), time_limit(environment)
    if environment.unwrapped.render_mode is not None:
        raise NotNativeError("it is rendered")
    name = key(environment)
    installed = {package: importlib.metadata.version(package) for package in kind.COMPARED}
    try:
        make = kind.stepping(environment)
        if name not in differences:
            text = difference(environment, make, kind.TRIAL)
            differences[name] = f"native stepping gives other numbers than {_listed(installed)}: {text}" if text else ""
    except NotNativeError:
        raise
    except Exception as error:  # such as a model without a body that is asked for: Gymnasium fails in its own way
        differences[name] = f"it fails with this model or these keywords: {type(error).__name__}: {error}"
    if not differences[name]:
        return lambda: make(limit)
    if installed == kind.COMPARED:
        raise NotNativeError(differences[name])
    raise NotNativeError(differences[name], f"install {_listed(kind.COMPARED)}, which native stepping was written for")


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{package} {version}" for package, version in versions.items())


def _kind(environment: Environment) -> Any:
    return classic if classic.is_known(environment) else mujoco


def time_limit(environment: Environment) -> int | None:
    """Return the limit of TimeLimit in steps, None without one; NotNativeError where another wrapper does something."""
    limit = None
    while isinstance(environment, gymnasium.Wrapper):
        if type(environment) is gymnasium.wrappers.TimeLimit and limit is None:
            limit = environment._max_episode_steps
        elif type(environment) is not gymnasium.wrappers.OrderEnforcing:
            raise NotNativeError(f"its wrapper {type(environment).__name__} needs Gymnasium")
        environment = environment.env
    return limit


def key(environment: Environment) -> str:
    """Return the environment and its keywords as text, the same on every rank."""
    assert environment.spec is not None
    keywords = environment.spec.kwargs
    model = Path(str(keywords.get("xml_file", "")))
    content = hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else ""
    return json.dumps([environment.spec.id, keywords, content], sort_keys=True, default=repr)


# The comparison.


class Line(NamedTuple):
    """What a step gave; step 0 is the reset, whose reward is 0."""

    episode: int
    step: int
    observation: Float32
    reward: float
    is_over: bool = False
    is_cut: bool = False


def difference(environment: Environment, make: Callable[[int | None], Stepping], trial: ComparisonRun) -> str:
    """Return the first number that differs between native stepping and Gymnasium's, "" where all bits agree.

    Infos are not compared: native stepping has none, and what needs them is stepped by Gymnasium.
    """
    native, actions = _native(environment, make(trial.limit), trial)
    reference = gymnasium.wrappers.TimeLimit(environment.unwrapped, trial.limit)
    for row, lines in enumerate(native):
        for line, expected in zip(lines, _by_gymnasium(reference, actions[:, row], row), strict=False):
            if text := _unlike(line, expected):
                return f"{text} at step {line.step} of episode {line.episode} in row {row}"
    return ""


def _native(environment: Environment, stepping: Stepping, trial: ComparisonRun) -> tuple[list[list[Line]], Array]:
    """Return the lines of each row, and the actions [steps, rows, ...].

    Every other step takes the rows in two groups, as if the others were over.
    """
    shape, rows, rng = environment.observation_space.shape, list(range(trial.rows)), np.random.default_rng(0)
    assert shape is not None
    observations, rewards, actions = np.zeros((trial.rows, *shape), np.float32), np.zeros(trial.rows), []
    with stepping.chunk(rows):
        lines = [[_first(stepping.reset(row, row), 0)] for row in rows]
        for number in range(trial.steps):
            actions.append(_actions(environment.action_space, observations, rng))
            for group in [rows] if number % 2 else [rows[::2], rows[1::2]]:
                stepped = stepping.advance(Running(group, group), actions[-1], observations, rewards)
                for _, error in stepped.failed:
                    raise error
                for row in group:
                    before, is_over = lines[row][-1], row in stepped.ended
                    numbers = before.episode, before.step + 1, observations[row].copy(), float(rewards[row])
                    lines[row].append(Line(*numbers, is_over, row in stepped.cut))
                    if is_over:
                        episode = before.episode + 1
                        lines[row].append(_first(stepping.reset(row, row + 100 * episode), episode))
    stepping.close()
    return lines, np.array(actions)


def _actions(space: Any, observations: Float32, rng: np.random.Generator) -> Array:
    """Return actions [rows, ...]: many of them random, the others at the bounds, by the sign of the last observation.

    In classic control that is a velocity: pushing along it carries a car up its hill, and a joint to its height.
    """
    rows, is_up = len(observations), observations[:, -1] > 0
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.where(rng.random(rows) < 0.3, rng.integers(int(space.n), size=rows), is_up * (int(space.n) - 1))
    pushes = np.where(is_up[:, None], space.high, space.low)
    drawn, is_drawn = rng.uniform(space.low, space.high, pushes.shape), rng.random(pushes.shape) < 0.5
    actions: Array = np.where(is_drawn, drawn, pushes).astype(np.float32)
    return actions


def _by_gymnasium(environment: Environment, actions: Array, row: int) -> Iterator[Line]:
    """Yield the lines of a row."""
    episode = step = 0
    yield _first(environment.reset(seed=row)[0], 0)
    for action in actions.tolist() if actions.ndim == 1 else list(actions):
        observation, reward, terminated, truncated, _ = environment.step(action)
        step += 1
        is_over = bool(terminated or truncated)
        observed = np.array(observation, np.float32)
        yield Line(episode, step, observed, float(reward), is_over, is_over and not terminated)
        if is_over:
            episode, step = episode + 1, 0
            yield _first(environment.reset(seed=row + 100 * episode)[0], episode)


def _first(observation: Array, episode: int) -> Line:
    return Line(episode, 0, np.array(observation, np.float32), 0.0)


def _unlike(line: Line, expected: Line) -> str:
    """Return what differs, "" for nothing; NaN is like NaN."""
    ours, theirs = line.observation, expected.observation
    if ours.tobytes() != theirs.tobytes():
        index = int(np.flatnonzero(ours.view(np.uint32) != theirs.view(np.uint32))[0])
        return f"observation[{index}] is {ours[index]!r} instead of {theirs[index]!r}"
    if np.float64(line.reward).tobytes() != np.float64(expected.reward).tobytes():
        return f"the reward is {line.reward!r} instead of {expected.reward!r}"
    if (line.is_over, line.is_cut) != (expected.is_over, expected.is_cut):
        return f"terminated is {line.is_over and not line.is_cut} and truncated {line.is_cut}, unlike Gymnasium's"
    return ""
