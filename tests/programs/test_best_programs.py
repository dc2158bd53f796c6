"""The best programs of a search, the first correct one, and the queue of the best."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpc_es.core.data import CORRECT, Array, Arrays, Rows, State, row_dtype
from hpc_es.programs import best_programs
from hpc_es.programs.best_programs import UniquePriorityQueue


def rows(*jobs: tuple[float, bool]) -> Rows:
    created = np.zeros(len(jobs), row_dtype((CORRECT,)))
    created["return_"], created["correct"] = (
        [reward for reward, _ in jobs],
        [correct for _, correct in jobs],
    )
    return created


def names(*programs: str) -> Callable[[int], str]:
    return programs.__getitem__


def updated(result: Arrays, some: Rows, program: Callable[[int], str]) -> dict[str, Array]:
    """The state after more programs, whose fitness is the return."""
    return best_programs.update(result, some, some["return_"], program)


def test_state_without_programs_has_no_best_program() -> None:
    assert best_programs.summary(best_programs.initial_arrays(4)) == {
        "success": False,
        "npe": 0,
        "code_solution": "",
        "best_reward": None,
        "best_correct": False,
        "best_program": "",
    }
    assert best_programs.finished(best_programs.initial_arrays(4), True) is None
    assert best_programs.metrics(best_programs.initial_arrays(4)) == {
        "best_reward": 0.0,
        "solved": 0.0,
    }


def test_first_correct_program_has_the_number_of_programs_executed() -> None:
    """Three in the first generation, then the second of three: five;
    the first of two correct ones counts.
    """
    so_far = updated(
        best_programs.initial_arrays(4),
        rows((0.1, False), (0.3, False), (0.3, False)),
        names("a", "b", "c"),
    )
    assert not best_programs.is_solved(so_far)
    assert best_programs.summary(so_far)["npe"] == 3
    after = updated(so_far, rows((-1.0, False), (0.75, True), (1.0, True)), names("d", "e", "fgh_"))
    assert best_programs.summary(after) == {
        "success": True,
        "npe": 5,
        "code_solution": "e",
        "best_reward": 1.0,
        "best_correct": True,
        "best_program": "fgh_",
    }
    assert int(after["executed"]) == 6
    assert best_programs.finished(after, True) == "a correct program"
    assert best_programs.finished(after, False) is None
    later = updated(after, rows((1.0, True)), names("x"))
    assert best_programs.as_text(later["solution"]) == "e" and int(later["solution_npe"]) == 5
    assert best_programs.as_text(later["best_program"]) == "fgh_", "an equal reward is not better"


def test_best_program_has_the_greatest_fitness() -> None:
    some, fitness = rows((3.0, False), (2.0, False)), np.array([0.5, 0.75])
    so_far = best_programs.update(best_programs.initial_arrays(1), some, fitness, names("a", "b"))
    assert best_programs.summary(so_far)["best_program"] == "b"


def test_nan_is_never_the_best() -> None:
    so_far = updated(
        best_programs.initial_arrays(1), rows((np.nan, False), (-3.0, False)), names("a", "b")
    )
    assert best_programs.summary(so_far)["best_reward"] == -3.0
    assert best_programs.summary(so_far)["best_program"] == "b"


def test_arrays_keep_their_shapes() -> None:
    before = best_programs.initial_arrays(4)
    for more in (rows(), rows((0.5, True))):
        after = updated(before, more, names("+"))
        assert {name: (a.shape, a.dtype) for name, a in after.items()} == {
            name: (a.shape, a.dtype) for name, a in before.items()
        }


def test_correct_programs_of_a_generation_have_their_npe() -> None:
    """Three were executed before, so the second and fourth have NPE 5 and 7;
    failed programs are not correct.
    """
    so_far = updated(
        best_programs.initial_arrays(4),
        rows((0.1, False), (0.3, False), (0.3, False)),
        names("a", "b", "c"),
    )
    some = rows((0.5, False), (0.75, True), (np.nan, True), (1.0, True))
    some["length"] = [1, 1, 1, 2]
    listed = best_programs.solutions(State(6, {}, so_far), some, names("d", "e", "f", "gh"))
    assert listed == [
        {"generation": 6, "npe": 5, "reward": 0.75, "length": 1, "program": "e"},
        {"generation": 6, "npe": 7, "reward": 1.0, "length": 2, "program": "gh"},
    ]


def filled(capacity: int, *pairs: tuple[float, str]) -> UniquePriorityQueue:
    queue = UniquePriorityQueue(capacity)
    for score, item in pairs:
        queue.push(score, item)
    return queue


def items(queue: UniquePriorityQueue) -> list[object]:
    return [item for _, item, _ in queue]


def test_queue_keeps_the_largest_scores() -> None:
    assert items(filled(2, (1, "a"), (3, "b"), (2, "c"))) == ["b", "c"]


def test_queue_has_each_item_once() -> None:
    queue = filled(3, (1, "a"), (2, "b"))
    assert not queue.push(9, "a")
    assert [(score, item) for score, item, _ in queue] == [(2, "b"), (1, "a")]


def test_queue_keeps_the_older_of_equal_scores() -> None:
    queue = filled(2, (1, "a"), (1, "b"))
    assert not queue.push(1, "c")
    assert items(queue) == ["a", "b"]
    assert queue.largest() == (1, "a", None)


def test_queue_can_keep_the_newer_of_equal_scores() -> None:
    queue = UniquePriorityQueue(2, ties="newer")
    assert [queue.push(1, item) for item in "abca"] == [True] * 4  # a was dropped for c, b for a
    assert items(queue) == ["a", "c"]
    assert queue.largest() == (1, "a", None) and queue.smallest() == (1, "c", None)


def test_queue_can_keep_one_item_per_score() -> None:
    older, newer = (
        UniquePriorityQueue(2, unique="scores"),
        UniquePriorityQueue(2, "newer", "scores"),
    )
    pairs = [(1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e"), (1, "f")]
    assert [older.push(*pair) for pair in pairs] == [True, True, False, True, False, False]
    assert older.sorted_entries() == [(3, "d", None), (2, "b", None)]
    assert [newer.push(*pair) for pair in pairs] == [True, True, True, True, True, False]
    assert newer.sorted_entries() == [(3, "d", None), (2, "e", None)]
    assert "b" not in newer and "c" not in newer


def test_queue_accepts_a_dropped_item_again() -> None:
    queue = filled(1, (1, "a"), (2, "b"))
    assert "a" not in queue
    assert queue.push(3, "a")
    assert items(queue) == ["a"]


def test_queue_pops_the_smallest_with_its_extra() -> None:
    queue = UniquePriorityQueue(3)
    queue.push(2.0, "b", [1])
    queue.push(1.0, "a", [2])
    assert queue.smallest() == (1.0, "a", [2])
    assert queue.pop() == (1.0, "a", [2])
    assert queue.pop() == (2.0, "b", [1])
    assert (queue.pop(), queue.smallest(), queue.largest(), len(queue)) == (None, None, None, 0)


def test_queue_never_compares_extras() -> None:
    queue = UniquePriorityQueue(2)
    queue.push(1.0, "a", {})
    queue.push(1.0, "b", {})
    assert queue.sorted_entries() == [(1.0, "a", {}), (1.0, "b", {})]
