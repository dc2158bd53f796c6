"""Behaviours of episodes: values and sizes, and errors of invalid behaviours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.config.resolved import sources
from hpc_es.config.source_code import source_hash
from hpc_es.core.data import ROW
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes.behaviour import BehaviourOptions
from tests.helpers.toys import Still, episodes, played

MAZE = "hpc_es.tasks.deceptive_maze:DeceptiveMaze-v0"


def last_step(observation: Any, info: Any, return_: float, length: int) -> list[float]:
    """The last step of Survival and the length of the episode."""
    return [float(observation[0]), return_, length]


def as_long(observation: Any, info: Any, return_: float, length: int) -> Any:
    """One number per step of the episode."""
    return np.zeros(length)


def behaviours(
    name: str, seeds: Any, actor: Any = None, episodes_per_job: int = 1, **options: Any
) -> Any:
    task = episodes(name, behaviour=BehaviourOptions(**options), episodes_per_job=episodes_per_job)
    outcome = played(task, seeds, actor)
    assert outcome.rows.dtype["behaviour"].base == np.float32
    return outcome.rows["behaviour"]


def test_behaviour_is_the_final_observation_or_some_elements() -> None:
    """Survival observes (step, lifetime, 1); the lifetimes are 5 and 3."""
    assert behaviours("Survival", [4, 2], final_observation=True).tolist() == [[5, 5, 1], [3, 3, 1]]
    assert behaviours("Survival", [4, 2], final_observation=(2, 0)).tolist() == [[1, 5], [1, 3]]


def test_behaviour_of_several_episodes_is_the_mean() -> None:
    result = behaviours("Survival", [[4, 2], [0, 9]], episodes_per_job=2, final_observation=(0,))
    assert result.tolist() == [[4.0], [5.5]]


def test_behaviours_of_finished_rows_are_kept() -> None:
    seeds = [49, 3, 0, 20, 99, 7, 31, 12]
    result = behaviours("Survival", seeds, final_observation=(0,))
    assert result.ravel().tolist() == [50, 4, 1, 21, 50, 8, 32, 13]


def test_behaviour_can_be_entries_of_the_last_info() -> None:
    """Right and up at full speed: past the trap, into the corner."""
    result = behaviours(MAZE, [1], Still(1, 1.0, 2), info=("y", "x"))
    assert result[0] == pytest.approx([1.0, 1.0])
    assert behaviours(MAZE, [1], Still(1, 0.0, 2), info="y").tolist() == [[np.float32(-0.7)]]


def test_behaviour_of_vector_environments_uses_infos() -> None:
    """After 5 and 3 steps: the last step, and the last
    observation with the return by a function.
    """
    for options, expected in (
        ({"info": "step"}, [[5], [3]]),
        ({"function": f"{__name__}:last_step"}, [[5, 5, 5], [3, 3, 3]]),
    ):
        task = episodes(
            "tests.helpers.vector_toys:InformativeLater-v0",
            stepping="vector",
            behaviour=BehaviourOptions(**options),
        )
        assert played(task, [4, 2]).rows["behaviour"].tolist() == expected


def test_behaviour_can_be_a_user_function() -> None:
    name = f"{__name__}:last_step"
    result = behaviours("Survival", [4, 2], function=name)
    assert result.tolist() == [[5, 5, 5], [3, 3, 3]]
    task = {"env_id": "CartPole-v1", "behaviour": {"function": name}}
    hashes = {name: source_hash(name)}
    assert sources({"task": {"kind": "episodes", **task}}) == hashes and all(hashes.values())


def test_behaviour_of_another_size_fails_its_job_alone() -> None:
    options: Any = {"function": "tests.tasks.episodes.test_behaviour:as_long"}
    task = episodes("Survival", behaviour=BehaviourOptions(**options))
    assert task.behaviour is not None
    size = task.behaviour.size
    outcome = played(task, [size - 1, size])
    assert np.isnan(outcome.rows["return_"]).tolist() == [False, True]
    assert (
        f"the behaviour has {size % 50 + 1} numbers, not {size} as in other episodes"
        in outcome.failures[0].text
    )


def test_rows_without_a_behaviour_have_no_behaviour_column() -> None:
    assert played(episodes("Survival"), [4]).rows.dtype == ROW


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"info": "position"}, r"task.behaviour.info: .* has no 'position' \(it has: x, y\)"),
        ({"info": ["x", "Y"]}, r"has no 'Y' .*; did you mean 'y'\?"),
        (
            {"final_observation": [0, 2]},
            "final_observation: has 2, but an observation has 2 numbers: expected 0 to 1",
        ),
        (
            {"function": "tests.helpers.toys:nowhere"},
            "task.behaviour.function: there is no 'nowhere' in tests.helpers.toys",
        ),
        (
            {"function": "tests.helpers.toys:nothing"},
            "task.behaviour.function: expected numbers .* TypeError: nothing",
        ),
        ({}, "expected one of final_observation, info and function, found none"),
        ({"info": "x", "final_observation": True}, "found final_observation and info"),
        ({"inof": "x"}, "unknown key 'task.behaviour.inof'; did you mean 'info'"),
    ],
)
def test_invalid_behaviours_are_refused_before_the_run(
    options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=text):
        config = validate({"task": {"env_id": MAZE, "behaviour": options}})
        episodes(MAZE, behaviour=config.task.behaviour)
