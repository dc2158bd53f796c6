"""The recurrent policy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core.data import Array, Box, Discrete, Float32, Normaliser, Spaces, flat_observations
from hpc_es.core.errors import ConfigError
from hpc_es.core.population import Perturbed
from hpc_es.policies import lstm
from hpc_es.policies.lstm import LSTM, InPlaceGates, LSTMActor, Options
from hpc_es.policies.networks.layers import ArrayOps, lstm_gates
from tests.helpers.populations import population
from tests.helpers.trained import HEADS, NORMALISER, WIDTH

ROWS, STEPS = 6, 5


def policy(
    actions: Box | Discrete,
    hidden: tuple[int, ...] = (8,),
    observations: int = WIDTH,
    **options: Any,
) -> LSTM:
    return LSTM(
        Options(hidden_dims=hidden, **options), Spaces(flat_observations(observations), actions)
    )


def headed(head: str, hidden: tuple[int, ...], backend: Any = "numpy") -> LSTM:
    space, bins = HEADS[head]
    return policy(space, hidden, action_bins=bins, backend=backend)


def perturbed(size: int, rows: int = ROWS) -> Perturbed:
    rng = np.random.default_rng(size)
    directions = rng.standard_normal((rows, size)).astype(np.float32)
    return population(
        directions[0] / 2,
        directions,
        np.arange(rows),
        np.linspace(-0.5, 0.5, rows).astype(np.float32),
    )


def alone(theta: Float32, rows: int = 1) -> Perturbed:
    return population(
        theta,
        np.empty((0, len(theta)), np.float32),
        np.zeros(rows, np.intp),
        np.zeros(rows, np.float32),
    )


def observations(rows: int = ROWS, steps: int = STEPS) -> Float32:
    return np.random.default_rng(3).standard_normal((steps, rows, WIDTH)).astype(np.float32)


def acted(actor: Any, observed: Float32) -> Array:
    """Actions of all steps."""
    return np.stack([actor.act(step) for step in observed])


def by_the_formula(
    network: LSTM, flat: Float32, observed: Float32, normaliser: Normaliser | None
) -> Array:
    """The outputs of one episode, float64[steps, outputs], gate by gate from the flat vector."""
    x_seen, (mean, deviation, clip) = observed.astype(np.float64), normaliser or (0.0, 1.0, np.inf)
    x_seen = np.clip((x_seen - mean) / deviation, -clip, clip)
    parameters = iter(flat.astype(np.float64))

    def take(*shape: int) -> Array:
        return np.array([next(parameters) for _ in range(int(np.prod(shape)))]).reshape(shape)

    def sigmoid(z: Array) -> Array:
        return 1 / (1 + np.exp(-z))

    for units in network.hidden_dims:
        kernel, bias = take(x_seen.shape[1] + units, 4 * units), take(4 * units)
        h, c, outputs = np.zeros(units), np.zeros(units), []
        for x in x_seen:
            z = np.concatenate([x, h]) @ kernel + bias
            i, j, f, o = z[:units], z[units : 2 * units], z[2 * units : 3 * units], z[3 * units :]
            c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
        x_seen = np.array(outputs)
    return x_seen @ take(network.hidden_dims[-1], network.head.outputs) + take(network.head.outputs)


def test_parameter_counts() -> None:  # T11, without the value's 49
    two = policy(Discrete(2), (48,), observations=4)
    assert two.layout.shapes["lstm_0_kernel"] == (52, 192)
    assert two.layout.size == 10_176 + 98
    assert policy(Discrete(11), (48,), observations=25).layout.size + 49 == 14_796


@pytest.mark.parametrize("normaliser", [None, NORMALISER], ids=["raw", "normalised"])
@pytest.mark.parametrize("hidden", [(8,), (7, 3)])
@pytest.mark.parametrize("head", HEADS)
def test_lstm_actions_equal_the_formula(
    head: str, hidden: tuple[int, ...], normaliser: Normaliser | None
) -> None:
    network = headed(head, hidden)
    jobs, observed = perturbed(network.layout.size), observations()
    actions = acted(network.bind(jobs, normaliser), observed)
    for row, flat in enumerate(jobs.stacked()):
        outputs = by_the_formula(network, flat, observed[:, row], normaliser).astype(np.float32)
        np.testing.assert_allclose(actions[:, row], network.head.actions(outputs), atol=1e-5)
    assert len(np.unique(actions)) > 1


def test_lstm_of_one_unit_by_hand() -> None:
    """Kernel and bias are 0 except for j: c = sigmoid(1) c + .5 tanh(x), h = .5 tanh(c)."""
    network = policy(
        Box(np.array([-9], np.float32), np.array([9], np.float32)), (1,), observations=1
    )
    # x to j; then the output: 2 h + .25
    theta = np.array([0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0.25], np.float32)
    actions = acted(network.bind(alone(theta), None), np.array([[[1]], [[0]]], np.float32))
    c = 0.5 * 0.76159416
    second = 0.7310586 * c
    np.testing.assert_allclose(
        actions.ravel(), [np.tanh(c) + 0.25, np.tanh(second) + 0.25], rtol=1e-6
    )


def test_lstm_gates_computed_in_place_equal_the_cell() -> None:
    rng = np.random.default_rng(0)
    z, c = (rng.normal(0, 4, (5, 3, width)).astype(np.float32) for width in (28, 7))
    expected = lstm_gates(ArrayOps(np), z, c)
    for result, wanted in zip(InPlaceGates(7).gates(z.copy(), c), expected, strict=True):
        np.testing.assert_allclose(result, wanted, atol=1e-6)


def test_initial_parameters() -> None:  # T11, T9
    network = policy(Discrete(2), (48, 20), observations=4)
    arrays = network.layout.split(network.initial(np.random.default_rng(0)))
    np.testing.assert_allclose(np.linalg.norm(arrays["output_kernel"], axis=0), 0.01, rtol=1e-5)
    for name, bound in (
        ("lstm_0_kernel", np.sqrt(6 / (52 + 192))),
        ("lstm_1_kernel", np.sqrt(6 / (68 + 80))),
    ):
        assert 0.99 * bound < np.abs(arrays[name]).max() <= bound
        assert abs(arrays[name].mean()) < 5 * bound / np.sqrt(3 * arrays[name].size)
    assert not any(arrays[name].any() for name in arrays if name.endswith("bias"))


@pytest.mark.parametrize("normaliser", [None, NORMALISER], ids=["raw", "normalised"])
def test_parallel_episodes_equal_sequential_ones(normaliser: Normaliser | None) -> None:
    """Row job * 3 + episode has the job's parameters and its own memory."""
    network, observed = headed("box", (8, 4)), observations(3 * ROWS)
    actor = network.bind(perturbed(network.layout.size), normaliser)
    together = acted(actor.with_episodes(3), observed)  # type: ignore[attr-defined]
    for episode in range(3):
        apart = acted(
            network.bind(perturbed(network.layout.size), normaliser), observed[:, episode::3]
        )
        np.testing.assert_allclose(together[:, episode::3], apart, atol=1e-6)


def test_restart_resets_the_memory_of_one_row() -> None:
    network, observed = headed("box", (8,)), observations(3 * ROWS)
    actor = network.bind(perturbed(network.layout.size), None)
    acted(actor, observations())
    wide = actor.with_episodes(3)  # type: ignore[attr-defined]
    first = acted(wide, observed)
    wide.restart(7)
    second = acted(wide, observed)
    assert second[:, 7].tobytes() == first[:, 7].tobytes()
    assert (second[:, [6, 8]] != first[:, [6, 8]]).any(axis=(0, 2)).all()


def test_job_with_several_episodes_does_not_depend_on_other_rows() -> None:
    network, observed = headed("box", (17,)), observations(4 * ROWS)
    whole = perturbed(network.layout.size)
    together = acted(network.bind(whole, None).with_episodes(4), observed)  # type: ignore[attr-defined]
    part = population(whole.centres[0], whole.directions, whole.rows[2:3], whole.scales[2:3])
    single = acted(network.bind(part, None).with_episodes(4), observed[:, 8:12])  # type: ignore[attr-defined]
    assert single.tobytes() == together[:, 8:12].tobytes()
    kept = network.bind(whole, None).with_episodes(4)  # type: ignore[attr-defined]
    started = acted(kept, observed[:2])
    kept.keep(np.arange(8, 12))
    rest = acted(kept, observed[2:, 8:12])
    assert np.concatenate([started[:, 8:12], rest]).tobytes() == together[:, 8:12].tobytes()


def test_acting_does_not_change_observations() -> None:
    network, observed = headed("box", (8,)), observations()
    before = observed.copy()
    acted(network.bind(perturbed(network.layout.size), NORMALISER), observed)
    assert np.array_equal(observed, before)


@pytest.mark.sampled(3)
@pytest.mark.tensorflow
@pytest.mark.parametrize("normaliser", [None, NORMALISER], ids=["raw", "normalised"])
@pytest.mark.parametrize("hidden", [(8,), (7, 3)])
@pytest.mark.parametrize("head", HEADS)
def test_tensorflow_equals_numpy(
    head: str, hidden: tuple[int, ...], normaliser: Normaliser | None
) -> None:
    ours, theirs = headed(head, hidden, "tensorflow"), headed(head, hidden)
    actor, expected = (
        item.bind(perturbed(item.layout.size), normaliser) for item in (ours, theirs)
    )
    assert not isinstance(actor, LSTMActor)
    observed = observations(steps=6)
    np.testing.assert_allclose(acted(actor, observed[:2]), acted(expected, observed[:2]), atol=1e-5)
    for item in (actor, expected):
        item.keep(np.array([0, 2, 5]))
        item.restart(1)
    np.testing.assert_allclose(
        acted(actor, observed[2:, :3]), acted(expected, observed[2:, :3]), atol=1e-5
    )


@pytest.mark.tensorflow
def test_restarted_tensorflow_row_forgets_nan() -> None:
    network = headed("box", (4,), "tensorflow")
    actor, observed = network.bind(perturbed(network.layout.size), None), observations()
    first = acted(actor, observed)
    bad = observed[0].copy()
    bad[2] = np.nan
    actor.act(bad)
    actor.restart(2)
    assert acted(actor, observed)[:, 2].tobytes() == first[:, 2].tobytes()


@pytest.mark.tensorflow
@pytest.mark.parametrize("normaliser", [None, NORMALISER], ids=["raw", "normalised"])
@pytest.mark.parametrize("head", HEADS)
def test_exported_lstm_equals_numpy(
    head: str, normaliser: Normaliser | None, tmp_path: Path
) -> None:
    """A whole sequence, then one more step with the returned memory."""
    import keras

    from hpc_es.policies.networks import keras_models

    network, observed = headed(head, (7, 3)), observations(steps=STEPS + 1)
    theta = np.random.default_rng(7).standard_normal(network.layout.size).astype(np.float32)
    keras_models.lstm_model(network, theta, normaliser).save(tmp_path / "policy.keras")
    model = keras.models.load_model(tmp_path / "policy.keras")
    memory = [np.zeros((ROWS, units), np.float32) for units in (7, 7, 3, 3)]
    by_row = np.ascontiguousarray(observed.transpose(1, 0, 2))
    first, *memory = map(np.asarray, model([by_row[:, :STEPS], *memory]))
    last, *_ = map(np.asarray, model([by_row[:, STEPS:], *memory]))
    result = np.concatenate([first, last], axis=1).transpose(1, 0, 2)
    expected = acted(network.bind(alone(theta, ROWS), normaliser), observed)
    if head == "discrete":
        assert (result.argmax(axis=2) + 4).tolist() == expected.tolist()
    else:
        np.testing.assert_allclose(result, expected, atol=1e-5)
    assert len(np.unique(expected)) > 1


def test_lstm_without_layers_is_refused() -> None:
    task = {"env_id": "CartPole-v1"}
    with pytest.raises(ConfigError, match=r"policy.hidden_dims: expected a list .*not empty"):
        validate({"task": task, "policy": {"kind": "lstm", "hidden_dims": []}, "algorithm": {}})


def test_missing_tensorflow_is_reported_with_the_key(monkeypatch: Any) -> None:
    from hpc_es.policies.networks import tensorflow_actors as mlp_tensorflow

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    mlp_tensorflow.tensorflow.cache_clear()
    with pytest.raises(ConfigError, match=r"policy\.backend.*pip install 'hpc_es\[tensorflow\]'"):
        headed("box", (4,), "tensorflow").bind(
            perturbed(lstm.lstm_layout(WIDTH, (4,), 2).size), None
        )
    mlp_tensorflow.tensorflow.cache_clear()
