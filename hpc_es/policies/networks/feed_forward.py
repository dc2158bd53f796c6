"""Options of networks, and the base class of custom policies without memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import (
    Count,
    Limits,
    NonNegative,
    PathText,
    Together,
    option,
    options,
    unused,
)
from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.core.declarations import NUMPY, Computes, Setting
from hpc_es.core.population import Layout, Population
from hpc_es.policies.networks.backend import backends_of
from hpc_es.policies.networks.heads import ActionBounds, ActionHead, normalise
from hpc_es.policies.networks.layers import LowRankProduct

BACKENDS = (NUMPY, *backends_of("mlp"))
if TYPE_CHECKING:
    BackendName = str
else:
    BackendName = Literal[BACKENDS]


@options
class PolicyOptions:
    """`policy:` with a network of any kind; each kind overrides `kind`."""

    kind: str = option("name of the policy")
    action_noise_std: NonNegative = option(
        "standard deviation of normal noise added to Box actions in training episodes", 0.0
    )
    action_bins: Annotated[int, Limits(ge=2)] | None = option(
        "number of equidistant values of each action dimension; null: continuous", None
    )
    action_bounds: ActionBounds = option(
        "method that keeps Box actions within their bounds: clip, or squash (tanh of the outputs, scaled to the "
        "bounds)",
        "clip",
    )
    init_from: PathText | None = option(
        "run directory, checkpoint, Keras file (.keras, .h5) or weights of a PyTorch module (.pt, .safetensors) with the "
        "initial theta; null: random initial theta",
        None,
        may_change=True,
    )
    init_observations: bool | PathText = option(
        "initial observation statistics: from init_from (true), none (false), or a run directory, checkpoint, Keras "
        "file or ob_normalization_*.npz",
        True,
        may_change=True,
    )
    init_optimizer: bool | PathText = option(
        "initial optimizer state: from init_from (true), new (false), or a run directory, checkpoint or "
        "optimizer_*.npz",
        False,
        may_change=True,
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each option that has no effect."""
        if self.action_bins is not None and self.action_bounds != "clip":
            yield from unused(self, ("action_bounds",), f"action_bins is {self.action_bins}")
        if self.init_from is None:
            yield from unused(self, ("init_observations", "init_optimizer"), "init_from is null")


@options
class Options(PolicyOptions):
    """`policy:` of the kinds in NumPy and TensorFlow; each overrides `hidden_dims`."""

    hidden_dims: tuple[Count, ...] = option("number of units of each hidden layer")
    backend: BackendName = option("library that computes the actions", NUMPY)
    candidates_per_call: Together = option(
        "number of candidates that TensorFlow computes together; results depend on it, not on chunks or ranks",
        16,
    )
    low_rank_product: LowRankProduct = option(
        "product with the common weights under noise.rank in NumPy: row by row, for chunks of any size, or as one "
        "matrix product, which is faster, but makes results depend on mpi.chunk_size",
        "rows",
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each option that has no effect."""
        yield from super().warnings()
        if self.backend == NUMPY:
            yield from unused(self, ("candidates_per_call",), "backend is numpy")
        else:
            yield from unused(self, ("low_rank_product",), f"backend is {self.backend}")


def computes(options: Options) -> Computes:
    """Return how a policy of these kinds computes."""
    by_matrix = options.low_rank_product == "matrix"
    return Computes(
        backend=options.backend,
        backends=BACKENDS,
        any_chunks=not by_matrix,
        low_rank_only=Setting("policy.low_rank_product", "matrix") if by_matrix else None,
        own_calls=("candidates_per_call",),
        in_numpy={"backend": NUMPY},
    )


class FeedForwardPolicy(ABC):
    """Base class of policies without memory.

    A subclass sets `layout` and `head` and defines `outputs`. Initial parameters are zeros unless
    the subclass overrides `initial`. Set `rows_are_independent` to True if the outputs of a row are
    bit-identical whatever the other rows are; jobs may then be evaluated in chunks of any size.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Discrete, Explicit, FeedForwardPolicy, Head, Layout
        >>> class Linear(FeedForwardPolicy):
        ...     layout, head = Layout({"weight": (2, 4)}), Head.of(Discrete(2), bins=None)
        ...
        ...     def outputs(self, parameters, inputs):
        ...         return np.einsum("roi,ri->ro", parameters["weight"], inputs)
        >>> policy = Linear()
        >>> candidates = Explicit(policy.layout, np.eye(8, dtype=np.float32)[[0, 7]])
        >>> policy.bind(candidates, None).act(np.ones((2, 4), np.float32))
        array([0, 1])
    """

    layout: Layout
    head: ActionHead
    action_noise_std: float = 0.0
    rows_are_independent: bool = False

    @abstractmethod
    def outputs(self, parameters: Mapping[str, Array], inputs: Array) -> Float32:
        """Return the inputs of the head, float32[rows, head.outputs].

        Args:
            parameters: the parts of the layout by name, float32[rows, *shape of the part].
            inputs: observations, [rows, *shape] in the dtype of the task, or float32 if they are
                normalised.
        """

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return zeros, float32[layout.size]."""
        return np.zeros(self.layout.size, np.float32)

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> FeedForwardActor:
        """Return an actor for the jobs of a chunk, one row per job; see `Policy.bind`."""
        parts = {name: parameters.part(name) for name in self.layout.shapes}
        return FeedForwardActor(self, parts, normaliser)


class FeedForwardActor:
    """A policy without memory with the parameters of some jobs, one row per job."""

    def __init__(
        self, policy: FeedForwardPolicy, parts: Mapping[str, Array], normaliser: Normaliser | None
    ) -> None:
        self._policy, self._parts, self._normaliser = policy, parts, normaliser

    def act(self, observations: Array) -> Array:
        inputs = observations
        if self._normaliser is not None:
            inputs = normalise(observations.astype(np.float32), self._normaliser)
        return self._policy.head.actions(self._policy.outputs(self._parts, inputs))

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        self._parts = {name: part[rows] for name, part in self._parts.items()}

    def restart(self, row: int) -> None:
        """Do nothing: there is no memory."""
