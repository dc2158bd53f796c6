"""Runs on an Atari game, as a user starts them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.api import evaluate
from hpc_es.config.loading import load as load_config
from hpc_es.core.data import Chunk
from hpc_es.mpi.world import World
from hpc_es.storage.checkpoint_directory import Store
from hpc_es.training.build import build_parts, build_task
from tests.helpers.harness import ROOT, Finished, mpiexec, python, start
from tests.helpers.runs import digest, newest, wait_for
from tests.helpers.toys import nothing

if importlib.util.find_spec("ale_py") is None:
    pytest.skip("ale-py is not installed", allow_module_level=True)

CONFIG = """
task: {kind: atari, game: breakout, protocol: salimans2017, max_frames: 120, fire_reset: true, sticky_actions: 0.25}
policy: {kind: "tests.helpers.pixels:Pixels"}
algorithm: {kind: es, population_size: 8, sigma: 0.1}
noise: {kind: counter}
evaluation: {interval: 1, episodes: 2}
checkpoint: {interval: 1, keep_last: 1000}
stop: {generations: 3}
report: {plot_interval_seconds: 0, info: {lives: final}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, which has the config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game.yaml").write_text(CONFIG)
    return tmp_path


def arguments(run: str, *overrides: str) -> list[str]:
    return ["-m", "hpc_es.main", "game.yaml", "--output", run, *overrides]


def well(done: Finished) -> Finished:
    assert done.status == 0 and not done.timed_out, str(done)
    return done


def test_actor_critic_updates_within_a_game(here: Path) -> None:
    """Segments of 5 steps of games of 12: the state after
    the fifth step begins the next segment.
    """
    pytest.importorskip("jax", reason="JAX is not installed here: make test-all-extras")
    overrides = [
        "task={kind: atari, game: pong, protocol: salimans2017, picture: a3c, max_frames: 48}",
        "policy={kind: cnn, convolutions: [{filters: 2, kernel: 8, stride: 4}], lstm: 3}",
        "algorithm={kind: actor_critic, updates: asynchronous, update_every: 5, batch_size: 2}",
    ]
    config = load_config(Path("game.yaml"), [*overrides, "report.info={}"])
    algorithm: Any = build_parts(config, World("none"), build_task(config)).algorithm.with_samples()
    chunk, lengths, samples = Chunk(0, 0, 2), [], []
    for generation in range(4):
        state = dataclasses.replace(algorithm.initial(), generation=generation)
        outcome = algorithm.evaluate(state, chunk, nothing)
        lengths.append(outcome.rows[["length", "episode_length"]][0].tolist())
        samples.append(outcome.arrays["sample/inputs"])
    assert lengths == [(5, 0), (5, 0), (2, 12), (5, 0)]
    assert samples[0].shape == (6, 2, 42, 42, 1) and samples[0].dtype == np.uint8
    np.testing.assert_array_equal(samples[0][5], samples[1][0])
    assert (samples[0][5] != samples[0][0]).any()


ENVIRONMENT = {"PYTHONPATH": str(ROOT)}  # in which tests.helpers is


@pytest.mark.parametrize("normalised", ["false", "true"])
@pytest.mark.long
def test_results_do_not_depend_on_the_number_of_ranks(normalised: str, here: Path) -> None:
    option = f"task.observation_normalization={{enabled: {normalised}, probability: 1.0}}"
    well(mpiexec(3, arguments("three", option), env=ENVIRONMENT, cwd=here))
    well(python(arguments("one", option), env=ENVIRONMENT, cwd=here))
    assert digest(newest(here / "three")) == digest(newest(here / "one"))


@pytest.mark.long
def test_killed_and_resumed_run_equals_an_uninterrupted_one(here: Path) -> None:
    with start(2, arguments("killed", "stop.generations=10000"), env=ENVIRONMENT, cwd=here) as job:
        wait_for(lambda: len(Store(here / "killed" / "checkpoints").paths()) > 1, 120.0)
        job.kill()
    end = f"stop.generations={newest(here / 'killed').state.generation + 2}"
    well(mpiexec(2, arguments("killed", end), env=ENVIRONMENT, cwd=here))
    well(python(arguments("whole", end), env=ENVIRONMENT, cwd=here))
    assert digest(newest(here / "killed")) == digest(newest(here / "whole"))


def test_check_prints_the_shape_the_actions_and_the_protocol(here: Path, capsys: Any) -> None:
    assert cli.run(["check", "game.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  observations uint8[84, 84, 4], actions Discrete(4), parameters 788"
    text = "  atari breakout, protocol salimans2017: frame_skip 4, sticky_actions 0.25, noop_max 30"
    assert any(line.startswith(text) for line in lines)


@pytest.mark.long
def test_eval_video_and_library_play_the_same_episodes(here: Path, capsys: Any) -> None:
    for _ in hpc_es.train("game.yaml", "run"):
        pass
    versions = newest(here / "run").provenance["versions"]
    assert versions["ale-py"] == importlib.import_module("ale_py").__version__
    capsys.readouterr()
    assert (
        cli.run(["eval", "run", "--episodes", "2", "--seed", "4", "--json", "--video", "film.gif"])
        == 0
    )
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["env_id"], result["failed"], result["length_mean"]) == ("breakout", 0, 30)
    frames = iio.imread("film.gif")
    assert frames.shape[1:] == (210, 160, 3)

    policy = hpc_es.load_policy("run")
    environment, returns = policy.make_env(), []
    for seed in evaluate.seeds(4, range(2)):
        observation, is_over, total = environment.reset(seed=seed)[0], False, 0.0
        while not is_over:
            observation, reward, terminated, truncated, _ = environment.step(policy(observation))
            total, is_over = total + reward, terminated or truncated
        returns.append(total)
    assert result["return_mean"] == pytest.approx(np.mean(returns))
