"""Episodes of a Gymnasium environment, a chunk's environments stepped in lockstep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hpc_es.options import Count, Positive, option, options


@options
class Options:
    """`task:` with `kind: episodes`."""

    kind: Literal["episodes"] = option("the task's module in hpc_es/tasks", "episodes")
    env_id: str = option("a Gymnasium id, such as CartPole-v1 or module:Env-v0; an old gym id with the gym extra")
    env_kwargs: Mapping[str, Any] = option("keywords of the environment", default_factory=dict)
    max_episode_steps: Count | None = option("time limit in steps; null: the environment's own", None)
    episodes_per_job: Count = option("episodes under one perturbation; the job's return is their mean", 1)
    reward_offset: float = option("added to each step's reward in training returns only, e.g. -1", 0.0)
    on_failed_episode: Literal["drop", "abort"] = option("an exception, NaN or time-out in an episode", "drop")
    episode_timeout_seconds: Positive | None = option("an episode that takes longer has failed", None)
    wrappers: tuple[str | Mapping[str, Mapping[str, Any]], ...] = option(
        "wrappers from the inside out: 'module:Class', or {'module:Class': {keyword: value}}", ()
    )
    fresh_environment: bool = option("a new environment for each job, for those that keep hidden state", False)
