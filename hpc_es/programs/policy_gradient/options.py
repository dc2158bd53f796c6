"""The options of `algorithm: {kind: policy_gradient}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from hpc_es.algorithms.common import optimizers
from hpc_es.config.options import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    option,
    options,
    unused,
    unused_of_kinds,
)

TOKENS = 9  # eight characters, and the end
Sizes = Annotated[tuple[Count, ...], MinLen(1)]


@options
class Optimizer:
    """`algorithm.optimizer:`."""

    kind: Literal["rmsprop", "adam", "sgd"] = option("sgd is without momentum", "rmsprop")
    learning_rate: Positive = option("step size", 5e-5)
    rmsprop_decay: Fraction = option(
        "decay of RMSProp's mean square, which starts at 1 (TensorFlow 1's default is 0.9)", 0.99
    )
    rmsprop_epsilon: Positive = option("added to RMSProp's mean square, inside of the root", 1e-10)

    def full(self) -> optimizers.Options:
        """Return the same as algorithms/common/optimizers.py takes it."""
        full: Any = optimizers.Options
        options: optimizers.Options = full(
            kind="none" if self.kind == "sgd" else self.kind,
            learning_rate=self.learning_rate,
            rmsprop_decay=self.rmsprop_decay,
            rmsprop_epsilon=self.rmsprop_epsilon,
        )
        return options

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Options of RMSProp with another kind: (key, text)."""
        return unused_of_kinds(self, {"rmsprop": optimizers.OPTIONS_OF_KINDS["rmsprop"]})


@options
class Options:
    """`algorithm:` with `kind: policy_gradient`."""

    kind: Literal["policy_gradient"] = option("name of the algorithm", "policy_gradient")
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
    entropy_beta: NonNegative = option(
        "factor of the entropy; where it changes the first one, and the least with entropy_target", 0.01
    )
    entropy_target: Positive | None = option(
        "entropy of a program, in nats, below which the factor is raised; null: it is not", None
    )
    entropy_rate: Positive = option("how fast the factor follows entropy_target: ln of its change at no entropy", 0.05)
    entropy_beta_end: NonNegative | None = option(
        "the factor falls (or rises) evenly to this one after entropy_programs; null: it does not", None
    )
    entropy_programs: Count = option("programs executed until the factor is entropy_beta_end", 1_000_000)
    regularizer: NonNegative = option("factor of half the squared weights", 0.0)
    softmax_tr: Positive = option("factor of the logits when programs are written: 1 / temperature", 1.0)
    writing_noise: Fraction = option("share of the tokens written that are drawn evenly, whatever was learned", 0.0)
    topk: Natural = option("programs in the priority queue; 0: there is none", 0)
    topk_loss_hparam: NonNegative = option("factor of the queue's likelihood", 0.0)
    topk_batch_size: Natural = option("programs drawn from the queue for an update", 1)
    topk_noise: Fraction = option(
        "share of a queued program's tokens that are others when it is read, so that it is learned to go on after them",
        0.0,
    )
    topk_ties: Literal["older", "newer"] = option(
        "which of two programs with the same reward the queue prefers; newer: it goes on changing on a plateau",
        "older",
    )
    topk_unique: Literal["programs", "rewards"] = option(
        "what no two programs of the queue have in common; rewards: those that do the same have one place", "programs"
    )
    topk_offered: Literal["best", "all"] = option("programs of a batch that the queue may take", "best")
    ema_baseline_decay: Fraction = option("decay of the running mean of rewards; 0: a learned value instead", 0.99)
    eos_token: bool = option("programs may end before their full length, by a token that counts as a character", False)
    alpha: Fraction = option("share of a batch that is replayed", 0.0)
    replay_temperature: Positive = option("programs are replayed in proportion to exp(reward / temperature)", 1.0)
    replay_capacity: Count = option("programs in the replay buffer", 10_000)
    iw_normalize: bool = option("importance weights have the mean 1", True)
    restart_programs: Natural = option(
        "programs executed without a better one after which weights and queue begin anew; 0: they do not", 0
    )
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
        if self.entropy_target is not None and self.entropy_beta_end is not None:
            yield "entropy_beta_end", "cannot be with entropy_target, which sets the factor too: remove one"
        if self.entropy_target is not None and not self.entropy_beta:
            yield (
                "entropy_beta",
                "is 0, which a factor raised by entropy_target begins with: expected more than 0 (try 0.01)",
            )
        if self.alpha and not self.replays:
            text = f"is {self.alpha:g}: of a batch of {self.batch_size} no program is replayed"
            yield "alpha", f"{text} (try {1 / self.batch_size:g} or more, or 0)"
        if self.alpha and self.learns_values:
            yield "ema_baseline_decay", "is 0, but there are no learned values with replay (try 0.99, or alpha: 0)"

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect: (key, text)."""
        if not self.imitates:
            why = "topk is 0" if not self.topk else "topk_loss_hparam is 0"
            own = ("topk_batch_size", "topk_noise", "topk_ties", "topk_unique", "topk_offered")
            yield from unused(self, ("topk", *own) if self.topk else own, why)
        if self.entropy_target is None:
            yield from unused(self, ("entropy_rate",), "entropy_target is null")
        if self.entropy_beta_end is None:
            yield from unused(self, ("entropy_programs",), "entropy_beta_end is null")
        if not self.replays:
            yield from unused(self, ("replay_temperature", "replay_capacity"), "alpha is 0: nothing is replayed")
        if not self.learns_values:
            why = "ema_baseline_decay is not 0, so no values are learned"
            yield from unused(self, ("value_lstm_sizes", "vf_loss_hparam"), why)
