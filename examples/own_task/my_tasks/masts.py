"""A custom task: place masts to minimise the mean distance of
a day's customers to the nearest mast.
"""

from __future__ import annotations

import numpy as np

from hpc_es.extend import (
    Count,
    Float64,
    Jobs,
    Keys,
    Layout,
    Offers,
    Outcome,
    Poll,
    Population,
    ProblemState,
    Purpose,
    VectorProblemDefaults,
    VectorTask,
    option,
    options,
    row_dtype,
)

OFFERS = Offers(problems=("vectors",))


@options
class Options:
    """`task:` with `kind: my_tasks.masts`."""

    kind: str = option("this module", "my_tasks.masts")
    masts: Count = option("number of masts", 3)
    customers: Count = option("customers per day", 50)


class Placement(VectorProblemDefaults):
    """Positions as a vector, float64[masts * 2].

    A job is one day; its return is minus the mean distance.
    """

    def __init__(self, options: Options, keys: Keys) -> None:
        self._options, self._keys = options, keys
        self.layout = Layout({"positions": (options.masts, 2)})

    def initial(self, rng: np.random.Generator) -> Float64:
        """Return initial positions in the middle of town."""
        return rng.normal(0.0, 0.1, self.size)

    def evaluate(
        self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll
    ) -> Outcome:
        """Evaluate a chunk, calling `poll` between jobs so that rank 0 can answer other ranks."""
        rows = np.zeros(len(jobs), row_dtype(self.columns))
        rows["length"] = 1
        for row, (positions, group) in enumerate(
            zip(population.part("positions"), jobs.groups, strict=True)
        ):
            rows["return_"][row] = -self._distance(positions, jobs, group)
            poll()
        return Outcome(rows)

    def _distance(self, masts: Float64, jobs: Jobs, group: int) -> float:
        """Return the mean distance on the day of a group;
        both jobs of an antithetic pair have the same group.
        """
        purpose = Purpose.ENVIRONMENT if jobs.purpose == "train" else Purpose.EVALUATION
        rng = self._keys.generator(purpose, jobs.generation, group)
        town = rng.choice([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]], self._options.customers)
        customers = town + rng.normal(0.0, 0.2, town.shape)
        apart = np.linalg.norm(customers[:, np.newaxis] - masts, axis=2)
        return float(apart.min(axis=1).mean())


def build(options: Options, repetition: int = 0) -> VectorTask:
    """Return the task."""
    return VectorTask(f"{options.masts} masts", lambda keys: Placement(options, keys))
