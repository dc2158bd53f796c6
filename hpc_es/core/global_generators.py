"""Python's and NumPy's global random generators: the caller's states apart from those of a run.

Environments, objectives and networks may draw from them, so evaluations seed them by key. The
caller's own states come back whenever the caller's code runs: after a call, between the rows of a
run, and in callbacks.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np


class GlobalGenerators:
    """The states of the side that does not run now: the caller, or code that hpc_es calls.

        generators = GlobalGenerators()
        with generators.exchanged():          the caller's states are put aside
            ...
            with generators.exchanged():      and come back for a callback
                callback()

    An exchange takes some 100 microseconds, so it belongs around generations, not around steps.
    """

    def __init__(self) -> None:
        self._others = _states()

    @contextlib.contextmanager
    def exchanged(self) -> Iterator[None]:
        """Run the code of the other side in this context, with its own states."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        others, self._others = self._others, _states()
        _set_states(others)


@contextlib.contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the states at the end of this context; also a decorator of functions."""
    states = _states()
    try:
        yield
    finally:
        _set_states(states)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _set_states(states: tuple[Any, Any]) -> None:
    python, numpy = states
    random.setstate(python)
    np.random.set_state(numpy)
