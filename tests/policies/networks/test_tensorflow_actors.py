"""The TensorFlow backend computes the actions of the NumPy backend."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest

from hpc_es.core.data import Float32, Normaliser, Spaces, flat_observations
from hpc_es.core.errors import ConfigError
from hpc_es.core.population import Perturbed
from hpc_es.devices.backend import USED_BEFORE
from hpc_es.policies.mlp import MLP, Options
from hpc_es.policies.networks import compiled_actor
from hpc_es.policies.networks import tensorflow_actors as mlp_tensorflow
from hpc_es.policies.networks.compiled_actor import CompiledActor
from tests.helpers.harness import python, script
from tests.helpers.populations import explicit, population
from tests.helpers.trained import HEADS, NORMALISER, WIDTH

pytestmark = pytest.mark.tensorflow

ROWS = 7
BACKENDS: tuple[Literal["tensorflow", "numpy"], ...] = ("tensorflow", "numpy")
OWN = {"TF_NUM_INTRAOP_THREADS": "3", "TF_NUM_INTEROP_THREADS": "2", "TF_DETERMINISTIC_OPS": "0"}


def policy(
    backend: str,
    head: str,
    activation: str = "tanh",
    hidden: tuple[int, ...] = (8, 6),
    **further: Any,
) -> MLP:
    space, bins = HEADS[head]
    options: Any = {
        "backend": backend,
        "activation": activation,
        "hidden_dims": hidden,
        "action_bins": bins,
        **further,
    }
    return MLP(Options(**options), Spaces(flat_observations(WIDTH), space))


def perturbed(size: int, rows: int = ROWS) -> Perturbed:
    rng = np.random.default_rng(size)
    directions = rng.standard_normal((rows, size)).astype(np.float32)
    scales = np.linspace(-0.5, 0.5, rows).astype(np.float32)
    return population(directions[0], directions, np.arange(rows), scales)


def observations(rows: int = ROWS) -> Float32:
    return np.random.default_rng(3).normal(0, 2, (rows, WIDTH)).astype(np.float32)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("normaliser", [None, NORMALISER], ids=["raw", "normalised"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("activation", ["tanh", "relu", "leaky_relu", "elu"])
def test_tensorflow_actions_equal_numpy(
    activation: str, head: str, normaliser: Normaliser | None
) -> None:
    ours, theirs = (policy(backend, head, activation) for backend in ("tensorflow", "numpy"))
    assert ours.layout.size == theirs.layout.size
    actor = ours.bind(perturbed(ours.layout.size), normaliser)
    assert type(actor) is CompiledActor
    actions = actor.act(observations())
    expected = theirs.bind(perturbed(ours.layout.size), normaliser).act(observations())
    assert (actions.shape, actions.dtype) == (expected.shape, expected.dtype)
    assert len(np.unique(expected)) > 1
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalisation", ["none", "layer"])
def test_tensorflow_without_biases_and_with_a_constant_input_equals_numpy(
    normalisation: Any,
) -> None:
    spaces, options = (
        Spaces(flat_observations(WIDTH), HEADS["box"][0]),
        {"bias": False, "normalisation": normalisation},
    )
    ours, theirs = (
        MLP(Options(backend=item, hidden_dims=(3,), **options), spaces) for item in BACKENDS
    )
    deviation = np.array([1, np.inf, 2, 1, 1], np.float32)
    normaliser = (np.ones(WIDTH, np.float32), deviation, np.inf)
    actions, expected = (
        item.bind(perturbed(ours.layout.size), normaliser).act(observations())
        for item in (ours, theirs)
    )
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)
    assert len(np.unique(expected)) > 1


def test_tensorflow_linear_policy_by_hand() -> None:
    linear = policy("tensorflow", "box", hidden=())
    theta = np.zeros(linear.layout.size, np.float32)
    theta[[0, 3, 10, 11]] = 0.1, 0.2, 0.01, -0.4  # weights [5, 2] in row order, then two biases
    actions = linear.bind(explicit(theta[np.newaxis]), None).act(
        np.array([[3, 1, 0, 0, 0]], np.float32)
    )
    np.testing.assert_allclose(actions, [[0.31, -0.2]], rtol=1e-6)


def test_kept_rows_give_bit_identical_actions() -> None:
    network = policy("tensorflow", "box", hidden=(64, 64))
    whole = network.bind(perturbed(network.layout.size, 16), NORMALISER)
    before = whole.act(observations(16))
    for kept in ([15], [0, 3], list(range(1, 16))):
        actor = network.bind(perturbed(network.layout.size, 16), NORMALISER)
        actor.keep(np.array(kept, np.intp))
        actor.restart(0)
        assert actor.act(observations(16)[kept]).tobytes() == before[kept].tobytes()


def test_row_depends_on_neither_its_position_nor_the_others() -> None:
    """In calls of 4 candidates, 1 to 9 rows in other orders have bit-identical actions."""
    network = policy("tensorflow", "box", hidden=(24, 24), candidates_per_call=4)
    population = perturbed(network.layout.size, 9)
    stack, inputs = population.stacked(), observations(9)
    whole = network.bind(explicit(stack), NORMALISER).act(inputs)
    for rows in ([8], [3, 1], [5, 5, 5], [8, 7, 6, 5, 4, 3, 2, 1, 0], [0, 4, 8, 2, 6]):
        actions = network.bind(explicit(stack[rows]), NORMALISER).act(inputs[rows])
        assert actions.tobytes() == whole[rows].tobytes()


def test_calls_that_do_not_fit_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded to a whole call, even two candidates may take more than the machine has."""
    monkeypatch.setattr(compiled_actor, "memory_bytes", lambda: 1 << 31)
    network = policy("tensorflow", "box", hidden=(24, 24), candidates_per_call=1 << 20)
    with pytest.raises(ConfigError, match=r"policy.candidates_per_call: is 1048576, but .* take"):
        network.bind(perturbed(network.layout.size, 2), None)


def test_all_actors_of_a_policy_share_a_compiled_call() -> None:
    network = policy("tensorflow", "box", hidden=(3,))
    for rows in (2, 40, 1):
        network.bind(perturbed(network.layout.size, rows), None).act(observations(rows))
    call: Any = network._call
    assert call._step.experimental_get_tracing_count() == 1


@pytest.mark.long
def test_tensorflow_uses_one_thread_and_deterministic_kernels() -> None:
    done = python(
        script("""
        from hpc_es.policies.networks.tensorflow_actors import tensorflow
        tf = tensorflow()
        from tensorflow.python.framework import config
        print(tf.config.threading.get_intra_op_parallelism_threads(),
              tf.config.threading.get_inter_op_parallelism_threads(), config.is_op_determinism_enabled())
    """)
    )
    assert done.stdout.split() == ["1", "1", "True"], done


@pytest.mark.parametrize("arguments, threads, calls", [({}, 0, 3), (OWN, 0, 0), ({}, 4, 1)])
def test_tensorflow_settings_of_the_user_are_kept(
    arguments: dict[str, str], threads: int, calls: int, monkeypatch: Any
) -> None:
    fake = mock.MagicMock()
    fake.config.list_physical_devices.return_value = []
    fake.config.threading.get_intra_op_parallelism_threads.return_value = threads
    fake.config.threading.get_inter_op_parallelism_threads.return_value = threads
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: fake)
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    for name, value in arguments.items():
        monkeypatch.setenv(name, value)
    mlp_tensorflow.tensorflow.cache_clear()
    assert mlp_tensorflow.tensorflow() is fake
    mlp_tensorflow.tensorflow.cache_clear()
    created = [
        str(call) for call in fake.mock_calls if ".set_" in str(call) or "enable_op" in str(call)
    ]
    assert len(created) == calls, created


def test_numpy_path_imports_no_tensorflow() -> None:
    done = python(
        script("""
        import sys, numpy as np
        from hpc_es.config import registry
        from hpc_es.core.data import Discrete, Spaces, flat_observations
        from hpc_es.core.population import unperturbed
        from hpc_es.policies import mlp
        registry.kinds("policies")  # imports every file of the folder
        p = mlp.build(mlp.Options(), Spaces(flat_observations(2), Discrete(2)))
        actor = p.bind(unperturbed(p.layout, np.zeros(p.layout.size, np.float32), 1), None)
        actor.act(np.zeros((1, 2), np.float32))
        assert not {"tensorflow", "keras"} & set(sys.modules)
    """)
    )
    assert done.status == 0, done


def test_without_tensorflow_the_key_and_the_extra_are_named(monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    mlp_tensorflow.tensorflow.cache_clear()
    with pytest.raises(ConfigError, match=r"policy\.backend.*pip install 'hpc_es\[tensorflow\]'"):
        policy("tensorflow", "box").bind(perturbed(policy("numpy", "box").layout.size), None)
    assert "tensorflow" in sys.modules  # it is there: only hidden


def test_chunks_fill_the_calls_of_tensorflow_only() -> None:
    assert policy("tensorflow", "box", candidates_per_call=8).candidates_per_call == 8
    assert policy("numpy", "box").candidates_per_call == 1


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1])
def test_tensorflow_that_was_used_before_is_named(number: int) -> None:
    program = f"""
    import warnings
    import tensorflow as tf
    if {number}:
        tf.ones(3)
    from hpc_es.policies.networks.tensorflow_actors import tensorflow
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensorflow()
    print(*[warning.message for warning in caught if warning.category is RuntimeWarning])
    """
    done = python(script(program), env={"TF_CPP_MIN_LOG_LEVEL": "2"})
    expected = ["", USED_BEFORE.format(title="TensorFlow")][number]
    assert done.status == 0 and done.stdout == f"{expected}\n", str(done)
