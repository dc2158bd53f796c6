"""Runs of actor_critic with policies in JAX: bit-identical on any number of ranks and after a kill,
and the commands.

The images are those of examples/own_images, uint8[16, 16, 3]. Each test works in a directory of its
own.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import hpc_es
from hpc_es import cli
from hpc_es.algorithms.common.optimizers import GRADIENT
from hpc_es.config.loading import load as load_config
from hpc_es.core.data import NO_FITNESS, Outcome
from hpc_es.core.errors import ConfigError
from hpc_es.mpi.world import World
from hpc_es.training.build import build_parts, build_task
from tests.helpers import runs
from tests.helpers.harness import ROOT
from tests.helpers.toys import nothing

IMAGES = "task={kind: episodes, env_id: 'blob:Blob-v0'}"
CARTPOLE = "task={kind: episodes, env_id: CartPole-v1, max_episode_steps: 20}"
CNN = "policy={kind: cnn, convolutions: [{filters: 3, kernel: 4, stride: 4}], lstm: 5, candidates_per_call: 3}"
RECURRENT = "policy={kind: network, network: 'tests.helpers.own_networks:recurrent', candidates_per_call: 3}"
PLAIN = RECURRENT.replace("recurrent", "plain")
ALGORITHM = (
    "algorithm={kind: actor_critic, batch_size: 6, optimizer: {kind: adam, learning_rate: 0.01}}"
)
SEGMENTS = ("algorithm.updates=asynchronous", "algorithm.update_every=4")


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Path]:
    """A directory with the environment and tiny.yaml, the current one of this process."""
    shutil.copy(ROOT / "examples" / "own_images" / "blob.py", tmp_path)
    runs.tiny(tmp_path)
    with runs.working_in(tmp_path, "blob"):
        yield tmp_path


@pytest.mark.parametrize(
    "options",
    [
        (IMAGES, CNN),
        pytest.param((CARTPOLE, RECURRENT, "algorithm.unroll=4"), marks=pytest.mark.long),
    ],
)
def test_killed_on_three_ranks_and_resumed_on_two_the_result_is_that_of_one(
    options: Any, inside: Path
) -> None:
    overrides = (*options[:2], ALGORITHM, *options[2:], *runs.EVERY)
    end = runs.killed_and_resumed(inside / "three", 3, 2, *overrides)
    runs.here(inside / "tiny.yaml", inside / "one", [*overrides, f"stop.generations={end}"])
    runs.assert_same(inside / "three", inside / "one")


def updated(directory: Path, *overrides: str, generation: int = 0) -> tuple[Any, Outcome]:
    """The algorithm, and the outcome of the first chunk of its initial state."""
    config = load_config(directory / "tiny.yaml", [*overrides[:2], ALGORITHM, *overrides[2:]])
    algorithm: Any = build_parts(config, World("none"), build_task(config)).algorithm
    state = dataclasses.replace(algorithm.initial(), generation=generation)
    chunk = algorithm.ask(state, 0, np.zeros(0), NO_FITNESS)[0]
    return algorithm, algorithm.evaluate(state, chunk, nothing)


@pytest.mark.parametrize(
    ("task", "policy"), [(IMAGES, CNN), (CARTPOLE, PLAIN), (CARTPOLE, RECURRENT)]
)
def test_segments_as_long_as_episodes_give_the_update_of_whole_episodes(
    task: str, policy: str, inside: Path
) -> None:
    """At most 20 steps: the same episodes, actions and, up to the order of sums, gradient."""
    size = ("algorithm.batch_size=4", "mpi.chunk_size=4")
    _, whole = updated(inside, task, policy, *size)
    _, long = updated(inside, task, policy, *size, SEGMENTS[0], "algorithm.update_every=20")
    assert long.rows.tobytes() == whole.rows.tobytes()
    np.testing.assert_allclose(long.arrays[GRADIENT], whole.arrays[GRADIENT], rtol=1e-3, atol=1e-4)


def test_memory_of_a_network_continues_in_the_next_segment(inside: Path) -> None:
    """Of 12 steps of an episode, 4 have passed after the first segment;
    a new episode has the initial memory.
    """
    algorithm, _ = updated(inside, IMAGES, RECURRENT, *SEGMENTS)
    steps = []
    for generation in range(4):
        steps.append(algorithm._segment_player.memory[1].tolist())
        state = dataclasses.replace(algorithm.initial(), generation=generation + 1)
        algorithm.evaluate(state, algorithm.ask(state, 0, np.zeros(0), NO_FITNESS)[0], nothing)
    assert steps == [[4] * 6, [8] * 6, [0] * 6, [4] * 6]


def test_trajectories_keep_the_dtype_of_images(inside: Path) -> None:
    samples: list[Any] = []
    config = load_config(inside / "tiny.yaml", [IMAGES, CNN, ALGORITHM, "stop.generations=1"])
    for _ in hpc_es.train(
        config, inside / "run", after_train_step=lambda sample, loss: samples.append((sample, loss))
    ):
        pass
    (sample, loss) = samples[0]
    assert (sample["inputs"].dtype, sample["inputs"].shape) == (np.uint8, (16, 6, 16, 16, 3))
    assert sample["inputs"][:12].max() == 255 and sample["lives"].sum() == 6 * 12
    assert np.isfinite(loss["loss"])


def test_asynchronous_run_is_evaluated_loaded_exported_and_filmed(
    inside: Path, capsys: Any
) -> None:
    options = [IMAGES, CNN, ALGORITHM, *SEGMENTS, "stop.generations=8"]
    if importlib.util.find_spec("tensorboard"):
        options += ["report.tensorboard=true"]
    runs.here(inside / "tiny.yaml", inside / "run", options)
    if importlib.util.find_spec("tensorboard"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = (
            EventAccumulator(str(inside / "run"), {"images": 0})
            .Reload()
            .Images("train/observation")
        )
        assert [(image.step, image.height, image.width) for image in events] == [
            (step, 16, 16) for step in range(8)
        ]
    assert runs.newest(inside / "run").state.generation == 8
    capsys.readouterr()
    assert cli.run(["eval", "run", "--episodes", "3", "--actions", "sampled", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["length_mean"] == 12
    assert cli.run(["eval", "run", "--episodes", "1", "--video", "blob.gif"]) == 0
    assert (inside / "blob.gif").stat().st_size
    sampled = hpc_es.load_policy("run", actions="sampled", rng=1)
    images = np.random.default_rng(0).integers(256, size=(50, 16, 16, 3)).astype(np.uint8)
    assert set(sampled(images).tolist()) == {0, 1}
    assert cli.run(["export", "run", "policy.npz", "--value"]) == 0
    with np.load("policy.npz") as arrays:
        assert arrays["value"].shape == (6,) and arrays["output_kernel"].shape == (5, 2)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            (IMAGES, CNN, "policy.normalisation=virtual_batch"),
            "policy.normalisation: is virtual_batch, which depends on the parameters in a way that actor_critic does",
        ),
        (
            (IMAGES, CNN, "task.env_kwargs.actions=box"),
            "task: blob:Blob-v0 has Box actions, actor_critic needs Discrete ones: try algorithm.kind: es",
        ),
        (
            (CARTPOLE, PLAIN, "algorithm.unroll=4"),
            "algorithm.unroll: is 4, but the policy has no memory: leave it out",
        ),
        (
            ("task={kind: bandits}", RECURRENT),
            "policy.kind: is not one of those that play independent bandits in a compiled graph: "
            "expected the kind 'lstm' or",
        ),
        (
            (CARTPOLE, PLAIN.replace("plain", "without_value"), "policy.network_kwargs={width: 3}"),
            "expected outputs float32[3] of tests.helpers.own_networks:without_value (a logit for each action of "
            "Discrete(2), and the value of the observation), found float32[2]",
        ),
    ],
    # not the texts: see tests/conftest.py
    ids=["virtual batch", "Box", "no memory", "bandits", "no value"],
)
def test_check_refuses_policies_without_a_gradient(overrides: Any, text: str, inside: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", "tiny.yaml", *overrides[:2], ALGORITHM, *overrides[2:]])
    assert text in str(refused.value)
