"""Learning curves: return against timesteps and against wall time, one line a configuration.

Runs whose configuration differs in nothing but seed, name and output are one line: their mean, interpolated linearly
on the timesteps (or seconds) of the shortest of them, and shaded their standard deviation (n - 1). A single run is
drawn as it was measured, shaded by the spread of its population.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hpc_es.errors import RunError, UserError
from hpc_es.interfaces import Float64
from hpc_es.report.metrics import JSONL, Number, read

X = Literal["timesteps", "seconds"]

SUFFIXES = (".png", ".pdf", ".svg")
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito 2008
DASHES = ("-", "--", ":")  # behind the last colour, the colours begin again
APART = ("seed", "name", "output")  # what runs of one line may differ in
MOST_MARKERS = 30
LEGEND_LETTERS = 120  # in a line
UNDATED: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
GREY = "#555555"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,  # a $ in a name is a $
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "hpc_es",  # the same runs give the same file
}


AXES: dict[X, tuple[str, tuple[tuple[float, str], ...]]] = {  # name, units from large to small
    "timesteps": ("timesteps", ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1.0, ""))),
    "seconds": ("wall time", ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))),
}


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


def plot(runs: Sequence[Path], output: Path, x: X | None = None, title: str | None = None) -> None:
    """Draw the returns of run directories into a PNG, PDF or SVG, as the suffix says; without `x`, both panels.

    Raises UserError for what is not a run directory, has no metrics yet, or another suffix; RunError where the output
    cannot be written. The output is replaced as a whole or not at all.
    """
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    if not runs:
        raise UserError("no run directory to plot; give at least one")
    groups = grouped([load(path) for path in dict.fromkeys(path.resolve() for path in runs)])
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc does not change the picture
        mpl.rcParams.update(STYLE)
        _save(figure(groups, (x,) if x else ("timesteps", "seconds"), title), output)


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
    if not run.rows or not all(run.series(f"{x}_total", "return_mean")[0].size for x in AXES):
        raise UserError(f"{path / JSONL} has no metrics yet: plot the run when its first generation is finished")
    return run


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of one configuration together, in the order in which they were given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_without_apart(run), sort_keys=True, default=str), []).append(run)
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


def figure(groups: Sequence[Group], panels: Sequence[X], title: str | None) -> Figure:
    """The figure, 1200 x 500 pixels at 150 dots an inch."""
    result = Figure(figsize=(8.0, 10 / 3), dpi=150, layout="constrained")
    axes = result.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for panel, (ax, x) in enumerate(zip(axes, panels, strict=True)):
        for index, members in enumerate(groups):
            _draw(ax, population(members, x), evaluation(members, x), *_look(index))
        _label_x(ax, x)
        if panel == 0:
            ax.set_ylabel("return per episode")
    lines = [
        Line2D([], [], color=color, ls=dash, lw=2.0, label=_legend_label(members))
        for members, (color, dash) in zip(groups, map(_look, range(len(groups))), strict=True)
    ]
    letters = max(len(str(line.get_label())) for line in lines) + 8  # the sample of the line
    columns = min(max(LEGEND_LETTERS // letters, 1), len(lines))
    heading = title or _subject(groups)
    result.legend(
        handles=_key(groups), loc="outside upper center", ncols=3, fontsize=8, title=heading, title_fontsize=11
    )
    result.legend(handles=lines, loc="outside lower center", ncols=columns, fontsize=8)
    return result


def _look(index: int) -> tuple[str, str]:
    """Colour and dashes of a line."""
    return PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)]


def _draw(ax: Axes, people: Curve, theta: Curve | None, color: str, dash: str) -> None:
    few = len(people.x) == 1
    ax.plot(people.x, people.mean, dash, color=color, lw=0.8, alpha=0.75, marker="." if few else None)
    _shade(ax, people, color, 0.12)
    if theta is not None:
        every = -(-len(theta.x) // MOST_MARKERS)
        ax.plot(theta.x, theta.mean, dash, color=color, lw=2.0, marker="o", ms=4, mec="white", mew=0.6, markevery=every)
        _shade(ax, theta, color, 0.22)


def _shade(ax: Axes, curve: Curve, color: str, alpha: float) -> None:
    low, high = curve.mean - curve.spread, curve.mean + curve.spread
    if len(curve.x) == 1:
        ax.vlines(curve.x, low, high, color=color, alpha=2 * alpha, lw=3)
    else:
        ax.fill_between(curve.x, low, high, color=color, alpha=alpha, lw=0)


def _subject(groups: Sequence[Group]) -> str:
    """What was learned: the environment, or the kind of task, where all groups have the same."""
    tasks = [members.runs[0].config.get("task") or {} for members in groups]
    subjects = {str(task.get("env_id") or task.get("kind") or "") for task in tasks}
    return subjects.pop() if len(subjects) == 1 else "Learning curves"


def _key(groups: Sequence[Group]) -> list[Line2D | Patch]:
    """What thin, bold and shaded mean."""
    several = [len(members.runs) > 1 for members in groups]
    spread = "± std over runs" if all(several) else "± std of the population"
    if any(several) and not all(several):
        spread = "± std over runs (of a single run: of its population)"
    key: list[Line2D | Patch] = [
        Line2D([], [], color=GREY, lw=0.8, label="population mean"),
        Patch(color=GREY, alpha=0.2, lw=0, label=spread),
    ]
    if any(evaluation(members, "timesteps") for members in groups):
        key.insert(0, Line2D([], [], color=GREY, lw=2.0, marker="o", ms=4, mec="white", label="evaluation of theta"))
    return key


def _legend_label(group: Group) -> str:
    if len(group.runs) == 1:
        return _short(group.label)
    notes = [f"n = {len(group.runs)}"]
    seeds = len({run.config.get("seed") for run in group.runs})
    if seeds < len(group.runs):
        notes.append(f"{seeds} seed{'s' if seeds > 1 else ''}")
    curve = evaluation(group, "timesteps")
    if curve is not None and curve.runs < len(group.runs):
        notes.append(f"evaluation n = {curve.runs}")
    return f"{_short(group.label)} ({', '.join(notes)})"


def _short(label: str) -> str:
    return label if len(label) <= 64 else f"{label[:63]}…"


def _label_x(ax: Axes, x: X) -> None:
    name, units = AXES[x]
    top = max(float(np.max(line.get_xdata())) for line in ax.get_lines())
    size, unit = next((pair for pair in units if top >= 2 * pair[0]), units[-1])
    ax.set_xlabel(f"{name} ({unit})" if unit else name)
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_locator(_Steps(size))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:,.12g}"))


class _Steps(MaxNLocator):
    """Ticks at round numbers of a unit."""

    def __init__(self, size: float) -> None:
        super().__init__(6, steps=[1, 2, 2.5, 5, 10])
        self._size = size

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        return [self._size * tick for tick in super().tick_values(vmin / self._size, vmax / self._size)]


def _save(figure: Figure, output: Path) -> None:
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    kind = output.suffix.lower().removeprefix(".")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(temporary, format=kind, metadata=UNDATED[kind])
        temporary.replace(output)
    except OSError as error:
        raise RunError(f"{output} could not be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _evaluations(run: Run, x: X) -> tuple[Float64, ...]:
    return run.series(f"{x}_total", "evaluation_return_mean")


def _without_apart(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key not in APART}


def _common_name(names: Sequence[str]) -> str:
    """What names such as walker_s1 and walker_s2 have in common: walker."""
    if len(set(names)) == 1:
        return names[0]
    prefix = os.path.commonprefix(names)  # noqa: RUF071  letters, not folders
    return re.sub(r"[-_. ]*(seed|run|rep|s)?[-_. ]*\d*$", "", prefix) or names[0]


def _difference(members: Sequence[Sequence[Run]], names: Sequence[str], index: int) -> str:
    """The options in which one of several groups of the same name differs from the others."""
    flat = [_flat(_without_apart(runs[0])) for runs, name in zip(members, names, strict=True) if name == names[index]]
    mine = _flat(_without_apart(members[index][0]))
    keys = [key for key in mine if any(other.get(key) != mine[key] for other in flat)]
    return ", ".join(f"{key} {mine[key]}" for key in keys[:3]) or members[index][0].path.name


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _float(value: Number) -> float:
    return np.nan if value is None else float(value)
