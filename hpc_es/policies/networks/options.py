"""The options that all networks have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge

from hpc_es.config.options import Count, NonNegative, option, options
from hpc_es.config.warnings import unused


@options
class Options:
    """`policy:` with a network; each kind has its own `kind` and widths."""

    kind: str = option("the policy's module in hpc_es/policies")
    hidden_dims: tuple[Count, ...] = option("widths of the hidden layers")
    action_noise_std: NonNegative = option("normal noise added to Box actions, in training episodes only", 0.0)
    action_bins: Annotated[int, Ge(2)] | None = option("uniform bins per action dimension; null: continuous", None)
    backend: Literal["numpy", "tensorflow"] = option("what computes the actions", "numpy")
    init_from: str | None = option(
        "a run directory, checkpoint or Keras file (.keras, .h5) whose theta is the start", None, may_change=True
    )
    init_observations: bool | str = option(
        "statistics of the observations to start with: those of init_from (true), none (false), or those of a run, "
        "checkpoint, Keras file or ob_normalization_*.npz",
        True,
        may_change=True,
    )
    init_optimizer: bool | str = option(
        "the optimizer's state to start with: that of init_from (true), a new one (false), or that of a run, "
        "checkpoint or optimizer_*.npz",
        False,
        may_change=True,
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect: (key, text)."""
        if self.init_from is None:
            yield from unused(self, ("init_observations", "init_optimizer"), "init_from is null")
