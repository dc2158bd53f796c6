"""Trials that stand for all of them, and the mistakes that a validation of trials finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from hpc_es.config.yaml_text import Problem
from hpc_es.core.errors import ConfigError
from hpc_es.tuning.sampling import Hyperparameters
from hpc_es.tuning.space import Space

SAID = 3  # mistakes of one key that are told; a random search may have one a trial


def probes(space: Space) -> list[Hyperparameters]:
    """Trials in which each value, or end of a range, stands once beside the first values of the other keys."""
    first = {key: entry.ends[0] for key, entry in space.items()}
    return [{**first, key: value} for key, entry in space.items() for value in entry.ends]


def problems_of(validate: Callable[[Hyperparameters], object], trials: Iterable[Hyperparameters]) -> list[Problem]:
    """Return the mistakes that `validate` finds in the trials: each once, and of each key some."""
    found: dict[Problem, None] = {}
    for hyperparameters in trials:
        try:
            validate(hyperparameters)
        except ConfigError as error:
            found |= dict.fromkeys(error.problems)
    counts, told = Counter(key for key, _ in found), Counter[str]()
    problems = []
    for key, text in found:
        told[key] += 1
        if told[key] <= SAID:
            more = f" (and {counts[key] - SAID} more like this)" if told[key] == SAID < counts[key] else ""
            problems.append((key, text + more))
    return problems
