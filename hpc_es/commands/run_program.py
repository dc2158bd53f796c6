"""Execute the best program that a search has found, or one that is given.

The output, one number after the other, goes to stdout; how it ended, steps and memory go to stderr. The status is 1
where the program was stopped at the step limit, or a bracket has no partner and the task does not allow that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_es.core.arguments import whole_number

CONTEXT = 12  # characters on both sides of the one that is executed, in a trace
CELLS = 8  # of memory that a line of a trace shows


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run or a program, and its input."""
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN_OR_CHECKPOINT", help="of a search for programs")
    parser.add_argument("--program", metavar="TEXT", help="this one instead, such as --program=',[.,]'")
    parser.add_argument("--input", type=_numbers, default=(), metavar="1,2,3", help="what ',' reads (default: nothing)")
    parser.add_argument(
        "--base", type=whole_number, metavar="N", help="numbers are 0 .. N - 1 (default: the task's, or 256)"
    )
    parser.add_argument("--max-steps", type=whole_number, metavar="N", help="default: the task's, or 5000")
    parser.add_argument("--trace", action="store_true", help="show every step on stderr")


def run(arguments: argparse.Namespace) -> int:
    """Execute it; UserError where there is no program."""
    from hpc_es.core.errors import UserError
    from hpc_es.programs.brainfuck import MAX_STEPS, Status, evaluate

    if (arguments.run is None) == (arguments.program is None):
        raise UserError("expected a run of a search for programs, or --program TEXT, and not both")
    text, task = (arguments.program, {}) if arguments.run is None else found(arguments.run)
    base = arguments.base or task.get("base") or 256
    steps = arguments.max_steps or task.get("max_steps") or MAX_STEPS
    strict = bool(task.get("require_correct_syntax"))
    sys.stderr.write(f"program {text}\n")
    trace = Trace(text) if arguments.trace else None
    result = evaluate(text, arguments.input, base, steps, strict, trace)
    sys.stdout.write(" ".join(map(str, result.output)) + "\n")
    ends = {Status.SUCCESS: "came to its end", Status.STEP_LIMIT: "was stopped", Status.SYNTAX_ERROR: "is not correct"}
    memory = " ".join(map(str, result.memory[:CELLS])) + (" ..." if len(result.memory) > CELLS else "")
    sys.stderr.write(f"it {ends[result.status]} after {result.steps} of at most {steps} steps; memory {memory}\n")
    return 0 if result.success else 1


def found(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the best program of a checkpoint, and the rules of its task; UserError where there is none."""
    from hpc_es.config.resolved import plain_data
    from hpc_es.core.errors import UserError
    from hpc_es.programs import best_programs
    from hpc_es.programs.coding_cases import TASKS
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import find

    snapshot = load(find(path))
    if not best_programs.is_in(snapshot.state.master):
        raise UserError(f"{path} is no search for programs: expected a run of one, or --program TEXT")
    told = best_programs.summary(snapshot.state.master)
    if not told.get("best_program"):
        raise UserError(f"{path} has executed no program yet")
    task = dict(plain_data(snapshot.config_text)["task"])
    name = task.get("name")
    if task.get("base") is None and name in TASKS:
        task["base"] = TASKS[name].base
    sys.stderr.write(f"{name}: reward {told['best_reward']:.4g}{', correct' if told['best_correct'] else ''}\n")
    return str(told["best_program"]), task


class Trace:
    """Writes each step to stderr: its number, the program around it, the pointer, memory around that, the output."""

    def __init__(self, text: str) -> None:
        self._text, self._steps, self._written = text, 0, 0

    def __call__(self, place: int, pointer: int, memory: Sequence[int], output: Sequence[int]) -> None:
        """Write a line."""
        self._steps += 1
        before = self._text[max(place - CONTEXT, 0) : place].rjust(CONTEXT)
        after = self._text[place + 1 : place + 1 + CONTEXT].ljust(CONTEXT)
        first = max(pointer - CELLS // 2, 0)
        shown = enumerate(memory[first : first + CELLS], first)
        cells = " ".join(f"[{value}]" if cell == pointer else str(value) for cell, value in shown)
        wrote = f"  writes {output[-1]}" if len(output) > self._written else ""
        self._written = len(output)
        line = f"{self._steps:6d}  {before} {self._text[place]} {after}  cell {pointer}: {cells}{wrote}"
        sys.stderr.write(line + "\n")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers and commas, such as 1,2,3, found {text!r}") from None
