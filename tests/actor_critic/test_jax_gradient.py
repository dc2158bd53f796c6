"""The loss of networks in JAX with its gradient: against TensorFlow,
differences and sums by hand; initial weights.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import jax
import jax.numpy as jnp

from hpc_es.actor_critic import jax_gradient
from hpc_es.actor_critic.differentiable import differentiable
from hpc_es.actor_critic.episodes import Trajectories
from hpc_es.actor_critic.jax_gradient import JaxPolicy, loss_gradient, loss_terms
from hpc_es.actor_critic.jax_networks import LastOutput, LinearValue, value_network
from hpc_es.actor_critic.loss import Loss, LossWeights
from hpc_es.core.data import Discrete, ObservationSpec, Spaces
from hpc_es.devices.jax_setup import configured_jax
from hpc_es.policies import cnn
from hpc_es.policies.networks.jax_convolutional import Convolution, ConvolutionalNetwork
from tests.actor_critic.one_layer import ACTIONS, INPUTS, UNITS, OneLayer, episodes, in_graph

configured_jax("cpu")

PLAIN = Loss(discount=0.9, gae_lambda=0.7, value_weight=0.3, reward_clip=1.0, unroll=None)
BETA = np.float32(0.1)
IMAGES = ConvolutionalNetwork(
    (6, 5, 2), (Convolution(3, 3, 2),), "same", (), 4, "elu", "none", ACTIONS
)


class JaxLayer(OneLayer):
    backend = "jax"

    def apply(self, p: Any, memory: Any, x: Any) -> Any:
        if self.is_recurrent:
            i, j, f, o = jnp.split(jnp.concatenate([x, memory["h"]]) @ p["k"] + p["b"], 4)
            c = memory["c"] * jax.nn.sigmoid(f + 1) + jax.nn.sigmoid(i) * jnp.tanh(j)
            x = jnp.tanh(c) * jax.nn.sigmoid(o)
            memory = {"h": x, "c": c}
        else:
            x = jnp.tanh(x @ p["k"] + p["b"])
        return x @ p["output"] + p["last"], memory


def theta_of(network: Any, scale: float = 1.0) -> Any:
    return scale * network.initial(np.random.default_rng(0))


def gradient(
    network: Any, recorded: Trajectories, loss: Loss = PLAIN, theta: Any = None, memory: Any = None
) -> Any:
    policy = JaxPolicy(value_network(network))
    value = policy.initial_value(np.random.default_rng(2))
    theta = theta_of(network) if theta is None else theta
    return policy.gradient(loss, LossWeights(theta, value, BETA), recorded, memory)


@pytest.mark.parametrize("unroll", [None, 3])
@pytest.mark.parametrize("is_recurrent", [True, False])
def test_gradient_equals_that_of_lstm_and_mlp_in_tensorflow(
    is_recurrent: bool, unroll: int | None
) -> None:
    pytest.importorskip(
        "tensorflow", reason="TensorFlow is not installed here: make test-all-extras"
    )
    from hpc_es.actor_critic.differentiable import GraphPolicy
    from hpc_es.policies.networks.tensorflow_sequences import DifferentiableNetwork

    network, widths = JaxLayer(is_recurrent), (INPUTS, UNITS, ACTIONS)
    loss = Loss(0.9, 0.7, 0.3, 1.0, unroll)
    other = GraphPolicy(DifferentiableNetwork(widths, None if is_recurrent else "tanh"))
    expected, expected_sums = other.gradient(
        loss, LossWeights(*in_graph(theta_of(network)), BETA), episodes()
    )
    result, sums = gradient(network, episodes(), loss)
    np.testing.assert_allclose(np.concatenate(in_graph(result)), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)


@pytest.mark.parametrize("network", [JaxLayer(True), JaxLayer(False), IMAGES])
def test_gradient_equals_the_difference_of_the_loss_along_a_direction(network: Any) -> None:
    """With gamma 0 the value loss has targets that do not depend on the parameters;
    without the policy loss.
    """
    recorded = episodes((6, 5, 2), dtype="uint8") if network is IMAGES else episodes()
    recorded = Trajectories(
        *recorded.arrays()[:2], 0 * recorded.rewards, recorded.lives, recorded.cuts
    )
    both, loss = value_network(network), Loss(0.0, 1.0, 0.3, None, None)
    theta, value = theta_of(network), both.initial_value(np.random.default_rng(2))
    rng = np.random.default_rng(3)
    memory = jax.tree.map(
        lambda leaf: rng.standard_normal((3, *leaf.shape)).astype("f4"), network.memory()
    )

    @jax.jit
    def total(theta: Any, value: Any) -> Any:
        _, squares, entropy = loss_terms(both, loss, theta, value, memory, *recorded.arrays())
        return 0.3 * squares - BETA * entropy

    directions = [rng.standard_normal(array.shape).astype("f4") for array in (theta, value)]
    ahead, behind = (
        float(total(theta + s * directions[0], value + s * directions[1]))
        for s in (np.float32(0.01), np.float32(-0.01))
    )
    slopes = jax.jit(jax.grad(total, argnums=(0, 1)))(theta, value)
    slope = sum(float(np.vdot(one, other)) for one, other in zip(slopes, directions, strict=True))
    assert slope == pytest.approx((ahead - behind) / 0.02, rel=1e-2)


def test_value_of_a_convolutional_network_equals_a_further_output() -> None:
    """The same network with a third output, whose column is the value function."""
    recorded, rng = episodes((6, 5, 2), dtype="uint8"), np.random.default_rng(2)
    wide = ConvolutionalNetwork(
        (6, 5, 2), (Convolution(3, 3, 2),), "same", (), 4, "elu", "none", ACTIONS + 1
    )
    theta, value = theta_of(IMAGES), LinearValue(IMAGES).initial_value(rng)
    parts = IMAGES.layout.split(theta)
    parts["output_kernel"] = np.column_stack([parts["output_kernel"], value[:-1]])
    parts["output_bias"] = np.append(parts["output_bias"], value[-1])
    result, sums = gradient(IMAGES, recorded)
    memory = tuple(np.zeros((3, 4), np.float32) for _ in range(2))
    last = LastOutput(wide)
    compute = jax.jit(partial(loss_gradient, last, PLAIN))
    expected, expected_sums = compute(
        wide.layout.join(parts), value[:0], BETA, memory, *recorded.arrays()
    )
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
    columns = wide.layout.split(np.asarray(expected))
    assert result[-1] == pytest.approx(columns["output_bias"][-1], rel=1e-5)
    np.testing.assert_allclose(result[-5:-1], columns["output_kernel"][:, -1], rtol=1e-4, atol=1e-5)
    hidden = IMAGES.layout.spans["output_kernel"][0]
    np.testing.assert_allclose(result[:hidden], expected[:hidden], rtol=1e-4, atol=1e-5)


def test_segments_with_memory_sum_to_an_unrolled_episode() -> None:
    """With gamma 0, where segments of 2 need no bootstrap: the memory is carried,
    and its gradient is not.
    """
    network, recorded = JaxLayer(True), episodes()
    recorded = Trajectories(*recorded.arrays()[:4], 0 * recorded.cuts)
    whole, sums = gradient(network, recorded, Loss(0.0, 1.0, 0.3, None, 2))
    long, _ = gradient(network, recorded, Loss(0.0, 1.0, 0.3, None, 100))
    assert np.abs(whole - long).max() > 1e-2
    np.testing.assert_array_equal(
        long, gradient(network, recorded, Loss(0.0, 1.0, 0.3, None, None))[0]
    )
    step = jax.jit(jax.vmap(partial(network.apply, network.layout.split(theta_of(network)))))
    memory = jax.tree.map(lambda leaf: np.repeat(leaf[np.newaxis], 3, axis=0), network.memory())
    total, total_sums = np.zeros_like(whole), np.zeros(3)
    for start in range(0, 8, 2):
        part = Trajectories(*[array[start : start + 2] for array in recorded.arrays()])
        slope, terms = gradient(
            network, part, Loss(0.0, 1.0, 0.3, None, None), memory=jax.tree.leaves(memory)
        )
        total, total_sums = total + slope, total_sums + terms
        for x in part.inputs:
            _, memory = step(memory, x)
    np.testing.assert_allclose(total, whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(total_sums, sums, rtol=1e-5)


def test_steps_after_the_end_never_make_the_gradient_nan() -> None:
    """Their inputs are zeros, where this network has no gradient."""

    class Normalised(JaxLayer):
        def apply(self, p: Any, memory: Any, x: Any) -> Any:
            return super().apply(p, memory, x / jnp.linalg.norm(x))

    result, sums = gradient(Normalised(True), episodes())
    assert np.isfinite(result).all() and np.isfinite(sums).all()


def test_long_sequences_of_images_in_blocks_have_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of 3 steps of 8, so that the last block is shorter."""
    recorded = episodes((6, 5, 2), dtype="uint8")
    for network in (
        IMAGES,
        ConvolutionalNetwork((6, 5, 2), (), "same", (4,), None, "elu", "layer", ACTIONS),
    ):
        expected, _ = gradient(network, recorded)
        with monkeypatch.context() as blocks:
            blocks.setattr(jax_gradient, "BLOCK", 3)
            result, _ = gradient(network, recorded)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_initial_weights_of_the_a3c_network_are_those_of_the_publication() -> None:
    """Conv kernels are uniform in +-sqrt(6 / (9 C + 9 * 32)), biases 0,
    columns of the heads have norm 0.01 and 1.
    """
    policy: Any = cnn.build(
        cnn.Options(preset="a3c"), Spaces(ObservationSpec((42, 42, 1), np.dtype("u1")), Discrete(6))
    )
    network: Any = differentiable(policy)
    theta, value = (
        policy.initial(np.random.default_rng(0)),
        network.initial_value(np.random.default_rng(1)),
    )
    assert theta.size + value.size == 587_943
    parts = policy.layout.split(theta)
    for number, channels in enumerate((1, 32, 32, 32)):
        kernel, bound = parts[f"conv_{number}_kernel"], (6 / (9 * channels + 9 * 32)) ** 0.5
        assert kernel.shape == (3, 3, channels, 32) and 0.97 * bound < np.abs(kernel).max() <= bound
        assert kernel.std() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert parts["lstm_0_kernel"].shape == (288 + 256, 4 * 256)
    assert not any(part.any() for name, part in parts.items() if name.endswith("bias"))
    np.testing.assert_allclose(np.linalg.norm(parts["output_kernel"], axis=0), 0.01, rtol=1e-5)
    assert value.shape == (257,) and value[-1] == 0
    assert np.linalg.norm(value[:-1]) == pytest.approx(1, rel=1e-5)
