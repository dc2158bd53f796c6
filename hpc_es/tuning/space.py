"""The search space: lists of values and ranges of numbers, and trials from them.

The trials are those of grids and random searches. The hyperparameters of a trial follow from its
number alone, so they are the same in every task.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from hpc_es.core.data import ConfigData
from hpc_es.core.errors import ConfigProblem, found_text, nearest
from hpc_es.core.keys import Keys, Purpose

Value: TypeAlias = Any  # of a config key, as YAML gives it
Hyperparameters = dict[str, Value]  # by dotted key


def mixed_base_digits(number: int, bases: Sequence[int]) -> list[int]:
    """Return the digits of a number in a mixed base, the least significant first."""
    result = []
    for base in bases:
        number, digit = divmod(number, base)
        result.append(digit)
    return result


def grid_size(space: Space) -> int:
    """Return the number of combinations."""
    return math.prod(len(entry.ends) for entry in space.values())


def grid_trial(space: Space, number: int) -> Hyperparameters:
    """Return a trial of a grid: keys in alphabetical order, the first varies fastest."""
    lists = {
        key: entry.values for key, entry in sorted(space.items()) if isinstance(entry, ValueList)
    }
    places = mixed_base_digits(number, [len(values) for values in lists.values()])
    return {key: values[digit] for (key, values), digit in zip(lists.items(), places, strict=True)}


def random_trial(space: Space, number: int, seed: int) -> Hyperparameters:
    """Return a trial of a random search."""
    keys = Keys(seed)
    return {
        key: entry.sample(keys.generator(Purpose.TUNING, index=number, block=block))
        for block, (key, entry) in enumerate(sorted(space.items()))
    }


def all_trials(search: str, space: Space, trials: int, seed: int) -> list[Hyperparameters]:
    """Return all trials, none for Optuna, which chooses them later."""
    if search == "optuna":
        return []
    return [
        grid_trial(space, number) if search == "grid" else random_trial(space, number, seed)
        for number in range(trials)
    ]


MOST_KEYS, LONGEST_KEY, LONGEST_ENTRY = 1000, 200, 200_000  # characters of a key, of its values
DEEPEST = 20  # names of a dotted key
RANGES = ("uniform", "log_uniform", "integer")
RESERVED = ("name", "output", "repetitions", "repetition_groups")
EXAMPLE = "such as {log_uniform: [0.001, 0.1]}"


@dataclass(frozen=True)
class ValueList:
    """A choice among values, all equally likely."""

    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values to validate."""
        return self.values

    def has(self, value: Value) -> bool:
        """Return whether it is one of the values; 1, 1.0 and true are three."""
        return as_text(value) in map(as_text, self.values)

    def sample(self, rng: np.random.Generator) -> Value:
        """Return a random value."""
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True)
class ValueRange:
    """A number from `low` to `high`; integers include both."""

    kind: Literal["uniform", "log_uniform", "integer"]
    low: float
    high: float

    @property
    def ends(self) -> tuple[float, float]:
        """The values to validate: if both are valid, so are all between them."""
        return self.low, self.high

    def has(self, value: Value) -> bool:
        """Return whether it is a number of the range, up to the rounding of logarithms."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind == "integer" and not isinstance(value, int):
            return False
        slack = 1e-12 if self.kind == "log_uniform" else 0.0
        return self.low * (1 - slack) <= value <= self.high * (1 + slack)

    def sample(self, rng: np.random.Generator) -> float | int:
        """Return a random number."""
        if self.kind == "integer":
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        if self.kind == "uniform":
            return self.low + (self.high - self.low) * float(rng.random())
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + (high - low) * float(rng.random())), self.low), self.high)


SpaceEntry = ValueList | ValueRange
Space = dict[str, SpaceEntry]  # by dotted key, in alphabetical order


def require_in_space(space: Space, hyperparameters: Hyperparameters) -> None:
    """Raise ValueError unless a trial gives each key of the space one of its values.

    Trials that are read from a directory may be somebody else's, and settings of a config can name
    code.
    """
    if other := sorted({*space} ^ {*hyperparameters}):
        raise ValueError(f"expected values of {', '.join(space)}, found or missing: {other[0]}")
    for key, entry in space.items():
        if not entry.has(hyperparameters[key]):
            raise ValueError(
                f"expected a value of {key} from the space, found "
                f"{found_text(hyperparameters[key])}"
            )


def require_small(data: ConfigData) -> None:
    """Raise ValueError for more keys, values or text than reports can show."""
    if len(data) > MOST_KEYS:
        raise ValueError(f"its space has {len(data):,} keys, expected at most {MOST_KEYS:,}")
    for key, entry in data.items():
        size = len(as_text(entry))
        if size > LONGEST_ENTRY or len(key) > LONGEST_KEY:
            raise ValueError(f"its space has {size:,} characters of {key[:LONGEST_KEY]!r}")


def parse_space(data: ConfigData, search: str) -> tuple[Space, list[ConfigProblem]]:
    """Return the valid entries, and the errors of the others."""
    space: Space = {}
    problems = list(_key_problems(data))
    try:
        require_small(data)
    except ValueError as error:
        problems.append(("space", str(error)))
    wrong = {key for key, _ in problems}
    for key in sorted(data):
        try:
            entry = _entry(data[key], search)
            if f"space.{key}" not in wrong:
                space[key] = entry
        except ValueError as error:
            problems.append((f"space.{key}", str(error)))
    return space, problems


def _key_problems(data: ConfigData) -> Iterator[ConfigProblem]:
    for key in sorted(data):
        names = key.split(".")
        above = [".".join(names[:length]) for length in range(1, min(len(names), DEEPEST))]
        if above := [other for other in above if other in data]:
            yield (
                f"space.{key}",
                f"is a part of {above[0]!r}, which is in the space too: remove one of them",
            )
        if not all(key.split(".")):
            yield f"space.{key}", f"expected a dotted key such as 'algorithm.sigma', found {key!r}"
        if key in RESERVED:
            remedy = (
                "write it beside `space`" if key == "repetitions" else "set it in the base config"
            )
            yield f"space.{key}", f"is the same for all trials: {remedy}"


def _entry(data: Value, search: str) -> SpaceEntry:
    if isinstance(data, list):
        return _values(data)
    if search == "grid":
        ranges = "; for ranges take search: random or optuna" if isinstance(data, Mapping) else ""
        raise ValueError(
            f"expected a list of values, such as [0.1, 0.2], found {found_text(data)}{ranges}"
        )
    names = [*RANGES, "choice"]
    if not isinstance(data, Mapping) or len(data) != 1:
        raise ValueError(
            f"expected a list of values or one of {', '.join(names)}, {EXAMPLE}, found {found_text(data)}"
        )
    ((kind, bounds),) = data.items()
    if kind == "choice":
        return _values(bounds)
    if kind not in RANGES:
        raise ValueError(
            f"expected one of {', '.join(names)}, {EXAMPLE}, found {kind!r}{nearest(kind, names)}"
        )
    return _range(kind, bounds)


def _values(data: Value) -> ValueList:
    if not isinstance(data, list) or not data:
        raise ValueError(f"expected a list of values, such as [0.1, 0.2], found {found_text(data)}")
    seen = set[str]()
    for text in map(as_text, data):
        if text in seen:
            raise ValueError(f"the value {text} occurs twice")
        seen.add(text)
    return ValueList(tuple(data))


def _range(kind: Literal["uniform", "log_uniform", "integer"], data: Value) -> ValueRange:
    is_pair = isinstance(data, list) and len(data) == 2
    numbers = (int,) if kind == "integer" else (int, float)
    words = "whole numbers" if kind == "integer" else "numbers"
    if not is_pair or any(isinstance(item, bool) or not isinstance(item, numbers) for item in data):
        raise ValueError(
            f"expected {{{kind}: [low, high]}} with two {words}, found {found_text(data)}"
        )
    low, high = data
    if not low < high or not math.isfinite(high - low):
        raise ValueError(f"expected {{{kind}: [low, high]}} with low < high, found {as_text(data)}")
    if kind == "log_uniform" and low <= 0:
        raise ValueError(f"expected {{{kind}: [low, high]}} with low > 0, found {as_text(data)}")
    return (
        ValueRange(kind, low, high)
        if kind == "integer"
        else ValueRange(kind, float(low), float(high))
    )


def as_text(value: Value) -> str:
    """Return a value as JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False)
