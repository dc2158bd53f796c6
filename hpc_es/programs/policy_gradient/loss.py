"""Programs that are kept to be learned from again, drawn by weight (Abolafia et al. 2018, arXiv:1801.03526).

A program's weight is exp(reward / temperature), and each program is in once. When the buffer is full those of the
smallest rewards leave; of equal ones the younger. All of it is arrays of fixed form in the order of arrival.


How much the entropy of the tokens counts: always the same, less with time, or as much as holds it at a target.

Held at a target, the factor is raised while the entropy is below it and lowered while it is above, as the temperature
of soft actor-critic is (Haarnoja et al. 2018, arXiv:1812.05905, section 5), but never below `entropy_beta`: else it
would come back late from a time of much entropy, such as the beginning. It is the entropy of a program, the sum of
those of its tokens: that of a token alone is had by short programs too, of which there are few.

    beta <- max(entropy_beta, beta * exp(entropy_rate * (1 - entropy / entropy_target)))


The gradient of the loss of programs, backwards through the pass that has written or read them.

What programs teach the network that wrote them: the parts of `policy_gradient.py` besides its loop.

A chunk has its share of the batch: its own programs, some of the replays, and the first chunk what is imitated from
the queue. It gives the gradient of its share of the loss.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hpc_es.algorithms.common.optimizers import GRADIENT
from hpc_es.core.data import Array, Arrays, Float32, Float64
from hpc_es.programs.policy_gradient.options import TOKENS, Options
from hpc_es.programs.policy_gradient.token_lstm import TokenLSTM, Writing, lengths, write


@dataclass(frozen=True)
class ReplayBuffer:
    """The form of a buffer."""

    capacity: int  # programs
    length: int  # tokens of a program, zeros behind it
    temperature: float

    def nothing(self) -> dict[str, Array]:
        """Return an empty buffer."""
        return {
            "replay_tokens": np.zeros((self.capacity, self.length), np.uint8),
            "replay_rewards": np.zeros(self.capacity, np.float64),
            "replay_names": np.zeros(self.capacity, np.uint64),
            "replay_count": np.array(0, np.int64),
        }

    def added(self, buffer: Arrays, tokens: Array, rewards: Float64) -> dict[str, Array]:
        """With some programs more, uint8[programs, length]; what is in already keeps the reward it had."""
        count = int(buffer["replay_count"])
        fresh = first_of_each(tokens_names := names(tokens))
        fresh = fresh[~np.isin(tokens_names[fresh], buffer["replay_names"][:count])]
        columns = {"replay_tokens": tokens, "replay_rewards": rewards, "replay_names": tokens_names}
        both = {name: np.concatenate([buffer[name][:count], new[fresh]]) for name, new in columns.items()}
        best = np.argsort(-both["replay_rewards"], kind="stable")[: self.capacity]
        kept = np.sort(best)
        after = self.nothing()
        for name, column in both.items():
            after[name][: len(kept)] = column[kept]
        return {**after, "replay_count": np.array(len(kept), np.int64)}

    def probabilities(self, buffer: Arrays) -> Float64:
        """float64[count]: how likely each program is drawn."""
        rewards = buffer["replay_rewards"][: int(buffer["replay_count"])]
        weights = np.exp((rewards - rewards.max(initial=-np.inf)) / self.temperature)
        odds: Float64 = weights / weights.sum()
        return odds

    def drawn(self, buffer: Arrays, draws: int, rng: np.random.Generator) -> Array:
        """Return the places of `draws` programs, with replacement, of a buffer that is not empty."""
        sums = np.cumsum(self.probabilities(buffer))
        places: Array = np.searchsorted(sums[:-1], rng.random(draws) * sums[-1], side="right")
        return places


def names(tokens: Array) -> Array:
    """uint64[rows]: what tells a program from others, in 64 bits of a digest."""
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in tokens)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def first_of_each(values: Array) -> Array:
    """Return the places of the first of equal values, in their order."""
    places: Array = np.sort(np.unique(values, return_index=True)[1])
    return places


LARGEST = 100.0  # of a factor that follows a target


@dataclass(frozen=True)
class EntropyFactor:
    """The factor, `entropy_beta` in the state where it is not constant."""

    options: Options

    @property
    def is_constant(self) -> bool:
        """Whether it stays what the options say."""
        return self.options.entropy_target is None and self.options.entropy_beta_end is None

    def initial(self) -> dict[str, Array]:
        """Return what the first generation has of it."""
        return {} if self.is_constant else {"entropy_beta": np.array(self.options.entropy_beta, np.float64)}

    def of(self, shared: Arrays) -> float:
        """Return the factor of a generation."""
        return self.options.entropy_beta if self.is_constant else float(shared["entropy_beta"])

    def after(self, shared: Arrays, entropy: float, executed: int) -> dict[str, Array]:
        """Return what the next generation has, where this one's programs had this entropy on average."""
        options = self.options
        if self.is_constant:
            return {}
        if options.entropy_target is not None:
            change = math.exp(options.entropy_rate * (1 - entropy / options.entropy_target))
            beta = min(max(self.of(shared) * change, options.entropy_beta), LARGEST)
        else:
            assert options.entropy_beta_end is not None
            share = min(executed / options.entropy_programs, 1.0)
            beta = (1 - share) * options.entropy_beta + share * options.entropy_beta_end
        return {"entropy_beta": np.array(beta, np.float64)}


class ProgramBatch(NamedTuple):
    """What the loss makes of the programs of a pass; `dtype` is that of theta.

    loss = sum over rows ( - policy * w * sum_t (returns_t - judged * value_t) log p(token_t)
                           - entropy * sum_t H_t  +  value * sum_t (value_t - returns_t)^2 )

    w is 1 / (1 - a + a q / p) for judged rows, 1 else, where a is the share of replays, q the probability that a
    program is replayed and p the policy's. Values are 0 in a network without.
    """

    lengths: Array  # int32[rows]; 0 gives no loss
    returns: Array  # dtype[rows, length]: what each step is worth
    judged: Array  # dtype[rows]: 1 for programs of this batch, 0 for those that are imitated
    policy: Array  # dtype[rows]
    entropy: Array  # dtype[rows]
    value: Array  # dtype[rows]
    log_replayed: Array | None = None  # float64[rows], ln q, -inf if q is 0; None where there is no replay


class Terms(NamedTuple):
    """What a batch gives."""

    gradients: Array  # dtype[1, params], or [2, params]: of the judged rows' policy term, and of the rest
    policy: Array  # dtype[rows], the term of the loss that `policy` belongs to, times w, sign and `policy` left out
    entropy: Array  # dtype[rows], sum of H
    value: Array  # dtype[rows], sum of squared errors
    log_probability: Array  # dtype[rows], of the program
    w: Array  # dtype[rows]


def differentiate(writing: Writing, batch: ProgramBatch, replayed_share: float = 0.0, apart: bool = False) -> Terms:
    """Return the gradient of the loss and its terms.

    With `apart` the gradient of the judged rows' policy term is given apart from the rest.
    """
    steps, dtype = writing.steps, writing.logits.dtype
    mask = (np.arange(steps)[:, np.newaxis] < batch.lengths).astype(dtype)
    returns = np.ascontiguousarray(batch.returns.T[:steps])
    log_all = _log_softmax(writing.logits)
    p_all = np.exp(log_all)
    chosen = _chosen(writing, dtype)
    log_p, entropy = mask * (chosen * log_all).sum(axis=1), -mask * (p_all * log_all).sum(axis=1)
    values = _values(writing)
    error, probability = mask * (values - returns), log_p.sum(axis=0)
    w = _weights(batch, probability, replayed_share).astype(dtype)
    advantages = returns - batch.judged * values
    terms = Terms(
        gradients=np.zeros(0, dtype),
        policy=w * (advantages * log_p).sum(axis=0),
        entropy=entropy.sum(axis=0),
        value=batch.judged * (error**2).sum(axis=0),
        log_probability=probability,
        w=w,
    )
    by_log_p = (-batch.policy * w * mask * advantages)[:, np.newaxis] * (chosen - p_all)
    rest = (batch.entropy * mask)[:, np.newaxis] * p_all * (log_all + entropy[:, np.newaxis])
    by_value = 2 * batch.value * batch.judged * error
    if not apart:
        taught = _taught(batch)
        some = (taught, (by_log_p + rest)[..., taught], by_value[:, taught])
        return terms._replace(gradients=_gradient(writing, *some)[np.newaxis])
    judged, imitated = batch.judged * by_log_p, (1 - batch.judged) * by_log_p
    whole = slice(0, len(batch.lengths))
    both = [_gradient(writing, whole, judged, 0 * by_value), _gradient(writing, whole, imitated + rest, by_value)]
    return terms._replace(gradients=np.stack(both))


def _taught(batch: ProgramBatch) -> slice:
    """Return the rows from the first to the last that have a part in the loss; the others' gradients are 0."""
    places = np.flatnonzero((batch.policy != 0) | (batch.entropy != 0) | (batch.value != 0))
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _log_softmax(logits: Array) -> Array:
    """Over [steps, tokens, rows]."""
    less = logits - logits.max(axis=1, keepdims=True)
    log_all: Array = less - np.log(np.exp(less).sum(axis=1, keepdims=True))
    return log_all


def _chosen(writing: Writing, dtype: np.dtype[np.generic]) -> Array:
    """1 where a token was written or read, [steps, tokens, rows]."""
    tokens = writing.tokens.T[: writing.steps].astype(np.int64) - writing.network.first_token
    chosen: Array = (tokens[:, np.newaxis] == np.arange(writing.logits.shape[1])[:, np.newaxis]).astype(dtype)
    return chosen


def _weights(batch: ProgramBatch, probability: Array, share: float) -> Array:
    """w of each row; in float64, where p may be smaller than float32 has it."""
    if batch.log_replayed is None:
        return np.ones_like(probability)
    mixed = np.logaddexp(np.log1p(-share), np.log(share) + batch.log_replayed - probability.astype(np.float64))
    return np.where(batch.judged > 0, np.exp(-mixed), 1.0)


def _values(writing: Writing) -> Array:
    """[steps, rows] of the second stack, which reads the programs here; 0 in a network without."""
    if writing.values is None:
        return np.zeros(writing.before.shape, writing.logits.dtype)
    embedding, output = writing.arrays["embedding"].T.copy(), writing.arrays["value/output"]
    writing.values.set(writing.network.weights(writing.arrays, "value"))
    for t, before in enumerate(writing.before):
        embedding.take(before, axis=1, out=writing.values.input(t), mode="clip")
        writing.values.step(t)
    values: Array = np.matmul(output.T, writing.values.h[: writing.steps])[:, 0]
    return values


def _gradient(writing: Writing, rows: slice, by_logits: Array, by_values: Array) -> Array:
    """[params], from the gradients of these rows' logits [steps, tokens, rows] and values [steps, rows]."""
    network, steps, whole = writing.network, writing.steps, rows == slice(0, writing.before.shape[1])
    by_input: Array | float = 0.0
    gradients = {name: np.zeros(shape, by_logits.dtype) for name, shape in network.layout.shapes.items()}
    if rows.start == rows.stop:
        return np.concatenate([zeros.ravel() for zeros in gradients.values()])
    stacks = [("policy", writing.policy, network.first_token, by_logits)]
    if writing.values is not None:
        stacks.append(("value", writing.values, 0, by_values[:, np.newaxis]))
    for stack, every, first, by_outputs in stacks:
        layers = every if whole else every.of(rows)
        output = writing.arrays[f"{stack}/output"][:, first:]
        by_output = np.matmul(layers.h[:steps], by_outputs.transpose(0, 2, 1)).sum(axis=0)
        gradients[f"{stack}/output"][:, first:] = by_output
        weights, by_x = layers.backwards(np.matmul(output, by_outputs))
        for number, (kernel, bias) in enumerate(weights):
            gradients[f"{stack}/{number}/kernel"], gradients[f"{stack}/{number}/bias"] = kernel, bias
        by_input = by_input + by_x
    assert isinstance(by_input, np.ndarray)
    read = (writing.before[:, np.newaxis, rows] == np.arange(TOKENS)[:, np.newaxis]).astype(by_logits.dtype)
    gradients["embedding"] = np.matmul(read, by_input.transpose(0, 2, 1)).sum(axis=0)
    return np.concatenate([gradients[name].ravel() for name in network.layout.shapes])


PAPER_BATCH = 64  # the paper sums the loss over its batch
JUDGED = "gradient_judged"  # the part of the gradient that importance weights scale, where they are normalised
SUMS = ("policy_loss", "value_loss", "imitation_loss", "entropy", "tokens", "weights")


@dataclass(frozen=True)
class ProgramLoss:
    """The loss of a batch of programs, by chunk."""

    options: Options
    network: TokenLSTM

    @cached_property
    def replay(self) -> ReplayBuffer:
        """The form of the buffer."""
        return ReplayBuffer(self.options.replay_capacity, self.network.length, self.options.replay_temperature)

    @cached_property
    def entropy(self) -> EntropyFactor:
        """How much the entropy counts."""
        return EntropyFactor(self.options)

    @property
    def share(self) -> float:
        """Of replays in a batch."""
        return self.options.replays / self.options.batch_size

    @property
    def apart(self) -> bool:
        """Whether the weights' mean, known to rank 0 only, is to scale a part of the gradient."""
        return self.options.replays > 0 and self.options.iw_normalize

    def replayed(self, master: Arrays, rng: np.random.Generator) -> dict[str, Array]:
        """What the chunks need of the buffer: the draws, of length 0 while it is empty, and the odds of all in it."""
        count, draws = int(master["replay_count"]), self.options.replays
        by_name = np.argsort(master["replay_names"][:count])
        known = np.full(self.replay.capacity, np.iinfo(np.uint64).max)
        odds = np.zeros(self.replay.capacity)
        known[:count] = master["replay_names"][by_name]
        odds[:count] = self.replay.probabilities(master)[by_name] if count else 0
        places = self.replay.drawn(master, draws, rng) if count else np.zeros(draws, np.intp)
        tokens = master["replay_tokens"][places]
        return {
            "replay_names": known,
            "replay_odds": odds,
            "replayed_tokens": tokens,
            "replayed_lengths": lengths(tokens) if count else np.zeros(draws, np.int32),
            "replayed_rewards": master["replay_rewards"][places],
        }

    def replays(self, shared: Arrays) -> bool:
        """Return whether this generation has replays: the buffer is not empty."""
        return self.options.alpha > 0 and bool(shared["replayed_lengths"][0])

    def given(self, shared: Arrays, place: int, chunks: int, imitated: str = "imitated_tokens") -> Array:
        """uint8[more, length]: programs that chunk number `place` of so many has besides those it writes.

        With `imitated_read` it is what is read in place of the imitated ones.
        """
        read = [np.zeros((0, self.network.length), np.uint8)]
        if self.options.alpha:
            read.append(shared["replayed_tokens"][self._share(shared, place, chunks)])
        if self.options.imitates and place == 0:
            read.append(shared[imitated])
        return np.concatenate(read)

    def _share(self, shared: Arrays, place: int, chunks: int) -> slice:
        """Return which of the replays are the chunk's; none while the buffer is empty."""
        draws = self.options.replays if self.replays(shared) else 0
        return slice(draws * place // chunks, draws * (place + 1) // chunks)

    def learned(self, shared: Arrays, writing: Writing, rewards: Float64, place: int, chunks: int) -> dict[str, Array]:
        """Return the arrays of a chunk, number `place` of so many, that has written programs with these rewards.

        Programs that failed, with the reward NaN, weigh nothing.
        """
        given: dict[str, Array] = {"tokens": writing.tokens[: len(rewards)]}
        tokens, reached = given["tokens"], lengths(given["tokens"])
        if self.options.alpha:
            share = self._share(shared, place, chunks)
            given["replayed_rewards"] = shared["replayed_rewards"][share]
            given["replayed_lengths"] = shared["replayed_lengths"][share]
            tokens = np.concatenate([tokens, shared["replayed_tokens"][share]])
            rewards = np.concatenate([rewards, given["replayed_rewards"]])
            reached = np.concatenate([reached, given["replayed_lengths"]])
        batch = self._batch(shared, tokens, rewards, reached, self.options.batch_size)
        if self.options.imitates and place == 0:
            batch = self._with_imitated(batch, shared)
        terms = differentiate(writing, batch, self.share, self.apart)
        given[GRADIENT] = terms.gradients[-1]
        if self.apart:
            given[JUDGED] = terms.gradients[0]
        return {**given, "sums": _sums(batch, terms)}

    def _batch(self, shared: Arrays, tokens: Array, rewards: Float64, reached: Array, whole: int) -> ProgramBatch:
        """Programs with the reward of the end at every step, minus the baseline where that is a mean of rewards.

        They are some of a batch of `whole` programs.
        """
        options, failed = self.options, np.isnan(rewards)
        returns = np.repeat(np.where(failed, 0.0, rewards)[:, np.newaxis], self.network.length, axis=1)
        unit = np.where(failed, 0.0, PAPER_BATCH / whole).astype(np.float32)
        waits = options.alpha > 0 and not self.replays(shared)
        return ProgramBatch(
            lengths=reached,
            returns=(returns if options.learns_values else returns - shared["baseline"]).astype(np.float32),
            judged=np.ones(len(tokens), np.float32),
            policy=unit * np.float32(0 if waits else options.pi_loss_hparam),
            entropy=unit * np.float32(self.entropy.of(shared)),
            value=unit * np.float32(options.vf_loss_hparam if options.learns_values else 0),
            log_replayed=self._log_replayed(shared, tokens) if options.alpha else None,
        )

    def _log_replayed(self, shared: Arrays, tokens: Array) -> Float64:
        """ln of the odds that a draw from the buffer is this program, -inf for one that is not in it."""
        mine = names(tokens)
        places = np.minimum(np.searchsorted(shared["replay_names"], mine), self.replay.capacity - 1)
        odds = np.where(shared["replay_names"][places] == mine, shared["replay_odds"][places], 0.0)
        with np.errstate(divide="ignore"):
            logarithms: Float64 = np.log(odds)
        return logarithms

    def _with_imitated(self, batch: ProgramBatch, shared: Arrays) -> ProgramBatch:
        """With the draws from the queue, whose likelihood is to grow."""
        draws, zeros = self.options.topk_batch_size, np.zeros(self.options.topk_batch_size, np.float32)
        more = ProgramBatch(
            lengths=shared["imitated_lengths"],
            returns=np.ones((draws, self.network.length), np.float32),
            judged=zeros,
            policy=np.full(draws, self.options.topk_loss_hparam / draws, np.float32),
            entropy=zeros,
            value=zeros,
            log_replayed=None if batch.log_replayed is None else zeros.astype(np.float64),
        )
        both: Any = [None if a is None else np.concatenate([a, b]) for a, b in zip(batch, more, strict=True)]
        return ProgramBatch(*both)

    def gradients(self, theta: Float32, chunks: Sequence[Arrays]) -> tuple[list[Arrays], dict[str, float]]:
        """Return what is to be summed, in order, and the terms of the loss; on rank 0."""
        sums = np.sum([arrays["sums"] for arrays in chunks], axis=0)
        scale, losses = self._losses(sums, self.options.batch_size)
        gradients: list[Arrays] = [{GRADIENT: arrays[GRADIENT]} for arrays in chunks]
        if self.apart:
            gradients += [{GRADIENT: np.float32(scale) * arrays[JUDGED]} for arrays in chunks]
        if self.options.regularizer:
            decay = np.float32(self.options.regularizer) * theta
            decay[: self.network.embedded] = 0
            gradients.append({GRADIENT: decay})
        return gradients, losses

    def _losses(self, of_batch: Float64, programs: int) -> tuple[float, dict[str, float]]:
        """Return what importance weights scale the policy's term by, and the terms, of float64[SUMS] of a batch."""
        sums = dict(zip(SUMS, of_batch.tolist(), strict=True))
        scale = programs / sums["weights"] if self.apart else 1.0
        losses = {name: sums[name] for name in ("policy_loss", "value_loss", "imitation_loss")}
        losses["policy_loss"] *= scale
        losses["token_entropy"] = sums["entropy"] / sums["tokens"]
        losses["program_entropy"] = sums["entropy"] / programs
        return scale, losses

    def with_total(self, theta: Float32, shared: Arrays, losses: dict[str, float]) -> dict[str, float]:
        """Return the terms with "loss", their sum, in which the entropy has its weight and the regularizer its part."""
        total = losses["policy_loss"] + losses["value_loss"] + losses["imitation_loss"]
        total -= PAPER_BATCH * self.entropy.of(shared) * losses["program_entropy"]
        weights = theta[self.network.embedded :].astype(np.float64)
        return {**losses, "loss": total + self.options.regularizer * float(weights @ weights) / 2}

    def of_programs(self, theta: Float32, shared: Arrays, tokens: Array, rewards: Float64) -> dict[str, float]:
        """Return the terms of the loss of programs, uint8[programs, length], that are read and not written."""
        writing = write(self.network, theta, np.zeros((0, self.network.length)), given=tokens)
        batch = self._batch(shared, tokens, rewards, lengths(tokens), len(tokens))
        terms = differentiate(writing, batch, self.share, self.apart)
        return self._losses(_sums(batch, terms), len(tokens))[1]


def _sums(batch: ProgramBatch, terms: Terms) -> Float64:
    """float64[SUMS] of a chunk; of the judged programs, besides the imitated ones' loss."""
    judged, policy = batch.judged.astype(np.float64), -batch.policy.astype(np.float64) * terms.policy
    return np.array(
        [
            judged @ policy,
            judged @ (batch.value.astype(np.float64) * terms.value),
            (1 - judged) @ policy,
            judged @ terms.entropy.astype(np.float64),
            judged @ batch.lengths,
            judged @ terms.w.astype(np.float64),
        ]
    )


def baseline_after(baseline: Float64, rewards: Float64, reached: Array, decay: float) -> Float64:
    """The running mean of each position after these programs, one after the other; beyond a program's end it stays."""
    after: Float64 = baseline.copy()
    for reward, length in zip(rewards.tolist(), reached.tolist(), strict=True):
        after[:length] = decay * after[:length] + (1 - decay) * reward
    return after
