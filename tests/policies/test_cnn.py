"""The policy cnn: its options, the actions of its candidates, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
from hpc_es.config.loading import validate
from hpc_es.config.options import warnings_of
from hpc_es.core.data import (
    Actions,
    Box,
    Discrete,
    Jobs,
    MultiDiscrete,
    ObservationSpec,
    Outcome,
    Spaces,
    flat_observations,
    row_dtype,
)
from hpc_es.core.errors import ConfigError, RunError
from hpc_es.core.interfaces import RunContext
from hpc_es.core.keys import Keys
from hpc_es.core.policy import PurePolicy, ReferencePolicy
from hpc_es.core.population import Explicit, unperturbed
from hpc_es.policies import cnn
from hpc_es.policies.cnn import Convolution, Options
from hpc_es.policies.networks.jax_convolutional import Folding
from hpc_es.tasks.problems import ObservationNormalization, PolicyProblem

BOX = Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32))
IMAGE = ObservationSpec((6, 5, 2), np.dtype(np.uint8))
SMALL = {
    "convolutions": (Convolution(filters=3, kernel=3, stride=2),),
    "hidden_dims": (4,),
    "candidates_per_call": 4,
}
ROWS = 6


def policy_of(actions: Actions = BOX, image: ObservationSpec = IMAGE, **options: Any) -> Any:
    return cnn.build(Options(**{**SMALL, **options}), Spaces(image, actions))


def images(count: int, spec: ObservationSpec = IMAGE, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(256, size=(count, *spec.shape)).astype(spec.dtype)


def candidates(policy: Any, rows: int = ROWS) -> Any:
    rng = np.random.default_rng(0)
    return np.stack(
        [policy.initial(rng) + rng.normal(0, 0.5, policy.layout.size) for _ in range(rows)]
    ).astype("f4")


def actor(policy: Any, theta: Any) -> Any:
    return policy.bind(Explicit(policy.layout, theta), None)


def batch_policy(actions: Actions = BOX, **options: Any) -> Any:
    policy = policy_of(actions, normalisation="virtual_batch", reference_frames=7, **options)
    return policy.with_reference(images(7, seed=1))


# Options.


@pytest.mark.parametrize(
    ("preset", "shape", "parameters"),
    [("minatar", (10, 10, 4), 132_566), ("a3c", (42, 42, 1), 587_943 - 257)],
)
def test_presets_are_published_networks(preset: Any, shape: Any, parameters: int) -> None:
    """The published a3c has a value head of 257 parameters more."""
    spaces = Spaces(ObservationSpec(shape), Discrete(6))
    assert cnn.build(Options(preset=preset), spaces).layout.size == parameters


def test_keys_replace_those_of_the_preset() -> None:
    """84 x 84 images are 20 x 20 and 9 x 9 without padding, and 21 x 21 and 11 x 11 with it."""
    spaces = Spaces(ObservationSpec((84, 84, 4), np.dtype(np.uint8)), Discrete(6))
    shapes = cnn.build(Options(preset="atari"), spaces).layout.shapes
    assert shapes["hidden_0_kernel"] == (11 * 11 * 32, 256)
    other = cnn.build(
        Options(preset="atari", padding="valid", hidden_dims=(32, 16), lstm=8), spaces
    ).layout.shapes
    assert other["hidden_0_kernel"] == (9 * 9 * 32, 32) and other["hidden_1_kernel"] == (32, 16)
    assert other["lstm_0_kernel"] == (16 + 8, 32)


def refused(**policy: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate({"task": {"env_id": "CartPole-v1"}, "policy": {"kind": "cnn", **policy}})
    return str(caught.value)


def test_wrong_options_are_refused_with_their_key() -> None:
    assert (
        "policy.convolutions: is null: expected a list such as [{filters: 16, kernel: 3}]"
        in refused()
    )
    assert "policy.padding: expected one of 'same', 'valid', or null, found 'full'" in refused(
        preset="atari", padding="full"
    )
    assert "policy.lstm: expected a whole number of at least 1, or null, found 0" in refused(
        preset="atari", lstm=0
    )
    assert (
        "policy.preset: expected one of 'atari', 'minatar', 'a3c', or null, found 'Atari'; did you mean 'atari'?"
        in refused(preset="Atari")
    )
    text = refused(convolutions=[{"filters": 16, "kernel": 3, "strides": 2}])
    assert "unknown key 'policy.convolutions[0].strides'; did you mean 'stride'?" in text
    text = refused(convolutions=[{"filters": 16, "kernel": 3}, {"filters": 0}])
    assert "policy.convolutions[1].filters: expected a whole number of at least 1, found 0" in text
    assert (
        "policy.convolutions[1].kernel: expected a whole number of at least 1 (height and width"
        in text
    )
    assert (
        "policy.convolutions[0]: expected a mapping with keys such as 'filters', found"
        in refused(convolutions=[3])
    )


def test_convolutions_are_read_as_a_list_of_mappings() -> None:
    policy = {
        "kind": "cnn",
        "convolutions": [{"filters": 16, "kernel": 8, "stride": 4}, {"filters": 32, "kernel": 4}],
    }
    options = validate({"task": {"env_id": "CartPole-v1"}, "policy": policy}).policy
    first, second = options.convolutions
    assert (first, second.stride) == (Convolution(filters=16, kernel=8, stride=4), 1)


def test_reference_frames_without_a_virtual_batch_are_reported() -> None:
    assert warnings_of(Options(preset="atari", reference_frames=64)) == [
        "reference_frames: is 64, but does nothing: normalisation is none"
    ]
    assert (
        warnings_of(Options(preset="atari", reference_frames=64, normalisation="virtual_batch"))
        == []
    )


# Spaces that do not fit.


def unfit(image: ObservationSpec, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        policy_of(image=image, **options)
    return str(caught.value)


def test_observations_that_are_no_images_are_refused() -> None:
    text = unfit(flat_observations(8))
    assert (
        "policy.kind: is 'cnn', which takes images [height, width] or [height, width, channels], found 8"
        in text
    )
    assert "found float32[2, 3, 4, 5]" in unfit(ObservationSpec((2, 3, 4, 5)))


def test_kernels_larger_than_their_inputs_are_refused() -> None:
    """Also with padding, since the image may be [channels, height, width]."""
    atari = {"convolutions": None, "hidden_dims": None, "preset": "atari"}
    text = unfit(ObservationSpec((4, 84, 84)), **atari)
    assert (
        "policy.convolutions[0]: has kernels of 8 x 8, but its inputs, images [height, width, channels], are 4 x 84"
        in text
    )
    assert text.endswith("set policy.convolutions in place of those of preset atari")
    two = (Convolution(filters=3, kernel=3, stride=2), Convolution(filters=3, kernel=4))
    text = unfit(IMAGE, convolutions=two)
    assert text.startswith(
        "policy.convolutions[1]: has kernels of 4 x 4, but its inputs, outputs of convolution 0,"
    )


# Actions.


@pytest.mark.parametrize(
    ("actions", "outputs"), [(BOX, 2), (Discrete(3, start=2), 3), (MultiDiscrete((2, 3)), 5)]
)
def test_actions_are_those_of_the_head(actions: Actions, outputs: int) -> None:
    policy, observations = policy_of(actions), images(ROWS)
    assert policy.layout.shapes["output_bias"] == (outputs,)
    theta = candidates(policy)
    expected = [
        policy.head.actions(
            np.asarray(policy.network.apply(policy.layout.split(row), (), image)[0])[np.newaxis]
        )[0]
        for row, image in zip(theta, observations, strict=True)
    ]
    acted = actor(policy, theta).act(observations)
    assert acted.dtype == (np.float32 if actions is BOX else np.int64)
    np.testing.assert_allclose(acted, expected, rtol=1e-5, atol=1e-5)


def test_lstm_layer_remembers_until_restart() -> None:
    policy = policy_of(lstm=3)
    both, image = actor(policy, candidates(policy, 2)), images(2)
    first, second = both.act(image), both.act(image)
    assert not np.array_equal(first, second)
    both.restart(1)
    third = both.act(image)
    assert third[1].tobytes() == first[1].tobytes() and third[0].tobytes() != first[0].tobytes()


# Virtual batch normalisation.


def test_virtual_batch_policy_acts_with_folded_parameters() -> None:
    policy, observations = batch_policy(), images(ROWS)
    network, theta = policy._network, candidates(policy)
    expected = []
    for row, image in zip(theta, observations, strict=True):
        folded = network.fold(policy.layout.split(row), images(7, seed=1))
        expected.append(np.clip(network.folded.apply(folded, (), image)[0], BOX.low, BOX.high))
    np.testing.assert_allclose(
        actor(policy, theta).act(observations), expected, rtol=1e-4, atol=1e-5
    )


def test_virtual_batch_policy_depends_on_its_reference() -> None:
    policy = batch_policy()
    other = policy.with_reference(images(7, seed=2))
    theta, observations = candidates(policy), images(ROWS)
    assert not np.array_equal(
        actor(policy, theta).act(observations), actor(other, theta).act(observations)
    )


def test_rows_of_a_virtual_batch_policy_are_independent_and_can_be_kept() -> None:
    policy, observations = batch_policy(), images(ROWS)
    theta = candidates(policy)
    together = actor(policy, theta)
    actions = together.act(observations)
    for row in range(ROWS):
        alone = actor(policy, theta[row : row + 1]).act(observations[row : row + 1])
        assert alone.tobytes() == actions[row : row + 1].tobytes()
    together.keep(np.array([1, 4]))
    assert together.act(observations[[1, 4]]).tobytes() == actions[[1, 4]].tobytes()
    copies = np.stack([theta[2]] * 3)
    assert (
        actor(policy, copies).act(observations[[2, 2, 2]]).tobytes() == actions[[2, 2, 2]].tobytes()
    )


class Episode:
    """A task whose episodes are one observation of zeros."""

    spaces, episodes_per_job, name = Spaces(IMAGE, BOX), 1, "episode"

    def evaluate(self, actor: Any, batch: Any, poll: Any) -> Outcome:
        actor.act(np.zeros((len(batch.seeds), *IMAGE.shape), IMAGE.dtype))
        return Outcome(np.zeros(len(batch.seeds), row_dtype()), {}, {})


def test_messages_are_answered_while_virtual_batches_are_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fold of 4 candidates takes 0.2 s; the task itself does not poll."""
    policy = policy_of(normalisation="virtual_batch", reference_frames=3)
    problem = PolicyProblem(Episode(), policy, Keys(1), ObservationNormalization(), 4)
    original = Folding.__call__
    monkeypatch.setattr(
        Folding, "__call__", lambda self, stack: time.sleep(0.2) or original(self, stack)
    )
    population = unperturbed(policy.layout, policy.initial(np.random.default_rng(0)), 4)
    polls: list[float] = []
    jobs = Jobs(0, range(4), list(range(4)), "train")
    problem.evaluate(population, jobs, problem.carried(), lambda: polls.append(time.perf_counter()))
    assert len(polls) > 10


def test_ranks_with_different_layouts_are_refused(tmp_path: Path) -> None:
    problem = PolicyProblem(Episode(), policy_of(), Keys(1), ObservationNormalization(), 4)
    problem.open(RunContext(tmp_path, 1, 2, lambda make: make()))
    with pytest.raises(RunError, match="rank 1 has other parameters than rank 0"):
        problem.open(RunContext(tmp_path, 1, 2, lambda make: "{'w': (2,)}"))


def test_chunks_can_fill_the_calls_of_every_policy() -> None:
    assert (
        policy_of().candidates_per_call
        == batch_policy().candidates_per_call
        == SMALL["candidates_per_call"]
    )


def test_kinds_of_policies() -> None:
    """Compiled episodes take a pure policy; tasks draw reference observations for the other one."""
    assert isinstance(policy_of(), PurePolicy) and not isinstance(policy_of(), ReferencePolicy)
    assert isinstance(batch_policy(), ReferencePolicy) and not isinstance(
        batch_policy(), PurePolicy
    )


def test_integer_images_and_virtual_batches_take_no_statistics() -> None:
    assert policy_of().scales_observations and batch_policy().scales_observations
    assert not policy_of(image=ObservationSpec((6, 5, 2))).scales_observations
