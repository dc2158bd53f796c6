"""Trials on BBOB functions, run in parallel processes; each finished trial is a JSON line of a
file.

Trials in the file are not run again, so the command can be killed and repeated; an incomplete last
line is dropped.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.functions.contenders import Contender
from hpc_es.core.data import Float64
from hpc_es.core.errors import require
from hpc_es.storage.line_logs import LinesFile

Key = tuple[str, int, int, int]  # strategy, function, dimension, instance
Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One search on one function."""

    contender: Contender
    function: int
    dimension: int
    instance: int  # instance of the function, and seed of the search

    @property
    def key(self) -> Key:
        """The identity of the trial."""
        return self.contender.name, self.function, self.dimension, self.instance

    def __str__(self) -> str:
        name, function, dimension, instance = self.key
        return f"{name} f{function} n={dimension} instance {instance}"


class SeenEnoughError(Exception):
    """The target is reached or the budget is used up; raised by the function to end the search."""


class Counted:
    """A cocoex problem that counts evaluations,
    and raises SeenEnoughError at the target or the end of the budget.
    """

    def __init__(self, problem: Any, budget: int) -> None:
        self._problem, self._budget = problem, budget
        self.evaluations, self.best = 0, float("inf")

    @property
    def is_solved(self) -> bool:
        """Whether a value was at most 1e-8 above the optimum."""
        return bool(self._problem.final_target_hit)

    def __call__(self, x: Float64) -> float:
        value = float(self._problem(x))
        self.evaluations += 1
        self.best = min(self.best, value)
        if self.is_solved or self.evaluations >= self._budget:
            raise SeenEnoughError
        return value


def plan(
    contenders: Sequence[Contender],
    functions: Sequence[int],
    dimensions: Sequence[int],
    instances: Sequence[int],
) -> list[Trial]:
    """Return all trials, low dimensions first."""
    return [
        Trial(contender, function, dimension, instance)
        for dimension in sorted(dimensions)
        for function in functions
        for instance in instances
        for contender in contenders
        if contender.takes(function, dimension)
    ]


def read(path: Path) -> list[Row]:
    """Return the complete lines of the file as rows; none if there is no file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def missing(wanted: Sequence[Trial], path: Path) -> list[Trial]:
    """Return the trials that are not in the file."""
    finished = {
        (row["strategy"], row["function"], row["dimension"], row["instance"]) for row in read(path)
    }
    return [trial for trial in wanted if trial.key not in finished]


def run(wanted: Sequence[Trial], path: Path, jobs: int) -> int:
    """Run the trials and append their rows; the exit status is 1 if one failed;
    failed trials are not in the file.
    """
    require("bbob", "cma", "cocoex")
    failed = 0
    drop_cut_line(path)
    file = LinesFile(path)
    for number, (trial, row) in enumerate(_rows(wanted, jobs), start=1):
        print(f"{number}/{len(wanted)} {trial}: ", end="")
        if isinstance(row, str):
            failed += 1
            print(f"failed: {row}", flush=True)
        else:
            file.append(json.dumps(row) + "\n")
            print(
                f"{'solved' if row['solved'] else row['reason']}, {row['evaluations']} evaluations",
                flush=True,
            )
    file.close()
    return int(failed > 0)


def _rows(wanted: Sequence[Trial], jobs: int) -> Iterator[tuple[Trial, Row | str]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=end_with_parent) as pool:
        futures = {pool.submit(_attempt, trial): trial for trial in wanted}
        try:
            for future in as_completed(futures):
                yield futures.pop(future), future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _attempt(trial: Trial) -> Row | str:
    """Return the row of a trial, or its error as text, since not every exception can be pickled."""
    try:
        return row_of(trial)
    except Exception as error:  # an error in one strategy must not end the other trials
        return f"{type(error).__name__}: {error}"


def row_of(trial: Trial) -> Row:
    """Run a trial and return its row."""
    import cocoex

    which = f"function_indices:{trial.function} dimensions:{trial.dimension} instance_indices:{trial.instance}"
    suite = cocoex.Suite("bbob", "", which)
    counted = Counted(suite.next_problem(), trial.contender.budget * trial.dimension)
    return search(trial, counted)


def search(trial: Trial, counted: Counted) -> Row:
    """Run the search of a trial on a problem and return its row."""
    since = time.perf_counter()
    try:
        reason = trial.contender.search(counted, trial.dimension, trial.instance)
    except SeenEnoughError:
        reason = "target" if counted.is_solved else "budget"
    name, function, dimension, instance = trial.key
    return {
        **{"strategy": name, "function": function, "dimension": dimension, "instance": instance},
        **{
            "solved": counted.is_solved,
            "evaluations": counted.evaluations,
            "best": counted.best,
            "reason": reason,
        },
        "seconds": round(time.perf_counter() - since, 3),
    }


def continued(
    trial: Callable[..., Row],
    wanted: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    path: Path,
    jobs: int,
) -> list[Row]:
    """Run the trials that the file lacks and append their rows to it; return all rows.

    Args:
        trial: returns the row of a trial.
        wanted: arguments of the trials, which begin with the columns `names` of their rows.
    """
    drop_cut_line(path)
    found = {tuple(row.get(name) for name in names): row for row in read(path)}
    missing = [one for one in wanted if one[: len(names)] not in found]
    print(f"{len(wanted)} trials, {len(missing)} of them missing", flush=True)
    context = multiprocessing.get_context("spawn")
    with (
        path.open("a") as file,
        ProcessPoolExecutor(jobs, context, initializer=end_with_parent) as pool,
    ):
        futures = {pool.submit(trial, *one): one[: len(names)] for one in missing}
        try:
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                file.write(json.dumps(future.result()) + "\n")
                file.flush()
        finally:
            pool.shutdown(cancel_futures=True)
    return [found[one[: len(names)]] for one in wanted]


def drop_cut_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed process has left."""
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole)


def end_with_parent() -> None:
    """End this process when its parent ends for any reason."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
