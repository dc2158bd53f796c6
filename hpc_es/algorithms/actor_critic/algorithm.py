"""Advantage actor-critic with memory (Mnih et al. 2016, arXiv:1602.01783; Wang et al. 2016, arXiv:1611.05763).

An update takes a batch of whole episodes and one step down the gradient of the mean over their steps of

    -log pi(a_t) A_t + value_weight (V_t - R_t)^2 - beta H(pi_t)

R are discounted returns, A advantages (`common/returns.py`); an episode that a time limit ends is worth the value of
its last state. The value V is linear in what the policy's output layer sees. Episodes of bandits run inside one
compiled TensorFlow graph with the gradient; those of Gymnasium are played in lockstep and differentiated afterwards.

With `update_every` an update takes so many steps of each environment of a rank, and episodes go on with the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hpc_es.algorithms.actor_critic.episodes import (
    MEMORY,
    EpisodeRecorder,
    Sampled,
    Trajectories,
    bandit_trajectories,
    joined,
    payouts,
)
from hpc_es.algorithms.actor_critic.graph import Worker
from hpc_es.algorithms.actor_critic.options import Options
from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.common.strategy import Strategy
from hpc_es.bandits.setting import Setting
from hpc_es.core.data import (
    EPISODE_LENGTH,
    INFO,
    Array,
    Arrays,
    Chunk,
    Float32,
    Float64,
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
from hpc_es.core.errors import UserError
from hpc_es.core.interfaces import Needs, TrajectoryProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.policy import Actor, Batch, Policy
from hpc_es.core.population import unperturbed

NEEDS = Needs(
    searches="trajectories",
    policy="lstm",
    tensorflow=True,
    gradients=True,
    columns=(EPISODE_LENGTH,),
    stochastic=True,
)

GROUP = 16  # jobs that share a generator, which costs more to make than to use
EPISODES = "episodes"  # of all updates so far, among the shared arrays where updates do not take whole episodes
TIMESTEPS = "timesteps"  # the same, where the weight of the entropy follows them
SAMPLE = "sample/"  # before the names of TRAJECTORIES, among a chunk's arrays where samples are kept
TRAJECTORIES = ("inputs", "actions", "rewards", "lives", "cuts")  # as `episodes.Trajectories` has them
SUMS = "sums"  # of policy loss, value loss and entropy, float64[3], among a chunk's arrays


@dataclass(frozen=True)
class ActorCritic(Strategy[None]):
    """The algorithm; every method is a pure function of its arguments, the options and the seed.

    But with `update_every`: there a rank keeps its environments from one `evaluate` of training to the next.

    State, shared:
        theta: float32[params]; parameters of the policy
        value: float32[features + 1]; weights of the value, and its bias
        episodes: int64[], if update_every is set; episodes that have ended so far
        timesteps: int64[], if entropy.timesteps is set; timesteps so far
    State, master:
        those of `hpc_es.algorithms.common.optimizers.initial_slots`
    """

    options: Options
    problem: TrajectoryProblem
    keeps_samples: bool = False  # whether chunks have the trajectories that they learn from among their arrays

    def with_samples(self) -> ActorCritic:
        """Return the same algorithm, whose chunks have them."""
        return replace(self, keeps_samples=True)

    @property
    def policy(self) -> Policy:
        """What is trained."""
        return self.problem.policy

    def initial(self) -> State:
        """theta from the policy; the value's column has length 1, its bias is 0."""
        from hpc_es.policies.networks.layers import normalised_columns

        theta = self.policy.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS))
        rng = self.keys.generator(Purpose.INITIAL_PARAMETERS, index=1)
        column = normalised_columns(rng, (self._network().features, 1), 1.0)[:, 0]
        value = np.append(column, np.float32(0))
        slots = optimizers.initial_slots(self.options.optimizer, len(theta) + len(value))
        return State(0, {"theta": theta, "value": value, **self._counted(0, 0)}, slots)

    def _counted(self, episodes: int, timesteps: int) -> Arrays:
        counts = {}
        if self.options.update_every is not None:
            counts[EPISODES] = np.asarray(episodes, np.int64)
        if self.options.entropy.timesteps is not None:
            counts[TIMESTEPS] = np.asarray(timesteps, np.int64)
        return counts

    def _network(self) -> Any:
        from hpc_es.policies.networks.differentiable import DifferentiableNetwork

        network = DifferentiableNetwork.of(self.policy)
        assert network
        return network

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return a batch in chunks of `chunk_size`; of asynchronous updates, in one chunk."""
        batch = self.options.batch_size
        size = self.chunk_size if self.options.updates == "synchronous" else batch
        return [] if round else cut(batch, size)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Play a chunk's episodes, and of training differentiate the sum of the losses of their steps."""
        if chunk.purpose == "train" and self.options.update_every is not None:
            return self._segments(self.options.update_every, state, chunk, poll)
        outcome = self._whole(state, chunk, poll)
        return replace(outcome, rows=with_columns(outcome.rows, {EPISODE_LENGTH: outcome.rows["length"]}))

    def _whole(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        if chunk.purpose != "train":
            return self.problem.play(self._evaluated(state, chunk), self._batch(state, chunk), poll)
        if isinstance(self.problem.compiled, Setting):
            return self._bandits(self.problem.compiled, state, chunk, poll)
        return self._episodes(state, chunk, poll)

    def _bandits(self, setting: Setting, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        from hpc_es.algorithms.actor_critic.graph import bandits_graph

        poll()
        since = time.perf_counter()
        drawn = setting.of_seeds(self._seeds(state, chunk)[:, 0])
        trials = setting.num_trials
        uniforms = self._drawn(
            Purpose.POLICY_SAMPLING, state, chunk, lambda rng: rng.random((GROUP, trials), np.float32)
        )
        environment = time.perf_counter() - since
        graph = bandits_graph(self._network(), self._loss(), setting.inputs)
        slope, sums, actions, rewards = graph(*self._parameters(state), payouts(drawn), uniforms.T)
        rows = np.zeros(chunk.jobs, row_dtype(self.problem.columns))
        got = rewards.numpy().astype(np.float64)
        rows["return_"], rows["sign_return"] = got.sum(axis=0), np.sign(got).sum(axis=0)
        rows["length"] = trials
        if setting.info:
            rows[INFO] = setting.numbers(drawn.arms, actions.numpy().T.astype(np.int64))
        policy = time.perf_counter() - since - environment
        seconds = {"environment": environment, "policy": policy, "policy_calls": float(trials)}
        arrays = self._arrays(slope, sums)
        if self.keeps_samples:
            arrays |= self._sample(bandit_trajectories(setting.inputs, actions.numpy(), rewards.numpy()))
        return Outcome(rows, arrays, seconds)

    def _episodes(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        from hpc_es.algorithms.actor_critic.graph import episodes_graph

        actor = Sampled(self.policy, state.theta, self._uniforms(state, chunk))
        recorder = EpisodeRecorder(actor, chunk.jobs, self.problem.spaces.actions.start)  # type: ignore[union-attr]
        outcome = self.problem.play(recorder, self._batch(state, chunk, recorder.on_step), poll)
        if recorder.is_empty:
            return replace(outcome, arrays=self._no_arrays(state))
        recorded = recorder.trajectories(np.isnan(outcome.rows["return_"]))
        slope, sums = episodes_graph(self._network(), self._loss())(*self._parameters(state), *recorded.arrays())
        arrays = self._arrays(slope, sums) | self._sample(recorded)
        return Outcome(outcome.rows, arrays, outcome.seconds, outcome.failures)

    def _segments(self, steps: int, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        from hpc_es.algorithms.actor_critic.graph import segments_graph

        actor = Sampled(self.policy, state.theta, self._uniforms(state, chunk))
        recorder = EpisodeRecorder(actor, chunk.jobs, self.problem.spaces.actions.start)  # type: ignore[union-attr]
        memory = self._worker.memory
        outcome = self._worker.play(actor, recorder, self._batch(state, chunk, recorder.on_step), steps, poll)
        if recorder.is_empty:
            return replace(outcome, arrays=self._no_arrays(state))
        recorded = recorder.trajectories(np.isnan(outcome.rows["return_"]), steps)
        graph = segments_graph(self._network(), self._loss())
        slope, sums = graph(*self._parameters(state), memory, *recorded.arrays())
        return replace(outcome, arrays=self._arrays(slope, sums) | self._sample(recorded, memory))

    @cached_property
    def _worker(self) -> Worker:
        network = self._network()
        assert self.problem.segments
        return Worker(self.problem.segments(), network.memory_shapes(self.options.batch_size))

    def _evaluated(self, state: State, chunk: Chunk) -> Actor:
        if self.options.evaluation_actions == "greedy":
            return self.policy.bind(unperturbed(self.policy.layout, state.theta, chunk.jobs), None)
        return Sampled(self.policy, state.theta, self._uniforms(state, chunk))

    def _parameters(self, state: State) -> tuple[Float32, Float32, np.float32]:
        return state.theta, state.shared["value"], np.float32(self.beta(state))

    def beta(self, state: State) -> float:
        """Return the weight of the entropy in an update."""
        entropy = self.options.entropy
        if entropy.timesteps is not None:
            return annealed(entropy.start, entropy.end, int(state.shared[TIMESTEPS]), entropy.timesteps)
        if entropy.episodes is None:
            return entropy.start
        done = int(state.shared.get(EPISODES, state.generation * self.options.batch_size))
        return annealed(entropy.start, entropy.end, done, entropy.episodes)

    def _loss(self) -> Any:
        from hpc_es.algorithms.actor_critic.graph import Loss

        o = self.options
        return Loss(o.discount, o.gae_lambda, o.value_weight, o.reward_clip, o.unroll)

    def _sample(self, recorded: Trajectories, memory: Sequence[Float32] = ()) -> dict[str, Array]:
        """Return what a chunk has learned from, where samples are kept."""
        if not self.keeps_samples:
            return {}
        arrays = {SAMPLE + name: array for name, array in zip(TRAJECTORIES, recorded.arrays(), strict=True)}
        return arrays | {f"{SAMPLE}{MEMORY}{layer}": held for layer, held in enumerate(memory)}

    def _arrays(self, slope: Any, sums: Any) -> dict[str, Array]:
        return {optimizers.GRADIENT: slope.numpy(), SUMS: sums.numpy().astype(np.float64)}

    def _no_arrays(self, state: State) -> Mapping[str, Array]:
        size = len(state.theta) + len(state.shared["value"])
        return {optimizers.GRADIENT: np.zeros(size, np.float32), SUMS: np.zeros(3)}

    def _seeds(self, state: State, chunk: Chunk) -> Array:
        purpose = Purpose.ENVIRONMENT if chunk.purpose == "train" else Purpose.EVALUATION
        return self._drawn(purpose, state, chunk, lambda rng: rng.integers(2**31, size=(GROUP, 1)))

    def _drawn(
        self, purpose: Purpose, state: State, chunk: Chunk, draw: Callable[[np.random.Generator], Array]
    ) -> Array:
        """The numbers of the chunk's jobs, [jobs, ...]; whatever the chunks, GROUP jobs in a row share a generator."""
        first, last = chunk.first_job // GROUP, (chunk.first_job + chunk.jobs - 1) // GROUP
        groups = [draw(self.keys.generator(purpose, state.generation, n)) for n in range(first, last + 1)]
        start = chunk.first_job - first * GROUP
        return np.concatenate(groups)[start : start + chunk.jobs]

    def _uniforms(self, state: State, chunk: Chunk) -> list[np.random.Generator]:
        """Return what chooses the actions of each job."""
        block = 0 if chunk.purpose == "train" else 1
        return [self.keys.generator(Purpose.POLICY_SAMPLING, state.generation, job, block) for job in chunk.job_numbers]

    def _batch(self, state: State, chunk: Chunk, on_step: Any = None) -> Batch:
        return Batch(
            seeds=self._seeds(state, chunk),
            training=chunk.purpose == "train",
            observe=np.zeros(chunk.jobs, np.bool_),
            action_noise_std=0.0,
            action_noise=np.random.default_rng,  # never asked for
            on_step=on_step,
        )

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Follow the mean gradient of the steps of all episodes that did not fail."""
        fine = ~np.isnan(results.rows["return_"])
        steps = int(results.rows["length"][fine].sum())
        counted = self._counted(
            int(state.shared.get(EPISODES, 0)) + len(finished_episodes(results.rows)),
            int(state.shared.get(TIMESTEPS, 0)) + int(results.rows["length"].sum()),
        )
        if not steps:
            return State(state.generation + 1, {**state.shared, **counted}, state.master), {}
        mean = [
            {optimizers.GRADIENT: arrays[optimizers.GRADIENT] / np.float32(steps)} for arrays in results.chunk_arrays
        ]
        both = np.concatenate([state.theta, state.shared["value"]])
        descent = optimizers.descend(self.options.optimizer, both, state.master, mean, self.options.gradient_clip)
        theta, value = np.split(descent.theta, [self.policy.layout.size])
        metrics = {
            **descent.metrics,
            **self._mean_losses(results.chunk_arrays, steps),
            "entropy_weight": self.beta(state),
        }
        return State(state.generation + 1, {"theta": theta, "value": value, **counted}, descent.slots), metrics

    def _mean_losses(self, chunks: Sequence[Arrays], steps: int) -> dict[str, float]:
        sums = np.zeros(3)
        for arrays in chunks:
            sums += arrays[SUMS]
        return dict(zip(("policy_loss", "value_loss", "entropy"), (sums / steps).tolist(), strict=True))

    def sample(self, results: Results[None]) -> Arrays:
        """Return TRAJECTORIES of all jobs, [steps, jobs, ...], and of segments what was remembered: memory/0 ..."""
        chunks = [
            {name.removeprefix(SAMPLE): array for name, array in arrays.items() if name.startswith(SAMPLE)}
            for arrays in results.chunk_arrays
        ]
        return joined([chunk for chunk in chunks if chunk])

    def losses(self, state: State, results: Results[None]) -> Mapping[str, float]:
        """Return policy_loss, value_loss and entropy, means over steps, and loss; nothing where every job failed."""
        steps = int(results.rows["length"][~np.isnan(results.rows["return_"])].sum())
        return self._with_total(state, self._mean_losses(results.chunk_arrays, steps)) if steps else {}

    def _with_total(self, state: State, losses: dict[str, float]) -> dict[str, float]:
        total = losses["policy_loss"] + self.options.value_weight * losses["value_loss"]
        return {**losses, "loss": total - self.beta(state) * losses["entropy"]}

    def sample_losses(self, state: State, sample: Arrays) -> Mapping[str, float]:
        """Return the same of trajectories."""
        from hpc_es.algorithms.actor_critic.graph import episodes_graph, segments_graph

        if missing := [name for name in TRAJECTORIES if name not in sample]:
            raise UserError(f"the sample has no {missing[0]!r}: expected one as after_train_step gets it")
        recorded = [sample[name] for name in TRAJECTORIES]
        memory = [sample[name] for name in sample if name.startswith(MEMORY)]
        if memory:
            graph = segments_graph(self._network(), self._loss())
            slope, sums = graph(*self._parameters(state), memory, *recorded)
        else:
            slope, sums = episodes_graph(self._network(), self._loss())(*self._parameters(state), *recorded)
        return self._with_total(state, self._mean_losses([self._arrays(slope, sums)], int(sample["lives"].sum())))

    def finished(self, state: State) -> str | None:
        """Never: a return can always be better."""
        return None

    def summary(self, state: State) -> Mapping[str, Any]:
        """Return how far the entropy is annealed."""
        return {"entropy_weight": self.beta(state)}


def annealed(start: float, end: float, done: int, total: int) -> float:
    """On the straight line from start, at 0, to end, at total and ever after."""
    return start + (end - start) * min(done / total, 1.0)


build = ActorCritic
