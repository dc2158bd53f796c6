"""Advantage actor-critic with memory (Mnih et al. 2016, Wang et al. 2016).

arXiv:1602.01783 and arXiv:1611.05763. An update takes a batch of whole episodes and one step down
the gradient of the mean over their steps of

    -log pi(a_t) A_t + value_weight (V_t - R_t)^2 - beta H(pi_t)

R are discounted returns and A advantages (`loss.py`); if a time limit ends an episode, the value of
its last state is added. The value V is a linear function of the inputs of the policy's output
layer. Tabulated episodes, such as those of bandits, are computed in one compiled TensorFlow graph
with the gradient. Episodes of Gymnasium environments are recorded, then differentiated.

With `update_every`, an update uses this number of steps of each of a rank's environments, and
episodes continue in the next update.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.actor_critic.episodes import (
    MEMORY,
    EpisodeRecorder,
    SegmentPlayer,
    Trajectories,
    concatenated,
    tabulated_trajectories,
)
from hpc_es.actor_critic.loss import DifferentiablePolicy, Loss, LossWeights
from hpc_es.config.options import Count, NonNegative, Positive, Probability, option, options, unused
from hpc_es.core.callbacks import callback_errors
from hpc_es.core.data import (
    EPISODE_LENGTH,
    IMAGE,
    INFO,
    Array,
    Arrays,
    Box,
    Chunk,
    Discrete,
    Float32,
    Float64,
    Json,
    Outcome,
    Poll,
    Results,
    Rows,
    State,
    cut,
    finished_episodes,
    row_dtype,
    with_columns,
)
from hpc_es.core.declarations import Needs, with_asynchronous_updates
from hpc_es.core.errors import RunError, UserError
from hpc_es.core.interfaces import CompiledEpisodes, TrajectoryProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.policy import Actor, Batch, OnStep, Policy, ReferencePolicy, Traits
from hpc_es.core.population import unperturbed
from hpc_es.core.tabulated import TabulatedEpisodes
from hpc_es.extend import BaseStrategy, optimizers
from hpc_es.policies.sampling import SamplingActor, sampling_actor

if TYPE_CHECKING:
    from hpc_es.actor_critic.jax_updates import CompiledUpdates


@options
class Entropy:
    """`algorithm.entropy:`, the weight beta of the entropy."""

    start: NonNegative = option("initial weight of the entropy", 0.1)
    end: NonNegative = option("final weight of the entropy, reached linearly", 0.0)
    episodes: Count | None = option(
        "training episodes until the final weight; null: constant weight", None
    )
    timesteps: Count | None = option(
        "training timesteps until the final weight, instead of `episodes`", None
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if self.episodes is not None and self.timesteps is not None:
            yield (
                "timesteps",
                f"is {self.timesteps}, and episodes {self.episodes}: expected one of them",
            )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        if self.episodes is None and self.timesteps is None:
            yield from unused(
                self, ("end",), "episodes and timesteps are null, so the weight stays at its start"
            )


@options
class Options:
    """`algorithm:` with `kind: actor_critic`."""

    kind: Literal["actor_critic"] = option("name of the algorithm", "actor_critic")
    batch_size: Count = option(
        "episodes per update; with update_every: number of environments, of each rank if updates are asynchronous",
        16,
    )
    updates: Literal["synchronous", "asynchronous"] = option(
        "synchronous: one batch for all ranks; asynchronous: one batch per rank, applied as it arrives",
        "synchronous",
    )
    update_every: Count | None = option(
        "steps per update, after which episodes continue; null: whole episodes. Unless environments are compiled, "
        "updates must be asynchronous, and a restart begins new episodes, since checkpoints do not store environments",
        None,
    )
    discount: Probability = option("discount factor gamma", 0.8)
    gae_lambda: Probability = option(
        "lambda of generalised advantage estimation; 1: return minus value", 1.0
    )
    value_weight: NonNegative = option("weight of the squared error of the value", 0.25)
    entropy: Entropy = option("entropy bonus, for exploration", default_factory=Entropy)
    unroll: Count | None = option(
        "maximum steps of backpropagation through time; null: the whole episode", None
    )
    reward_clip: Positive | None = option(
        "clipping of rewards in the loss, to [-clip, clip]; null: no clipping. The last reward in the observation is "
        "clipped by task.reward_clip of bandits, or by reward_clip of the wrapper LastStep",
        None,
    )
    gradient_clip: Positive | None = option("maximum gradient norm; null: no clipping", 1.0)
    evaluation_actions: Literal["sampled", "greedy"] = option(
        "actions in evaluations: sampled as in training, or greedy (the most probable)",
        "sampled",
        may_change=True,
    )
    optimizer: optimizers.Options = option(
        "optimizer of the parameters", default_factory=optimizers.Options
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        every = self.update_every
        if every is not None and self.unroll is not None and self.unroll > every:
            yield (
                "unroll",
                f"is {self.unroll}, but gradients pass through at most the {every} steps of "
                "update_every: leave it out",
            )


def incompatibilities(options: Options, problem: TrajectoryProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    actions = problem.spaces.actions
    if not isinstance(actions, Discrete):
        kind = "Box" if isinstance(actions, Box) else str(actions)
        yield (
            "task",
            f"{problem.name} has {kind} actions, actor_critic needs Discrete ones: try algorithm.kind: es",
        )
    if problem.episodes_per_job != 1:
        yield (
            "task.episodes_per_job",
            f"is {problem.episodes_per_job}, expected 1: actor_critic uses "
            "algorithm.batch_size episodes per update",
        )
    yield from _segment_misfits(options, problem)
    yield from _policy_misfits(options, problem)
    if (
        options.unroll is not None
        and problem.time_limit is not None
        and options.unroll > problem.time_limit
    ):
        yield (
            "algorithm.unroll",
            f"is {options.unroll}, but an episode has at most {problem.time_limit} steps (try "
            "null, the whole episode)",
        )


def _segment_misfits(options: Options, problem: TrajectoryProblem) -> Iterator[tuple[str, str]]:
    every = options.update_every
    if isinstance(problem.compiled, CompiledEpisodes):
        if every is None:
            yield (
                "algorithm.update_every",
                f"is null, but the compiled environment {problem.name} is played in segments: "
                "expected a number of steps, such as 32",
            )
    elif every is not None and problem.segments is not None and options.updates != "asynchronous":
        yield (
            "algorithm.update_every",
            f"is {every}, but updates are {options.updates}: environments continue from update "
            "to update, so each rank needs its own updates (try updates: asynchronous)",
        )
    if (
        every is not None
        and problem.segments is None
        and not isinstance(problem.compiled, CompiledEpisodes)
    ):
        text = f"is {options.update_every}, but {problem.name} supports whole episodes only: expected null"
        if isinstance(problem.compiled, TabulatedEpisodes):
            text += f", or task: {problem.compiled.one_by_one}"
        yield "algorithm.update_every", text


def _policy_misfits(options: Options, problem: TrajectoryProblem) -> Iterator[tuple[str, str]]:
    from hpc_es.actor_critic.differentiable import differentiable

    policy = problem.policy
    network = differentiable(policy)
    if isinstance(policy, ReferencePolicy):
        yield (
            "policy.normalisation",
            "is virtual_batch, which depends on the parameters in a way that actor_critic does "
            "not differentiate: expected none or layer",
        )
    elif network is None and (library := Traits.of(policy).compiled_by) is not None:
        expected = " or ".join(map(repr, NEEDS.backends))
        yield (
            "policy.backend",
            f"is {library}, in which actor_critic computes no gradients: expected {expected}, "
            "or another algorithm",
        )
    elif network is None:
        yield (
            "policy",
            f"is {type(policy).__name__}, which is not differentiable here: expected the kind "
            "'lstm', 'mlp', 'cnn' or 'network'",
        )
    elif not network.is_recurrent and options.unroll is not None:
        yield "algorithm.unroll", f"is {options.unroll}, but the policy has no memory: leave it out"
    elif isinstance(problem.compiled, CompiledEpisodes) and not hasattr(network, "value_network"):
        yield (
            "policy.kind",
            f"is {type(policy).__name__}, whose gradient TensorFlow computes, but the "
            "environment is compiled by JAX: expected 'cnn' or 'network'",
        )
    elif isinstance(problem.compiled, TabulatedEpisodes) and not hasattr(network, "tabulated"):
        yield (
            "policy.kind",
            f"is not one of those that play {problem.name} in a compiled graph: expected the "
            f"kind 'lstm' or 'mlp', or task: {problem.compiled.one_by_one}",
        )


NEEDS = Needs(
    searches="trajectories",
    policy="lstm",
    backends=("tensorflow", "jax"),  # the keys of DIFFERENTIATED, whose module is not imported here
    gradients=True,
    learns_from_samples=True,
    columns=(EPISODE_LENGTH,),
    stochastic=True,
    value=True,
)

JOBS_PER_GENERATOR = 16  # creating a generator takes longer than using it
EPISODES = "episodes"  # shared array: number of episodes so far
TIMESTEPS = "timesteps"  # shared array: number of timesteps so far
SAMPLE = "sample/"  # prefix of the names of TRAJECTORIES among a chunk's arrays
# fields of `episodes.Trajectories`
TRAJECTORIES = ("inputs", "actions", "rewards", "lives", "cuts")
LANES = "lanes"  # shared array, and a chunk's part of it
SUMS = "sums"  # among a chunk's arrays: sums of policy loss, value loss and entropy, float64[3]


@dataclass(frozen=True)
class ActorCritic(BaseStrategy[None]):
    """Advantage actor-critic.

    Methods are pure functions of their arguments, the options and the seed, except that with
    `update_every` a rank keeps its environments from one `evaluate` of training to the next.

    State, shared:
        theta: float32[params]; parameters of the policy
        value: float32[value_size]; weights of the value function, and its bias; empty if the
            policy's network has both
        episodes: int64[], if update_every is set; number of episodes that have ended so far
        timesteps: int64[], if entropy.timesteps is set; number of timesteps so far
        lanes: uint8[batch_size, bytes], if updates of a compiled environment are synchronous; its
            episodes
    State, master:
        those of `hpc_es.algorithms.common.optimizers.initial_slots`
    """

    options: Options
    problem: TrajectoryProblem
    keeps_samples: bool = False  # whether the arrays of a chunk include its trajectories

    def with_samples(self) -> ActorCritic:
        """Return the same algorithm with `keeps_samples`."""
        return replace(self, keeps_samples=True)

    @property
    def policy(self) -> Policy:
        """The policy that is trained."""
        return self.problem.policy

    def initial(self) -> State:
        """Return the initial parameters of the policy and of its value function."""
        theta = self.policy.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS))
        value = self._network.initial_value(
            self.keys.generator(Purpose.INITIAL_PARAMETERS, index=1)
        )
        slots = optimizers.initial_slots(self.options.optimizer, len(theta) + len(value))
        lanes = (
            {LANES: self._updates.no_lanes(self.options.batch_size)} if self._stores_lanes else {}
        )
        return State(0, {"theta": theta, "value": value, **self._counts(0, 0), **lanes}, slots)

    def _counts(self, episodes: int, timesteps: int) -> Arrays:
        counts = {}
        if self.options.update_every is not None:
            counts[EPISODES] = np.asarray(episodes, np.int64)
        if self.options.entropy.timesteps is not None:
            counts[TIMESTEPS] = np.asarray(timesteps, np.int64)
        return counts

    @cached_property
    def _network(self) -> DifferentiablePolicy:
        from hpc_es.actor_critic.differentiable import differentiable

        network = differentiable(self.policy)
        assert network
        return network

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return a batch in chunks of `chunk_size` jobs, or one chunk for asynchronous updates."""
        batch = self.options.batch_size
        size = self.chunk_size if self.options.updates == "synchronous" else batch
        return [] if round else cut(batch, size)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Play the episodes of a chunk; for training, compute the gradient of their losses, too."""
        if chunk.purpose == "train" and isinstance(self.problem.compiled, CompiledEpisodes):
            return self._train_compiled(self.problem.compiled, state, chunk, poll)
        if chunk.purpose == "train" and self.options.update_every is not None:
            return self._train_segments(self.options.update_every, state, chunk, poll)
        if chunk.purpose != "train":
            outcome = self.problem.play(
                self._evaluation_actor(state, chunk), self._batch(state, chunk), poll
            )
        elif isinstance(self.problem.compiled, TabulatedEpisodes):
            outcome = self._train_tabulated(self.problem.compiled, state, chunk, poll)
        else:
            outcome = self._train_episodes(state, chunk, poll)
        return replace(
            outcome, rows=with_columns(outcome.rows, {EPISODE_LENGTH: outcome.rows["length"]})
        )

    def _train_tabulated(
        self, episodes: TabulatedEpisodes, state: State, chunk: Chunk, poll: Poll
    ) -> Outcome:
        """Play and differentiate whole tabulated episodes in one compiled graph."""
        network: Any = self._network  # with the method `tabulated`, see `incompatibilities`
        poll()
        start = time.perf_counter()
        table = episodes.table(self._seeds(state, chunk)[:, 0])
        steps = episodes.inputs.steps
        uniforms = self._random_numbers(
            Purpose.POLICY_SAMPLING,
            state,
            chunk,
            lambda rng: rng.random((JOBS_PER_GENERATOR, steps), np.float32),
        )
        environment_seconds = time.perf_counter() - start
        gradient, sums, actions, rewards = network.tabulated(
            self._loss, self._weights(state), episodes.inputs, table.rewards, uniforms.T
        )
        rows = np.zeros(chunk.jobs, row_dtype(self.problem.columns))
        values = rewards.astype(np.float64)
        rows["return_"], rows["sign_return"] = values.sum(axis=0), np.sign(values).sum(axis=0)
        rows["length"] = steps
        if table.info_values is not None:
            rows[INFO] = table.info_values(actions.T.astype(np.int64))
        policy_seconds = time.perf_counter() - start - environment_seconds
        seconds = {
            "environment": environment_seconds,
            "policy": policy_seconds,
            "policy_calls": float(steps),
        }
        arrays = {optimizers.GRADIENT: gradient, SUMS: sums}
        if self.keeps_samples:
            arrays |= self._sample(tabulated_trajectories(episodes.inputs, actions, rewards))
        return Outcome(rows, arrays, seconds)

    def _train_episodes(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Record whole episodes of environments, then differentiate them."""
        actor = SamplingActor(self.policy, state.theta, self._uniforms(state, chunk), shared=True)
        recorder = EpisodeRecorder(actor, chunk.jobs, self.problem.spaces.actions.start)  # type: ignore[union-attr]
        outcome = self.problem.play(recorder, self._batch(state, chunk, recorder.on_step), poll)
        if recorder.is_empty:
            return replace(outcome, arrays=self._no_arrays(state))
        recorded = recorder.trajectories(np.isnan(outcome.rows["return_"]))
        arrays = (
            self._gradient(state, recorded) | self._sample(recorded) | _last_image(recorded, chunk)
        )
        return Outcome(outcome.rows, arrays, outcome.seconds, outcome.failures)

    def _train_segments(self, steps: int, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Continue the rank's episodes for this number of steps, then differentiate these steps."""
        actor = SamplingActor(self.policy, state.theta, self._uniforms(state, chunk), shared=True)
        recorder = EpisodeRecorder(actor, chunk.jobs, self.problem.spaces.actions.start)  # type: ignore[union-attr]
        memory = self._segment_player.memory
        outcome = self._segment_player.play(
            actor, recorder, self._batch(state, chunk, recorder.on_step), steps, poll
        )
        if recorder.is_empty:
            return replace(outcome, arrays=self._no_arrays(state))
        recorded = recorder.trajectories(np.isnan(outcome.rows["return_"]), steps)
        arrays = self._gradient(state, recorded, memory) | self._sample(recorded, memory)
        arrays |= _last_image(recorded, chunk)
        return replace(outcome, arrays=arrays)

    def _train_compiled(
        self, episodes: CompiledEpisodes, state: State, chunk: Chunk, poll: Poll
    ) -> Outcome:
        """Continue the episodes of a compiled environment and differentiate them, in one call."""
        start = time.perf_counter()
        lanes = self._lanes(state, chunk)
        keys = self._random_numbers(
            Purpose.POLICY_SAMPLING,
            state,
            chunk,
            lambda rng: rng.integers(2**32, size=(JOBS_PER_GENERATOR, 2), dtype=np.uint32),
        )
        update = self._updates.run(
            self._weights(state), lanes, self._seeds(state, chunk)[:, 0], keys, poll
        )
        rows, failures = update.rows_of(self.problem.columns)
        if failures and episodes.aborts:
            raise RunError(
                f"an episode failed and task.on_failed_episode is abort: {failures[0].text}"
            )
        arrays: dict[str, Array] = {optimizers.GRADIENT: update.gradient, SUMS: update.sums}
        if self._stores_lanes:
            arrays[LANES] = update.lanes
        else:
            self._rank_lanes[LANES] = update.lanes
        if update.recorded is not None:
            arrays |= self._sample(update.recorded, update.memory)
        seconds = {"environment": time.perf_counter() - start, "policy": 0.0, "policy_calls": 1.0}
        return Outcome(rows, arrays, seconds, failures)

    @cached_property
    def _updates(self) -> CompiledUpdates:
        from hpc_es.actor_critic.jax_updates import CompiledUpdates

        network: Any = self._network  # a `JaxPolicy`, see `incompatibilities`
        episodes, steps = self.problem.compiled, self.options.update_every
        assert isinstance(episodes, CompiledEpisodes) and steps is not None
        return CompiledUpdates(
            episodes.segments(), network.value_network, self._loss, steps, self.keeps_samples
        )

    @property
    def _stores_lanes(self) -> bool:
        """Whether the state has the episodes, so that any rank can continue them."""
        return (
            isinstance(self.problem.compiled, CompiledEpisodes)
            and self.options.updates == "synchronous"
        )

    @cached_property
    def _rank_lanes(self) -> dict[str, Array]:
        """The episodes of this rank, for asynchronous updates."""
        return {LANES: self._updates.no_lanes(self.options.batch_size)}

    def _lanes(self, state: State, chunk: Chunk) -> Array:
        lanes = state.shared[LANES] if self._stores_lanes else self._rank_lanes[LANES]
        return lanes[chunk.first_job : chunk.first_job + chunk.jobs]

    @cached_property
    def _segment_player(self) -> SegmentPlayer:
        assert self.problem.segments
        return SegmentPlayer(self.problem.segments(), self._network.memory(self.options.batch_size))

    def _evaluation_actor(self, state: State, chunk: Chunk) -> Actor:
        compiled = self.problem.compiled
        policy: Any = compiled.acting if isinstance(compiled, CompiledEpisodes) else self.policy
        if self.options.evaluation_actions == "greedy":
            actor: Actor = policy.bind(unperturbed(policy.layout, state.theta, chunk.jobs), None)
            return actor
        return sampling_actor(policy, state.theta, self._uniforms(state, chunk))

    def _gradient(
        self, state: State, recorded: Trajectories, memory: Sequence[Array] | None = None
    ) -> dict[str, Array]:
        """Return the gradient, float32[params + value_size], and SUMS of a chunk, float64[3]."""
        with callback_errors:
            gradient, sums = self._network.gradient(
                self._loss, self._weights(state), recorded, memory
            )
        return {optimizers.GRADIENT: gradient, SUMS: sums}

    def _weights(self, state: State) -> LossWeights:
        return LossWeights(state.theta, state.shared["value"], np.float32(self.beta(state)))

    def beta(self, state: State) -> float:
        """Return the weight of the entropy in the next update."""
        entropy = self.options.entropy
        if entropy.timesteps is not None:
            return annealed(
                entropy.start, entropy.end, int(state.shared[TIMESTEPS]), entropy.timesteps
            )
        if entropy.episodes is None:
            return entropy.start
        episodes = int(state.shared.get(EPISODES, state.generation * self.options.batch_size))
        return annealed(entropy.start, entropy.end, episodes, entropy.episodes)

    @property
    def _loss(self) -> Loss:
        options = self.options
        return Loss(
            options.discount,
            options.gae_lambda,
            options.value_weight,
            options.reward_clip,
            options.unroll,
        )

    def _sample(self, recorded: Trajectories, memory: Sequence[Array] = ()) -> dict[str, Array]:
        """Return the trajectories of a chunk as arrays of its outcome, if samples are kept."""
        if not self.keeps_samples:
            return {}
        arrays = {
            SAMPLE + name: array
            for name, array in zip(TRAJECTORIES, recorded.arrays(), strict=True)
        }
        return arrays | {f"{SAMPLE}{MEMORY}{layer}": array for layer, array in enumerate(memory)}

    def _no_arrays(self, state: State) -> Mapping[str, Array]:
        size = len(state.theta) + len(state.shared["value"])
        return {optimizers.GRADIENT: np.zeros(size, np.float32), SUMS: np.zeros(3)}

    def _seeds(self, state: State, chunk: Chunk) -> Array:
        purpose = Purpose.ENVIRONMENT if chunk.purpose == "train" else Purpose.EVALUATION
        return self._random_numbers(
            purpose, state, chunk, lambda rng: rng.integers(2**31, size=(JOBS_PER_GENERATOR, 1))
        )

    def _random_numbers(
        self,
        purpose: int,
        state: State,
        chunk: Chunk,
        draw: Callable[[np.random.Generator], Array],
    ) -> Array:
        """Return the random numbers of a chunk's jobs, [jobs, ...].

        JOBS_PER_GENERATOR consecutive jobs share a generator, independent of the chunks.
        """
        first_job, last_job = chunk.first_job, chunk.first_job + chunk.jobs - 1
        first, last = first_job // JOBS_PER_GENERATOR, last_job // JOBS_PER_GENERATOR
        groups = [
            draw(self.keys.generator(purpose, state.generation, group))
            for group in range(first, last + 1)
        ]
        start = first_job - first * JOBS_PER_GENERATOR
        return np.concatenate(groups)[start : start + chunk.jobs]

    def _uniforms(self, state: State, chunk: Chunk) -> list[np.random.Generator]:
        """Return the generator of each job's actions."""
        block = 0 if chunk.purpose == "train" else 1
        return [
            self.keys.generator(Purpose.POLICY_SAMPLING, state.generation, job, block)
            for job in chunk.job_numbers
        ]

    def _batch(self, state: State, chunk: Chunk, on_step: OnStep | None = None) -> Batch:
        return Batch(
            seeds=self._seeds(state, chunk),
            training=chunk.purpose == "train",
            observe=np.zeros(chunk.jobs, np.bool_),
            action_noise_std=0.0,
            action_noise=np.random.default_rng,  # never used, since action_noise_std is 0
            on_step=on_step,
        )

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Take an optimizer step along the mean gradient over all steps.

        Episodes that failed do not count.
        """
        steps = _steps_of(results)
        counts = self._counts(
            int(state.shared.get(EPISODES, 0)) + len(finished_episodes(results.rows)),
            int(state.shared.get(TIMESTEPS, 0)) + int(results.rows["length"].sum()),
        )
        if self._stores_lanes:
            counts = {
                **counts,
                LANES: np.concatenate([arrays[LANES] for arrays in results.chunk_arrays]),
            }
        if not steps:
            return State(state.generation + 1, {**state.shared, **counts}, state.master), {}
        gradients = _mean_gradients(results, steps)
        weights = np.concatenate([state.theta, state.shared["value"]])
        options = self.options
        descent = optimizers.descend(
            options.optimizer, weights, state.master, gradients, options.gradient_clip
        )
        theta, value = np.split(descent.theta, [self.policy.layout.size])
        metrics = {
            **descent.metrics,
            **self._with_total(state, self._mean_losses(results.chunk_arrays, steps)),
            "entropy_weight": self.beta(state),
        }
        return State(
            state.generation + 1, {"theta": theta, "value": value, **counts}, descent.slots
        ), metrics

    def _mean_losses(self, chunks: Sequence[Arrays], steps: int) -> dict[str, float]:
        sums = np.zeros(3)
        for arrays in chunks:
            sums += arrays[SUMS]
        return dict(
            zip(("policy_loss", "value_loss", "entropy"), (sums / steps).tolist(), strict=True)
        )

    def sample(self, results: Results[None]) -> Arrays:
        """Return TRAJECTORIES of all jobs, [steps, jobs, ...].

        With `update_every` the initial memory/0 ... are among them.
        """
        chunks = [
            {
                name.removeprefix(SAMPLE): array
                for name, array in arrays.items()
                if name.startswith(SAMPLE)
            }
            for arrays in results.chunk_arrays
        ]
        return concatenated([chunk for chunk in chunks if chunk])

    def gradient(self, state: State, results: Results[None]) -> Float32:
        """Return the mean gradient over steps of theta and the value, 0 if every job failed."""
        weights = np.concatenate([state.theta, state.shared["value"]])
        steps = _steps_of(results)
        return optimizers.total_gradient(weights, _mean_gradients(results, steps) if steps else [])

    def losses(self, state: State, results: Results[None]) -> Mapping[str, float]:
        """Return policy_loss, value_loss and entropy, means over steps, and their sum, loss.

        If every job failed there are none.
        """
        steps = _steps_of(results)
        return (
            self._with_total(state, self._mean_losses(results.chunk_arrays, steps)) if steps else {}
        )

    def _with_total(self, state: State, losses: dict[str, float]) -> dict[str, float]:
        total = losses["policy_loss"] + self.options.value_weight * losses["value_loss"]
        return {**losses, "loss": total - self.beta(state) * losses["entropy"]}

    def sample_losses(self, state: State, sample: Arrays) -> Mapping[str, float]:
        """Return the losses of the trajectories of `sample`.

        Raises:
            UserError: one of TRAJECTORIES is missing.
        """
        recorded, memory = self._trajectories(sample)
        arrays = self._gradient(state, recorded, memory or None)
        return self._with_total(state, self._mean_losses([arrays], int(recorded.lives.sum())))

    def results_of(self, state: State, sample: Arrays) -> Results[None]:
        """Return the results of a generation whose episodes are the trajectories of `sample`.

        Raises UserError if one of TRAJECTORIES is missing or has another shape.
        """
        recorded, memory = self._trajectories(sample)
        rows = np.zeros(
            recorded.actions.shape[1], row_dtype((*self.problem.columns, EPISODE_LENGTH))
        )
        rows["return_"] = recorded.rewards.sum(axis=0, dtype=np.float64)
        rows["sign_return"] = np.sign(recorded.rewards).sum(axis=0)
        rows["length"] = rows[EPISODE_LENGTH.name] = recorded.lives.sum(axis=0)
        if INFO in (rows.dtype.names or ()):
            rows[INFO] = np.nan
        arrays = self._gradient(state, recorded, memory or None) | self._sample(recorded, memory)
        return Results(
            rows, [arrays | ({LANES: state.shared[LANES]} if self._stores_lanes else {})]
        )

    def _trajectories(self, sample: Arrays) -> tuple[Trajectories, list[Array]]:
        """Return the trajectories of a sample and the initial memory, [] at the start of episodes.

        Raises:
            UserError: one of them is missing.
        """
        if missing := [name for name in TRAJECTORIES if name not in sample]:
            raise UserError(
                f"the sample has no {missing[0]!r}: expected one as after_train_step gets it"
            )
        shape, spec = np.shape(sample["rewards"]), self.problem.spaces.observations
        for name in TRAJECTORIES:
            expected = (*shape, *spec.shape) if name == "inputs" else shape
            if len(shape) != 2 or np.shape(sample[name]) != expected:
                text = (
                    f"the sample's {name!r} have the shape {list(np.shape(sample[name]))}: expected"
                )
                axes = ", ".join(
                    ["steps", "episodes", *map(str, spec.shape if name == "inputs" else ())]
                )
                raise UserError(f"{text} [{axes}], with the same steps and episodes as 'rewards'")
        dtypes: tuple[npt.DTypeLike, ...] = (
            spec.dtype,
            np.int32,
            np.float32,
            np.float32,
            np.float32,
        )
        arrays = [
            np.asarray(sample[name], dtype)
            for name, dtype in zip(TRAJECTORIES, dtypes, strict=True)
        ]
        return Trajectories(*arrays), [sample[name] for name in sample if name.startswith(MEMORY)]

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return the current weight of the entropy."""
        return {"entropy_weight": self.beta(state)}


def _steps_of(results: Results[None]) -> int:
    """Return the number of steps of all episodes that did not fail."""
    return int(results.rows["length"][~np.isnan(results.rows["return_"])].sum())


def _mean_gradients(results: Results[None], steps: int) -> list[Arrays]:
    """Return the share of each chunk in the mean gradient over this number of steps."""
    return [
        {optimizers.GRADIENT: arrays[optimizers.GRADIENT] / np.float32(steps)}
        for arrays in results.chunk_arrays
    ]


def _last_image(recorded: Trajectories, chunk: Chunk) -> dict[str, Array]:
    """Return the last image of the first job, if observations are images, before its last step."""
    if chunk.first_job or recorded.inputs.ndim not in (4, 5):
        return {}
    return {IMAGE: recorded.inputs[max(int(recorded.lives[:, 0].sum()) - 1, 0), 0].copy()}


def annealed(start: float, end: float, count: int, total: int) -> float:
    """Return the value after `count` of `total` steps on a straight line from start to end.

    After that it is `end`.
    """
    return start + (end - start) * min(count / total, 1.0)


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    changed = replace(
        NEEDS,
        jobs=options.batch_size,
        samples_evaluations=options.evaluation_actions == "sampled",
        equal_generations=options.update_every is None,
        independent_batches=options.update_every is None,
    )
    return with_asynchronous_updates(changed) if options.updates == "asynchronous" else changed


build = ActorCritic
