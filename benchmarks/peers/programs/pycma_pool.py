"""pycma: its CMA-ES with a diagonal covariance,
and a pool of processes that step Gymnasium environments.
"""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any

import cma
import gymnasium
import numpy as np

from benchmarks.peers.programs.network import actions, layers, outputs, size
from benchmarks.peers.reporter import Reporter, read_arguments


@functools.cache
def environment(env_id: str) -> Any:
    """Return the environment of this process."""
    return gymnasium.make(env_id)


def episode(work: tuple[str, tuple[int, ...], Any]) -> tuple[float, int]:
    """Return minus the return of an episode, and its length."""
    env_id, sizes, theta = work
    env = environment(env_id)
    network, space = layers(np.asarray(theta, np.float32), sizes), env.action_space
    observation, _ = env.reset()
    total, steps, ended = 0.0, 0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(
            actions(outputs(network, observation), space)
        )
        total, steps, ended = total + float(reward), steps + 1, terminated or truncated
    return -total, steps


def main() -> None:
    """Run generations until the reporter stops them."""
    work = read_arguments()
    env = environment(work["environment"])
    wanted = env.action_space.n if hasattr(env.action_space, "n") else env.action_space.shape[0]
    sizes = (env.observation_space.shape[0], *work["hidden"], int(wanted))
    options = {"popsize": work["population"], "CMA_diagonal": True, "seed": 1, "verbose": -9}
    search = cma.CMAEvolutionStrategy(np.zeros(size(sizes)), 0.1, options)
    reporter, total, goes_on = Reporter(work["seconds"]), 0, True
    with multiprocessing.get_context("spawn").Pool(work["cores"]) as pool:
        while goes_on:
            candidates = search.ask()
            results = pool.map(
                episode, [(work["environment"], sizes, theta) for theta in candidates]
            )
            search.tell(candidates, [value for value, _ in results])
            total += sum(steps for _, steps in results)
            goes_on = reporter.report(total)


if __name__ == "__main__":
    main()
