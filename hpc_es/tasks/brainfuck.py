"""The interpreter of programs, under its public name; it lives in `hpc_es/tasks/programs`."""

from __future__ import annotations

from typing import Any

from hpc_es.programs.brainfuck import CHARACTERS, MAX_STEPS, Result, Status, evaluate

__all__ = ["CHARACTERS", "MAX_STEPS", "Result", "Status", "evaluate", "execute"]


def execute(*arguments: Any, **keywords: Any) -> list[list[Result]]:
    """Run many programs on many inputs, as `compiled_brainfuck.execute`; Numba is imported only now."""
    from hpc_es.programs.compiled import execute

    return execute(*arguments, **keywords)
