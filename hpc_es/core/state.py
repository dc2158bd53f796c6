"""The state of a run between generations: named arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hpc_es.core.arrays import Array, Arrays, Float32


@dataclass(frozen=True)
class State:
    """The state of a run between generations: named arrays, all stored in checkpoints.

    `shared` is broadcast to every rank at the start of a generation; `master` stays on rank 0, such
    as optimizer slots and queues. Names and dtypes do not change during a run, nor do shapes unless
    `Needs.growing` is true. Text is stored as uint8, a number as a 0-d array. The arrays of the
    algorithm precede those of the problem.

    The docstring of an algorithm or problem lists its arrays in the sections `State, shared:` and
    `State, master:`, one per line:

        archive: float32[entries, numbers], grows; description
        adam_m: dtype[params], if optimizer.kind is adam; description
        those of `module.name`

    `dtype` is the dtype of theta and `params` its length. The arrays of base classes are not
    repeated.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import State
        >>> state = State(0, {"theta": np.zeros(3)}, {"adam_m": np.zeros(3)})
        >>> state.theta.shape
        (3,)
    """

    generation: int  # number of finished generations, and index of the next one
    shared: Arrays  # arrays on every rank
    master: Arrays  # arrays on rank 0 only

    @property
    def theta(self) -> Array:
        """The parameters, dtype[params]; empty if the algorithm does not search for a vector."""
        return self.shared.get("theta", NO_PARAMETERS)

    def scope(self, prefix: str, number: int = 0) -> State:
        """Return the state of one of several searches within this one.

        Args:
            prefix: such as "search/1/"; the arrays of the search have it here and none there.
            number: 0 .. 2**31 - 1. Searches that share generations need different ones: random
                numbers of a scope are those of the generation `generation + number * 2**32`.

        Examples:
            >>> import numpy as np
            >>> from hpc_es.extend import State
            >>> both = State(4, {"search/1/theta": np.zeros(2)}, {})
            >>> search = both.scope("search/1/")
            >>> sorted(search.shared)
            ['theta']
            >>> sorted(both.with_scope("search/1/", search).shared)
            ['search/1/theta']
        """
        shared, master = (
            {
                name.removeprefix(prefix): array
                for name, array in arrays.items()
                if name.startswith(prefix)
            }
            for arrays in (self.shared, self.master)
        )
        return State(self.generation + number * SCOPED, shared, master)

    def with_scope(self, prefix: str, search: State) -> State:
        """Return this state with the arrays of a search; the inverse of `scope`.

        Args:
            prefix: of the names of the arrays here.
            search: state of the search, whose arrays replace or extend those with the prefix.
        """
        shared, master = (
            {prefix + name: array for name, array in arrays.items()}
            for arrays in (search.shared, search.master)
        )
        return State(self.generation, {**self.shared, **shared}, {**self.master, **master})


SCOPED = 1 << 32  # generations between the random numbers of two scopes
NO_PARAMETERS: Float32 = np.zeros(0, np.float32)


@dataclass(frozen=True)
class ProblemState:
    """The arrays of a state that belong to the problem, such as observation statistics."""

    shared: Arrays = field(default_factory=dict)  # arrays on every rank
    master: Arrays = field(default_factory=dict)  # arrays on rank 0 only

    def merge_into(self, state: State) -> State:
        """Return the state of an algorithm with these arrays added.

        Args:
            state: that of the algorithm alone; arrays of equal names are replaced.
        """
        return State(
            state.generation, {**state.shared, **self.shared}, {**state.master, **self.master}
        )

    def extract_from(self, state: State) -> ProblemState:
        """Return the arrays of a state that have the names of these.

        Args:
            state: that of a run, which has all these names.
        """
        shared = {name: state.shared[name] for name in self.shared}
        return ProblemState(shared, {name: state.master[name] for name in self.master})
