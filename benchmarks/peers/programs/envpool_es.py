"""EnvPool: its compiled environments with one thread per core, and a policy for all members at once
in NumPy.

EnvPool has no search, so this is a hand-written evolution strategy: mirrored sampling, ranks and a
plain gradient step.
"""

from __future__ import annotations

import os
from typing import Any

import envpool
import numpy as np

from benchmarks.peers.programs.network import actions, layers, outputs, size
from benchmarks.peers.reporter import Reporter, read_arguments


def episodes(pool: Any, space: Any, network: Any, members: int) -> tuple[Any, int]:
    """Return the return of each member's first episode, float64[members],
    and the number of steps of these episodes.
    """
    observations, _ = pool.reset()
    live, returns, steps = np.ones(members, bool), np.zeros(members), 0
    while live.any():
        observations, rewards, terminated, truncated, _ = pool.step(
            actions(outputs(network, observations), space)
        )
        returns += np.where(live, rewards, 0.0)
        steps += int(live.sum())
        live &= ~(terminated | truncated)
    return returns, steps


def main() -> None:
    """Run generations until the reporter stops them."""
    work = read_arguments()
    members, rng = work["population"], np.random.default_rng(1)
    settings = {
        "env_type": "gymnasium",
        "num_envs": members,
        "num_threads": work["cores"],
        "seed": 1,
    }
    pool = envpool.make(work["environment"], **settings)
    space = pool.action_space
    wanted = space.n if hasattr(space, "n") else space.shape[0]
    sizes = (pool.observation_space.shape[0], *work["hidden"], int(wanted))
    theta, sigma, total = 0.1 * rng.standard_normal(size(sizes)), 0.1, 0
    reporter, goes_on = Reporter(work["seconds"]), True
    while goes_on:
        noise = rng.standard_normal((members // 2, theta.size))
        members_theta = (theta + sigma * np.concatenate([noise, -noise])).astype(np.float32)
        returns, steps = episodes(pool, space, layers(members_theta, sizes), members)
        weights = returns.argsort().argsort() / (members - 1) - 0.5
        theta = (
            theta
            + 0.02 / (members * sigma) * (weights[: members // 2] - weights[members // 2 :]) @ noise
        )
        total += steps
        goes_on = reporter.report(total)
    os._exit(0)  # the threads of EnvPool may never end


if __name__ == "__main__":
    main()
