"""Episodes of a Gymnasium environment, a chunk's environments stepped in lockstep.

What a job gives depends on its parameters and seeds alone, and on the chunk it is in where an environment draws from
global generators. `rollout.py` has the steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hpc_es.config.options import Count, Positive, option, options
from hpc_es.config.registry import is_installed, source_hash
from hpc_es.config.schema import NO_NUMBERS, Reduction
from hpc_es.core.data import Column, Outcome, Poll, behaviour, info_numbers
from hpc_es.core.errors import ConfigError
from hpc_es.core.interfaces import Cutting, Offers, Searched
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Actor, Batch, Policy
from hpc_es.tasks.episodes import behaviour as behaviours
from hpc_es.tasks.episodes import environments, native_backend
from hpc_es.tasks.episodes.environment_backend import NotNativeError, Stepping
from hpc_es.tasks.episodes.gymnasium_stepping import GymnasiumStepping
from hpc_es.tasks.episodes.infos import never_given, random_episode
from hpc_es.tasks.episodes.partial_episodes import Segments
from hpc_es.tasks.episodes.rollout import Rollout
from hpc_es.tasks.episodes.vector_stepping import Vectors, VectorStepping
from hpc_es.tasks.policy_problems import (
    ObservationNormalization,
    PolicyProblem,
    PolicyTrajectories,
    refuse_normalization,
)

OFFERS = Offers(problems=("vectors", "trajectories"), policy=True, any_chunks=True, info=True)


@options
class Options:
    """`task:` with `kind: episodes`."""

    kind: Literal["episodes"] = option("name of the task", "episodes")
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
    stepping: Literal["auto", "native", "gymnasium", "vector"] = option(
        "native: MuJoCo (-v5) and classic control without Gymnasium's overhead, to the same bits; auto: where "
        "a comparison at the start finds no difference; vector: by the vector_entry_point of env_id",
        "auto",
        may_change=("auto", "native", "gymnasium"),
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
    """The task: it keeps its environments from chunk to chunk. `info` are the numbers of `report.info`."""

    def __init__(self, options: Options, info: Mapping[str, Reduction] = NO_NUMBERS) -> None:
        self.options, self.name, self.info = options, options.env_id, info
        self.episodes_per_job = options.episodes_per_job
        self._segments: list[Segments] = []
        self.notices: tuple[str, ...] = ()  # what a user should know of how it will run
        self._native: Callable[[], Stepping] | None = None  # what steps without Gymnasium
        self._vectors = Vectors(options) if options.stepping == "vector" else None
        self._first = None if self._vectors else self.environment()
        if self._vectors is not None:
            self.spaces, self.time_limit = self._vectors.spaces, self._vectors.time_limit
        else:
            assert self._first is not None
            self.spaces = environments.spaces(self._first)
            spec = self._first.spec
            self.time_limit = None if spec is None else spec.max_episode_steps  # in steps
            self._native = self._without_gymnasium(self._first)
        trial = self._vectors.single if self._vectors else self.environment
        self.behaviour = behaviours.behaviour_of(options.behaviour, self.spaces.observations.size, trial)
        if info and (notice := never_given(info, self.name, lambda: _infos(trial))):
            self.notices += (notice,)
        self._stepping = self._new_stepping(self._first)

    def _without_gymnasium(self, first: environments.Environment) -> Callable[[], Stepping] | None:
        """Return what steps without Gymnasium, or None; ConfigError where it must and cannot."""
        wanted, is_known = self.options.stepping, native_backend.is_known(first)
        if wanted == "gymnasium" or (wanted == "auto" and not is_known):
            return None
        try:
            if not is_known:
                raise NotNativeError(f"{self.name} is none of {native_backend.NAMES}")
            self._refuse_native()
            return native_backend.stepping(first)
        except NotNativeError as error:
            if wanted == "native":
                text = f"is native, which is not possible here: {error}; expected auto or gymnasium"
                raise ConfigError([("task.stepping", text)]) from error
            slower = f"is stepped by Gymnasium, which is slower ({native_backend.slowdown(first)})"
            self.notices = (f"task.stepping: {self.name} {slower}: {error}; {error.remedy}",)
            return None

    def _refuse_native(self) -> None:
        """Raise NotNativeError where options of the task need Gymnasium."""
        measured = self.options.behaviour
        if measured is not None and not measured.final_observation:
            raise NotNativeError("task.behaviour needs the info of its steps")
        if self.info:
            raise NotNativeError("report.info needs the info of its steps")
        if self.options.episode_timeout_seconds is not None:
            raise NotNativeError("task.episode_timeout_seconds watches each step of Gymnasium's")

    def stepping(self) -> Stepping:
        """Return environments of their own for the jobs of chunks."""
        return self._new_stepping(None)

    def _new_stepping(self, first: environments.Environment | None) -> Stepping:
        if self._vectors is not None:
            measured = self.options.behaviour
            needs_infos = measured is not None and not measured.final_observation
            return VectorStepping(self._vectors.make, self._vectors.time_limit, tuple(self.info), needs_infos)
        if self._native is not None:
            return self._native()
        return GymnasiumStepping(self.environment, self.options.episode_timeout_seconds, first, tuple(self.info))

    @property
    def columns(self) -> tuple[Column, ...]:
        """What a row has besides what every episode's has."""
        measured = () if self.behaviour is None else (behaviour(self.behaviour.size),)
        return (*measured, info_numbers(len(self.info))) if self.info else measured

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> Any:
        """Return the policy's parameters as a vector, or its trajectories."""
        assert policy is not None
        problem: PolicyProblem | PolicyTrajectories
        if searched == "vectors":
            cutting: Cutting = "fixed" if self._vectors else "free" if self._native is None else "at once"
            normalization = self.options.observation_normalization
            problem = PolicyProblem(self, policy, keys, normalization, unit, self.columns, cutting)
        else:
            refuse_normalization(self.options.observation_normalization)
            segments = None if self._vectors else self.segments
            problem = PolicyTrajectories(self, policy, self.time_limit, segments=segments, columns=self.columns)
        problem.notices = self.notices
        return problem

    def segments(self) -> Segments:
        """Return episodes that go on from batch to batch, in environments of their own."""
        self._segments.append(Segments(self))
        return self._segments[-1]

    def environment(self, render_mode: str | None = None, wrapped: bool = True) -> environments.Environment:
        """Return a new environment, `wrapped` with its wrappers; ConfigError where it cannot be made."""
        if self._vectors is not None:
            raise ConfigError([("task.stepping", "is vector: expected auto, native or gymnasium for a single one")])
        o = self.options
        wrappers = o.wrappers if wrapped else ()
        return environments.make(o.env_id, o.env_kwargs, o.max_episode_steps, wrappers, render_mode)

    def evaluate(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Run every job's episodes; rows, and the sums of the observations of the jobs to observe."""
        with self._stepping.chunk(batch.seeds[:, 0].tolist()):
            return Rollout(self, self._stepping, actor, batch).run(poll)

    def close(self) -> None:
        """Close all environments."""
        self._stepping.close()
        for segments in self._segments:
            segments.close()
        if self._native is not None and self._first is not None:  # else it is one of these environments
            with contextlib.suppress(Exception):
                self._first.close()


def _infos(make: Callable[[], environments.Environment]) -> Iterator[Mapping[str, Any]]:
    """Yield the infos of the steps of an episode with random actions."""
    with contextlib.closing(make()) as environment:
        steps = random_episode(environment)
        next(steps)
        yield from (info for _, _, info in steps)


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the modules of the user's own: environment, wrappers, a behaviour's function.

    None of them is imported. The module of an entry point is known only where the environment is registered.
    """
    env_id = str(section.get("env_id", ""))
    names = [env_id] if ":" in env_id else []
    names += [name for item in section.get("wrappers", ()) for name in ([item] if isinstance(item, str) else item)]
    entry_point = environments.entry_point(env_id)
    if entry_point.partition(":")[0] not in {name.partition(":")[0] for name in ("", *names)}:
        names.append(entry_point)
    own = [name for name in names if not name.startswith("hpc_es.") and not is_installed(name)]
    function = (section.get("behaviour") or {}).get("function")
    return {name: source_hash(name) for name in (*own, *([function] if function else []))}


def build(options: Options, repetition: int = 0, info: Mapping[str, Reduction] = NO_NUMBERS) -> Episodes:
    """Return the task of `task: {kind: episodes}`, the same in all repetitions."""
    return Episodes(options, info)
