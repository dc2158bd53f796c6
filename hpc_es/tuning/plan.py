"""A tuning file: its options, the objective of a trial, and the check of all trials.

The check is before the first one runs.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from hpc_es.config import notations, user_code, validation
from hpc_es.config.loading import validate
from hpc_es.config.notebook_config import read_config
from hpc_es.config.options import Count, Limits, option, options
from hpc_es.config.resolved import resolved
from hpc_es.config.schema import Config
from hpc_es.config.yaml_text import override, parse, read_yaml
from hpc_es.core.closing import close
from hpc_es.core.data import ConfigData
from hpc_es.core.errors import ConfigError, ConfigProblem
from hpc_es.core.paths import followed, is_config_string
from hpc_es.core.vocabulary import counted, inside
from hpc_es.storage.answers import comparable_values, found_in
from hpc_es.storage.results import BUDGET, budget, mean
from hpc_es.tuning.space import Hyperparameters, Space, all_trials, as_text, grid_size, parse_space
from hpc_es.tuning.trials import MOST_TRIALS, MOST_VALUES

FINAL_RETURN = "final_return"
BEST_REWARD = "best_reward"
ANSWER = "answer"
BY_NAME = (FINAL_RETURN, ANSWER, BEST_REWARD)
WEIGHT = "success_rate_weight"
MEASURES = ("success_rate", "programs_seen_fraction")  # beside the objective


def objective(rows: Sequence[ConfigData], wanted: Any) -> float:
    """Return the objective of a trial from the results of its repetitions.

    `wanted` is "final_return" (the mean), "answer" (the mean of the answers, in the sign of the
    task's goal), "best_reward" (the mean, for program searches), or {success_rate_weight: w} for w
    * success_rate + (1 - w) * (1 - fraction), where fraction is the mean fraction of the budget
    that was used, 1 for a repetition without success. For program searches, programs count until
    the first correct one.

    Raises:
        ValueError: there is none.
    """
    if not rows:
        raise ValueError("there are no results")
    if wanted == FINAL_RETURN:
        returns = [inside(row)[FINAL_RETURN] for row in rows]
        lacking = [
            row["repetition"] for row, value in zip(rows, returns, strict=True) if value is None
        ]
        if lacking:
            raise ValueError(
                f"the final evaluation failed in repetition {', '.join(map(str, lacking))}"
            )
        value = mean(returns)
    elif wanted in (ANSWER, BEST_REWARD):
        found = [found_in(row) for row in rows]
        lacking = [
            row["repetition"]
            for row, one in zip(rows, found, strict=True)
            if not one.answer.is_comparable
        ]
        if lacking:
            raise ValueError(
                f"there is no {wanted.replace('_', ' ')}: no evaluation was successful and "
                f"feasible in repetition {', '.join(map(str, lacking))}"
            )
        value = mean(comparable_values(found))
    else:
        weight = float(wanted[WEIGHT])
        used = [fraction(row, row["budget"]) if row["success"] else 1.0 for row in rows]
        value = weight * mean(bool(row["success"]) for row in rows) + (1 - weight) * (
            1 - mean(used)
        )
    if not math.isfinite(value):
        raise ValueError(f"the objective is {value}")
    return value


def is_minimised(config: Config, wanted: Any) -> bool:
    """Return whether a lower objective of a trial is better."""
    return wanted == ANSWER and config.setup.offers.goal == "minimise"


def measures(rows: Sequence[ConfigData]) -> dict[str, float]:
    """Return the success rate of a trial, and the mean fraction of programs until success.

    `success_rate` needs repetitions with a target; `programs_seen_fraction` needs a program search
    with a limit of programs: the mean of npe / limit, 1 for a repetition without success (Abolafia
    et al. 2018).
    """
    values: dict[str, float] = {}
    if rows and all(row["success"] is not None for row in rows):
        values["success_rate"] = mean(bool(row["success"]) for row in rows)
        if all("npe" in row and row["budget"]["episodes"] for row in rows):
            fractions = [
                min(row["npe"] / row["budget"]["episodes"], 1.0) if row["success"] else 1.0
                for row in rows
            ]
            values["programs_seen_fraction"] = mean(fractions)
    return values


def limits(budget: ConfigData) -> dict[str, float]:
    """Return the limits that end every repetition.

    Seconds only if there is no other limit, as clocks are inexact.
    """
    names = [
        name for name in sorted(budget) if name != "target_return" and budget[name] is not None
    ]
    exact = [name for name in names if name != "seconds"]
    return {name: float(budget[name]) for name in exact or names}


def fraction(used: ConfigData, budget: ConfigData) -> float:
    """Return the fraction of the budget that was used, 0 to 1, for the nearest limit.

    `used` is a result, or has the names of one; what it does not count is left out.
    """
    used = {name: counted(used, name) for name in BUDGET} | (
        {"episodes": used["npe"]} if "npe" in used else {}
    )
    shares = [
        float(used[name]) / limit
        for name, limit in limits(budget).items()
        if limit > 0 and used[name] is not None
    ]
    return min(max(shares, default=1.0), 1.0)


MOST_PER_KEY = 3  # errors per key that are shown; a random search may have one per trial


def probes(space: Space) -> list[Hyperparameters]:
    """Return trials with each value, or end of a range, once.

    They have the first values of the other keys.
    """
    first = {key: entry.ends[0] for key, entry in space.items()}
    return [{**first, key: value} for key, entry in space.items() for value in entry.ends]


def problems_of(
    validate: Callable[[Hyperparameters], object], trials: Iterable[Hyperparameters]
) -> list[ConfigProblem]:
    """Return the distinct errors that `validate` raises for the trials.

    There are at most MOST_PER_KEY per key.
    """
    errors: dict[ConfigProblem, None] = {}
    for hyperparameters in trials:
        try:
            validate(hyperparameters)
        except ConfigError as error:
            errors |= dict.fromkeys(error.problems)
    counts, shown_count = Counter(key for key, _ in errors), Counter[str]()
    problems = []
    for key, text in errors:
        shown_count[key] += 1
        if shown_count[key] <= MOST_PER_KEY:
            more = (
                f" (and {counts[key] - MOST_PER_KEY} more like this)"
                if shown_count[key] == MOST_PER_KEY < counts[key]
                else ""
            )
            problems.append((key, text + more))
    return problems


LARGEST_GRID = 10_000
SamplerName = Literal["tpe", "cma_es"]


@options
class Tuning:
    """The keys of a tuning file."""

    base: Annotated[str, Limits(min_length=1)] = option(
        "base config: a file, relative to the tuning file, or a config string"
    )
    search: Literal["grid", "random", "optuna"] = option("method of choosing trials", "grid")
    sampler: SamplerName = option(
        "sampler of an Optuna search: tpe, or cma_es for mixed spaces (CMA-ES with margin, CatCMA)",
        "tpe",
    )
    space: Annotated[ConfigData, Limits(min_length=1)] = option(
        "search space: dotted keys and their values"
    )
    trials: Annotated[int, Limits(ge=1, le=MOST_TRIALS)] | None = option(
        "number of trials, for random and optuna; a larger number later adds trials", None
    )
    repetitions: Count | None = option(
        "repetitions per trial; null: those of the base config", None
    )
    objective: Literal["final_return", "answer", "best_reward"] | ConfigData = option(
        "objective to maximise; answer: in the direction of task.goal", FINAL_RETURN
    )

    def problems(self) -> Iterator[ConfigProblem]:
        """Yield errors that involve several keys."""
        if self.search == "grid" and self.trials is not None:
            yield (
                "trials",
                "a grid has as many as its lists make: remove the key, or take search: random",
            )
        if self.search != "grid" and self.trials is None:
            yield "trials", f"search: {self.search} needs to know how many, such as trials: 20"
        if self.search != "optuna" and self.sampler != "tpe":
            yield (
                "sampler",
                f"is {self.sampler}, but search is {self.search}: take search: optuna, or remove the key",
            )
        if isinstance(self.objective, dict) and not _is_weight(self.objective):
            names = ", ".join(map(repr, BY_NAME))
            yield (
                "objective",
                f"expected {names} or {{{WEIGHT}: w}} with w from 0 to 1, found "
                f"{as_text(self.objective)}",
            )


def _is_weight(objective: ConfigData) -> bool:
    weight = objective.get(WEIGHT)
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return set(objective) == {WEIGHT} and number and 0 <= float(weight or 0) <= 1


@dataclass(frozen=True)
class TuningPlan:
    """A valid tuning file; `check` validates its trials."""

    options: Tuning
    space: Space
    base: ConfigData  # the config, as in its file
    raw: ConfigData  # the space, as in the tuning file, and what was fixed
    trials: int
    directory: str | None = None  # of the base config

    @property
    def seed(self) -> int:
        """Seed of the search and of all trials: that of the base config."""
        seed = self.base.get("seed", 0)
        # if not, the check of the trials says so
        return seed if isinstance(seed, int) and seed >= 0 else 0

    def table(self) -> list[Hyperparameters]:
        """Return the hyperparameters of all trials, none for Optuna, which chooses them later."""
        return all_trials(self.options.search, self.space, self.trials, self.seed)

    def config(self, hyperparameters: Hyperparameters, number: int = 0) -> Config:
        """Return the config of a trial. Raise ConfigError if it is invalid."""
        config = validate(varied(self.base, hyperparameters))
        directory = config.directory or self.directory
        repetitions = self.options.repetitions or config.repetitions
        return dataclasses.replace(
            config, name=f"trial_{number:04d}", repetitions=repetitions, directory=directory
        )

    def identity(self) -> ConfigData:
        """Return the values that must not change in a tuning directory."""
        o = self.options
        same = {
            "search": o.search,
            "trials": self.trials,
            "repetitions": o.repetitions,
            "objective": o.objective,
        }
        sampler = {} if o.sampler == "tpe" else {"sampler": o.sampler}  # earlier versions have none
        return {"base": self.base, "space": self.raw, **same, **sampler, "seed": self.seed}


def varied(base: ConfigData, hyperparameters: Hyperparameters) -> ConfigData:
    """Return the data of a config file with these hyperparameters."""
    return override(base, [f"{key}={as_text(value)}" for key, value in hyperparameters.items()])


def load(path: Path, fixed: Iterable[str] = ()) -> TuningPlan:
    """Return the plan of a tuning file; each "key=value" of `fixed` replaces a key of the space.

    Raises ConfigError with all errors: the valid part of the space is also tried on the base
    config.
    """
    user_code.make_importable(path.parent)
    data, problems = _with_fixed(read_yaml(path), fixed)
    tuning = None
    try:
        tuning = validation.validate(Tuning, data)
    except ConfigError as error:
        problems += error.problems
    raw, search = data.get("space"), data.get("search", "grid")
    raw = raw if isinstance(raw, dict) else {}
    space, space_problems = parse_space(raw, str(search))
    base, directory, unread = _base(path, data.get("base"))
    problems += [*space_problems, *unread]
    size = grid_size(space)
    if search == "grid" and size > LARGEST_GRID:
        problems.append(
            (
                "space",
                f"the grid has {size:,} trials, expected at most {LARGEST_GRID:,}: "
                "take search: random",
            )
        )
    count = size if tuning is None or tuning.trials is None else tuning.trials
    if count * len(space) > MOST_VALUES:
        text = f"the tuning has {count:,} trials of {len(space):,} keys, expected at most {MOST_VALUES:,} values"
        problems.append(("space", text))
    if problems or tuning is None:
        tried = problems_of(lambda h: validate(varied(base, h)), probes(space)) if base else []
        raise ConfigError([*problems, *tried])
    return TuningPlan(tuning, space, base, raw, count, directory)


def _with_fixed(data: ConfigData, fixed: Iterable[str]) -> tuple[ConfigData, list[ConfigProblem]]:
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


def _base(path: Path, name: object) -> tuple[ConfigData, str | None, list[ConfigProblem]]:
    """Return the data of the base config, its directory, and errors."""
    if not isinstance(name, str) or not name:  # reported already
        return {}, None, []
    is_string = is_config_string(name)
    directory = followed(path if is_string else path.parent / name).parent
    user_code.make_importable(path.parent, directory)
    try:
        return (
            (notations.parse_config_string(name) if is_string else read_config(path.parent / name)),
            str(directory),
            [],
        )
    except ConfigError as error:
        return (
            {},
            None,
            [("base", text if key in text else f"{key}: {text}") for key, text in error.problems],
        )


def check(plan: TuningPlan, ranks: int | None) -> None:
    """Validate the config of every trial, for Optuna at the ends of its ranges.

    If all are valid, each distinct environment and policy is built once. `ranks` is the number of
    ranks per trial, if known.

    Raises:
        ConfigError: with all errors.
    """
    configs: list[Config] = []

    def valid(hyperparameters: Hyperparameters) -> None:
        configs.append(plan.config(hyperparameters))

    problems = problems_of(valid, plan.table() or probes(plan.space))
    if not configs:  # show the other errors of the base config too
        problems_of(valid, [{}])
    problems += dict.fromkeys(
        problem for config in configs for problem in _unfit(config, plan.options.objective, ranks)
    )
    problems = problems or _unmakeable(configs)
    if problems:
        raise ConfigError(problems)


def _unfit(
    config: Config, objective: str | ConfigData, ranks: int | None
) -> Iterator[ConfigProblem]:
    """Yield why a valid config cannot be a trial."""
    programs = config.setup.needs.searches == "programs"
    has_centre = config.policy is not None or config.setup.offers.measures_centre
    if objective == FINAL_RETURN and not has_centre:
        yield (
            "objective",
            "a task without a policy has no final return: expected "
            f"{BEST_REWARD if programs else ANSWER!r} or {{{WEIGHT}: w}}, found "
            f"{FINAL_RETURN!r}",
        )
    elif objective == BEST_REWARD and not programs:
        other = FINAL_RETURN if has_centre else ANSWER
        yield (
            "objective",
            f"{BEST_REWARD!r} is for program searches: expected {other!r} or {{{WEIGHT}: w}}",
        )
    elif objective in (FINAL_RETURN, ANSWER) and has_centre and not config.evaluation.interval:
        yield (
            "evaluation.interval",
            f"is 0, but the objective {objective} needs evaluations (try 10)",
        )
    if (
        isinstance(objective, dict)
        and config.policy is not None
        and config.stop.target_return is None
    ):
        yield (
            "stop.target_return",
            "is null, but the objective is the fraction of repetitions that reach it: set it",
        )
    if not limits(budget(config)):
        yield (
            "stop",
            "expected a limit, because every trial must end: set stop.generations or stop.timesteps",
        )
    if config.mpi.fault_tolerance:
        yield "mpi.fault_tolerance", "is true, but tuning does not support it (expected false)"
    if ranks is not None and config.repetition_groups > ranks:
        yield (
            "repetition_groups",
            f"is {config.repetition_groups}, but the job has {ranks} ranks: each group needs one",
        )


def _unmakeable(configs: Iterable[Config]) -> list[ConfigProblem]:
    """Return errors of environments that cannot be created and policies that do not fit them."""
    from hpc_es.training.build import build_task

    different = {
        json.dumps(
            [resolved(config)[part] for part in ("task", "policy", "algorithm", "noise")]
        ): config
        for config in configs
    }
    problems: dict[ConfigProblem, None] = {}
    for config in different.values():
        try:
            task = build_task(config).task
            close(task.name, task.close)
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    return list(problems)
