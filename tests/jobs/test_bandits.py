"""Evolution strategies on bandits with a recurrent policy: whole runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpc_es import cli
from hpc_es.core.errors import UserError
from hpc_es.trained.policy import load_policy
from tests.helpers import runs

BANDITS = (
    "task={kind: bandits, distribution: easy, num_trials: 8, episodes_per_job: 3}",
    "policy={kind: lstm, hidden_dims: [6, 5]}",
    "task.observation_normalization.enabled=true",
    "task.observation_normalization.probability=0.5",
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one rank."""
    run = tmp_path_factory.mktemp("bandits") / "run"
    runs.finished(1, run, *BANDITS)
    return run


@pytest.mark.parametrize("ranks", [2, 3])
def test_results_do_not_depend_on_the_number_of_ranks(
    ranks: int, alone: Path, tmp_path: Path
) -> None:
    runs.finished(ranks, tmp_path / "run", *BANDITS)
    runs.assert_same(tmp_path / "run", alone)
    assert len(runs.rows(alone)) == 6
    assert {row["length_mean"] for row in runs.rows(alone)} == {24}


def test_resumed_run_equals_an_uninterrupted_one(alone: Path, tmp_path: Path) -> None:
    runs.finished(0, tmp_path / "run", *BANDITS, "stop.generations=3")
    runs.finished(0, tmp_path / "run", *BANDITS)
    runs.assert_same(tmp_path / "run", alone)


def test_loaded_policy_keeps_its_memory_until_restarted(alone: Path) -> None:
    policy = load_policy(alone)
    assert policy.spaces.observations.size == 4
    observed = [[0, 0, 0, 0], [1, 1, 0, 0.125], [0, 0, 1, 0.25]]
    first = [policy(observation) for observation in observed]
    policy.restart()
    assert [policy(observation) for observation in observed] == first
    assert policy.policy.layout.size == 4 * 6 * (4 + 6 + 1) + 4 * 5 * (6 + 5 + 1) + 2 * (5 + 1)


@pytest.mark.tensorflow
def test_exported_policy_acts_as_the_loaded_one(tmp_path: Path) -> None:
    """The exported model includes the normalisation."""
    import keras

    run = tmp_path / "run"
    runs.finished(0, run, *BANDITS, "algorithm.optimizer.learning_rate=1.0", "stop.generations=3")
    assert cli.run(["export", str(run), str(tmp_path / "policy.keras"), "--which", "last"]) == 0
    model = keras.models.load_model(tmp_path / "policy.keras")
    observed = np.random.default_rng(1).normal(0, 9, (200, 7, 4)).astype(np.float32)
    logits, *_ = model([observed, *(np.zeros((200, units), np.float32) for units in (6, 6, 5, 5))])
    policy = load_policy(run, "last")
    acted = [policy(observed[:, step]) for step in range(7)]
    assert np.asarray(logits).argmax(axis=2).T.tolist() == np.array(acted).tolist()
    assert len(np.unique(acted)) == 2


def test_video_of_bandits_is_refused(alone: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bandits cannot be rendered: leave the video out"):
        cli.run(["eval", str(alone), "--episodes", "1", "--video", str(tmp_path / "x.gif")])
