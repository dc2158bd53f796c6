"""Where a run stands, on rank 0: its state, counters and best evaluation.

What follows from them is here, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.config.resolved import resolved
from hpc_es.config.schema import Config, Stop
from hpc_es.core.data import (
    Array,
    Arrays,
    ConfigData,
    Json,
    ProblemState,
    Rows,
    State,
    without_info,
)
from hpc_es.core.interfaces import NamesParameters, Problem
from hpc_es.storage.answers import LARGEST_X, NAMES, Found, answer_text
from hpc_es.storage.results import BUDGET
from hpc_es.storage.status import is_surpassed
from hpc_es.training.found import found_by, with_centre
from hpc_es.training.generation import NOTHING_USED, Counters, MetricsRow, derived_fitness

if TYPE_CHECKING:
    from hpc_es.storage.checkpoint import BestCentre

# Counters of `stop.patience`: evaluations since the last improvement, the value then (higher is
# better), and the sum of its constraint violations. Only runs with a patience have them.
PLATEAU = ("evaluations_without_improvement", "improved_value", "improved_violation")
# Counter of runs with `stop.target_value`: mean return of the candidates of the last generations.
GENERATION_MEAN = "generation_return"
NEWEST = 1 / 3  # weight of the last generation in it
# Share of the standard deviation of the last candidates that is noise, from which the log says so.
NOISE_LIMITS = 0.7
HYPERVOLUME = "hypervolume"  # counter of runs with `stop.hypervolume`: that of the newest front


def smoothed(before: float | None, mean: float) -> float:
    """Return the mean of the last generations, after one with this mean: the weights of earlier
    ones decrease exponentially. The mean of one generation of noisy values is luck, too.

    Examples:
        >>> smoothed(None, 9.0), smoothed(9.0, 6.0)
        (9.0, 8.0)
    """
    return mean if before is None else before + NEWEST * (mean - before)


@dataclass(frozen=True)
class StopRule:
    """The limits of `stop:`."""

    stop: Stop
    sign: int  # from value to return

    def count(self, counters: Counters, row: MetricsRow) -> None:
        """Update the counters of `stop.patience` with the metrics of a generation.

        Values are compared with the last one that was an improvement, so that slow progress adds
        up. With several objectives, the hypervolume of the front is the value. With constraints, a
        smaller violation of the best vector is an improvement too, and so
        is the first feasible vector.
        """
        stop = self.stop
        counters.pop(HYPERVOLUME, None)
        if stop.hypervolume is not None and (volume := row.get("hypervolume")) is not None:
            counters[HYPERVOLUME] = volume
        mean = row.get("return_mean")
        if stop.target_value is not None and mean is not None and not math.isnan(mean):
            counters[GENERATION_MEAN] = smoothed(counters.get(GENERATION_MEAN), mean)
        if stop.patience is None:
            for name in PLATEAU:
                counters.pop(name, None)
            return
        if (value := row.get("best_value")) is not None:
            evaluations, violation = (
                int(row["episodes_this_generation"] or 0),
                float(row.get("best_violation") or 0),
            )
            value *= self.sign
        elif "hypervolume" in row:
            evaluations, violation = int(row["episodes_this_generation"] or 0), 0.0
            value = row["hypervolume"]
        else:
            evaluations, violation, value = (
                int(bool(row["evaluation_episodes"])),
                0.0,
                row["evaluation_return_mean"],
            )
        stale, last, last_violation = (counters.get(name) for name in PLATEAU)
        is_valid = value is not None and not math.isnan(value)
        if evaluations and is_valid and value is not None:
            improves = last is None or last_violation is None or value > last + stop.min_improvement
            if not improves and last_violation:
                improves = violation == 0 or violation < last_violation - stop.min_improvement
            if improves:
                counters.update(zip(PLATEAU, (0, value, violation), strict=True))
                return
        counters[PLATEAU[0]] = int(stale or 0) + evaluations

    def evaluations_left(self, counters: Counters) -> int | None:
        """Return how many evaluations `stop.episodes` leaves; None without this limit."""
        return (
            None if self.stop.episodes is None else self.stop.episodes - int(counters["episodes"])
        )

    def reached(self, standing: Standing) -> str | None:
        """Return the first limit that a run has reached, or None."""
        stop, counters, best = self.stop, standing.counters, standing.best
        used = {**counters, "generations": standing.state.generation}
        for name in BUDGET:
            limit = getattr(stop, name)
            if limit is not None and used[name] >= limit:
                return f"stop.{name}: {limit:g}" if name == "seconds" else f"stop.{name}: {limit}"
        if (
            stop.target_return is not None
            and best is not None
            and best.return_ >= stop.target_return
        ):
            return f"stop.target_return: {stop.target_return:g}"
        if stop.target_value is not None and standing.is_reached(stop.target_value):
            return f"stop.target_value: {stop.target_value:g}"
        if (volume := stop.hypervolume) is not None and standing.is_front_reached(volume):
            return f"stop.hypervolume: {volume:g}"
        if stop.patience is not None and counters.get(PLATEAU[0], 0) >= stop.patience:
            return f"stop.patience: {stop.patience}"
        return None


@dataclass
class Standing:
    """Where a run stands after its last finished generation."""

    config: Config
    problem: Problem
    state: State
    counters: Counters = field(default_factory=lambda: dict(NOTHING_USED))
    best: BestCentre | None = None  # the best evaluation of a policy
    # Arrays in place of those of the state, after a generation that was cut short and the final
    # evaluation.
    final: Arrays = field(default_factory=dict)
    spread: float | None = None  # standard deviation of the returns of the last whole generation

    @cached_property
    def rule(self) -> StopRule:
        """The limits of the run."""
        return StopRule(self.config.stop, self.config.setup.offers.sign)

    @property
    def outcome(self) -> State:
        """The state with what a cut generation and the final evaluation have found."""
        return replace(self.state, master={**self.state.master, **self.final})

    def carried(self) -> ProblemState:
        """Return the problem's arrays, including those from the final evaluation."""
        return self.problem.carried().extract_from(self.outcome)

    def count(self, row: MetricsRow, counters: Counters) -> None:
        """Count a generation with these metrics; `counters` are those after it."""
        self.counters.update(counters)
        self.rule.count(self.counters, row)
        if not row.get("skipped_update"):
            self.spread = row.get("return_std")

    def cut_short(self, after: State) -> None:
        """Remain in this state, as a generation was cut short.

        What its jobs have found is in the other one.
        """
        self.final = _changed(self.state.master, after.master)

    def add_learned(self, units: Sequence[Arrays]) -> bool:
        """Add what the problem learned from the final evaluation.

        Returns:
            Whether anything changed.
        """
        before = self.carried().master
        changed = _changed(before, self.problem.merge(self.carried(), units).master)
        self.final = {**self.final, **changed}
        return bool(changed)

    def stop_reason(self) -> str | None:
        """Return the first limit of `stop:` that is reached, or None."""
        return self.rule.reached(self)

    def is_reached(self, target: float) -> bool:
        """Return whether a value is as good as `target`: the best one, or, if evaluations are
        noisy, the mean of the last generations, since the best of many noisy values is good luck.
        """
        if not self.has_noisy_answer:
            return self.problem.is_reached(self.carried(), target)
        return self.counters.get(GENERATION_MEAN, -math.inf) >= self.rule.sign * target

    @property
    def has_noisy_answer(self) -> bool:
        """Whether noise was measured, so that the answer is the centre, not the best evaluation."""
        is_single = len(self.problem.quantities.objectives) < 2
        is_plain = is_single and not self.problem.quantities.constraints
        return is_plain and self.config.setup.has_noise(self.state.shared)

    def has_succeeded(self, found: Found, target: float) -> bool:
        """Return whether the answer of a run is as good as `target`."""
        answer, sign = found.answer, self.rule.sign
        if answer.kind != "mean" or answer.value is None:
            return self.is_reached(target)
        return sign * answer.value >= sign * target

    def is_front_reached(self, volume: float) -> bool:
        """Return whether the hypervolume of the front is at least this one."""
        return self.counters.get(HYPERVOLUME, -math.inf) >= volume

    def is_better(self, state: State, evaluation: Rows) -> bool:
        """Whether an evaluation of the centre of this state is better than the best so far.

        It is if its mean fitness is higher; by default the fitness is the return. A derived fitness
        may rank rows relative to each other, so one call gets the rows of both evaluations.
        """
        returns = evaluation["return_"][~np.isnan(evaluation["return_"])]
        if not len(returns) or self.best is None:
            return len(returns) > 0
        if not self.problem.derives_fitness:
            return float(returns.mean()) > self.best.return_
        known, rows = self.best.rows, without_info(evaluation)
        # the best evaluation is of a version that compared returns
        if known is None or known.dtype != rows.dtype:
            return True
        carried = ProblemState({name: state.shared[name] for name in self.problem.carried().shared})
        fitness = derived_fitness(self.problem, carried, np.concatenate([known, rows]))
        old, new = (
            values[~np.isnan(values)] for values in (fitness[: len(known)], fitness[len(known) :])
        )
        return len(new) > 0 and (not len(old) or float(new.mean()) > float(old.mean()))

    def found(self, final: Mapping[str, float]) -> Found:
        """Return what the run has found so far.

        `final` has the results of the final evaluation, {} before it.
        """
        state = self.state
        found = found_by(
            self._plain_config,
            self.config.setup.vocabulary,
            state.shared,
            self.outcome.master,
            generation=state.generation,
            best=self.best,
            final=final,
        )
        problem = self.problem
        is_noisy = self.config.setup.has_noise(state.shared)
        if found.answer.kind != "evaluation" or not is_noisy:
            return found
        if not isinstance(problem, NamesParameters) or found.answer.violation is not None:
            return found
        # in the form of the best evaluation: by name, or a list
        vector = problem.evaluated_vectors(state.theta[np.newaxis])[0]
        x: Json = None
        if isinstance(found.best_evaluation.x, Mapping):
            x = dict(problem.parameters(vector))
        elif len(vector) <= LARGEST_X:
            x = vector.tolist()
        return with_centre(found, x, final)

    def noise_text(self, final: Mapping[str, float]) -> str | None:
        """Return that the last candidates of a search differ hardly more than evaluations of one
        vector do; None if they do, or if it is not known.
        """
        noise, spread = final.get("final_return_std"), self.spread
        is_known = self.found(final).answer.kind == "mean" and noise is not None and spread
        if not is_known or noise < NOISE_LIMITS * spread:  # type: ignore[operator]
            return None
        return (
            f"noise: evaluations of the centre have the standard deviation {noise:.3g}, and those of the last candidates "
            f"{spread:.3g}: the search can hardly tell candidates apart any more, and a larger algorithm.population_size "
            "would find better ones (docs/guides/noise.md)"
        )

    @cached_property
    def _plain_config(self) -> ConfigData:
        return resolved(self.config)

    @property
    def jobs_name(self) -> str:
        """What the log calls the jobs: programs, evaluations or episodes."""
        if self.config.setup.needs.searches == "programs":
            return "programs"
        return "episodes" if self.config.setup.vocabulary.has_episodes else "evaluations"

    def end_message(
        self, status: str, reason: str, generations: int, final: Mapping[str, float]
    ) -> str:
        """Return the last line of a run.

        `final` has the results of the final evaluation, if there was one.
        """
        counters, jobs = self.counters, self.jobs_name
        used = f"{counters['timesteps']:,} timesteps"
        if jobs != "episodes":
            used = f"{counters['episodes']:,} {jobs}"
        sign = self.config.setup.offers.sign  # from return to value
        work = f"{generations} generations, {used}, {counters['failed_episodes']:,} failed {jobs}"
        answer = self.found(final).answer
        # + 0.0: not -0
        best = f"  best evaluation {sign * self.best.return_ + 0.0:.4g}" if self.best else ""
        if answer.kind == "mean" and answer.value is not None:
            best = f"  {NAMES['mean']} {answer_text(answer)} of {answer.evaluations} evaluations"
        elif answer.kind == "evaluation":
            best = "" if answer.value is None else f"  best value {answer.value + 0.0:.4g}"
            best += f" (violation {answer.violation:.4g})" if answer.violation else ""
        if answer.kind == "front":
            best = f"  front of {answer.evaluations:,} member{'s' * (answer.evaluations != 1)}"
            best += "" if answer.value is None else f"  hypervolume {answer.value:.6g}"
        if status == "failed":
            return f"failed after {work}{best}: {reason}"
        has_final = bool(final) and answer.kind not in ("mean", "front")
        final_text = (
            f"  final evaluation {sign * final['final_return_mean'] + 0.0:.4g}" if has_final else ""
        )
        is_last_better = answer.is_evaluated_centre and is_surpassed(self.best, final)
        better = " (the last theta did better)" if is_last_better else ""
        again = "; the same command resumes the run" if status == "interrupted" else ""
        return f"{status} by {reason} after {work}{final_text}{best}{better}{again}"


def _changed(before: Arrays, after: Arrays) -> dict[str, Array]:
    """Return the arrays that differ from those of the same names before."""
    return {
        name: array for name, array in after.items() if array.tobytes() != before[name].tobytes()
    }
