"""Runs of actor_critic on compiled environments:
bit-identical on any number of ranks and after a kill; refusals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
from hpc_es import cli
from hpc_es.algorithms.common.optimizers import GRADIENT
from hpc_es.config.loading import load as load_config
from hpc_es.core.data import NO_FITNESS, Outcome, finished_episodes
from hpc_es.core.errors import ConfigError
from hpc_es.mpi.world import World
from hpc_es.training.build import build_parts, build_task
from tests.helpers import runs
from tests.helpers.toys import nothing

STEPS = (
    "task={kind: jax_episodes, env_id: 'tests.helpers.jax_steps:steps', env_kwargs: {random: true, longest: 9}, "
    "jobs_per_call: 2, lanes: 2}"
)
RECURRENT = "policy={kind: network, network: 'tests.helpers.own_networks:recurrent'}"
ALGORITHM = "algorithm={kind: actor_critic, batch_size: 6, update_every: 4, optimizer: {kind: adam, learning_rate: 0.01}}"
OPTIONS = (STEPS, RECURRENT, ALGORITHM)


@pytest.mark.long
def test_killed_on_three_ranks_and_resumed_on_two_the_result_is_that_of_one(tmp_path: Path) -> None:
    """With episodes that continue from update to update, whose states are in the checkpoints."""
    overrides = (*OPTIONS, *runs.EVERY)
    end = runs.killed_and_resumed(tmp_path / "three", 3, 2, *overrides)
    runs.here(runs.tiny(tmp_path), tmp_path / "one", [*overrides, f"stop.generations={end}"])
    runs.assert_same(tmp_path / "three", tmp_path / "one")
    sampled: Any = [
        "eval",
        str(tmp_path / "one"),
        "--episodes",
        "3",
        "--actions",
        "sampled",
        "--json",
    ]
    assert cli.run(sampled) == 0


def created(directory: Path, *overrides: str) -> Any:
    config = load_config(runs.tiny(directory), [*OPTIONS, *overrides])
    return build_parts(config, World("none"), build_task(config)).algorithm


def updates(algorithm: Any, count: int) -> list[Outcome]:
    """The outcomes of the first chunk of the initial state and of the
    states after further updates of its lanes.
    """
    state, outcomes = algorithm.initial(), []
    chunk = algorithm.ask(state, 0, np.zeros(0), NO_FITNESS)[0]
    for _ in range(count):
        outcomes.append(algorithm.evaluate(state, chunk, nothing))
        if "lanes" in state.shared:
            state.shared["lanes"][: chunk.jobs] = outcomes[-1].arrays["lanes"]
    return outcomes


@pytest.mark.parametrize("kind", ["synchronous", "asynchronous"])
def test_episodes_of_nine_steps_end_in_the_third_update_of_four(kind: str, tmp_path: Path) -> None:
    algorithm = created(tmp_path, f"algorithm.updates={kind}")
    outcomes = updates(algorithm, 4)
    assert [outcome.rows["length"][0] for outcome in outcomes] == [4, 4, 1, 4]
    assert [outcome.rows["episode_length"][0] for outcome in outcomes] == [0, 0, 9, 0]
    assert [len(finished_episodes(outcome.rows)) for outcome in outcomes[:2]] == [0, 0]
    assert len(outcomes[0].rows) == (2 if kind == "synchronous" else 6)


def test_gradient_is_that_of_the_recorded_trajectories(tmp_path: Path) -> None:
    """In the second update, with the memory after four steps;
    `sample_losses` gives the losses of the update.
    """
    algorithm = created(tmp_path).with_samples()
    outcome = updates(algorithm, 2)[1]
    sample = {
        name.removeprefix("sample/"): array
        for name, array in outcome.arrays.items()
        if "sample/" in name
    }
    assert sample["inputs"][:, 0, 0].tolist() == [4, 5, 6, 7, 8] and (sample["memory/1"] == 4).all()
    expected = algorithm.sample_losses(algorithm.initial(), sample)
    policy_loss, value_loss, entropy = outcome.arrays["sums"] / outcome.rows["length"].sum()
    assert expected["policy_loss"] == pytest.approx(policy_loss, rel=1e-5)
    assert expected["value_loss"] == pytest.approx(value_loss, rel=1e-5)
    assert expected["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert np.abs(outcome.arrays[GRADIENT]).max() > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("algorithm.update_every=null",),
            "algorithm.update_every: is null, but the compiled environment .* such as 32",
        ),
        (
            ("policy={kind: lstm}",),
            "policy.kind: is LSTM, whose gradient TensorFlow computes, .* 'cnn' or 'network'",
        ),
        (
            ("task={kind: episodes, env_id: CartPole-v1}",),
            "algorithm.update_every: is 4, but updates are synchronous: .*try updates: asynchronous",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    overrides: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        created(tmp_path, *overrides)
