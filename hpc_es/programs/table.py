"""Searches for programs compared: repetitions, success rate and mean NPE of each task by each algorithm.

NPE is the number of programs executed until the first correct one, or of all where there is none, as in Abolafia et
al. 2018 (arXiv:1801.03526). An algorithm is known by the name of its config, without the task at its end.


The success rates of searches for programs as a picture: a line for each task, a column for each algorithm."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np
import yaml
from matplotlib.figure import Figure

from hpc_es.core.errors import UserError
from hpc_es.programs.coding_tasks import PAPER
from hpc_es.programs.shorten import judged
from hpc_es.report.plot import STYLE, SUFFIXES
from hpc_es.storage import results
from hpc_es.storage.files import written


@dataclass(frozen=True)
class Cell:
    """The finished repetitions of one algorithm on one task."""

    rows: Sequence[results.Result]
    wanted: int  # repetitions that the runs have in all

    @property
    def success_rate(self) -> float:
        """Share of the repetitions that have found a correct program."""
        return fmean(bool(row["success"]) for row in self.rows)

    @property
    def npe(self) -> float:
        """Mean over all repetitions."""
        return fmean(row["npe"] for row in self.rows)

    @property
    def success_npe(self) -> float | None:
        """Mean over the repetitions with success."""
        found = [row["npe"] for row in self.rows if row["success"]]
        return fmean(found) if found else None

    @property
    def reward(self) -> float:
        """Mean of the repetitions' best rewards; 1 is that of a correct program without bonuses."""
        return fmean(row["best_reward"] for row in self.rows if row["best_reward"] is not None)

    @property
    def missing(self) -> int:
        """Repetitions that are not finished."""
        return max(self.wanted - len(self.rows), 0)

    @property
    def shortest(self) -> tuple[str, float | None] | None:
        """The shortest of the correct programs that are known, with its reward where that is known."""
        known: list[tuple[str, float | None]] = []
        for row in self.rows:
            if row["best_correct"]:
                known.append((row["best_program"], row["best_reward"]))
            if row["code_solution"]:
                known.append((row["code_solution"], None))
        return min(known, key=lambda found: len(found[0]), default=None)


@dataclass(frozen=True)
class Table:
    """Cells by task and algorithm; those of the paper in its order, then the others by name."""

    cells: Mapping[tuple[str, str], Cell]
    budgets: Mapping[str, int | None]  # most programs of a repetition, by algorithm
    unfinished: Sequence[Path] = ()  # runs without a result yet

    @property
    def tasks(self) -> list[str]:
        """The tasks that some algorithm has."""
        there = {task: None for task, _ in self.cells}
        return [*(task for task in PAPER if task in there), *sorted(task for task in there if task not in PAPER)]

    @property
    def algorithms(self) -> list[str]:
        """As they were given."""
        return list(self.budgets)


def read_table(directories: Sequence[Path], limit: int | None = None) -> Table:
    """Return the results in run directories, or in the directories that are in them; UserError where they do not fit.

    `limit` gives what they had found within so many programs.
    """
    rows: dict[tuple[str, str, int, int], results.Result] = {}
    cells: dict[tuple[str, str], list[results.Result]] = {}
    wanted: dict[tuple[str, str], dict[int, int]] = {}  # by task and algorithm: repetitions of each seed
    budgets: dict[str, int | None] = {}
    unfinished = [directory for directory in directories if _is_unfinished(directory)]
    for directory in [each for each in directories if each not in unfinished] or directories:
        for place, row, cycle in _found(directory):
            name = str(row["name"]).removesuffix(f"_{row['task']}")
            key = (row["task"], name, int(row["seed"]), int(row["repetition"]))
            if rows.setdefault(key, row) is not row:
                text = f"repetition {key[3]} of {name} on {key[0]} with seed {key[2]} was there already"
                raise UserError(f"{place}: {text}: give each run once")
            budget = row["budget"]["episodes"]
            if limit is None and budgets.setdefault(name, budget) != budget:
                text = f"{name} may execute {budget} programs here, and {budgets[name]} in another run"
                raise UserError(f"{place}: {text}: give the configs different names")
            if limit is not None:
                budgets[name] = limit
            cells.setdefault(key[:2], []).append(row if limit is None else _within(limit, row, place))
            wanted.setdefault(key[:2], {})[key[2]] = _repetitions_of(row, cycle)
    return Table({key: Cell(found, sum(wanted[key].values())) for key, found in cells.items()}, budgets, unfinished)


def _repetitions_of(row: results.Result, cycle: Sequence[str]) -> int:
    """Return how many repetitions of a row's run have the task of this row: all of them, where no cycle has it."""
    cycle = cycle if row["task"] in cycle else [row["task"]]
    rounds, rest = divmod(int(row["repetitions"]), len(cycle))
    return rounds * list(cycle).count(row["task"]) + list(cycle[:rest]).count(row["task"])


def _cycle(place: Path) -> Sequence[str]:
    """The tasks that the repetitions of a run take in turn, as its config.yaml says; none where all have one task."""
    path = place / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        return list(config.get("task", {}).get("cycle") or ())
    except (OSError, AttributeError, TypeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected the config of a search for programs: {error}") from error


def _within(limit: int, row: results.Result, place: Path) -> results.Result:
    """Return what a repetition had found within so many programs."""
    if row["npe"] <= limit and (row["success"] or row["npe"] == limit):
        return row
    if row["npe"] < limit:
        text = f"repetition {row['repetition']} gave up after {row['npe']} programs: expected a limit of at most that"
        raise UserError(f"{place}: {text}")
    return {**row, "success": False, "npe": limit, "code_solution": "", "best_correct": False}


def _is_unfinished(directory: Path) -> bool:
    """Return whether it is a run that has no result yet."""
    return (directory / "config.yaml").exists() and not results.read_results(directory)


def _found(directory: Path) -> Iterator[tuple[Path, results.Result, Sequence[str]]]:
    """The results of searches for programs in a directory, or else in those in it, with the tasks of their runs."""
    if not directory.is_dir():
        raise UserError(f"{directory}: expected a run directory, or one of runs, found none")
    places = {
        place: results.read_results(place) for place in (directory, *sorted(directory.iterdir())) if place.is_dir()
    }
    if places[directory]:
        places = {directory: places[directory]}
    found = [(place, row) for place, rows in places.items() for row in rows if "npe" in row]
    if not found:
        raise UserError(f"{directory}: expected finished searches for programs, found none")
    cycles = {place: _cycle(place) for place in dict.fromkeys(place for place, _ in found)}
    yield from ((place, row, cycles[place]) for place, row in found)


def table_text(table: Table, rewards: bool = False) -> str:
    """Return the table for people: finished repetitions [success rate, mean NPE]; * where repetitions are missing.

    Or, with `rewards`, the mean of the repetitions' best rewards.
    """
    lines = [["task", *table.algorithms]]
    for task in table.tasks:
        cells = [table.cells.get((task, algorithm)) for algorithm in table.algorithms]
        lines.append([task, *("" if cell is None else _shown(cell, rewards) for cell in cells)])
    if not rewards:
        means = [_mean(table, algorithm) for algorithm in table.algorithms]
        lines.append(["mean success rate", *(f"{mean:.2f}" for mean in means)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    if any(cell.missing for cell in table.cells.values()):
        shown.append("* repetitions are missing")
    return "\n".join(shown) + "\n"


def _shown(cell: Cell, rewards: bool) -> str:
    number = f"{cell.reward:.3f}" if rewards else f"[{cell.success_rate:.2f}, {cell.npe:.0f}]"
    return f"{len(cell.rows)}{'*' * bool(cell.missing)} {number}"


def _mean(table: Table, algorithm: str) -> float:
    """Over the tasks that it has."""
    return fmean(cell.success_rate for (_, name), cell in table.cells.items() if name == algorithm)


def as_csv(table: Table) -> str:
    """Two lines of heads, then one line for each task: repetitions, success rate, mean NPE, of each algorithm."""
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    budgets = [f"{name} ({'no limit' if limit is None else limit} NPE)" for name, limit in table.budgets.items()]
    out.writerow(["", *(text for budget in budgets for text in (budget, "", ""))])
    out.writerow(["task", *(("reps", "success rate", "mean NPE") * len(budgets))])
    for task in table.tasks:
        line: list[Any] = [task]
        for algorithm in table.algorithms:
            cell = table.cells.get((task, algorithm))
            line += ["", "", ""] if cell is None else [len(cell.rows), f"{cell.success_rate:.2f}", round(cell.npe)]
        out.writerow(line)
    return file.getvalue()


def shortest(table: Table) -> str:
    """Return the shortest correct program of each task, who has found it, and what `judged` says of it."""
    lines = []
    for task in table.tasks:
        known = [(cell.shortest, name) for (of, name), cell in table.cells.items() if of == task and cell.shortest]
        if not known:
            lines.append(f"{task}  none")
            continue
        found, name = min(known, key=lambda one: len(one[0][0]) if one[0] else 0)
        assert found
        reward = "" if found[1] is None else f", R={found[1]:.6f}"
        lines.append(f"{task}  {found[0]}  ({len(found[0])} characters, by {name}{reward}{_verdict(found[0], task)})")
    return "\n".join(lines) + "\n"


def _verdict(program: str, task: str) -> str:
    known = judged(program, task)
    if known is None:  # correct by other rules than the task has by default, such as another base
        return ""
    form = f"; {known.shortest} does the same" if len(known.shortest) < len(program) else ""
    return form + (f"; right in {known.right} of {known.fresh} fresh cases" if known.fresh else "")


DARK = 0.6  # from this rate on, letters are white


def draw(table: Table, output: Path) -> None:
    """Draw the table into a PNG, PDF or SVG; UserError for another suffix, RunError where it cannot be written."""
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, "axes.grid": False})
        with written(output) as temporary:
            figure(table).savefig(temporary, format=output.suffix[1:].lower())


def figure(table: Table) -> Figure:
    """Return the figure; in a field the rate, and below it the mean NPE. What was not run stays white."""
    tasks, algorithms = table.tasks, table.algorithms
    rates = np.full((len(tasks), len(algorithms)), np.nan)
    size = (2.6 + 1.25 * len(algorithms), 0.9 + 0.36 * len(tasks))
    result = Figure(figsize=size, dpi=150, layout="constrained")
    ax = result.subplots()
    for (task, algorithm), cell in table.cells.items():
        line, column = tasks.index(task), algorithms.index(algorithm)
        rates[line, column] = cell.success_rate
        shown = f"{cell.success_rate:.2f}{'*' * bool(cell.missing)}\n{short(cell.npe)} NPE"
        color = "white" if cell.success_rate >= DARK else "black"
        ax.text(column, line, shown, ha="center", va="center", fontsize=6, color=color, linespacing=1.1)
    image = ax.imshow(rates, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    ax.set_xticks(range(len(algorithms)), algorithms, rotation=20 if max(map(len, algorithms)) > 12 else 0)
    ax.set_yticks(range(len(tasks)), tasks)
    ax.tick_params(length=0)
    result.colorbar(image, ax=ax, label="success rate", shrink=0.8)
    repetitions = sorted({len(cell.rows) for cell in table.cells.values()})
    ax.set_title(f"{' to '.join(map(str, dict.fromkeys((repetitions[0], repetitions[-1]))))} repetitions", fontsize=9)
    return result


def short(number: float) -> str:
    """Three digits: 12.3M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.0f}"
