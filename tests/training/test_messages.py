"""What ranks send each other arrives as it was sent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpc_es.core.data import ROW, Arrays, Chunk, Outcome
from hpc_es.training.messages import (
    HEADER,
    MESSAGES,
    BlockResult,
    BlocksTask,
    ChunkResult,
    ChunkTask,
    EndTask,
    Message,
    StateTask,
    TimedChunk,
    decoded,
    encoded,
    gathered,
    packed_block,
    packed_chunk_arrays,
    packed_outcomes,
    packed_round,
    packed_unit,
    unpacked_outcomes,
    unpacked_round,
)


def rows(*returns: float) -> np.ndarray:
    """Rows with these returns."""
    created = np.zeros(len(returns), ROW)
    created["return_"] = returns
    return created


ARRAYS: Arrays = {"layer/sums": np.array([[0.1, -0.0]]), "count": np.array(3)}
LEARNED = [[{}, ARRAYS], [], [{"mean": np.zeros(0, np.float32)}]]
OUTCOME = Outcome(rows(1.5, math.nan), ARRAYS, learned=LEARNED)
HEADERS = np.ones(1, HEADER)
SENT: list[Message] = [
    StateTask(3, ARRAYS),
    StateTask(4, {}, is_evaluation=True),
    ChunkTask(Chunk(1, 2, 3, "probe", 4, 5, 6)),
    BlocksTask(7, [2, 5], rows(1.0, -0.0)),
    EndTask(),
    ChunkResult(3, 1, OUTCOME, HEADERS),
    ChunkResult(3, 1, Outcome(rows()), HEADERS, np.frombuffer(b"[{}]", np.uint8)),
    BlockResult(3, 2, ARRAYS),
    BlockResult(3, 2, {}),
]


def plain(value: object) -> object:
    """Arrays as dtype, shape and bytes, in objects, mappings and lists."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return (
        {name: plain(item) for name, item in vars(value).items()}
        if hasattr(value, "__dict__")
        else value
    )


@pytest.mark.parametrize("message", SENT, ids=lambda message: type(message).__name__)
def test_message_arrives_as_it_was_sent(message: Message) -> None:
    received = decoded(encoded(message), ROW)
    assert type(received) is type(message) and plain(received) == plain(message)


def test_every_kind_of_message_is_tested() -> None:
    assert {type(message) for message in SENT} == set(MESSAGES.values())


def test_rows_of_a_round_arrive_with_header_and_times_in_the_order_of_the_chunks() -> None:
    header = np.ones(1, HEADER)
    header["chunks"] = 2
    times = {4: TimedChunk(0.5, 0.75, 3.0), 9: TimedChunk(1.0, 2.0, 0.0)}
    sent = {9: rows(3.0), 4: rows(1.0, 2.0)}
    result = unpacked_round(packed_round(header, times, sent), ROW, {4: 2, 5: 7, 9: 1})
    assert plain(list(result)) == plain([header, times, {4: sent[4], 9: sent[9]}])
    assert unpacked_round(packed_round(np.zeros(1, HEADER), {}, {}), ROW, {})[1:] == ({}, {})


def test_outcomes_keep_their_numbers_and_order() -> None:
    outcomes = {12: OUTCOME, 3: Outcome(rows(2.0))}
    result = unpacked_outcomes(packed_outcomes(outcomes), ROW)
    assert list(result) == [12, 3] and plain(result) == plain(outcomes)


def test_parts_of_an_update_are_put_in_order() -> None:
    """A unit has parts in two chunks; block 1 and chunk 7 have no arrays."""
    first = {
        **packed_block(2, {"a/b": np.array(2)}),
        **packed_unit(10, 8, 0, {"part": np.array(30)}),
    }
    first |= packed_chunk_arrays(10, {"x": np.array(10)})
    second = {
        **packed_unit(10, 7, 1, {"part": np.array(20)}),
        **packed_unit(10, 7, 0, {"part": np.array(10)}),
    }
    second |= {
        **packed_unit(9, 2, 0, {"part": np.array(5)}),
        **packed_block(0, {"a/b": np.array(0)}),
    }
    result = gathered([first, second], 3, [7, 10])
    assert plain(result.blocks) == plain([{"a/b": np.array(0)}, {}, {"a/b": np.array(2)}])
    assert plain(result.chunk_arrays) == plain([{}, {"x": np.array(10)}])
    assert [[int(part["part"]) for part in parts] for parts in result.learned] == [
        [5],
        [10, 20, 30],
    ]
