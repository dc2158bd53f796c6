"""An exported ONNX model computes the actions of the policy in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es import cli
from hpc_es.config.loading import validate
from hpc_es.core.data import (
    Discrete,
    MultiDiscrete,
    Normaliser,
    ObservationSpec,
    Spaces,
    flat_observations,
)
from hpc_es.core.policy import Policy
from hpc_es.core.population import unperturbed
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.lstm import Options as LSTMOptions
from hpc_es.policies.mlp import MLP, Options
from hpc_es.trained.policy import load_policy
from tests.helpers.populations import population
from tests.helpers.trained import HEADS, NORMALISED, NORMALISER, WIDTH, run

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

OBSERVED = np.random.default_rng(5).normal(0, 2, (1000, WIDTH)).astype(np.float32)
SPACES = {
    **HEADS,
    "choices": (MultiDiscrete((2, 3)), None),
    "from_minus_two": (Discrete(3, -2), None),
}


def session(policy: Policy, theta: Any, spaces: Spaces, normaliser: Normaliser | None) -> Any:
    """onnxruntime with the model of a policy."""
    from hpc_es.report.onnx_file import onnx_model

    model = onnx_model(
        policy, theta, normaliser=normaliser, around=None, spaces=spaces, title="A policy."
    )
    return onnxruntime.InferenceSession(model.SerializeToString())


def compared(policy: Policy, spaces: Spaces, normaliser: Normaliser | None) -> tuple[Any, Any]:
    """Actions of the model and of the policy with random parameters, for all observations."""
    theta = np.random.default_rng(4).standard_normal(policy.layout.size).astype(np.float32)
    (acted,) = session(policy, theta, spaces, normaliser).run(None, {"observation": OBSERVED})
    rows = len(OBSERVED)
    none = np.empty((0, policy.layout.size), np.float32)
    alone = population(theta, none, np.zeros(rows, np.intp), np.zeros(rows, np.float32))
    return acted, policy.bind(alone, normaliser).act(OBSERVED)


@pytest.mark.parametrize("normaliser", [None, NORMALISER], ids=["raw", "normalised"])
@pytest.mark.parametrize("head", SPACES)
@pytest.mark.parametrize("activation", ["tanh", "relu", "leaky_relu", "elu"])
def test_model_of_an_mlp_equals_the_policy(
    activation: Any, head: str, normaliser: Normaliser | None
) -> None:
    space, bins = SPACES[head]
    options = Options(hidden_dims=(8, 6), activation=activation, action_bins=bins)
    spaces = Spaces(flat_observations(WIDTH), space)
    acted, expected = compared(MLP(options, spaces), spaces, normaliser)
    assert len(np.unique(expected)) > 1
    assert acted.shape == expected.shape and acted.dtype == expected.dtype
    np.testing.assert_allclose(acted, expected, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_dims": ()},
        {"bias": False},
        {"normalisation": "layer", "activation": "relu"},
        {"action_bounds": "squash"},
    ],
    ids=str,
)
def test_model_has_the_options_of_an_mlp(options: dict[str, Any]) -> None:
    spaces = Spaces(flat_observations(WIDTH), HEADS["box"][0])
    policy = MLP(Options(**{"hidden_dims": (8, 6), **options}), spaces)
    acted, expected = compared(policy, spaces, NORMALISER)
    np.testing.assert_allclose(acted, expected, atol=1e-5)


def test_memory_of_an_lstm_is_an_input_and_an_output() -> None:
    spaces = Spaces(flat_observations(WIDTH), HEADS["box"][0])
    policy = LSTM(LSTMOptions(hidden_dims=(6, 4), action_bounds="squash"), spaces)
    theta = np.random.default_rng(4).standard_normal(policy.layout.size).astype(np.float32)
    model = session(policy, theta, spaces, NORMALISER)
    names = [value.name for value in model.get_outputs()]
    assert names[0] == "action"
    episodes = OBSERVED.reshape(5, 200, WIDTH).swapaxes(0, 1)
    actor = policy.bind(unperturbed(policy.layout, theta, jobs=5), NORMALISER)
    zeros = {
        f"lstm_{number}_{part}": np.zeros((5, size), np.float32)
        for number, size in enumerate((6, 4))
        for part in "hc"
    }
    memory = zeros
    for x in episodes:
        outputs = dict(zip(names, model.run(None, {"observation": x, **memory}), strict=True))
        memory = {name: outputs[f"next_{name}"] for name in memory}
        np.testing.assert_allclose(outputs["action"], actor.act(x), atol=1e-5)
    # the memory counts
    (forgetful, *_) = model.run(None, {"observation": x, **zeros})
    assert np.abs(forgetful - outputs["action"]).max() > 1e-3


@pytest.mark.parametrize("normalisation", ["none", "layer", "virtual_batch"])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("lstm", [None, 5])
def test_model_of_a_cnn_equals_the_policy(
    lstm: int | None, padding: str, normalisation: Any
) -> None:
    pytest.importorskip("jax")
    from hpc_es.policies import cnn

    spaces = Spaces(ObservationSpec((11, 9, 3), np.dtype(np.uint8)), HEADS["box"][0])
    convolutions = [{"filters": 4, "kernel": 3, "stride": 2}, {"filters": 5, "kernel": 2}]
    options = {"convolutions": convolutions, "padding": padding, "hidden_dims": [7], "lstm": lstm}
    section = {"kind": "cnn", "normalisation": normalisation, "action_bounds": "squash", **options}
    config = validate({"task": {"env_id": "CartPole-v1"}, "policy": section})
    policy: Any = cnn.build(config.policy, spaces)
    rng = np.random.default_rng(6)
    images = rng.integers(0, 256, (1000, 11, 9, 3), np.uint8)
    if normalisation == "virtual_batch":
        policy = policy.with_reference(images[:16])
    theta = rng.normal(0, 0.3, policy.layout.size).astype(np.float32)
    memory = {f"lstm_0_{part}": np.zeros((1000, lstm), np.float32) for part in "hc" if lstm}
    model = session(policy, theta, spaces, None)
    acted, *_ = model.run(None, {"observation": images, **memory})
    expected = policy.bind(unperturbed(policy.layout, theta, jobs=1000), None).act(images)
    np.testing.assert_allclose(acted, expected, atol=1e-4)
    assert expected.std(axis=0).min() > 1e-4


WRAPPERS = [
    "{gymnasium.wrappers:RescaleObservation: {min_obs: -1.0, max_obs: 1.0}}",
    "gymnasium.wrappers:FlattenObservation",
    "{gymnasium.wrappers:RescaleAction: {min_action: -1.0, max_action: 1.0}}",
    "gymnasium.wrappers:ClipAction",
]


@pytest.mark.long
@pytest.mark.parametrize("env", ["unwrapped", "wrapped"])
def test_exported_model_has_wrappers_and_normalisation(env: Any, tmp_path: Path) -> None:
    path = run(
        "task.env_id=tests.helpers.toys:Reach-v0",
        "task.env_kwargs={low: 0.0, high: 20.0, bounded: true}",
        f"task.wrappers=[{', '.join(WRAPPERS)}]",
        "policy={kind: mlp, hidden_dims: [4]}",
        "algorithm.optimizer.learning_rate=0.01",
        *NORMALISED,
    )
    file = tmp_path / "acting.onnx"
    assert cli.run(["export", str(path), str(file), "--which", "last", "--env", env]) == 0
    observed = np.random.default_rng(2).uniform(-100, 100, (1000, 3)).astype(np.float32)
    observed /= 1 if env == "unwrapped" else 100
    policy = load_policy(path, "last", env=env)
    expected = [np.asarray(policy(x)).reshape(-1) for x in observed]
    (acted,) = onnxruntime.InferenceSession(file).run(None, {"observation": observed})
    np.testing.assert_allclose(acted, expected, rtol=1e-5, atol=1e-4)
    assert len(np.unique(acted)) > 100


def test_value_is_refused(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["export", str(run()), str(tmp_path / "acting.onnx"), "--value"])
    assert "a .onnx file has actions only: leave --value out" in capsys.readouterr().err


def test_missing_package_is_named(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        cli.main(["export", str(path), str(tmp_path / "acting.onnx")])
    assert "onnx, which is not installed: pip install 'hpc_es[onnx]'" in capsys.readouterr().err
