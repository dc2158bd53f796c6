"""The contracts of what acts: a policy, the actor that it makes of parameters, and the episodes that it acts in.

A task plays the episodes of a `Batch`: an `Actor` gives the actions of all its jobs at once, and an `OnStep` is told of
every step where an algorithm learns from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Float64, Normaliser, Outcome, Poll
from hpc_es.core.population import Layout, Population

# Arrays, alone or nested, such as the memory of a recurrent policy or the named parts of its parameters. In compiled
# code the arrays are those of the library that compiles it.
Tree: TypeAlias = "Array | Sequence[Tree] | Mapping[str, Tree]"


class Actor(Protocol):
    """A policy with the parameters of some jobs, one row for each job; it acts for all of them at once."""

    def act(self, observations: Array) -> Array:
        """Return the actions of all rows, from [rows, *shape] in the dtype of the task's ObservationSpec.

        float32[rows, actions] of a Box, int64[rows] of Discrete, int64[rows, choices] of MultiDiscrete actions.
        """
        ...

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Keep these rows only; they act exactly as before."""
        ...

    def restart(self, row: int) -> None:
        """Clear the memory of this row, since a new episode begins."""
        ...


class RecurrentActor(Actor, Protocol):
    """An actor whose memory can be carried over to another one, for updates in the middle of an episode."""

    def memory(self) -> Tree:
        """Return the memory of all rows, a tree of arrays [rows, ...]."""
        ...

    def remember(self, memory: Tree) -> None:
        """Continue with this memory, of an actor of the same policy with as many rows."""
        ...


class Policy(Protocol):
    """A function from observations to actions, with a flat float32 vector of parameters.

    If it has an attribute `rows_are_independent` that is true, a row gets the same bits whatever other rows there are,
    and jobs may be evaluated in chunks of any size.
    """

    layout: Layout  # of the parameter vector
    action_noise_std: float  # standard deviation of noise added to the actions of training episodes

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size]."""
        ...

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """Return an actor for the jobs of a chunk; `normaliser` is (mean, standard deviation, clip) of observations.

        A standard deviation is infinite if its input is to become 0; the clip is infinite if there is none.
        """
        ...


class Pure(NamedTuple):
    """A policy as pure functions of one row; parameters and memory are trees of arrays.

    The parameters are taken apart once an episode: in a compiled loop that does it at every step each part is copied.
    """

    parameters: Callable[[Array], Tree]  # of theta, [size]
    apply: Callable[[Tree, Tree, Array], tuple[Tree, Array]]  # (parameters, memory, observation) -> (memory, action)
    memory: Tree  # that an episode begins with


@runtime_checkable
class PurePolicy(Policy, Protocol):
    """A policy that can be compiled, since it is also defined over an array namespace, such as `jax.numpy`."""

    def pure(self, xp: ModuleType) -> Pure:
        """Return the policy as pure functions; their observations are normalised already if the task says so."""
        ...


class OnStep(Protocol):
    """What is called after every step of a chunk's episodes, by tasks that can, to learn from it."""

    def __call__(
        self, jobs: Sequence[int], live: Sequence[int], observations: Array, rewards: Float64, cut: Sequence[int]
    ) -> None:
        """Take in a step of the rows `live`: what came of it, and the rows whose episode its time limit cut off.

        `jobs` names the job (its place in the batch) of each row, observations are [rows, *shape] and
        rewards float64[rows]. The arrays are those that the task goes on with: copy what is to be kept.
        """
        ...


@dataclass(frozen=True)
class Batch:
    """The jobs of a chunk, as a task with episodes gets them."""

    seeds: npt.NDArray[np.int64]  # int64[jobs, episodes_per_job], 0 .. 2**31 - 1; both halves of a pair share theirs
    training: bool
    observe: npt.NDArray[np.bool_]  # bool[jobs]: whose observations are to be summed
    action_noise_std: float
    action_noise: Callable[[int], np.random.Generator]  # the generator of a job (its place in the batch)
    on_step: OnStep | None = None
    unit: int | None = None  # jobs whose observations are summed as one; None: all of them
    offset: int = 0  # jobs before these of the unit that the first one belongs to
    centred: bool = False  # whether a job's sums are of differences from its first observation, for sample deviations


class Segments(Protocol):
    """One worker's environments, one a job, whose episodes go on from batch to batch."""

    def play(self, actor: Actor, batch: Batch, steps: int, poll: Poll) -> Outcome:
        """Run every job's episode on for so many steps, or to its end; a job without one begins one, with its seed.

        Rows have EPISODE_LENGTH too. `batch.on_step` is told of an episode that goes on as of one that is cut off. The
        actor's rows are the jobs to the end.
        """
        ...
