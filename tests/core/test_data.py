"""Rows with columns, chunks of jobs, candidates, and the arrays of a problem in the state."""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import (
    ALIGNMENT,
    CORRECT,
    NO_PARAMETERS,
    ROW,
    SIGN_RETURN,
    Chunk,
    Column,
    Jobs,
    ProblemState,
    State,
    aligned_empty,
    cut,
    numbered,
    row_dtype,
    with_columns,
)


def test_aligned_arrays_begin_at_a_multiple_of_64_bytes() -> None:
    assert ALIGNMENT == 64
    kept = []  # so that each array has an address of its own
    for shape in ((), (0,), (3,), (4, 5), (100_000,)):
        for dtype in (np.uint8, np.bool_, np.float32, np.float64):
            array = aligned_empty(shape, dtype)
            array[...] = 1
            assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, dtype, True)
            assert array.ctypes.data % 64 == 0 or not array.size
            kept.append(array)
    assert all((array == 1).all() for array in kept)


def test_row_dtype_has_return_length_and_requested_columns() -> None:
    """8 + 4 bytes, then 2 * 8 and 1."""
    created = np.zeros(3, row_dtype((Column("behaviour", "<f8", (2,)), CORRECT)))
    assert created.dtype.names == ("return_", "length", "behaviour", "correct")
    assert (created.dtype.itemsize, created["behaviour"].shape, created["correct"].dtype) == (
        29,
        (3, 2),
        np.bool_,
    )
    assert row_dtype().names == ("return_", "length")
    assert row_dtype((SIGN_RETURN,)) == ROW


def test_with_columns_adds_the_columns_of_an_algorithm() -> None:
    rows = np.zeros(2, ROW)
    rows["return_"], rows["sign_return"] = [1, 2], [3, 4]
    along, corner = Column("along", "<f8"), Column("corner", "<i4", (2,))
    wide = with_columns(rows, {along: np.array([5, 6]), corner: [[7, 8], [9, 10]]})
    assert wide.dtype == row_dtype((SIGN_RETURN, along, corner))
    assert wide["return_"].tolist() == [1, 2] and wide["sign_return"].tolist() == [3, 4]
    assert wide["along"].tolist() == [5, 6] and wide["corner"].tolist() == [[7, 8], [9, 10]]


def test_jobs_are_cut_into_consecutive_chunks() -> None:
    assert cut(10, 4) == [Chunk(0, 0, 4), Chunk(1, 4, 4), Chunk(2, 8, 2)]
    assert cut(4, 4, 12, "probe", 3) == [Chunk(0, 12, 4, "probe", 3)]
    assert cut(0, 4) == []
    assert cut(10, 4, 20)[2].job_numbers == range(28, 30)


def test_chunks_get_the_indices_of_the_generation() -> None:
    """After the existing ones, for any previous indices, with its number; the rest is unchanged."""
    chunks = numbered([*cut(5, 4), *cut(3, 4, 0, "probe", 1)], 7, 2)
    assert chunks == [
        Chunk(7, 0, 4, generation=2),
        Chunk(8, 4, 1, generation=2),
        Chunk(9, 0, 3, "probe", 1, 0, 2),
    ]


def test_number_of_jobs_is_that_of_their_indices() -> None:
    assert len(Jobs(3, range(4, 9), [2, 2, 3, 3, 4])) == 5


def test_problem_arrays_are_last_in_the_state_and_accessible_by_name() -> None:
    one, two, three, four = (np.array([number]) for number in (1.0, 2.0, 3.0, 4.0))
    state = ProblemState({"mean": two}, {"count": four}).merge_into(
        State(5, {"theta": one}, {"slots": three})
    )
    assert (state.generation, list(state.shared), list(state.master)) == (
        5,
        ["theta", "mean"],
        ["slots", "count"],
    )
    # its arrays do not count, only their names
    names = ProblemState({"mean": np.zeros(1)}, {"count": np.zeros(1)})
    result = names.extract_from(state)
    assert (result.shared, result.master) == ({"mean": two}, {"count": four})
    assert (
        ProblemState().extract_from(state) == ProblemState()
        and ProblemState().merge_into(state) == state
    )


def test_state_without_a_vector_has_an_empty_theta() -> None:
    assert State(0, {}, {}).theta is NO_PARAMETERS and len(NO_PARAMETERS) == 0
