"""Numeric infos of steps: their values per episode, job and segment, and errors of invalid keys.

The step n of `Informative` has step: n, and every second time even: n; an episode with seed s has 1
+ s % 50 steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

from hpc_es.config.schema import Reduction
from hpc_es.core.data import ROW, without_info
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes.infos import as_number
from hpc_es.tasks.episodes.task import Episodes, Options
from tests.helpers.toys import Informative, Step, Still, batch, nothing, played

ALL: Mapping[str, Reduction] = {"step": "final", "even": "sum", "is_over": "final"}
VECTORS = (
    "tests.helpers.vector_toys:InformativeLater-v0",
    "tests.helpers.vector_toys:InformativeAtOnce-v0",
)


def task(
    info: Mapping[str, Reduction], env_id: str = "tests.helpers.toys:Informative-v0", **options: Any
) -> Episodes:
    return Episodes(
        Options(env_id=env_id, stepping="vector" if env_id in VECTORS else "auto", **options), info
    )


def numbers(info: Mapping[str, Reduction], seeds: Any, **options: Any) -> list[list[float]]:
    result: list[list[float]] = played(task(info, **options), seeds).rows["info"].tolist()
    return result


@pytest.mark.parametrize("env_id", ["tests.helpers.toys:Informative-v0", *VECTORS])
def test_infos_of_an_episode_are_reduced_to_final_mean_and_sum(env_id: str) -> None:
    """5 and 8 steps: 1 .. 5 and 1 .. 8; even ones 2, 4 and 2, 4, 6, 8;
    only the last step has is_over.
    """
    reductions: tuple[Reduction, ...] = ("final", "mean", "sum")
    result = [
        numbers({"step": item, "even": item, "is_over": item}, [4, 7], env_id=env_id)
        for item in reductions
    ]
    assert result[1] == [[3, 3, 1], [4.5, 5, 1]]
    assert result[2] == [[15, 6, 1], [36, 20, 1]]
    assert result[0][1] == [8, 8, 1] and result[0][0][0] == 5
    assert np.isnan(result[0][0][1])  # step 5 has no `even`


def test_infos_of_several_episodes_are_averaged_over_those_with_the_key() -> None:
    """5 and 1 steps, and 3 and 12: an episode of one step has no even one."""
    result = numbers({"step": "final", "even": "sum"}, [[4, 0], [2, 11]], episodes_per_job=2)
    assert result == [[3, 6], [7.5, (2 + 42) / 2]]


def test_infos_of_finished_jobs_are_kept_and_failed_jobs_have_none() -> None:
    seeds = [49, 3, 0, 20, 99, 7, 31, 12]
    assert [step for (step,) in numbers({"step": "mean"}, seeds)] == [
        25.5,
        2.5,
        1,
        11,
        25.5,
        4.5,
        16.5,
        7,
    ]
    failing = Episodes(
        Options(env_id="tests.tasks.episodes.test_infos:Failing-v0"), {"step": "mean"}
    )
    assert np.isnan(played(failing, [7, 3]).rows["info"]).tolist() == [[True], [False]]


def test_infos_of_an_episode_in_segments_are_reported_at_its_end() -> None:
    """12 and 3 steps, five per segment."""
    segments = task({"step": "sum", "even": "mean"}).segments()
    result = []
    for seeds in ([11, 2], [11, 40], [11, 40]):
        result.append(
            segments.play(Still(2), dataclasses.replace(batch(seeds)), 5, nothing)
            .rows["info"]
            .tolist()
        )
    assert result[0][1] == [6, 2] and result[2][0] == [78, 7]
    assert np.isnan([*result[0][0], *result[1][0], *result[1][1]]).all()


def test_rows_without_report_info_have_no_info_columns() -> None:
    assert played(task({}), [4]).rows.dtype == ROW
    rows = played(task(ALL), [4]).rows
    assert (
        rows.dtype != ROW
        and without_info(rows).dtype == ROW
        and without_info(rows)["length"] == [5]
    )


def test_report_info_disables_native_stepping_with_a_warning() -> None:
    cheetah = task({"x_position": "final"}, "HalfCheetah-v5", max_episode_steps=5)
    assert "report.info needs the info of its steps" in cheetah.notices[0]
    with pytest.raises(
        ConfigError,
        match=r"task.stepping: is native, .* report.info needs .* expected auto or gymn",
    ):
        Episodes(Options(env_id="HalfCheetah-v5", stepping="native"), {"x_position": "final"})


@pytest.mark.parametrize("env_id", ["tests.helpers.toys:Informative-v0", *VECTORS])
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("Step", r"has 'Step' \(it has numbers: even, is_over, step\); did you mean 'step'\?"),
        ("text", r"expected numbers, but 'text' in the infos of .* is str"),
        ("array", "expected numbers, but 'array' .* is ndarray"),
    ],
)
def test_info_key_without_numbers_is_refused_before_the_run(
    env_id: str, key: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        task({"step": "final", key: "mean"}, env_id)


def test_missing_info_key_in_an_endless_episode_is_a_warning() -> None:
    (notice,) = task({"success": "final"}, "tests.tasks.episodes.test_infos:Endless-v0").notices
    assert notice == (
        "report.info: no info of a step of tests.tasks.episodes.test_infos:Endless-v0 has 'success' "
        "(it has numbers: step), in 1000 steps with random actions"
    )


def test_info_values_that_count_as_numbers() -> None:
    there = [True, 2, 2.5, np.float32(3), np.bool_(True), np.array([4.0]), np.array(5)]
    assert [as_number(value) for value in there] == [1, 2, 2.5, 3, 1, 4, 5]
    assert np.isnan(
        [as_number(value) for value in (None, "6", [7], {}, np.arange(2), np.array("8"), 1j)]
    ).all()


class Failing(Informative):
    """The episode with seed 7 fails at its third step."""

    def step(self, action: Any) -> Step:
        if self.seed == 7 and self.count == 2:
            raise ValueError("the simulator diverged")
        return super().step(action)


class Endless(Informative):
    """An episode without end."""

    def step(self, action: Any) -> Step:
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {"step": self.count}


gymnasium.register("Failing-v0", Failing)
gymnasium.register("Endless-v0", Endless)
