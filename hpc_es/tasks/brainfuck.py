"""The public path of the program interpreter in `hpc_es/programs/brainfuck.py`."""

from __future__ import annotations

from typing import Any

from hpc_es.programs.brainfuck import CHARACTERS, MAX_STEPS, Result, Status, evaluate

__all__ = ["CHARACTERS", "MAX_STEPS", "Result", "Status", "evaluate", "execute"]


def execute(*arguments: Any, **keywords: Any) -> list[list[Result]]:
    """Run many programs on many inputs: see `hpc_es.programs.compiled.execute`.

    Numba is imported on the first call.
    """
    from hpc_es.programs.compiled import execute

    return execute(*arguments, **keywords)
