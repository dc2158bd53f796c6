"""Why an environment is stepped by Gymnasium, though its kind can be stepped without."""

from __future__ import annotations

import importlib.metadata

import gymnasium

from hpc_es.tasks.episodes.environments import Environment

GYMNASIUM = ("1.4.0",)  # versions that the tests compared bit by bit; others go through Gymnasium


class NotNativeError(Exception):
    """Why an environment is stepped by Gymnasium."""


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


def refuse_versions(package: str, seen: tuple[str, ...]) -> None:
    """Raise NotNativeError where the version that is installed is none of these."""
    found = importlib.metadata.version(package)
    if found not in seen:
        raise NotNativeError(f"it was compared with {package} {' and '.join(seen)} only, and this is {found}")
