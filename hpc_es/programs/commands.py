"""Commands for program synthesis: run-program, program-table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from hpc_es.core.arguments import expanded_path, whole_number
from hpc_es.core.errors import UserError, visible

if TYPE_CHECKING:
    from hpc_es.core.data import JsonObject

CONTEXT = 12  # characters on both sides of the executed one, in a trace
CELLS = 8  # memory cells in a line of a trace


def add_run_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the program and its input."""
    parser.add_argument(
        "run",
        nargs="?",
        type=expanded_path,
        metavar="RUN_OR_CHECKPOINT",
        help="search for programs",
    )
    parser.add_argument(
        "--program", metavar="TEXT", help="program to execute instead, such as --program=',[.,]'"
    )
    parser.add_argument(
        "--input",
        type=_whole_numbers,
        default=(),
        metavar="1,2,3",
        help="input that ',' reads (default: none)",
    )
    parser.add_argument(
        "--base",
        type=whole_number,
        metavar="N",
        help="base of the numbers, which are 0 .. N - 1 (default: that of the task, or 256)",
    )
    parser.add_argument(
        "--max-steps",
        type=whole_number,
        metavar="N",
        help="step limit (default: that of the task, or 5000)",
    )
    parser.add_argument("--trace", action="store_true", help="print every step on stderr")


def run_run_program(arguments: argparse.Namespace) -> int:
    """Execute the best program of a search, or a program from the command line.

    The output, numbers separated by spaces, goes to stdout; the end state, steps and memory go to
    stderr. Exit status 1: the program reached the step limit, or has an unmatched bracket and the
    task does not allow that.
    """
    from hpc_es.programs.brainfuck import MAX_STEPS, Status, evaluate

    if (arguments.run is None) == (arguments.program is None):
        raise UserError("expected a run of a search for programs or --program TEXT, and not both")
    text, task = (arguments.program, {}) if arguments.run is None else _best_program(arguments.run)
    base = arguments.base or task.get("base") or 256
    steps = arguments.max_steps or task.get("max_steps") or MAX_STEPS
    strict = bool(task.get("require_correct_syntax"))
    sys.stderr.write(f"program {visible(text)}\n")
    trace = StepTrace(text) if arguments.trace else None
    result = evaluate(text, arguments.input, base, steps, strict, trace)
    sys.stdout.write(" ".join(map(str, result.output)) + "\n")
    ends = {
        Status.SUCCESS: "ended",
        Status.STEP_LIMIT: "was stopped",
        Status.SYNTAX_ERROR: "is not correct",
    }
    memory = " ".join(map(str, result.memory[:CELLS])) + (
        " ..." if len(result.memory) > CELLS else ""
    )
    sys.stderr.write(
        f"it {ends[result.status]} after {result.steps} of at most {steps} steps; memory {memory}\n"
    )
    return 0 if result.success else 1


def _best_program(path: Path) -> tuple[str, JsonObject]:
    """Return the best program of a checkpoint and the task's options.

    Raises:
        UserError: there is no program.
    """
    from hpc_es.config.options import require_fit
    from hpc_es.config.resolved import plain_data
    from hpc_es.extend.runs import find_checkpoint, load_checkpoint, require_run
    from hpc_es.programs import best_programs
    from hpc_es.programs.coding_cases import TASKS
    from hpc_es.programs.task import Options

    require_run(path)
    snapshot = load_checkpoint(find_checkpoint(path))
    if not best_programs.has_best_programs(snapshot.outcome):
        raise UserError(
            f"{path} is not a program search: expected the run of a program search, or --program TEXT"
        )
    summary = best_programs.summary(snapshot.outcome)
    if not summary.get("best_program"):
        raise UserError(f"{path} has executed no program yet")
    task = dict(plain_data(snapshot.config_text)["task"])
    hints = get_type_hints(Options, include_extras=True)
    try:
        for key in ("name", "base", "max_steps", "require_correct_syntax"):
            if key in task:  # not in runs of older versions
                require_fit(hints[key], task[key], f"task.{key}")
    except TypeError as error:
        raise UserError(f"{path}: {error}") from None
    name = task.get("name")
    if task.get("base") is None and name in TASKS:
        task["base"] = TASKS[name].base
    sys.stderr.write(
        f"{visible(str(name))}: reward {summary['best_reward']:.4g}{', correct' if summary['best_correct'] else ''}\n"
    )
    return str(summary["best_program"]), task


class StepTrace:
    """Print each step on stderr: number, surrounding program, pointer, memory around it, output."""

    def __init__(self, text: str) -> None:
        self._text, self._steps, self._written = text, 0, 0

    def __call__(
        self, position: int, pointer: int, memory: Sequence[int], output: Sequence[int]
    ) -> None:
        """Print one step."""
        self._steps += 1
        before = self._text[max(position - CONTEXT, 0) : position].rjust(CONTEXT)
        after = self._text[position + 1 : position + 1 + CONTEXT].ljust(CONTEXT)
        first = max(pointer - CELLS // 2, 0)
        window = enumerate(memory[first : first + CELLS], first)
        cells = " ".join(f"[{value}]" if cell == pointer else str(value) for cell, value in window)
        wrote = f"  writes {output[-1]}" if len(output) > self._written else ""
        self._written = len(output)
        line = f"{self._steps:6d}  {before} {self._text[position]} {after}  cell {pointer}: {cells}{wrote}"
        sys.stderr.write(visible(line) + "\n")


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(","))) if text else ()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers and commas, such as 1,2,3, found {text!r}"
        ) from None


def add_program_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs and the form of the table."""
    parser.add_argument(
        "directories",
        nargs="+",
        metavar="DIR",
        type=expanded_path,
        help="run directory, directory of repetitions, or directory of these",
    )
    parser.add_argument(
        "--npe-limit",
        metavar="N",
        type=int,
        help="count only successes within N executed programs (runs may have executed more)",
    )
    parser.add_argument(
        "--csv", metavar="FILE", type=expanded_path, help="also write the table as CSV"
    )
    parser.add_argument(
        "--picture",
        metavar="FILE",
        type=expanded_path,
        help="also draw a heat map: .png, .pdf or .svg",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--rewards", action="store_true", help="print the means of the best rewards instead"
    )
    instead.add_argument(
        "--shortest",
        action="store_true",
        help="print the shortest correct programs instead, shortened if they have at most 300 characters, and "
        "tested on new cases",
    )


def run_program_table(arguments: argparse.Namespace) -> int:
    """Compare searches for programs: success rate and mean NPE, tasks by algorithms.

    NPE is the number of programs executed. The columns of the table are the names of the configs.
    """
    if (limit := arguments.npe_limit) is not None and limit < 1:
        raise UserError(f"--npe-limit is {limit}: expected a whole number of at least 1")
    if limit is not None and arguments.rewards:
        raise UserError(
            "--rewards with --npe-limit: the best reward within a limit is not known; leave one out"
        )
    from hpc_es.extend.runs import write_text
    from hpc_es.programs.table import as_csv, draw, read_table, shortest, table_text

    table = read_table(arguments.directories, arguments.npe_limit)
    if arguments.csv:
        write_text(arguments.csv, as_csv(table))
    if arguments.picture:
        draw(table, arguments.picture)
    sys.stdout.write(
        shortest(table) if arguments.shortest else table_text(table, arguments.rewards)
    )
    sys.stdout.flush()
    if table.unfinished:
        sys.stderr.write(
            f"not finished yet, and left out: {visible(', '.join(map(str, table.unfinished)))}\n"
        )
    for reason in table.unreadable:
        sys.stderr.write(f"unreadable: {visible(reason)}\n")
    sys.stderr.write(
        "".join(f"{path} written\n" for path in (arguments.csv, arguments.picture) if path)
    )
    return 0
