"""The environment and the policy of examples/own_images, whose observations are uint8[16, 16, 3],
in whole runs.

Each test works in a directory of its own, where copies of the user's two modules lie.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v3 as iio
import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.api import evaluate
from hpc_es.config.loading import load as load_config
from hpc_es.core.data import ObservationSpec
from hpc_es.core.errors import ConfigError
from hpc_es.storage.checkpoint_directory import Store
from hpc_es.tasks.episodes import environments
from tests.helpers.harness import ROOT, Finished, mpiexec, python, start
from tests.helpers.runs import digest, newest, wait_for

EXAMPLE = ROOT / "examples" / "own_images"
ALGORITHMS = {
    "es": ["algorithm={kind: es, population_size: 8, sigma: 0.1}"],
    "cma_es": ["algorithm={kind: cma_es, population_size: 8, sigma: 0.1}"],
    "snes": ["algorithm={kind: snes, population_size: 8}"],
}
NORMALISED = "task.observation_normalization={enabled: true, probability: 0.5}"
EVERY = (
    "checkpoint.interval=1",
    "checkpoint.keep_last=1000",
    "evaluation.interval=1",
    "evaluation.episodes=2",
)
SPEC = ObservationSpec((16, 16, 3), np.dtype(np.uint8))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a directory with the example only."""
    for file in EXAMPLE.glob("*.*"):
        shutil.copy(file, tmp_path)
    return tmp_path


@pytest.fixture
def inside(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to the directory; its modules are removed from sys.modules afterwards."""
    names = ("blob", "blobs", "patches")
    registry = dict(gymnasium.registry)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    for name in names:
        sys.modules.pop(name, None)
    yield here
    for name in names:
        sys.modules.pop(name, None)
    gymnasium.registry.clear()
    gymnasium.registry.update(registry)


def arguments(run: str, *overrides: str) -> list[str]:
    return [
        "-m",
        "hpc_es.main",
        "blob.yaml",
        "--output",
        run,
        "report.plot_interval_seconds=0",
        *overrides,
    ]


def well(done: Finished) -> Finished:
    assert done.status == 0 and not done.timed_out, str(done)
    return done


def trained(here: Path, run: str, *overrides: str) -> Any:
    """Train in this process; return status.json."""
    for _ in hpc_es.train(
        load_config(here / "blob.yaml", ["report.plot_interval_seconds=0", *overrides]), here / run
    ):
        pass
    return json.loads((here / run / "status.json").read_text())


# The environment.


@pytest.mark.parametrize(
    ("actions", "constant", "blind"),
    [("discrete", 1, 6), ("box", [0.3], 6), ("several", [0, 2], 5)],
)
def test_returns_of_a_perfect_and_a_blind_policy_by_hand(
    actions: str, constant: Any, blind: float, inside: Path
) -> None:
    """Only the blob has 255: its column determines the side, its channel the colour."""

    def perfect(image: Any) -> Any:
        _, columns, channels = np.nonzero(image == 255)
        side, colour = int(columns.mean() >= 8), int(channels[0])
        return {"discrete": side, "box": [2 * side - 1], "several": [side, colour]}[actions]

    environment = environments.make("blob:Blob-v0", {"actions": actions})
    for policy, expected in ((perfect, 12), (lambda image: constant, blind)):
        observation, total, is_over = environment.reset(seed=3)[0], 0.0, False
        while not is_over:
            SPEC.require(observation)
            observation, reward, is_over, _, _ = environment.step(policy(observation))
            total += reward
        assert total == pytest.approx(expected)


# Learning.


@pytest.mark.parametrize(
    "overrides", [[], ["algorithm={kind: cma_es, population_size: 64, sigma: 0.1}"], [NORMALISED]]
)
@pytest.mark.long
def test_image_policy_learns_two_actions(overrides: list[str], inside: Path) -> None:
    """Blind policies earn 6, perfect ones 12."""
    assert trained(inside, "run", "stop.target_return=11.9", *overrides)["final_return_mean"] > 11.5


@pytest.mark.parametrize(("actions", "least"), [("box", 10.5), ("several", 8.0)])
@pytest.mark.long
def test_image_policy_learns_box_and_multidiscrete_actions(
    actions: str, least: float, inside: Path
) -> None:
    """Blind policies earn 6 with a Box and 5 with two choices."""
    assert trained(inside, "run", f"task.env_kwargs.actions={actions}")["final_return_mean"] > least


# Bits.


@pytest.mark.parametrize("overrides", [[], [NORMALISED]], ids=["raw", "normalised"])
@pytest.mark.parametrize("algorithm", ["es", "cma_es"])
@pytest.mark.long
def test_killed_run_resumed_on_three_ranks_equals_one_rank(
    algorithm: str, overrides: list[str], here: Path
) -> None:
    options = [*ALGORITHMS[algorithm], *overrides, *EVERY]
    with start(3, arguments("three", *options, "stop.generations=10000"), cwd=here) as job:
        wait_for(lambda: len(Store(here / "three" / "checkpoints").paths()) > 2, 120.0)
        job.kill()
    end = newest(here / "three").state.generation + 3
    well(mpiexec(3, arguments("three", *options, f"stop.generations={end}"), cwd=here))
    well(python(arguments("one", *options, f"stop.generations={end}"), cwd=here))
    assert newest(here / "three").state.generation == end
    assert digest(newest(here / "three")) == digest(newest(here / "one"))


@pytest.mark.parametrize("actions", ["discrete", "box", "several"])
def test_results_do_not_depend_on_the_chunk_size(actions: str, inside: Path) -> None:
    """`rows_are_independent` promises that the action of a row does not depend on other rows."""
    for size in (1, 3, 8):
        trained(
            inside,
            f"run{size}",
            f"task.env_kwargs.actions={actions}",
            f"mpi.chunk_size={size}",
            *FEW,
        )
    assert len({digest(newest(inside / f"run{size}")) for size in (1, 3, 8)}) == 1


RAW = (*ALGORITHMS["es"], *EVERY, "stop.generations=2")
FEW = (NORMALISED, *RAW)


# Statistics of the channels.


@pytest.mark.parametrize("deviation", ["floored", "sample"])
def test_images_are_normalised_per_channel(deviation: str, inside: Path) -> None:
    """The background of each channel is uniform on 0 .. 63; a third of the blobs,
    16 of 256 pixels, are 255.
    """
    trained(inside, "run", *FEW, f"task.observation_normalization.deviation={deviation}")
    shared = newest(inside / "run").state.shared
    assert shared["observation_mean"].shape == shared["observation_std"].shape == (3,)
    np.testing.assert_allclose(shared["observation_mean"], 36.2, rtol=0.1)
    np.testing.assert_allclose(shared["observation_std"], 36.8, rtol=0.15)


# Commands.


@pytest.mark.parametrize(
    ("actions", "described"),
    [("discrete", "Discrete(2)"), ("box", "Box of 1"), ("several", "MultiDiscrete([2, 3])")],
)
def test_check_prints_the_observation_shape_and_the_actions(
    actions: str, described: str, inside: Path, capsys: Any
) -> None:
    assert cli.run(["check", "blob.yaml", f"task.env_kwargs.actions={actions}"]) == 0
    assert (
        f"observations uint8[16, 16, 3], actions {described}, parameters" in capsys.readouterr().out
    )


@pytest.mark.parametrize("actions", ["discrete", "box", "several"])
def test_eval_video_and_library_use_the_same_images(
    actions: str, inside: Path, capsys: Any
) -> None:
    """Episodes played by the library have the returns of `eval`;
    one image and a batch give the same actions.
    """
    trained(inside, "run", f"task.env_kwargs.actions={actions}", *FEW)
    assert (
        cli.run(["eval", "run", "--episodes", "3", "--seed", "4", "--json", "--video", "film.gif"])
        == 0
    )
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    frames = iio.imread("film.gif")
    assert (
        frames.shape[1:] == (128, 128, 3) and result["failed"] == 0 and result["length_mean"] == 12
    )

    policy = hpc_es.load_policy("run")
    environment = policy.make_env()
    images, singles, total = [], [], 0.0
    for seed in evaluate.seeds(4, range(3)):
        image, is_over = environment.reset(seed=seed)[0], False
        while not is_over:
            images.append(image)
            singles.append(policy(image))
            image, reward, is_over, _, _ = environment.step(singles[-1])
            total += float(reward)
    assert result["return_mean"] == pytest.approx(total / 3)
    batch = policy(np.stack(images))
    expected = {
        "discrete": ((36,), np.int64),
        "box": ((36, 1), np.float32),
        "several": ((36, 2), np.int64),
    }[actions]
    assert isinstance(batch, np.ndarray) and (batch.shape, batch.dtype) == expected
    np.testing.assert_array_equal(batch, np.array(singles))
    assert isinstance(singles[0], int) == (actions == "discrete")


def test_policy_gets_uint8_images_everywhere(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patches = importlib.import_module("patches")
    original, dtypes = patches.Patches.outputs, list[str]()

    def outputs(self: Any, parameters: Any, inputs: Any) -> Any:
        dtypes.append(str(inputs.dtype))
        return original(self, parameters, inputs)

    monkeypatch.setattr(patches.Patches, "outputs", outputs)
    commands: list[Callable[[], Any]] = [
        lambda: trained(inside, "run", *RAW),
        lambda: cli.run(["eval", "run", "--episodes", "2"]),
        lambda: cli.run(["eval", "run", "--episodes", "2", "--video", "film.gif"]),
        lambda: hpc_es.load_policy("run")(np.zeros((16, 16, 3), np.uint8)),
        lambda: cli.run(["check", "blob.yaml"]),
    ]
    for command in commands:
        dtypes.clear()
        command()
        assert set(dtypes) == {"uint8"}


def test_float_images_in_0_to_1_are_refused(inside: Path) -> None:
    """As uint8 they would all be 0."""
    trained(inside, "run", *FEW)
    policy = hpc_es.load_policy("run")
    with pytest.raises(ValueError, match="expected observations of dtype uint8, found float64"):
        policy(np.full((16, 16, 3), 0.5))
    with pytest.raises(
        ValueError, match=r"expected an observation of shape \(16, 16, 3\), or \(n, 16, 16, 3\)"
    ):
        policy(np.zeros((16, 16), np.uint8))
    assert policy(np.zeros((16, 16, 3), np.uint8).tolist()) in (0, 1)


# Wrappers and episodes.

GRAY = "task.wrappers=['gymnasium.wrappers:GrayscaleObservation']"


def test_image_wrappers_are_applied_in_training_and_by_the_library(
    inside: Path, capsys: Any
) -> None:
    """A grayscale image has two axes and one mean."""
    trained(inside, "run", GRAY, *FEW)
    assert newest(inside / "run").state.shared["observation_mean"].shape == (1,)
    policy, wrapped = hpc_es.load_policy("run"), hpc_es.load_policy("run", env="wrapped")
    assert policy.spaces.observations == ObservationSpec((16, 16), np.dtype(np.uint8))
    images = np.stack([policy.make_env().reset(seed=seed)[0] for seed in range(4)])
    gray = np.stack([wrapped.make_env().reset(seed=seed)[0] for seed in range(4)])
    assert (images.shape, gray.shape) == ((4, 16, 16, 3), (4, 16, 16))
    np.testing.assert_array_equal(policy(images), wrapped(gray))
    assert cli.run(["eval", "run", "--episodes", "2", "--video", "film.gif"]) == 0


def test_behaviour_can_be_the_last_image(inside: Path) -> None:
    """16 x 16 x 3 numbers, which novelty search archives."""
    algorithm = "algorithm={kind: novelty, population_size: 4, parents: 1, rollouts: 1}"
    trained(
        inside, "run", algorithm, "task.behaviour={final_observation: true}", "stop.generations=2"
    )
    arrays = {**newest(inside / "run").state.shared, **newest(inside / "run").state.master}
    assert any(array.shape[-1:] == (768,) for array in arrays.values())


VECTOR = """
from functools import partial
import gymnasium
from blob import Blob

def blobs(num_envs, **keywords):
    return gymnasium.vector.SyncVectorEnv([partial(Blob, **keywords)] * num_envs)

gymnasium.register("Blobs-v0", vector_entry_point=blobs)
gymnasium.register("Blobs-v1", Blob)
"""


@pytest.mark.parametrize("actions", ["discrete", "box", "several"])
def test_vector_environment_of_images_equals_single_environments(
    actions: str, inside: Path
) -> None:
    (inside / "blobs.py").write_text(VECTOR)
    options = (f"task.env_kwargs.actions={actions}", "mpi.chunk_size=4", *RAW)
    trained(inside, "vector", "task.env_id=blobs:Blobs-v0", "task.stepping=vector", *options)
    trained(inside, "single", "task.env_id=blobs:Blobs-v1", *options)
    assert digest(newest(inside / "vector")) == digest(newest(inside / "single"))


FAULTY = """
import gymnasium
import numpy as np
from blob import Blob

class Faulty(Blob):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        image, info = super().reset(seed=seed)
        return {"shape": image[:, :, :1], "fractions": image / 255}.get(self.fault, image), info

    def step(self, action):
        image, reward, *rest = super().step(action)
        if self.fault == "raises" and len(self._left) == 4:
            raise RuntimeError("no picture")
        return image, (float("nan") if self.fault == "nan" else reward), *rest

gymnasium.register("Faulty-v0", Faulty)
"""


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raises", "RuntimeError: no picture"),
        ("nan", "ValueError: the return is nan"),
        ("shape", "expected an observation uint8[16, 16, 3], found uint8[16, 16, 1]"),
        ("fractions", "expected an observation uint8[16, 16, 3], found float64[16, 16, 3]"),
    ],
)
def test_invalid_images_fail_their_episode_with_a_reason(fault: str, text: str, here: Path) -> None:
    """Broadcast, or converted to 0, the last two would be used without notice."""
    (here / "faulty.py").write_text(FAULTY)
    task = (
        "task.env_id=faulty:Faulty-v0",
        f"task.env_kwargs.fault={fault}",
        "stop.failed_generations=",
    )
    done = python(arguments("run", *task, *FEW), cwd=here)
    assert text in done.stdout + done.stderr, str(done)
    assert json.loads((here / "run" / "status.json").read_text())["failed_episodes"] > 0


def test_image_of_unsuitable_size_is_refused(inside: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", "blob.yaml", "policy.patch=5"])
    assert "policy.patch: is 5, but observations are uint8[16, 16, 3]: expected" in str(
        refused.value
    )
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", "blob.yaml", "policy={kind: mlp}"])
    text = "'mlp' takes flat observations, found uint8[16, 16, 3]: use a policy that takes this shape, such as cnn"
    assert text in str(refused.value)


# Several choices, with the policies of the package.

SEEING = "task.wrappers=['gymnasium.wrappers:FlattenObservation']"
SEVERAL = (
    SEEING,
    NORMALISED,
    "task.env_kwargs.actions=several",
    *ALGORITHMS["es"],
    *EVERY,
    "stop.generations=2",
)


@pytest.mark.parametrize(
    "policy", ["{kind: mlp, hidden_dims: [4]}", "{kind: lstm, hidden_dims: [3]}"]
)
def test_networks_support_multidiscrete_actions(policy: str, inside: Path, capsys: Any) -> None:
    trained(inside, "run", f"policy={policy}", *SEVERAL)
    loaded = hpc_es.load_policy("run")
    action = loaded(loaded.make_env().reset(seed=1)[0])
    assert isinstance(action, np.ndarray) and action.shape == (2,) and action.dtype == np.int64
    assert cli.run(["eval", "run", "--episodes", "2", "--json", "--video", "film.gif"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 0


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (
            "action_noise_std=0.1",
            "policy.action_noise_std: is 0.1, but noise cannot be added to actions MultiDiscrete([2, 3])",
        ),
        ("action_bins=3", "policy.action_bins: is 3, but the actions are MultiDiscrete([2, 3])"),
    ],
)
def test_options_for_box_actions_are_refused_for_multidiscrete_ones(
    option: str, text: str, inside: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", "blob.yaml", "policy={kind: mlp}", f"policy.{option}", *SEVERAL])
    assert text in str(refused.value)


def test_actor_critic_reports_unsupported_actions(inside: Path, capsys: Any) -> None:
    overrides = [
        SEEING,
        "task.env_kwargs.actions=several",
        "algorithm={kind: actor_critic}",
        "policy={kind: mlp}",
    ]
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", "blob.yaml", *overrides])
    assert "has MultiDiscrete([2, 3]) actions, actor_critic needs Discrete ones" in str(
        refused.value
    )


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "policy", ["{kind: mlp, hidden_dims: [4], ", "{kind: lstm, hidden_dims: [3], "]
)
@pytest.mark.long
def test_multidiscrete_actions_of_tensorflow_equal_those_of_numpy(
    policy: str, inside: Path
) -> None:
    results = [
        trained(inside, name, f"policy={policy}backend: {name}}}", *SEVERAL)
        for name in ("numpy", "tensorflow")
    ]
    assert results[0]["final_return_mean"] == results[1]["final_return_mean"]
    assert results[0]["failed_episodes"] == results[1]["failed_episodes"] == 0


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "policy", ["{kind: mlp, hidden_dims: [4]}", "{kind: lstm, hidden_dims: [3]}"]
)
@pytest.mark.long
def test_exported_model_has_the_logits_of_each_choice(
    policy: str, inside: Path, capsys: Any
) -> None:
    keras = importlib.import_module("keras")
    trained(inside, "run", f"policy={policy}", *SEVERAL)
    assert cli.run(["export", "run", "policy.keras"]) == 0
    said = "its output is the logits 0 to 1 of choice 0, 2 to 4 of choice 1: each choice takes its largest logit"
    assert said in capsys.readouterr().err
    model, loaded = keras.models.load_model("policy.keras"), hpc_es.load_policy("run")
    images = np.stack([loaded.make_env().reset(seed=seed)[0] for seed in range(8)])
    if "lstm" in policy:
        memory = np.zeros((8, 3), np.float32)
        logits = np.asarray(model([images[:, np.newaxis].astype(np.float32), memory, memory])[0])[
            :, 0
        ]
    else:
        logits = np.asarray(model(images))
    assert logits.shape == (8, 5)
    actual = np.stack([logits[:, :2].argmax(axis=1), logits[:, 2:].argmax(axis=1)], axis=1)
    np.testing.assert_array_equal(actual, loaded(images))


# Part by part.

WHOLE = """
from hpc_es.policies.networks.feed_forward import FeedForwardActor
from patches import Patches

class Whole(Patches):
    @staticmethod
    def build(options, spaces):
        policy = Patches.build(options, spaces)
        policy.__class__ = Whole
        return policy

    def bind(self, parameters, normaliser):
        return FeedForwardActor(self, self.layout.split(parameters.stacked()), normaliser)
"""
PARTS = """
from hpc_es.core.population import Explicit, Perturbed, Population
from patches import Patches as Parts

def stacked(self):
    raise AssertionError("a stack of candidates was made")

for kind in (Population, Explicit, Perturbed):
    kind.stacked = stacked
"""


@pytest.mark.parametrize(
    "noise", ["{kind: counter}", "{kind: table, table_size: 20000}"], ids=["counter", "table"]
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.long
def test_policy_that_reads_parts_equals_one_that_stacks_candidates(
    algorithm: str, noise: str, here: Path
) -> None:
    (here / "whole.py").write_text(WHOLE)
    (here / "parts.py").write_text(PARTS)
    digests = set()
    for kind, ranks in (("whole:Whole", 1), ("parts:Parts", 1), ("parts:Parts", 2)):
        run = f"{kind.partition(':')[0]}{ranks}"
        options = [
            f"policy.kind={kind}",
            *ALGORITHMS[algorithm],
            f"noise={noise}",
            *EVERY,
            "stop.generations=3",
        ]
        well(mpiexec(ranks, arguments(run, *options), cwd=here))
        digests.add(digest(newest(here / run)))
    assert len(digests) == 1
