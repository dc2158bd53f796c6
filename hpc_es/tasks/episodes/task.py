"""The task `episodes`: episodes of a Gymnasium environment, played in lockstep by `rollout.py`.

The result of a job depends on its parameters and seeds only; if an environment draws from the
global random generators, it also depends on the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hpc_es.config.options import Count, Positive, option, options
from hpc_es.config.registry import is_own_code
from hpc_es.config.schema import NO_NUMBERS, Reduction
from hpc_es.config.source_code import is_installed, source_hash
from hpc_es.core.closing import close, closing
from hpc_es.core.data import Column, Outcome, Poll, behaviour, info_numbers
from hpc_es.core.declarations import Offers, Searched
from hpc_es.core.errors import ConfigError
from hpc_es.core.interfaces import PROBE_SECONDS, Cutting
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Actor, Batch, Policy
from hpc_es.tasks.episodes import environments, native_backend, policy_spaces
from hpc_es.tasks.episodes.behaviour import BehaviourOptions, behaviour_from_options
from hpc_es.tasks.episodes.environment_backend import EnvironmentBackend, NotNativeError
from hpc_es.tasks.episodes.gymnasium_backend import (
    GymnasiumBackend,
    VectorBackend,
    VectorEnvironments,
)
from hpc_es.tasks.episodes.hidden_state import hidden_state_warning
from hpc_es.tasks.episodes.infos import check_info_keys, random_episode
from hpc_es.tasks.episodes.quantities import (
    EpisodeQuantities,
    EpisodeQuantityOptions,
    declared,
    group_of_infos,
)
from hpc_es.tasks.episodes.rollout import EpisodeSegments, Rollout
from hpc_es.tasks.problems import (
    ObservationNormalization,
    PolicyProblem,
    PolicyTrajectories,
    refuse_common_seeds,
    refuse_normalization,
    refuse_quantities,
)

OFFERS = Offers(
    problems=("vectors", "trajectories"),
    policy=True,
    any_chunks=True,
    info=True,
    counts_steps=True,
    single_episodes={"episodes_per_job": 1, "on_failed_episode": "drop"},
)


@options
class Options(EpisodeQuantityOptions):
    """`task:` with `kind: episodes`."""

    kind: Literal["episodes"] = option("name of the task", "episodes")
    env_id: str = option(
        "Gymnasium id, such as CartPole-v1 or module:Env-v0; old gym ids need the extra gym"
    )
    env_kwargs: Mapping[str, Any] = option("keywords of the environment", default_factory=dict)
    max_episode_steps: Count | None = option(
        "time limit of an episode in steps; null: that of the environment", None
    )
    episodes_per_job: Count = option(
        "number of episodes per job; the return of a job is their mean", 1
    )
    common_seeds: bool = option(
        "whether all candidates of a generation play the same episodes (common random numbers), instead of each its own",
        False,
    )
    reward_offset: float = option(
        "number added to the reward of each training step, such as -1", 0.0
    )
    on_failed_episode: Literal["drop", "abort"] = option(
        "action after an exception, NaN or time-out in an episode: leave the job out of the update, or end the run",
        "drop",
        may_change=True,
    )
    episode_timeout_seconds: Positive | None = option(
        "time limit of an episode in seconds, after which it fails; null: no limit",
        None,
        may_change=True,
    )
    wrappers: tuple[str | Mapping[str, Mapping[str, Any]], ...] = option(
        "wrappers from the inside out: 'module:Class' or {'module:Class': {keyword: value}}", ()
    )
    stepping: Literal["auto", "native", "gymnasium", "vector"] = option(
        "method of stepping: native (MuJoCo -v5 and classic control without Gymnasium's overhead, bit-identical), "
        "gymnasium, auto (native if a comparison at the start finds no difference), vector (by vector_entry_point)",
        "auto",
        may_change=("auto", "native", "gymnasium"),
    )
    fresh_environment: bool = option(
        "whether each job gets a new environment, for those that keep hidden state", False
    )
    observation_normalization: ObservationNormalization = option(
        "normalisation of the observations", default_factory=ObservationNormalization
    )
    behaviour: BehaviourOptions | None = option(
        "numbers that describe an episode, for novelty search: final_observation, info or function; null: none",
        None,
    )


class Episodes:
    """The task, which keeps its environments from chunk to chunk.

    `info` are the numbers of `report.info`.
    """

    def __init__(self, options: Options, info: Mapping[str, Reduction] = NO_NUMBERS) -> None:
        self.options, self.name, self.info = options, options.env_id, info
        self.episodes_per_job = options.episodes_per_job
        self._segments: list[EpisodeSegments] = []
        self.notices: tuple[str, ...] = ()  # lines for the log at the start of the run
        # creates native backends, if they are used
        self._native: Callable[[], EnvironmentBackend] | None = None
        self._vectors = VectorEnvironments(options) if options.stepping == "vector" else None
        self._first = None if self._vectors else self.environment()
        if self._vectors is not None:
            self.spaces, self.time_limit = self._vectors.spaces, self._vectors.time_limit
        else:
            assert self._first is not None
            self.spaces = policy_spaces.spaces(self._first)
            spec = self._first.spec
            self.time_limit = None if spec is None else spec.max_episode_steps  # in steps
            self._native = self._native_factory(self._first)
        make = self.single
        self.behaviour = behaviour_from_options(
            options.behaviour, self.spaces.observations.size, make
        )
        if info and (notice := check_info_keys(info, self.name, lambda: _random_infos(make))):
            self.notices += (notice,)
        behaviours = 0 if self.behaviour is None else self.behaviour.size
        self.quantities = EpisodeQuantities.of(options, self.spaces.observations.size, behaviours)
        keys = [key for _, key, _ in self.quantities.infos]
        if keys and (
            notice := check_info_keys(
                keys, self.name, lambda: _random_infos(make), self._infos_needed
            )
        ):
            self.notices += (notice,)
        self.info_keys = (*info, *keys)
        self._backend = self.new_backend(self._first)

    def _native_factory(
        self, first: environments.Environment
    ) -> Callable[[], EnvironmentBackend] | None:
        """Return a function that creates native backends; None: use Gymnasium's stepping.

        ConfigError if `stepping` is native and that is not possible.
        """
        stepping, is_known = self.options.stepping, native_backend.is_known(first)
        if stepping == "gymnasium" or (stepping == "auto" and not is_known):
            return None
        try:
            if not is_known:
                raise NotNativeError(f"{self.name} is not one of {native_backend.NAMES}")
            if self._infos_needed:
                raise NotNativeError(f"{self._infos_needed} needs the info of its steps")
            if self.options.episode_timeout_seconds is not None:
                raise NotNativeError("task.episode_timeout_seconds needs Gymnasium's steps")
            return native_backend.backend_factory(first)
        except NotNativeError as error:
            if stepping == "native":
                raise ConfigError(
                    [
                        (
                            "task.stepping",
                            f"is native, which is not possible here: {error}; "
                            "expected auto or gymnasium",
                        )
                    ]
                ) from error
            slower = f"is stepped by Gymnasium, which is slower ({native_backend.kind_of(first).SLOWDOWN})"
            self.notices = (f"task.stepping: {self.name} {slower}: {error}; {error.remedy}",)
            return None

    @property
    def _infos_needed(self) -> str:
        """The option that needs the infos of steps, "" if none does."""
        if self._behaviour_needs_infos:
            return "task.behaviour"
        if (group := group_of_infos(self.options)) is not None:
            return f"task.{group}"
        return "report.info" if self.info else ""

    @property
    def _behaviour_needs_infos(self) -> bool:
        behaviour = self.options.behaviour
        return behaviour is not None and not behaviour.final_observation

    def new_backend(self, first: environments.Environment | None = None) -> EnvironmentBackend:
        """Return a new environment backend.

        One for Gymnasium begins with the environment `first`.
        """
        spec, keys = self.spaces.observations, self.info_keys
        if self._vectors is not None:
            vectors = self._vectors
            return VectorBackend(
                vectors.make, spec, vectors.time_limit, keys, self._behaviour_needs_infos
            )
        if self._native is not None:
            return self._native()
        return GymnasiumBackend(
            self.environment, spec, self.options.episode_timeout_seconds, first, keys
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of rows in addition to those of all episodes."""
        columns = () if self.behaviour is None else (behaviour(self.behaviour.size),)
        columns = (*columns, *self.quantities.quantities.columns)
        return (*columns, info_numbers(len(self.info))) if self.info else columns

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> Any:
        """Return the problem of the policy's parameters as a vector, or of its trajectories."""
        assert policy is not None
        problem: PolicyProblem | PolicyTrajectories
        if searched == "vectors":
            cutting: Cutting = (
                "fixed" if self._vectors else "free" if self._native is None else "at once"
            )
            normalization = self.options.observation_normalization
            quantities = self.quantities.quantities
            problem = PolicyProblem(
                self, policy, keys, normalization, unit, self.columns, cutting, quantities
            )
            problem.common_seeds = self.options.common_seeds
        else:
            refuse_common_seeds(self.options.common_seeds)
            refuse_normalization(self.options.observation_normalization)
            refuse_quantities(self.quantities.quantities)
            segments = None if self._vectors else self.segments
            problem = PolicyTrajectories(
                self, policy, self.time_limit, segments=segments, columns=self.columns
            )
        problem.notices = self.notices
        return problem

    def segments(self) -> EpisodeSegments:
        """Return new environments whose episodes continue from batch to batch."""
        self._segments.append(EpisodeSegments(self, self.new_backend()))
        return self._segments[-1]

    def environment(
        self, render_mode: str | None = None, wrapped: bool = True
    ) -> environments.Environment:
        """Return a new environment, with its wrappers if `wrapped`.

        Raises:
            ConfigError: it cannot be created.
        """
        if self._vectors is not None:
            raise ConfigError(
                [
                    (
                        "task.stepping",
                        "is vector: expected auto, native or gymnasium for a single environment",
                    )
                ]
            )
        options = self.options
        wrappers = options.wrappers if wrapped else ()
        return environments.make(
            options.env_id, options.env_kwargs, options.max_episode_steps, wrappers, render_mode
        )

    def hidden_state_warning(self, seconds: float = PROBE_SECONDS) -> str | None:
        """Return a warning if an episode depends on earlier ones in the same environment.

        None if not. Vector environments have been compared at the start, and native stepping keeps
        no state.
        """
        if self._vectors is not None or self._native is not None or self.options.fresh_environment:
            return None
        return hidden_state_warning(self.options, seconds)

    def single(self) -> Any:
        """Return one new environment, also if the task has vector environments."""
        return self._vectors.single() if self._vectors is not None else self.environment()

    def evaluate(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Play the episodes of all jobs."""
        with self._backend.chunk(batch.seeds[:, 0].tolist()):
            return Rollout(self, self._backend, actor, batch).run(poll)

    def close(self) -> None:
        """Close all environments."""
        self._backend.close()
        for segments in self._segments:
            segments.close()
        # otherwise the backend has closed it
        if self._native is not None and self._first is not None:
            close(self.name, self._first.close)


def _random_infos(make: Callable[[], environments.Environment]) -> Iterator[Mapping[str, Any]]:
    """Yield the infos of the steps of an episode with random actions."""
    first = make()
    with closing(environments.name_of(first), first) as environment:
        steps = random_episode(environment)
        next(steps)
        yield from (info for _, _, info in steps)


def offers(options: Options) -> Offers:
    """Return the capabilities under these options."""
    limits = {
        "max_episode_steps": options.max_episode_steps,
        "episode_timeout_seconds": options.episode_timeout_seconds,
    }
    unset = tuple(name for name, limit in limits.items() if limit is None)
    return replace(
        OFFERS,
        any_chunks=options.stepping != "vector",
        unset_limits=unset,
        quantities=declared(options),
        compares_stepping=options.stepping in {"auto", "native"},
        wrapped=bool(options.wrappers),
        observation_limit=options.observation_normalization.limit,
    )


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the user's modules by name.

    They have the environment, wrappers and the function of the behaviour. None of them is imported.
    The module of an entry point is known only if the environment is registered.
    """
    env_id = str(section.get("env_id", ""))
    names = [env_id] if ":" in env_id else []
    names += [
        name
        for item in section.get("wrappers", ())
        for name in ([item] if isinstance(item, str) else item)
    ]
    modules = {name.partition(":")[0] for name in ("", *names)}
    names = [name for name in names if not is_own_code(name)]
    entry_point = environments.entry_point(env_id)
    if entry_point.partition(":")[0] not in modules and not entry_point.startswith("hpc_es."):
        names.append(entry_point)
    users = [name for name in names if not is_installed(name)]
    function = (section.get("behaviour") or {}).get("function")
    return {name: source_hash(name) for name in (*users, *([function] if function else []))}


def build(
    options: Options, repetition: int = 0, info: Mapping[str, Reduction] = NO_NUMBERS
) -> Episodes:
    """Return the task, which is the same in all repetitions.

    `info` are the numbers of `report.info`.
    """
    return Episodes(options, info)
