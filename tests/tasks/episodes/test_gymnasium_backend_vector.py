"""Vector environments equal single ones; those whose episodes share a seed are refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.config.loading import load
from hpc_es.core import quiet
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.tasks.episodes import environments
from hpc_es.tasks.episodes.gymnasium_backend import reset
from hpc_es.tasks.episodes.policy_spaces import vector_spaces
from hpc_es.tasks.episodes.task import Episodes
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec, script
from tests.helpers.toys import Still, episodes, played

SWARM = "tests.helpers.vector_toys:Swarm-v0"
SEEDS = [3, 1, 4, 159, 26, 5]


def vector(env_id: str = SWARM, **options: Any) -> Episodes:
    return episodes(env_id, stepping="vector", **options)


def refused(env_id: str = SWARM, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        vector(env_id, **options)
    return str(error.value)


# What an episode gives.


@pytest.mark.parametrize("keywords", [{}, {"fault": "arrays alone"}])
def test_vector_episodes_equal_those_of_single_environments(keywords: dict[str, Any]) -> None:
    single = played(episodes("Chaos"), SEEDS, Still(len(SEEDS), 0.5, 2)).rows
    assert len(set(single["length"].tolist())) > 3  # they end one by one
    rows = played(vector(env_kwargs=keywords), SEEDS, Still(len(SEEDS), 0.5, 2)).rows
    assert rows.tobytes() == single.tobytes()


def test_episodes_of_a_vector_with_autoreset_are_counted_once() -> None:
    """200 steps per episode; steps after the automatic reset are not counted."""
    single = played(episodes("Pendulum-v1"), SEEDS, Still(len(SEEDS), 1.0, 1)).rows
    rows = played(
        vector("tests.helpers.vector_toys:SyncPendulum-v0", max_episode_steps=200),
        SEEDS,
        Still(len(SEEDS), 1.0, 1),
    )
    assert rows.rows.tobytes() == single.tobytes()


def test_vector_stepping_uses_the_time_limit_of_the_config() -> None:
    rows = played(vector(max_episode_steps=7), SEEDS, Still(len(SEEDS), 0.5, 2)).rows
    assert (
        rows["length"].tolist()
        == played(episodes("Chaos", max_episode_steps=7), SEEDS, Still(len(SEEDS), 0.5, 2))
        .rows["length"]
        .tolist()
    )
    assert rows["length"].max() == 7


@pytest.mark.parametrize(
    ("fault", "text"),
    [("raise", "ValueError: the simulator diverged ("), ("exit", "SystemExit: 0 (")],
)
def test_exception_fails_running_jobs_and_renews_the_vector(fault: str, text: str) -> None:
    task = vector(env_kwargs={"fault": fault})
    alone = played(task, [5, 26], Still(2, 0.5, 2)).rows["return_"]
    result = played(task, [5, 7], Still(2, 0.5, 2))
    assert np.isnan(result.rows["return_"]).all()
    assert text in result.failures[0].text
    assert played(task, [5, 26], Still(2, 0.5, 2)).rows["return_"].tobytes() == alone.tobytes()


def test_final_observations_of_vectors_can_be_behaviours() -> None:
    options: dict[str, Any] = {"behaviour": {"final_observation": [0, 2]}}
    result = [
        played(task, SEEDS, Still(len(SEEDS), 0.5, 2)).rows
        for task in (
            runs_task(SWARM, stepping="vector", **options),
            runs_task("tests.helpers.toys:Chaos-v0", **options),
        )
    ]
    assert result[0]["behaviour"].tobytes() == result[1]["behaviour"].tobytes()


def runs_task(env_id: str, **task: Any) -> Any:
    """The task of a validated config, as options within options have to be."""
    from hpc_es.config.loading import validate
    from hpc_es.training.build import build_task

    return build_task(validate({"task": {"env_id": env_id, **task}})).task


# Runs.

TRAIN = """
    import sys
    from pathlib import Path
    import hpc_es
    from hpc_es.config.loading import load
    task = ["task.env_id=tests.helpers.vector_toys:Swarm-v0", "task.max_episode_steps=60", "stop.generations=3"]
    for name in ("vector", "gymnasium"):
        for row in hpc_es.train(load(Path(sys.argv[1]), [*task, "task.stepping=" + name]), Path(sys.argv[2]) / name):
            pass
"""


@pytest.mark.long
def test_vector_stepping_gives_the_theta_of_single_environments(tmp_path: Path) -> None:
    config = str(runs.tiny(tmp_path))
    for ranks in (1, 3):
        done = mpiexec(ranks, [*script(TRAIN), config, str(tmp_path / str(ranks))], cwd=ROOT)
        assert done.status == 0, str(done)
    theta = runs.newest(tmp_path / "1/gymnasium").state.theta
    for other in ("1/vector", "3/vector"):
        assert runs.newest(tmp_path / other).state.theta.tobytes() == theta.tobytes()


@pytest.mark.long
def test_resume_with_another_kind_of_stepping_is_refused(tmp_path: Path) -> None:
    """Results depend on it, unlike on native stepping."""
    config = runs.tiny(tmp_path)
    task = [f"task.env_id={SWARM}", "stop.generations=1"]
    for _ in hpc_es.train(load(config, task), tmp_path / "run"):
        pass
    for _ in hpc_es.train(load(config, [*task, "task.stepping=gymnasium"]), tmp_path / "run"):
        pass
    with pytest.raises(UserError, match=r"task\.stepping"):
        hpc_es.train(load(config, [*task, "task.stepping=vector"]), tmp_path / "run")


# What is refused.


def test_vectors_with_a_common_seed_are_refused() -> None:
    said = refused("CartPole-v1")
    assert (
        "task.stepping: is vector, but reset(seed=[11, 22]) and steps of CartPole-v1 fail: " in said
    )
    assert (
        "expected one that takes a seed for each environment, or auto, native or gymnasium" in said
    )


@pytest.mark.parametrize("fault", ["one seed", "neighbours", "no seeds"])
def test_vectors_whose_episodes_depend_on_each_other_are_refused(fault: str) -> None:
    assert "the episode of a seed depends on its position in the vector" in refused(
        env_kwargs={"fault": fault}
    )


def test_images_of_vectors_keep_their_shape() -> None:
    spec = episodes("tests.helpers.vector_toys:Images-v0", stepping="vector").spaces.observations
    assert len(spec.shape) == 3 and spec.dtype == np.uint8


def test_id_without_a_vector_environment_is_refused() -> None:
    assert refused("Pendulum-v1") == (
        "task.stepping: is vector, but Pendulum-v1 has no vector_entry_point: expected auto, native or gymnasium"
    )


def test_unknown_vector_id_is_reported_with_the_nearest_one() -> None:
    assert "did you mean 'CartPole-v1'?" in refused("CartPol-v1")


def test_options_that_need_single_environments_are_refused_at_once() -> None:
    said = refused(
        episodes_per_job=2, fresh_environment=True, episode_timeout_seconds=1.0, wrappers=("a:B",)
    )
    for key in ("episodes_per_job", "fresh_environment", "episode_timeout_seconds", "wrappers"):
        assert f"task.{key}: requires single environments, but task.stepping is vector" in said


def test_behaviour_overwritten_by_the_next_episode_is_refused() -> None:
    with pytest.raises(ConfigError, match="replaces by the first of the next episode"):
        runs_task(
            "tests.helpers.vector_toys:Hasty-v0",
            stepping="vector",
            behaviour={"final_observation": True},
        )


def test_atari_vector_has_a_seed_per_environment() -> None:
    """ale_py accepts them as an array."""
    with contextlib.closing(
        environments.make_vector("ale_py:ALE/SpaceInvaders-v5", {"num_threads": 1}, 2)
    ) as game:
        spec = vector_spaces(game).observations
        there, back = reset(game, [5, 6], spec), reset(game, [6, 5], spec)
    assert there[0].tobytes() == back[1].tobytes() != there[1].tobytes()


def test_atari_ram_is_a_flat_observation() -> None:
    task = episodes("ale_py:ALE/Pong-v5", env_kwargs={"obs_type": "ram"}, max_episode_steps=20)
    assert task.spaces.observations.size == 128
    assert played(task, [1, 2]).rows["length"].tolist() == [20, 20]


def test_warnings_about_vectors_of_several_sizes_are_shown_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Gymnasium warns of every vector without an autoreset mode,
    with terminal codes and the size.
    """
    quiet._printed.clear()
    task = vector("tests.helpers.vector_toys:Plain-v0")
    played(task, SEEDS, Still(len(SEEDS), actions=2))
    text = capfd.readouterr().err
    assert text.count("is missing AutoresetMode metadata") == 1 and "\x1b" not in text
