"""The priority queue of programs, as arrays: what it holds, what is offered to it, what is drawn of it.

Policy gradient (REINFORCE) and priority queue training for programs (Abolafia et al. 2018, arXiv:1801.03526).

An LSTM writes programs token by token (`writing.py`). With B programs of a batch, tokens a_t and reward R

    loss = - pi_loss_hparam   64 / B sum_b sum_t (R - baseline_t) ln p(a_t)     the policy gradient
           - entropy_beta     64 / B sum_b sum_t H_t
           + vf_loss_hparam   64 / B sum_b sum_t (value_t - R)^2                if the baseline is a learned value
           - topk_loss_hparam 1 / K sum_k sum_t ln p(a_t)                       K programs drawn from the best `topk`
           + regularizer      sum of w^2 / 2 without the embedding

The baseline of each position is a running mean of the rewards, or a second network (advantage actor-critic). 64 is the
batch size of the paper, which sums where here means are taken. With pi_loss_hparam 0 the best programs alone teach.
With alpha > 0 a share of the batch is replayed and weighed by importance (`parts/replay.py`).

Where it differs from the original: the queue teaches nothing until there is something in it, the replay buffer is
bounded, and of a batch with replays only those programs are written that are executed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.common.optimizers import descend
from hpc_es.algorithms.common.strategy import Strategy
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Outcome, Poll, Results, Rows, State, cut
from hpc_es.core.errors import UserError
from hpc_es.core.interfaces import Needs, ProgramProblem
from hpc_es.core.keys import Purpose
from hpc_es.programs import best_programs
from hpc_es.programs.best_programs import UniquePriorityQueue
from hpc_es.programs.policy_gradient.loss import ProgramLoss, baseline_after
from hpc_es.programs.policy_gradient.options import TOKENS, Options
from hpc_es.programs.policy_gradient.token_lstm import END, TokenLSTM, Writing, lengths, write


def queue_nothing(capacity: int, length: int) -> dict[str, Array]:
    """Return an empty queue, as arrays: the best first."""
    return {
        "queue_tokens": np.zeros((capacity, length), np.uint8),
        "queue_rewards": np.zeros(capacity, np.float64),
        "queue_count": np.array(0, np.int64),
    }


def queue_after(
    arrays: Arrays,
    tokens: Array,
    rewards: Float64,
    ties: Literal["older", "newer"] = "older",
    unique: Literal["programs", "rewards"] = "programs",
) -> dict[str, Array]:
    """Return the queue after some more programs, uint8[programs, length], one after the other; NaN is no reward."""
    capacity, length = arrays["queue_tokens"].shape
    queue = UniquePriorityQueue(capacity, ties, "scores" if unique == "rewards" else "items")
    kept = range(int(arrays["queue_count"]))
    for place in kept if ties == "older" else reversed(kept):  # from the older ones of a reward to the newer
        queue.push(float(arrays["queue_rewards"][place]), arrays["queue_tokens"][place].tobytes())
    for row, reward in zip(tokens, rewards.tolist(), strict=True):
        if not math.isnan(reward):
            queue.push(reward, row.tobytes())
    after, entries = queue_nothing(capacity, length), queue.sorted_entries()
    if entries:
        scores, texts, _ = zip(*entries, strict=True)
        after["queue_rewards"][: len(entries)] = scores
        after["queue_tokens"][: len(entries)] = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, length)
    return {**after, "queue_count": np.array(len(entries), np.int64)}


def imitated(arrays: Arrays, draws: int, rng: np.random.Generator, noise: float = 0.0) -> dict[str, Array]:
    """Programs drawn from the queue, each as likely, with replacement; of length 0 while it is empty.

    With noise there is what is read in their place, too: each character is with this probability a random one. Like the
    word dropout of Bowman et al. 2016 (arXiv:1511.06349, section 3.1) it keeps what follows from hanging on each token.
    """
    count = int(arrays["queue_count"])
    places = rng.integers(count, size=draws) if count else np.zeros(draws, np.intp)
    tokens = arrays["queue_tokens"][places]
    drawn = {"imitated_tokens": tokens, "imitated_lengths": lengths(tokens) if count else np.zeros(draws, np.int32)}
    if noise:
        other = (rng.random(tokens.shape) < noise) & (tokens != END)
        drawn["imitated_read"] = np.where(other, rng.integers(1, TOKENS, tokens.shape, dtype=np.uint8), tokens)
    return drawn


NEEDS = Needs(searches="programs", gradients=True)
COLLAPSED = (
    "all programs of a batch are the same: the search has collapsed, and will hardly find another one "
    "(try algorithm.entropy_target: 10, or a larger entropy_beta)"
)
QUEUE_DRAW, REPLAY_DRAW = 0, 1  # indices of the keys of a generation


@dataclass(frozen=True)
class PolicyGradient(Strategy[None]):
    """The algorithm; every method is a pure function of its arguments, the options and the seed.

    A program is uint8[length], its tokens, then zeros. There is a queue if topk and topk_loss_hparam are not 0, and a
    replay buffer if alpha is not 0.

    State, shared:
        theta: float32[params]; weights of the network
        baseline: float64[length], if ema_baseline_decay is not 0; running mean of the rewards at each position
        entropy_beta: float64[], if entropy_target or entropy_beta_end is set; weight of the entropy
        imitated_tokens: uint8[topk_batch_size, length], if there is a queue; programs drawn from the queue
        imitated_lengths: int32[topk_batch_size], if there is a queue; their lengths; 0 while the queue is empty
        imitated_read: uint8[topk_batch_size, length], if topk_noise is not 0; these programs as the network reads them
        replay_names: uint64[replay_capacity], if there is a buffer; digests of the buffer's programs, rising
        replay_odds: float64[replay_capacity], if there is a buffer; probability that each of these is drawn
        replayed_tokens: uint8[replays, length], if there is a buffer; programs drawn from the buffer
        replayed_lengths: int32[replays], if there is a buffer; their lengths; 0 while the buffer is empty
        replayed_rewards: float64[replays], if there is a buffer; their rewards
    State, master:
        those of `hpc_es.algorithms.common.optimizers.initial_slots`
        those of `hpc_es.programs.best_programs.initial_arrays`
        restarts: int64[], if restart_programs is not 0; number of restarts
        queue_tokens: uint8[topk, length], if there is a queue; the best programs, the best first
        queue_rewards: float64[topk], if there is a queue; their rewards
        queue_count: int64[], if there is a queue; number of these
        replay_tokens: uint8[replay_capacity, length], if there is a buffer; the buffer, in the order of arrival
        replay_rewards: float64[replay_capacity], if there is a buffer; their rewards
        replay_names: uint64[replay_capacity], if there is a buffer; their digests, in the same order
        replay_count: int64[], if there is a buffer; number of these
        try_reward: float64[], if restart_programs is not 0; best reward since the last restart
        try_waited: int64[], if restart_programs is not 0; programs executed since it was reached
    """

    options: Options
    problem: ProgramProblem

    @cached_property
    def network(self) -> TokenLSTM:
        """The form of the network."""
        values = self.options.value_lstm_sizes if self.options.learns_values else ()
        size, length = self.options.obs_embedding_size, self.problem.length
        return TokenLSTM(self.options.policy_lstm_sizes, values, size, length, self.options.eos_token)

    @cached_property
    def lessons(self) -> ProgramLoss:
        """What a chunk's programs teach."""
        return ProgramLoss(self.options, self.network)

    def initial(self) -> State:
        """Random weights; the baseline is 0, the queue and the buffer are empty."""
        found: dict[str, Array] = best_programs.initial_arrays(self.problem.length)
        if self.options.restart_programs:
            found["restarts"] = np.array(0, np.int64)
        return self._begun(0, found)

    def _begun(self, generation: int, found: Arrays) -> State:
        """Nothing learned yet, in this or a later generation, where so much was found before."""
        options, length = self.options, self.problem.length
        rng = self.keys.generator(Purpose.INITIAL_PARAMETERS, generation)
        theta = self.network.initial(rng, options.param_init_factor)
        master = {**optimizers.initial_slots(options.optimizer.full(), theta.size), **found}
        if options.imitates:
            master |= queue_nothing(options.topk, length)
        if options.alpha:
            master |= self.lessons.replay.nothing()
        if options.restart_programs:
            master |= {"try_reward": np.array(-np.inf), "try_waited": np.array(0, np.int64)}
        return self._state(generation, theta, np.zeros(length), self.lessons.entropy.initial(), master)

    def _state(self, generation: int, theta: Array, baseline: Array, entropy: Arrays, master: Arrays) -> State:
        """With what this generation's chunks take from the queue and the buffer."""
        shared: dict[str, Array] = {"theta": theta, **entropy}
        if not self.options.learns_values:
            shared["baseline"] = baseline
        if self.options.imitates:
            rng = self.keys.generator(Purpose.REPLAY, generation, QUEUE_DRAW)
            shared |= imitated(master, self.options.topk_batch_size, rng, self.options.topk_noise)
        if self.options.alpha:
            rng = self.keys.generator(Purpose.REPLAY, generation, REPLAY_DRAW)
            shared |= self.lessons.replayed(master, rng)
        return State(generation, shared, master)

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the programs of a batch that are to be written; a generation has one round."""
        jobs, size = self._cut(state)
        return [] if round else cut(jobs, size)

    def _cut(self, state: State) -> tuple[int, int]:
        """Return how many programs are to be written, and how many of them a chunk has at most."""
        batch = self.options.batch_size
        jobs = batch - (self.options.replays if self.lessons.replays(state.shared) else 0)
        chunks = 1 if self.options.updates == "asynchronous" else -(-batch // self.chunk_size)
        return jobs, -(-jobs // chunks)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Write programs, execute them, and differentiate this chunk's share of the loss."""
        since = time.perf_counter()
        jobs, size = self._cut(state)
        place, chunks = chunk.first_job % jobs // size, -(-jobs // size)
        given, noisy = (
            self.lessons.given(state.shared, place, chunks),
            self.options.imitates and self.options.topk_noise,
        )
        read = self.lessons.given(state.shared, place, chunks, "imitated_read") if noisy else None
        writing = self.written(state, chunk, given, read)
        seconds = {"policy": time.perf_counter() - since}
        programs = self._texts(writing.tokens[: chunk.jobs])
        outcome = self.problem.evaluate(programs, self.jobs(state, chunk), poll)
        arrays = self.lessons.learned(state.shared, writing, outcome.rows["return_"], place, chunks)
        return Outcome(outcome.rows, arrays, {**outcome.seconds, **seconds})

    def written(self, state: State, chunk: Chunk, given: Array | None = None, read: Array | None = None) -> Writing:
        """Write a chunk's programs, and read those given; a program's random numbers belong to its job."""
        numbers = [
            self.keys.borrowed(Purpose.POLICY_SAMPLING, state.generation, job).random(self.network.length)
            for job in chunk.job_numbers
        ]
        options = self.options
        return write(
            self.network, state.theta, np.stack(numbers), options.softmax_tr, given, read, options.writing_noise
        )

    def _texts(self, tokens: Array) -> list[str]:
        """Return the programs of [rows, length], with a `_` for the token that ends them."""
        table = np.frombuffer(f"_{self.problem.alphabet}".encode("ascii"), np.uint8)
        whole, length, reached = table[tokens].tobytes().decode("ascii"), tokens.shape[1], lengths(tokens).tolist()
        return [whole[row * length : row * length + reached[row]] for row in range(len(tokens))]

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Return a step along the gradient; then baseline, queue and buffer take this batch in."""
        chunks, rewards = results.chunk_arrays, results.rows["return_"].astype(np.float64)
        tokens = np.concatenate([arrays["tokens"] for arrays in chunks])
        so_far = best_programs.update(
            state.master, results.rows, rewards, lambda job: self._texts(tokens[job : job + 1])[0]
        )
        fine = ~np.isnan(rewards)
        if not fine.any():
            return self._unmoved(state, so_far), best_programs.metrics(so_far)
        tokens, rewards = tokens[fine], rewards[fine]
        gradients, losses = self.lessons.gradients(state.theta, chunks)
        descent = descend(
            self.options.optimizer.full(), state.theta, state.master, gradients, self.options.grad_clip_threshold
        )
        master = {**state.master, **so_far, **descent.slots}
        if self.options.imitates:
            best = int(rewards.argmax())
            offered = slice(best, best + 1) if self.options.topk_offered == "best" else slice(None)
            ties, unique = self.options.topk_ties, self.options.topk_unique
            master |= queue_after(master, tokens[offered], rewards[offered], ties, unique)
        if self.options.alpha:
            master |= self.lessons.replay.added(master, tokens, rewards)
        entropy = self.lessons.entropy.after(state.shared, losses["program_entropy"], int(so_far["executed"]))
        baseline = self._baseline(state, chunks, rewards, tokens)
        measured = {
            "distinct_programs": float(_distinct(chunks)),
            "entropy_beta": self.lessons.entropy.of(state.shared),
        }
        if self.options.restart_programs:
            master |= _waited(master, rewards)
            measured["restarts"] = float(master["restarts"])
        if self._is_stuck(master):
            following = self._begun(state.generation + 1, {**so_far, "restarts": master["restarts"] + np.int64(1)})
        else:
            following = self._state(state.generation + 1, descent.theta, baseline, entropy, master)
        return following, {**descent.metrics, **losses, **measured, **best_programs.metrics(so_far)}

    def _unmoved(self, state: State, so_far: Arrays) -> State:
        """Return the state after a batch of which every program has failed."""
        baseline = np.zeros(0) if self.options.learns_values else state.shared["baseline"]
        entropy = {name: state.shared[name] for name in self.lessons.entropy.initial()}
        return self._state(state.generation + 1, state.theta, baseline, entropy, {**state.master, **so_far})

    def with_samples(self) -> PolicyGradient:
        """Return the algorithm: its chunks have their programs in any case."""
        return self

    def sample(self, results: Results[None]) -> Arrays:
        """Return the programs of the batch, tokens uint8[programs, length], and their rewards, float64[programs]."""
        tokens = np.concatenate([arrays["tokens"] for arrays in results.chunk_arrays])
        return {"tokens": tokens, "rewards": results.rows["return_"].astype(np.float64)}

    def losses(self, state: State, results: Results[None]) -> Mapping[str, float]:
        """Return the terms of the loss as the metrics have them, and loss, with what is replayed and imitated.

        Nothing where every program failed.
        """
        if np.isnan(results.rows["return_"]).all():
            return {}
        _, losses = self.lessons.gradients(state.theta, results.chunk_arrays)
        return self.lessons.with_total(state.theta, state.shared, losses)

    def sample_losses(self, state: State, sample: Arrays) -> Mapping[str, float]:
        """Return the same of programs; nothing is replayed or imitated."""
        if missing := [name for name in ("tokens", "rewards") if name not in sample]:
            raise UserError(f"the sample has no {missing[0]!r}: expected one as after_train_step gets it")
        losses = self.lessons.of_programs(state.theta, state.shared, sample["tokens"], sample["rewards"])
        return self.lessons.with_total(state.theta, state.shared, losses)

    def _is_stuck(self, master: Arrays) -> bool:
        """Return whether it is to begin anew."""
        wait = self.options.restart_programs
        return wait > 0 and int(master["try_waited"]) >= wait

    def notices(self, state: State, results: Results[None], after: State) -> Sequence[str]:
        """Return that all programs of the batch are the same."""
        return [COLLAPSED] if _distinct(results.chunk_arrays) == 1 < len(results.rows) else []

    def solutions(self, state: State, results: Results[None]) -> Sequence[Mapping[str, Any]]:
        """Return the correct programs of the batch."""
        tokens = np.concatenate([arrays["tokens"] for arrays in results.chunk_arrays])
        return best_programs.solutions(state, results.rows, lambda job: self._texts(tokens[job : job + 1])[0])

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
        """Return a correct program, where that is enough."""
        return best_programs.finished(state.master, self.options.stop_on_success)

    def summary(self, state: State) -> Mapping[str, Any]:
        """Return the programs found, and how many updates were made."""
        return {**best_programs.summary(state.master), "updates": state.generation}


def _waited(master: Arrays, rewards: Array) -> dict[str, Array]:
    """The best reward since the last restart, and how many programs were executed after the batch that had it."""
    best = float(rewards.max())
    if best > master["try_reward"]:
        return {"try_reward": np.array(best), "try_waited": np.array(0, np.int64)}
    return {"try_waited": np.asarray(master["try_waited"] + np.int64(len(rewards)))}


def _distinct(chunks: Sequence[Arrays]) -> int:
    """How many different programs a batch has."""
    return len({row.tobytes() for arrays in chunks for row in arrays["tokens"]})


build = PolicyGradient
