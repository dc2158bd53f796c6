"""A policy's parameters, evaluated by compiled episodes.

Episodes of an environment written in JAX: environment and policy are compiled to one call for many jobs.

What a job gives depends on its parameters and seeds, and on `lanes` and `jobs_per_call`, which the code is compiled
for; not on the chunk it is in, nor on its place there. JAX is imported when the task is built: see `setup.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from hpc_es.config.options import Count, Natural, option, options
from hpc_es.config.registry import source_hash
from hpc_es.core.data import Box, Column, Normaliser, Outcome, Poll, behaviour
from hpc_es.core.errors import ConfigError, RunError, UserError
from hpc_es.core.interfaces import Offers, RunContext, Searched
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Batch, Policy, PurePolicy
from hpc_es.core.quiet import quiet_stderr
from hpc_es.policies.networks.jax_functions import Bound, CompiledPolicy
from hpc_es.tasks.jax_episodes import setup
from hpc_es.tasks.jax_episodes.setup import Form, Platform, jax_on, require_device
from hpc_es.tasks.policy_problems import ObservationNormalization, PolicyProblem

if TYPE_CHECKING:
    from hpc_es.tasks.jax_episodes.program import Program


class CompiledTask(Protocol):
    """What the problem needs of its task."""

    options: Any

    @property
    def columns(self) -> tuple[Column, ...]:
        """What a row has besides what every episode's has."""
        ...

    def program(self, policy: PurePolicy, is_normalised: bool) -> Program:
        """Return the compiled call of a policy."""
        ...

    def require_device(self) -> None:
        """Raise ConfigError where there is no such device."""
        ...

    def environment_info(self) -> Mapping[str, Any]:
        """Return what bits depend on besides config and versions."""
        ...


class CompiledProblem(PolicyProblem):
    """Its chunks are the calls: their size is part of what is compiled."""

    def __init__(self, task: CompiledTask, policy: CompiledPolicy, keys: Keys) -> None:
        o = task.options
        given: tuple[Any, Any] = task, policy  # the one takes what the other binds, which is no Actor
        super().__init__(*given, keys, o.observation_normalization, o.jobs_per_call, task.columns)
        self._compiled_task, self._pure = task, policy.policy

    @property
    def program(self) -> Program:
        """The call of training and of its evaluations."""
        enabled = self._compiled_task.options.observation_normalization.enabled
        return self._compiled_task.program(self._pure, enabled)

    def check(self) -> None:
        """Trace a call without compiling it; ConfigError."""
        self.program.trace()

    def open(self, run: RunContext) -> None:
        """Compile on rank 0, then read what it has compiled on the others; signals are seen meanwhile."""
        self._compiled_task.require_device()
        if self._compiled_task.options.compilation_cache:
            setup.use(run.call_on_rank_0(lambda: setup.prepared(run.directory)))
        if run.rank == 0:
            self._compile()
        run.call_on_rank_0(lambda: "compiled")
        if run.rank != 0:
            self._compile()

    def _compile(self) -> None:
        self.program.compile(lambda: None)

    def environment_info(self) -> Mapping[str, Any]:
        """Return the device, the lanes and XLA's flags."""
        return self._compiled_task.environment_info()


OFFERS = Offers(problems=("vectors",), policy=True, compiled=True)
LIBRARIES = ("gymnax", "brax", "playground", "jumanji", "craftax")


@options
class Behaviour:
    """`task.behaviour:`, numbers that say what an episode did."""

    final_observation: bool | tuple[Natural, ...] = option(
        "the last observation: true, or a list of the places of some of its numbers", True
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if not self.final_observation:
            yield "final_observation", "expected true or a list of places; leave behaviour out where there is none"


@options
class Options:
    """`task:` with `kind: jax_episodes`."""

    kind: Literal["jax_episodes"] = option("name of the task", "jax_episodes")
    env_id: str = option(
        "'library:name' such as gymnax:CartPole-v1, of gymnax, brax, playground, jumanji or craftax; or "
        "'my_module:factory', which gives an environment of five members"
    )
    env_kwargs: Mapping[str, Any] = option("keywords of the environment", default_factory=dict)
    max_episode_steps: Count | None = option("time limit in steps; null: the environment's own", None)
    episodes_per_job: Count = option("episodes under one perturbation; the job's return is their mean", 1)
    lanes: Count = option("episodes that are stepped side by side; part of the result", 16)
    jobs_per_call: Count = option("jobs of a compiled call, in place of mpi.chunk_size; part of the result", 64)
    segment_steps: Count = option("steps after which a call may be given up", 1000, may_change=True)
    platform: Platform = option("what computes: cpu, or gpu, one for each rank; part of the result", "cpu")
    reward_offset: float = option("added to each step's reward (and so to its sign) in training only, e.g. -1", 0.0)
    on_failed_episode: Literal["drop", "abort"] = option("NaN in an episode", "drop", may_change=True)
    compilation_cache: bool = option(
        "keep what was compiled in the run directory, so that ranks and resumed runs need not", True, may_change=True
    )
    observation_normalization: ObservationNormalization = option(
        "statistics of the observations", default_factory=ObservationNormalization
    )
    behaviour: Behaviour | None = option("numbers that say what an episode did, for novelty search; null: none", None)

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect: (key, text)."""
        plays = self.jobs_per_call * self.episodes_per_job
        if plays < self.lanes:
            text = f"is {self.lanes}, but a call has {plays} episodes: the other lanes compute for nothing"
            yield "lanes", f"{text} (try jobs_per_call: {-(-4 * self.lanes // self.episodes_per_job)})"


class JaxEpisodes:
    """The task: it keeps what it has compiled."""

    def __init__(self, options: Options) -> None:
        jax_on(options.platform)
        from hpc_es.tasks.jax_episodes.environments import make, traced

        self.options, self.name = options, options.env_id
        self.episodes_per_job = options.episodes_per_job
        with quiet_stderr(), contextlib.redirect_stdout(io.StringIO()):  # what libraries say when they are imported
            made = make(options.env_id, options.env_kwargs)
        self._env = traced(made, options.env_id)
        self.spaces = self._env.spaces
        limit = options.max_episode_steps or made.limit
        if limit is None:
            text = f"is null, but {options.env_id} has no time limit of its own: expected a number of steps"
            raise ConfigError([("task.max_episode_steps", text)])
        self.time_limit = limit
        if options.observation_normalization.enabled and not self.spaces.observations.is_flat:
            text = f"is true, but observations are {self.spaces.observations}: expected false, of any that are not flat"
            raise ConfigError([("task.observation_normalization.enabled", text)])
        self.places = places_of(options.behaviour, self.spaces.observations.size)
        self._programs: dict[tuple[PurePolicy, Form], Program] = {}

    @property
    def columns(self) -> tuple[Column, ...]:
        """What a row has besides what every episode's has."""
        return () if self.places is None else (behaviour(len(self.places)),)

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> Any:
        """Return the policy's parameters as a vector."""
        assert policy is not None and searched == "vectors"
        return CompiledProblem(self, self.compiled(policy), keys)

    def compiled(self, policy: Policy) -> CompiledPolicy:
        """Return the policy as this task plays it; ConfigError where it cannot be compiled."""
        if not isinstance(policy, PurePolicy):
            text = f"expected a policy with a method `pure`, as mlp and lstm have it, found {type(policy).__name__}"
            raise ConfigError([("policy.kind", text)])
        return CompiledPolicy(policy)

    def use_what_is_compiled(self, checkpoint: Path) -> None:
        """Take what the run of a checkpoint has compiled, where it is this user's own."""
        if self.options.compilation_cache:
            setup.use(setup.existing(checkpoint))

    def program(self, policy: PurePolicy, is_normalised: bool) -> Program:
        """Return the compiled call of a policy; it is not compiled yet where it is new."""
        from hpc_es.tasks.jax_episodes.program import Program

        o = self.options
        is_noisy = bool(policy.action_noise_std) and isinstance(self.spaces.actions, Box)
        form = Form(
            o.lanes, o.jobs_per_call, o.episodes_per_job, policy.layout.size, self.time_limit, is_normalised, is_noisy
        )
        if (policy, form) not in self._programs:
            self._programs[policy, form] = Program(self._env, policy, form)
        return self._programs[policy, form]

    def require_device(self) -> None:
        """Raise ConfigError where there is no such device: tracing needs none."""
        require_device(self.options.platform, jax_on(self.options.platform).devices()[0].platform)

    def evaluate(self, actor: Bound, batch: Batch, poll: Poll) -> Outcome:
        """Play every job's episodes, in calls of `jobs_per_call` jobs."""
        from hpc_es.tasks.jax_episodes.program import Collected, inputs_of

        self.require_device()
        since = time.perf_counter()
        normaliser: Normaliser | None = actor.normaliser
        program = self.program(actor.policy, normaliser is not None)
        theta = np.asarray(actor.parameters.stacked(), np.float32)
        found = Collected(program.form, batch, self.spaces.observations, self.places)
        size, steps = program.form.jobs, 0
        for start in range(0, len(theta), size):
            jobs = range(start, min(start + size, len(theta)))
            inputs = inputs_of(program.form, theta, normaliser, batch, jobs, self.options.reward_offset)
            results, taken = program.run(inputs, self.options.segment_steps, poll)
            found.add(results, jobs)
            steps += taken
        if found.failures and self.options.on_failed_episode == "abort":
            first = f"job {found.failures[0].position} of the chunk: {found.failures[0].text}"
            raise RunError(f"an episode failed and task.on_failed_episode is abort: {first}")
        seconds = {"environment": time.perf_counter() - since, "policy": 0.0, "policy_calls": float(steps)}
        failed = np.isnan(found.rows["return_"])
        return Outcome(found.rows, {}, seconds, found.failures, found.sums.units(failed))

    def environment(self, render_mode: str | None = None) -> Any:
        """There is none to film or to play: UserError."""
        text = f"{self.name} is compiled and has no picture: leave the video out"
        raise UserError(f"{text}; there is no Gymnasium environment of it to play")

    def environment_info(self) -> dict[str, Any]:
        """Return what the result's bits depend on, besides the config and the versions of packages."""
        device = jax_on(self.options.platform).devices()[0]
        told = {"platform": device.platform, "device_kind": device.device_kind, "lanes": self.options.lanes}
        flags = os.environ.get("XLA_FLAGS", "")
        return {"compiled_for": {**told, "jobs_per_call": self.options.jobs_per_call, "xla_flags": flags}}

    def close(self) -> None:
        """Forget what was compiled."""
        self._programs.clear()


def places_of(given: Behaviour | None, width: int) -> tuple[int, ...] | None:
    """Return the places of the observation that are a behaviour; ConfigError where there is no such place."""
    if given is None:
        return None
    if isinstance(given.final_observation, bool):
        return tuple(range(width))
    wrong = [place for place in given.final_observation if place >= width]
    if wrong:
        text = f"has {wrong[0]}, but an observation has {width} numbers: expected 0 to {width - 1}"
        raise ConfigError([("task.behaviour.final_observation", text)])
    return given.final_observation


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the module of one's own environment; it is not imported."""
    env_id = str(section.get("env_id", ""))
    library, colon, _ = env_id.partition(":")
    return {env_id: source_hash(env_id)} if colon and library not in LIBRARIES else {}


def build(options: Any, repetition: int = 0) -> JaxEpisodes:
    """Return the task of `task: {kind: jax_episodes}`, the same in all repetitions."""
    return JaxEpisodes(options)
