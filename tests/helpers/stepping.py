"""A strategy without a run: generations one after the other on one rank, with given noise, on plain
functions.

created = strategy("cma_es", elli, theta=np.ones(3), sigma=0.5, noise=Waves(7, 3))
state = after(made, 3)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpc_es.config import registry
from hpc_es.config.loading import validate
from hpc_es.core.data import (
    Array,
    Column,
    Outcome,
    ProblemState,
    Results,
    State,
    behaviour,
    row_dtype,
)
from hpc_es.core.keys import Keys
from hpc_es.core.population import Layout
from hpc_es.noise import BlockNoise
from hpc_es.noise.counter import BLOCK, CounterNoise
from hpc_es.tasks.problems import ProblemDefaults
from hpc_es.training.build import Parts
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation

NEEDS = {kind: registry.module("algorithms", kind).NEEDS for kind in registry.kinds("algorithms")}
# that search for the best of one value; those that need measures have tests of their own:
# test_map_elites.py, test_emitters.py
KINDS = [
    kind
    for kind, needs in NEEDS.items()
    if needs.searches == "vectors"
    and not needs.objectives
    and not needs.measures
    and kind != "random"  # which has no first vector: test_random.py
]


class Waves(BlockNoise):
    """The noise of the test vectors: sqrt(2) sin(1 + q^2),
    q = (generation * samples + sample) * size + coordinate.
    """

    def __init__(self, samples: int, size: int) -> None:
        super().__init__(size, BLOCK)
        self._samples, self._size = samples, size

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Any:
        q = (generation * self._samples + pair) * self._size + np.arange(
            start, stop, dtype=np.float64
        )
        return np.sqrt(2) * np.sin(1 + q * q)


class Rows(BlockNoise):
    """Directions from a table, float64[pairs, size]."""

    def __init__(self, directions: Sequence[Sequence[float]]) -> None:
        self._directions = np.array(directions, np.float64)
        super().__init__(self._directions.shape[1], BLOCK)

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Any:
        return self._directions[pair, start:stop]


class Rotated(Rows):
    """The directions of CounterNoise in float64, rotated."""

    def __init__(self, turn: Array) -> None:
        BlockNoise.__init__(self, len(turn), BLOCK)
        self._turn, self._plain = turn, CounterNoise(Keys(1), len(turn))

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Any:
        plain = self._plain.direction(generation, pair, 0, len(self._turn)).astype(np.float64)
        return (self._turn @ plain)[start:stop]


def rotation(size: int) -> Array:
    """A rotation of all axes."""
    return np.linalg.qr(np.random.default_rng(4).standard_normal((size, size)))[0]


# of the test vectors
D4 = Rows([[0.5, -1, 0.25], [1.5, 0.75, -0.5], [-0.25, 0.5, 1.25], [-1, -0.75, 0.5]])


class Cost(ProblemDefaults):
    """A function to be minimised, or costs in job order, as a problem without a run."""

    columns: tuple[Column, ...] = ()
    is_objective = True

    def __init__(self, cost: Callable[[Array], float] | Sequence[float], theta: Array) -> None:
        self.size, self.dtype, self._theta, self._cost = len(theta), theta.dtype, theta, cost
        self.layout = Layout({"x": (self.size,)})
        self.spread = np.full(self.size, 0.3)
        self.evaluated: list[Array] = []

    def initial(self, rng: np.random.Generator) -> Array:
        return self._theta.copy()

    def evaluate(self, candidates: Any, jobs: Any, carried: ProblemState, poll: Any) -> Outcome:
        stack = candidates.stacked()
        self.evaluated.append(stack)
        rows = np.zeros(len(stack), row_dtype(self.columns))
        costs = (
            map(self._cost, stack)
            if callable(self._cost)
            else (self._cost[job] for job in jobs.numbers)
        )
        rows["return_"], rows["length"] = [-cost for cost in costs], 1
        return Outcome(rows)


class Behaving(Cost):
    """The same with the vector as its behaviour."""

    def __init__(self, cost: Callable[[Array], float] | Sequence[float], theta: Array) -> None:
        super().__init__(cost, theta)
        self.columns = (behaviour(self.size),)

    def evaluate(self, candidates: Any, jobs: Any, carried: ProblemState, poll: Any) -> Outcome:
        outcome = super().evaluate(candidates, jobs, carried, poll)
        outcome.rows["behaviour"] = candidates.stacked()
        return outcome


def strategy(
    kind: str, cost: Any, theta: Any, noise: Any = None, chunk_size: int = 4, **options: Any
) -> Any:
    """A strategy of this kind with these options, for a cost, starting from theta."""
    theta = np.asarray(theta)
    theta = theta if theta.dtype == np.float32 else theta.astype(np.float64)
    task = {
        "kind": "function",
        "function": "tests.helpers.toys:noisy_bowl",
        "dimension": len(theta),
    }
    config = validate({"task": task, "policy": None, "algorithm": {"kind": kind, **options}})
    noise = noise or CounterNoise(Keys(1), len(theta))
    module = registry.module("algorithms", kind)
    kind_of_problem = Behaving if module.NEEDS.presets.get("task.vector_behaviour") else Cost
    problem = kind_of_problem(cost, theta)
    problem.is_noisy = False  # unless the test says so: no strategy looks for noise
    return module.build(config.algorithm, problem, noise, Keys(1), chunk_size)


def generation(created: Any, state: State) -> Results:
    """Outcomes and results of a generation."""
    columns = sys.modules[type(created).__module__].NEEDS.columns
    row = row_dtype((*created.problem.columns, *columns))
    result = Parts(
        None, None, created.problem, created.noise, created, row, created.chunk_size, "fixed"
    )  # type: ignore[arg-type]
    return SerialExecutor().run(Generation(result, state)).results


def following(created: Any, state: State) -> State:
    """The next state."""
    after: State = created.tell(state, generation(created, state))[0]
    return after


def after(created: Any, generations: int) -> State:
    """The state after this number of generations."""
    state: State = created.initial()
    for _ in range(generations):
        state = following(created, state)
    return state


def elli(x: Array) -> float:
    """The ellipsoid with the condition number 1e6."""
    return float(sum(10 ** (6 * i / (len(x) - 1)) * item**2 for i, item in enumerate(x.tolist())))


def sphere(x: Array) -> float:
    return float((x * x).sum())
