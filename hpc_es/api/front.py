"""The result of `minimize` with several objectives, and the front of `Strategy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.front import finite_or_none, front_of
from hpc_es.core.data import ConfigData, Float64, JsonObject, State
from hpc_es.core.domination import knee
from hpc_es.core.errors import ConfigError
from hpc_es.core.interfaces import KeepsElites
from hpc_es.core.plain import plain
from hpc_es.core.quantities import OBJECTIVES
from hpc_es.tasks.functions.parameters import Value
from hpc_es.tasks.functions.problem import ObjectiveProblem
from hpc_es.training.generation import MetricsRow

ALGORITHM = "nsga2"  # default with several objectives

# a number of objectives, their names, or goals by name, also with references
Objectives: TypeAlias = "int | Sequence[str] | Mapping[str, object]"


@dataclass(frozen=True)
class Front:
    """The front that a search with several objectives has found, the same on every rank.

    Members are feasible, and no evaluated feasible vector was better in one objective and as good
    in all others. The best of the first objective is the first.
    """

    x: Float64  # float64[members, size], as passed to the function
    f: Float64  # float64[members, objectives], as the function returned them
    parameters: Sequence[Mapping[str, Value]]  # x by name: x0, x1, ... unless they have names
    objectives: Sequence[str]  # their names, in the order of f
    names: Sequence[str]  # of members, such as "g12j7" for job 7 of generation 12
    knee: int | None  # the member whose worst scaled objective is best; None: there are none
    # from the references of the objectives; None: it is not known
    hypervolume: float | None
    evaluations: int
    generations: int
    reason: str = ""  # why the search ended
    # 0: all kernels have converged; 1: max_evaluations; 2: another end; 3: the callback raised
    # StopIteration; 4: a signal; -1: the search is running
    status: int = -1
    metrics: MetricsRow = field(default_factory=dict)  # of the generation; at the end, of the last

    def __len__(self) -> int:
        return len(self.x)

    @property
    def success(self) -> bool:
        """Whether status is 0."""
        return self.status == 0

    def message(self) -> JsonObject:
        """Return the front as plain data, for the other ranks."""
        return {**vars(self), "x": self.x.tolist(), "f": self.f.tolist()}

    @classmethod
    def from_message(cls, message: JsonObject, size: int) -> Front:
        """Return the front of vectors of this size from the result of `message`."""
        x, f = np.array(message["x"], np.float64), np.array(message["f"], np.float64)
        arrays = {"x": x.reshape(-1, size), "f": f.reshape(-1, len(message["objectives"]))}
        return cls(**{**message, **arrays})


def objective_options(
    objectives: Objectives | None, reference: npt.ArrayLike | None = None
) -> ConfigData | None:
    """Return `task.objectives` of the argument `objectives`; None without.

    A number stands for the names f1, f2, ... of minimised objectives. `reference` has a value for
    each of them. Raises ConfigError.
    """
    if objectives is None:
        if reference is not None:
            raise ConfigError([("reference", "is given without objectives: remove it")])
        return None
    named: dict[str, object]
    if isinstance(objectives, int):
        if objectives < 2:
            raise ConfigError(
                [("objectives", f"is {objectives}: expected at least 2, or none for one value")]
            )
        named = {f"f{number}": "minimise" for number in range(1, objectives + 1)}
    elif isinstance(objectives, Mapping):
        named = dict(objectives)
    else:
        named = dict.fromkeys(objectives, "minimise")
        if len(named) < len(objectives):
            raise ConfigError(
                [
                    (
                        "objectives",
                        f"has equal names, {', '.join(map(str, objectives))}: expected different ones",
                    )
                ]
            )
    if reference is not None:
        values = np.asarray(reference, np.float64)
        if values.shape != (len(named),):
            raise ConfigError(
                [
                    (
                        "reference",
                        f"expected {len(named)} numbers, one for each objective, found the shape "
                        f"{list(values.shape)}",
                    )
                ]
            )
        named = {
            name: {**(goal if isinstance(goal, Mapping) else {"goal": goal}), "reference": value}
            for (name, goal), value in zip(named.items(), values.tolist(), strict=True)
        }
    options = plain(named, "task.objectives")
    assert isinstance(options, dict)
    return options


def front_in(
    algorithm: KeepsElites,
    problem: ObjectiveProblem,
    state: State,
    *,
    evaluations: int,
    metrics: MetricsRow,
) -> Front:
    """Return the front of a state."""
    elites = algorithm.elites(state)
    x = problem.evaluated_vectors(elites.vectors).reshape(-1, problem.size)
    f = np.asarray(elites.columns[OBJECTIVES], np.float64)
    names = problem.coordinates.names
    volume = front_of(state.master)[1] if "front_hypervolume" in state.master else np.nan
    return Front(
        x=x,
        f=f,
        parameters=[
            dict(zip(names, problem.coordinates.decoded(vector), strict=True)) for vector in x
        ],
        objectives=list(problem.quantities.objectives),
        names=elites.names,
        knee=knee(-problem.quantities.signs * f) if len(f) else None,
        hypervolume=finite_or_none(volume),
        evaluations=evaluations,
        generations=state.generation,
        metrics=metrics,
    )
