"""The same steps through Gymnasium and without it, to be compared bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from hpc_es.core.data import Array
from hpc_es.tasks.episodes import environments, native_backend
from hpc_es.tasks.episodes import mujoco as mujoco_kind
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes
from hpc_es.tasks.episodes.mujoco.backend import MujocoBackend

# of one row: its first observation, or observation, reward and how the episode ended
Line = tuple[Any, ...]


def actions_of(environment: Any, rows: int, steps: int, scale: float) -> Array:
    """Random actions, float32[steps, rows, numbers]; with a scale above 1 beyond the bounds,
    too.
    """
    space = environment.action_space
    drawn = np.random.default_rng(1).uniform(-scale, scale, (steps, rows, *space.shape))
    return (drawn * space.high).astype(np.float32)


def by_gymnasium(
    env_id: str, options: dict[str, Any], rows: int, steps: int, scale: float
) -> list[list[Line]]:
    """The observations of each row, a line per step and per reset,
    in its own environment of Gymnasium.
    """
    result: list[list[Line]] = []
    for row in range(rows):
        environment = gymnasium.make(env_id, disable_env_checker=True, **options)
        actions = actions_of(environment, rows, steps, scale)[:, row]
        lines, seed = list[Line](), row
        lines.append((environment.reset(seed=seed)[0].tobytes(),))
        for action in actions:
            observation, reward, terminated, truncated, _ = environment.step(action)
            over, cut = terminated or truncated, truncated and not terminated
            lines.append(
                (observation.tobytes(), np.float64(reward).tobytes(), bool(over), bool(cut))
            )
            if over:
                seed += 100
                lines.append((environment.reset(seed=seed)[0].tobytes(),))
        environment.close()
        result.append(lines)
    return result


def natively(
    env_id: str, options: dict[str, Any], rows: int, steps: int, scale: float
) -> list[list[Line]]:
    """The same in lockstep; every second step is made in two groups of rows,
    as if the others were over.
    """
    environment = environments.make(env_id, options)
    stepping = MujocoBackend(
        mujoco_kind.simulator(environment), native_backend.time_limit(environment)
    )
    actions = actions_of(environment, rows, steps, scale)
    shape: Any = environment.observation_space.shape
    observations, rewards, seeds = np.zeros((rows, *shape)), np.zeros(rows), list(range(rows))
    result: list[list[Line]] = []
    with stepping.chunk(range(rows)):
        result += [[(stepping.reset(row, row).tobytes(),)] for row in range(rows)]
        for step, taken in enumerate(actions):
            for running in turns(rows, step):
                stepped = stepping.advance(running, np.asfortranarray(taken), observations, rewards)  # type: ignore[arg-type]
                assert not stepped.failed
                for row in running.rows:
                    over, cut = row in stepped.ended, row in stepped.cut
                    result[row].append(
                        (observations[row].tobytes(), rewards[row].tobytes(), over, cut)
                    )
                    if over:
                        seeds[row] += 100
                        result[row].append((stepping.reset(row, seeds[row]).tobytes(),))
    environment.close()
    return result


def turns(rows: int, step: int) -> Iterator[RunningEpisodes]:
    """All rows at once, or two groups one after the other."""
    every = list(range(rows))
    groups = [every] if step % 2 else [every[::2], every[1::2]]
    return (RunningEpisodes(group, group) for group in groups if group)


def difference(one: list[list[Line]], other: list[list[Line]]) -> str | None:
    """A description of the first difference, or None."""
    for row, (lines, others) in enumerate(zip(one, other, strict=True)):
        for number, (line, its) in enumerate(zip(lines, others, strict=False)):
            if line != its:
                return f"row {row}, line {number}: {output(line)} is not {output(its)}"
        if len(lines) != len(others):
            return f"row {row}: {len(lines)} lines, not {len(others)}"
    return None


def is_reset(line: Line) -> bool:
    """Whether it is the first observation of an episode."""
    return len(line) == 1


def output(line: Line) -> list[Any]:
    """The text of a line with its numbers."""
    return [np.frombuffer(part).tolist() if isinstance(part, bytes) else part for part in line]
