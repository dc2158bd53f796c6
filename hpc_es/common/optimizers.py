"""Optimizers on flat float32 vectors."""

from __future__ import annotations

from typing import Literal

from hpc_es.options import Fraction, Positive, option, options


@options
class Options:
    """`algorithm.optimizer:`."""

    kind: Literal["adam", "sgd", "none"] = option("none: theta moves by learning_rate times the gradient", "adam")
    learning_rate: Positive = option("step size", 0.01)
    beta1: Fraction = option("decay of Adam's first moment", 0.9)
    beta2: Fraction = option("decay of Adam's second moment", 0.999)
    epsilon: Positive = option("added to the root of Adam's second moment", 1e-8)
    momentum: Fraction = option("decay of SGD's velocity", 0.9)
