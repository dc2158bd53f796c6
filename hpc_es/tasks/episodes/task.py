"""Episodes of a Gymnasium environment, a chunk's environments stepped in lockstep.

What a job gives depends on its parameters and seeds alone, and on the chunk it is in where an environment draws from
global generators. `rollout.py` has the steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from hpc_es.config.foreign import source_hash
from hpc_es.config.options import Count, Positive, option, options
from hpc_es.core.data import Field, Outcome, Poll, behaviour
from hpc_es.core.interfaces import Actor, Batch, Offers, Policy, Searched
from hpc_es.core.keys import Keys
from hpc_es.core.quiet import quiet_stderr
from hpc_es.tasks.episodes import behaviour as behaviours
from hpc_es.tasks.episodes import environments
from hpc_es.tasks.episodes.rollout import Rollout
from hpc_es.tasks.episodes.segments import Segments
from hpc_es.tasks.policy_problems import (
    ObservationNormalization,
    PolicyProblem,
    PolicyTrajectories,
    refuse_normalization,
)
from hpc_es.tasks.timeouts import Watch

OFFERS = Offers(problems=("vectors", "trajectories"), policy=True)


@options
class Options:
    """`task:` with `kind: episodes`."""

    kind: Literal["episodes"] = option("the task's module in hpc_es/tasks", "episodes")
    env_id: str = option("a Gymnasium id, such as CartPole-v1 or module:Env-v0; an old gym id with the gym extra")
    env_kwargs: Mapping[str, Any] = option("keywords of the environment", default_factory=dict)
    max_episode_steps: Count | None = option("time limit in steps; null: the environment's own", None)
    episodes_per_job: Count = option("episodes under one perturbation; the job's return is their mean", 1)
    reward_offset: float = option("added to each step's reward (and so to its sign) in training only, e.g. -1", 0.0)
    on_failed_episode: Literal["drop", "abort"] = option(
        "an exception, NaN or time-out in an episode", "drop", may_change=True
    )
    episode_timeout_seconds: Positive | None = option("an episode that takes longer has failed", None, may_change=True)
    wrappers: tuple[str | Mapping[str, Mapping[str, Any]], ...] = option(
        "wrappers from the inside out: 'module:Class', or {'module:Class': {keyword: value}}", ()
    )
    fresh_environment: bool = option("a new environment for each job, for those that keep hidden state", False)
    observation_normalization: ObservationNormalization = option(
        "statistics of the observations", default_factory=ObservationNormalization
    )
    behaviour: behaviours.Options | None = option(
        "numbers that say what an episode did, for novelty search: final_observation, info or function; null: none",
        None,
    )


class Episodes:
    """The task: it keeps its environments from chunk to chunk."""

    def __init__(self, options: Options) -> None:
        self.options, self.name = options, options.env_id
        self.episodes_per_job = options.episodes_per_job
        self._pool: list[environments.Environment] = [self.environment()]
        self._segments: list[Segments] = []
        self.spaces = environments.spaces(self._pool[0])
        self.behaviour = behaviours.behaviour_of(options.behaviour, self.spaces.observations, self.environment)
        spec = self._pool[0].spec
        self.time_limit = None if spec is None else spec.max_episode_steps  # in steps

    @property
    def fields(self) -> tuple[Field, ...]:
        """What a row has besides what every episode's has."""
        return () if self.behaviour is None else (behaviour(self.behaviour.size),)

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> Any:
        """Return the policy's parameters as a vector, or its trajectories."""
        assert policy is not None
        if searched == "vectors":
            return PolicyProblem(self, policy, keys, self.options.observation_normalization, unit, self.fields)
        refuse_normalization(self.options.observation_normalization)
        return PolicyTrajectories(self, policy, self.time_limit, segments=self.segments, fields=self.fields)

    def segments(self) -> Segments:
        """Return episodes that go on from batch to batch, in environments of their own."""
        self._segments.append(Segments(self))
        return self._segments[-1]

    def environment(self, render_mode: str | None = None) -> environments.Environment:
        """Return a new environment; ConfigError where it cannot be made."""
        o = self.options
        return environments.make(o.env_id, o.env_kwargs, o.max_episode_steps, o.wrappers, render_mode)

    def evaluate(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Run every job's episodes; rows, and the sums of the observations of the jobs to observe."""
        self.fill(self._pool, len(batch.seeds))
        with self.watch() as watch:
            return Rollout(self, self._pool, actor, batch, watch).run(poll)

    def fill(self, pool: list[environments.Environment], jobs: int) -> None:
        """Add environments until each job has one."""
        with quiet_stderr(len(pool) < jobs):  # the task's first has said all
            while len(pool) < jobs:
                pool.append(self.environment())

    def watch(self) -> AbstractContextManager[Watch | None]:
        """Return what ends episodes that take too long, where there is a limit."""
        limit = self.options.episode_timeout_seconds
        return contextlib.nullcontext() if limit is None else Watch(limit)

    def close(self) -> None:
        """Close all environments."""
        for environment in chain(self._pool, *(segments.pool for segments in self._segments)):
            with contextlib.suppress(Exception):
                environment.close()


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the module of a behaviour's function; it is not imported."""
    function = (section.get("behaviour") or {}).get("function")
    return {function: source_hash(function)} if function else {}


def build(options: Options, repetition: int = 0) -> Episodes:
    """Return the task of `task: {kind: episodes}`, the same in all repetitions."""
    return Episodes(options)
