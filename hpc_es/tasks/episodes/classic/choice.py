"""Which environments are those of classic control, and what steps them without Gymnasium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpc_es.tasks.episodes.classic import dynamics
from hpc_es.tasks.episodes.classic.stepping import ClassicStepping
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.stepping import Stepping, Trial

PACKAGE = "gymnasium.envs.classic_control"
KINDS: dict[str, Callable[[Any], dynamics.Dynamics]] = {  # by the class of Gymnasium's
    f"{PACKAGE}.cartpole:CartPoleEnv": dynamics.CartPole,
    f"{PACKAGE}.pendulum:PendulumEnv": dynamics.Pendulum,
    f"{PACKAGE}.mountain_car:MountainCarEnv": dynamics.MountainCar,
    f"{PACKAGE}.continuous_mountain_car:Continuous_MountainCarEnv": dynamics.MountainCarContinuous,
    f"{PACKAGE}.acrobot:AcrobotEnv": dynamics.Acrobot,
}
TRIAL = Trial(rows=9, steps=220, limit=160)  # 9 rows: whole vectors of the processor, and what is left over
COMPARED = {"gymnasium": "1.4.0"}  # what the tests compare with
SLOWDOWN = "about 6 times"


def is_known(environment: Environment) -> bool:
    """Return whether it is one of Gymnasium's five."""
    return _name(environment) in KINDS


def _name(environment: Environment) -> str:
    found = type(environment.unwrapped)
    return f"{found.__module__}:{found.__name__}"


def stepping(environment: Environment) -> Callable[[int | None], Stepping]:
    """Return what makes steppings of it with a time limit in steps."""
    made = KINDS[_name(environment)](environment.unwrapped)
    return lambda limit: ClassicStepping(made, limit)
