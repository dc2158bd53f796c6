"""Whether an environment can be stepped without Gymnasium, and why not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from hpc_es.tasks.episodes.environment_backend import ComparisonRun, NotNativeError, Stepping
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.mujoco.models import MODELS

if TYPE_CHECKING:
    from hpc_es.tasks.episodes.mujoco.stepping import Simulator


TRIAL = ComparisonRun(rows=5, steps=80, limit=35)


# The versions that tests/tasks/episodes/mujoco/test_stepping.py compares with:
COMPARED = {"gymnasium": "1.4.0", "mujoco": "4.0.0"}


SLOWDOWN = "about 1.2 times"


MUJOCO_ENVIRONMENT = "gymnasium.envs.mujoco.mujoco_env"


UNSEEN = ("render_mode", "width", "height", "camera_id", "camera_name", "max_geom", "visual_options")  # of a picture


def is_known(environment: Environment) -> bool:
    """Return whether it is one of Gymnasium's MuJoCo environments, or made from their base class."""
    return any(base.__module__ == MUJOCO_ENVIRONMENT for base in type(environment.unwrapped).__mro__)


def stepping(environment: Environment) -> Callable[[int | None], Stepping]:
    """Return what makes steppings of it with a time limit in steps; NotNativeError with the reason."""
    made = simulator(environment)
    from hpc_es.tasks.episodes.mujoco.stepping import MujocoStepping

    return lambda limit: MujocoStepping(made, limit)


def simulator(environment: Environment) -> Simulator:
    """Return what simulates this environment without Gymnasium; NotNativeError with the reason."""
    name, options = _name(environment), _options(environment)
    from hpc_es.tasks.episodes.mujoco.stepping import Simulator

    return Simulator(MODELS[name], environment.unwrapped, options)


def _name(environment: Environment) -> str:
    """Return HalfCheetah for HalfCheetah-v5."""
    env_id = environment.spec.id if environment.spec is not None else type(environment.unwrapped).__name__
    name = env_id.removesuffix("-v5")
    if name not in MODELS or name == env_id:
        newest = re.sub(r"-v\d$", "", env_id)
        remedies = (f"use {newest}-v5, or accept it by task.stepping: gymnasium",) if newest in MODELS else ()
        raise NotNativeError(f"{env_id} is none of {', '.join(f'{known}-v5' for known in MODELS)}", *remedies)
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("humanoid_standup", "humanoidstandup")
    found, expected = type(environment.unwrapped), f"gymnasium.envs.mujoco.{module}_v5"
    if (found.__module__, found.__name__) != (expected, f"{name}Env"):
        raise NotNativeError(f"{env_id} is registered as {found.__module__}:{found.__name__}, which is not Gymnasium's")
    return name


def _options(environment: Environment) -> Mapping[str, Any]:
    """Return all keywords of the environment with their defaults."""
    assert environment.spec is not None
    parameters = list(inspect.signature(type(environment.unwrapped).__init__).parameters.values())
    defaults = {each.name: each.default for each in parameters[1:] if each.kind is not each.VAR_KEYWORD}
    given = dict(environment.spec.kwargs)
    for keyword, value in given.items():
        if keyword not in (*UNSEEN, "default_camera_config") and not _is_like(value, keyword, defaults):
            raise NotNativeError(f"its keyword {keyword} is {value!r}")
    return {**defaults, **given}


def _is_like(value: Any, keyword: str, defaults: Mapping[str, Any]) -> bool:
    """Return whether a value is of the kind of the default, for which alone the formulas are right."""
    if keyword == "main_body":
        return type(value) in (int, str)
    default = defaults.get(keyword)
    if keyword == "frame_skip":
        return type(value) is int
    if isinstance(default, (bool, str)):
        return type(value) is type(default)
    if isinstance(default, tuple):
        return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_number, value))
    return _is_number(default) and _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
