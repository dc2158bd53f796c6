"""Comparison of searches for programs per task and algorithm.

It shows success rate and mean NPE as text, CSV or figure. NPE is the number of programs executed
until the first correct one, or of all programs without success, as in Abolafia et al. 2018
(arXiv:1801.03526). An algorithm is identified by the name of its config without the task at its
end.

Also tests of correct programs on cases that the search has not seen, after removing their
superfluous characters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from hpc_es.config.options import Hint, Limits, require_fit
from hpc_es.config.resolved import plain_data
from hpc_es.core.errors import READING, ConfigError, UserError, unreadable_reason, visible
from hpc_es.core.run_files import LARGEST_CONFIG, exists, read_text
from hpc_es.core.spreadsheets import spreadsheet_text
from hpc_es.core.text_table import aligned
from hpc_es.extend.reports import STYLE, SUFFIXES
from hpc_es.extend.runs import Result, mean, read_results, written
from hpc_es.programs.coding_cases import COUNT, TASKS, Case
from hpc_es.programs.coding_tasks import PAPER, CodingTask, make_task

_Whole = Annotated[int, Limits(ge=0, lt=2**63)]
# the types of what a table needs of a result, which may come from somebody else
_ROW: Mapping[str, Hint] = {
    **dict.fromkeys(("name", "task", "best_program", "code_solution"), str),
    **dict.fromkeys(("seed", "repetition", "repetitions", "npe"), _Whole),
    **dict.fromkeys(("success", "best_correct"), bool),
    "best_reward": float | None,
    "budget": Mapping[str, float | None],
}


@dataclass(frozen=True)
class Cell:
    """Finished repetitions of one algorithm on one task."""

    rows: Sequence[Result]
    repetitions: int  # number of repetitions of all runs, finished or not

    @property
    def success_rate(self) -> float:
        """Fraction of the repetitions that found a correct program."""
        return mean(bool(row["success"]) for row in self.rows)

    @property
    def npe(self) -> float:
        """Mean NPE over all repetitions."""
        return mean(row["npe"] for row in self.rows)

    @property
    def success_npe(self) -> float | None:
        """Mean NPE over the successful repetitions."""
        values = [row["npe"] for row in self.rows if row["success"]]
        return mean(values) if values else None

    @property
    def reward(self) -> float | None:
        """Mean of the best rewards of the repetitions; 1 for a correct program without bonuses.

        None if no program got one.
        """
        rewards = [row["best_reward"] for row in self.rows if row["best_reward"] is not None]
        return mean(rewards) if rewards else None

    @property
    def missing(self) -> int:
        """Number of repetitions that are not finished."""
        return max(self.repetitions - len(self.rows), 0)

    @property
    def shortest(self) -> tuple[str, float | None] | None:
        """The shortest known correct program, with its reward if that is known."""
        known: list[tuple[str, float | None]] = []
        for row in self.rows:
            if row["best_correct"]:
                known.append((row["best_program"], row["best_reward"]))
            if row["code_solution"]:
                known.append((row["code_solution"], None))
        return min(known, key=lambda entry: len(entry[0]), default=None)


@dataclass(frozen=True)
class Table:
    """Cells by task and algorithm; tasks of the paper in its order, then the others by name."""

    cells: Mapping[tuple[str, str], Cell]
    budgets: Mapping[str, int | None]  # maximum number of programs per repetition, by algorithm
    unfinished: Sequence[Path] = ()  # runs without a result yet
    unreadable: Sequence[str] = ()  # why others are left out

    @property
    def tasks(self) -> list[str]:
        """The tasks of all algorithms."""
        tasks = {task: None for task, _ in self.cells}
        return [
            *(task for task in PAPER if task in tasks),
            *sorted(task for task in tasks if task not in PAPER),
        ]

    @property
    def algorithms(self) -> list[str]:
        """The algorithms in the order of their directories."""
        return list(self.budgets)


def read_table(directories: Sequence[Path], limit: int | None = None) -> Table:
    """Read the results of run directories, or of directories of runs.

    With `limit`, only the first programs of each repetition count.

    Raises:
        UserError: they do not fit together.
    """
    rows: dict[tuple[str, str, int, int], Result] = {}
    cells: dict[tuple[str, str], list[Result]] = {}
    # by task and algorithm: repetitions of each seed
    repetitions: dict[tuple[str, str], dict[int, int]] = {}
    budgets: dict[str, int | None] = {}
    unfinished: list[Path] = []
    unreadable: list[str] = []
    for directory in directories:
        for run_dir, row, cycle in _program_results(directory, unfinished, unreadable):
            name = str(row["name"]).removesuffix(f"_{row['task']}")
            key = (row["task"], name, int(row["seed"]), int(row["repetition"]))
            if rows.setdefault(key, row) is not row:
                raise UserError(
                    f"{run_dir}: repetition {key[3]} of {name} on {key[0]} with seed {key[2]} "
                    "occurs twice: name each run only once"
                )
            budget = row["budget"].get("episodes")
            if limit is None and budgets.setdefault(name, budget) != budget:
                raise UserError(
                    f"{run_dir}: {name} may execute {budget} programs here, and "
                    f"{budgets[name]} in another run: give the configs different names"
                )
            if limit is not None:
                budgets[name] = limit
            cells.setdefault(key[:2], []).append(
                row if limit is None else _limited(limit, row, run_dir)
            )
            repetitions.setdefault(key[:2], {})[key[2]] = cycle.repetitions(row)
    if not rows:
        first = f"{directories[0]}: expected finished searches for programs, found none"
        raise UserError([*unreadable, first][0])
    return Table(
        {key: Cell(items, sum(repetitions[key].values())) for key, items in cells.items()},
        budgets,
        unfinished,
        unreadable,
    )


class _Cycle:
    """task.cycle of a run: the tasks of its repetitions; empty if all have the same one."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._length = len(tasks)
        self._places: dict[str, list[int]] = {}
        for place, task in enumerate(tasks):
            self._places.setdefault(task, []).append(place)

    def repetitions(self, row: Result) -> int:
        """Return the number of repetitions of a run with the task of this row:
        all of them without a cycle.
        """
        places = self._places.get(row["task"])
        if places is None:
            return int(row["repetitions"])
        rounds, rest = divmod(int(row["repetitions"]), self._length)
        return rounds * len(places) + bisect_left(places, rest)


def _cycle(run_dir: Path) -> _Cycle:
    """Return task.cycle of a run's config.yaml."""
    path = run_dir / "config.yaml"
    try:
        config = plain_data(read_text(path, most=LARGEST_CONFIG)) if exists(path) else {}
        return _Cycle(config.get("task", {}).get("cycle") or ())
    except (OSError, AttributeError, TypeError, ValueError, ConfigError) as error:
        raise UserError(f"{path}: expected the config of a search for programs: {error}") from error


def _limited(limit: int, row: Result, run_dir: Path) -> Result:
    """Return the result of a repetition after this number of programs."""
    if row["npe"] <= limit and (row["success"] or row["npe"] == limit):
        return row
    if row["npe"] < limit:
        raise UserError(
            f"{run_dir}: repetition {row['repetition']} gave up after {row['npe']} programs: "
            "expected a limit of at most that"
        )
    return {**row, "success": False, "npe": limit, "code_solution": "", "best_correct": False}


def _program_results(
    directory: Path, unfinished: list[Path], unreadable: list[str]
) -> Iterator[tuple[Path, Result, _Cycle]]:
    """Yield the results of a run directory or a directory of runs, each with its directory and task
    cycle; add the run directories without results, and why others cannot be read, to the lists.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: expected a run directory, or one of runs, found none")
    run_dirs = [directory]
    if not exists(directory / "config.yaml"):
        run_dirs += (path for path in sorted(directory.iterdir()) if path.is_dir())
    for run_dir in run_dirs:
        try:
            rows = [row for row in read_results(run_dir) if "npe" in row]
            for row in rows:
                for name, hint in _ROW.items():
                    require_fit(hint, row[name], name)
            cycle = _cycle(run_dir)
        except (UserError, *READING) as error:
            reason = unreadable_reason(error)
            if not isinstance(error, UserError | OSError):
                reason = f"{run_dir}: expected results of a search for programs: {reason}"
            unreadable.append(reason)
            continue
        if not rows and directory == run_dir and len(run_dirs) == 1:
            unfinished.append(run_dir)
        yield from ((run_dir, row, cycle) for row in rows)


def table_text(table: Table, rewards: bool = False) -> str:
    """Return a text table of finished repetitions [success rate, mean NPE].

    * marks missing repetitions. With `rewards`, cells contain the mean best reward instead.
    """
    lines = [["task", *table.algorithms]]
    for task in table.tasks:
        cells = [table.cells.get((task, algorithm)) for algorithm in table.algorithms]
        lines.append([task, *("" if cell is None else _cell_text(cell, rewards) for cell in cells)])
    if not rewards:
        rates = [
            mean(cell.success_rate for (_, name), cell in table.cells.items() if name == algorithm)
            for algorithm in table.algorithms
        ]
        lines.append(["mean success rate", *(f"{rate:.2f}" for rate in rates)])
    text_lines = aligned(lines)
    if any(cell.missing for cell in table.cells.values()):
        text_lines.append("* repetitions are missing")
    return "\n".join(text_lines) + "\n"


def _cell_text(cell: Cell, rewards: bool) -> str:
    number = f"[{cell.success_rate:.2f}, {cell.npe:.0f}]"
    if rewards:
        number = "no reward" if cell.reward is None else f"{cell.reward:.3f}"
    return f"{len(cell.rows)}{'*' * bool(cell.missing)} {number}"


def as_csv(table: Table) -> str:
    """Return CSV: two header lines, then a line per task.

    A line has repetitions, success rate, mean NPE per algorithm.
    """
    budgets = [
        f"{name} ({'no limit' if limit is None else limit} NPE)"
        for name, limit in table.budgets.items()
    ]
    lines: list[list[str | int]] = [
        ["", *(text for budget in budgets for text in (budget, "", ""))],
        ["task", *(("reps", "success rate", "mean NPE") * len(budgets))],
    ]
    for task in table.tasks:
        line: list[str | int] = [task]
        for algorithm in table.algorithms:
            cell = table.cells.get((task, algorithm))
            line += (
                ["", "", ""]
                if cell is None
                else [len(cell.rows), f"{cell.success_rate:.2f}", round(cell.npe)]
            )
        lines.append(line)
    return spreadsheet_text(lines)


def shortest(table: Table) -> str:
    """Return text with the shortest correct program of each task.

    It has the algorithm and the result of `check_program`.
    """
    lines = []
    for task in table.tasks:
        cells = (
            (name, cell) for (cell_task, name), cell in table.cells.items() if cell_task == task
        )
        known = [(*cell.shortest, name) for name, cell in cells if cell.shortest]
        if not known:
            lines.append(f"{task}  none")
            continue
        program, reward, name = min(known, key=lambda entry: len(entry[0]))
        reward_text = "" if reward is None else f", R={reward:.6f}"
        lines.append(
            f"{task}  {program}  ({len(program):,} characters, by {name}{reward_text}{_verdict(program, task)})"
        )
    return "".join(f"{visible(line)}\n" for line in lines)


def _verdict(program: str, task: str) -> str:
    check = check_program(program, task)
    if check is None:  # correct only with other options, such as another base
        return ""
    shorter = f"; {check.shortest} does the same" if len(check.shortest) < len(program) else ""
    return shorter + (
        f"; correct in {check.solved} of {check.fresh} fresh cases" if check.fresh else ""
    )


MOST_DRAWN = 200, 40  # tasks and algorithms of a picture
LONGEST_LABEL = 60
DARK = 0.6  # success rate from which the text is white


def draw(table: Table, output: Path) -> None:
    """Write the figure as PNG, PDF or SVG.

    Raises:
        UserError: another suffix, or a table that is too large.
        RunError: it cannot be written.
    """
    if len(table.tasks) > MOST_DRAWN[0] or len(table.algorithms) > MOST_DRAWN[1]:
        raise UserError(
            f"--picture: has {len(table.tasks):,} tasks and {len(table.algorithms):,} algorithms: expected at most "
            f"{MOST_DRAWN[0]} and {MOST_DRAWN[1]}; name fewer runs"
        )
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}"
        )
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, "axes.grid": False})
        with written(output) as temporary:
            figure(table).savefig(temporary, format=output.suffix[1:].lower())


def figure(table: Table) -> Figure:
    """Return the figure.

    Cells contain the success rate and the mean NPE, and are white without runs.
    """
    tasks, algorithms = table.tasks, table.algorithms
    columns = [*map(_label, algorithms)]
    rates = np.full((len(tasks), len(algorithms)), np.nan)
    size = (2.6 + 1.25 * len(algorithms), 0.9 + 0.36 * len(tasks))
    result = Figure(figsize=size, dpi=150, layout="constrained")
    ax = result.subplots()
    for (task, algorithm), cell in table.cells.items():
        line, column = tasks.index(task), algorithms.index(algorithm)
        rates[line, column] = cell.success_rate
        text = f"{cell.success_rate:.2f}{'*' * bool(cell.missing)}\n{short(cell.npe)} NPE"
        color = "white" if cell.success_rate >= DARK else "black"
        ax.text(
            column, line, text, ha="center", va="center", fontsize=6, color=color, linespacing=1.1
        )
    image = ax.imshow(rates, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    ax.set_xticks(
        range(len(algorithms)), columns, rotation=20 if max(map(len, columns)) > 12 else 0
    )
    ax.set_yticks(range(len(tasks)), [*map(_label, tasks)])
    ax.tick_params(length=0)
    result.colorbar(image, ax=ax, label="success rate", shrink=0.8)
    repetitions = sorted({len(cell.rows) for cell in table.cells.values()})
    ax.set_title(
        f"{' to '.join(map(str, dict.fromkeys((repetitions[0], repetitions[-1]))))} repetitions",
        fontsize=9,
    )
    return result


def _label(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 3]}..."


def short(number: float) -> str:
    """Return a number with three digits and a unit, such as 12.3M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.0f}"


FRESH_CASES = 100  # fewer if the number of cases of the task is fixed
LONGEST_SHORTENED = 300  # the executions to shorten a program grow with the cube of its length
SEED = 20180110  # of the fresh cases; not that of the published ones


@dataclass(frozen=True)
class ProgramCheck:
    """Shortest form of a correct program, and its result on fresh cases."""

    # correct in the task's cases, and in all fresh cases in which the whole program is correct
    shortest: str
    solved: int  # number of fresh cases in which the program is correct
    fresh: int  # number of fresh cases; 0 if the task has fixed cases only


@lru_cache(maxsize=1000)
def check_program(program: str, name: str) -> ProgramCheck | None:
    """Shorten a program, unless it is very long, and execute it on fresh cases.

    None if it is not correct in the task of this name.
    """
    if name not in TASKS:
        return None
    task = make_task(name, max_code_length=max(len(program), 1))
    if not task.score(program).correct:
        return None
    fresh = fresh_cases(name)
    solved = [case for case in fresh if replace(task, cases=(case,)).score(program).correct]
    shortest = program
    if len(program) <= LONGEST_SHORTENED:
        shortest = shortened(program, replace(task, cases=(*task.cases, *solved)))
    return ProgramCheck(shortest, len(solved), len(fresh))


def fresh_cases(name: str) -> Sequence[Case]:
    """Draw cases of a task with another seed, without inputs that the task uses already.

    There may be none.
    """
    task = TASKS[name]
    used = {inputs for inputs, _ in task.cases(task.base)}
    drawn = task.cases(task.base, {COUNT: FRESH_CASES} if COUNT in task.choices else None, SEED)
    return [(inputs, outputs) for inputs, outputs in drawn if inputs not in used]


def shortened(program: str, task: CodingTask) -> str:
    """Remove unneeded parts of a correct program.

    These are substrings, longest first, and pairs of characters, as brackets. In the result, no
    substring and no pair of characters can be removed; still shorter programs may exist.
    """
    while True:
        shorter = _without_substrings(program, task)
        if shorter == program:
            pairs = combinations(range(len(program)), 2)
            without_pairs = (program[:a] + program[a + 1 : b] + program[b + 1 :] for a, b in pairs)
            shorter = _first_correct(without_pairs, task) or program
        if shorter == program:
            return program
        program = shorter


def _without_substrings(program: str, task: CodingTask) -> str:
    for size in range(len(program), 0, -1):
        while shorter := _first_correct(
            (program[:start] + program[start + size :] for start in range(len(program) - size + 1)),
            task,
        ):
            program = shorter
    return program


def _first_correct(programs: Iterable[str], task: CodingTask) -> str | None:
    """Return the first correct program that is not empty, or None."""
    candidates = [program for program in dict.fromkeys(programs) if program]
    if not candidates:
        return None
    correct = task.score_many(candidates)[1]
    return candidates[int(correct.argmax())] if correct.any() else None
