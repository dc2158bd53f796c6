"""The contracts of policies and of the episodes in which they act.

A `Policy` makes an `Actor` of the parameters of some jobs. A task plays the episodes of a `Batch`
with it: the actor returns the actions of all jobs at once, and `OnStep` is called after every step
if an algorithm learns from steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Float64, Normaliser, Outcome, Poll, Spaces
from hpc_es.core.population import Layout, Population

# A tree of arrays, such as the memory of a recurrent policy or the named parts of its parameters.
# In compiled code the arrays are those of the compiling library.
Tree: TypeAlias = "Array | Sequence[Tree] | Mapping[str, Tree]"
Tensor: TypeAlias = Any  # an array of NumPy, TensorFlow or JAX, in code that all of them execute


DIVERGED = "its parameters are not finite, or so large that its outputs overflow: try a smaller learning rate"


class Actor(Protocol):
    """A policy with the parameters of several jobs, one row per job."""

    def act(self, observations: Array) -> Array:
        """Return the actions of all rows.

        The action of a row must depend on its own parameters, memory and observations only.

        Args:
            observations: [rows, *shape] in the shape and dtype of the task's `ObservationSpec`, not
                to be modified.

        Returns:
            float32[rows, actions] for a Box, int64[rows] for Discrete, int64[rows, choices] for
            MultiDiscrete; if the outputs of a network are NaN in some rows, float64 with NaN in
            these rows. An action that is not finite fails its episode.
        """
        ...

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Drop all rows but these, which act as before.

        Args:
            rows: intp[kept], indices of rows, ascending.
        """
        ...

    def restart(self, row: int) -> None:
        """Clear the memory of a row before a new episode."""
        ...


class RecurrentActor(Actor, Protocol):
    """An actor whose memory can be passed to another actor, for updates within an episode."""

    def memory(self) -> Tree:
        """Return the memory of all rows: a tree of arrays [rows, ...]."""
        ...

    def remember(self, memory: Tree) -> None:
        """Take over the memory of another actor of the policy with as many rows.

        Args:
            memory: what its `memory()` has returned, a tree of arrays [rows, ...].
        """
        ...


class Policy(Protocol):
    """A function from observations to actions, with a float32 vector of parameters.

    Every rank makes its own policy from the same options, so `layout` must have the same order of
    parts on all of them. A policy may also have the attributes of `Traits`.
    """

    layout: Layout  # layout of the parameter vector
    # standard deviation of the noise added to the actions of training episodes
    action_noise_std: float

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size].

        Args:
            rng: the only source of random numbers, the same on every rank.
        """
        ...

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """Return an actor for the candidates of a chunk.

        Called on the rank that evaluates the chunk. The policy itself must not change.

        Args:
            parameters: the candidates, one row of the actor each, in order.
            normaliser: (mean, standard deviation, clip) of the observations: float32[statistics]
                twice and a number; None: they are taken as they are. An infinite standard deviation
                sets the input to 0; an infinite clip does not clip.
        """
        ...


@dataclass(frozen=True)
class Traits:
    """How the actors of a policy compute.

    These are attributes that a policy may have, with their values if it has not.
    """

    # Whether the actions of a row are bit-identical whatever the other rows are; chunks may then
    # have any size.
    rows_are_independent: bool = False
    # Whether it takes observations as they are, so that normalisation is refused.
    scales_observations: bool = False
    # The library that compiles actors on their first use; the ranks then compile before the first
    # generation.
    compiled_by: str | None = None
    # The number of candidates that are computed together.
    candidates_per_call: int = 1

    @classmethod
    def of(cls, policy: Policy) -> Traits:
        """Return the traits of a policy: the attributes that it has, otherwise defaults."""
        names = [field.name for field in fields(cls) if hasattr(policy, field.name)]
        return cls(**{name: getattr(policy, name) for name in names})


class Pure(NamedTuple):
    """A policy as pure functions of one row.

    Parameters are split once per episode, because a compiled loop that splits them at every step
    copies each part.
    """

    parameters: Callable[[Array], Tree]  # theta, float32[size] -> parameters
    # (parameters, memory, observation) -> (memory, action); an action that is not finite fails the
    # episode
    apply: Callable[[Tree, Tree, Array], tuple[Tree, Array]]
    memory: Tree  # initial memory of an episode


@runtime_checkable
class PurePolicy(Policy, Protocol):
    """A policy that is also defined over an array namespace, such as `jax.numpy`, for compilers."""

    def pure(self, xp: ModuleType) -> Pure:
        """Return the policy as pure functions of one row; the task normalises the observations.

        Args:
            xp: the array namespace, such as `jax.numpy`; the functions use no other library.
        """
        ...


@runtime_checkable
class ReferencePolicy(Policy, Protocol):
    """A policy that depends on reference observations, such as virtual batch normalisation."""

    reference_frames: int  # number of reference observations; 0: it needs none

    def with_reference(self, observations: Array) -> Policy:
        """Return the policy for these reference observations; called once, before it is bound.

        Args:
            observations: [reference_frames, *shape], the same on every rank.
        """
        ...


class OnStep(Protocol):
    """A function that is called after every step of a chunk's episodes.

    Algorithms that learn from steps pass it in a `Batch`.
    """

    def __call__(
        self,
        jobs: Sequence[int],
        live: Sequence[int],
        observations: Array,
        rewards: Float64,
        cut: Sequence[int],
    ) -> None:
        """Record one step of the episodes that are still running.

        The task reuses the arrays: copy what you keep.

        Args:
            jobs: position in the batch of each row's job.
            live: the rows that have made the step.
            observations: [rows, *shape], after the step.
            rewards: float64[rows].
            cut: the rows whose episode was truncated by its time limit.
        """
        ...


@dataclass(frozen=True)
class Batch:
    """The jobs of a chunk, as the argument of tasks with episodes."""

    # int64[jobs, episodes_per_job], 0 .. 2**31 - 1; antithetic jobs share them
    seeds: npt.NDArray[np.int64]
    training: bool  # whether the jobs are training jobs
    observe: npt.NDArray[np.bool_]  # bool[jobs], whether to sum the observations of a job
    action_noise_std: float  # standard deviation of the noise added to actions
    # position of a job in the batch -> its generator
    action_noise: Callable[[int], np.random.Generator]
    on_step: OnStep | None = None
    unit: int | None = None  # number of jobs whose observations are summed together; None: all
    offset: int = 0  # number of jobs of the first job's unit that precede the batch
    # whether to sum differences from the first observation of each job, for sample deviations
    centred: bool = False


class Episodic(Protocol):
    """A task that plays episodes with an actor."""

    name: str
    spaces: Spaces
    episodes_per_job: int

    def evaluate(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Play the episodes of all jobs of a batch."""
        ...


class Segments(Protocol):
    """The environments of a worker, one per job, whose episodes continue from batch to batch."""

    def play(self, actor: Actor, batch: Batch, steps: int, poll: Poll) -> Outcome:
        """Advance the episode of each job, or start one for a job without an episode.

        `batch.on_step` reports an episode that continues like one that is truncated. The rows of
        the actor are the jobs throughout.

        Args:
            actor: one row per job.
            batch: the jobs, as many as there are environments.
            steps: timesteps at most; an episode that ends earlier stays at its end.
            poll: to be called every few milliseconds.

        Returns:
            Rows with the column EPISODE_LENGTH.
        """
        ...
