"""How an episode ended, from the answers of single and of vector environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from hpc_es.core.data import ObservationSpec
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes, StepResult
from hpc_es.tasks.episodes.gymnasium_backend import GymnasiumBackend, VectorBackend

SAYS_CUT = "TimeLimit.truncated"
SPEC = ObservationSpec((1,), np.dtype(np.float64))


class Ending:
    """An environment whose step returns these flags and this info."""

    def __init__(self, terminated: bool, truncated: bool, info: Any) -> None:
        self._end = (terminated, truncated, info)

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        return np.ones(1), 2.0, *self._end

    def close(self) -> None:
        pass


def stepped(backend: Any, jobs: int) -> StepResult:
    with backend.chunk(range(jobs)):
        for job in range(jobs):
            backend.reset(job, job)
        running, actions = (
            RunningEpisodes(list(range(jobs)), list(range(jobs))),
            np.zeros(jobs, np.int64),
        )
        result: StepResult = backend.advance(running, actions, np.zeros((jobs, 1)), np.zeros(jobs))
    return result


@pytest.mark.parametrize(
    ("terminated", "truncated", "info", "ended", "cut"),
    [
        (True, False, {}, [0], []),
        (False, True, {}, [0], [0]),
        (True, False, {SAYS_CUT: True}, [0], [0]),  # as of gym before 0.26
        (True, False, {SAYS_CUT: np.True_}, [0], [0]),
        (True, False, {SAYS_CUT: False}, [0], []),
        (True, False, None, [0], []),
        (False, False, {SAYS_CUT: True}, [], []),
    ],
)
def test_limit_in_the_info_truncates_a_terminated_episode(
    terminated: bool, truncated: bool, info: Any, ended: list[int], cut: list[int]
) -> None:
    environment: Any = Ending(terminated, truncated, info)
    result = stepped(GymnasiumBackend(lambda: environment, SPEC, None), 1)
    assert (result.ended, result.cut) == (ended, cut)


class EndingVector:
    """Two environments that both terminate; the info of the second one has a limit."""

    num_envs, single_action_space = 2, gymnasium.spaces.Discrete(2)

    def __init__(self, infos: dict[str, Any]) -> None:
        self._infos = infos

    def reset(self, seed: list[int]) -> tuple[Any, dict[str, Any]]:
        return np.zeros((2, 1)), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        return (
            np.ones((2, 1)),
            np.ones(2),
            np.array([True, True]),
            np.array([False, False]),
            self._infos,
        )


@pytest.mark.parametrize(
    ("infos", "cut"),
    [({SAYS_CUT: np.array([True, True]), f"_{SAYS_CUT}": np.array([False, True])}, [1]), ({}, [])],
)
def test_limit_in_the_infos_of_a_vector_truncates_its_episode(
    infos: dict[str, Any], cut: list[int]
) -> None:
    vector: Any = EndingVector(infos)
    result = stepped(VectorBackend(lambda count: vector, SPEC, None), 2)
    assert (result.ended, result.cut) == ([0, 1], cut)
