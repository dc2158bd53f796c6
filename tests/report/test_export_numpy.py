"""An exported file of Python computes the actions of the policy with NumPy alone."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from packaging.version import Version

from hpc_es import cli
from hpc_es.config.loading import validate
from hpc_es.core.data import (
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
from hpc_es.report.numpy_file import numpy_file
from hpc_es.trained.policy import load_policy
from tests.helpers.harness import python, script
from tests.helpers.populations import population
from tests.helpers.trained import HEADS, NORMALISED, NORMALISER, WIDTH, run

OBSERVED = np.random.default_rng(5).normal(0, 2, (1000, WIDTH)).astype(np.float32)
SPACES = {**HEADS, "choices": (MultiDiscrete((2, 3)), None)}


def imported(path: Path) -> ModuleType:
    """The module in a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(
    policy: Policy, spaces: Spaces, normaliser: Normaliser | None, folder: Path
) -> tuple[ModuleType, Any]:
    """The file of a policy with random parameters, and its actor of a row for each observation."""
    theta = np.random.default_rng(4).standard_normal(policy.layout.size).astype(np.float32)
    text = numpy_file(
        policy,
        theta,
        normaliser=normaliser,
        around=None,
        spaces=spaces,
        title="A policy.",
        module="acting",
    )
    (folder / "acting.py").write_text(text)
    rows = len(OBSERVED)
    none = np.empty((0, policy.layout.size), np.float32)
    alone = population(theta, none, np.zeros(rows, np.intp), np.zeros(rows, np.float32))
    return imported(folder / "acting.py"), policy.bind(alone, normaliser)


@pytest.mark.parametrize("normaliser", [None, NORMALISER], ids=["raw", "normalised"])
@pytest.mark.parametrize("head", SPACES)
@pytest.mark.parametrize("activation", ["tanh", "relu", "leaky_relu", "elu"])
def test_file_of_an_mlp_equals_the_policy(
    activation: Any, head: str, normaliser: Normaliser | None, tmp_path: Path
) -> None:
    space, bins = SPACES[head]
    options = Options(hidden_dims=(8, 6), activation=activation, action_bins=bins)
    spaces = Spaces(flat_observations(WIDTH), space)
    module, actor = written(MLP(options, spaces), spaces, normaliser, tmp_path)
    acted, expected = [module.policy(x) for x in OBSERVED], actor.act(OBSERVED)
    assert len(np.unique(expected)) > 1 and module.policy(OBSERVED[0]) is not None
    np.testing.assert_allclose(acted, expected, atol=1e-5)
    assert isinstance(acted[0], int) == (head == "discrete")


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
def test_file_has_the_options_of_an_mlp(options: dict[str, Any], tmp_path: Path) -> None:
    spaces = Spaces(flat_observations(WIDTH), HEADS["box"][0])
    policy = MLP(Options(**{"hidden_dims": (8, 6), **options}), spaces)
    module, actor = written(policy, spaces, NORMALISER, tmp_path)
    acted = [module.policy(x) for x in OBSERVED]
    np.testing.assert_allclose(acted, actor.act(OBSERVED), atol=1e-5)


def test_file_of_an_lstm_has_memory(tmp_path: Path) -> None:
    spaces = Spaces(flat_observations(WIDTH), HEADS["box"][0])
    policy = LSTM(LSTMOptions(hidden_dims=(6, 4), action_bounds="squash"), spaces)
    module, actor = written(policy, spaces, NORMALISER, tmp_path)
    episodes = OBSERVED.reshape(5, 200, WIDTH)
    rows = np.zeros((200, len(OBSERVED), WIDTH), np.float32)
    rows[:, :5] = episodes.swapaxes(0, 1)
    wanted = np.stack([actor.act(x)[:5] for x in rows], axis=1)
    for episode, actions in zip(episodes, wanted, strict=True):
        module.reset()
        np.testing.assert_allclose([module.policy(x) for x in episode], actions, atol=1e-5)
    # the memory counts
    module.reset()
    assert np.abs(module.policy(episodes[0, 100]) - wanted[0, 100]).max() > 1e-3


WRAPPERS = [
    "{gymnasium.wrappers:RescaleObservation: {min_obs: -1.0, max_obs: 1.0}}",
    "gymnasium.wrappers:FlattenObservation",
    "{gymnasium.wrappers:RescaleAction: {min_action: -1.0, max_action: 1.0}}",
    "gymnasium.wrappers:ClipAction",
]
# Gymnasium reshapes to lists since 1.4; the packages of compiled environments take an earlier one
if Version(gymnasium.__version__) >= Version("1.4"):
    WRAPPERS.insert(0, "{gymnasium.wrappers:ReshapeObservation: {shape: [1, 3]}}")


@pytest.mark.long
@pytest.mark.parametrize("env", ["unwrapped", "wrapped"])
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_exported_file_has_wrappers_and_normalisation(kind: str, env: Any, tmp_path: Path) -> None:
    path = run(
        "task.env_id=tests.helpers.toys:Reach-v0",
        "task.env_kwargs={low: 0.0, high: 20.0, bounded: true}",
        f"task.wrappers=[{', '.join(WRAPPERS)}]",
        f"policy={{kind: {kind}, hidden_dims: [4]}}",
        "algorithm.optimizer.learning_rate=0.01",
        *NORMALISED,
    )
    file = tmp_path / "acting.py"
    assert cli.run(["export", str(path), str(file), "--which", "last", "--env", env]) == 0
    observed = np.random.default_rng(2).uniform(-100, 100, (1000, 3)).astype(np.float32)
    observed /= 1 if env == "unwrapped" else 100
    policy = load_policy(path, "last", env=env)
    expected = [np.asarray(policy(x)).reshape(-1) for x in observed]
    np.save(tmp_path / "observed.npy", observed)
    done = python(
        script("""
        import sys
        import numpy as np
        import acting
        np.save("acted.npy", [acting.policy(x) for x in np.load("observed.npy")])
        assert not {"hpc_es", "keras", "gymnasium"} & sys.modules.keys()
    """),
        cwd=tmp_path,
    )
    assert done.status == 0, done
    acted = np.load(tmp_path / "acted.npy").reshape(len(observed), -1)
    np.testing.assert_allclose(acted, expected, rtol=1e-5, atol=1e-4)
    assert len(np.unique(acted)) > 100


@pytest.mark.parametrize("normalisation", ["none", "layer", "virtual_batch"])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("lstm", [None, 5])
def test_file_of_a_cnn_equals_the_policy(
    lstm: int | None, padding: str, normalisation: Any, tmp_path: Path
) -> None:
    pytest.importorskip("jax")
    from hpc_es.policies import cnn

    spaces = Spaces(ObservationSpec((11, 9, 3), np.dtype(np.uint8)), HEADS["box"][0])
    convolutions = [{"filters": 4, "kernel": 3, "stride": 2}, {"filters": 5, "kernel": 2}]
    options = {"convolutions": convolutions, "padding": padding, "hidden_dims": [7], "lstm": lstm}
    config = {
        "task": {"env_id": "CartPole-v1"},
        "policy": {
            "kind": "cnn",
            "normalisation": normalisation,
            "action_bounds": "squash",
            **options,
        },
    }
    policy: Any = cnn.build(validate(config).policy, spaces)
    rng = np.random.default_rng(6)
    images = rng.integers(0, 256, (1000, 11, 9, 3), np.uint8)
    if normalisation == "virtual_batch":
        policy = policy.with_reference(images[:16])
    theta = rng.normal(0, 0.3, policy.layout.size).astype(np.float32)
    text = numpy_file(
        policy,
        theta,
        normaliser=None,
        around=None,
        spaces=spaces,
        title="A policy.",
        module="acting",
    )
    (tmp_path / "acting.py").write_text(text)
    module = imported(tmp_path / "acting.py")
    actor = policy.bind(unperturbed(policy.layout, theta, jobs=1), None)
    if lstm:
        module.reset()
    acted = np.array([module.policy(image) for image in images])
    expected = np.concatenate([actor.act(image[np.newaxis]) for image in images])
    np.testing.assert_allclose(acted, expected, atol=1e-4)
    assert expected.std(axis=0).min() > 1e-4


@pytest.mark.long
def test_what_numpy_alone_cannot_compute_is_refused(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["export", str(run()), str(tmp_path / "acting.py"), "--value"])
    assert "a .py file has actions only: leave --value out" in capsys.readouterr().err


@pytest.mark.long
def test_name_of_a_run_cannot_become_code(tmp_path: Path) -> None:
    name = '"""\nraise SystemExit("code of somebody else")\n"""\\'
    path, file = run(f"name={json.dumps(name)}"), tmp_path / "acting.py"
    assert cli.run(["export", str(path), str(file)]) == 0
    assert imported(file).policy(np.ones(3, np.float32)) in (0, 1)
    assert "code of somebody else" in file.read_text().splitlines()[0]
