"""The trials of a grid or a random search: the same on every task, each computed from its number alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpc_es.core.keys import Keys, Purpose
from hpc_es.tuning.space import Space, Values

Hyperparameters = dict[str, Any]  # by dotted key


def digits(number: int, bases: Sequence[int]) -> list[int]:
    """Return a number in a mixed base, the least significant digit first."""
    found = []
    for base in bases:
        number, digit = divmod(number, base)
        found.append(digit)
    return found


def grid_size(space: Space) -> int:
    """Return how many trials all combinations are."""
    return math.prod(len(entry.ends) for entry in space.values())


def grid(space: Space, number: int) -> Hyperparameters:
    """Return a trial of the grid of Values: keys in alphabetical order, the first varies fastest."""
    lists = {key: entry.values for key, entry in sorted(space.items()) if isinstance(entry, Values)}
    places = digits(number, [len(values) for values in lists.values()])
    return {key: values[place] for (key, values), place in zip(lists.items(), places, strict=True)}


def random(space: Space, number: int, seed: int) -> Hyperparameters:
    """Return a trial of a random search."""
    keys = Keys(seed)
    return {
        key: entry.sample(keys.generator(Purpose.TUNING, index=number, block=place))
        for place, (key, entry) in enumerate(sorted(space.items()))
    }


def table(search: str, space: Space, trials: int, seed: int) -> list[Hyperparameters]:
    """Return all trials that are known beforehand: none of optuna's."""
    if search == "optuna":
        return []
    return [grid(space, number) if search == "grid" else random(space, number, seed) for number in range(trials)]
