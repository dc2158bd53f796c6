"""The task `jax_episodes`: one compiled call plays the episodes of many jobs.

It has environment and policy. The result of a job depends on its parameters and seeds, and on
`lanes` and `jobs_per_call`, for which the code is compiled; not on its chunk or its position there.
JAX is imported when the task is built: see `devices/jax_setup.py`.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from hpc_es.config.options import Count, Natural, Together, option, options
from hpc_es.config.source_code import source_hash
from hpc_es.core.data import (
    Box,
    Column,
    Float32,
    Jobs,
    Normaliser,
    Outcome,
    Poll,
    ProblemState,
    behaviour,
)
from hpc_es.core.declarations import Offers, Searched, Setting
from hpc_es.core.errors import ConfigError, RunError, UserError
from hpc_es.core.interfaces import CallMemory, CompiledEpisodes, RunContext, SearchSize
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Batch, Policy, PurePolicy, ReferencePolicy
from hpc_es.core.population import (
    Factorisation,
    Layout,
    LowRank,
    Perturbed,
    Population,
    unperturbed,
    unperturbed_factors,
)
from hpc_es.core.quiet import quiet_stderr
from hpc_es.devices import jax_setup
from hpc_es.devices.jax_setup import configured_jax, require_device
from hpc_es.devices.placement import Kind
from hpc_es.tasks.episodes.quantities import EpisodeQuantities, EpisodeQuantityOptions, declared
from hpc_es.tasks.jax_episodes.call_shape import CallShape
from hpc_es.tasks.problems import (
    ObservationNormalization,
    PolicyProblem,
    PolicyTrajectories,
    refuse_common_seeds,
    refuse_normalization,
    refuse_quantities,
)

if TYPE_CHECKING:
    from hpc_es.tasks.jax_episodes.program import EpisodesCall
    from hpc_es.tasks.jax_episodes.segments import CompiledSegments


@dataclass(frozen=True)
class BoundPolicy:
    """A policy with the parameters of some jobs, in place of an actor."""

    policy: PurePolicy
    parameters: Population
    normaliser: Normaliser | None
    # of each job's actions, if they are sampled; (): greedy actions
    generators: Sequence[np.random.Generator] = ()


@dataclass(frozen=True)
class CompiledPolicy:
    """A policy whose pure form is compiled; `policy.backend` has no effect."""

    policy: PurePolicy

    @property
    def layout(self) -> Layout:
        """Layout of the parameters."""
        return self.policy.layout

    @property
    def action_noise_std(self) -> float:
        """Standard deviation of the noise on actions in training episodes."""
        return self.policy.action_noise_std

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size]."""
        return self.policy.initial(rng)

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> BoundPolicy:
        """Return the arguments of a compiled call."""
        return BoundPolicy(self.policy, parameters, normaliser)

    def bind_sampling(
        self, theta: Float32, generators: Sequence[np.random.Generator]
    ) -> BoundPolicy:
        """Return the arguments of a call whose jobs sample actions.

        All have theta, float32[params].
        """
        return BoundPolicy(
            self.policy, unperturbed(self.layout, theta, len(generators)), None, generators
        )


class CompiledTask(Protocol):
    """The attributes of a task that its problem uses."""

    options: Any
    quantities: EpisodeQuantities

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of rows in addition to those of all episodes."""
        ...

    def program(
        self, policy: PurePolicy, is_normalised: bool, *, factorisation: Factorisation | None = None
    ) -> EpisodesCall:
        """Return the compiled call of a policy."""
        ...

    def require_device(self) -> None:
        """Raise ConfigError if the platform is not available."""
        ...

    def environment_info(self) -> Mapping[str, Any]:
        """Return properties of the device that results depend on.

        Config and versions are not repeated.
        """
        ...


class CompiledProblem(PolicyProblem):
    """Search for a policy's parameters in compiled episodes.

    A chunk is a call, whose size is compiled in.
    """

    def __init__(self, task: CompiledTask, policy: CompiledPolicy, keys: Keys) -> None:
        o = task.options
        # the task takes the policy's BoundPolicy, which is not an Actor
        arguments: tuple[Any, Any] = task, policy
        quantities = task.quantities.quantities
        super().__init__(
            *arguments,
            keys,
            o.observation_normalization,
            o.jobs_per_call,
            task.columns,
            quantities=quantities,
        )
        self._compiled_task, self._pure = task, policy.policy
        self._factorisation: Factorisation | None = None

    @property
    def program(self) -> EpisodesCall:
        """The call of training and of its evaluations."""
        enabled = self._compiled_task.options.observation_normalization.enabled
        return self._compiled_task.program(self._pure, enabled, factorisation=self._factorisation)

    def use_factors(self, factorisation: Factorisation) -> None:
        """Evaluate candidates from their low-rank factors, also without perturbations."""
        self._factorisation = factorisation

    def factored(self) -> tuple[str, ...]:
        """Return the matrices that are evaluated from factors; the others are formed."""
        return self.program.factored

    def call_memory(self) -> CallMemory:
        """Return the memory of the compiled call of training."""
        program = self.program
        return CallMemory(program.form.jobs, *program.memory(), "task.jobs_per_call")

    def evaluate(
        self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll
    ) -> Outcome:
        if (
            self._factorisation is not None
            and isinstance(population, Perturbed)
            and not len(population.directions)
        ):
            population = unperturbed_factors(
                self._factorisation, population.centres[0], len(population)
            )
        return super().evaluate(population, jobs, carried, poll)

    def check(self) -> None:
        """Trace a call without compiling it; ConfigError if that fails."""
        self.program.trace()

    def open(self, run: RunContext) -> None:
        """Compile, one rank per node before the others, which read the cache."""
        self._compiled_task.require_device()
        if self._compiled_task.options.compilation_cache:
            jax_setup.use_cache(run.call_on_rank_0(lambda: jax_setup.prepare_cache(run.directory)))
        jax_setup.compile_in_turn(run, lambda: self.program.compile(lambda: None))

    def environment_info(self) -> Mapping[str, Any]:
        """Return the device, the lanes and XLA's flags."""
        return self._compiled_task.environment_info()


class CompiledTrajectories(PolicyTrajectories):
    """Training segments and evaluations of a policy in compiled calls."""

    def __init__(self, task: JaxEpisodes, policy: Policy) -> None:
        o: Any = task.options
        acting = task.compiled(policy)
        refuse_normalization(o.observation_normalization)
        refuse_quantities(task.quantities.quantities)
        if o.behaviour is not None:
            raise ConfigError(
                [
                    (
                        "task.behaviour",
                        "describes episodes for novelty search, which algorithms that differentiate "
                        "trajectories do not use: leave it out",
                    )
                ]
            )
        any_task: Any = task  # it takes the policy's BoundPolicy, which is not an Actor
        compiled = CompiledEpisodes(task.segments, acting, o.on_failed_episode == "abort")
        super().__init__(any_task, policy, task.time_limit, compiled=compiled)
        self.chunk_size = o.jobs_per_call
        self._compiled_task, self._acting = task, acting

    def check(self) -> None:
        """Trace a call without compiling it; ConfigError if that fails."""
        self._compiled_task.program(self._acting.policy, False).trace()

    def open(self, run: RunContext) -> None:
        """Use the compilation cache of the run; calls are compiled on their first use."""
        self._compiled_task.require_device()
        if self._compiled_task.options.compilation_cache:
            jax_setup.use_cache(run.call_on_rank_0(lambda: jax_setup.prepare_cache(run.directory)))

    def environment_info(self) -> Mapping[str, Any]:
        """Return the device, the lanes and XLA's flags."""
        return self._compiled_task.environment_info()


OFFERS = Offers(
    problems=("vectors", "trajectories"),
    policy=True,
    compiled=True,
    automatic_sizes=True,
    single_episodes={"episodes_per_job": 1, "on_failed_episode": "drop"},
)
LANES, JOBS_PER_CALL = 16, 64
# Of `auto`. On a CPU the parameters of all lanes stay in its cache, and a population is some calls.
CPU_LANES, CPU_LANE_BYTES, CPU_JOBS, CALLS = (16, 64), 1 << 20, (16, 256), 4
GPU_LANES, GPU_JOBS = 4096, 8192
LIBRARIES = ("gymnax", "brax", "playground", "jumanji", "craftax")


@options
class FinalObservationOptions:
    """`task.behaviour:`, numbers that describe an episode."""

    final_observation: bool | tuple[Natural, ...] = option(
        "last observation: true for all of it, or a list of indices", True
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) if there is no behaviour."""
        if not self.final_observation:
            yield (
                "final_observation",
                "expected true or a list of indices; remove task.behaviour for none",
            )


@options
class Options(EpisodeQuantityOptions):
    """`task:` with `kind: jax_episodes`."""

    kind: Literal["jax_episodes"] = option("name of the task", "jax_episodes")
    env_id: str = option(
        "'library:name' such as gymnax:CartPole-v1 (gymnax, brax, playground, jumanji or craftax), or "
        "'my_module:factory', a function that returns an environment"
    )
    env_kwargs: Mapping[str, Any] = option("keywords of the environment", default_factory=dict)
    flatten_observations: bool = option(
        "whether images of the libraries' environments become vectors, for mlp and lstm; false: for cnn and network",
        True,
    )
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
    lanes: Literal["auto"] | Together = option(
        "number of episodes that are stepped side by side; auto: chosen at the first start (docs/guides/compiled.md). "
        "Results depend on it",
        LANES,
    )
    jobs_per_call: Literal["auto"] | Together = option(
        "number of jobs per compiled call, in place of mpi.chunk_size; auto: "
        "chosen at the first start. Results depend on it",
        JOBS_PER_CALL,
    )
    segment_steps: Count = option(
        "number of steps after which a call can be interrupted", 1000, may_change=True
    )
    platform: Kind | None = option(
        "cpu or gpu, in place of device; null: as device", None, may_change=True
    )
    reward_offset: float = option(
        "number added to the reward of each training step, such as -1", 0.0
    )
    on_failed_episode: Literal["drop", "abort"] = option(
        "action after a NaN in an episode, or an exception in Python code that the environment calls: leave the job "
        "out of the update, or end the run",
        "drop",
        may_change=True,
    )
    compilation_cache: bool = option(
        "whether compiled code is cached in the run directory, for other ranks and resumed runs",
        True,
        may_change=True,
    )
    observation_normalization: ObservationNormalization = option(
        "normalisation of the observations", default_factory=ObservationNormalization
    )
    behaviour: FinalObservationOptions | None = option(
        "numbers that describe an episode, for novelty search; null: none", None
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each option that has no effect."""
        if self.lanes == "auto" or self.jobs_per_call == "auto":
            return
        plays = self.jobs_per_call * self.episodes_per_job
        if plays < self.lanes:
            yield (
                "lanes",
                f"is {self.lanes}, but a call has {plays} episodes: the other lanes are unused "
                f"(try jobs_per_call: {-(-4 * self.lanes // self.episodes_per_job)})",
            )

    def automatic(self, search: SearchSize) -> Mapping[str, int]:
        """Return lanes and jobs per call where they are `auto`.

        The rule is in docs/guides/compiled.md.
        """
        has_gpu = (self.platform or search.platform) == "gpu"
        if self.jobs_per_call != "auto":
            jobs = self.jobs_per_call
        else:
            jobs = (
                min(search.jobs, GPU_JOBS)
                if has_gpu
                else _power_of_two(search.jobs // CALLS, CPU_JOBS)
            )
        plays = jobs * self.episodes_per_job
        in_cache = CPU_LANE_BYTES // (4 * search.parameters)
        lanes = GPU_LANES if has_gpu else _power_of_two(min(in_cache, plays // CALLS), CPU_LANES)
        chosen = {"lanes": min(lanes, plays), "jobs_per_call": jobs}
        return {name: number for name, number in chosen.items() if getattr(self, name) == "auto"}

    def with_defaults(self) -> Options:
        """Return the options with the defaults in place of `auto`, for what precedes a search."""
        lanes = LANES if self.lanes == "auto" else self.lanes
        jobs = JOBS_PER_CALL if self.jobs_per_call == "auto" else self.jobs_per_call
        return replace(self, lanes=lanes, jobs_per_call=jobs)


def _power_of_two(number: int, limits: tuple[int, int]) -> int:
    """Return the largest power of two up to a number, within limits."""
    lowest, highest = limits
    return int(min(max(1 << max(number, 1).bit_length() - 1, lowest), highest))


class JaxEpisodes:
    """The task. It keeps compiled calls."""

    def __init__(self, options: Options) -> None:
        configured_jax(options.platform)
        from hpc_es.tasks.jax_episodes.environments import make, traced

        options = options.with_defaults()
        self.options, self.name = options, options.env_id
        self.episodes_per_job = options.episodes_per_job
        # hide the output of imported libraries
        with quiet_stderr(), contextlib.redirect_stdout(io.StringIO()):
            environment = make(options.env_id, options.env_kwargs, options.flatten_observations)
        self.traced = traced(environment, options.env_id)
        self.spaces = self.traced.spaces
        limit = options.max_episode_steps or environment.limit
        if limit is None:
            raise ConfigError(
                [
                    (
                        "task.max_episode_steps",
                        f"is null, but {options.env_id} has no time limit: expected a number of steps",
                    )
                ]
            )
        self.time_limit = limit
        if options.observation_normalization.enabled and not self.spaces.observations.is_flat:
            raise ConfigError(
                [
                    (
                        "task.observation_normalization.enabled",
                        f"is true, but observations are {self.spaces.observations}: expected false "
                        "unless they are flat",
                    )
                ]
            )
        self.behaviour_indices = behaviour_indices(options.behaviour, self.spaces.observations.size)
        behaviours = 0 if self.behaviour_indices is None else len(self.behaviour_indices)
        self.quantities = EpisodeQuantities.of(
            options, self.spaces.observations.size, behaviours, infos=False
        )
        self._programs: dict[
            tuple[PurePolicy, CallShape, tuple[int, tuple[str, ...]] | None], EpisodesCall
        ] = {}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of rows in addition to those of all episodes."""
        columns = (
            () if self.behaviour_indices is None else (behaviour(len(self.behaviour_indices)),)
        )
        return (*columns, *self.quantities.quantities.columns)

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> Any:
        """Return the problem of the policy's parameters as a vector, or of its trajectories."""
        assert policy is not None
        if searched == "vectors":
            problem = CompiledProblem(self, self.compiled(policy), keys)
            problem.common_seeds = self.options.common_seeds
            return problem
        refuse_common_seeds(self.options.common_seeds)
        return CompiledTrajectories(self, policy)

    def compiled(self, policy: Policy) -> CompiledPolicy:
        """Return the policy for this task; ConfigError if it cannot be compiled."""
        if isinstance(policy, ReferencePolicy):
            raise ConfigError(
                [
                    (
                        "policy.normalisation",
                        "is virtual_batch, but compiled episodes of many candidates start all the "
                        "time, and each start would compute its statistics: expected layer or none",
                    )
                ]
            )
        if not isinstance(policy, PurePolicy):
            raise ConfigError(
                [
                    (
                        "policy.kind",
                        "expected a policy with a method `pure`, like mlp, lstm and cnn, found "
                        f"{type(policy).__name__}",
                    )
                ]
            )
        return CompiledPolicy(policy)

    def use_what_is_compiled(self, checkpoint: Path) -> None:
        """Use the compilation cache of a checkpoint's run, if it is trusted."""
        if self.options.compilation_cache:
            jax_setup.use_cache(jax_setup.existing_cache(checkpoint))

    def program(
        self,
        policy: PurePolicy,
        is_normalised: bool,
        samples: bool = False,
        factorisation: Factorisation | None = None,
    ) -> EpisodesCall:
        """Return the call of a policy, which is compiled on its first use; `samples`:
        whether it samples actions.
        """
        from hpc_es.tasks.jax_episodes.program import EpisodesCall

        o: Any = self.options  # which has numbers in place of `auto`
        is_noisy = bool(policy.action_noise_std) and isinstance(self.spaces.actions, Box)
        sizes = o.lanes, o.jobs_per_call, o.episodes_per_job, policy.layout.size
        form = CallShape(*sizes, self.time_limit, is_normalised, is_noisy, samples)
        rank = None if factorisation is None else (factorisation.rank, factorisation.full)
        key = policy, form, rank
        if key not in self._programs:
            self._programs[key] = EpisodesCall(self.traced, policy, form, factorisation)
        return self._programs[key]

    def segments(self) -> CompiledSegments:
        """Return the functions that play segments of episodes; set up JAX before."""
        from hpc_es.tasks.jax_episodes.segments import CompiledSegments

        return CompiledSegments(self.traced, self.time_limit, self.options.reward_offset)

    def require_device(self) -> None:
        """Raise ConfigError if the device is not available; only tracing works without it."""
        platform = self.options.platform
        require_device(platform, configured_jax(platform).devices()[0].platform)

    def evaluate(self, actor: BoundPolicy, batch: Batch, poll: Poll) -> Outcome:
        """Play the episodes of all jobs, in calls of `jobs_per_call` jobs."""
        from hpc_es.tasks.jax_episodes.program import ChunkResults, inputs_of

        self.require_device()
        since = time.perf_counter()
        normaliser: Normaliser | None = actor.normaliser
        candidates = actor.parameters
        factorisation: Factorisation | None = None
        if isinstance(candidates, LowRank) and candidates.matrices:
            factorisation = candidates.factorisation
        program = self.program(
            actor.policy, normaliser is not None, bool(actor.generators), factorisation
        )
        theta, common = program.vectors(candidates)
        chunk = ChunkResults(
            program.form, batch, self.spaces.observations, self.behaviour_indices, self.quantities
        )
        size, steps = program.form.jobs, 0
        for start in range(0, len(candidates), size):
            jobs = range(start, min(start + size, len(candidates)))
            offset = self.options.reward_offset
            inputs = inputs_of(
                program.form, theta, common, normaliser, batch, jobs, offset, actor.generators
            )
            for played, results, call_steps in program.played(
                inputs, jobs, self.options.segment_steps, poll
            ):
                chunk.add(results, played)
                steps += call_steps
        if chunk.failures and self.options.on_failed_episode == "abort":
            raise RunError(
                "an episode failed and task.on_failed_episode is abort: job "
                f"{chunk.failures[0].position} of the chunk: {chunk.failures[0].text}"
            )
        seconds = {
            "environment": time.perf_counter() - since,
            "policy": 0.0,
            "policy_calls": float(steps),
        }
        failed = np.isnan(chunk.rows["return_"])
        return Outcome(chunk.rows, {}, seconds, chunk.failures, chunk.sums.units(failed))

    def environment(self, render_mode: str | None = None) -> Any:
        """Raise UserError: there is no Gymnasium environment."""
        raise UserError(
            f"{self.name} is compiled and cannot be rendered: leave the video out; it is not "
            "available as a Gymnasium environment"
        )

    def environment_info(self) -> dict[str, Any]:
        """Return device, lanes and XLA's flags.

        Results depend on them, in addition to config and versions.
        """
        info = jax_setup.compilation_info(self.options.platform)
        shape = {"lanes": self.options.lanes, "jobs_per_call": self.options.jobs_per_call}
        return {"compiled_for": {**info, **shape}}

    def close(self) -> None:
        """Delete the compiled calls."""
        self._programs.clear()


def behaviour_indices(
    options: FinalObservationOptions | None, width: int
) -> tuple[int, ...] | None:
    """Return the indices of the last observation that are the behaviour.

    Raises:
        ConfigError: they are out of range.
    """
    if options is None:
        return None
    if isinstance(options.final_observation, bool):
        return tuple(range(width))
    wrong = [index for index in options.final_observation if index >= width]
    if wrong:
        raise ConfigError(
            [
                (
                    "task.behaviour.final_observation",
                    f"has {wrong[0]}, but an observation has {width} numbers: expected 0 to {width - 1}",
                )
            ]
        )
    return options.final_observation


def offers(options: Options) -> Offers:
    """Return the capabilities under these options."""
    platform = None if options.platform is None else Setting("task.platform", options.platform)
    limit = options.observation_normalization.limit
    return replace(OFFERS, platform=platform, quantities=declared(options), observation_limit=limit)


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the module of a custom environment, which is not imported."""
    env_id = str(section.get("env_id", ""))
    library, colon, _ = env_id.partition(":")
    return {env_id: source_hash(env_id)} if colon and library not in LIBRARIES else {}


def build(options: Any, repetition: int = 0) -> JaxEpisodes:
    """Return the task, which is the same in all repetitions."""
    return JaxEpisodes(options)
