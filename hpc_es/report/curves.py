"""What learning curves show: runs read, grouped by configuration, averaged over seeds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import yaml

from hpc_es.errors import UserError
from hpc_es.interfaces import Float64
from hpc_es.report.metrics import JSONL, Number, read

X = Literal["timesteps", "seconds"]
APART = ("seed", "name", "output")  # what runs of one line may differ in, besides the run that they begin from


def alike(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the resolved configs of runs that are one line have in common: each seed may begin from a run of its own."""
    common = {key: value for key, value in config.items() if key not in APART}
    if policy := common.get("policy"):
        common["policy"] = {**policy, "init_from": policy.get("init_from") is not None}
    return common


@dataclass(frozen=True)
class Run:
    """One run directory."""

    path: Path
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Number]]

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.path.name)

    def series(self, *columns: str) -> tuple[Float64, ...]:
        """Columns of the rows in which the first two, x and y, were measured: float64[points] each."""
        table = np.array([[_float(row.get(column)) for column in columns] for row in self.rows])
        return tuple(table[np.isfinite(table[:, :2]).all(axis=1)].T)


@dataclass(frozen=True)
class Group:
    """Runs of one configuration."""

    label: str
    runs: Sequence[Run]


@dataclass(frozen=True)
class Curve:
    """What is drawn of a group."""

    x: Float64  # float64[points]
    mean: Float64  # float64[points]
    spread: Float64  # float64[points], NaN where there is none
    runs: int


def load(path: Path) -> Run:
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
    run = Run(path, config, read(path))
    if not run.rows or not all(run.series(f"{x}_total", "return_mean")[0].size for x in get_args(X)):
        raise UserError(f"{path / JSONL} has no metrics yet: plot the run when its first generation is finished")
    return run


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of one configuration together, in the order in which they were given."""
    groups: dict[str, list[Run]] = {}
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
    """The mean return of the perturbed policies."""
    series = [run.series(f"{x}_total", "return_mean", "return_std") for run in group.runs]
    if len(series) == 1:
        only_x, mean, std = series[0]
        return Curve(only_x, mean, std, runs=1)
    return average([(run_x, mean) for run_x, mean, _ in series])


def evaluation(group: Group, x: X) -> Curve | None:
    """The mean return of the unperturbed policy, over the runs that have evaluations; None if no run has."""
    series = [(points[0], points[1]) for run in group.runs if (points := _evaluations(run, x))[0].size]
    if not series:
        return None
    if len(series) == 1:
        only_x, mean = series[0]
        return Curve(only_x, mean, np.full_like(mean, np.nan), runs=1)
    return average(series)


def _evaluations(run: Run, x: X) -> tuple[Float64, ...]:
    return run.series(f"{x}_total", "evaluation_return_mean")


def _common_name(names: Sequence[str]) -> str:
    """What names such as walker_s1 and walker_s2 have in common: walker."""
    if len(set(names)) == 1:
        return names[0]
    prefix = os.path.commonprefix(names)  # noqa: RUF071  letters, not folders
    return re.sub(r"[-_. ]*(seed|run|rep|s)?[-_. ]*\d*$", "", prefix) or names[0]


def _difference(members: Sequence[Sequence[Run]], names: Sequence[str], index: int) -> str:
    """The options in which one of several groups of the same name differs from the others."""
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
