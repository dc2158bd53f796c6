"""A policy loaded from a checkpoint acts by the formula of its network;
wrong paths and shapes are refused.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import CheckpointError, ConfigError
from hpc_es.storage import checkpoint
from hpc_es.storage.checkpoint import BestCentre
from hpc_es.trained.policy import ROWS, load_policy
from hpc_es.trained.stored import read_policy
from tests.helpers.harness import python, script
from tests.helpers.trained import NORMALISED, outputs, rewritten, run, snapshot

OBSERVED = np.random.default_rng(1).normal(0, 2, (2 * ROWS + 3, 3)).astype(np.float32)


def env(name: str) -> str:
    return f"task.env_id=tests.helpers.toys:{name}-v0"


def best_of(path: Path) -> BestCentre:
    best = snapshot(path).best
    assert best is not None
    return best


@pytest.mark.long
def test_discrete_actions_are_the_largest_output_plus_start() -> None:
    policy = load_policy(run(env("Shifted")), "last")
    theta = snapshot(run(env("Shifted"))).state.theta
    expected = outputs(theta, 4, 3, OBSERVED).argmax(axis=1) + 5
    assert len(set(expected.tolist())) > 1
    actions = policy(OBSERVED)
    assert isinstance(actions, np.ndarray)
    assert actions.tolist() == expected.tolist()
    assert [policy(row) for row in OBSERVED[:5]] == expected[:5].tolist()
    assert type(policy(OBSERVED[0])) is int


@pytest.mark.long
def test_box_actions_are_the_clipped_output() -> None:
    path = run(
        env("Reach"), "task.env_kwargs={low: -0.1, high: 0.2}", "policy.action_noise_std=5.0"
    )
    policy = load_policy(path, "last")
    raw = outputs(snapshot(path).state.theta, 4, 2, OBSERVED)
    assert (raw < -0.1).any() and (raw > 0.2).any() and ((raw > -0.1) & (raw < 0.2)).any()
    np.testing.assert_allclose(policy(OBSERVED), np.clip(raw, -0.1, 0.2), atol=1e-6)
    one = policy(OBSERVED[0])
    assert isinstance(one, np.ndarray)
    assert one.shape == (2,)
    assert one.dtype == np.float32


def test_loaded_policy_normalises_observations() -> None:
    path = run(env("Reach"), *NORMALISED)
    state = snapshot(path).state
    mean, deviation = state.shared["observation_mean"], state.shared["observation_std"]
    assert np.abs(mean).max() > 0.5
    raw = outputs(state.theta, 4, 2, np.clip((OBSERVED - mean) / deviation, -0.5, 0.5))
    np.testing.assert_allclose(load_policy(path, "last")(OBSERVED), np.clip(raw, -1, 1), atol=1e-5)


def test_loaded_linear_policy_normalises_as_in_training() -> None:
    """By the sample deviation, without clipping; an input that has never varied is 0."""
    path = run(
        env("Reach"),
        "algorithm={kind: ars, population_size: 4, sigma: 1.0}",
        "policy={hidden_dims: []}",
    )
    state = snapshot(path).state
    mean, deviation = state.shared["observation_mean"], state.shared["observation_std"]
    assert np.isinf(deviation).sum() == 1
    observed = 99 * OBSERVED
    raw = (observed - mean) / deviation @ state.theta.reshape(3, 2)
    assert np.abs(raw).max() > 1 > np.abs(raw).min() > 0
    np.testing.assert_allclose(load_policy(path, "last")(observed), np.clip(raw, -1, 1), atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [0, 1, ROWS, ROWS + 1, len(OBSERVED)])
def test_actions_of_a_batch_equal_those_of_its_rows(rows: int) -> None:
    policy = load_policy(run(env("Reach")))
    batch = policy(OBSERVED[:rows])
    assert isinstance(batch, np.ndarray)
    assert batch.shape == (rows, 2)
    assert [list(row) for row in batch] == [list(policy(row)) for row in OBSERVED[:rows]]  # type: ignore[arg-type]


def test_actions_are_valid_in_the_environment() -> None:
    policy = load_policy(run("task.env_id=CartPole-v1"))
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=0)
    assert environment.action_space.contains(policy(observation))
    assert (
        policy(observation.astype(np.float64))
        == policy(observation.tolist())
        == policy(observation)
    )


def test_loaded_policy_has_its_attributes() -> None:
    policy = load_policy(run(env("Reach")), "last")
    assert (policy.generation, policy.which, policy.params) == (2, "last", 3 * 4 + 4 + 4 * 2 + 2)
    assert policy.spaces.observations.size == 3
    assert policy.config.task.env_id == "tests.helpers.toys:Reach-v0"


def test_best_is_the_evaluated_theta() -> None:
    path = run(env("Reach"))
    best = best_of(path)
    result = read_policy(path, "best")
    assert (result.which, result.generation) == ("best", best.generation)
    assert result.theta.tobytes() == best.shared["theta"].tobytes()
    last = read_policy(path, "last")
    assert (last.which, last.generation) == ("last", 2)
    assert last.theta.tobytes() != best.shared["theta"].tobytes()


@pytest.mark.long
@pytest.mark.parametrize(
    ("generation", "change", "which"),
    [(None, 1, "last"), (None, 0, "best"), (None, -1, "best"), (1, 1, "best")],
)
def test_last_theta_is_loaded_if_its_final_evaluation_was_better(
    generation: int | None, change: int, which: str, tmp_path: Path
) -> None:
    """Better by 1, equal, worse, and better but of an older generation."""
    path = shutil.copytree(run(env("Reach")), tmp_path / "run")
    status = json.loads((path / "status.json").read_text())
    message = {
        "final_return_mean": best_of(path).return_ + change,
        "generation": generation or status["generation"],
    }
    (path / "status.json").write_text(json.dumps({**status, **message}))
    assert read_policy(path).which == which
    assert [read_policy(path, item).which for item in ("best", "last")] == ["best", "last"]
    wanted = snapshot(path).state.shared if which == "last" else best_of(path).shared
    np.testing.assert_array_equal(read_policy(path).theta, wanted["theta"])


@pytest.mark.long
def test_without_an_evaluation_the_last_theta_is_loaded() -> None:
    path = run("evaluation.interval=0")
    assert read_policy(path).which == "last"
    with pytest.raises(CheckpointError, match="no evaluation yet"):
        read_policy(path, "best")


def better(path: Path, to: Path, by: float) -> Path:
    """A copy of the run whose best.h5 has seen a later, better evaluation, as after a kill."""
    shutil.copytree(path, to)
    (to / "status.json").unlink()  # it describes the end of the other run
    best = dataclasses.replace(best_of(path), return_=best_of(path).return_ + by, generation=77)
    rewritten(path, to / "checkpoints" / "best.h5", best=best)
    return to


@pytest.mark.long
def test_best_of_a_killed_run_may_be_newer_than_its_checkpoints(tmp_path: Path) -> None:
    assert read_policy(better(run(), tmp_path / "a", by=1)).generation == 77
    assert read_policy(better(run(), tmp_path / "b", by=-1)).generation == best_of(run()).generation
    assert read_policy(tmp_path / "a", "last").generation == 2
    (tmp_path / "a" / "checkpoints" / "best.h5").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="best.h5: .*; the best theta that checkpoint_.* is used"):
        assert read_policy(tmp_path / "a").generation == best_of(run()).generation


def test_damaged_best_checkpoint_is_said(tmp_path: Path) -> None:
    shutil.copytree(run(), tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "best.h5"
    best.write_bytes(best.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="best.h5: .*; the best theta that checkpoint_.* is used"):
        read_policy(tmp_path / "run")


def test_load_policy_accepts_a_checkpoint_file(tmp_path: Path) -> None:
    file = rewritten(run(), tmp_path / "kept.h5")
    assert read_policy(file, "last").theta.tobytes() == snapshot(run()).state.theta.tobytes()
    assert read_policy(file).path == file


@pytest.mark.long
def test_checkpoint_file_is_the_theta_of_its_generation_and_best_the_best_one() -> None:
    path = run(env("Reach"))
    folder, best = path / "checkpoints", best_of(path)
    named = {item: read_policy(folder / item) for item in ("checkpoint_0000000002.h5", "best.h5")}
    last = named["checkpoint_0000000002.h5"]
    assert (last.which, last.generation, named["best.h5"].which) == ("last", 2, "best")
    np.testing.assert_array_equal(last.theta, snapshot(path).state.theta)
    np.testing.assert_array_equal(named["best.h5"].theta, best.shared["theta"])
    assert (last.theta != named["best.h5"].theta).any()
    asked = read_policy(folder / "checkpoint_0000000002.h5", "best")
    assert (asked.which, asked.generation) == ("best", best.generation)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(), (4,), (2, 4), (1, 1, 3), (0,)])
def test_observations_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected an observation of shape \(3,\)"):
        load_policy(run())(np.zeros(shape))


@pytest.mark.long
def test_load_policy_reports_why_a_run_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        load_policy(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_policy(tmp_path)
    with pytest.raises(ValueError, match="expected 'best', 'last'"):
        load_policy(run(), "first")  # type: ignore[arg-type]
    with pytest.raises(
        CheckpointError, match="31 parameters, but its config describes a policy with 26"
    ):
        changed = rewritten(
            run(env("Shifted")), tmp_path / "x.h5", ("toys:Shifted", "toys:Survival")
        )
        load_policy(changed, "last", trust=True)
    with pytest.raises(ConfigError, match=r"task\.env_id"):
        load_policy(rewritten(run(), tmp_path / "y.h5", ("toys:Survival", "toys:Gone")), trust=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        (
            "theta",
            np.zeros((5, 6), np.float32),
            r"expected theta to be a vector of floats, found float32\[5, 6\]",
        ),
        ("theta", np.array([b"a"] * 26), "expected theta to be a vector of floats"),
        ("theta", np.zeros(26, np.complex64), "expected theta to be a vector of floats"),
        (
            "observation_mean",
            np.zeros((), np.float32),
            "expected observation_mean to be a vector of floats",
        ),
        (
            "observation_mean",
            np.zeros(7, np.float32),
            "it has statistics of 7 observations, but its environment has",
        ),
    ],
)
def test_arrays_of_another_form_are_refused(
    name: str, array: Any, said: str, tmp_path: Path
) -> None:
    old = run(env("Survival"), *NORMALISED)
    arrays = {**snapshot(old).state.shared, name: array}
    state = dataclasses.replace(snapshot(old).state, shared=arrays)
    with pytest.raises(CheckpointError, match=said):
        load_policy(rewritten(old, tmp_path / "x.h5", state=state), "last", trust=True)


@pytest.mark.parametrize("name", ["observation_mean", "observation_std"])
def test_half_of_the_statistics_is_refused(name: str, tmp_path: Path) -> None:
    old = run(env("Survival"), *NORMALISED)
    arrays = {key: array for key, array in snapshot(old).state.shared.items() if key != name}
    state = dataclasses.replace(snapshot(old).state, shared=arrays)
    with pytest.raises(CheckpointError, match="expected observation_mean and observation_std"):
        load_policy(rewritten(old, tmp_path / "x.h5", state=state), "last", trust=True)


def test_checkpoint_without_theta_is_refused(tmp_path: Path) -> None:
    state = dataclasses.replace(snapshot(run()).state, shared={"programs": np.zeros(3, np.uint8)})
    with pytest.raises(CheckpointError, match="holds no vector of parameters"):
        read_policy(rewritten(run(), tmp_path / "x.h5", state=state))


def test_loaded_policy_needs_neither_tensorflow_nor_mpi(tmp_path: Path) -> None:
    path = rewritten(run(), tmp_path / "x.h5", ("backend: numpy", "backend: tensorflow"))
    assert checkpoint.load(path).config_text.count("tensorflow")
    done = python(
        script(f"""
        import sys, hpc_es
        assert not {{"numpy", "yaml", "h5py"}} & set(sys.modules), "import hpc_es is not light"
        hpc_es.load_policy({str(path)!r})([0, 1, 2])
        assert not {{"tensorflow", "keras", "mpi4py"}} & set(sys.modules)
    """)
    )
    assert done.status == 0, done


def test_package_has_lazy_attributes() -> None:
    attributes: Any = hpc_es
    assert attributes.load_policy is load_policy
    assert {"train", "load_policy", "__version__"} <= set(dir(hpc_es))
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        attributes.trian  # noqa: B018


# Observations and actions that are not finite.


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("observation", "found"),
    [
        ([1.0, np.nan, 0.0], "the observation is NaN in element 0, 1"),
        ([1.0, 0.0, np.inf], "the observation is infinite in element 0, 2"),
        ([1.0, 0.0, 1e39], "the observation is infinite in element 0, 2"),
        (["1", "2", "3"], "expected observations of dtype float32, found a list of 3"),
        ([1j, 2, 3], r"expected observations of dtype float32, found complex128\[3\]"),
        ([None, 2.0, 3.0], "expected observations of dtype float32, found a list of 3"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_observation_that_is_no_number_is_refused(observation: list[Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        load_policy(run(env("Shifted")), "last")(observation)


def test_nan_action_is_refused(tmp_path: Path) -> None:
    policy = load_policy(run(env("Shifted")), "last")
    theta = np.full_like(policy.source.theta, np.nan)
    policy.source.shared["theta"][:] = theta
    with pytest.raises(
        ValueError, match=r"the action of the policy is NaN .*its parameters are not finite"
    ):
        policy(OBSERVED[0])


@pytest.mark.long
def test_policy_with_infinite_statistics_is_refused(tmp_path: Path) -> None:
    source = run(env("Survival"), *NORMALISED)
    state = snapshot(source).state
    shared = {**state.shared, "observation_mean": np.full(3, np.inf, np.float32)}
    infinite = dataclasses.replace(state, shared=shared)
    path = rewritten(source, tmp_path / "checkpoint_0000002.h5", state=infinite, best=None)
    with pytest.raises(
        CheckpointError, match=r"expected finite observation statistics, found observation_mean"
    ):
        load_policy(path)
