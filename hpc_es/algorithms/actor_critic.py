"""Advantage actor-critic with memory (Mnih et al. 2016, arXiv:1602.01783; Wang et al. 2016, arXiv:1611.05763).

An update takes a batch of whole episodes and one step down the gradient of the mean over their steps of

    -log pi(a_t) A_t + value_weight (V_t - R_t)^2 - beta H(pi_t)

R are discounted returns, A advantages (`common/returns.py`); an episode that a time limit ends is worth the value of
its last state. The value V is linear in what the policy's output layer sees. Episodes of bandits run inside one
compiled TensorFlow graph with the gradient; those of Gymnasium are played in lockstep and differentiated afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hpc_es.algorithms.actor_critic_episodes import Recorder, Sampled, payouts, unperturbed
from hpc_es.common import gradient, optimizers
from hpc_es.errors import RunError
from hpc_es.interfaces import (
    ROW,
    Actor,
    Array,
    Batch,
    Chunk,
    Discrete,
    Float32,
    Outcome,
    Policy,
    Poll,
    Results,
    Rows,
    State,
    Task,
    cut,
)
from hpc_es.keys import Keys, Purpose
from hpc_es.options import Count, NonNegative, Positive, Probability, option, options
from hpc_es.tasks.bandits import Bandits
from hpc_es.tasks.episodes import Episodes

POLICY = "lstm"
NOISE = False
TENSORFLOW = True

GROUP = 16  # jobs that share a generator, which costs more to make than to use
SUMS = "sums"  # of policy loss, value loss and entropy, float64[3], among a chunk's arrays


@options
class Entropy:
    """`algorithm.entropy:`, beta."""

    start: NonNegative = option("the weight of the entropy in the first update", 0.1)
    end: NonNegative = option("what it falls to in a straight line", 0.0)
    episodes: Count | None = option("training episodes until then; null: it stays at its start", None)


@options
class Options:
    """`algorithm:` with `kind: actor_critic`."""

    kind: Literal["actor_critic"] = option("the algorithm's module in hpc_es/algorithms", "actor_critic")
    batch_size: Count = option("episodes an update", 16)
    updates: Literal["synchronous", "asynchronous"] = option(
        "synchronous: all ranks share a batch; asynchronous: a batch a rank, followed as it comes", "synchronous"
    )
    discount: Probability = option("of a reward a step later", 0.8)
    gae_lambda: Probability = option("lambda of generalised advantage estimation; 1: return minus value", 1.0)
    value_weight: NonNegative = option("of the squared error of the value", 0.25)
    entropy: Entropy = option("what keeps the policy trying", default_factory=Entropy)
    unroll: Count | None = option("steps that gradients pass through a memory; null: the whole episode", None)
    reward_clip: Positive | None = option("rewards to learn from are clipped to [-clip, clip]; null: not", None)
    gradient_clip: Positive | None = option("longest gradient; null: any", 1.0)
    evaluation_actions: Literal["sampled", "greedy"] = option(
        "of evaluation episodes in training: drawn as in training, or the most probable", "sampled", may_change=True
    )
    optimizer: optimizers.Options = option("how the parameters follow", default_factory=optimizers.Options)


@dataclass(frozen=True)
class ActorCritic:
    """The algorithm; every method is a pure function of its arguments, the options and the seed."""

    options: Options
    task: Bandits | Episodes
    policy: Policy
    keys: Keys
    chunk_size: int

    def initial(self) -> State:
        """theta from the policy; the value's column has length 1, its bias is 0."""
        from hpc_es.policies.lstm import normalised_columns

        theta = self.policy.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS))
        rng = self.keys.generator(Purpose.INITIAL_PARAMETERS, index=1)
        column = normalised_columns(rng, (self._network().features, 1), 1.0)[:, 0]
        value = np.append(column, np.float32(0))
        slots = optimizers.initial_slots(self.options.optimizer, len(theta) + len(value))
        return State(0, {"theta": theta, "value": value}, slots)

    def _network(self) -> Any:
        from hpc_es.policies.graph import Network

        network = Network.of(self.policy)
        assert network
        return network

    def ask(self, state: State, round: int, first_index: int) -> list[Chunk]:
        """A batch in chunks of `chunk_size`; of asynchronous updates, in one chunk."""
        batch = self.options.batch_size
        size = self.chunk_size if self.options.updates == "synchronous" else batch
        return cut(batch, size, first_index, round * batch)

    def enough(self, rows: Rows) -> bool:
        """A round is a batch."""
        return True

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Play a chunk's episodes, and of training differentiate the sum of the losses of their steps."""
        if not chunk.training:
            return self.task.evaluate(self._evaluated(state, chunk), self._batch(state, chunk), poll)
        if isinstance(self.task, Bandits):
            return self._bandits(self.task, state, chunk, poll)
        return self._episodes(state, chunk, poll)

    def _bandits(self, task: Bandits, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        from hpc_es.algorithms.actor_critic_graph import bandits_graph

        poll()
        since = time.perf_counter()
        drawn = task.setting.of_seeds(self._seeds(state, chunk)[:, 0])
        trials = task.setting.num_trials
        luck = self._drawn(Purpose.POLICY_SAMPLING, state, chunk, lambda rng: rng.random((GROUP, trials), np.float32))
        environment = time.perf_counter() - since
        graph = bandits_graph(self._network(), self._loss(), task.setting.inputs)
        slope, sums, _, rewards = graph(*self._parameters(state), payouts(drawn), luck.T)
        rows = np.zeros(chunk.jobs, ROW)
        got = rewards.numpy().astype(np.float64)
        rows["return_"], rows["sign_return"] = got.sum(axis=0), np.sign(got).sum(axis=0)
        rows["length"] = trials
        policy = time.perf_counter() - since - environment
        seconds = {"environment": environment, "policy": policy, "policy_calls": float(trials)}
        return Outcome(rows, self._arrays(slope, sums), seconds)

    def _episodes(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        from hpc_es.algorithms.actor_critic_graph import episodes_graph

        actor = Sampled(self.policy, state.theta, self._luck(state, chunk))
        recorder = Recorder(actor, chunk.jobs, self.task.spaces.actions.start)  # type: ignore[union-attr]
        outcome = self.task.evaluate(recorder, self._batch(state, chunk, recorder.witness), poll)
        recorded = recorder.trajectories(np.isnan(outcome.rows["return_"]))
        slope, sums = episodes_graph(self._network(), self._loss())(*self._parameters(state), *recorded.arrays())
        return Outcome(outcome.rows, self._arrays(slope, sums), outcome.seconds, outcome.failures)

    def _evaluated(self, state: State, chunk: Chunk) -> Actor:
        if self.options.evaluation_actions == "greedy":
            return self.policy.bind(unperturbed(state.theta, chunk.jobs), None)
        return Sampled(self.policy, state.theta, self._luck(state, chunk))

    def _parameters(self, state: State) -> tuple[Float32, Float32, np.float32]:
        return state.theta, state.shared["value"], np.float32(self.beta(state.generation))

    def beta(self, generation: int) -> float:
        """The weight of the entropy in an update."""
        entropy = self.options.entropy
        if entropy.episodes is None:
            return entropy.start
        return annealed(entropy.start, entropy.end, generation * self.options.batch_size, entropy.episodes)

    def _loss(self) -> Any:
        from hpc_es.algorithms.actor_critic_graph import Loss

        o = self.options
        return Loss(o.discount, o.gae_lambda, o.value_weight, o.reward_clip, o.unroll)

    def _arrays(self, slope: Any, sums: Any) -> Mapping[str, Array]:
        return {gradient.GRADIENT: slope.numpy(), SUMS: sums.numpy().astype(np.float64)}

    def _seeds(self, state: State, chunk: Chunk) -> Array:
        purpose = Purpose.ENVIRONMENT if chunk.training else Purpose.EVALUATION
        return self._drawn(purpose, state, chunk, lambda rng: rng.integers(2**31, size=(GROUP, 1)))

    def _drawn(
        self, purpose: Purpose, state: State, chunk: Chunk, draw: Callable[[np.random.Generator], Array]
    ) -> Array:
        """The numbers of the chunk's jobs, [jobs, ...]; whatever the chunks, GROUP jobs in a row share a generator."""
        first, last = chunk.first_job // GROUP, (chunk.first_job + chunk.jobs - 1) // GROUP
        groups = [draw(self.keys.generator(purpose, state.generation, n)) for n in range(first, last + 1)]
        start = chunk.first_job - first * GROUP
        return np.concatenate(groups)[start : start + chunk.jobs]

    def _luck(self, state: State, chunk: Chunk) -> list[np.random.Generator]:
        """What chooses the actions of each job."""
        block = 0 if chunk.training else 1
        return [self.keys.generator(Purpose.POLICY_SAMPLING, state.generation, job, block) for job in chunk.job_numbers]

    def _batch(self, state: State, chunk: Chunk, witness: Any = None) -> Batch:
        return Batch(
            seeds=self._seeds(state, chunk),
            training=chunk.training,
            observe=np.zeros(chunk.jobs, np.bool_),
            action_noise_std=0.0,
            action_noise=np.random.default_rng,  # never asked for
            witness=witness,
        )

    def blocks(self) -> int:
        """The gradient comes with the chunks."""
        return 0

    def contribute(self, state: State, rows: Rows, block: int) -> Array:
        """Never asked for."""
        raise AssertionError("there are no blocks")

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Follow the mean gradient of the steps of all episodes that did not fail."""
        finished = ~np.isnan(results.rows["return_"])
        steps = int(results.rows["length"][finished].sum())
        if not steps:
            raise RunError(f"every episode of generation {state.generation} has failed: nothing to learn from")
        mean = [{gradient.GRADIENT: arrays[gradient.GRADIENT] / np.float32(steps)} for arrays in results.chunk_arrays]
        both = np.concatenate([state.theta, state.shared["value"]])
        descent = gradient.descend(self.options.optimizer, both, state.master, mean, self.options.gradient_clip)
        theta, value = np.split(descent.theta, [self.policy.size])
        sums = np.zeros(3)
        for arrays in results.chunk_arrays:
            sums += arrays[SUMS]
        policy_loss, value_loss, entropy = (sums / steps).tolist()
        metrics = {
            **descent.metrics,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "entropy_weight": self.beta(state.generation),
        }
        return State(state.generation + 1, {"theta": theta, "value": value}, descent.slots), metrics

    def finished(self, state: State) -> str | None:
        """Never: a return can always be better."""
        return None

    def summary(self, state: State) -> Mapping[str, Any]:
        """How far the entropy is annealed."""
        return {"entropy_weight": self.beta(state.generation)}


def annealed(start: float, end: float, done: int, total: int) -> float:
    """On the straight line from start, at 0, to end, at total and ever after."""
    return start + (end - start) * min(done / total, 1.0)


def misfits(options: Options, task: Task, policy: Policy | None) -> Iterator[tuple[str, str]]:
    """Why this task or policy cannot be had: (key, text)."""
    if not isinstance(task, Bandits | Episodes):
        yield "task.kind", "has no episodes that actor_critic can learn from: expected 'bandits' or 'episodes'"
        return
    if not isinstance(task.spaces.actions, Discrete):
        key = "task.env_id" if isinstance(task, Episodes) else "task.kind"
        yield key, f"{task.name} has Box actions, actor_critic needs Discrete ones: try algorithm.kind: es"
    if task.episodes_per_job != 1:
        text = f"is {task.episodes_per_job}, expected 1: actor_critic takes algorithm.batch_size episodes an update"
        yield "task.episodes_per_job", text
    if isinstance(task, Bandits) and task.options.training_return != "reward":
        yield "task.training_return", "is for evolution strategies: actor_critic learns from 'reward'"
    yield from _policy_misfits(options, policy)
    yield from _unroll_misfits(options, task)


def _policy_misfits(options: Options, policy: Policy | None) -> Iterator[tuple[str, str]]:
    from hpc_es.policies.lstm import LSTM
    from hpc_es.policies.mlp import MLP

    if not isinstance(policy, LSTM | MLP):
        found = "null" if policy is None else f"{type(policy).__name__}, whose gradient is not known"
        yield "policy", f"is {found}: expected the kind 'lstm' or 'mlp'"
    elif isinstance(policy, MLP) and options.unroll is not None:
        yield "algorithm.unroll", f"is {options.unroll}, but the policy mlp remembers nothing: leave it out"


def _unroll_misfits(options: Options, task: Bandits | Episodes) -> Iterator[tuple[str, str]]:
    longest = task.setting.num_trials if isinstance(task, Bandits) else task.time_limit
    if options.unroll is not None and longest is not None and options.unroll > longest:
        text = f"is {options.unroll}, but an episode has at most {longest} steps (try null, the whole episode)"
        yield "algorithm.unroll", text


def build(options: Any, task: Any, policy: Policy, noise: None, keys: Keys, chunk_size: int) -> ActorCritic:
    """The algorithm of `algorithm: {kind: actor_critic}`."""
    return ActorCritic(options, task, policy, keys, chunk_size)
