"""Constraints of objectives: g_i(x) <= 0 is feasible.

Two ways to derive the fitness that strategies rank.

`feasible_first` (Deb 2000) ranks feasible vectors by their value, and before the others, which are
ranked by their violation, the sum of the positive g_i.

`augmented_lagrangian` ranks by the cost f + sum_i lam_i g'_i + mu_i g'_i^2 / 2, with g'_i =
max(g_i, -lam_i / mu_i). The coefficients are adapted after each generation by the rules of pycma's
ConstrainedFitnessAL. It suits smooth problems of continuous parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Arrays, Float64, Jobs, ProblemState, Rows
from hpc_es.core.keys import Keys
from hpc_es.core.quantities import CONSTRAINTS, feasible_first, violations
from hpc_es.tasks.functions.initial_points import InitialPoints
from hpc_es.tasks.functions.options import Bounds, Coordinates, SearchOptions
from hpc_es.tasks.functions.problem import ObjectiveProblem
from hpc_es.tasks.functions.python_evaluator import Evaluator

# of the jobs of a chunk, for the update of the coefficients
COSTS, CONSTRAINT_VALUES = "costs", "constraint_values"


@dataclass(frozen=True)
class Lagrangian:
    """Coefficients of the augmented Lagrangian, and the state of their adaptation.

    State, shared:
        lagrangian_multipliers: float64[constraints], if the handling is augmented_lagrangian; lam
        lagrangian_penalties: float64[constraints], if the handling is augmented_lagrangian; mu
    State, master:
        lagrangian_is_set: bool[constraints], if the handling is augmented_lagrangian; whether start
            values are final
        lagrangian_count: int64[], if the handling is augmented_lagrangian; number of updates
        lagrangian_recent: float64[updates, constraints], if the handling is augmented_lagrangian; g
            of recent updates
        lagrangian_runs: int64[constraints], if the handling is augmented_lagrangian; equal changes
            of mu, signed
    """

    multipliers: Float64
    penalties: Float64
    is_set: npt.NDArray[np.bool_]
    count: int
    recent: Float64
    runs: npt.NDArray[np.int64]

    @classmethod
    def initial(cls, constraints: int, size: int) -> Lagrangian:
        """Return coefficients of 0 for a problem of `size` coordinates."""
        zeros = np.zeros(constraints)
        recent = np.full((size + 5, constraints), np.nan)
        return cls(
            zeros,
            zeros,
            np.zeros(constraints, np.bool_),
            0,
            recent,
            np.zeros(constraints, np.int64),
        )

    def arrays(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the arrays (shared, master) of the state."""
        names = {name: np.asarray(value) for name, value in vars(self).items()}
        shared = {f"lagrangian_{name}": names.pop(name) for name in ("multipliers", "penalties")}
        return shared, {f"lagrangian_{name}": value for name, value in names.items()}

    @classmethod
    def from_arrays(cls, state: ProblemState) -> Lagrangian:
        """Return the coefficients from arrays of the state."""
        arrays = {**state.shared, **state.master}
        values = {name: arrays[f"lagrangian_{name}"] for name in cls.__dataclass_fields__}
        return cls(**{**values, "count": int(values["count"])})  # type: ignore[arg-type]

    def updated(self, costs: Float64, g: Float64, size: int) -> Lagrangian:
        """Return the coefficients after a generation of successful jobs, in job order.

        `costs` are float64[jobs], g is float64[jobs, constraints], and `size` is the number of
        coordinates.
        """
        best = g[int(np.argmin(costs + lagrangian_terms(self.multipliers, self.penalties, g)))]
        new = self if self.is_set.all() else self._with_start_values(costs, g, size)
        lam, mu, runs = new.multipliers.copy(), new.penalties.copy(), self.runs.copy()
        last, recent = self.recent[-1], np.concatenate([self.recent[1:], best[np.newaxis]])
        growth = 2 ** (1 / (5 * size))
        for i in np.flatnonzero(mu > 0).tolist():
            if (
                max(best[i], g[:, i].max(), -math.inf if np.isnan(last[i]) else last[i]) * mu[i]
                > -lam[i]
            ):
                lam[i] += mu[i] * best[i] / 5
            if lam[i] < 0:
                lam[i] = 0.0
                continue
            if mu[i] * best[i] < -lam[i]:
                continue
            known = recent[~np.isnan(recent[:, i]), i]
            inside = float((known < 0).sum() + 0.5 * (known == 0).sum()) / len(known)
            if best[i] > 0 or (mu[i] * best[i] > -lam[i] and inside > 0.95):
                sign = 1
            elif best[i] < 0 and inside < 0.9:
                sign = -1
            else:
                continue
            runs[i] = sign if runs[i] * sign < 0 else runs[i] + sign
            run = abs(int(runs[i]))
            extra = 0.0 if run <= size + 2 else 4 / (size + 2) * min(size + 2, run - size - 2)
            mu[i] *= growth ** (sign * 0.25 * (1 + extra))
        return replace(
            new, multipliers=lam, penalties=mu, count=self.count + 1, recent=recent, runs=runs
        )

    def _with_start_values(self, costs: Float64, g: Float64, size: int) -> Lagrangian:
        """Return the coefficients with start values from the spreads.

        These are the spreads of costs and constraint values.
        """
        lam, mu, is_set = self.multipliers.copy(), self.penalties.copy(), self.is_set.copy()
        spread = _quartile_range(costs)
        for i in np.flatnonzero(~self.is_set).tolist():
            balance = 2 * float((g[:, i] > 0).mean()) - 1  # -1: all are feasible
            if balance > -0.8:
                of_g, of_squares, small = (
                    _quartile_range(g[:, i]),
                    _quartile_range(g[:, i] ** 2),
                    1e-11 * (spread + 1),
                )
                lam[i] = spread / (size * of_g + small)
                start = 0.4 * spread / (size * (of_g + 1e-6 * of_squares + small))
                if 0 < start < mu[i] and balance <= 0.2:
                    lam[i] *= start / mu[i]
                largest = float(np.abs(g[:, i]).max())
                mu[i] = min(20 * start, max(start, lam[i] / largest)) if largest else start
                is_set[i] = abs(balance) < 0.8 or self.count > size + 2
        return replace(self, multipliers=lam, penalties=mu, is_set=is_set)


def _quartile_range(values: Float64) -> float:
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def lagrangian_terms(multipliers: Float64, penalties: Float64, g: Float64) -> Float64:
    """Return the terms that the Lagrangian adds to the costs, float64[jobs].

    g is float64[jobs, constraints].
    """
    least = np.divide(-multipliers, penalties, out=np.zeros(len(penalties)), where=penalties > 0)
    kept = np.where(penalties > 0, np.maximum(g, least), 0.0)
    terms: Float64 = (multipliers * kept + penalties * kept**2 / 2).sum(axis=1)
    return terms


class ConstrainedProblem(ObjectiveProblem):
    """The search for the feasible vector with the best value.

    Until there is one, it is the least infeasible vector.

    State, master:
        feasible_share: float64[]; share of feasible vectors in the last generation; NaN before the
            first one
    State, shared:
        those of `hpc_es.tasks.functions.constraints.Lagrangian`
    """

    def __init__(
        self,
        search: SearchOptions,
        coordinates: Coordinates,
        initial: Float64 | Bounds,
        *,
        evaluator: Evaluator,
        keys: Keys,
        batch: int = 0,
        points: InitialPoints | None = None,
    ) -> None:
        super().__init__(
            search,
            coordinates,
            initial,
            evaluator=evaluator,
            keys=keys,
            batch=batch,
            points=points,
        )
        self._names = search.constraint_names
        self.relative_fitness = True
        self.changing_fitness = search.constraint_handling == "augmented_lagrangian"

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        """Return minus the cost with constraints, float64[jobs]."""
        costs, g = -rows["return_"], rows[CONSTRAINTS]
        if not self.changing_fitness:
            return -feasible_first(costs, g)
        shared = carried.shared
        return -(
            costs
            + lagrangian_terms(shared["lagrangian_multipliers"], shared["lagrangian_penalties"], g)
        )

    def _learned(self, vectors: Float64, rows: Rows, jobs: Jobs) -> list[list[Arrays]]:
        """Return the best vector, with costs and constraint values of the successful jobs."""
        learned = super()._learned(vectors, rows, jobs)
        if jobs.purpose != "train" or not learned:
            return learned
        succeeded = ~np.isnan(rows["return_"])
        values = {
            COSTS: -rows["return_"][succeeded],
            CONSTRAINT_VALUES: rows[CONSTRAINTS][succeeded],
        }
        return [[{**learned[0][0], **values}]]

    def carried(self) -> ProblemState:
        best = super().carried()
        own, master = self._lagrangian_arrays(Lagrangian.initial(len(self._names), self.size))
        shared = {**best.shared, **own}
        return ProblemState(shared, {**best.master, "feasible_share": np.array(np.nan), **master})

    def _lagrangian_arrays(self, lagrangian: Lagrangian) -> tuple[Arrays, Arrays]:
        return lagrangian.arrays() if self.changing_fitness else ({}, {})

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        trained = [unit for unit in units if COSTS in unit]
        best = super().merge(carried, units)
        shared, master = best.shared, {**carried.master, **best.master}
        if trained:
            costs = np.concatenate([unit[COSTS] for unit in trained])
            g = np.concatenate([unit[CONSTRAINT_VALUES] for unit in trained])
            master["feasible_share"] = np.array(float((violations(g) == 0).mean()))
            if self.changing_fitness:
                lagrangian = Lagrangian.from_arrays(carried).updated(costs, g, self.size)
                of_all, own = self._lagrangian_arrays(lagrangian)
                shared, master = {**shared, **of_all}, {**master, **own}
        return ProblemState(shared, master)

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return those of the best vector, and `feasible_share`, that of the generation."""
        return {
            **super().metrics(carried),
            "feasible_share": float(carried.master["feasible_share"]),
        }
