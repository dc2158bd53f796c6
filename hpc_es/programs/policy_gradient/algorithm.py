"""Policy gradient (REINFORCE) and priority queue training for programs.

Abolafia et al. 2018, arXiv:1801.03526. An LSTM writes programs token by token (`token_lstm.py`).
For a batch of B programs with tokens a_t and rewards R,

    loss = - pi_loss_hparam   64 / B sum_b sum_t (R - baseline_t) ln p(a_t)     policy gradient
           - entropy_beta     64 / B sum_b sum_t H_t
           + vf_loss_hparam   64 / B sum_b sum_t (value_t - R)^2  if the baseline is learned
           - topk_loss_hparam 1 / K sum_k sum_t ln p(a_t)  K of the best `topk` programs
           + regularizer      sum of w^2 / 2 without the embedding

The baseline of each position is a running mean of the rewards, or a second network (advantage
actor-critic). 64 is the batch size of the paper, which sums over the batch where means are used
here. With pi_loss_hparam 0, only the best programs are learned from. With alpha > 0, a fraction of
the batch is replayed with importance weights (`loss.py`).

Differences from the original: the queue has no effect until it contains a program, the replay
buffer is bounded, and of a batch with replays only the programs that are executed are sampled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.core.data import (
    Array,
    Arrays,
    Chunk,
    Float32,
    Float64,
    Json,
    Outcome,
    Poll,
    Results,
    Rows,
    State,
    cut,
)
from hpc_es.core.declarations import Metric, Needs, with_asynchronous_updates
from hpc_es.core.errors import UserError
from hpc_es.core.interfaces import ProgramProblem
from hpc_es.core.keys import Purpose
from hpc_es.extend import BaseStrategy, optimizers
from hpc_es.extend.optimizers import descend, total_gradient
from hpc_es.programs import best_programs
from hpc_es.programs.best_programs import UniquePriorityQueue
from hpc_es.programs.extension import ProgramPurpose
from hpc_es.programs.policy_gradient.loss import ProgramLoss, updated_baseline
from hpc_es.programs.policy_gradient.options import TOKENS, Options
from hpc_es.programs.policy_gradient.token_lstm import (
    END,
    ForwardPass,
    TokenLSTM,
    lengths,
    sample_programs,
)


def empty_queue(capacity: int, length: int) -> dict[str, Array]:
    """Return the arrays of an empty queue of programs, best first."""
    return {
        "queue_tokens": np.zeros((capacity, length), np.uint8),
        "queue_rewards": np.zeros(capacity, np.float64),
        "queue_count": np.array(0, np.int64),
    }


def updated_queue(
    arrays: Arrays,
    tokens: Array,
    rewards: Float64,
    ties: Literal["older", "newer"] = "older",
    unique: Literal["programs", "rewards"] = "programs",
) -> dict[str, Array]:
    """Return the queue after adding uint8[programs, length] with rewards, in order.

    Rewards are float64[programs], without NaN.
    """
    capacity, length = arrays["queue_tokens"].shape
    queue = UniquePriorityQueue(capacity, ties, "scores" if unique == "rewards" else "items")
    indices = range(int(arrays["queue_count"]))
    # older programs of equal rewards first
    for index in indices if ties == "older" else reversed(indices):
        queue.push(float(arrays["queue_rewards"][index]), arrays["queue_tokens"][index].tobytes())
    for row, reward in zip(tokens, rewards.tolist(), strict=True):
        if not math.isnan(reward):
            queue.push(reward, row.tobytes())
    result, entries = empty_queue(capacity, length), queue.sorted_entries()
    if entries:
        scores, texts, _ = zip(*entries, strict=True)
        result["queue_rewards"][: len(entries)] = scores
        result["queue_tokens"][: len(entries)] = np.frombuffer(b"".join(texts), np.uint8).reshape(
            -1, length
        )
    return {**result, "queue_count": np.array(len(entries), np.int64)}


def draw_imitated(
    arrays: Arrays, size: int, rng: np.random.Generator, noise: float = 0.0
) -> dict[str, Array]:
    """Return programs sampled uniformly from the queue, and their lengths.

    They are sampled with replacement; lengths are 0 while the queue is empty. With noise, also
    return their input tokens, in which each character is replaced by a random one with this
    probability. Like word dropout (Bowman et al. 2016, arXiv:1511.06349, section 3.1), it makes
    predictions less dependent on single tokens.
    """
    count = int(arrays["queue_count"])
    indices = rng.integers(count, size=size) if count else np.zeros(size, np.intp)
    tokens = arrays["queue_tokens"][indices]
    result = {
        "imitated_tokens": tokens,
        "imitated_lengths": lengths(tokens) if count else np.zeros(size, np.int32),
    }
    if noise:
        is_replaced = (rng.random(tokens.shape) < noise) & (tokens != END)
        result["imitated_read"] = np.where(
            is_replaced, rng.integers(1, TOKENS, tokens.shape, dtype=np.uint8), tokens
        )
    return result


NEEDS = Needs(
    searches="programs",
    gradients=True,
    metrics={
        "token_entropy": Metric("entropy per token", is_log=True, short="entropy"),
        "distinct_programs": Metric("distinct programs per batch", is_log=True, short="distinct"),
    },
)
COLLAPSED = (
    "all programs of a batch are equal: the search has collapsed and is unlikely to find another one "
    "(try algorithm.entropy_target: 10, or a larger entropy_beta)"
)
QUEUE_KEY, REPLAY_KEY = 0, 1  # indices of the random numbers of a generation


@dataclass(frozen=True)
class PolicyGradient(BaseStrategy[None]):
    """Policy gradient and priority queue training.

    A program is uint8[length], its tokens, padded with 0. There is a queue if topk and
    topk_loss_hparam are not 0, and a replay buffer if alpha is not 0.

    State, shared:
        theta: float32[params]; weights of the network
        baseline: float64[length], if ema_baseline_decay is not 0; running mean of the rewards at
            each position
        entropy_beta: float64[], if entropy_target or entropy_beta_end is set; weight of the entropy
        imitated_tokens: uint8[topk_batch_size, length], if there is a queue; programs sampled from
            the queue
        imitated_lengths: int32[topk_batch_size], if there is a queue; their lengths; 0 while the
            queue is empty
        imitated_read: uint8[topk_batch_size, length], if topk_noise is not 0; input tokens of these
            programs
        replay_names: uint64[replay_capacity], if there is a buffer; digests of the buffer's
            programs, ascending
        replay_odds: float64[replay_capacity], if there is a buffer; probability that each of these
            is sampled
        replayed_tokens: uint8[replays, length], if there is a buffer; programs sampled from the
            buffer
        replayed_lengths: int32[replays], if there is a buffer; their lengths; 0 while the buffer is
            empty
        replayed_rewards: float64[replays], if there is a buffer; their rewards
    State, master:
        those of `hpc_es.algorithms.common.optimizers.initial_slots`
        those of `hpc_es.programs.best_programs.initial_arrays`
        restarts: int64[], if restart_programs is not 0; number of restarts
        queue_tokens: uint8[topk, length], if there is a queue; the best programs, best first
        queue_rewards: float64[topk], if there is a queue; their rewards
        queue_count: int64[], if there is a queue; their number
        replay_tokens: uint8[replay_capacity, length], if there is a buffer; the buffer, in the
            order of arrival
        replay_rewards: float64[replay_capacity], if there is a buffer; their rewards
        replay_names: uint64[replay_capacity], if there is a buffer; their digests, in the same
            order
        replay_count: int64[], if there is a buffer; their number
        try_reward: float64[], if restart_programs is not 0; best reward since the last restart
        try_waited: int64[], if restart_programs is not 0; number of programs executed since it was
            reached
    """

    options: Options
    problem: ProgramProblem

    @cached_property
    def network(self) -> TokenLSTM:
        """The architecture of the network."""
        values = self.options.value_lstm_sizes if self.options.learns_values else ()
        size, length = self.options.obs_embedding_size, self.problem.length
        return TokenLSTM(
            self.options.policy_lstm_sizes, values, size, length, self.options.eos_token
        )

    @cached_property
    def loss(self) -> ProgramLoss:
        """The loss of a batch."""
        return ProgramLoss(self.options, self.network)

    def initial(self) -> State:
        """Return random weights, a baseline of 0, and an empty queue and buffer."""
        best: dict[str, Array] = best_programs.initial_arrays(self.problem.length)
        if self.options.restart_programs:
            best["restarts"] = np.array(0, np.int64)
        return self._restarted(0, best)

    def _restarted(self, generation: int, best: Arrays) -> State:
        """Return new weights, queue and buffer in this generation.

        The best programs so far are kept.
        """
        options, length = self.options, self.problem.length
        rng = self.keys.generator(Purpose.INITIAL_PARAMETERS, generation)
        theta = self.network.initial(rng, options.param_init_factor)
        master = {**optimizers.initial_slots(options.optimizer.full(), theta.size), **best}
        if options.imitates:
            master |= empty_queue(options.topk, length)
        if options.alpha:
            master |= self.loss.replay.empty()
        if options.restart_programs:
            master |= {"try_reward": np.array(-np.inf), "try_waited": np.array(0, np.int64)}
        return self._state(generation, theta, np.zeros(length), self.loss.entropy.initial(), master)

    def _state(
        self, generation: int, theta: Array, baseline: Array, entropy: Arrays, master: Arrays
    ) -> State:
        """Return the state of this generation.

        It has the programs that the generation samples from the queue and the buffer.
        """
        shared: dict[str, Array] = {"theta": theta, **entropy}
        if not self.options.learns_values:
            shared["baseline"] = baseline
        if self.options.imitates:
            rng = self.keys.generator(ProgramPurpose.REPLAY, generation, QUEUE_KEY)
            shared |= draw_imitated(
                master, self.options.topk_batch_size, rng, self.options.topk_noise
            )
        if self.options.alpha:
            rng = self.keys.generator(ProgramPurpose.REPLAY, generation, REPLAY_KEY)
            shared |= self.loss.sample_replays(master, rng)
        return State(generation, shared, master)

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return one round with the programs of the batch that are not replayed."""
        jobs, size = self._jobs_and_chunk_size(state)
        return [] if round else cut(jobs, size)

    def _jobs_and_chunk_size(self, state: State) -> tuple[int, int]:
        """Return the number of programs to sample, and the maximum number per chunk."""
        batch = self.options.batch_size
        jobs = batch - (self.options.replays if self.loss.has_replays(state.shared) else 0)
        chunks = 1 if self.options.updates == "asynchronous" else -(-batch // self.chunk_size)
        return jobs, -(-jobs // chunks)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Sample and execute programs, and compute the gradient of this chunk's share."""
        start = time.perf_counter()
        jobs, size = self._jobs_and_chunk_size(state)
        index, chunks = chunk.first_job % jobs // size, -(-jobs // size)
        forced, forced_inputs = self.loss.forced_tokens(state.shared, index, chunks), None
        if self.options.imitates and self.options.topk_noise:
            forced_inputs = self.loss.forced_tokens(state.shared, index, chunks, "imitated_read")
        forward = self.sampled(state, chunk, forced, forced_inputs)
        seconds = {"policy": time.perf_counter() - start}
        programs = self._texts(forward.tokens[: chunk.jobs])
        outcome = self.problem.evaluate(programs, self.jobs(state, chunk), poll)
        arrays = self.loss.chunk_arrays(
            state.shared, forward, outcome.rows["return_"], index, chunks
        )
        return Outcome(outcome.rows, arrays, {**outcome.seconds, **seconds})

    def sampled(
        self,
        state: State,
        chunk: Chunk,
        forced: Array | None = None,
        forced_inputs: Array | None = None,
    ) -> ForwardPass:
        """Sample the programs of a chunk, and read uint8[forced, length].

        The random numbers are those of their jobs.
        """
        numbers = [
            self.keys.borrowed(Purpose.POLICY_SAMPLING, state.generation, job).random(
                self.network.length
            )
            for job in chunk.job_numbers
        ]
        sharpness, noise = self.options.softmax_tr, self.options.writing_noise
        return sample_programs(
            self.network, state.theta, np.stack(numbers), sharpness, forced, forced_inputs, noise
        )

    def _texts(self, tokens: Array) -> list[str]:
        """Return the texts of programs, uint8[rows, length], with `_` for the end token."""
        table = np.frombuffer(f"_{self.problem.alphabet}".encode("ascii"), np.uint8)
        text, length, counts = (
            table[tokens].tobytes().decode("ascii"),
            tokens.shape[1],
            lengths(tokens).tolist(),
        )
        return [text[row * length : row * length + counts[row]] for row in range(len(tokens))]

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Take an optimizer step, then update baseline, queue and buffer with this batch."""
        chunks, rewards = results.chunk_arrays, results.rows["return_"].astype(np.float64)
        tokens = np.concatenate([arrays["tokens"] for arrays in chunks])
        best = self._best_arrays(state, results, tokens)
        succeeded = ~np.isnan(rewards)
        if not succeeded.any():
            return self._without_update(state, best), best_programs.metrics(best)
        tokens, rewards = tokens[succeeded], rewards[succeeded]
        gradients, losses = self.loss.gradients(state.theta, chunks)
        descent = descend(
            self.options.optimizer.full(),
            state.theta,
            state.master,
            gradients,
            self.options.grad_clip_threshold,
        )
        master = {**state.master, **best, **descent.slots}
        if self.options.imitates:
            index = int(rewards.argmax())
            offered = (
                slice(index, index + 1) if self.options.topk_offered == "best" else slice(None)
            )
            ties, unique = self.options.topk_ties, self.options.topk_unique
            master |= updated_queue(master, tokens[offered], rewards[offered], ties, unique)
        if self.options.alpha:
            master |= self.loss.replay.with_programs(master, tokens, rewards)
        entropy = self.loss.entropy.next(
            state.shared, losses["program_entropy"], int(best["executed"])
        )
        baseline = self._baseline(state, chunks, rewards, tokens)
        metrics = {
            "distinct_programs": float(_distinct(chunks)),
            "entropy_beta": self.loss.entropy.value(state.shared),
        }
        if self.options.restart_programs:
            master |= _progress(master, rewards)
            metrics["restarts"] = float(master["restarts"])
        wait = self.options.restart_programs
        if wait > 0 and int(master["try_waited"]) >= wait:
            after = self._restarted(
                state.generation + 1, {**best, "restarts": master["restarts"] + np.int64(1)}
            )
        else:
            after = self._state(state.generation + 1, descent.theta, baseline, entropy, master)
        losses = self.loss.with_total(state.theta, state.shared, losses)
        return after, {**descent.metrics, **losses, **metrics, **best_programs.metrics(best)}

    def recorded(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Update the best and the first correct program with those of the first part of a batch."""
        tokens = np.concatenate([arrays["tokens"] for arrays in results.chunk_arrays])
        best = self._best_arrays(state, results, tokens)
        return replace(state, master={**state.master, **best}), best_programs.metrics(best)

    def _best_arrays(self, state: State, results: Results[None], tokens: Array) -> dict[str, Array]:
        rewards = results.rows["return_"].astype(np.float64)
        return best_programs.update(
            state.master, results.rows, rewards, lambda job: self._texts(tokens[job : job + 1])[0]
        )

    def _without_update(self, state: State, best: Arrays) -> State:
        """Return the state after a batch in which every program has failed."""
        baseline = np.zeros(0) if self.options.learns_values else state.shared["baseline"]
        entropy = {name: state.shared[name] for name in self.loss.entropy.initial()}
        return self._state(
            state.generation + 1, state.theta, baseline, entropy, {**state.master, **best}
        )

    def with_samples(self) -> PolicyGradient:
        """Return the algorithm itself: chunks always return their programs."""
        return self

    def sample(self, results: Results[None]) -> Arrays:
        """Return the tokens of the batch's programs, and their rewards.

        They are uint8[programs, length] and float64[programs].
        """
        tokens = np.concatenate([arrays["tokens"] for arrays in results.chunk_arrays])
        return {"tokens": tokens, "rewards": results.rows["return_"].astype(np.float64)}

    def gradient(self, state: State, results: Results[None]) -> Float32:
        """Return the gradient of the loss, with replayed and imitated programs.

        It is 0 if every program failed.
        """
        succeeded = bool((~np.isnan(results.rows["return_"])).any())
        gradients = self.loss.gradients(state.theta, results.chunk_arrays)[0] if succeeded else []
        return total_gradient(state.theta, gradients)

    def losses(self, state: State, results: Results[None]) -> Mapping[str, float]:
        """Return the loss terms as in the metrics, and loss.

        They include replayed and imitated programs. {} if every program failed.
        """
        if np.isnan(results.rows["return_"]).all():
            return {}
        _, losses = self.loss.gradients(state.theta, results.chunk_arrays)
        return self.loss.with_total(state.theta, state.shared, losses)

    def sample_losses(self, state: State, sample: Arrays) -> Mapping[str, float]:
        """Return the losses of a sample, without replay and imitation.

        Raises:
            UserError: it is incomplete.
        """
        if missing := [name for name in ("tokens", "rewards") if name not in sample]:
            raise UserError(
                f"the sample has no {missing[0]!r}: expected one as after_train_step gets it"
            )
        losses = self.loss.losses_of_programs(
            state.theta, state.shared, sample["tokens"], sample["rewards"]
        )
        return self.loss.with_total(state.theta, state.shared, losses)

    def notices(self, state: State, results: Results[None], after: State) -> Sequence[str]:
        """Return a warning if all programs of the batch are equal."""
        return [COLLAPSED] if _distinct(results.chunk_arrays) == 1 < len(results.rows) else []

    def solutions(self, state: State, results: Results[None]) -> Sequence[Mapping[str, Json]]:
        """Return the correct programs of the batch."""
        tokens = np.concatenate([arrays["tokens"] for arrays in results.chunk_arrays])
        return best_programs.solutions(
            state, results.rows, lambda job: self._texts(tokens[job : job + 1])[0]
        )

    def _baseline(
        self, state: State, chunks: Sequence[Arrays], rewards: Array, tokens: Array
    ) -> Array:
        """Return the running mean after the replayed programs, then those of this batch.

        It is float64[length].
        """
        if self.options.learns_values:
            return np.zeros(0)
        counts = lengths(tokens)
        if self.options.alpha:
            rewards = np.concatenate([*(arrays["replayed_rewards"] for arrays in chunks), rewards])
            counts = np.concatenate([*(arrays["replayed_lengths"] for arrays in chunks), counts])
        return updated_baseline(
            state.shared["baseline"], rewards, counts, self.options.ema_baseline_decay
        )

    def finished(self, state: State) -> str | None:
        """Return "a correct program" if the search stops on success."""
        return best_programs.finished(state.master, self.options.stop_on_success)

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return the best and the first correct program, and the number of updates."""
        return {**best_programs.summary(state.master), "updates": state.generation}


def _progress(master: Arrays, rewards: Array) -> dict[str, Array]:
    """Return the best reward since the last restart, and how many programs were executed.

    The latter is counted since the batch of that reward.
    """
    reward = float(rewards.max())
    if reward > master["try_reward"]:
        return {"try_reward": np.array(reward), "try_waited": np.array(0, np.int64)}
    return {"try_waited": np.asarray(master["try_waited"] + np.int64(len(rewards)))}


def _distinct(chunks: Sequence[Arrays]) -> int:
    """Return the number of distinct programs of a batch."""
    return len({row.tobytes() for arrays in chunks for row in arrays["tokens"]})


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    return with_asynchronous_updates(NEEDS) if options.updates == "asynchronous" else NEEDS


build = PolicyGradient
