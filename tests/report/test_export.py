"""An exported policy is a plain Keras model that computes the actions of the policy."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es import cli
from hpc_es.config.registry import module
from hpc_es.core.data import Box, Float32, Normaliser, Spaces, flat_observations
from hpc_es.policies.mlp import MLP, Options
from hpc_es.policies.networks import keras_models
from hpc_es.storage import checkpoint
from hpc_es.trained.policy import load_policy
from hpc_es.training.run_writer import RunWriter
from tests.helpers import runs
from tests.helpers.harness import python, script
from tests.helpers.populations import population
from tests.helpers.trained import HEADS, NORMALISED, NORMALISER, WIDTH, outputs, run

keras: Any = None
pytestmark = pytest.mark.tensorflow

OBSERVED = np.random.default_rng(5).normal(0, 2, (64, WIDTH)).astype(np.float32)
ONES = np.ones(2, np.float32)
INFINITE = "half infinite"
HALF = Box(np.array([-0.2, -np.inf], np.float32), np.array([np.inf, 0.1], np.float32))


@pytest.fixture(autouse=True)
def _imported_late() -> None:
    global keras  # noqa: PLW0603  (collecting the tests imports no Keras)
    keras = importlib.import_module("keras")


def policy(head: str, activation: str) -> MLP:
    space, bins = (HALF, None) if head == INFINITE else HEADS[head]
    options: Any = {"hidden_dims": (8, 6), "activation": activation, "action_bins": bins}
    return MLP(Options(**options), Spaces(flat_observations(WIDTH), space))


def expected(network: MLP, theta: Float32, normaliser: Normaliser | None) -> Any:
    none = np.empty((0, network.layout.size), np.float32)
    rows = len(OBSERVED)
    alone = population(theta, none, np.zeros(rows, np.intp), np.zeros(rows, np.float32))
    return network.bind(alone, normaliser).act(OBSERVED)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("normaliser", [None, NORMALISER], ids=["raw", "normalised"])
@pytest.mark.parametrize("head", [*HEADS, INFINITE])
@pytest.mark.parametrize("activation", ["tanh", "relu", "leaky_relu", "elu"])
def test_saved_keras_model_equals_numpy(
    activation: str, head: str, normaliser: Normaliser | None, tmp_path: Path
) -> None:
    network = policy(head, activation)
    theta = np.random.default_rng(4).standard_normal(network.layout.size).astype(np.float32)
    keras_models.mlp_model(network, theta, normaliser).save(tmp_path / "policy.keras")
    result = np.asarray(keras.models.load_model(tmp_path / "policy.keras")(OBSERVED))
    wanted = expected(network, theta, normaliser)
    assert len(np.unique(wanted)) > 1
    if head == "discrete":
        assert result.shape == (64, 3)
        assert (result.argmax(axis=1) + 4).tolist() == wanted.tolist()
    else:
        np.testing.assert_allclose(result, wanted, atol=1e-5)


def test_exported_model_has_the_layer_normalisation_of_the_policy(tmp_path: Path) -> None:
    network = MLP(
        Options(hidden_dims=(8, 6), activation="relu", normalisation="layer"),
        Spaces(flat_observations(WIDTH), HEADS["box"][0]),
    )
    theta = np.random.default_rng(4).standard_normal(network.layout.size).astype(np.float32)
    keras_models.mlp_model(network, theta, NORMALISER).save(tmp_path / "policy.keras")
    result = np.asarray(keras.models.load_model(tmp_path / "policy.keras")(OBSERVED))
    np.testing.assert_allclose(result, expected(network, theta, NORMALISER), atol=1e-5)


def test_exported_linear_policy_ignores_constant_inputs(tmp_path: Path) -> None:
    """As in training: such an input is 0 for every observation, and nothing is clipped."""
    network = MLP(
        Options(hidden_dims=(), bias=False),
        Spaces(flat_observations(WIDTH), Box(np.full(2, -9e3, np.float32), 9e3 * ONES)),
    )
    theta = np.random.default_rng(4).standard_normal(network.layout.size).astype(np.float32)
    normaliser = (NORMALISER[0], np.array([1, np.inf, 0.01, 1, 1], np.float32), np.inf)
    keras_models.mlp_model(network, theta, normaliser).save(tmp_path / "policy.keras")
    result = np.asarray(keras.models.load_model(tmp_path / "policy.keras")(OBSERVED))
    np.testing.assert_allclose(result, expected(network, theta, normaliser), rtol=1e-4, atol=1e-4)
    assert np.abs(result).max() > 50


def test_exported_policy_squashes_its_actions(tmp_path: Path) -> None:
    network = MLP(
        Options(hidden_dims=(8,), action_bounds="squash"),
        Spaces(flat_observations(WIDTH), HEADS["box"][0]),
    )
    theta = np.random.default_rng(4).standard_normal(network.layout.size).astype(np.float32)
    keras_models.mlp_model(network, theta, NORMALISER).save(tmp_path / "policy.keras")
    result = np.asarray(keras.models.load_model(tmp_path / "policy.keras")(OBSERVED))
    wanted = expected(network, theta, NORMALISER)
    np.testing.assert_allclose(result, wanted, atol=1e-5)
    assert len(np.unique(wanted)) > 100  # clipping would leave few values between the bounds


@pytest.mark.long
def test_export_loads_without_hpc_es(tmp_path: Path) -> None:
    path, file = (
        run("task.env_id=tests.helpers.toys:Reach-v0", *NORMALISED),
        tmp_path / "policy.keras",
    )
    assert cli.run(["export", str(path), str(file), "--which", "last"]) == 0
    assert [left.name for left in tmp_path.iterdir()] == ["policy.keras"]
    observed = np.random.default_rng(2).normal(0, 9, (20, 3)).astype(np.float32)
    np.save(tmp_path / "seen.npy", observed)
    done = python(
        script("""
        import sys, keras, numpy as np
        np.save("acted.npy", keras.models.load_model("policy.keras").predict(np.load("seen.npy"), verbose=0))
        assert "hpc_es" not in sys.modules
    """),
        cwd=tmp_path,
    )
    assert done.status == 0, done
    last, best = (load_policy(path, which)(observed) for which in ("last", "best"))
    np.testing.assert_allclose(np.load(tmp_path / "acted.npy"), last, atol=1e-5)
    assert np.abs(last - best).max() > 1e-3


WRAPPERS = """[{gymnasium.wrappers:ReshapeObservation: {shape: [1, 3]}},
    {gymnasium.wrappers:RescaleObservation: {min_obs: -1.0, max_obs: 1.0}}, gymnasium.wrappers:FlattenObservation,
    {gymnasium.wrappers:RescaleAction: {min_action: -1.0, max_action: 1.0}}, gymnasium.wrappers:ClipAction]"""


def model_of(*arguments: object) -> Any:
    """The file that `hpc-es export` writes to its second argument."""
    assert cli.run(["export", *map(str, arguments)]) == 0
    return keras.models.load_model(arguments[1])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_wrappers_are_layers_of_the_model(kind: str, tmp_path: Path) -> None:
    """Observations from -100, 100 to -1, 1; actions from -1, 1 to 0, 20."""
    options = "{low: 0.0, high: 20.0, bounded: true}"
    path = run(
        "task.env_id=tests.helpers.toys:Reach-v0",
        f"task.env_kwargs={options}",
        f"task.wrappers={WRAPPERS}",
        f"policy={{kind: {kind}, hidden_dims: [4]}}",
        "algorithm.optimizer.learning_rate=0.01",
    )
    observed = np.random.default_rng(2).uniform(-100, 100, (20, 3)).astype(np.float32)
    policy, inner = load_policy(path, "last"), load_policy(path, "last", env="wrapped")
    model = model_of(path, tmp_path / "policy.keras", "--which", "last")
    wrapped = model_of(path, tmp_path / "wrapped.keras", "--which", "last", "--env", "wrapped")
    memory = [np.zeros((20, 4), np.float32)] * 2
    result, other = (
        np.asarray(item(x) if kind == "mlp" else item([x[:, np.newaxis], *memory])[0][:, 0])
        for item, x in ((model, observed), (wrapped, observed / 100))
    )
    np.testing.assert_allclose(result, policy(observed), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(other, inner(observed / 100), atol=1e-5)
    np.testing.assert_allclose(result, 10 * (np.clip(other, -1, 1) + 1), rtol=1e-5, atol=1e-4)
    assert (result >= 0).all() and (result <= 20).all() and ((result > 0.1) & (result < 19.9)).any()


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("hpc_es.tasks.last_step:LastStep", "LastStep defines `step` or `reset`"),
        (
            "tests.tasks.episodes.test_wrappers:Mirrored",
            "Mirrored (task.wrappers[0]) cannot be written as Keras layers",
        ),
    ],
)
def test_wrapper_without_a_keras_layer_is_refused(
    wrapper: str, said: str, tmp_path: Path, capsys: Any
) -> None:
    path, file = run(f"task.wrappers=['{wrapper}']"), tmp_path / "policy.keras"
    with pytest.raises(SystemExit) as left:
        cli.main(["export", str(path), str(file)])
    assert left.value.code == 2 and said in capsys.readouterr().err and not file.exists()
    observed = np.ones((1, 7 if "LastStep" in wrapper else 3), np.float32)
    model = model_of(path, file, "--env", "wrapped")
    assert int(np.argmax(model(observed))) == load_policy(path, env="wrapped")(observed[0])


@pytest.mark.long
def test_run_with_other_wrappers_exports_for_the_wrapped_environment(capsys: Any) -> None:
    path = run("task.wrappers=['hpc_es.tasks.last_step:LastStep']", "report.export_interval=1")
    out = capsys.readouterr().out
    assert (
        out.count("WARNING: policy.keras is for the environment with its wrappers: ") == 1
        and "LastStep" in out
    )
    observed = np.ones((1, 7), np.float32)
    model = keras.models.load_model(path / "policy.keras")
    assert int(np.argmax(model(observed))) == load_policy(path, "last", env="wrapped")(observed[0])


@pytest.mark.long
def test_every_checkpoint_of_a_run_is_exported(tmp_path: Path) -> None:
    reach = ("task.env_id=tests.helpers.toys:Reach-v0", "algorithm.optimizer.learning_rate=0.01")
    path, observed = run(*reach, "checkpoint.interval=1"), np.ones((1, 3), np.float32)
    assert cli.run(["export", str(path), str(tmp_path / "all"), "--all"]) == 0
    names = [f"checkpoint_{generation:010d}" for generation in range(3)]
    assert sorted(file.name for file in (tmp_path / "all").iterdir()) == [
        "best.keras",
        *(f"{n}.keras" for n in names),
    ]
    thetas = [checkpoint.load(path / "checkpoints" / f"{name}.h5").state.theta for name in names]
    expected = [np.clip(outputs(theta, 4, 2, observed), -1, 1) for theta in thetas]
    assert np.abs(expected[0] - expected[2]).max() > 1e-3
    for name, actions in zip(names, expected, strict=True):
        model = keras.models.load_model(tmp_path / "all" / f"{name}.keras")
        np.testing.assert_allclose(model(observed), actions, atol=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_value_head_is_the_last_output(kind: str) -> None:
    """It is a linear function of the input of the output layer: tanh of the hidden layer,
    or the LSTM's h.
    """
    network: Any = module("policies", kind)
    created = network.build(
        network.Options(hidden_dims=(4,)), Spaces(flat_observations(WIDTH), HEADS["discrete"][0])
    )
    rng = np.random.default_rng(3)
    theta, value = (rng.standard_normal(n).astype(np.float32) for n in (created.layout.size, 5))
    build, _ = keras_models.MODELS[kind]
    model = build(created, theta, None, value=value)
    if kind == "mlp":
        result = np.asarray(model(OBSERVED)[1])
        features = np.tanh(
            OBSERVED @ theta[: 4 * WIDTH].reshape(WIDTH, 4) + theta[4 * WIDTH : 4 * WIDTH + 4]
        )
    else:
        zeros = np.zeros((len(OBSERVED), 4), np.float32)
        _, h, _, values = model([OBSERVED[:, np.newaxis], zeros, zeros])
        result, features = np.asarray(values[:, 0]), np.asarray(h)
    np.testing.assert_allclose(result[:, 0], features @ value[:4] + value[4], atol=1e-5)


def test_missing_value_head_is_reported(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["export", str(run()), str(tmp_path / "policy.keras"), "--value"])
    assert (
        left.value.code == 2
        and "trained by es has no value head to export" in capsys.readouterr().err
    )


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    file = tmp_path / "policy.keras"
    file.write_text("old")

    def full(self: Any, path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, "save", full)
    with pytest.raises(SystemExit) as left:
        cli.main(["export", str(run()), str(file)])
    assert left.value.code == 1
    assert f"{file}: cannot be written: No space left on device" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("policy.keras", "old")
    ]


def test_without_tensorflow_the_extra_is_named(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    result = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorflow" else result(name)
    )
    with pytest.raises(SystemExit) as left:
        cli.main(["export", str(run()), str(tmp_path / "policy.keras")])
    assert left.value.code == 2
    assert "pip install 'hpc_es[tensorflow]'" in capsys.readouterr().err


def test_policy_without_a_keras_model_is_refused(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.delitem(keras_models.MODELS, "mlp")
    with pytest.raises(SystemExit) as left:
        cli.main(["export", str(run()), str(tmp_path / "policy.keras")])
    assert left.value.code == 2
    text = "a policy of kind 'mlp' cannot be exported as a Keras model: .npz writes its parameters by name"
    assert text in capsys.readouterr().err


def test_export_of_a_run_is_of_its_own_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that somebody else puts into the directory is not taken for the newest one."""
    other = run("seed=9") / "checkpoints" / "checkpoint_0000000002.h5"
    save = RunWriter.save

    def planted(writer: RunWriter) -> Path:
        path = save(writer)
        shutil.copyfile(other, path.with_name("checkpoint_0000000099.h5"))
        return path

    monkeypatch.setattr(RunWriter, "save", planted)
    path = tmp_path / "run"
    runs.here(runs.tiny(tmp_path), path, ["report.export_interval=2", "stop.generations=2"])
    own = load_policy(path / "checkpoints" / "checkpoint_0000000002.h5", "last")
    exported = keras.models.load_model(path / "policy.keras")
    observed = np.random.default_rng(2).normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(exported(observed)), own(observed), atol=1e-5)


def test_exports_can_be_numbered_by_generation(tmp_path: Path) -> None:
    path = tmp_path / "run"
    options = ["report.export_interval=2", "report.export_numbered=true", "stop.generations=3"]
    runs.here(runs.tiny(tmp_path), path, options)
    names = ["policy.keras", "policy_000002.keras", "policy_000003.keras"]
    assert sorted(item.name for item in path.glob("*.keras")) == names
    assert (path / "policy.keras").read_bytes() == (path / "policy_000003.keras").read_bytes()
    observed = np.random.default_rng(2).normal(size=(9, 4)).astype(np.float32)
    second = load_policy(path / "checkpoints" / "checkpoint_0000000002.h5", "last")(observed)
    np.testing.assert_allclose(
        np.asarray(keras.models.load_model(path / "policy_000002.keras")(observed)),
        second,
        atol=1e-5,
    )
