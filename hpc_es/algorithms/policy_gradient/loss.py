"""What programs teach the network that wrote them: the parts of `policy_gradient.py` besides its loop.

A chunk has its share of the batch: its own programs, some of the replays, and the first chunk what is imitated from
the queue. It gives the gradient of its share of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpc_es.algorithms.parts.gradient import GRADIENT
from hpc_es.algorithms.parts.replay import Replay, names
from hpc_es.algorithms.policy_gradient.entropy import EntropyFactor
from hpc_es.algorithms.policy_gradient.options import Options
from hpc_es.algorithms.policy_gradient.program_gradient import ProgramBatch, Terms, differentiate
from hpc_es.algorithms.policy_gradient.token_lstm import TokenLSTM, lengths
from hpc_es.algorithms.policy_gradient.writing import Writing, write
from hpc_es.core.data import Array, Arrays, Float32, Float64

PAPER_BATCH = 64  # the paper sums the loss over its batch
JUDGED = "gradient_judged"  # the part of the gradient that importance weights scale, where they are normalised
SUMS = ("policy_loss", "value_loss", "imitation_loss", "entropy", "tokens", "weights")


@dataclass(frozen=True)
class ProgramLoss:
    """The loss of a batch of programs, by chunk."""

    options: Options
    network: TokenLSTM

    @cached_property
    def replay(self) -> Replay:
        """The form of the buffer."""
        return Replay(self.options.replay_capacity, self.network.length, self.options.replay_temperature)

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
