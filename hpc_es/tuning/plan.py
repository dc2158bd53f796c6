"""A tuning as its YAML file says: what varies, around which config, and what is sought."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from hpc_es.config import Config, validate
from hpc_es.errors import ConfigError
from hpc_es.options import Count, option, options
from hpc_es.schema import validation
from hpc_es.schema.yaml_text import Problem, override, parse, read
from hpc_es.tuning.check import probes, problems_of
from hpc_es.tuning.objective import FINAL_RETURN, WEIGHT
from hpc_es.tuning.sampling import Hyperparameters, grid_size, table
from hpc_es.tuning.space import Space, as_text, parse_space

LARGEST_GRID = 10_000


@options
class Tuning:
    """The keys of a tuning file."""

    base: Annotated[str, MinLen(1)] = option("the config that is varied; relative to the tuning file")
    search: Literal["grid", "random", "optuna"] = option("how trials are chosen", "grid")
    space: Annotated[dict[str, Any], MinLen(1)] = option("what varies: dotted keys and their values")
    trials: Count | None = option("how many, for random and optuna", None)
    repetitions: Count | None = option("of each trial; null: those of the base config", None)
    objective: Literal["final_return"] | dict[str, Any] = option("what is maximised", FINAL_RETURN)

    def problems(self) -> Iterator[Problem]:
        """Mistakes that no single key shows."""
        if self.search == "grid" and self.trials is not None:
            yield "trials", "a grid has as many as its lists make: remove the key, or take search: random"
        if self.search != "grid" and self.trials is None:
            yield "trials", f"search: {self.search} needs to know how many, such as trials: 20"
        if isinstance(self.objective, dict) and not _is_weight(self.objective):
            text = f"expected {FINAL_RETURN!r} or {{{WEIGHT}: w}} with w from 0 to 1, found {as_text(self.objective)}"
            yield "objective", text


def _is_weight(objective: Mapping[str, Any]) -> bool:
    weight = objective.get(WEIGHT)
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return set(objective) == {WEIGHT} and number and 0 <= float(weight or 0) <= 1


@dataclass(frozen=True)
class Plan:
    """A tuning file without mistakes of its own; whether all its trials are valid, `check.check` says."""

    options: Tuning
    space: Space
    base: Mapping[str, Any]  # the config, as in its file
    raw: Mapping[str, Any]  # the space, as in the tuning file, and what was fixed
    trials: int

    @property
    def seed(self) -> int:
        """Of the search; that of the base config, whose trials all share it."""
        seed = self.base.get("seed", 0)
        return seed if isinstance(seed, int) and seed >= 0 else 0  # if not, the check of the trials says so

    def table(self) -> list[Hyperparameters]:
        """The hyperparameters of all trials that are known beforehand: none of optuna's."""
        return table(self.options.search, self.space, self.trials, self.seed)

    def config(self, hyperparameters: Hyperparameters, number: int = 0) -> Config:
        """The config of a trial; ConfigError."""
        config = validate(varied(self.base, hyperparameters))
        repetitions = self.options.repetitions or config.repetitions
        return dataclasses.replace(config, name=f"trial_{number:04d}", repetitions=repetitions)

    def identity(self) -> dict[str, Any]:
        """What must stay the same in a directory."""
        o = self.options
        same = {"search": o.search, "trials": self.trials, "repetitions": o.repetitions, "objective": o.objective}
        return {"base": self.base, "space": self.raw, **same, "seed": self.seed}


def varied(base: Mapping[str, Any], hyperparameters: Hyperparameters) -> dict[str, Any]:
    """A config, as in its file, with these hyperparameters put in."""
    return override(base, [f"{key}={as_text(value)}" for key, value in hyperparameters.items()])


def load(path: Path, fixed: Iterable[str] = ()) -> Plan:
    """The plan in a tuning file, where each "key=value" of `fixed` replaces what the space has; ConfigError.

    Where something is wrong, the right part of the space is tried on the base config too, to tell all in one go.
    """
    data, problems = _with_fixed(read(path), fixed)
    tuning = None
    try:
        tuning = validation.validate(Tuning, data)
    except ConfigError as error:
        problems += error.problems
    raw, search = data.get("space"), data.get("search", "grid")
    raw = raw if isinstance(raw, dict) else {}
    space, found = parse_space(raw, str(search))
    base, unread = _base(path, data.get("base"))
    problems += [*found, *unread]
    size = grid_size(space)
    if search == "grid" and size > LARGEST_GRID:
        text = f"the grid has {size:,} trials, expected at most {LARGEST_GRID:,}: take search: random"
        problems.append(("space", text))
    if problems or tuning is None:
        tried = problems_of(lambda h: validate(varied(base, h)), probes(space)) if base else []
        raise ConfigError([*problems, *tried])
    return Plan(tuning, space, base, raw, size if tuning.trials is None else tuning.trials)


def _with_fixed(data: Mapping[str, Any], fixed: Iterable[str]) -> tuple[dict[str, Any], list[Problem]]:
    problems = []
    space = data.get("space")
    space = dict(space) if isinstance(space, dict) else {}
    for item in fixed:
        key, equals, text = item.partition("=")
        try:
            if not equals or not key:
                raise ValueError(f"expected key=value, found {item!r}")
            space[key] = [parse(text)]
        except ValueError as error:
            problems.append((f"--fixed {key}", str(error)))
    return {**data, **({"space": space} if space else {})}, problems


def _base(path: Path, name: Any) -> tuple[dict[str, Any], list[Problem]]:
    """The base config as in its file; nothing of what is not there."""
    if not isinstance(name, str) or not name:  # which has been told
        return {}, []
    try:
        return read(path.parent / name), []
    except ConfigError as error:
        return {}, [("base", text if key in text else f"{key}: {text}") for key, text in error.problems]
