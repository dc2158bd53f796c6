"""The loss of a batch of programs: replay buffer, entropy weight and gradient.

A chunk computes the gradient of its share of the loss, for its own programs, a part of the replayed
programs and, in the first chunk, the programs imitated from the queue.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hpc_es.core.data import Array, Arrays, Float32, Float64
from hpc_es.extend.optimizers import GRADIENT
from hpc_es.programs.policy_gradient.options import TOKENS, Options
from hpc_es.programs.policy_gradient.token_lstm import (
    ForwardPass,
    TokenLSTM,
    lengths,
    sample_programs,
)


@dataclass(frozen=True)
class ReplayBuffer:
    """A replay buffer of programs, as arrays of constant shape in the order of arrival.

    Abolafia et al. 2018. Programs are sampled with probabilities proportional to exp(reward /
    temperature). Each program is in the buffer only once. A full buffer drops the programs with the
    lowest rewards; of equal ones, the newer.
    """

    capacity: int  # maximum number of programs
    length: int  # maximum number of tokens of a program
    temperature: float

    def empty(self) -> dict[str, Array]:
        """Return the arrays of an empty buffer."""
        return {
            "replay_tokens": np.zeros((self.capacity, self.length), np.uint8),
            "replay_rewards": np.zeros(self.capacity, np.float64),
            "replay_names": np.zeros(self.capacity, np.uint64),
            "replay_count": np.array(0, np.int64),
        }

    def with_programs(self, buffer: Arrays, tokens: Array, rewards: Float64) -> dict[str, Array]:
        """Return the buffer with further programs and rewards.

        They are uint8[programs, length] and float64[programs]. Programs that are already in the
        buffer keep their rewards.
        """
        count = int(buffer["replay_count"])
        new_names = digests(tokens)
        fresh = first_occurrences(new_names)
        fresh = fresh[~np.isin(new_names[fresh], buffer["replay_names"][:count])]
        columns = {"replay_tokens": tokens, "replay_rewards": rewards, "replay_names": new_names}
        longer = {
            name: np.concatenate([buffer[name][:count], new[fresh]])
            for name, new in columns.items()
        }
        kept = np.sort(np.argsort(-longer["replay_rewards"], kind="stable")[: self.capacity])
        result = self.empty()
        for name, column in longer.items():
            result[name][: len(kept)] = column[kept]
        return {**result, "replay_count": np.array(len(kept), np.int64)}

    def probabilities(self, buffer: Arrays) -> Float64:
        """Return the probability that each program is sampled, float64[count]."""
        rewards = buffer["replay_rewards"][: int(buffer["replay_count"])]
        weights = np.exp((rewards - rewards.max(initial=-np.inf)) / self.temperature)
        odds: Float64 = weights / weights.sum()
        return odds

    def sample(self, buffer: Arrays, size: int, rng: np.random.Generator) -> Array:
        """Return the indices of programs sampled with replacement, intp[size].

        The buffer must not be empty.
        """
        sums = np.cumsum(self.probabilities(buffer))
        indices: Array = np.searchsorted(sums[:-1], rng.random(size) * sums[-1], side="right")
        return indices


def digests(tokens: Array) -> Array:
    """Return 64-bit digests that identify programs, uint64[rows], from uint8[rows, length]."""
    values = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in tokens)
    return np.frombuffer(b"".join(values), "<u8").astype(np.uint64)


def first_occurrences(values: Array) -> Array:
    """Return the index of the first occurrence of each value, ascending, intp[distinct values]."""
    indices: Array = np.sort(np.unique(values, return_index=True)[1])
    return indices


MAX_ENTROPY_WEIGHT = 100.0  # with entropy_target


@dataclass(frozen=True)
class EntropyWeight:
    """The weight of the entropy: constant, interpolated, or adapted to a target.

    It is interpolated over the executed programs. With a target entropy, the weight rises while the
    entropy is below it and falls while it is above, like the temperature of soft actor-critic
    (Haarnoja et al. 2018, arXiv:1812.05905, section 5), but not below `entropy_beta`, so that it
    can rise soon after a period of high entropy:

        beta <- max(entropy_beta, beta * exp(entropy_rate * (1 - entropy / entropy_target)))

    The entropy is that of a program, the sum over its tokens; the entropy per token can also be
    high for the few short programs. A weight that is not constant is stored in the state as
    `entropy_beta`.
    """

    options: Options

    @property
    def is_constant(self) -> bool:
        """Whether neither a target nor a final weight is set."""
        return self.options.entropy_target is None and self.options.entropy_beta_end is None

    def initial(self) -> dict[str, Array]:
        """Return the arrays of the first generation."""
        return (
            {}
            if self.is_constant
            else {"entropy_beta": np.array(self.options.entropy_beta, np.float64)}
        )

    def value(self, shared: Arrays) -> float:
        """Return the weight in the generation with these shared arrays."""
        return self.options.entropy_beta if self.is_constant else float(shared["entropy_beta"])

    def next(self, shared: Arrays, entropy: float, executed: int) -> dict[str, Array]:
        """Return the arrays of the next generation.

        The mean entropy of this one and the programs executed are given.
        """
        options = self.options
        if self.is_constant:
            return {}
        if options.entropy_target is not None:
            change = math.exp(options.entropy_rate * (1 - entropy / options.entropy_target))
            beta = min(max(self.value(shared) * change, options.entropy_beta), MAX_ENTROPY_WEIGHT)
        else:
            assert options.entropy_beta_end is not None
            fraction = min(executed / options.entropy_programs, 1.0)
            beta = (1 - fraction) * options.entropy_beta + fraction * options.entropy_beta_end
        return {"entropy_beta": np.array(beta, np.float64)}


class ProgramBatch(NamedTuple):
    """Coefficients of the loss for the programs of a pass; `dtype` is that of theta.

    loss = sum over rows ( - policy * w * sum_t (returns_t - rewarded * value_t) log p(token_t)
                           - entropy * sum_t H_t  +  value * sum_t (value_t - returns_t)^2 )

    The importance weight w is 1 / (1 - a + a q / p) for rewarded rows and 1 for others, where a is
    the fraction of replayed programs, q the probability that a program is replayed, and p its
    probability under the policy. Values are 0 in a network without values.
    """

    lengths: Array  # int32[rows]; 0: no loss
    returns: Array  # dtype[rows, length], return of each step
    rewarded: Array  # dtype[rows], 1 for sampled and replayed programs, 0 for imitated ones
    policy: Array  # dtype[rows]
    entropy: Array  # dtype[rows]
    value: Array  # dtype[rows]
    log_replayed: Array | None = None  # float64[rows], ln q, -inf if q is 0; None without replay


class LossTerms(NamedTuple):
    """Gradient and terms of the loss of a batch."""

    # dtype[1, params], or [2, params]: policy term of the rewarded rows, then the rest
    gradients: Array
    policy: Array  # dtype[rows], w * sum_t (returns_t - value_t) log p(token_t)
    entropy: Array  # dtype[rows], sum_t H_t
    value: Array  # dtype[rows], sum_t (value_t - returns_t)^2
    log_probability: Array  # dtype[rows], log probability of the program
    w: Array  # dtype[rows], importance weights


def loss_gradient(
    forward: ForwardPass,
    batch: ProgramBatch,
    replayed_fraction: float = 0.0,
    separate: bool = False,
) -> LossTerms:
    """Return the gradient of the loss and its terms.

    With `separate`, the gradient of the policy term of the rewarded rows is returned separately.
    """
    steps, dtype = forward.steps, forward.logits.dtype
    mask = (np.arange(steps)[:, np.newaxis] < batch.lengths).astype(dtype)
    returns = np.ascontiguousarray(batch.returns.T[:steps])
    log_all = _log_softmax(forward.logits)
    p_all = np.exp(log_all)
    chosen = _one_hot_tokens(forward, dtype)
    log_p, entropy = mask * (chosen * log_all).sum(axis=1), -mask * (p_all * log_all).sum(axis=1)
    values = _values(forward)
    error, probability = mask * (values - returns), log_p.sum(axis=0)
    w = _importance_weights(batch, probability, replayed_fraction).astype(dtype)
    advantages = returns - batch.rewarded * values
    terms = LossTerms(
        gradients=np.zeros(0, dtype),
        policy=w * (advantages * log_p).sum(axis=0),
        entropy=entropy.sum(axis=0),
        value=batch.rewarded * (error**2).sum(axis=0),
        log_probability=probability,
        w=w,
    )
    by_log_p = (-batch.policy * w * mask * advantages)[:, np.newaxis] * (chosen - p_all)
    rest = (batch.entropy * mask)[:, np.newaxis] * p_all * (log_all + entropy[:, np.newaxis])
    by_value = 2 * batch.value * batch.rewarded * error
    if not separate:
        rows = _contributing_rows(batch)
        gradient = _gradient(forward, rows, (by_log_p + rest)[..., rows], by_value[:, rows])
        return terms._replace(gradients=gradient[np.newaxis])
    rewarded, imitated = batch.rewarded * by_log_p, (1 - batch.rewarded) * by_log_p
    rows = slice(0, len(batch.lengths))
    first = _gradient(forward, rows, rewarded, 0 * by_value)
    second = _gradient(forward, rows, imitated + rest, by_value)
    return terms._replace(gradients=np.stack([first, second]))


def _contributing_rows(batch: ProgramBatch) -> slice:
    """Return the rows from the first to the last one with a coefficient that is not 0.

    The others have no gradient.
    """
    indices = np.flatnonzero((batch.policy != 0) | (batch.entropy != 0) | (batch.value != 0))
    return slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 0)


def _log_softmax(logits: Array) -> Array:
    """Return log probabilities, [steps, tokens, rows], from logits of this shape."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_all: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_all


def _one_hot_tokens(forward: ForwardPass, dtype: np.dtype[np.generic]) -> Array:
    """Return the tokens of the programs as one-hot vectors, [steps, tokens, rows]."""
    tokens = forward.tokens.T[: forward.steps].astype(np.int64) - forward.network.first_token
    chosen: Array = (
        tokens[:, np.newaxis] == np.arange(forward.logits.shape[1])[:, np.newaxis]
    ).astype(dtype)
    return chosen


def _importance_weights(batch: ProgramBatch, log_p: Array, replayed_fraction: float) -> Array:
    """Return w of each row, [rows]; computed in float64, since p can be too small for float32."""
    if batch.log_replayed is None:
        return np.ones_like(log_p)
    log_ratio = np.log(replayed_fraction) + batch.log_replayed - log_p.astype(np.float64)
    mixed = np.logaddexp(np.log1p(-replayed_fraction), log_ratio)
    return np.where(batch.rewarded > 0, np.exp(-mixed), 1.0)


def _values(forward: ForwardPass) -> Array:
    """Compute the values of all steps, dtype[steps, rows]; 0 in a network without values."""
    if forward.values is None:
        return np.zeros(forward.inputs.shape, forward.logits.dtype)
    embedding, output = forward.arrays["embedding"].T.copy(), forward.arrays["value/output"]
    forward.values.set(forward.network.weights(forward.arrays, "value"))
    for t, tokens in enumerate(forward.inputs):
        embedding.take(tokens, axis=1, out=forward.values.input(t), mode="clip")
        forward.values.step(t)
    values: Array = np.matmul(output.T, forward.values.h[: forward.steps])[:, 0]
    return values


def _gradient(forward: ForwardPass, rows: slice, by_logits: Array, by_values: Array) -> Array:
    """Return the gradient, dtype[params], from those of logits and values.

    The latter are [steps, tokens, rows] and [steps, rows].
    """
    network, steps = forward.network, forward.steps
    is_all = rows == slice(0, forward.inputs.shape[1])
    by_input: Array | float = 0.0
    gradients = {
        name: np.zeros(shape, by_logits.dtype) for name, shape in network.layout.shapes.items()
    }
    if rows.start == rows.stop:
        return np.concatenate([zeros.ravel() for zeros in gradients.values()])
    stacks = [("policy", forward.policy, network.first_token, by_logits)]
    if forward.values is not None:
        stacks.append(("value", forward.values, 0, by_values[:, np.newaxis]))
    for stack, all_rows, first, by_outputs in stacks:
        layers = all_rows if is_all else all_rows.select(rows)
        output = forward.arrays[f"{stack}/output"][:, first:]
        by_output = np.matmul(layers.h[:steps], by_outputs.transpose(0, 2, 1)).sum(axis=0)
        gradients[f"{stack}/output"][:, first:] = by_output
        weights, by_x = layers.backwards(np.matmul(output, by_outputs))
        for number, (kernel, bias) in enumerate(weights):
            gradients[f"{stack}/{number}/kernel"], gradients[f"{stack}/{number}/bias"] = (
                kernel,
                bias,
            )
        by_input = by_input + by_x
    assert isinstance(by_input, np.ndarray)
    one_hot = (forward.inputs[:, np.newaxis, rows] == np.arange(TOKENS)[:, np.newaxis]).astype(
        by_logits.dtype
    )
    gradients["embedding"] = np.matmul(one_hot, by_input.transpose(0, 2, 1)).sum(axis=0)
    return np.concatenate([gradients[name].ravel() for name in network.layout.shapes])


PAPER_BATCH = 64  # batch size of the paper, which sums the loss over its batch
REWARDED_GRADIENT = (
    # array of a chunk: the part of the gradient that normalised importance weights scale
    "gradient_judged"
)
SUMS = ("policy_loss", "value_loss", "imitation_loss", "entropy", "tokens", "weights")


@dataclass(frozen=True)
class ProgramLoss:
    """The loss of a batch of programs that is distributed over chunks."""

    options: Options
    network: TokenLSTM

    @cached_property
    def replay(self) -> ReplayBuffer:
        """The replay buffer."""
        return ReplayBuffer(
            self.options.replay_capacity, self.network.length, self.options.replay_temperature
        )

    @cached_property
    def entropy(self) -> EntropyWeight:
        """The weight of the entropy."""
        return EntropyWeight(self.options)

    @property
    def replayed_fraction(self) -> float:
        """Fraction of replayed programs in a batch."""
        return self.options.replays / self.options.batch_size

    @property
    def separate(self) -> bool:
        """Whether a part of the gradient is scaled by the mean of the importance weights.

        Only rank 0 knows that.
        """
        return self.options.replays > 0 and self.options.iw_normalize

    def sample_replays(self, master: Arrays, rng: np.random.Generator) -> dict[str, Array]:
        """Return the shared arrays of the buffer: sampled programs and probabilities.

        Programs have length 0 if it is empty.
        """
        count, size = int(master["replay_count"]), self.options.replays
        order = np.argsort(master["replay_names"][:count])
        sorted_names = np.full(self.replay.capacity, np.iinfo(np.uint64).max)
        odds = np.zeros(self.replay.capacity)
        sorted_names[:count] = master["replay_names"][order]
        odds[:count] = self.replay.probabilities(master)[order] if count else 0
        indices = self.replay.sample(master, size, rng) if count else np.zeros(size, np.intp)
        tokens = master["replay_tokens"][indices]
        return {
            "replay_names": sorted_names,
            "replay_odds": odds,
            "replayed_tokens": tokens,
            "replayed_lengths": lengths(tokens) if count else np.zeros(size, np.int32),
            "replayed_rewards": master["replay_rewards"][indices],
        }

    def has_replays(self, shared: Arrays) -> bool:
        """Return whether this generation has replayed programs, because the buffer is not empty."""
        return self.options.alpha > 0 and bool(shared["replayed_lengths"][0])

    def forced_tokens(
        self, shared: Arrays, chunk: int, chunks: int, imitated: str = "imitated_tokens"
    ) -> Array:
        """Return the replayed and imitated programs of a chunk, uint8[programs, length].

        `chunk` is its index among `chunks`; with `imitated_read`, imitated programs are replaced by
        their input tokens.
        """
        programs = [np.zeros((0, self.network.length), np.uint8)]
        if self.options.alpha:
            programs.append(shared["replayed_tokens"][self._replay_slice(shared, chunk, chunks)])
        if self.options.imitates and chunk == 0:
            programs.append(shared[imitated])
        return np.concatenate(programs)

    def _replay_slice(self, shared: Arrays, chunk: int, chunks: int) -> slice:
        """Return the replayed programs of a chunk; none while the buffer is empty."""
        size = self.options.replays if self.has_replays(shared) else 0
        return slice(size * chunk // chunks, size * (chunk + 1) // chunks)

    def chunk_arrays(
        self, shared: Arrays, forward: ForwardPass, rewards: Float64, chunk: int, chunks: int
    ) -> dict[str, Array]:
        """Return the arrays of a chunk for rank 0, with its programs and its part of the gradient.

        `rewards` are float64[programs] of the sampled programs; failed ones, NaN, have no weight.
        `chunk` is the index of the chunk among `chunks`.
        """
        tokens = forward.tokens[: len(rewards)]
        arrays: dict[str, Array] = {"tokens": tokens}
        token_counts = lengths(tokens)
        if self.options.alpha:
            part = self._replay_slice(shared, chunk, chunks)
            arrays["replayed_rewards"] = shared["replayed_rewards"][part]
            arrays["replayed_lengths"] = shared["replayed_lengths"][part]
            tokens = np.concatenate([tokens, shared["replayed_tokens"][part]])
            rewards = np.concatenate([rewards, arrays["replayed_rewards"]])
            token_counts = np.concatenate([token_counts, arrays["replayed_lengths"]])
        batch = self._batch(shared, tokens, rewards, token_counts, self.options.batch_size)
        if self.options.imitates and chunk == 0:
            batch = self._with_imitated(batch, shared)
        terms = loss_gradient(forward, batch, self.replayed_fraction, self.separate)
        arrays[GRADIENT] = terms.gradients[-1]
        if self.separate:
            arrays[REWARDED_GRADIENT] = terms.gradients[0]
        return {**arrays, "sums": _sums(batch, terms)}

    def _batch(
        self, shared: Arrays, tokens: Array, rewards: Float64, token_counts: Array, batch_size: int
    ) -> ProgramBatch:
        """Return the coefficients of programs from a batch of `batch_size`.

        The return of every step is the reward of the program, minus the baseline if that is a
        running mean.
        """
        options, failed = self.options, np.isnan(rewards)
        returns = np.repeat(
            np.where(failed, 0.0, rewards)[:, np.newaxis], self.network.length, axis=1
        )
        unit = np.where(failed, 0.0, PAPER_BATCH / batch_size).astype(np.float32)
        is_waiting = options.alpha > 0 and not self.has_replays(shared)
        return ProgramBatch(
            lengths=token_counts,
            returns=(returns if options.learns_values else returns - shared["baseline"]).astype(
                np.float32
            ),
            rewarded=np.ones(len(tokens), np.float32),
            policy=unit * np.float32(0 if is_waiting else options.pi_loss_hparam),
            entropy=unit * np.float32(self.entropy.value(shared)),
            value=unit * np.float32(options.vf_loss_hparam if options.learns_values else 0),
            log_replayed=self._log_replayed(shared, tokens) if options.alpha else None,
        )

    def _log_replayed(self, shared: Arrays, tokens: Array) -> Float64:
        """Return ln of the probability that each program is replayed, float64[rows].

        It is -inf outside the buffer.
        """
        program_names = digests(tokens)
        indices = np.minimum(
            np.searchsorted(shared["replay_names"], program_names), self.replay.capacity - 1
        )
        odds = np.where(
            shared["replay_names"][indices] == program_names, shared["replay_odds"][indices], 0.0
        )
        with np.errstate(divide="ignore"):
            logarithms: Float64 = np.log(odds)
        return logarithms

    def _with_imitated(self, batch: ProgramBatch, shared: Arrays) -> ProgramBatch:
        """Return the batch with the imitated programs, whose likelihood increases."""
        count, zeros = (
            self.options.topk_batch_size,
            np.zeros(self.options.topk_batch_size, np.float32),
        )
        imitated = ProgramBatch(
            lengths=shared["imitated_lengths"],
            returns=np.ones((count, self.network.length), np.float32),
            rewarded=zeros,
            policy=np.full(count, self.options.topk_loss_hparam / count, np.float32),
            entropy=zeros,
            value=zeros,
            log_replayed=None if batch.log_replayed is None else zeros.astype(np.float64),
        )
        columns: Any = [
            None if a is None else np.concatenate([a, b])
            for a, b in zip(batch, imitated, strict=True)
        ]
        return ProgramBatch(*columns)

    def gradients(
        self, theta: Float32, chunks: Sequence[Arrays]
    ) -> tuple[list[Arrays], dict[str, float]]:
        """Return the gradients to sum, in order, and the terms of the loss; on rank 0.

        Gradients are float32[params] each.
        """
        sums = np.sum([arrays["sums"] for arrays in chunks], axis=0)
        scale, losses = self._losses(sums, self.options.batch_size)
        gradients: list[Arrays] = [{GRADIENT: arrays[GRADIENT]} for arrays in chunks]
        if self.separate:
            gradients += [
                {GRADIENT: np.float32(scale) * arrays[REWARDED_GRADIENT]} for arrays in chunks
            ]
        if self.options.regularizer:
            decay = np.float32(self.options.regularizer) * theta
            decay[: self.network.embedding_parameters] = 0
            gradients.append({GRADIENT: decay})
        return gradients, losses

    def _losses(self, batch_sums: Float64, programs: int) -> tuple[float, dict[str, float]]:
        """Return the scale of the policy term, and the terms, from float64[SUMS].

        The scale is by normalised importance weights.
        """
        sums = dict(zip(SUMS, batch_sums.tolist(), strict=True))
        scale = programs / sums["weights"] if self.separate else 1.0
        losses = {name: sums[name] for name in ("policy_loss", "value_loss", "imitation_loss")}
        losses["policy_loss"] *= scale
        losses["token_entropy"] = sums["entropy"] / sums["tokens"]
        losses["program_entropy"] = sums["entropy"] / programs
        return scale, losses

    def with_total(
        self, theta: Float32, shared: Arrays, losses: dict[str, float]
    ) -> dict[str, float]:
        """Return the terms with "loss", their weighted sum with entropy and regularizer.

        theta is float32[params].
        """
        total = losses["policy_loss"] + losses["value_loss"] + losses["imitation_loss"]
        total -= PAPER_BATCH * self.entropy.value(shared) * losses["program_entropy"]
        weights = theta[self.network.embedding_parameters :].astype(np.float64)
        return {**losses, "loss": total + self.options.regularizer * float(weights @ weights) / 2}

    def losses_of_programs(
        self, theta: Float32, shared: Arrays, tokens: Array, rewards: Float64
    ) -> dict[str, float]:
        """Return the loss terms of existing programs with rewards.

        They are uint8[programs, length] and float64[programs].
        """
        forward = sample_programs(
            self.network, theta, np.zeros((0, self.network.length)), forced=tokens
        )
        batch = self._batch(shared, tokens, rewards, lengths(tokens), len(tokens))
        terms = loss_gradient(forward, batch, self.replayed_fraction, self.separate)
        return self._losses(_sums(batch, terms), len(tokens))[1]


def _sums(batch: ProgramBatch, terms: LossTerms) -> Float64:
    """Return float64[SUMS] of a chunk, for its rewarded programs except for imitation_loss."""
    rewarded, policy = (
        batch.rewarded.astype(np.float64),
        -batch.policy.astype(np.float64) * terms.policy,
    )
    return np.array(
        [
            rewarded @ policy,
            rewarded @ (batch.value.astype(np.float64) * terms.value),
            (1 - rewarded) @ policy,
            rewarded @ terms.entropy.astype(np.float64),
            rewarded @ batch.lengths,
            rewarded @ terms.w.astype(np.float64),
        ]
    )


def updated_baseline(
    baseline: Float64, rewards: Float64, token_counts: Array, decay: float
) -> Float64:
    """Return the running mean of each position after further programs in order; float64[length].

    `rewards` are float64[programs]; a program changes the positions up to its number of tokens,
    int[programs].
    """
    result: Float64 = baseline.copy()
    for reward, length in zip(rewards.tolist(), token_counts.tolist(), strict=True):
        result[:length] = decay * result[:length] + (1 - decay) * reward
    return result
