"""Simulated generations with a delay, against times by hand."""

from __future__ import annotations

import pytest

from hpc_es.cluster.delayed import DelayedSimulation, DelayOverheads, Rounds

SHORT_AND_LONG: list[Rounds] = [[[1.0, 3.0]]] * 3


@pytest.mark.parametrize(
    ("delay", "updates"),
    [
        (0, [3.0, 6.0, 9.0]),
        # worker 1: 1, 1 and, from 2, the 3 of generation 1; worker 2: 3, and from 3 generation 2
        (1, [3.0, 5.0, 7.0]),
        (2, [3.0, 5.0, 7.0]),
    ],
)
def test_free_worker_begins_the_next_generation(delay: int, updates: list[float]) -> None:
    assert DelayedSimulation(SHORT_AND_LONG, delay, [1, 2]).run() == updates


def test_messages_and_updates_take_time() -> None:
    """There and back 0.25 each; or 0.1 of rank 0 for each of them and 0.5 for an update."""
    one: list[Rounds] = [[[1.0]]] * 2
    assert DelayedSimulation(one, 0, [1], DelayOverheads(latency=0.25)).run() == [1.5, 3.0]
    assert DelayedSimulation(
        one, 0, [1], DelayOverheads(dispatch=0.1, update=0.5)
    ).run() == pytest.approx([1.7, 3.4])


def test_worker_has_the_next_short_chunk_ahead() -> None:
    """Messages take as long as a chunk.

    The second chunk follows the first at once, the third waits for its message.
    """
    assert DelayedSimulation(
        [[[0.01] * 3]], 0, [1], DelayOverheads(latency=0.01)
    ).run() == pytest.approx([0.06])
    assert DelayedSimulation([[[1.0] * 3]], 0, [1], DelayOverheads(latency=1.0)).run() == [9.0]


def test_states_are_sent_one_after_the_other() -> None:
    """The second of two workers begins at 2."""
    assert DelayedSimulation([[[1.0, 1.0]]], 0, [1, 2], DelayOverheads(transfer=1.0)).run() == [3.0]


def test_rank_0_answers_between_the_steps_of_its_own_chunk() -> None:
    assert DelayedSimulation([[[1.0, 1.0]]], 0, [0, 1], DelayOverheads(poll=0.5)).run() == [1.5]


def test_round_begins_after_the_previous_one() -> None:
    assert DelayedSimulation([[[1.0], [2.0]]] * 2, 1, [1, 2]).run() == [3.0, 3.0]


def test_waiting_workers_share_the_blocks_of_an_update() -> None:
    """Four blocks of a second: rank 0 and three workers have one each; alone,
    rank 0 has all of them.
    """
    overheads = DelayOverheads(block=1.0, blocks=4)
    assert DelayedSimulation([[[1.0, 1.0, 1.0]]], 0, [1, 2, 3], overheads).run() == [2.0]
    assert DelayedSimulation([[[1.0]]], 0, [0], overheads).run() == [5.0]
