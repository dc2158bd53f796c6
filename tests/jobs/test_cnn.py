"""Runs of the policy cnn on images: bit-identical on any number of ranks and after a kill, and the
commands.

The environment is that of examples/own_images, uint8[16, 16, 3]. Each test works in a directory of
its own.
"""

from __future__ import annotations

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
from hpc_es.api import evaluate
from hpc_es.config.loading import load as load_config
from hpc_es.core.errors import CheckpointError, ConfigError
from hpc_es.storage.checkpoint_directory import Store
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec, python, start
from tests.helpers.runs import digest, newest, wait_for

EXAMPLE = ROOT / "examples" / "own_images"
POLICY = """
    {kind: cnn, convolutions: [{filters: 3, kernel: 4, stride: 4}], hidden_dims: [4], candidates_per_call: 3,
    normalisation: NORMALISATION, reference_frames: 16}
"""
BLOB = """
seed: 1
task: {kind: episodes, env_id: "blob:Blob-v0"}
policy: POLICY
algorithm: {kind: es, population_size: 8, sigma: 0.1}
noise: {kind: counter}
evaluation: {interval: 1, episodes: 2}
checkpoint: {interval: 1, keep_last: 1000}
report: {plot_interval_seconds: 0}
stop: {generations: 2}
"""
MINATAR = """
seed: 1
task: {kind: jax_episodes, env_id: "gymnax:Breakout-MinAtar", flatten_observations: false, lanes: 4, jobs_per_call: 4,
  max_episode_steps: 50}
policy: {kind: cnn, preset: minatar, hidden_dims: [8], normalisation: layer}
algorithm: {kind: es, population_size: 8, sigma: 0.1}
noise: {kind: counter}
evaluation: {interval: 1, episodes: 2}
report: {plot_interval_seconds: 0}
stop: {generations: 2}
"""
CMA_ES = "algorithm={kind: cma_es, population_size: 8, sigma: 0.1}"
LSTM = "policy.lstm=3"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a directory with the environment and the configs."""
    shutil.copy(EXAMPLE / "blob.py", tmp_path)
    for normalisation in ("none", "layer", "virtual_batch"):
        text = BLOB.replace("POLICY", POLICY.replace("NORMALISATION", normalisation).strip())
        (tmp_path / f"{normalisation}.yaml").write_text(text)
    (tmp_path / "minatar.yaml").write_text(MINATAR)
    return tmp_path


@pytest.fixture
def inside(here: Path) -> Iterator[Path]:
    """Make the directory the current one of this process;
    its environment is forgotten afterwards.
    """
    with runs.working_in(here, "blob"):
        yield here


def arguments(config: str, run: str, *overrides: str) -> list[str]:
    return ["-m", "hpc_es.main", f"{config}.yaml", "--output", run, *overrides]


def trained(here: Path, config: str, run: str, *overrides: str) -> Any:
    """Train in this process; return status.json."""
    for _ in hpc_es.train(load_config(here / f"{config}.yaml", list(overrides)), here / run):
        pass
    return json.loads((here / run / "status.json").read_text())


def finished(done: Any) -> None:
    assert done.status == 0 and not done.timed_out, str(done)


# Bits.


@pytest.mark.parametrize(
    ("config", "overrides"),
    [("virtual_batch", []), ("virtual_batch", [CMA_ES]), ("layer", [LSTM]), ("none", [CMA_ES])],
)
@pytest.mark.long
def test_run_killed_and_resumed_on_three_ranks_is_bit_identical_to_one_rank(
    config: str, overrides: list[str], here: Path
) -> None:
    with start(
        3, arguments(config, "three", *overrides, "stop.generations=10000"), cwd=here
    ) as job:
        wait_for(lambda: len(Store(here / "three" / "checkpoints").paths()) > 2, 120.0)
        job.kill()
    end = newest(here / "three").state.generation + 3
    finished(
        mpiexec(3, arguments(config, "three", *overrides, f"stop.generations={end}"), cwd=here)
    )
    finished(python(arguments(config, "one", *overrides, f"stop.generations={end}"), cwd=here))
    assert digest(newest(here / "three")) == digest(newest(here / "one"))


@pytest.mark.parametrize("actions", ["discrete", "box", "several"])
def test_results_are_bit_identical_for_any_size_of_chunks(actions: str, inside: Path) -> None:
    options = (f"task.env_kwargs.actions={actions}", LSTM)
    for size in (1, 5):
        trained(inside, "virtual_batch", f"run{size}", f"mpi.chunk_size={size}", *options)
    assert digest(newest(inside / "run1")) == digest(newest(inside / "run5"))


def test_compiled_episodes_of_images_are_bit_identical_on_two_ranks(here: Path) -> None:
    pytest.importorskip("gymnax", reason="gymnax is not installed here: make test-jax")
    finished(mpiexec(2, arguments("minatar", "two"), cwd=here))
    finished(python(arguments("minatar", "one"), cwd=here))
    assert digest(newest(here / "two")) == digest(newest(here / "one"))


@pytest.mark.parametrize("config", ["none", "virtual_batch"])
@pytest.mark.long
def test_policy_learns_from_images(config: str, inside: Path) -> None:
    """Policies that ignore the image earn 6, perfect ones 12."""
    algorithm = "algorithm={population_size: 64, optimizer: {kind: adam, learning_rate: 0.05}}"
    options = (algorithm, "stop.generations=60", "evaluation={interval: 20, episodes: 20}")
    assert trained(inside, config, "run", *options)["final_return_mean"] > 10.5


# The reference batch.


def test_eval_and_library_draw_the_same_reference_observations(inside: Path, capsys: Any) -> None:
    trained(inside, "virtual_batch", "run")
    assert (
        cli.run(["eval", "run", "--episodes", "3", "--seed", "4", "--json", "--which", "last"]) == 0
    )
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    policy = hpc_es.load_policy("run", "last")
    environment, total = policy.make_env(), 0.0
    for seed in evaluate.seeds(4, range(3)):
        image, is_over = environment.reset(seed=seed)[0], False
        while not is_over:
            image, reward, is_over, _, _ = environment.step(policy(image))
            total += float(reward)
    assert result["return_mean"] == pytest.approx(total / 3)


def test_repetitions_have_reference_observations_of_their_own(inside: Path) -> None:
    """And each is evaluated with its own: a batch of another repetition has another sum."""
    finished(python(arguments("virtual_batch", "run", "repetitions=2"), cwd=inside))
    sums = []
    for repetition in sorted((inside / "run").glob("repetition_*")):
        sums.append(newest(repetition).provenance["reference_observations"])
        assert hpc_es.load_policy(repetition)(np.zeros((16, 16, 3), np.uint8)) in (0, 1)
    assert len(sums) == len(set(sums)) == 2


def test_another_environment_is_refused_by_resume_eval_and_library(
    inside: Path, capsys: Any
) -> None:
    """It has the same name and spaces, but shows darker images."""
    finished(python(arguments("virtual_batch", "run"), cwd=inside))
    source = inside / "blob.py"
    source.write_text(source.read_text().replace("integers(64, ", "integers(63, "))
    done = python(arguments("virtual_batch", "run", "stop.generations=3"), cwd=inside)
    assert (
        done.status != 0
        and "run cannot be resumed: random play gives other reference observations" in done.stderr
    )
    with pytest.raises(CheckpointError, match="random play gives other reference observations now"):
        hpc_es.load_policy("run", trust=True)
    assert newest(inside / "run").state.generation == 2


def test_overrides_of_eval_change_the_task_and_not_the_reference(inside: Path, capsys: Any) -> None:
    """The network stays that of the training run."""
    trained(inside, "virtual_batch", "run")
    assert cli.run(["eval", "run", "task.max_episode_steps=5", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["length_mean"] == 5


# Messages of --check.


def checked(config: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        cli.run(["check", f"{config}.yaml", *overrides])
    return str(caught.value)


def test_check_shows_shape_actions_and_number_of_parameters(inside: Path, capsys: Any) -> None:
    """Kernel 4 x 4 x 3 x 3, 16 positions of 3 channels to 4 units, two gains and biases,
    and 2 outputs.
    """
    assert cli.run(["check", "virtual_batch.yaml"]) == 0
    parameters = 4 * 4 * 3 * 3 + 16 * 3 * 4 + 2 * (3 + 4) + (4 + 1) * 2
    text = f"observations uint8[16, 16, 3], actions Discrete(2), parameters {parameters}"
    assert text in capsys.readouterr().out


def test_statistics_of_images_are_refused(inside: Path) -> None:
    text = checked("none", "task.observation_normalization.enabled=true")
    assert (
        "task.observation_normalization.enabled: is true, but the policy scales observations itself"
        in text
    )


def test_virtual_batches_of_compiled_episodes_are_refused(inside: Path) -> None:
    pytest.importorskip("gymnax", reason="gymnax is not installed here: make test-jax")
    text = checked("minatar", "policy.normalisation=virtual_batch")
    assert text.startswith("policy.normalisation: is virtual_batch, but compiled episodes")


def test_flattened_images_are_refused(inside: Path) -> None:
    pytest.importorskip("gymnax", reason="gymnax is not installed here: make test-jax")
    text = checked("minatar", "task.flatten_observations=true")
    assert (
        "found 400 observations" in text
        and "compiled images need task.flatten_observations: false" in text
    )
