"""Custom networks: what they compute, and what is refused."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
from hpc_es.core.data import (
    Box,
    Discrete,
    MultiDiscrete,
    ObservationSpec,
    Spaces,
    flat_observations,
)
from hpc_es.core.errors import ConfigError, EvaluationError
from hpc_es.core.population import Explicit
from hpc_es.policies import network
from tests.helpers import fake_torch, own_networks
from tests.helpers.populations import candidates, random_inputs

BOX = Box(np.array([-1, -0.5], np.float32), np.array([1, 0.25], np.float32))
SPACES = Spaces(flat_observations(3), BOX)
IMAGES = Spaces(ObservationSpec((4, 4, 2), np.dtype(np.uint8)), Discrete(3))
ROWS, STEPS = 6, 3


def policy_of(name: str, spaces: Spaces = SPACES, **options: Any) -> Any:
    options = {"candidates_per_call": 4, **options}
    return network.build(
        network.Options(network=f"tests.helpers.own_networks:{name}", **options), spaces
    )


def actor(policy: Any, theta: Any, normaliser: Any = None) -> Any:
    return policy.bind(Explicit(policy.layout, np.ascontiguousarray(theta)), normaliser)


def acted(actor: Any, observations: Any) -> Any:
    return np.stack([actor.act(step) for step in observations])


def observed(spaces: Spaces = SPACES, rows: int = ROWS) -> Any:
    return random_inputs(spaces.observations, STEPS, rows)


def dense(observations: Any, outputs: int) -> Any:
    """y = W x + b, without activation."""
    return lambda key: {
        "W": np.zeros((outputs, 2), "f4"),
        "b": np.zeros(outputs, "f4"),
    }, lambda p, x: p["W"] @ x + p["b"]


def test_dense_layer_of_two_units_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """W = [[1, 2], [-1, 0.5]], b = [0.25, 0], x = [3, -1]: y = [1.25, -3.5]; for 2 W, b, x:
    [2.25, -7].
    """
    monkeypatch.setattr(own_networks, "dense", dense, raising=False)
    wide = Box(np.full(2, -9, np.float32), np.full(2, 9, np.float32))
    policy = policy_of("dense", Spaces(flat_observations(2), wide))
    assert dict(policy.layout.shapes) == {"W": (2, 2), "b": (2,)}
    theta = np.array([[1, 2, -1, 0.5, 0.25, 0], [2, 4, -2, 1, 0.25, 0]], np.float32)
    x = np.array([[3, -1], [3, -1]], np.float32)
    assert actor(policy, theta).act(x).tolist() == [[1.25, -3.5], [2.25, -7.0]]
    # (x - 1) / [2, 1] = [1, -2]: y = [-2.75, -2]
    normaliser = np.ones(2, np.float32), np.array([2, 1], np.float32), 5.0
    assert actor(policy, theta[:1], normaliser).act(x[:1]).tolist() == [[-2.75, -2.0]]
    # 10.25 and -35, clipped
    assert actor(policy, theta[:1]).act(x[:1] * 10).tolist() == [[9.0, -9.0]]


# Bits.


@pytest.mark.parametrize("name", own_networks.NAMES)
def test_row_depends_on_neither_its_position_nor_the_others(name: str) -> None:
    policy, observations = policy_of(name), observed()
    theta = candidates(policy, ROWS)
    together = acted(actor(policy, theta), observations)
    for order in ([3, 0, 5, 1, 4, 2], [5, 4, 3], [1], [2, 2, 2, 2, 2]):
        result = acted(actor(policy, theta[order]), observations[:, order])
        assert result.tobytes() == together[:, order].tobytes()


@pytest.mark.parametrize("name", own_networks.NAMES)
def test_kept_and_restarted_rows(name: str) -> None:
    policy, observations = policy_of(name), observed()
    theta = candidates(policy, ROWS)
    together, new = (
        acted(actor(policy, theta), observations),
        acted(actor(policy, theta), observations[1:]),
    )
    bound = actor(policy, theta)
    bound.act(observations[0])
    bound.keep(np.array([0, 2, 5]))
    bound.restart(1)
    result = acted(bound, observations[1:, [0, 2, 5]])
    assert result[:, [0, 2]].tobytes() == together[1:, [0, 5]].tobytes()
    assert result[:, 1].tobytes() == new[:, 2].tobytes()


def test_every_call_has_the_same_number_of_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 rows are calls of 4 and 2 rows and 2 copies of the last one;
    1 row is a call of 4 copies.
    """
    policy, observations = policy_of("plain"), observed()
    original, calls = policy._call.step, list[Any]()

    def step(parameters: Any, memory: Any, rows: Any) -> Any:
        calls.append((len(parameters[1]["output"]), rows))
        return original(parameters, memory, rows)

    monkeypatch.setattr(policy._call, "step", step)
    bound = actor(policy, candidates(policy, ROWS))
    bound.act(observations[0])
    bound.keep(np.array([3]))
    bound.act(observations[1, [3]])
    assert [(size, len(rows)) for size, rows in calls] == [(4, 4)] * 3
    assert calls[1][1].tobytes() == observations[0, [4, 5, 5, 5]].tobytes()
    assert calls[2][1].tobytes() == observations[1, [3, 3, 3, 3]].tobytes()


@pytest.mark.parametrize("name", ["recurrent", "keras_recurrent"])
def test_memory_can_be_passed_to_another_actor(name: str) -> None:
    policy, observations = policy_of(name), observed()
    theta = candidates(policy, ROWS)
    first, second = actor(policy, theta), actor(policy, theta)
    first.act(observations[0])
    second.remember(first.memory())
    assert acted(first, observations[1:]).tobytes() == acted(second, observations[1:]).tobytes()
    assert second.memory()[0].shape[0] == ROWS


@pytest.mark.parametrize("name", own_networks.NAMES)
def test_pure_form_acts_like_the_actor(name: str) -> None:
    import jax.numpy as jnp

    policy, observations = policy_of(name), observed()
    theta = candidates(policy, ROWS)
    together = acted(actor(policy, theta), observations)
    pure = policy.pure(jnp)
    for row in range(ROWS):
        parameters, memory = pure.parameters(jnp.asarray(theta[row])), pure.memory
        for step in range(STEPS):
            memory, action = pure.apply(parameters, memory, observations[step, row])
            np.testing.assert_allclose(action, together[step, row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", own_networks.NAMES)
def test_initial_parameters_depend_on_the_generator_only(name: str) -> None:
    policy = policy_of(name)
    first, again, other = (policy.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert dict(policy_of(name).layout.shapes) == dict(policy.layout.shapes)  # names, too


# Spaces.


@pytest.mark.parametrize(
    ("actions", "bins", "outputs"),
    [(BOX, None, 2), (BOX, 5, 10), (Discrete(4, 2), None, 4), (MultiDiscrete((2, 3)), None, 5)],
)
def test_heads(actions: Any, bins: int | None, outputs: int) -> None:
    spaces = Spaces(flat_observations(3), actions)
    policy = policy_of("plain", spaces, action_bins=bins)
    assert policy.layout.shapes["output"] == (own_networks.WIDTH, outputs)
    result = actor(policy, candidates(policy, ROWS)).act(observed()[0])
    assert result.shape == {2: (ROWS, 2), 10: (ROWS, 2), 4: (ROWS,), 5: (ROWS, 2)}[outputs]


@pytest.mark.parametrize("name", [name for name in own_networks.NAMES if name != "recurrent"])
def test_images_arrive_as_bytes(name: str) -> None:
    policy, observations = policy_of(name, IMAGES), observed(IMAGES)
    assert observations.dtype == np.uint8
    actions = actor(policy, candidates(policy, ROWS)).act(observations[0])
    assert actions.shape == (ROWS,) and set(actions) <= {0, 1, 2}


def test_keywords_reach_the_builder() -> None:
    assert policy_of("plain", network_kwargs={"width": 9}).layout.shapes["output"] == (9, 2)


def test_saved_keras_model_starts_with_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy_of("keras")  # selects the backend
    model = own_networks.keras(SPACES.observations, 2)
    model.save(tmp_path / "net.keras")
    monkeypatch.setattr(network, "config_directory", lambda: tmp_path)
    policy = network.build(network.Options(network="net.keras"), SPACES)
    saved = np.concatenate([np.ravel(variable) for variable in model.trainable_variables])
    assert policy.initial(np.random.default_rng(0)).tobytes() == saved.tobytes()
    assert set(network.sources({"network": "net.keras"}, tmp_path)) == {"net.keras"}


# Refused.


def returned(
    value: Any, monkeypatch: pytest.MonkeyPatch, spaces: Spaces = SPACES, **options: Any
) -> str:
    """The message for a builder that returns this, or calls it if it is a function."""

    def build(observations: Any, outputs: int) -> Any:
        return value() if callable(value) else value

    monkeypatch.setattr(own_networks, "wrong", build, raising=False)
    with pytest.raises(ConfigError) as refused:
        policy_of("wrong", spaces, **options)
    return str(refused.value)


def pair(parameters: Any, apply: Any) -> Any:
    return lambda key: parameters, apply


ONES = {"w": np.ones(3, np.float32)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            7,
            "expected tests.helpers.own_networks:wrong to return a pair (init, apply) of functions",
        ),
        (
            pair(ONES, lambda p, x: p["w"]),
            "expected outputs float32[2] of tests.helpers.own_networks:wrong (a Box of 2)",
        ),
        (pair(ONES, lambda p, x: p["w"]), "found float32[3] for an observation float32[3]"),
        (pair(ONES, lambda p, x: (p["w"] > 0)[:2]), "found bool[2]"),
        (pair(ONES, lambda p, x: (p["w"], x)), "found tuple of length 2"),
        (
            pair(ONES, lambda p, x: p["w"] @ x[:2]),
            "wrong fails for an observation float32[3]: TypeError: ",
        ),
        (
            pair(ONES, lambda p, x: p["w"] @ x[0]),
            "expected a function of one observation, without a batch axis, that",
        ),
        (pair(ONES, lambda p, x: p["w"] if x[0] > 0 else x), "TracerBoolConversionError"),
        (
            pair({"w": np.ones(3, int)}, lambda p, x: x[:2]),
            "own_networks:wrong, found 'w' int64[3]",
        ),
        (
            pair({}, lambda p, x: x[:2]),
            "expected at least one parameter, a floating-point array, from",
        ),
        (lambda: 1 / 0, "fails for observations float32[3] and 2 outputs: ZeroDivisionError"),
        (sys.exit, "fails for observations float32[3] and 2 outputs: SystemExit"),
        (lambda: 1 / 0, "expected a function of (observations, outputs) that returns a network"),
        (
            pair(ONES, lambda p, x: p["w"][:2] + np.random.rand(2).astype("f4")),
            "two calls of tests.helpers.own_networks:wrong with the same arguments differ",
        ),
    ],
)
def test_networks_that_do_not_fit(value: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = returned(value, monkeypatch)
    assert message.startswith("policy.network: ") and text in message


def test_memory_that_changes_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent = own_networks.Recurrent(3, 2)
    monkeypatch.setattr(
        recurrent, "memory", lambda: {"mean": np.zeros(2, "f4"), "steps": np.float32(0)}
    )
    text = "to return a memory like its memory(), {mean: float32[2], steps: float32[]}, found"
    monkeypatch.setattr(
        recurrent, "apply", lambda p, m, x: (p[0][0, :2], {**m, "steps": np.int32(1)})
    )
    assert text in returned(recurrent, monkeypatch)


def linear(library: str, inputs: int, outputs: int) -> Any:
    """A linear network of a library, whose parameters may be for other inputs;
    flax.linen has none of its own.
    """
    import equinox
    import jax
    import keras
    from flax import linen, nnx

    if library == "keras":
        return keras.Sequential([keras.layers.Input((inputs,)), keras.layers.Dense(outputs)])
    if library == "linen":
        return linen.Sequential([lambda x: x.reshape(inputs), linen.Dense(outputs)])
    if library == "nnx":
        return nnx.Linear(inputs, outputs, rngs=nnx.Rngs(0))
    return equinox.nn.Linear(inputs, outputs, key=jax.random.key(0))


LIBRARIES = ("keras", "linen", "nnx", "equinox")


@pytest.mark.parametrize("library", LIBRARIES)
def test_outputs_of_each_library_that_do_not_fit(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "expected outputs float32[2] of tests.helpers.own_networks:wrong (a Box of 2), found float32[3] for an"
    assert text in returned(lambda: linear(library, inputs=3, outputs=3), monkeypatch)


@pytest.mark.parametrize("library", LIBRARIES)
def test_shapes_of_each_library_that_do_not_fit(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = returned(lambda: linear(library, inputs=7, outputs=2), monkeypatch)
    assert "for an observation float32[3]" in message and "7" in message


def whole_keras() -> Any:
    import keras

    class Whole(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(
                shape=(3, 2), dtype="int32", initializer="ones", name="kernel"
            )

        def call(self, x: Any) -> Any:
            return x @ keras.ops.cast(self.kernel, "float32")

    return keras.Sequential([keras.layers.Input((3,)), Whole()])


def whole_linen() -> Any:
    from flax import linen

    return linen.Dense(
        2, param_dtype=np.int32, kernel_init=lambda key, shape, dtype: np.ones(shape, dtype)
    )


def without_parameters() -> Any:
    import keras

    x = keras.Input((3,))
    return keras.Model(x, x[:, :2])


def without_outputs() -> Any:
    import keras

    class Silent(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            self.hidden(x)

    return Silent()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            whole_keras,
            "own_networks:wrong, found 'sequential/whole/kernel' int32[3, 2] (24 bytes): keep",
        ),
        (
            whole_linen,
            "own_networks:wrong, found 'bias' int32[2] (8 bytes), 'kernel' int32[3, 2] (24 bytes): keep",
        ),
        (without_parameters, "expected at least one parameter, a floating-point array, from"),
        (without_outputs, "expected a model that returns its outputs, found NoneType"),
    ],
)
def test_parameters_and_outputs_that_cannot_be_used(
    build: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert text in returned(build, monkeypatch)


def torch_objects(name: str = "") -> Any:
    """What a user of PyTorch returns: the module, its weights, or functions of tensors."""
    module, tensor = fake_torch.Linear(), fake_torch.Tensor()
    objects = {
        "module": module,
        "weights": module.state_dict(),
        "forward": module.forward,
        "init": (lambda key: {"kernel": tensor}, lambda tree, x: x),
        "apply": (lambda key: {"kernel": np.zeros((3, 2), np.float32)}, lambda tree, x: tensor),
    }
    return objects[name]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "module",
            "own_networks:wrong returns a PyTorch module (torch.nn.modules.linear.Linear), which neither JAX",
        ),
        (
            "weights",
            "own_networks:wrong returns a PyTorch tensor (torch.Tensor), which neither JAX nor TensorFlow can",
        ),
        (
            "forward",
            "own_networks:wrong returns a PyTorch module (torch.nn.modules.linear.Linear), which neither JAX",
        ),
        (
            "init",
            "expected NumPy or JAX arrays, such as {name: value.float().numpy() for name, value in module.state_",
        ),
        (
            "apply",
            "apply of tests.helpers.own_networks:wrong returns a PyTorch tensor (torch.Tensor), which neither",
        ),
    ],
)
def test_pytorch(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert text in returned(lambda: torch_objects(name), monkeypatch)


def keras_model(*layers: Any) -> Any:
    import keras

    return keras.Sequential([keras.layers.Input((3,)), *layers, keras.layers.Dense(2)])


def test_stateful_layer_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> Any:
        import keras

        layers = [
            keras.layers.Input((3, 1), batch_size=1),
            keras.layers.LSTM(4, stateful=True),
            keras.layers.Dense(2),
        ]
        return keras.Sequential(layers)

    spaces = Spaces(ObservationSpec((3, 1)), BOX)
    text = "the layer 'lstm' of tests.helpers.own_networks:wrong is stateful, which compiled calls cannot keep"
    assert text in returned(build, monkeypatch, spaces)


def statistics_of_keras() -> Any:
    import keras

    return keras_model(keras.layers.BatchNormalization())


def statistics_of_linen() -> Any:
    import flax.linen as nn

    return nn.Sequential([nn.BatchNorm(use_running_average=True), nn.Dense(2)])


def statistics_of_nnx() -> Any:
    from flax import nnx

    return nnx.Sequential(nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.Linear(3, 2, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (statistics_of_keras, "sequential/batch_normalization/moving_mean, "),
        (statistics_of_linen, "batch_stats, "),
        (statistics_of_nnx, "layers/0/mean, layers/0/var, "),
    ],
)
def test_mutable_statistics_are_refused_unless_frozen(
    build: Any, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = returned(build, monkeypatch)
    assert f"has {names}" in message
    assert "which only training updates" in message and "policy.frozen: true" in message
    policy = policy_of("wrong", frozen=True)
    result = actor(policy, candidates(policy, 2)).act(observed(rows=2)[0])
    assert np.isfinite(result).all()


def keras_dropout(*layers: Any) -> Any:
    import keras

    return keras_model(*(keras.layers.Dropout(0.5) for _ in layers))


def linen_dropout(*layers: Any) -> Any:
    import flax.linen as nn

    return nn.Sequential([*(nn.Dropout(0.5, deterministic=False) for _ in layers), nn.Dense(2)])


def nnx_dropout(*layers: Any) -> Any:
    from flax import nnx

    rngs = nnx.Rngs(0)
    return nnx.Sequential(
        *(nnx.Dropout(0.5, rngs=rngs) for _ in layers), nnx.Linear(3, 2, rngs=rngs)
    )


def equinox_dropout(*layers: Any) -> Any:
    import equinox
    import jax

    dense = equinox.nn.Linear(3, 2, key=jax.random.key(0))
    return equinox.nn.Sequential([*(equinox.nn.Dropout(0.5) for _ in layers), dense])


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        (keras_dropout, "dropout"),
        (linen_dropout, "layers_0"),
        (nnx_dropout, "layers/0"),
        (equinox_dropout, "layers/0"),
    ],
)
def test_dropout_is_refused_unless_frozen(
    build: Any, layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen network acts like the one without the layer."""
    text = f"the layer '{layer}' of tests.helpers.own_networks:wrong (Dropout) does nothing outside of training"
    message = returned(lambda: build(1), monkeypatch)
    assert text in message and "policy.frozen: true" in message
    frozen, observations = policy_of("wrong", frozen=True), observed()
    monkeypatch.setattr(own_networks, "wrong", lambda observations, outputs: build())
    without, theta = policy_of("wrong"), candidates(frozen, ROWS)
    assert (
        acted(actor(frozen, theta), observations).tobytes()
        == acted(actor(without, theta), observations).tobytes()
    )


def counting_nnx() -> Any:
    import jax.numpy as jnp
    from flax import nnx

    class Counting(nnx.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2, rngs=nnx.Rngs(0))
            self.calls = nnx.Variable(jnp.zeros(()))

        def __call__(self, x: Any) -> Any:
            self.calls[...] += 1
            return super().__call__(x)

    return Counting()


def random_nnx() -> Any:
    import jax
    from flax import nnx

    class Random(nnx.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2, rngs=nnx.Rngs(0))
            self.noise = nnx.Rngs(1)

        def __call__(self, x: Any) -> Any:
            return super().__call__(x) + jax.random.normal(self.noise())

    return Random()


def updating_linen() -> Any:
    import flax.linen as nn

    return nn.Sequential([nn.BatchNorm(use_running_average=False), nn.Dense(2)])


def stateful_equinox() -> Any:
    import equinox
    import jax

    norm = equinox.nn.BatchNorm(3, "batch", mode="batch")
    return equinox.nn.Sequential([norm, equinox.nn.Linear(3, 2, key=jax.random.key(0))])


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            counting_nnx,
            "changes calls when it acts: expected a model whose outputs depend on its inputs only",
        ),
        (random_nnx, "draws random numbers when it acts"),
        (updating_linen, "fails for an observation float32[3]: ModifyScopeVariableError"),
        (stateful_equinox, "is state, such as that of BatchNorm, which calls would return"),
    ],
)
def test_modules_that_change_when_they_act_are_always_refused(
    build: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert text in returned(build, monkeypatch, frozen=True)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            lambda n: {f"w_{n}": np.ones(2, "f4")},
            "the parameter 'w_0' in the first one, the parameter 'w_1' in the",
        ),
        (
            lambda n: {"w": np.ones(2, "f4"), **({"v": np.ones(1, "f4")} if n else {})},
            "the parameter 'v'",
        ),
        (
            lambda n: {"w": np.ones(2 + n, "f4")},
            "the parameter 'w' is [2] in the first one, [3] in the second",
        ),
        (
            lambda n: {"w": np.full(2, n, "f4")},
            "the initial values of 'w', although the seed is the same",
        ),
        (lambda n: {"w": np.ones(2, "f4")}, "their outputs or memories for the same parameters"),
    ],
)
def test_builder_that_returns_different_networks(
    parameters: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its n-th call gives other parameters, and always another constant."""
    calls = itertools.count()

    def build() -> Any:
        n = next(calls)
        return lambda key: parameters(n), lambda p, x: p["w"][:2] + n if "w" in p else x[:2]

    message = returned(build, monkeypatch)
    assert (
        "returns different networks in two calls with the same arguments" in message
        and text in message
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "tests.helpers.own_networks:nothing",
            "there is no 'nothing' in tests.helpers.own_networks",
        ),
        ("no_such_module:build", "there is no module 'no_such_module'"),
        ("build", "expected module:function such as my_net:build, found 'build'"),
        ("missing.keras", "missing.keras cannot be read"),
    ],
)
def test_builder_that_does_not_exist(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        network.build(network.Options(network=name), SPACES)
    assert text in str(refused.value)


def test_exception_in_code_that_a_network_calls_is_one_line_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends the run: neither JAX's error nor its traceback is shown."""
    import jax

    def judged(x: Any) -> Any:
        if np.any(x > 5):
            raise ValueError("too large")
        return np.float32(x)

    def apply(tree: Any, x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((2,), np.float32)
        return jax.pure_callback(judged, shape, x[:2] * tree["w"], vmap_method="expand_dims")

    functions = (lambda key: {"w": np.ones(2, np.float32)}), apply
    monkeypatch.setattr(
        own_networks, "wrong", lambda observations, outputs: functions, raising=False
    )
    acting = actor(policy_of("wrong"), np.ones((3, 2), np.float32))
    acting.act(np.ones((3, 3), np.float32))
    with pytest.raises(
        EvaluationError,
        match=r"calls fails: ValueError: too large \(test_network\.py:\d+ in judged\)$",
    ):
        acting.act(np.full((3, 3), 9, np.float32))
