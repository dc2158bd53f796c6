"""Runs that start from the result of another run, a Keras model, or the ES notebook."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hpc_es
from hpc_es.config.registry import module
from hpc_es.config.yaml_text import override
from hpc_es.core.data import Array, Box, Float32, ProblemState, Spaces, State, flat_observations
from hpc_es.core.errors import UserError
from hpc_es.policies.networks.keras_models import MODELS, normaliser_of, value_of
from hpc_es.storage.checkpoint import load
from hpc_es.storage.keras_file import is_keras_file, read_layers
from hpc_es.tasks.observation_statistics import Deviations, Moments
from hpc_es.tasks.problems import statistics_state
from hpc_es.training.init_from import apply_source
from tests.helpers.trained import CONFIG, NORMALISED, run, snapshot

REACH = ("task.env_id=tests.helpers.toys:Reach-v0", "algorithm.optimizer.learning_rate=0.01")
OBSERVED = np.random.default_rng(1).normal(0, 2, (9, 3)).astype(np.float32)
BOX = Box(np.full(2, -1, np.float32), np.full(2, 1, np.float32))


def started(directory: Path, source: object, *overrides: str) -> State:
    """The initial state of a run with init_from."""
    changes = (*REACH, f"policy.init_from={source}", "stop.generations=0", *overrides)
    for _ in hpc_es.train(override(CONFIG, changes), directory):
        pass
    return snapshot(directory).state


def state(size: int = 2, fill: float = 0.0, count: float = 0.0, **more: Any) -> State:
    shared = {
        "theta": np.full(size, fill, np.float32),
        **more,
        "observation_mean": np.full(3, fill, np.float32),
    }
    master = {"adam_m": np.full(size, fill, np.float32), "observation_count": np.array(count)}
    return State(int(fill), shared, master)


CARRIED = ProblemState(
    {"observation_mean": np.zeros(3, np.float32)}, {"observation_count": np.array(0.0)}
)


def test_init_from_copies_theta_and_problem_state_but_not_the_optimizer() -> None:
    result = apply_source(state(), state(fill=5.0, count=7.0), CARRIED)
    assert result.generation == 0
    assert result.shared["theta"].tolist() == [5, 5] and result.shared[
        "observation_mean"
    ].tolist() == [5, 5, 5]
    assert result.master["observation_count"] == 7 and result.master["adam_m"].tolist() == [0, 0]


def test_best_file_gives_the_best_theta_and_the_statistics_it_was_evaluated_with(
    tmp_path: Path,
) -> None:
    path = run(*REACH, *NORMALISED) / "checkpoints" / "best.h5"
    snapshot_of_best = load(path)
    assert snapshot_of_best.best is not None
    result = started(tmp_path / "next", path, *NORMALISED)
    for name in ("theta", "observation_mean", "observation_std"):
        np.testing.assert_array_equal(result.shared[name], snapshot_of_best.best.shared[name])
    assert (result.theta != snapshot_of_best.state.theta).any()


def test_parts_missing_in_the_source_keep_their_initial_values() -> None:
    """A value head of the new run; and statistics of other observations cannot be used."""
    value = np.array([1.0], np.float32)
    source = state(fill=5.0, count=7.0)
    source = State(
        5, {"theta": source.theta, "observation_mean": np.ones(4, np.float32), "old": value}, {}
    )
    result = apply_source(state(value=value), source, CARRIED)
    assert list(result.shared) == ["theta", "value", "observation_mean"]
    assert result.shared["theta"].tolist() == [5, 5] and result.shared["value"] is value
    assert (
        result.shared["observation_mean"].tolist() == [0, 0, 0]
        and result.master["observation_count"] == 0
    )


def test_statistics_of_another_kind_are_not_mixed() -> None:
    """Mean and count without the sums would be neither the
    statistics of the source nor those of the run.
    """
    ours = ProblemState(CARRIED.shared, {**CARRIED.master, "observation_centre": np.zeros(3)})
    begin = ours.merge_into(State(0, {"theta": np.zeros(2, np.float32)}, {}))
    result = apply_source(begin, state(fill=5.0, count=7.0), ours)
    assert result.theta.tolist() == [5, 5]
    assert (
        result.shared["observation_mean"].tolist() == [0, 0, 0]
        and result.master["observation_count"] == 0
    )


def test_counters_restart_at_zero() -> None:
    own, source = ({"episodes": np.asarray(n)} for n in (0, 500))
    result = apply_source(state(**own), state(fill=5.0, **source), CARRIED)
    assert int(result.shared["episodes"]) == 0 and result.theta.tolist() == [5.0, 5.0]


def test_run_without_statistics_copies_none() -> None:
    plain = State(0, {"theta": np.zeros(2, np.float32)}, {})
    result = apply_source(plain, state(fill=5.0, count=7.0), ProblemState())
    assert (list(result.shared), list(result.master), result.theta.tolist()) == (
        ["theta"],
        [],
        [5, 5],
    )


# Statistics of the observations: theirs, none, or those of a file.


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        (
            NORMALISED,
            (),
            "was trained with normalised observations, but task.observation_normalization.enabled is false",
        ),
        ((), NORMALISED, "was trained with raw observations, or has no observation statistics"),
        (NORMALISED, NORMALISED, None),
        ((), (), None),
        (NORMALISED, ("policy.init_observations=false",), None),
        ((), (*NORMALISED, "policy.init_observations=false"), None),
    ],
)
def test_different_normalisation_of_the_source_is_reported(
    source: tuple[str, ...],
    overrides: tuple[str, ...],
    message: str | None,
    tmp_path: Path,
    capsys: Any,
) -> None:
    started(tmp_path / "run", run(*REACH, *source), *overrides)
    out = capsys.readouterr().out
    assert "WARNING: policy.init_from" not in out if message is None else f" {message}" in out


@pytest.mark.long
def test_statistics_can_be_omitted_or_come_from_another_run(tmp_path: Path) -> None:
    source, other = (run(*REACH, *NORMALISED, f"seed={seed}") for seed in (1, 2))
    names = (
        "observation_mean",
        "observation_std",
        "observation_sum",
        "observation_squares",
        "observation_count",
    )

    def statistics(state: State) -> list[bytes]:
        return [{**state.shared, **state.master}[name].tobytes() for name in names]

    fresh = started(tmp_path / "a", source, *NORMALISED, "policy.init_observations=false")
    assert (
        fresh.shared["observation_mean"].tolist() == [0, 0, 0]
        and fresh.master["observation_count"] == 0.01
    )
    result = started(tmp_path / "b", source, *NORMALISED, f"policy.init_observations={other}")
    assert (
        statistics(result)
        == statistics(snapshot(other).state)
        != statistics(snapshot(source).state)
    )
    assert result.theta.tobytes() == fresh.theta.tobytes() == snapshot(source).state.theta.tobytes()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("policy.init_observations={source}",),
            "policy.init_observations: names observation statistics, but",
        ),
        ((*NORMALISED, "policy.init_observations={plain}"), "has no observation statistics"),
        ((*NORMALISED, "policy.init_observations={npz}"), "expected arrays _sum, sumsq, count"),
        (
            ("policy.init_optimizer={npz}",),
            "policy.init_optimizer: the optimizer of policy.init_from does not match",
        ),
        (("policy.init_from={text}",), "expected a Keras model as written by model.save"),
    ],
)
def test_unsuitable_file_is_refused(overrides: tuple[str, ...], said: str, tmp_path: Path) -> None:
    files = {"source": run(*REACH, *NORMALISED), "plain": run(*REACH), "npz": tmp_path / "o.npz"}
    np.savez(files["npz"], t=3, v=np.zeros(26, np.float32))  # of SGD
    files["text"] = tmp_path / "text.keras"
    files["text"].write_text("no archive")
    with pytest.raises(UserError) as message:
        started(tmp_path / "run", files["source"], *(text.format(**files) for text in overrides))
    assert said in str(message.value)


def test_statistics_of_the_other_kind_are_converted() -> None:
    """4 observations with mean 1 and 2, sums of squared differences 12 and 0: the floor is 0.1."""
    sample = Deviations(np.array([1.0, 2.0]), np.array([12.0, 0.0]), 4.0)
    theirs, ours = statistics_state(sample), statistics_state(Moments.initial(2))
    source = theirs.merge_into(State(0, {"theta": np.ones(1, np.float32)}, {}))
    result = apply_source(
        ours.merge_into(State(0, {"theta": np.zeros(1, np.float32)}, {})), source, ours
    )
    assert (
        result.shared["observation_mean"].tolist() == [1, 2]
        and result.master["observation_count"] == 4
    )
    # sqrt(12 / 3), and the floor
    np.testing.assert_allclose(result.shared["observation_std"], [2, 0.1])
    back = apply_source(theirs.merge_into(State(0, {}, {})), result, theirs)
    np.testing.assert_allclose(back.shared["observation_std"], [2, 0.1], rtol=1e-6)


# The ES notebook: a Keras 2 model with layers of its own, and arrays beside it.


def notebook(
    path: Path, kernels: list[tuple[Array, Array]], mean: list[float], deviation: list[float]
) -> Path:
    """A file as Keras 2 wrote it for neuroevolution-ai/evolution-strategies."""
    layers: list[dict[str, Any]] = [{"class_name": "InputLayer", "config": {"name": "input_1"}}]
    own = {"name": "observation_normalization_layer", "ob_mean": mean, "ob_std": deviation}
    layers.append({"class_name": "ObservationNormalizationLayer", "config": own})
    names = ["dense", *(f"dense_{number}" for number in range(1, len(kernels)))]
    hidden = {"activation": "tanh"}
    layers += [{"class_name": "Dense", "config": {"name": name, **hidden}} for name in names[:-1]]
    layers.append({"class_name": "Dense", "config": {"name": names[-1], "activation": "linear"}})
    with h5py.File(path, "w") as file:
        config = {"class_name": "Model", "config": {"name": "model", "layers": layers}}
        file.attrs["model_config"] = json.dumps(config).encode()
        for name, (kernel, bias) in zip(names, kernels, strict=True):
            group = file.create_group(f"model_weights/{name}")
            group.attrs["weight_names"] = [f"{name}/kernel:0".encode(), f"{name}/bias:0".encode()]
            group[f"{name}/kernel:0"], group[f"{name}/bias:0"] = kernel, bias
        file.create_group("model_weights/input_1").attrs["weight_names"] = np.zeros(0)
    return path


def test_notebook_model_with_its_statistics_and_optimizer(tmp_path: Path) -> None:
    """12 layers, since dense_10 sorts before dense_2; 5 observations with mean 2, 4, 6."""
    rng = np.random.default_rng(0)
    widths = (3, *[4] * 11, 2)
    kernels = [
        (rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=m).astype(np.float32))
        for n, m in itertools.pairwise(widths)
    ]
    theta = np.concatenate([part.ravel() for layer in kernels for part in layer])
    model = notebook(tmp_path / "snapshot_00003.h5", kernels, [1, 2, 3], [1, 2, 0.5])
    squares = 5 * (np.square([2, 4, 6]) + np.square([1.0, 0.05, 2.0]))
    np.savez(
        tmp_path / "ob.npz", _sum=np.float32([10, 20, 30]), sumsq=np.float32(squares), count=5.0
    )
    slots = {"m": np.float32(theta * 2), "v": np.float32(theta**2), "beta1": 0.9}
    np.savez(tmp_path / "optimizer.npz", t=7, dim=len(theta), **slots)  # type: ignore[arg-type]
    network = (*NORMALISED, f"policy.hidden_dims={list(widths[1:-1])}")
    alone = started(tmp_path / "a", model, *network)
    assert alone.theta.tobytes() == theta.tobytes()
    np.testing.assert_allclose(alone.shared["observation_mean"], [1, 2, 3], rtol=1e-6)
    np.testing.assert_allclose(alone.shared["observation_std"], [1, 2, 0.5], rtol=1e-5)
    assert alone.master["observation_count"] == 1e5 and alone.master["optimizer_steps"] == 0
    files = (
        f"policy.init_observations={tmp_path}/ob.npz",
        f"policy.init_optimizer={tmp_path}/optimizer.npz",
    )
    result = started(tmp_path / "b", model, *network, *files)
    np.testing.assert_allclose(result.shared["observation_mean"], [2, 4, 6], rtol=1e-6)
    # 0.05 is below the floor
    np.testing.assert_allclose(result.shared["observation_std"], [1, 0.1, 2], rtol=1e-4)
    assert result.master["observation_count"] == 5 and result.master["optimizer_steps"] == 7
    assert result.master["adam_m"].tobytes() == slots["m"].tobytes()  # type: ignore[attr-defined]
    assert result.master["adam_v"].tobytes() == slots["v"].tobytes()  # type: ignore[attr-defined]


def test_keras_model_of_another_network_is_refused(tmp_path: Path) -> None:
    layers: list[tuple[Array, Array]] = [
        (np.zeros((3, 5)), np.zeros(5)),
        (np.zeros((5, 2)), np.zeros(2)),
    ]
    model = notebook(tmp_path / "model.h5", layers, [0, 0, 0], [1, 1, 1])
    with pytest.raises(
        UserError,
        match=r"expected dense layers of the shapes \[\(3, 4\), \(4, 2\)\], found \[\(3, 5\)",
    ):
        started(tmp_path / "run", model)


# Keras files of our own.


@pytest.mark.tensorflow
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_training_continues_from_an_exported_policy(suffix: str, tmp_path: Path) -> None:
    source, file = run(*REACH, *NORMALISED), tmp_path / f"policy{suffix}"
    policy = hpc_es.load_policy(source, "last")
    build, _ = MODELS["mlp"]
    build(policy.policy, policy.source.theta, policy.source.normaliser).save(file)
    assert is_keras_file(file) and not is_keras_file(source / "checkpoints" / "best.h5")
    result = started(tmp_path / "run", file, *NORMALISED)
    assert result.theta.tobytes() == policy.source.theta.tobytes()
    np.testing.assert_allclose(
        hpc_es.load_policy(tmp_path / "run", "last")(OBSERVED), policy(OBSERVED), atol=1e-5
    )


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_theta_value_head_and_normaliser_are_restored_from_a_keras_file(
    kind: str, tmp_path: Path
) -> None:
    package, (build, parameters) = module("policies", kind), MODELS[kind]
    policy = package.build(package.Options(hidden_dims=(4, 5)), Spaces(flat_observations(3), BOX))
    rng = np.random.default_rng(0)
    theta, value = (rng.normal(size=size).astype(np.float32) for size in (policy.layout.size, 6))
    normaliser: tuple[Float32, Float32, float] = (
        np.float32([1, 2, 3]),
        np.float32([1, 0.1, np.inf]),
        5.0,
    )  # type: ignore[assignment,arg-type]
    build(policy, theta, normaliser, value=value).save(tmp_path / "model.keras")
    layers = read_layers(tmp_path / "model.keras")
    np.testing.assert_allclose(parameters(policy, layers), theta, atol=1e-6)
    np.testing.assert_array_equal(value_of(layers), value)  # type: ignore[arg-type]
    for result, expected in zip(normaliser_of(layers) or (), normaliser[:2], strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_other_number_of_parameters_is_explained(tmp_path: Path) -> None:
    """The layers of the new policy, and what the other policy
    or its environment has in place of them.
    """
    old = run()
    with pytest.raises(UserError) as caught:
        started(tmp_path / "other", old, "policy.hidden_dims=[5]")
    text = str(caught.value)
    assert (
        "the networks differ (policy.hidden_dims: [4] there, [5] in the config); the new one has "
        in text
    )
    assert re.search(
        r"hidden_0_kernel \[\d, 5\], hidden_0_bias \[5\], output_kernel \[5, \d\], output_bias",
        text,
    )
    with pytest.raises(UserError) as caught:
        started(tmp_path / "other", old, "task.env_id=CartPole-v1")
    cause = "it was trained on tests.helpers.toys:Survival-v0, whose observations or actions have other sizes"
    assert f"the networks differ ({cause}); the new one" in str(caught.value)


def test_resuming_with_another_population_names_init_from(tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(run(), old)
    config = override(CONFIG, ["algorithm.population_size=6"])
    with pytest.raises(
        UserError, match=rf"continues from these parameters with policy\.init_from={old}$"
    ):
        list(hpc_es.train(config, old))
    other = override(CONFIG, ["policy.hidden_dims=[5]"])
    with pytest.raises(UserError, match=r"choose another --output$"):  # they would not fit
        list(hpc_es.train(other, old))
    # as the message says
    new = {**config, "policy": {**config.get("policy", {}), "init_from": str(old)}}
    assert list(hpc_es.train(new, tmp_path / "new"))


# Networks of other sizes.

SENSES = "task.env_id=tests.helpers.structured:Senses-v0"
FRESH = "has other shapes of, or lacks, output_kernel [4, 1], output_bias [1], which start anew"


@pytest.mark.long
def test_parts_that_fit_are_taken_for_another_action_space(tmp_path: Path, capsys: Any) -> None:
    """From two discrete actions to a Box of one: all layers but the output."""
    old = run(SENSES)
    before = snapshot(old).state.theta
    box = (SENSES, "task.env_kwargs.box=true")
    changes = (*box, "algorithm.optimizer.learning_rate=0.01", "stop.generations=0")
    for _ in hpc_es.train(override(CONFIG, changes), tmp_path / "anew"):
        pass
    anew = snapshot(tmp_path / "anew").state.theta
    capsys.readouterr()
    theta = started(tmp_path / "next", old, *box).theta
    # (9 + 1) 4 parameters of the hidden layer, and (4 + 1) 1 of the output
    assert theta.shape == (45,) and before.shape == (50,)
    np.testing.assert_array_equal(theta[:40], before[:40])
    np.testing.assert_array_equal(theta[40:], anew[40:])
    out = capsys.readouterr()
    assert (out.out + out.err).count(FRESH) == 1


def test_parts_that_fit_are_taken_for_further_layers(tmp_path: Path) -> None:
    old = run(SENSES)
    theta = started(tmp_path / "next", old, SENSES, "policy.hidden_dims=[4,3]").theta
    np.testing.assert_array_equal(theta[:40], snapshot(old).state.theta[:40])
    assert theta.shape == (40 + 15 + 8,)
