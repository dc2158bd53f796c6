"""Breakout of MinAtar, played by linear policies with weights set by hand: they follow the ball."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
pytest.importorskip("gymnax", reason="gymnax is not installed here: make test-jax")
from hpc_es.policies import mlp, network
from hpc_es.tasks.jax_episodes.task import JaxEpisodes, Options
from tests.helpers.harness import ROOT
from tests.helpers.jax_playing import played

LEFT, RIGHT, PADDLE, BALL = 1, 2, 0, 1
BRICKS = 84  # in 1,000 steps, from both starts of the ball


def task(**options: Any) -> JaxEpisodes:
    return JaxEpisodes(
        Options(env_id="gymnax:Breakout-MinAtar", lanes=4, jobs_per_call=4, **options)
    )


def test_linear_policy_that_follows_the_ball_breaks_84_bricks() -> None:
    """The logit of right minus that of left is twice the ball's column minus the paddle's."""
    breakout = task()
    policy = mlp.build(mlp.Options(hidden_dims=()), breakout.spaces)
    # a tie below the ball: no move
    weights, biases = np.zeros((10, 10, 4, 3)), np.array([0.5, 0, 0])
    columns = np.arange(10)
    weights[:, :, BALL, RIGHT], weights[:, :, PADDLE, RIGHT] = columns, -columns
    weights[:, :, BALL, LEFT], weights[:, :, PADDLE, LEFT] = -columns, columns
    theta = np.tile(np.concatenate([weights.ravel(), biases]), (4, 1))
    rows = played((breakout, policy), theta, range(4)).rows
    assert rows["return_"].tolist() == [BRICKS] * 4
    assert rows["length"].tolist() == [1000] * 4


def test_player_centred_network_follows_the_ball_with_one_weight_per_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Columns 0 to 8 of the weights are left of the paddle, 9 is above it,
    10 to 18 are right of it.
    """
    monkeypatch.syspath_prepend(str(ROOT / "configs"))
    breakout = task(flatten_observations=False)
    policy = network.build(network.Options(network="player_centred:build"), breakout.spaces)
    assert dict(policy.layout.shapes) == {"biases": (3,), "weights": (19, 19, 4, 3)}
    weights, biases = np.zeros((19, 19, 4, 3)), np.array([0.5, 0, 0])
    weights[:, :9, BALL, LEFT] = weights[:, 10:, BALL, RIGHT] = 1
    theta = np.tile(np.concatenate([biases, weights.ravel()]), (4, 1))
    assert played((breakout, policy), theta, range(4)).rows["return_"].tolist() == [BRICKS] * 4
