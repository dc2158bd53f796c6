"""The task steps MuJoCo natively if it can and warns if it cannot; results do not change."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import hpc_es
from hpc_es.config.loading import load
from hpc_es.core.data import Outcome
from hpc_es.core.errors import ConfigError
from hpc_es.policies import mlp
from hpc_es.tasks.episodes.gymnasium_backend import GymnasiumBackend
from hpc_es.tasks.episodes.mujoco.backend import MujocoBackend
from hpc_es.tasks.episodes.mujoco.models import MODELS
from hpc_es.tasks.episodes.task import Episodes
from tests.helpers import runs
from tests.helpers.harness import ROOT
from tests.helpers.populations import population
from tests.helpers.toys import batch, episodes, nothing

pytest.importorskip("mujoco")
CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.yaml") if "-v5" in path.read_text())


def is_native(task: Episodes) -> bool:
    return isinstance(task.new_backend(), MujocoBackend)


# The choice.


@pytest.mark.parametrize("name", MODELS)
def test_every_mujoco_environment_is_stepped_natively(name: str) -> None:
    task = episodes(f"{name}-v5")
    assert is_native(task)
    assert task.notices == ()
    assert isinstance(episodes(f"{name}-v5", stepping="gymnasium").new_backend(), GymnasiumBackend)


def test_other_environments_are_stepped_by_gymnasium_without_a_warning() -> None:
    task = episodes("CartPole-v1")
    assert not is_native(task)
    assert task.notices == ()


class Other(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that native stepping does not know."""


FALLBACKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "old version": ("Hopper-v4", {}, "Hopper-v4 is not one of HalfCheetah-v5"),
    "wrapper": (
        "Hopper-v5",
        {"wrappers": (f"{__name__}:Other",)},
        "its wrapper Other needs Gymnasium",
    ),
    "two limits": (
        "Hopper-v5",
        {"wrappers": ({"gymnasium.wrappers:TimeLimit": {"max_episode_steps": 9}},)},
        "its wrapper TimeLimit needs Gymnasium",
    ),
    "rendered": ("Hopper-v5", {"env_kwargs": {"render_mode": "rgb_array"}}, "it is rendered"),
    "truth": (
        "Humanoid-v5",
        {"env_kwargs": {"include_cvel_in_observation": 1}},
        "its keyword include_cvel_in_observation is 1",
    ),
    "range": (
        "Ant-v5",
        {"env_kwargs": {"healthy_z_range": [0, 1, 2]}},
        r"its keyword healthy_z_range is \[0, 1, 2\]",
    ),
    "body": (
        "Ant-v5",
        {"env_kwargs": {"main_body": "tail"}},
        "it fails with this model or these keywords: KeyError",
    ),
    "info": ("Hopper-v5", {"behaviour": {"info": "x_position"}}, "task.behaviour needs the info"),
    "time": (
        "Hopper-v5",
        {"episode_timeout_seconds": 60.0},
        "task.episode_timeout_seconds needs Gymnasium's steps",
    ),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_unknown_variants_are_stepped_by_gymnasium_with_a_warning(case: str) -> None:
    env_id, options, reason = FALLBACKS[case]
    options = with_behaviour(options)
    task = episodes(env_id, **options)
    assert isinstance(task.new_backend(), GymnasiumBackend)
    (notice,) = task.notices
    assert notice.startswith(
        f"task.stepping: {env_id} is stepped by Gymnasium, which is slower (about 1.2 times): "
    )
    remedy = "use Hopper-v5" if env_id == "Hopper-v4" else "change that"
    assert notice.endswith(f"; {remedy}, or accept it by task.stepping: gymnasium")
    with pytest.raises(
        ConfigError, match=f"task.stepping: is native, which is not possible here: {reason}"
    ):
        episodes(env_id, **options, stepping="native")


def with_behaviour(options: dict[str, Any]) -> dict[str, Any]:
    from hpc_es.tasks.episodes.behaviour import BehaviourOptions

    result = options.get("behaviour")
    return {**options, "behaviour": BehaviourOptions(**result)} if result else options


def test_reregistered_id_is_stepped_by_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

    class Mine(HopperEnv):
        """Another Hopper."""

    spec = dataclasses.replace(gymnasium.spec("Hopper-v5"), entry_point=Mine)
    monkeypatch.setitem(gymnasium.registry, "Hopper-v5", spec)
    task = episodes("Hopper-v5")
    assert not is_native(task)
    assert "which is not Gymnasium's" in task.notices[0]


@pytest.mark.parametrize(("arguments", "status", "text"), [
    (["task.stepping=auto"], 0, "WARNING: task.stepping: Hopper-v4 is stepped by Gymnasium, which is slower"),
    (["task.stepping=native"], 2, "hpc_es: task.stepping: is native, which is not possible here: Hopper-v4"),
])  # fmt: skip
def test_check_reports_mujoco_stepping_by_gymnasium(
    arguments: list[str], status: int, text: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "hpc_es.main",
        "configs/ars_hopper.yaml",
        "--check",
        "task.env_id=Hopper-v4",
    ]
    ran = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == status
    assert text in ran.stdout + ran.stderr


def test_log_reports_mujoco_stepping_by_gymnasium_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_config(ROOT / "configs/ars_hopper.yaml", tmp_path / "run", ["task.env_id=Hopper-v4"])
    out, err = capfd.readouterr()
    assert (out + err).count("is stepped by Gymnasium") == 1


# What the task does with it.


def outcomes(task: Episodes, chunks: list[Any], **keywords: Any) -> list[Outcome]:
    """Chunks one after the other, with random policies."""
    policy = mlp.build(mlp.Options(hidden_dims=(8,)), task.spaces)
    rng = np.random.default_rng(0)
    theta = policy.initial(rng)
    result = []
    for seeds in chunks:
        directions = rng.standard_normal((len(seeds), policy.layout.size)).astype(np.float32)
        jobs = population(
            theta, directions, np.arange(len(seeds)), np.full(len(seeds), 1.0, np.float32)
        )
        result.append(task.evaluate(policy.bind(jobs, None), batch(seeds, **keywords), nothing))
    return result


def bits(result: list[Outcome]) -> list[Any]:
    """The content of an outcome without its times."""
    learned = [
        [(name, array.tobytes()) for name, array in unit.items()]
        for item in result
        for (unit,) in item.learned
    ]
    return [[item.rows.tobytes() for item in result], learned, [item.failures for item in result]]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "offset": ({"reward_offset": -1.0}, {}),
    "evaluation": ({"reward_offset": -1.0}, {"training": False}),
    "several episodes": ({"episodes_per_job": 2}, {}),
    "fresh": ({"fresh_environment": True, "episodes_per_job": 2}, {}),
    "noise": ({}, {"action_noise_std": 0.3}),
    "observed": ({}, {"observe": [True, False] * 4}),
    "limit": ({"max_episode_steps": 13}, {}),
    "behaviour": ({"behaviour": {"final_observation": True}}, {}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_outcomes_are_identical_with_and_without_gymnasium(case: str) -> None:
    """Two chunks of episodes that end one after the other, so that the stack is compacted."""
    options, keywords = CASES[case]
    options = with_behaviour({"max_episode_steps": 60, **options})
    episodes_per_job = options.get("episodes_per_job", 1)
    chunks = [
        np.arange(first, first + 8 * episodes_per_job).reshape(8, -1).tolist() for first in (5, 50)
    ]
    native, theirs = (
        outcomes(episodes("Hopper-v5", stepping=stepping, **options), chunks, **keywords)
        for stepping in ("native", "gymnasium")
    )
    assert bits(native) == bits(theirs)
    assert len(set(native[0].rows["length"].tolist())) > 3 or case == "limit"


def test_segments_are_identical_with_and_without_gymnasium() -> None:
    """Segments of seven steps: episodes pause, continue and end within a segment;
    every step is recorded.
    """
    observed: dict[str, list[bytes]] = {"native": [], "gymnasium": []}
    for stepping, message in observed.items():
        task = episodes("Hopper-v5", stepping=stepping, max_episode_steps=30)
        policy = mlp.build(mlp.Options(hidden_dims=()), task.spaces)
        directions = (
            np.random.default_rng(0).standard_normal((5, policy.layout.size)).astype(np.float32)
        )
        jobs = population(directions[0], directions, np.arange(5), np.ones(5, np.float32))
        segments = task.segments()

        def on_step(
            jobs: Any, live: Any, observations: Any, rewards: Any, cut: Any, message: Any = message
        ) -> None:
            message += [
                observations.tobytes(),
                rewards[live].tobytes(),
                bytes(live),
                bytes(sorted(cut)),
            ]

        for number in range(8):
            asked = dataclasses.replace(batch(range(number, number + 5)), on_step=on_step)
            outcome = segments.play(policy.bind(jobs, None), asked, 7, nothing)
            message += [outcome.rows.tobytes()]
            assert not outcome.failures
    assert observed["native"] == observed["gymnasium"]
    assert len(set(observed["native"])) > 100


def test_failure_of_mujoco_fails_its_job_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import mujoco

    task, step, calls = (
        episodes("Hopper-v5", stepping="native", max_episode_steps=5),
        mujoco.mj_step,
        list[int](),
    )

    def failing(model: Any, data: Any, count: int) -> None:
        calls.append(1)
        if len(calls) == 6:  # the second of four, in their second step
            raise mujoco.FatalError("the arena is full")
        step(model, data, count)

    monkeypatch.setattr(mujoco, "mj_step", failing)
    (outcome,) = outcomes(task, [[1, 2, 3, 4]])
    assert np.isnan(outcome.rows["return_"]).tolist() == [False, True, False, False]
    assert outcome.failures[0].position == 1 and outcome.failures[0].text.startswith(
        "FatalError: the arena is full"
    )
    assert outcome.rows["length"].tolist() == [5, 1, 5, 5]  # steps that were taken


# Runs.


def run_config(config: Path, run: Path, overrides: list[str]) -> None:
    small = [
        *(
            "algorithm.population_size=4",
            "mpi.chunk_size=4",
            "noise={kind: counter}",
            "stop={generations: 2}",
        ),
        *(
            "evaluation={interval: 1, episodes: 2}",
            "report.plot_interval_seconds=0",
            "task.max_episode_steps=12",
        ),
    ]
    if "min_timesteps_per_generation" in config.read_text():
        small.append("algorithm.min_timesteps_per_generation=60")
    if config.stem.startswith("ars"):
        small.append("algorithm.top_directions=2")
    for _ in hpc_es.train(load(config, [*small, *overrides]), run):
        pass


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_runs_of_committed_configs_are_identical_with_native_stepping(
    config: Path, tmp_path: Path
) -> None:
    for stepping in ("native", "gymnasium"):
        run_config(config, tmp_path / stepping, [f"task.stepping={stepping}"])
    runs.assert_same(tmp_path / "native", tmp_path / "gymnasium")
