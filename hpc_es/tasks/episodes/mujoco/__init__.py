"""MuJoCo environments of Gymnasium (-v5), stepped without Gymnasium: a `NativeKind`.

Results are bit-identical. This module decides whether an environment is supported; `models.py` has
the environments, `backend.py` the stepping. MuJoCo is imported only for a supported environment.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from numbers import Real
from typing import TYPE_CHECKING

from hpc_es.core.data import Keywords
from hpc_es.tasks.episodes.environment_backend import (
    ComparisonRun,
    EnvironmentBackend,
    NotNativeError,
)
from hpc_es.tasks.episodes.environments import Environment

if TYPE_CHECKING:
    from hpc_es.tasks.episodes.mujoco.backend import Simulator


TRIAL = ComparisonRun(rows=5, steps=80, limit=35)
COMPARED = {
    "gymnasium": "1.4.0",
    "mujoco": "4.0.0",
}  # that the tests compare with (test_mujoco.py)
SLOWDOWN = "about 1.2 times"
MUJOCO_ENVIRONMENT = "gymnasium.envs.mujoco.mujoco_env"
# keywords
RENDERING = (
    "render_mode",
    "width",
    "height",
    "camera_id",
    "camera_name",
    "max_geom",
    "visual_options",
)


def is_known(environment: Environment) -> bool:
    """Whether it is one of Gymnasium's MuJoCo environments, or derived from their base class."""
    return any(
        base.__module__ == MUJOCO_ENVIRONMENT for base in type(environment.unwrapped).__mro__
    )


def backend_factory(environment: Environment) -> Callable[[int | None], EnvironmentBackend]:
    """Return a function from a time limit in steps to a backend; NotNativeError with the reason."""
    environment_simulator = simulator(environment)
    from hpc_es.tasks.episodes.mujoco.backend import MujocoBackend

    return lambda limit: MujocoBackend(environment_simulator, limit)


def simulator(environment: Environment) -> Simulator:
    """Return the simulator of an environment.

    Raises:
        NotNativeError: it is not supported, with the reason.
    """
    from hpc_es.tasks.episodes.mujoco.models import MODELS

    name, options = _model_name(environment, MODELS), _options(environment)
    from hpc_es.tasks.episodes.mujoco.backend import Simulator

    return Simulator(MODELS[name], environment.unwrapped, options)


def _model_name(environment: Environment, models: Collection[str]) -> str:
    """Return HalfCheetah for HalfCheetah-v5; NotNativeError if it is not one of the models."""
    env_id = (
        environment.spec.id
        if environment.spec is not None
        else type(environment.unwrapped).__name__
    )
    name = env_id.removesuffix("-v5")
    if name not in models or name == env_id:
        newest = re.sub(r"-v\d$", "", env_id)
        remedies = (
            (f"use {newest}-v5, or accept it by task.stepping: gymnasium",)
            if newest in models
            else ()
        )
        raise NotNativeError(
            f"{env_id} is not one of {', '.join(f'{known}-v5' for known in models)}", *remedies
        )
    module = (
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
        .lower()
        .replace("humanoid_standup", "humanoidstandup")
    )
    cls, expected = type(environment.unwrapped), f"gymnasium.envs.mujoco.{module}_v5"
    if (cls.__module__, cls.__name__) != (expected, f"{name}Env"):
        raise NotNativeError(
            f"{env_id} is registered as {cls.__module__}:{cls.__name__}, which is not Gymnasium's"
        )
    return name


def _options(environment: Environment) -> Keywords:
    """Return all keywords of the environment, with defaults.

    Raises:
        NotNativeError: one has an unsupported type.
    """
    assert environment.spec is not None
    parameters = list(inspect.signature(type(environment.unwrapped).__init__).parameters.values())
    defaults = {
        item.name: item.default for item in parameters[1:] if item.kind is not item.VAR_KEYWORD
    }
    keywords = dict(environment.spec.kwargs)
    for keyword, value in keywords.items():
        if keyword not in (*RENDERING, "default_camera_config") and not _has_type_of_default(
            value, keyword, defaults
        ):
            raise NotNativeError(f"its keyword {keyword} is {value!r}")
    return {**defaults, **keywords}


def _has_type_of_default(value: object, keyword: str, defaults: Keywords) -> bool:
    """Whether a value has the type of the default.

    The formulas are correct for this type only.
    """
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


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
