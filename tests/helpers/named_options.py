"""Custom kinds whose options have the names of all options of built-in kinds,
and the same kinds with other names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import numpy as np

from hpc_es.config.options import field_hints, union_members
from hpc_es.config.registry import MODULES, Package, module
from hpc_es.extend import (
    Array,
    Arrays,
    BaseStrategy,
    BlockNoise,
    Chunk,
    FeedForwardPolicy,
    Float32,
    Float64,
    Head,
    Keys,
    Layout,
    Needs,
    Offers,
    Outcome,
    Population,
    Purpose,
    Results,
    Rows,
    Spaces,
    State,
    VectorProblemDefaults,
    VectorTask,
    cut,
    option,
    options,
    row_dtype,
)

HERE = __name__
OTHERS = "own_"  # prefix of the renamed options


def _values(hint: Any) -> list[Any]:
    """Values of an option of this type that are likely to change what a built-in kind does."""
    values: list[Any] = []
    for member in union_members(hint):
        base = get_args(member)[0] if hasattr(member, "__metadata__") else member
        if get_origin(base) is Literal:
            values += get_args(base)
        elif base is bool:
            values += [True, False]
        elif base in {int, float}:
            values += [2, 0.5]
        elif base is str:
            values += ["x"]
    return values or ["x"]


def of_built_in_kinds() -> dict[str, list[Any]]:
    """Values to try by name of the option."""
    names: dict[str, list[Any]] = {}
    for package, kinds in MODULES.items():
        for kind in kinds:
            for name, hint in field_hints(module(package, kind).Options).items():
                known = names.setdefault(name, [])
                known += [value for value in _values(hint) if value not in known]
    del names["kind"]
    return dict(sorted(names.items()))


def _options(name: str, prefix: str) -> type[Any]:
    hints = {"kind": str, **{prefix + each: Any for each in of_built_in_kinds()}}
    defaults = {"kind": option("this class", f"{HERE}:{name}")}
    defaults |= {prefix + each: option("an option", None) for each in of_built_in_kinds()}
    return options(type("Options", (), {"__annotations__": hints, "__module__": HERE, **defaults}))


class Bowl(VectorProblemDefaults):
    """Minus the squared distance to (1, 2, 3)."""

    layout = Layout({"x": (3,)})
    dtype = np.dtype(np.float64)
    cutting = "free"

    def initial(self, rng: np.random.Generator) -> Float64:
        """Zeros."""
        return np.zeros(3)

    def evaluate(self, population: Population, jobs: Any, carried: Any, poll: Any) -> Outcome:
        """One row per candidate."""
        rows = np.zeros(len(jobs), row_dtype())
        rows["return_"] = -np.square(population.stacked() - [1.0, 2.0, 3.0]).sum(axis=1)
        rows["length"] = 1
        return Outcome(rows, {}, {"environment": 0.0})


class BowlTask:
    """`task:` of both kinds."""

    OFFERS = Offers(problems=("vectors",), any_chunks=True)

    @staticmethod
    def build(options: Any, repetition: int = 0) -> VectorTask:
        """The task, whatever its options."""
        return VectorTask("bowl", lambda keys: Bowl())


class Climber(BaseStrategy[Array]):
    """`algorithm:` of both kinds: theta moves to the mean
    of the better half of eight candidates.
    """

    NEEDS = Needs(searches="vectors", noise=True)

    def initial(self) -> State:
        """The first centre."""
        return State(0, {"theta": self.first_theta()}, {})

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Eight jobs."""
        return [] if round else cut(8, self.chunk_size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Normal perturbations."""
        return self.perturbed(state, chunk, 0.5)

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Array:
        """Weights, float64[1, jobs]."""
        return ((fitness >= np.median(fitness)) / 4)[np.newaxis].astype(np.float64)

    def partial_update(self, state: State, prepared: Array, block: int) -> Arrays:
        """The weighted sum of a block."""
        return {"step": self.weighted_sums(state, prepared, (1,), block)[0]}

    def tell(self, state: State, results: Results[Array]) -> tuple[State, Mapping[str, float]]:
        """The moved centre."""
        step = np.concatenate([block["step"] for block in results.blocks])
        theta = (state.theta + 0.5 * step).astype(state.theta.dtype)
        return State(state.generation + 1, {"theta": theta}, {}), {}


class Linear(FeedForwardPolicy):
    """`policy:` of both kinds."""

    def __init__(self, spaces: Spaces) -> None:
        self.head = Head.of(spaces.actions, None)
        self.layout = Layout({"weights": (spaces.observations.size, self.head.outputs)})

    @staticmethod
    def build(options: Any, spaces: Spaces) -> Linear:
        """The policy, whatever its options."""
        return Linear(spaces)

    def outputs(self, parameters: Mapping[str, Array], inputs: Array) -> Float32:
        """Weighted sums."""
        return np.matmul(inputs[:, np.newaxis], parameters["weights"])[:, 0]


class Normal(BlockNoise):
    """`noise:` of both kinds."""

    def __init__(self, keys: Keys, size: int) -> None:
        super().__init__(size, size)
        self._keys = keys

    @staticmethod
    def build(options: Any, keys: Keys, layout: Layout, shared: object) -> Normal:
        """The noise, whatever its options."""
        return Normal(keys, layout.size)

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Normal numbers."""
        generator = self._keys.generator(Purpose.PERTURBATION, generation, pair)
        return generator.standard_normal(self.size, np.float32)[start:stop]


KINDS: Mapping[Package, type[Any]] = {
    "tasks": BowlTask,
    "algorithms": Climber,
    "policies": Linear,
    "noise": Normal,
}
for _base in KINDS.values():
    for _name, _prefix in ((f"Named{_base.__name__}", ""), (f"Other{_base.__name__}", OTHERS)):
        globals()[_name] = type(_name, (_base,), {"Options": _options(_name, _prefix)})
