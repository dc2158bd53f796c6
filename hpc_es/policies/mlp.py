"""A feed-forward network, all jobs of a chunk in one stacked matrix product."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge

from hpc_es.options import Count, NonNegative, option, options


@options
class Options:
    """`policy:` with `kind: mlp`."""

    kind: Literal["mlp"] = option("the policy's module in hpc_es/policies", "mlp")
    hidden_dims: tuple[Count, ...] = option("widths of the hidden layers; [] is a linear policy", (64, 64))
    activation: Literal["tanh", "relu", "leaky_relu", "elu"] = option("between the layers", "tanh")
    action_noise_std: NonNegative = option("normal noise added to Box actions, in training episodes only", 0.0)
    action_bins: Annotated[int, Ge(2)] | None = option("uniform bins per action dimension; null: continuous", None)
    backend: Literal["numpy", "tensorflow"] = option("what computes the actions", "numpy")
    init_from: str | None = option("a run directory or checkpoint whose theta is the start", None)
