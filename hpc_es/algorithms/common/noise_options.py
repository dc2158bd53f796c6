"""The option `noise_handling`, and what follows from it before a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpc_es.algorithms.common import distribution, learning_rates
from hpc_es.algorithms.common.noise_handling import (
    COLUMNS,
    LEAST_CANDIDATES,
    METRICS,
    Chosen,
    Mode,
    report,
    report_of_one,
)
from hpc_es.algorithms.common.ranking import default_population
from hpc_es.config.options import option, options, unused
from hpc_es.core.declarations import Needs
from hpc_es.core.interfaces import DeclaresNoise, VectorProblem


@options
class Options(distribution.Options):
    """Options of a strategy with a normal distribution that can handle noise."""

    noise_handling: Mode = option(
        "auto: measure whether evaluations are noisy and, if that disturbs the ranking, evaluate some candidates again; "
        "none; reevaluate: always do so; learning_rate: smaller updates, for long runs. Functions and programs have auto",
        "none",
    )

    reevaluated: Chosen = option(
        "candidates that are evaluated again: boundary (those next to the boundary of the selection, in a second round), "
        "or drawn (at random, in the first round, so that no rank waits for it)",
        "boundary",
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        yield from super().warnings()
        if self.noise_handling in ("none", "learning_rate"):
            yield from unused(self, ("reevaluated",), f"noise_handling is {self.noise_handling}")

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each mistake that involves several options."""
        yield from super().problems()
        if self.side_by_side and self.noise_handling in ("reevaluate", "learning_rate"):
            yield (
                "noise_handling",
                f"is {self.noise_handling}, which searches side by side do not have: expected "
                "none, or side_by_side: false",
            )


def needs_of_handling(needs: Needs, options: Options) -> Needs:
    """Return the requirements of a strategy with this option."""
    if options.noise_handling == "none":
        return needs
    needs = replace(needs, columns=(*needs.columns, *COLUMNS), equal_generations=False)
    if options.noise_handling == "learning_rate":
        metrics = {**needs.metrics, **learning_rates.METRICS}
        return replace(needs, metrics=metrics, noise_report=report_of_one())
    metrics = {**needs.metrics, **METRICS}
    return replace(needs, metrics=metrics, noise_report=report(options.reevaluated))


def mismatches(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the option: (key, text)."""
    mode, key = options.noise_handling, "algorithm.noise_handling"
    if mode not in ("reevaluate", "learning_rate"):
        return
    if isinstance(problem, DeclaresNoise) and problem.is_noisy is False:
        yield (
            key,
            f"is {mode}, but task.deterministic is true, or task.close_at or task.repeats is "
            "set: expected one of the two",
        )
    population = options.population_size or default_population(problem.size)
    if mode == "reevaluate" and population < LEAST_CANDIDATES:
        yield (
            key,
            f"is reevaluate, which needs at least {LEAST_CANDIDATES} candidates per generation, but there are {population}: "
            f"expected algorithm.population_size: {2 * LEAST_CANDIDATES}, or none with task.repeats",
        )
    if mode == "learning_rate" and problem.mixed is not None:
        yield (
            key,
            "is learning_rate, which is not defined for integers, steps, choices and booleans: "
            "expected auto, reevaluate or none",
        )
