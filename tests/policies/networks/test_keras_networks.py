"""Keras models on the TensorFlow backend as networks:
`policy: {kind: network, backend: tensorflow}`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.core.data import Box, Discrete, ObservationSpec, Spaces, flat_observations
from hpc_es.core.errors import ConfigError
from hpc_es.core.global_generators import restored_generators
from hpc_es.policies import network
from tests.helpers import own_networks, runs
from tests.helpers.populations import candidates, explicit, random_inputs
from tests.helpers.trained import NORMALISER

pytestmark = pytest.mark.tensorflow

BOX = Box(np.array([-1, -0.5], np.float32), np.array([1, 0.25], np.float32))
SPACES = Spaces(flat_observations(5), BOX)
IMAGES = Spaces(ObservationSpec((8, 8, 2), np.dtype(np.uint8)), Discrete(3))
ROWS, STEPS, SIZE = 6, 3, 4
WRONG = "tests.helpers.own_networks:wrong"


@pytest.fixture(autouse=True)
def _keras_on_tensorflow() -> None:
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("this process uses Keras with another backend")


def policy_of(build: Any, spaces: Spaces = SPACES, **options: Any) -> Any:
    """The policy of a builder in `own_networks`, or of this function."""
    name = build if isinstance(build, str) else "wrong"
    if not isinstance(build, str):
        own_networks.wrong = build  # type: ignore[attr-defined]
    options = {"candidates_per_call": SIZE, "backend": "tensorflow", **options}
    return network.build(
        network.Options(network=f"tests.helpers.own_networks:{name}", **options), spaces
    )


def observed(spaces: Spaces = SPACES, rows: int = ROWS) -> Any:
    return random_inputs(spaces.observations, STEPS, rows)


def acted(policy: Any, theta: Any, observations: Any, normaliser: Any = None) -> Any:
    actor = policy.bind(explicit(theta), normaliser)
    return np.stack([actor.act(step) for step in observations])


def lstm_layer(observations: Any, outputs: int) -> Any:
    """An LSTM layer with its memory as inputs and outputs,
    which XLA cannot compile in this form.
    """
    import keras

    inputs = [keras.Input(observations.shape), keras.Input((4,)), keras.Input((4,))]
    sequence = keras.layers.Reshape((1, observations.size))(inputs[0])
    h, *memory = keras.layers.LSTM(4, return_state=True)(sequence, initial_state=inputs[1:])
    return keras.Model(inputs, [keras.layers.Dense(outputs)(h), *memory])


def convolution(observations: Any, outputs: int) -> Any:
    import keras

    layers = [keras.layers.Input(observations.shape), keras.layers.Rescaling(1 / 255)]
    layers += [
        keras.layers.Conv2D(3, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(outputs),
    ]
    return keras.Sequential(layers)


CASES: dict[str, Any] = {
    "Sequential": ("keras", SPACES),
    "functional and recurrent": ("keras_recurrent", SPACES),
    "subclassed": ("keras_subclassed", SPACES),
    "LSTM layer": (lstm_layer, SPACES),
    "convolution of bytes": (convolution, IMAGES),
}
every_case = pytest.mark.parametrize("case", CASES)


def policy_of_case(case: str) -> tuple[Any, Spaces]:
    build, spaces = CASES[case]
    return policy_of(build, spaces), spaces


@pytest.mark.sampled(2)
@every_case
def test_row_depends_on_neither_its_position_nor_the_others(case: str) -> None:
    policy, spaces = policy_of_case(case)
    theta, observations = candidates(policy, ROWS), observed(spaces)
    together = acted(policy, theta, observations)
    assert len(np.unique(together)) > 1
    for order in ([3, 0, 5, 1, 4, 2], [5, 4], [2, 2, 2, 2, 2]):
        assert (
            acted(policy, theta[order], observations[:, order]).tobytes()
            == together[:, order].tobytes()
        )


@pytest.mark.sampled(2)
@every_case
def test_actor_equals_the_predictions_of_the_model(case: str) -> None:
    """With the weights of each candidate, and the memory passed by hand from step to step."""
    policy, spaces = policy_of_case(case)
    theta, observations = candidates(policy, 2), observed(spaces, 2)
    actions = acted(policy, theta, observations)
    build, _ = CASES[case]
    build = getattr(own_networks, build) if isinstance(build, str) else build
    model = build(spaces.observations, policy.head.outputs)
    model(observations[0, :1]) if case == "subclassed" else None
    for row in range(2):
        arrays = policy.layout.split(theta[row])
        for variable, array in zip(model.trainable_variables, arrays.values(), strict=True):
            variable.assign(array)
        memory = [np.zeros((1, *leaf.shape), np.float32) for leaf in policy.network.memory()]
        for step in range(STEPS):
            inputs = [observations[step, row : row + 1], *memory]
            result = model(inputs) if memory else [model(inputs[0])]
            outputs, memory = np.asarray(result[0]), [np.asarray(leaf) for leaf in result[1:]]
            np.testing.assert_allclose(
                policy.head.actions(outputs)[0], actions[step, row], rtol=1e-5, atol=1e-6
            )


def test_dense_layer_equals_a_linear_mlp() -> None:
    """In NumPy, with normalised observations: x W + b, the same flat vector of W, then b."""
    from hpc_es.policies import mlp

    def build(observations: Any, outputs: int) -> Any:
        import keras

        return keras.Sequential(
            [keras.layers.Input(observations.shape), keras.layers.Dense(outputs)]
        )

    policy, linear = policy_of(build), mlp.build(mlp.Options(hidden_dims=()), SPACES)
    theta = candidates(policy, ROWS)
    expected = acted(linear, theta, observed(), NORMALISER)
    np.testing.assert_allclose(
        acted(policy, theta, observed(), NORMALISER), expected, rtol=1e-5, atol=1e-6
    )


def test_kept_and_restarted_rows() -> None:
    policy = policy_of("keras_recurrent")
    theta, observations = candidates(policy, ROWS), observed()
    together, new = acted(policy, theta, observations), acted(policy, theta, observations[1:])
    actor = policy.bind(explicit(theta), None)
    actor.act(observations[0])
    actor.keep(np.array([0, 2, 5]))
    actor.restart(1)
    actions = np.stack([actor.act(step) for step in observations[1:, [0, 2, 5]]])
    assert actions[:, [0, 2]].tobytes() == together[1:, [0, 5]].tobytes()
    assert actions[:, 1].tobytes() == new[:, 2].tobytes()


def test_initial_weights_depend_on_the_generator_alone() -> None:
    """Neither on the global generators, which stay as they are,
    nor on the layers that were built before.
    """
    policy = policy_of("keras_recurrent")
    first = policy.initial(np.random.default_rng(1))
    random.seed(3)
    np.random.seed(3)
    states = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index, union-attr]
    again = policy_of("keras_recurrent")
    assert again.initial(np.random.default_rng(1)).tobytes() == first.tobytes()
    assert again.initial(np.random.default_rng(2)).tobytes() != first.tobytes()
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == states  # type: ignore[index, union-attr]
    assert dict(again.layout.shapes) == dict(policy.layout.shapes)  # names, too


def test_building_a_network_keeps_the_seeds_and_names_of_the_callers_keras() -> None:
    import keras

    def drawn(between: Any) -> list[Any]:
        keras.utils.clear_session()
        random.seed(5)
        first = np.asarray(keras.random.uniform((2,))), keras.layers.Dense(1).name
        between()
        return [*first, np.asarray(keras.random.uniform((2,))), keras.layers.Dense(1).name]

    def build() -> None:
        policy_of("keras_recurrent").initial(np.random.default_rng(1))

    with restored_generators():
        alone, around = drawn(lambda: None), drawn(build)
    assert [str(item) for item in around] == [str(item) for item in alone]


def test_saved_model_starts_with_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = own_networks.keras_recurrent(SPACES.observations, 2)
    model.save(tmp_path / "net.keras")
    monkeypatch.setattr(network, "config_directory", lambda: tmp_path)
    policy = network.build(network.Options(network="net.keras", backend="tensorflow"), SPACES)
    saved = np.concatenate([np.ravel(variable) for variable in model.trainable_variables])
    assert policy.initial(np.random.default_rng(0)).tobytes() == saved.tobytes()


# Refused.


def sequential(*layers: Any, outputs: int = 2) -> Any:
    import keras

    return keras.Sequential([keras.layers.Input((5,)), *layers, keras.layers.Dense(outputs)])


def refusal(build: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        policy_of(lambda observations, outputs: build(), **options)
    return str(refused.value)


def test_outputs_that_do_not_fit_the_actions_are_refused() -> None:
    text = f"policy.network: expected outputs float32[2] of {WRONG} (a Box of 2), found float32[3] for an observation"
    assert text in refusal(lambda: sequential(outputs=3))


def test_inputs_and_weights_that_do_not_fit_are_refused() -> None:
    import keras

    class Whole(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(
                shape=(5, 2), dtype="int32", initializer="ones", name="w", trainable=True
            )

        def call(self, x: Any) -> Any:
            return x @ keras.ops.cast(self.w, "float32")

    message = refusal(lambda: keras.Sequential([keras.layers.Input((7,)), keras.layers.Dense(2)]))
    assert f"{WRONG} fails for an observation float32[5]: ValueError" in message
    assert "expected a model of a batch of one observation" in message
    assert (
        f"floating-point parameters from {WRONG}, found 'sequential/whole/w' int32[5, 2]"
        in refusal(lambda: sequential(Whole()))
    )


def test_two_weights_of_one_path_are_refused() -> None:
    def build() -> Any:
        import keras

        class Twins(keras.layers.Layer):  # type: ignore[misc]
            def build(self, shape: Any) -> None:
                self.w = [
                    self.add_weight(shape=(5, 2), initializer="ones", name="w") for _ in range(2)
                ]

            def call(self, x: Any) -> Any:
                return x @ self.w[0] + x @ self.w[1]

        return sequential(Twins(name="twins"))

    assert (
        f"{WRONG} returns a Keras model with two variables of the path 'sequential/twins/w': "
        in refusal(build)
    )


def test_stateful_layer_is_refused() -> None:
    def build() -> Any:
        import keras

        return keras.Sequential(
            [keras.layers.Input((5, 1), batch_size=1), keras.layers.LSTM(2, stateful=True)]
        )

    assert f"the layer 'lstm' of {WRONG} is stateful" in refusal(build)


def test_dropout_layer_is_refused_unless_frozen() -> None:
    def build(*_: Any) -> Any:
        import keras

        return sequential(keras.layers.Dropout(0.5))

    message = refusal(build)
    assert f"the layer 'dropout' of {WRONG} (Dropout) does nothing outside of training" in message
    assert "policy.frozen: true" in message
    policy = policy_of(build, frozen=True)
    plain = policy_of(lambda *_: sequential())
    theta = candidates(policy, ROWS)
    assert acted(policy, theta, observed()).tobytes() == acted(plain, theta, observed()).tobytes()


def test_statistics_are_refused_unless_frozen() -> None:
    """A new BatchNormalization has mean 0, variance 1 and epsilon 0.001: x / sqrt(1.001)."""

    def build(*_: Any) -> Any:
        import keras

        return sequential(keras.layers.BatchNormalization(center=False, scale=False))

    assert "batch_normalization/moving_mean" in refusal(build)
    policy = policy_of(build, frozen=True)
    plain = policy_of(lambda *_: sequential())
    theta = candidates(policy, ROWS)
    expected = acted(plain, theta, (observed() / np.sqrt(1.001)).astype(np.float32))
    np.testing.assert_allclose(acted(policy, theta, observed()), expected, rtol=1e-5, atol=1e-6)


def test_layers_that_are_not_trainable_are_constants() -> None:
    def build(*_: Any) -> Any:
        import keras

        return sequential(keras.layers.Dense(4, trainable=False))

    policy = policy_of(build)
    assert policy.layout.size == 4 * 2 + 2
    theta = candidates(policy, ROWS)
    assert (
        acted(policy, theta, observed()).tobytes()
        == acted(policy_of(build), theta, observed()).tobytes()
    )


def test_layer_that_draws_random_numbers_when_it_acts_is_refused() -> None:
    def build() -> Any:
        import keras

        class Noisy(keras.layers.Layer):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.seed_generator = keras.random.SeedGenerator(1)

            def call(self, x: Any) -> Any:
                return x + keras.random.normal(keras.ops.shape(x), seed=self.seed_generator)

        return sequential(Noisy())

    assert "draws random numbers" in refusal(build, frozen=True)


def test_model_of_two_outputs_is_refused() -> None:
    def build() -> Any:
        import keras

        x = keras.Input((5,))
        return keras.Model(x, [keras.layers.Dense(2)(x), keras.layers.Dense(1)(x)])

    assert "expected a model with one output, found 2" in refusal(build)


def test_other_objects_are_refused() -> None:
    text = f"expected {WRONG} to return a Keras model, or an object with layout, backend, initial, memory and apply"
    assert f"{text}, found int" in refusal(lambda: 7)
    module = type("Linear", (), {"__module__": "torch.nn.modules.linear"})()
    text = "returns a PyTorch object (torch.nn.modules.linear.Linear), which neither JAX nor TensorFlow can compile"
    assert text in refusal(lambda: module)


def test_model_on_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    text = f"policy.backend: is tensorflow, but {WRONG} returns a network in jax: expected jax"
    assert text in refusal(sequential)


@pytest.mark.long
def test_run_of_actor_critic_exports_logits_and_value(tmp_path: Path) -> None:
    """The last output of the network is the value."""
    import keras

    options = [
        "task={kind: episodes, env_id: CartPole-v1, max_episode_steps: 10}",
        "policy={kind: network, network: 'tests.helpers.own_networks:keras_recurrent', backend: tensorflow}",
        "algorithm={kind: actor_critic, batch_size: 4, unroll: 3}",
        *("stop.generations=2", "evaluation.interval=0"),
    ]
    runs.here(runs.tiny(tmp_path), tmp_path / "run", options)
    loaded, file = hpc_es.load_policy(tmp_path / "run"), tmp_path / "policy.keras"
    policy: Any = loaded.policy
    first = policy.initial(np.random.default_rng(0))
    assert first.size == loaded.params and loaded.source.theta.tobytes() != first.tobytes()
    assert cli.run(["export", str(tmp_path / "run"), str(file), "--value"]) == 0
    x, memory = np.ones((1, 4), np.float32), [np.full((1, 6), 0.5, np.float32)] * 2
    logits, value, *after = keras.saving.load_model(file)([x, *memory])
    assert (logits.shape, value.shape, len(after)) == ((1, 2), (1, 1), 2)
    parts = policy.layout.split(loaded.source.theta)
    expected, _ = policy.network.apply(parts, [leaf[0] for leaf in memory], x[0])
    np.testing.assert_allclose(
        np.concatenate([logits[0], value[0]]), expected, rtol=1e-5, atol=1e-6
    )
    assert loaded(np.ones(4, np.float32)) in (0, 1)
