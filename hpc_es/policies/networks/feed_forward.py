"""The options that all networks have.

The base class of policies without memory: they write their layout and what their network computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from hpc_es.config.options import Count, NonNegative, option, options
from hpc_es.config.warnings import unused
from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.core.population import Layout, Population
from hpc_es.policies.networks.heads import ActionHead, normalise


@options
class Options:
    """`policy:` with a network; each kind has its own `kind` and widths."""

    kind: str = option("name of the policy")
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


class FeedForwardPolicy(ABC):
    """A policy without memory: a subclass sets `layout` and `head`, and writes `outputs`.

    Its parameters begin with zeros unless it writes `initial` too. Set `rows_are_independent` to true where `outputs`
    gives a row the same bits whatever the other rows are: then jobs may be evaluated in chunks of any size.
    """

    layout: Layout
    head: ActionHead
    action_noise_std: float = 0.0
    rows_are_independent: bool = False

    @abstractmethod
    def outputs(self, parameters: Mapping[str, Array], inputs: Array) -> Float32:
        """Return what the head gets, float32[rows, head.outputs].

        `parameters` are the parts of the layout by name, float32[rows, *shape of the part]: each row has its own.
        `inputs` are observations, [rows, *shape] in the dtype of the task; float32 where they are normalised.
        """

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return zeros, float32[layout.size]."""
        return np.zeros(self.layout.size, np.float32)

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> FeedForwardActor:
        """Return an actor for the jobs of a chunk."""
        parts = {name: parameters.part(name) for name in self.layout.shapes}
        return FeedForwardActor(self, parts, normaliser)


class FeedForwardActor:
    """A policy without memory with the parameters of some jobs, one row for each job."""

    def __init__(self, policy: FeedForwardPolicy, parts: Mapping[str, Array], normaliser: Normaliser | None) -> None:
        self._policy, self._parts, self._normaliser = policy, parts, normaliser

    def act(self, observations: Array) -> Array:
        """Return the actions of all rows."""
        inputs = observations
        if self._normaliser is not None:
            inputs = normalise(observations.astype(np.float32), self._normaliser)
        return self._policy.head.actions(self._policy.outputs(self._parts, inputs))

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Keep the parameters of these rows only."""
        self._parts = {name: part[rows] for name, part in self._parts.items()}

    def restart(self, row: int) -> None:
        """Do nothing: there is no memory."""
