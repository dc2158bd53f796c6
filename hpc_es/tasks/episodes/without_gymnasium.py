"""What steps an environment without Gymnasium, to the same bits."""

from __future__ import annotations

from collections.abc import Callable

from hpc_es.tasks.episodes.classic import choice as classic
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.mujoco import choice as mujoco
from hpc_es.tasks.episodes.stepping import Stepping

NAMES = "the environments of MuJoCo and classic control"


def stepping(environment: Environment) -> Callable[[], Stepping] | None:
    """Return what makes steppings of this environment; None where there is none of its kind.

    Raises NotNativeError with the reason where it is of a known kind, and something about it is not known.
    """
    if classic.is_known(environment):
        return classic.stepping(environment)
    return mujoco.stepping(environment) if mujoco.is_known(environment) else None
