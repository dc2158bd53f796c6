"""Chunks of compiled episodes, and the same episodes one by one in a plain Python loop."""

from __future__ import annotations

import copy
import dataclasses
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from hpc_es.core.data import Box, Outcome
from hpc_es.core.policy import Batch
from hpc_es.core.population import Population
from hpc_es.policies import lstm, mlp
from hpc_es.tasks.jax_episodes.task import JaxEpisodes, Options
from tests.helpers.populations import explicit

WALK = "tests.helpers.jax_walk:walk"
# a policy whose bias alone counts: theta is [w, w, b]
CONSTANT = (("hidden_dims", ()), ("initial", "zeros"))


@lru_cache(maxsize=32)
def created(
    options: tuple[tuple[str, Any], ...], policy: tuple[tuple[str, Any], ...], kind: str
) -> tuple[Any, Any]:
    """The task and the policy of these options, cached with their compiled calls for all tests."""
    arguments = {name: dict(value) if name == "env_kwargs" else value for name, value in options}
    task = JaxEpisodes(Options(**arguments))
    module: Any = mlp if kind == "mlp" else lstm
    return task, module.build(module.Options(**dict(policy)), task.spaces)


def parts(policy: Any = CONSTANT, kind: str = "mlp", **options: Any) -> tuple[JaxEpisodes, Any]:
    if "env_kwargs" in options:
        options["env_kwargs"] = tuple(sorted(options["env_kwargs"].items()))
    defaults = {"env_id": WALK, "lanes": 4, "jobs_per_call": 8}
    return created(tuple(sorted({**defaults, **options}.items())), tuple(policy), kind)


def played(
    created: tuple[JaxEpisodes, Any],
    candidates: Any,
    seeds: Any,
    normaliser: Any = None,
    poll: Any = lambda: None,
    **batch: Any,
) -> Outcome:
    """The outcome of a population, or of thetas, [jobs, params], on these seeds,
    [jobs] or [jobs, episodes].
    """
    if not isinstance(candidates, Population):
        candidates = explicit(np.asarray(candidates, np.float32))
    (task, policy), jobs = created, len(candidates)
    seeds = np.asarray(seeds, np.int64).reshape(jobs, -1)
    arguments: dict[str, Any] = {
        **{
            "training": True,
            "observe": np.zeros(jobs, np.bool_),
            "action_noise_std": policy.action_noise_std,
        },
        **{"action_noise": np.random.default_rng, "unit": jobs},
        **batch,
    }
    actor = task.compiled(policy).bind(candidates, normaliser)
    return task.evaluate(actor, Batch(seeds=seeds, **arguments), poll)


def in_segments(created: tuple[JaxEpisodes, Any], steps: int) -> tuple[JaxEpisodes, Any]:
    """The same with the same compiled calls, in segments of this number of steps."""
    task = copy.copy(created[0])
    task.options = dataclasses.replace(task.options, segment_steps=steps)
    return task, created[1]


def constant(*biases: float) -> Any:
    """Thetas of the walk, whose actions are these constants."""
    return np.array([[0, 0, b] for b in biases], np.float32)


def plainly(
    created: tuple[JaxEpisodes, Any], theta: Any, seed: int
) -> tuple[float, int, list[Any]]:
    """Return, length and observations of an episode, stepped one by one, with sums in float64."""
    task, policy = created
    env = task.traced.inner
    pure = policy.pure(np)
    parameters, memory = pure.parameters(theta), pure.memory
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    first, steps = jax.random.split(jax.random.key(seed, impl="threefry2x32"))
    state, observation = reset(first)
    total, t, observed = 0.0, 0, []
    while True:
        observation = np.asarray(observation, np.float32).ravel()
        observed.append(observation)
        memory, action = pure.apply(parameters, memory, observation)
        action = action if isinstance(task.spaces.actions, Box) else action.astype(np.int32)
        state, observation, reward, terminated = step(jax.random.fold_in(steps, t), state, action)
        total, t = total + float(reward), t + 1
        if bool(terminated) or t >= task.time_limit:
            return total, t, observed
