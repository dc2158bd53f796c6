"""Data of learning curves: metrics of runs, grouped by configuration, averaged over seeds."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np

from hpc_es.config.resolved import plain_data
from hpc_es.core.data import ConfigData, Float64
from hpc_es.core.declarations import Metric
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.run_files import LARGEST_CONFIG, read_text
from hpc_es.core.vocabulary import TIMESTEPS, Noun, counted
from hpc_es.report.declared import declared_metrics, is_of_info
from hpc_es.report.labels import config_labels, flat
from hpc_es.report.statistics import CENTRES, DEFAULT, Summary
from hpc_es.storage.answers import NOISE_MEASURED, RESULT, Found, number, read_found, read_object
from hpc_es.storage.members import LARGEST_NUMBER
from hpc_es.storage.metrics_log import JSONL, each_row
from hpc_es.storage.status import FINISHED, STATUS

X = Literal["timesteps", "evaluations", "programs", "seconds", "episodes", "generation"]
COLUMNS: dict[X, str] = {  # the column of the metrics on each horizontal axis
    "timesteps": "timesteps_total",
    "evaluations": "timesteps_total",
    "programs": "episodes_total",
    "seconds": "seconds_total",
    "episodes": "episodes_total",
    "generation": "generation",
}
SECTIONS = ("task", "policy", "algorithm")  # of a config, of which pictures and labels tell
COUNT_UNITS = ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1.0, ""))
# label, and units in descending size
X_AXES: dict[X, tuple[str, tuple[tuple[float, str], ...]]] = {
    "timesteps": ("timesteps", COUNT_UNITS),
    "evaluations": ("evaluations", COUNT_UNITS),
    "programs": ("programs executed", COUNT_UNITS),
    "seconds": ("wall time", ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))),
    "episodes": ("episodes", COUNT_UNITS),
    "generation": ("generation", COUNT_UNITS),
}
# the columns that are kept in memory, in addition to the metrics that the kinds of a run declare
DRAWN = (
    *dict.fromkeys(COLUMNS.values()),
    "return_mean",
    "return_std",
    "evaluation_return_mean",
    "best_value",
    "best_reward",
    "solved",
    "value_mean",
    "value_std",
    "centre_value_mean",
    "score_mean",
    "score_std",
    "centre_score_mean",
    "restarts",
    "best_violation",
    "hypervolume",
    "front_size",
)
MOST_POINTS = 2000  # per line; a panel is about 500 pixels wide
# entries of status.json with the final evaluation, and the columns that it continues
FINAL = {
    "final_return_mean": "evaluation_return_mean",
    "final_value_mean": "centre_value_mean",
    "final_score_mean": "centre_score_mean",
}
# columns in which copies of a run may differ; see _with_final_evaluation
OF_ONE_DIRECTORY = (COLUMNS["seconds"], "best_value")
# keys of `policy` that may name files, as init_from does
INIT_FILES = ("init_observations", "init_optimizer")
IGNORED = (
    "seed",
    "name",
    "output",
    "repetitions",
    "repetition_groups",
)  # keys in which the runs of one group may differ


@dataclass(frozen=True)
class Measure:
    """The vertical axis for one type of run, and the horizontal axes of its panels."""

    name: str  # of its panel, in `--panels`
    label: str  # of the axis
    y: str  # column of the metrics
    spread: str | None  # column with the standard deviation over the population
    panels: tuple[X, ...]
    centre: str = "evaluation_return_mean"  # column with the mean of the unperturbed parameters
    noun: Noun = "return"  # of the vocabulary


RETURNS = Measure(
    "return", "return per episode", "return_mean", "return_std", ("timesteps", "seconds")
)
SCORES = Measure(
    "score",
    "score",
    "score_mean",
    "score_std",
    ("evaluations", "seconds"),
    "centre_score_mean",
    "score",
)
VALUES = Measure(
    "value",
    "best value",
    "best_value",
    None,
    ("evaluations", "seconds"),
    "centre_value_mean",
    "value",
)
# where evaluations are noisy, so that the best one is good luck, and of a custom task with values
# that does not record its best one
MEANS = Measure(
    "value",
    "value",
    "value_mean",
    "value_std",
    ("evaluations", "seconds"),
    "centre_value_mean",
    "value",
)
FRONTS = Measure(
    "hypervolume", "hypervolume", "hypervolume", None, ("evaluations", "seconds"), noun="value"
)
FRONT_SIZES = Measure(
    "front_size", "members of the front", "front_size", None, FRONTS.panels, noun="value"
)
# of episodes, whose rows count timesteps
EPISODE_FRONTS = replace(FRONTS, panels=("timesteps", "seconds"), noun="return")
EPISODE_FRONT_SIZES = replace(FRONT_SIZES, panels=EPISODE_FRONTS.panels, noun="return")
REWARDS = Measure("reward", "best reward", "best_reward", None, ("programs", "seconds"))


OF_FRONTS = (FRONTS, FRONT_SIZES, EPISODE_FRONTS, EPISODE_FRONT_SIZES)
EPISODES = {FRONTS: EPISODE_FRONTS, FRONT_SIZES: EPISODE_FRONT_SIZES}


class HasConfig(Protocol):
    """Runs of one config."""

    @property
    def config(self) -> ConfigData:
        """Return the config of the first run."""
        ...


TaskGroup = TypeVar("TaskGroup", bound=HasConfig)


@dataclass(frozen=True)
class RunCurves:
    """The metrics of one run directory."""

    path: Path
    config: ConfigData
    # float64[rows] for each name in DRAWN; NaN where nothing was measured
    columns: Mapping[str, Float64]
    found: Found = field(default_factory=Found)
    number: int | None = None  # of the repetition, if result.json has it
    rows: int = 0  # of metrics.jsonl; a finished run has one more, the final evaluation
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # that its kinds declare, by name
    has_measured_noise: bool = False  # of an objective, so that the best value is good luck
    draws_means: bool = False  # of values, not the best one; see `grouped`

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.path.name)

    @property
    def repetition(self) -> int:
        return repetition_number(self.path) if self.number is None else self.number

    @property
    def measure(self) -> Measure:
        """The measure to draw: only program searches have a best reward,
        only objectives a best value, and several of them a hypervolume.
        """
        of_values = (MEANS, VALUES) if self.draws_means else (VALUES, MEANS)
        for measure in (REWARDS, FRONTS, FRONT_SIZES, *of_values, SCORES):
            if np.isfinite(self.columns[measure.y]).any():
                return EPISODES.get(measure, measure) if self._counts_timesteps else measure
        return RETURNS

    @property
    def _counts_timesteps(self) -> bool:
        """Whether its evaluations are episodes: others count as one timestep each."""
        return bool((self.columns["timesteps_total"] > self.columns["episodes_total"]).any())

    @property
    def has_final_evaluation(self) -> bool:
        """Whether the last row is the final evaluation, which metrics.jsonl does not have."""
        return len(self.columns["generation"]) > self.rows

    @property
    def stopped_on_success(self) -> bool:
        """Whether a search ended because it succeeded, so that its best reward is final."""
        stops = bool((self.config.get("algorithm") or {}).get("stop_on_success"))
        return stops and bool(self.columns["solved"][-1] > 0)

    def series(self, *columns: str) -> tuple[Float64, ...]:
        """Return columns, float64[points] each, of rows in which x and y were measured.

        These are the first two.
        """
        table = [self.columns[column] for column in columns]
        measured = np.isfinite(table[0]) & np.isfinite(table[1])
        return tuple(column[measured] for column in table)


@dataclass(frozen=True)
class RunGroup:
    """Runs of one configuration, which are drawn as one line."""

    label: str
    runs: Sequence[RunCurves]
    copies: Sequence[RunCurves] = ()  # runs that are left out, because they are copies of others

    @property
    def measure(self) -> Measure:
        return self.runs[0].measure

    @property
    def config(self) -> ConfigData:
        return self.runs[0].config

    @property
    def has_best_value(self) -> bool:
        """Whether its runs are of an objective with one value."""
        has_values = np.isfinite(self.runs[0].columns[VALUES.y]).any()
        return self.measure in (VALUES, MEANS) and bool(has_values)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics that the kinds of its runs declare, by name."""
        return {name: metric for run in self.runs for name, metric in run.metrics.items()}


@dataclass(frozen=True)
class Curve:
    """One line of a picture."""

    x: Float64  # float64[points]
    y: Float64  # float64[points]: the value of one run, or the centre of several
    low: Float64  # float64[points]: the ends of the interval; NaN if there is none
    high: Float64
    runs: int = 1

    @property
    def has_interval(self) -> bool:
        return bool(np.isfinite(self.low).any())

    def thinned(self, most: int = MOST_POINTS) -> Curve:
        """Return a curve of at most `most` points that looks the same:
        the minimum and maximum of each interval.
        """
        if len(self.x) <= most:
            return self
        bounds = np.linspace(0, len(self.x), most // 2).astype(int)
        indices = [0, len(self.x) - 1]
        for low, high in pairwise(bounds):
            part = self.y[low:high]
            indices += [low + np.argmin(part), low + np.argmax(part)]
        kept = np.unique(indices)
        return Curve(self.x[kept], self.y[kept], self.low[kept], self.high[kept], self.runs)


def load(path: Path) -> RunCurves:
    """Read a run directory; UserError if it is not one, or has no metrics yet."""
    config_path = path / "config.yaml"
    if not config_path.is_file():
        raise UserError(f"{path} is not a run directory: it has no config.yaml")
    try:
        config = plain_data(read_text(config_path, most=LARGEST_CONFIG))
        flat(config)  # as labels of curves need it
    except (OSError, ValueError, ConfigError) as error:
        raise UserError(f"{config_path} cannot be read as YAML: {error}") from error
    if not all(map(_is_section, config.items())):
        raise UserError(f"{config_path}: expected the configuration of a run")
    # A column array per metric, since the rows of a long run would take about 3 kB each.
    metrics = declared_metrics(path, config)
    values = {name: array("d") for name in dict.fromkeys((*DRAWN, *metrics))}
    for row in each_row(path):
        for name, column in values.items():
            value = counted(row, name) if name in TIMESTEPS else row.get(name)
            column.append(drawable(value))
    columns = {name: np.frombuffer(column) for name, column in values.items()}
    # values of infeasible vectors cannot be compared with feasible ones
    if (columns["best_violation"] == 0).any():
        columns["best_value"] = np.where(
            columns["best_violation"] > 0, np.nan, columns["best_value"]
        )
    columns["generation"] = columns["generation"] + 1  # counted from 1, as progress lines do
    rows, found = len(columns["timesteps_total"]), read_found(path)
    repetition = read_object(path / RESULT).get("repetition")
    columns = _with_final_evaluation(columns, path, found)
    repetition = repetition if isinstance(repetition, int) else None
    is_mean = found.answer.kind == "mean" and found.answer.value is not None
    is_noisy = is_mean or read_object(path / STATUS).get(NOISE_MEASURED) is True
    task = _with_task_of_cycle(config, path)
    run = RunCurves(path, task, columns, found, repetition, rows, metrics, is_noisy)
    if not rows:
        raise UserError(
            f"{path / JSONL} has no metrics yet; plot the run after its first generation"
        )
    if not all(run.series(COLUMNS[x], run.measure.y)[0].size for x in run.measure.panels):
        raise UserError(
            f"{path / JSONL} has {rows} row{'s' * (rows > 1)}, but no {run.measure.label}: no "
            "episode has ended yet, or all jobs have failed"
        )
    return run


def _is_section(item: tuple[str, object]) -> bool:
    """Return whether a key of a config has a mapping, if it is the name of a section."""
    name, value = item
    return name not in SECTIONS or value is None or isinstance(value, dict)


def drawable(value: object) -> float:
    """Return a number of a row that a picture can show; NaN for anything else."""
    if isinstance(value, int | float) and abs(value) <= LARGEST_NUMBER:
        return float(value)
    return np.nan


def _with_final_evaluation(
    columns: dict[str, Float64], path: Path, found: Found
) -> dict[str, Float64]:
    """Return the columns with the final evaluation of a finished run.

    metrics.jsonl does not have it.
    """
    status = read_object(path / STATUS)
    name = next((name for name in FINAL if name in status), "")
    final = number(status.get(name))
    rows = len(columns["timesteps_total"])
    if status.get("status") != FINISHED or final is None or not rows:
        return columns
    # in the last row: a best value belongs to a number of evaluations
    if found.answer.kind == "evaluation":
        best = found.best_evaluation
        if best.value is not None and not best.violation:
            columns["best_value"][-1] = best.value
        return columns
    last = {name: float(columns[name][-1]) for name in COLUMNS.values()}
    last[FINAL[name]] = final
    return {name: np.append(column, last.get(name, np.nan)) for name, column in columns.items()}


# the first one names a task
WHAT = ("env_id", "game", "function", "command", "model", "name", "distribution", "kind")
DETAILS = (  # further keys of `task` without which values cannot be compared
    "env_kwargs",
    "max_episode_steps",
    "arguments",
    "dimension",
    "constraints",
    "goal",
    "model_kwargs",
    "family",
    "num_trials",
)


def task_name(config: ConfigData) -> str:
    """Return the environment, game, function, program or kind of task of a config."""
    task = config.get("task") or {}
    name = next((task[key] for key in WHAT if task.get(key)), "")
    return " ".join(map(str, name)) if isinstance(name, list | tuple) else str(name)


def task_text(config: ConfigData) -> str:
    """Return what a config optimises, equal for runs whose values may be compared."""
    task = config.get("task") or {}
    details = {key: task[key] for key in DETAILS if task.get(key)}
    return (
        f"{task_name(config)} {json.dumps(details, sort_keys=True, default=str)}"
        if details
        else task_name(config)
    )


def by_task(groups: Sequence[TaskGroup]) -> dict[str, list[TaskGroup]]:
    """Return groups by their task, with a name that differs between the tasks.

    The order is that of the groups.
    """
    tasks: dict[str, list[TaskGroup]] = {}
    for group in groups:
        tasks.setdefault(task_text(group.config), []).append(group)
    short = {text: task_name(same[0].config) for text, same in tasks.items()}
    names = list(short.values())
    return {
        text if names.count(short[text]) > 1 else short[text]: same for text, same in tasks.items()
    }


def repetition_number(path: Path) -> int:
    """Return the number of a repetition's directory; 0 for a single run."""
    number = re.fullmatch(r"repetition_(\d+)", path.name)
    return int(number[1]) if number else 0


def _with_task_of_cycle(config: ConfigData, path: Path) -> ConfigData:
    """Return the config of a repetition with the task from `task.cycle`, if there is one."""
    task = config.get("task")
    if not isinstance(task, dict) or not task.get("cycle"):
        return config
    name = task["cycle"][repetition_number(path) % len(task["cycle"])]
    return {**config, "task": {**task, "name": name, "cycle": None}}


def shared_config(config: ConfigData) -> ConfigData:
    """Return the part of a resolved config that all runs of a group have in common.

    Each seed may start from its own run, so of `policy.init_from` and the like only the use counts,
    not the file.
    """
    common = {key: value for key, value in config.items() if key not in IGNORED}
    if policy := common.get("policy"):
        files = {name: True for name in INIT_FILES if isinstance(policy.get(name), str)}
        common["policy"] = {**policy, **files, "init_from": policy.get("init_from") is not None}
    return common


def grouped(runs: Sequence[RunCurves]) -> list[RunGroup]:
    """Group runs by configuration, in the order of their first members.

    Copies of a run are left out. If a run has measured noise, all runs on its task are drawn by
    means: best values would be good luck, also where a strategy does not measure noise.
    """
    groups: dict[str, list[RunCurves]] = {}
    copies: dict[str, list[RunCurves]] = {}
    starts: dict[tuple[str, tuple[object, ...]], list[int]] = {}  # numbers of runs in a group
    noisy = {task_text(run.config) for run in runs if run.has_measured_noise}
    for given in runs:
        run = replace(given, draws_means=True) if task_text(given.config) in noisy else given
        config = json.dumps(shared_config(run.config), sort_keys=True, default=str)
        # of one config, a run that has found nothing yet may have another measure
        key = f"{run.measure.label} {config}"
        same, alike = groups.setdefault(key, []), starts.setdefault((key, _start(run)), [])
        known = next((index for index in alike if is_copy(run, same[index])), None)
        if known is None:
            alike.append(len(same))
            same.append(run)
            continue
        longer = run.rows > same[known].rows
        copies.setdefault(key, []).append(same[known] if longer else run)
        same[known] = run if longer else same[known]
    members = list(groups.values())
    names = [_common_name([run.name for run in runs]) for runs in members]
    configs = [flat(shared_config(runs[0].config)) for runs in members]
    labels = config_labels(names, configs, [runs[0].path.name for runs in members])
    return [
        RunGroup(label, runs, copies.get(key, ()))
        for label, (key, runs) in zip(labels, groups.items(), strict=True)
    ]


def _start(run: RunCurves) -> tuple[object, ...]:
    """Return what copies of a run have in common, so that few runs are compared."""
    first = [run.columns[name][0] for name in DRAWN if name not in OF_ONE_DIRECTORY]
    return (str(run.config.get("seed")), run.repetition, *map(str, first))


def is_copy(one: RunCurves, other: RunCurves) -> bool:
    """Whether two runs of one config are the same run: equal seed, repetition and metrics.

    One may be longer than the other. Such runs are not independent, so they count once.
    """
    if (one.config.get("seed"), one.repetition) != (other.config.get("seed"), other.repetition):
        return False
    first, second = (run.columns["timesteps_total"][: run.rows] for run in (one, other))
    _, mine, theirs = np.intersect1d(first, second, return_indices=True)
    drawn = [name for name in one.columns if name in other.columns]
    names = [name for name in drawn if name not in OF_ONE_DIRECTORY]
    return len(mine) > 0 and all(
        np.array_equal(one.columns[name][mine], other.columns[name][theirs], equal_nan=True)
        for name in names
    )


def _common_name(names: Sequence[str]) -> str:
    """Return the common part of names: walker for walker_s1 and walker_s2."""
    if len(set(names)) == 1:
        return names[0]
    prefix = os.path.commonprefix(names)  # noqa: RUF071  letters, not folders
    return re.sub(r"[-_. ]*(seed|run|rep|s)?[-_. ]*\d*$", "", prefix) or names[0]


def average(series: Sequence[tuple[Float64, Float64]], summary: Summary = DEFAULT) -> Curve:
    """Return centre and interval of several runs' (x, y), float64[points] each.

    The curves are interpolated linearly on the x of the run that ends first, from the latest start.
    If the runs share no range of x, as after a single row, only their first points are averaged.
    """
    if len(series) == 1:
        return of_one_run(*series[0])
    start = max(x[0] for x, _ in series)
    shortest = min((x for x, _ in series), key=lambda x: float(x[-1]))
    if start < shortest[-1]:
        grid = np.union1d(start, shortest[shortest > start])
        values = np.stack([np.interp(grid, x, y) for x, y in series], axis=-1)
    else:
        grid = np.mean([x[:1] for x, _ in series], axis=0)
        values = np.stack([y[:1] for _, y in series], axis=-1)
    if len(grid) > MOST_POINTS:  # before the interval, which takes the most time
        kept = np.isin(grid, of_one_run(grid, CENTRES[summary.centre](values)).thinned().x)
        grid, values = grid[kept], values[kept]
    return Curve(grid, *summary.of(values), len(series))


def of_one_run(x: Float64, y: Float64) -> Curve:
    """Return the curve of one run, x and y float64[points], without an interval."""
    return Curve(x, y, np.full_like(y, np.nan), np.full_like(y, np.nan))


def population(group: RunGroup, x: X, summary: Summary = DEFAULT) -> Curve:
    """Return the mean return of the perturbed policies.

    For program searches it is the best reward so far. The interval of a single run is the standard
    deviation over its population.
    """
    measure, column = group.measure, COLUMNS[x]
    if len(group.runs) == 1 and measure.spread is not None:
        only_x, mean, std = group.runs[0].series(column, measure.y, measure.spread)
        return Curve(only_x, mean, mean - std, mean + std)
    series = [run.series(column, measure.y) for run in group.runs]
    # A search that stopped on success keeps its best reward; without this the mean would end with
    # the fastest search.
    longest = max((run_x for run_x, _ in series), key=lambda run_x: float(run_x[-1]))
    extended = []
    for run, (run_x, y) in zip(group.runs, series, strict=True):
        rest = longest[longest > run_x[-1]] if run.stopped_on_success else longest[:0]
        extended.append(
            (np.concatenate([run_x, rest]), np.concatenate([y, np.full_like(rest, y[-1])]))
        )
    return average(extended, summary)


def evaluation(group: RunGroup, x: X, summary: Summary = DEFAULT) -> Curve | None:
    """Return the mean return of the unperturbed policy over the runs with evaluations.

    None if no run has any, if fronts are compared, or if means of noisy values are drawn: single
    evaluations of the centre differ more than those.
    """
    if any(run.draws_means for run in group.runs):
        return None
    series = [run.series(COLUMNS[x], group.measure.centre) for run in group.runs]
    series = [points for points in series if points[0].size]
    if not series or group.measure in OF_FRONTS:
        return None
    return average([(points[0], points[1]) for points in series], summary)


def final_evaluation(group: RunGroup, x: X, summary: Summary = DEFAULT) -> Curve | None:
    """Return the final evaluation as a curve of one point; None if no run has one.

    It is that of all runs of a group, where the curves of several runs end with the shortest one.
    """
    ends = [
        (run.columns[COLUMNS[x]][-1], run.columns[group.measure.centre][-1])
        for run in group.runs
        if run.has_final_evaluation
    ]
    if not ends or group.measure in OF_FRONTS:
        return None
    table = np.array(ends)
    return Curve(table[:, :1].mean(axis=0), *summary.of(table[None, :, 1]), len(ends))


def best_values(group: RunGroup, x: X, summary: Summary = DEFAULT) -> Curve:
    """Return the best value so far of an objective, averaged over the runs."""
    series = [run.series(COLUMNS[x], VALUES.y) for run in group.runs]
    return average([(points[0], points[1]) for points in series], summary)


def diagnostic(group: RunGroup, column: str, x: X, summary: Summary = DEFAULT) -> Curve | None:
    """Return a metric of a group that is declared, or of `report.info`.

    None if it is missing, or declared and constant. If its axis is logarithmic, its positive values
    are averaged as logarithms, so that the mean is the geometric one.
    """
    series = [run.series(COLUMNS[x], column) for run in group.runs if column in run.columns]
    metric = group.metrics.get(column)
    if metric is None:
        return None
    if not metric.is_log:
        curves = [(run_x, y) for run_x, y in series if len(y)]
        is_constant = all(len(y) > 1 and np.ptp(y) == 0 for _, y in curves)
        # the user has asked for infos: a success rate of 0 is a result
        if not curves or (is_constant and not is_of_info(column)):
            return None
        return average(curves, summary)
    logarithms = [(run_x[y > 0], np.log(y[y > 0])) for run_x, y in series if (y > 0).any()]
    if not logarithms or all(len(y) > 1 and np.ptp(y) == 0 for _, y in logarithms):
        return None
    curve = average(logarithms, summary)
    return Curve(curve.x, np.exp(curve.y), np.exp(curve.low), np.exp(curve.high), curve.runs)


def restarts(group: RunGroup, x: X) -> Float64:
    """Return the x of all restarts in a group, float64[restarts]."""
    series = [run.series(COLUMNS[x], "restarts") for run in group.runs]
    return np.concatenate([run_x[1:][np.diff(count) > 0] for run_x, count in series])
