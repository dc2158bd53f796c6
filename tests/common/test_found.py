"""What a search has found: the best, the first correct one, and the count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpc_es.common import found
from hpc_es.interfaces import ROW, Rows


def rows(*jobs: tuple[float, bool]) -> Rows:
    made = np.zeros(len(jobs), ROW)
    made["return_"], made["sign_return"] = [reward for reward, _ in jobs], [correct for _, correct in jobs]
    return made


def names(*programs: str) -> Callable[[int], str]:
    return programs.__getitem__


def test_nothing_is_found_before_the_first_program() -> None:
    assert found.summary(found.nothing(4)) == {
        "success": False,
        "npe": 0,
        "code_solution": "",
        "best_reward": None,
        "best_correct": False,
        "best_program": "",
    }
    assert found.finished(found.nothing(4), True) is None
    assert found.metrics(found.nothing(4)) == {"best_reward": 0.0, "solved": 0.0}


def test_the_first_correct_program_counts_those_before_it() -> None:
    """Three in the first generation, then the second of three: five; of two correct ones it is the first."""
    so_far = found.updated(found.nothing(4), rows((0.1, False), (0.3, False), (0.3, False)), names("a", "b", "c"))
    assert not found.is_solved(so_far)
    assert found.summary(so_far)["npe"] == 3
    after = found.updated(so_far, rows((-1.0, False), (0.75, True), (1.0, True)), names("d", "e", "fgh_"))
    assert found.summary(after) == {
        "success": True,
        "npe": 5,
        "code_solution": "e",
        "best_reward": 1.0,
        "best_correct": True,
        "best_program": "fgh_",
    }
    assert int(after["executed"]) == 6
    assert found.finished(after, True) == "a correct program"
    assert found.finished(after, False) is None
    later = found.updated(after, rows((1.0, True)), names("x"))
    assert found.as_text(later["solution"]) == "e" and int(later["solution_npe"]) == 5
    assert found.as_text(later["best_program"]) == "fgh_", "an equal reward is not better"


def test_nan_is_never_the_best() -> None:
    so_far = found.updated(found.nothing(1), rows((np.nan, False), (-3.0, False)), names("a", "b"))
    assert found.summary(so_far)["best_reward"] == -3.0
    assert found.summary(so_far)["best_program"] == "b"


def test_the_form_never_changes() -> None:
    before = found.nothing(4)
    for more in (rows(), rows((0.5, True))):
        after = found.updated(before, more, names("+"))
        assert {name: (a.shape, a.dtype) for name, a in after.items()} == {
            name: (a.shape, a.dtype) for name, a in before.items()
        }
