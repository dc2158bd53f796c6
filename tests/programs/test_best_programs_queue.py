"""The queue of the best few."""

from __future__ import annotations

from hpc_es.programs.best_programs import UniquePriorityQueue


def filled(capacity: int, *pairs: tuple[float, str]) -> UniquePriorityQueue:
    queue = UniquePriorityQueue(capacity)
    for score, item in pairs:
        queue.push(score, item)
    return queue


def items(queue: UniquePriorityQueue) -> list[object]:
    return [item for _, item, _ in queue]


def test_the_queue_keeps_the_largest_scores() -> None:
    assert items(filled(2, (1, "a"), (3, "b"), (2, "c"))) == ["b", "c"]


def test_an_item_counts_once_whatever_its_score() -> None:
    queue = filled(3, (1, "a"), (2, "b"))
    assert not queue.push(9, "a")
    assert [(score, item) for score, item, _ in queue] == [(2, "b"), (1, "a")]


def test_the_queue_keeps_the_older_of_equal_scores() -> None:
    queue = filled(2, (1, "a"), (1, "b"))
    assert not queue.push(1, "c")
    assert items(queue) == ["a", "b"]
    assert queue.largest() == (1, "a", None)


def test_of_equal_scores_the_newer_stays_where_that_is_asked() -> None:
    queue = UniquePriorityQueue(2, ties="newer")
    assert [queue.push(1, item) for item in "abca"] == [True] * 4  # a was dropped for c, b for a
    assert items(queue) == ["a", "c"]
    assert queue.largest() == (1, "a", None) and queue.smallest() == (1, "c", None)


def test_of_each_score_there_is_one_where_that_is_asked() -> None:
    older, newer = UniquePriorityQueue(2, unique="scores"), UniquePriorityQueue(2, "newer", "scores")
    pairs = [(1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e"), (1, "f")]
    assert [older.push(*pair) for pair in pairs] == [True, True, False, True, False, False]
    assert older.sorted_entries() == [(3, "d", None), (2, "b", None)]
    assert [newer.push(*pair) for pair in pairs] == [True, True, True, True, True, False]
    assert newer.sorted_entries() == [(3, "d", None), (2, "e", None)]
    assert "b" not in newer and "c" not in newer


def test_a_dropped_item_can_be_added_again() -> None:
    queue = filled(1, (1, "a"), (2, "b"))
    assert "a" not in queue
    assert queue.push(3, "a")
    assert items(queue) == ["a"]


def test_pop_and_smallest_and_extra() -> None:
    queue = UniquePriorityQueue(3)
    queue.push(2.0, "b", [1])
    queue.push(1.0, "a", [2])
    assert queue.smallest() == (1.0, "a", [2])
    assert queue.pop() == (1.0, "a", [2])
    assert queue.pop() == (2.0, "b", [1])
    assert (queue.pop(), queue.smallest(), queue.largest(), len(queue)) == (None, None, None, 0)


def test_extras_are_never_compared() -> None:
    queue = UniquePriorityQueue(2)
    queue.push(1.0, "a", {})
    queue.push(1.0, "b", {})
    assert queue.sorted_entries() == [(1.0, "a", {}), (1.0, "b", {})]
