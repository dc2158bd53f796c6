"""Options of `algorithm: {kind: policy_gradient}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from hpc_es.config.options import (
    Count,
    Fraction,
    Limits,
    Natural,
    NonNegative,
    Positive,
    option,
    options,
    unused,
    unused_of_kinds,
)
from hpc_es.extend import optimizers

TOKENS = 9  # the end and eight characters
Sizes = Annotated[tuple[Count, ...], Limits(min_length=1)]


@options
class Optimizer:
    """`algorithm.optimizer:`."""

    kind: Literal["rmsprop", "adam", "sgd"] = option("optimizer; sgd has no momentum", "rmsprop")
    learning_rate: Positive = option("learning rate", 5e-5)
    rmsprop_decay: Fraction = option(
        "decay rate of RMSProp's mean square, which starts at 1 (TensorFlow 1's default is 0.9)",
        0.99,
    )
    rmsprop_epsilon: Positive = option(
        "constant added to RMSProp's mean square, inside the square root", 1e-10
    )

    def full(self) -> optimizers.Options:
        """Return the corresponding options of `hpc_es.algorithms.common.optimizers`."""
        full: Any = optimizers.Options
        options: optimizers.Options = full(
            kind="none" if self.kind == "sgd" else self.kind,
            learning_rate=self.learning_rate,
            rmsprop_decay=self.rmsprop_decay,
            rmsprop_epsilon=self.rmsprop_epsilon,
        )
        return options

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options of RMSProp with another optimizer: (key, text)."""
        return unused_of_kinds(self, {"rmsprop": optimizers.OPTIONS_OF_KINDS["rmsprop"]})


@options
class Options:
    """`algorithm:` with `kind: policy_gradient`."""

    kind: Literal["policy_gradient"] = option("name of the algorithm", "policy_gradient")
    batch_size: Count = option("programs per update", 64)
    updates: Literal["synchronous", "asynchronous"] = option(
        "synchronous: one batch for all ranks; asynchronous: one batch per rank, and results depend on timing",
        "synchronous",
    )
    policy_lstm_sizes: Sizes = option("units of the policy's LSTM layers", (35, 35))
    value_lstm_sizes: Sizes = option(
        "units of the value LSTM's layers, if ema_baseline_decay is 0", (35, 35)
    )
    obs_embedding_size: Count = option("size of the token embedding", 10)
    param_init_factor: Positive = option("factor of the variance of Glorot's initialisation", 1.0)
    optimizer: Optimizer = option("optimizer of theta", default_factory=Optimizer)
    grad_clip_threshold: Positive = option("maximum gradient norm", 10.0)
    pi_loss_hparam: NonNegative = option(
        "weight of the policy gradient; 0: learning from the queue only", 1.0
    )
    vf_loss_hparam: NonNegative = option("weight of the squared error of learned values", 0.5)
    entropy_beta: NonNegative = option(
        "weight of the entropy: constant, initial, or minimum with entropy_target", 0.01
    )
    entropy_target: Positive | None = option(
        "target entropy of a program, in nats, below which the weight rises; null: no target", None
    )
    entropy_rate: Positive = option(
        "rate at which the weight follows entropy_target: ln of its change per update at entropy 0",
        0.05,
    )
    entropy_beta_end: NonNegative | None = option(
        "final weight of the entropy, reached linearly after entropy_programs; null: constant weight",
        None,
    )
    entropy_programs: Count = option(
        "number of programs executed until the weight is entropy_beta_end", 1_000_000
    )
    regularizer: NonNegative = option(
        "weight of half the squared parameters (L2 regularisation)", 0.0
    )
    softmax_tr: Positive = option("factor of the logits in sampling, 1 / temperature", 1.0)
    writing_noise: Fraction = option("fraction of sampled tokens that are drawn uniformly", 0.0)
    topk: Natural = option("maximum number of programs in the priority queue; 0: no queue", 0)
    topk_loss_hparam: NonNegative = option("weight of the log likelihood of queued programs", 0.0)
    topk_batch_size: Natural = option("programs sampled from the queue per update", 1)
    topk_noise: Fraction = option(
        "fraction of tokens of queued programs replaced at random in training, so that the policy learns to recover",
        0.0,
    )
    topk_ties: Literal["older", "newer"] = option(
        "preference of the queue among programs of equal rewards; newer: the queue keeps changing on a plateau",
        "older",
    )
    topk_unique: Literal["programs", "rewards"] = option(
        "uniqueness in the queue: distinct programs, or distinct rewards, so that equivalent programs occur once",
        "programs",
    )
    topk_offered: Literal["best", "all"] = option(
        "programs of a batch that are offered to the queue", "best"
    )
    ema_baseline_decay: Fraction = option(
        "decay rate of the running mean of rewards; 0: learned values instead", 0.99
    )
    eos_token: bool = option(
        "programs may end before their full length with an end token, which counts as a character",
        False,
    )
    alpha: Fraction = option("fraction of a batch that is replayed", 0.0)
    replay_temperature: Positive = option(
        "temperature of replay; probabilities are proportional to exp(reward / temperature)", 1.0
    )
    replay_capacity: Count = option("maximum number of programs in the replay buffer", 10_000)
    iw_normalize: bool = option("normalisation of importance weights to the mean 1", True)
    restart_programs: Natural = option(
        "number of programs without a better one before weights and queue are reset; 0: no restarts",
        0,
    )
    stop_on_success: bool = option(
        "stop after the first generation with a correct program", True, may_change=True
    )

    @property
    def replays(self) -> int:
        """Number of replayed programs per batch."""
        return int(self.batch_size * self.alpha)

    @property
    def imitates(self) -> bool:
        """Whether programs of the queue are imitated."""
        return self.topk > 0 and self.topk_loss_hparam > 0

    @property
    def learns_values(self) -> bool:
        """Whether the baseline is a value network."""
        return self.ema_baseline_decay == 0

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if self.imitates and not self.topk_batch_size:
            yield (
                "topk_batch_size",
                "is 0, but there is a queue: expected the number of queued programs per update (try 1)",
            )
        if self.topk_loss_hparam and not self.topk:
            yield "topk_loss_hparam", "needs a queue, but topk is 0 (try topk: 10)"
        if self.entropy_target is not None and self.entropy_beta_end is not None:
            yield (
                "entropy_beta_end",
                "cannot be combined with entropy_target, which also sets the weight: remove one",
            )
        if self.entropy_target is not None and not self.entropy_beta:
            yield (
                "entropy_beta",
                "is 0, but the weight that entropy_target adapts starts there: expected more than 0 (try 0.01)",
            )
        if self.alpha and not self.replays:
            yield (
                "alpha",
                f"is {self.alpha:g}: no program of a batch of {self.batch_size} is replayed "
                f"(try {1 / self.batch_size:g} or more, or 0)",
            )
        if self.alpha and self.learns_values:
            yield (
                "ema_baseline_decay",
                "is 0, but learned values do not support replay (try 0.99, or alpha: 0)",
            )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        if not self.imitates:
            why = "topk is 0" if not self.topk else "topk_loss_hparam is 0"
            names = ("topk_batch_size", "topk_noise", "topk_ties", "topk_unique", "topk_offered")
            yield from unused(self, ("topk", *names) if self.topk else names, why)
        if self.entropy_target is None:
            yield from unused(self, ("entropy_rate",), "entropy_target is null")
        if self.entropy_beta_end is None:
            yield from unused(self, ("entropy_programs",), "entropy_beta_end is null")
        if not self.replays:
            yield from unused(
                self, ("replay_temperature", "replay_capacity"), "alpha is 0: nothing is replayed"
            )
        if not self.learns_values:
            yield from unused(
                self,
                ("value_lstm_sizes", "vf_loss_hparam"),
                "ema_baseline_decay is not 0, so no values are learned",
            )
