"""A tuning as its YAML file says: what varies, around which config, and what is sought."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from hpc_es.config import import_paths, legacy, validation
from hpc_es.config.loading import overridden, validate
from hpc_es.config.moved import applying, renamed
from hpc_es.config.options import Count, option, options
from hpc_es.config.sections import Config
from hpc_es.config.yaml_text import Problem, parse, read_yaml
from hpc_es.core.errors import ConfigError
from hpc_es.tuning.objective import BY_NAME, FINAL_RETURN, WEIGHT
from hpc_es.tuning.probes import probes, problems_of
from hpc_es.tuning.sampling import Hyperparameters, grid_size, table
from hpc_es.tuning.space import Space, as_text, parse_space

LARGEST_GRID = 10_000


@options
class Tuning:
    """The keys of a tuning file."""

    base: Annotated[str, MinLen(1)] = option(
        "the config that is varied: a file, relative to the tuning file, or a config string"
    )
    search: Literal["grid", "random", "optuna"] = option("how trials are chosen", "grid")
    space: Annotated[dict[str, Any], MinLen(1)] = option("what varies: dotted keys and their values")
    trials: Count | None = option("how many, for random and optuna; a larger number later adds trials", None)
    repetitions: Count | None = option("of each trial; null: those of the base config", None)
    objective: Literal["final_return", "best_reward"] | dict[str, Any] = option("what is maximised", FINAL_RETURN)

    def problems(self) -> Iterator[Problem]:
        """Mistakes that no single key shows."""
        if self.search == "grid" and self.trials is not None:
            yield "trials", "a grid has as many as its lists make: remove the key, or take search: random"
        if self.search != "grid" and self.trials is None:
            yield "trials", f"search: {self.search} needs to know how many, such as trials: 20"
        if isinstance(self.objective, dict) and not _is_weight(self.objective):
            names = ", ".join(map(repr, BY_NAME))
            text = f"expected {names} or {{{WEIGHT}: w}} with w from 0 to 1, found {as_text(self.objective)}"
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
    directory: str | None = None  # of the base config

    @property
    def seed(self) -> int:
        """Of the search; that of the base config, whose trials all share it."""
        seed = self.base.get("seed", 0)
        return seed if isinstance(seed, int) and seed >= 0 else 0  # if not, the check of the trials says so

    def table(self) -> list[Hyperparameters]:
        """Return the hyperparameters of all trials that are known beforehand: none of optuna's."""
        return table(self.options.search, self.space, self.trials, self.seed)

    def named_as(self, identity: Mapping[str, Any]) -> Plan:
        """Return the plan with the names of keys that the trials and the study of a directory have."""
        entries = applying(Config, identity["base"])
        names = {renamed(key, entries): key for key in identity["space"]}
        entries = applying(Config, self.base)
        raw = {names[renamed(key, entries)]: values for key, values in self.raw.items()}
        space, _ = parse_space(raw, self.options.search)
        return dataclasses.replace(self, space=space, raw=raw)

    def config(self, hyperparameters: Hyperparameters, number: int = 0) -> Config:
        """Return the config of a trial; ConfigError."""
        config = validate(varied(self.base, hyperparameters))
        directory = config.directory or self.directory
        repetitions = self.options.repetitions or config.repetitions
        return dataclasses.replace(config, name=f"trial_{number:04d}", repetitions=repetitions, directory=directory)

    def identity(self) -> dict[str, Any]:
        """Return what must stay the same in a directory."""
        o = self.options
        same = {"search": o.search, "trials": self.trials, "repetitions": o.repetitions, "objective": o.objective}
        return {"base": self.base, "space": self.raw, **same, "seed": self.seed}


def varied(base: Mapping[str, Any], hyperparameters: Hyperparameters) -> dict[str, Any]:
    """Return a config, as in its file, with these hyperparameters put in."""
    return overridden(base, [f"{key}={as_text(value)}" for key, value in hyperparameters.items()])


def load(path: Path, fixed: Iterable[str] = ()) -> Plan:
    """Return the plan in a tuning file, where each "key=value" of `fixed` replaces what the space has; ConfigError.

    Where something is wrong, the right part of the space is tried on the base config too, to tell all in one go.
    """
    import_paths.use(path.parent)
    data, problems = _with_fixed(read_yaml(path), fixed)
    tuning = None
    try:
        tuning = validation.validate(Tuning, data)
    except ConfigError as error:
        problems += error.problems
    raw, search = data.get("space"), data.get("search", "grid")
    raw = raw if isinstance(raw, dict) else {}
    space, found = parse_space(raw, str(search))
    base, directory, unread = _base(path, data.get("base"))
    problems += [*found, *unread, *_given_twice(raw, base)]
    size = grid_size(space)
    if search == "grid" and size > LARGEST_GRID:
        text = f"the grid has {size:,} trials, expected at most {LARGEST_GRID:,}: take search: random"
        problems.append(("space", text))
    if problems or tuning is None:
        tried = problems_of(lambda h: validate(varied(base, h)), probes(space)) if base else []
        raise ConfigError([*problems, *tried])
    return Plan(tuning, space, base, raw, size if tuning.trials is None else tuning.trials, directory)


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


def _given_twice(space: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys of the space that have moved to where another of its keys is, or a part of it."""
    entries = applying(Config, base)
    for key in space:
        new = renamed(key, entries)
        for other in space:
            one, two = f"{new}.", f"{renamed(other, entries)}."
            if new != key != other and (one.startswith(two) or two.startswith(one)):
                yield f"space.{key}", f"is now {new}, and {other!r} is in the space too: remove one of them"


def _base(path: Path, name: Any) -> tuple[dict[str, Any], str | None, list[Problem]]:
    """Return the base config as in its file, and where that is; nothing of what is not there."""
    if not isinstance(name, str) or not name:  # which has been told
        return {}, None, []
    is_string = legacy.is_config_string(name)
    directory = (path if is_string else path.parent / name).resolve().parent
    import_paths.use(path.parent, directory)
    try:
        return (legacy.parse(name) if is_string else read_yaml(path.parent / name)), str(directory), []
    except ConfigError as error:
        return {}, None, [("base", text if key in text else f"{key}: {text}") for key, text in error.problems]
