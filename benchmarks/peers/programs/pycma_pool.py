"""pycma: its CMA-ES with a diagonal covariance, and a pool of processes that step Gymnasium."""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any

import cma
import gymnasium
import numpy as np

from benchmarks.peers.programs.network import actions, layers, outputs, size
from benchmarks.peers.telling import Telling, told


@functools.cache
def environment(env_id: str) -> Any:
    """Return this process's environment."""
    return gymnasium.make(env_id)


def episode(work: tuple[str, tuple[int, ...], Any]) -> tuple[float, int]:
    """Return minus the return of an episode, and its length."""
    env_id, sizes, theta = work
    made = environment(env_id)
    network, space = layers(np.asarray(theta, np.float32), sizes), made.action_space
    observation, _ = made.reset()
    total, steps, ended = 0.0, 0, False
    while not ended:
        observation, reward, terminated, truncated, _ = made.step(actions(outputs(network, observation), space))
        total, steps, ended = total + float(reward), steps + 1, terminated or truncated
    return -total, steps


def main() -> None:
    """Search until it is enough."""
    work = told()
    made = environment(work["environment"])
    wanted = made.action_space.n if hasattr(made.action_space, "n") else made.action_space.shape[0]
    sizes = (made.observation_space.shape[0], *work["hidden"], int(wanted))
    options = {"popsize": work["population"], "CMA_diagonal": True, "seed": 1, "verbose": -9}
    search = cma.CMAEvolutionStrategy(np.zeros(size(sizes)), 0.1, options)
    telling, total, goes_on = Telling(work["seconds"]), 0, True
    with multiprocessing.get_context("spawn").Pool(work["cores"]) as pool:
        while goes_on:
            candidates = search.ask()
            found = pool.map(episode, [(work["environment"], sizes, each) for each in candidates])
            search.tell(candidates, [value for value, _ in found])
            total += sum(steps for _, steps in found)
            goes_on = telling.goes_on(total)


if __name__ == "__main__":
    main()
