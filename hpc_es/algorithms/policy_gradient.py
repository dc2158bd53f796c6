"""Policy gradient (REINFORCE) and priority queue training for programs (Abolafia et al. 2018, arXiv:1801.03526).

An LSTM writes programs token by token (`policies/token_lstm.py`). With B programs of a batch, tokens a_t and reward R

    loss = - pi_loss_hparam   64 / B sum_b sum_t (R - baseline_t) ln p(a_t)     the policy gradient
           - entropy_beta     64 / B sum_b sum_t H_t
           + vf_loss_hparam   64 / B sum_b sum_t (value_t - R)^2                if the baseline is a learned value
           - topk_loss_hparam 1 / K sum_k sum_t ln p(a_t)                       K programs drawn from the best `topk`
           + regularizer      sum of w^2 / 2 without the embedding

The baseline of each position is a running mean of the rewards, or a second network (advantage actor-critic). 64 is the
batch size of the paper, which sums where here means are taken. With pi_loss_hparam 0 the best programs alone teach.
With alpha > 0 a share of the batch is replayed and weighed by importance (`common/replay.py`).

Where it differs from the original: the queue teaches nothing until there is something in it, the replay buffer is
bounded, and of a batch with replays only those programs are written that are executed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen

from hpc_es.algorithms.program_lessons import Lessons, baseline_after, imitated, queue_after, queue_nothing
from hpc_es.common import found, optimizers
from hpc_es.common.gradient import descend
from hpc_es.interfaces import Array, Arrays, Chunk, Outcome, Policy, Poll, Results, Rows, State, Task, cut
from hpc_es.keys import Keys, Purpose
from hpc_es.options import Count, Fraction, Natural, NonNegative, Positive, option, options
from hpc_es.policies.token_lstm import TokenLSTM, lengths, sampler
from hpc_es.tasks.programs import Programs

POLICY = None
NOISE = False
TENSORFLOW = True
QUEUE_DRAW, REPLAY_DRAW = 0, 1  # indices of the keys of a generation

Sizes = Annotated[tuple[Count, ...], MinLen(1)]


@options
class Optimizer:
    """`algorithm.optimizer:`."""

    kind: Literal["rmsprop", "adam", "sgd"] = option("sgd is without momentum", "rmsprop")
    learning_rate: Positive = option("step size", 5e-5)

    def full(self) -> optimizers.Options:
        """As `common/optimizers.py` takes it."""
        full: Any = optimizers.Options
        options: optimizers.Options = full(
            kind="none" if self.kind == "sgd" else self.kind, learning_rate=self.learning_rate
        )
        return options


@options
class Options:
    """`algorithm:` with `kind: policy_gradient`."""

    kind: Literal["policy_gradient"] = option("the algorithm's module in hpc_es/algorithms", "policy_gradient")
    batch_size: Count = option("programs of an update", 64)
    updates: Literal["synchronous", "asynchronous"] = option(
        "synchronous: the ranks share a batch; asynchronous: each has batches of its own, and results depend on timing",
        "synchronous",
    )
    policy_lstm_sizes: Sizes = option("units of the layers that write programs", (35, 35))
    value_lstm_sizes: Sizes = option("units of the layers that learn values, where ema_baseline_decay is 0", (35, 35))
    obs_embedding_size: Count = option("numbers that a token is turned into", 10)
    param_init_factor: Positive = option("initial weights have this times Glorot's variance", 1.0)
    optimizer: Optimizer = option("how theta follows the gradient", default_factory=Optimizer)
    grad_clip_threshold: Positive = option("largest norm of the gradient", 10.0)
    pi_loss_hparam: NonNegative = option("factor of the policy gradient; 0: only the queue teaches", 1.0)
    vf_loss_hparam: NonNegative = option("factor of the squared error of learned values", 0.5)
    entropy_beta: NonNegative = option("factor of the entropy", 0.01)
    regularizer: NonNegative = option("factor of half the squared weights", 0.0)
    softmax_tr: Positive = option("factor of the logits when programs are written: 1 / temperature", 1.0)
    topk: Natural = option("programs in the priority queue; 0: there is none", 0)
    topk_loss_hparam: NonNegative = option("factor of the queue's likelihood", 0.0)
    topk_batch_size: Natural = option("programs drawn from the queue for an update", 1)
    ema_baseline_decay: Fraction = option("decay of the running mean of rewards; 0: a learned value instead", 0.99)
    eos_token: bool = option("programs may end before their full length, by a token that counts as a character", False)
    alpha: Fraction = option("share of a batch that is replayed", 0.0)
    replay_temperature: Positive = option("programs are replayed in proportion to exp(reward / temperature)", 1.0)
    replay_capacity: Count = option("programs in the replay buffer", 10_000)
    iw_normalize: bool = option("importance weights have the mean 1", True)
    stop_on_success: bool = option("end when a program is correct", True, may_change=True)

    @property
    def replays(self) -> int:
        """Programs of a batch that are replayed."""
        return int(self.batch_size * self.alpha)

    @property
    def imitates(self) -> bool:
        """Whether there is a queue."""
        return self.topk > 0 and self.topk_loss_hparam > 0

    @property
    def learns_values(self) -> bool:
        """Whether the baseline is a network."""
        return self.ema_baseline_decay == 0

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.imitates and not self.topk_batch_size:
            yield (
                "topk_batch_size",
                "is 0, but topk is on: expected how many programs of the queue an update has (try 1)",
            )
        if self.topk_loss_hparam and not self.topk:
            yield "topk_loss_hparam", "needs a queue, but topk is 0 (try topk: 10)"
        if self.alpha and not self.replays:
            text = f"is {self.alpha:g}: of a batch of {self.batch_size} no program is replayed"
            yield "alpha", f"{text} (try {1 / self.batch_size:g} or more, or 0)"
        if self.alpha and self.learns_values:
            yield "ema_baseline_decay", "is 0, but learned values cannot be had with replay (try 0.99, or alpha: 0)"


@dataclass(frozen=True)
class PolicyGradient:
    """The algorithm; every method is a pure function of its arguments, the options and the seed."""

    options: Options
    task: Programs
    keys: Keys
    chunk_size: int

    @cached_property
    def network(self) -> TokenLSTM:
        """The form of the network."""
        values = self.options.value_lstm_sizes if self.options.learns_values else ()
        size, length = self.options.obs_embedding_size, self.task.max_code_length
        return TokenLSTM(self.options.policy_lstm_sizes, values, size, length, self.options.eos_token)

    @cached_property
    def lessons(self) -> Lessons:
        """What a chunk's programs teach."""
        return Lessons(self.options, self.network)

    def initial(self) -> State:
        """Random weights; the baseline is 0, the queue and the buffer are empty."""
        options, length = self.options, self.task.max_code_length
        theta = self.network.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS), self.options.param_init_factor)
        master = {**optimizers.initial_slots(options.optimizer.full(), theta.size), **found.nothing(length)}
        if options.imitates:
            master |= queue_nothing(options.topk, length)
        if options.alpha:
            master |= self.lessons.replay.nothing()
        return self._state(0, theta, np.zeros(length), master)

    def _state(self, generation: int, theta: Array, baseline: Array, master: Arrays) -> State:
        """With what this generation's chunks take from the queue and the buffer."""
        shared: dict[str, Array] = {"theta": theta}
        if not self.options.learns_values:
            shared["baseline"] = baseline
        if self.options.imitates:
            rng = self.keys.generator(Purpose.REPLAY, generation, QUEUE_DRAW)
            shared |= imitated(master, self.options.topk_batch_size, rng)
        if self.options.alpha:
            rng = self.keys.generator(Purpose.REPLAY, generation, REPLAY_DRAW)
            shared |= self.lessons.replayed(master, rng)
        return State(generation, shared, master)

    def ask(self, state: State, round: int, first_index: int) -> list[Chunk]:
        """The programs of a batch that are to be written; a generation has one round."""
        jobs, size = self._cut(state)
        return cut(jobs, size, first_index, round * jobs)

    def _cut(self, state: State) -> tuple[int, int]:
        """How many programs are to be written, and how many of them a chunk has at most."""
        batch = self.options.batch_size
        jobs = batch - (self.options.replays if self.lessons.replays(state.shared) else 0)
        chunks = 1 if self.options.updates == "asynchronous" else -(-batch // self.chunk_size)
        return jobs, -(-jobs // chunks)

    def enough(self, rows: Rows) -> bool:
        """Always."""
        return True

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Write programs, execute them, and differentiate this chunk's share of the loss."""
        since = time.perf_counter()
        tokens = self.written(state, chunk)
        seconds = {"policy": time.perf_counter() - since}
        outcome = self.task.evaluate(list(map(self._text, tokens)), None, poll)
        jobs, size = self._cut(state)
        place, chunks = chunk.first_job % jobs // size, -(-jobs // size)
        arrays = self.lessons.learned(state.shared, tokens, outcome.rows["return_"], place, chunks)
        return Outcome(outcome.rows, {"tokens": tokens, **arrays}, {**outcome.seconds, **seconds})

    def written(self, state: State, chunk: Chunk) -> Array:
        """uint8[jobs, length]; a program's random numbers belong to its job."""
        numbers = [
            self.keys.generator(Purpose.POLICY_SAMPLING, state.generation, job).random(self.network.length)
            for job in chunk.job_numbers
        ]
        return sampler(self.network, self.options.softmax_tr)(state.theta, np.stack(numbers))

    def _text(self, tokens: Array) -> str:
        """The program, with a `_` for the token that ends it."""
        table = np.frombuffer(f"_{self.task.alphabet}".encode("ascii"), np.uint8)
        return table[tokens[: lengths(tokens[np.newaxis])[0]]].tobytes().decode("ascii")

    def blocks(self) -> int:
        """None: chunks give gradients."""
        return 0

    def contribute(self, state: State, rows: Rows, block: int) -> Array:
        """Never called."""
        raise AssertionError("there are no blocks")

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """A step along the gradient; then baseline, queue and buffer take this batch in."""
        chunks, rewards = results.chunk_arrays, results.rows["return_"].astype(np.float64)
        tokens = np.concatenate([arrays["tokens"] for arrays in chunks])
        so_far = found.updated(state.master, results.rows, lambda job: self._text(tokens[job]))
        gradients, losses = self.lessons.gradients(state.theta, chunks)
        descent = descend(
            self.options.optimizer.full(), state.theta, state.master, gradients, self.options.grad_clip_threshold
        )
        master = {**state.master, **so_far, **descent.slots}
        if self.options.imitates:
            best = int(rewards.argmax())
            master |= queue_after(master, tokens[best], float(rewards[best]))
        if self.options.alpha:
            master |= self.lessons.replay.added(master, tokens, rewards)
        following = self._state(
            state.generation + 1, descent.theta, self._baseline(state, chunks, rewards, tokens), master
        )
        return following, {**descent.metrics, **losses, **found.metrics(so_far)}

    def _baseline(self, state: State, chunks: Sequence[Arrays], rewards: Array, tokens: Array) -> Array:
        """After the replays and this batch's programs, in this order."""
        if self.options.learns_values:
            return np.zeros(0)
        reached = lengths(tokens)
        if self.options.alpha:
            rewards = np.concatenate([*(arrays["replayed_rewards"] for arrays in chunks), rewards])
            reached = np.concatenate([*(arrays["replayed_lengths"] for arrays in chunks), reached])
        return baseline_after(state.shared["baseline"], rewards, reached, self.options.ema_baseline_decay)

    def finished(self, state: State) -> str | None:
        """A correct program, where that is enough."""
        return found.finished(state.master, self.options.stop_on_success)

    def summary(self, state: State) -> Mapping[str, Any]:
        """The programs found, and how many updates were made."""
        return {**found.summary(state.master), "updates": state.generation}


def misfits(options: Options, task: Task, policy: Policy | None) -> Iterator[tuple[str, str]]:
    """Why this task cannot be had: (key, text)."""
    if not isinstance(task, Programs):
        yield "task.kind", "policy_gradient writes programs: expected 'programs', or another algorithm"


def build(options: Any, task: Any, policy: Any, noise: Any, keys: Keys, chunk_size: int) -> PolicyGradient:
    """The algorithm of `algorithm: {kind: policy_gradient}`."""
    return PolicyGradient(options, task, keys, chunk_size)
