"""What learning curves show: runs read, grouped by configuration, averaged over seeds."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from hpc_es.core.data import Float64
from hpc_es.core.errors import UserError
from hpc_es.storage.metrics_log import JSONL, Number, each_row

X = Literal["timesteps", "evaluations", "programs", "seconds"]
COLUMNS: dict[X, str] = {
    "timesteps": "timesteps_total",
    "evaluations": "timesteps_total",
    "programs": "episodes_total",
    "seconds": "seconds_total",
}
DRAWN = (
    *dict.fromkeys(COLUMNS.values()),
    *("return_mean", "return_std", "evaluation_return_mean", "best_value", "best_reward", "solved"),
    *("sigma", "axis_ratio", "path_length", "archive_size", "restarts", "token_entropy", "distinct_programs"),
)
MOST_POINTS = 2000  # of a line in a picture, whose panels are some 500 pixels wide
INIT_FILES = ("init_observations", "init_optimizer")  # keys of `policy` that may name files, as init_from does
APART = ("seed", "name", "output")  # what runs of one line may differ in, besides the run that they begin from


@dataclass(frozen=True)
class Measure:
    """What is drawn of a kind of run, and against what."""

    label: str
    y: str  # a column of the metrics
    spread: str | None  # the column with the spread of its population
    panels: tuple[X, ...]


RETURNS = Measure("return per episode", "return_mean", "return_std", ("timesteps", "seconds"))
VALUES = Measure("best value", "best_value", None, ("evaluations", "seconds"))
REWARDS = Measure("best reward", "best_reward", None, ("programs", "seconds"))


def alike(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the resolved configs of runs that are one line have in common: each seed may begin from a run of its own."""
    common = {key: value for key, value in config.items() if key not in APART}
    if policy := common.get("policy"):
        others = {name: True for name in INIT_FILES if isinstance(policy.get(name), str)}
        common["policy"] = {**policy, **others, "init_from": policy.get("init_from") is not None}
    return common


@dataclass(frozen=True)
class RunCurves:
    """One run directory."""

    path: Path
    config: Mapping[str, Any]
    columns: Mapping[str, Float64]  # those of DRAWN, of all rows; NaN where nothing was measured

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.path.name)

    @property
    def repetition(self) -> int:
        return repetition_number(self.path)

    @property
    def measure(self) -> Measure:
        """Return what is drawn of it: searches for programs alone write a best reward, objectives a best value."""
        return next((each for each in (REWARDS, VALUES) if np.isfinite(self.columns[each.y]).any()), RETURNS)

    @property
    def is_over(self) -> bool:
        """Return whether a search has ended by its success, so that its best reward stays what it is."""
        stops = bool((self.config.get("algorithm") or {}).get("stop_on_success"))
        return stops and bool(self.columns["solved"][-1] > 0)

    def series(self, *columns: str) -> tuple[Float64, ...]:
        """Columns of the rows in which the first two, x and y, were measured: float64[points] each."""
        table = [self.columns[column] for column in columns]
        measured = np.isfinite(table[0]) & np.isfinite(table[1])
        return tuple(column[measured] for column in table)


@dataclass(frozen=True)
class Group:
    """Runs of one configuration."""

    label: str
    runs: Sequence[RunCurves]

    @property
    def measure(self) -> Measure:
        """Return what is drawn of them."""
        return self.runs[0].measure


@dataclass(frozen=True)
class Curve:
    """What is drawn of a group."""

    x: Float64  # float64[points]
    mean: Float64  # float64[points]
    spread: Float64  # float64[points], NaN where there is none
    runs: int

    def drawn(self) -> Curve:
        """Return at most MOST_POINTS of it, by which it looks the same: the lowest and the highest of each stretch."""
        if len(self.x) <= MOST_POINTS:
            return self
        bounds = np.linspace(0, len(self.x), MOST_POINTS // 2).astype(int)
        within = [(low, self.mean[low:high]) for low, high in pairwise(bounds)]
        places = [low + found(part) for low, part in within for found in (np.argmin, np.argmax)]
        kept = np.unique([0, *places, len(self.x) - 1])
        return Curve(self.x[kept], self.mean[kept], self.spread[kept], self.runs)


def load(path: Path) -> RunCurves:
    """Read a run directory; raises UserError if it is none, or has no metrics yet."""
    config_path = path / "config.yaml"
    if not config_path.is_file():
        raise UserError(f"{path} is not a run directory: it has no config.yaml")
    try:
        config = yaml.safe_load(config_path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{config_path} cannot be read as YAML: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{config_path}: expected the run's configuration, found {type(config).__name__}")
    run = RunCurves(path, _with_own_task(config, path), _columns(path))
    if not all(run.series(COLUMNS[x], run.measure.y)[0].size for x in run.measure.panels):
        raise UserError(f"{path / JSONL} has no metrics yet: plot the run when its first generation is finished")
    return run


def _columns(path: Path) -> dict[str, Float64]:
    """Return what is drawn, float64[rows] each: a run in progress draws itself, and whole rows would be 3 kB each."""
    columns = {name: array("d") for name in DRAWN}
    for row in each_row(path):
        for name, column in columns.items():
            column.append(_float(row.get(name)))
    return {name: np.frombuffer(column) for name, column in columns.items()}


def repetition_number(path: Path) -> int:
    """Return the number that a run directory has as a repetition; 0 of a single run."""
    number = re.fullmatch(r"repetition_(\d+)", path.name)
    return int(number[1]) if number else 0


def _with_own_task(config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the config of a repetition with the task that is its own, where repetitions have a cycle of tasks."""
    task = config.get("task")
    if not isinstance(task, dict) or not task.get("cycle"):
        return config
    name = task["cycle"][repetition_number(path) % len(task["cycle"])]
    return {**config, "task": {**task, "name": name, "cycle": None}}


def grouped(runs: Sequence[RunCurves]) -> list[Group]:
    """Runs of one configuration together, in the order in which they were given."""
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(json.dumps(alike(run.config), sort_keys=True, default=str), []).append(run)
    names = [_common_name([run.name for run in members]) for members in groups.values()]
    members = list(groups.values())
    labels = [
        name if names.count(name) == 1 else f"{name}, {_difference(members, names, index)}"
        for index, name in enumerate(names)
    ]
    return [Group(label, runs) for label, runs in zip(labels, members, strict=True)]


def average(series: Sequence[tuple[Float64, Float64]]) -> Curve:
    """Mean and standard deviation (n - 1) of several runs' (x, y), over the x that all of them cover.

    The x are those of the run that ends first, from where the last one starts. Where two runs have no x in common,
    such as after a single row, only their first points are averaged.
    """
    start = max(x[0] for x, _ in series)
    shortest = min((x for x, _ in series), key=lambda x: float(x[-1]))
    if start < shortest[-1]:
        grid = np.union1d(start, shortest[shortest > start])
        values = np.stack([np.interp(grid, x, y) for x, y in series])
    else:
        grid = np.mean([x[:1] for x, _ in series], axis=0)
        values = np.stack([y[:1] for _, y in series])
    return Curve(grid, values.mean(axis=0), values.std(axis=0, ddof=1), len(series))


def population(group: Group, x: X) -> Curve:
    """Return the mean return of the perturbed policies; of searches for programs, the best reward so far."""
    measure, column = group.measure, COLUMNS[x]
    if len(group.runs) == 1:
        if measure.spread is None:
            only_x, mean = group.runs[0].series(column, measure.y)
            return Curve(only_x, mean, np.full_like(mean, np.nan), runs=1)
        only_x, mean, std = group.runs[0].series(column, measure.y, measure.spread)
        return Curve(only_x, mean, std, runs=1)
    series = [(points[0], points[1]) for run in group.runs for points in [run.series(column, measure.y)]]
    longest = max((run_x for run_x, _ in series), key=lambda run_x: float(run_x[-1]))
    return average(
        [_continued(points, longest) if run.is_over else points for run, points in zip(group.runs, series, strict=True)]
    )


def _continued(points: tuple[Float64, Float64], longest: Float64) -> tuple[Float64, Float64]:
    """Return a finished search keeps its best reward; else the mean would end with the luckiest run."""
    x, y = points
    rest = longest[longest > x[-1]]
    return np.concatenate([x, rest]), np.concatenate([y, np.full_like(rest, y[-1])])


def evaluation(group: Group, x: X) -> Curve | None:
    """Return the mean return of the unperturbed policy, over the runs that have evaluations; None if no run has."""
    series = [(points[0], points[1]) for run in group.runs if (points := _evaluations(run, x))[0].size]
    if not series:
        return None
    if len(series) == 1:
        only_x, mean = series[0]
        return Curve(only_x, mean, np.full_like(mean, np.nan), runs=1)
    return average(series)


def _evaluations(run: RunCurves, x: X) -> tuple[Float64, ...]:
    return run.series(COLUMNS[x], "evaluation_return_mean")


def _common_name(names: Sequence[str]) -> str:
    """Return what names such as walker_s1 and walker_s2 have in common: walker."""
    if len(set(names)) == 1:
        return names[0]
    prefix = os.path.commonprefix(names)  # noqa: RUF071  letters, not folders
    return re.sub(r"[-_. ]*(seed|run|rep|s)?[-_. ]*\d*$", "", prefix) or names[0]


def _difference(members: Sequence[Sequence[RunCurves]], names: Sequence[str], index: int) -> str:
    """Return the options in which one of several groups of the same name differs from the others."""
    flat = [_flat(alike(runs[0].config)) for runs, name in zip(members, names, strict=True) if name == names[index]]
    mine = _flat(alike(members[index][0].config))
    keys = [key for key in mine if any(other.get(key) != mine[key] for other in flat)]
    return ", ".join(f"{key} {mine[key]}" for key in keys[:3]) or members[index][0].path.name


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _float(value: Number) -> float:
    return np.nan if value is None else float(value)
