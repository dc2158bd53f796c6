"""Notices are not repeated.

Inputs of updates are stored exactly, and replace the state in checkpoints if smaller.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import ROW, Column, Results, State, row_dtype
from hpc_es.core.errors import CheckpointError, RunError
from hpc_es.storage.checkpoint import Increment, Snapshot, image_sha256, save
from hpc_es.storage.results import digest
from hpc_es.training.generation import UpdateInputs
from hpc_es.training.journal import UpdateJournal, UpdateReplay
from hpc_es.training.recorder import QUIET_GENERATIONS, Notices


def rows(*returns: float) -> np.ndarray:
    """Rows with the given returns and the length 7."""
    created = np.zeros(len(returns), ROW)
    created["return_"], created["length"] = returns, 7
    return created


UNITS = [{"count": np.array(3, np.int64), "layer/sums": np.array([[0.1, -0.0]], np.float64)}, {}]


def state(generation: int, size: int = 1000) -> State:
    """A state of 4 `size` + 8 bytes."""
    return State(
        generation,
        {"theta": np.full(size, generation, np.float32)},
        {"steps": np.array(generation)},
    )


def snapshot_of(state: State) -> Snapshot:
    """A full checkpoint."""
    return Snapshot(state, {}, None, {}, "", "", {}, {}, {})


def test_checkpoint_that_vanished_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"gone\.h5 cannot be written: it could not be read back \(No such file"
    ):
        UpdateJournal(3).begin(tmp_path / "gone.h5", snapshot_of(state(1)))


def started(directory: Path, generation: int, interval: Any) -> UpdateJournal:
    """A journal after a full checkpoint of this generation."""
    path = directory / f"checkpoint_{generation:010d}.h5"
    save(path, snapshot_of(state(generation)))
    journal = UpdateJournal(interval)
    journal.begin(path, snapshot_of(state(generation)))
    return journal


def test_update_inputs_are_restored_bit_for_bit() -> None:
    packed = UpdateInputs(rows(1.5, float("nan"), -0.0), rows(), UNITS).pack()
    back = UpdateInputs.unpack(packed, ROW)
    assert back.rows.tobytes() == rows(1.5, float("nan"), -0.0).tobytes()
    assert back.rows.dtype == ROW and back.probes.shape == (0,)
    assert [list(unit) for unit in back.units] == [["count", "layer/sums"], []]
    for name, array in UNITS[0].items():
        result = back.units[0][name]
        assert (result.dtype, result.shape, result.tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )


def coded(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of named arrays as version 0.2 wrote them: a JSON header,
    then each array at a multiple of 8.
    """
    entries = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps(entries).encode()
    parts = [
        len(header).to_bytes(8, "little") + header,
        *(array.tobytes() for array in arrays.values()),
    ]
    return b"".join(part.ljust(-(-len(part) // 8) * 8, b"\0") for part in parts)


def test_rows_of_version_0_2_have_the_columns_of_the_run() -> None:
    """return_ 1.5, length 7, sign_return -2, packed in 16 bytes, for a job and a probe."""
    row = bytes.fromhex("000000000000f83f07000000000000c0")
    arrays = {name: np.frombuffer(row, np.uint8) for name in ("rows", "probes")}
    packed = coded({**arrays, "units": np.array(1), "0/count": np.array([3], np.int64)})
    back = UpdateInputs.unpack(packed, ROW)
    assert back.rows.tolist() == back.probes.tolist() == [(1.5, 7, -2.0)]
    assert [{name: array.tolist() for name, array in unit.items()} for unit in back.units] == [
        {"count": [3]}
    ]


def test_columns_are_matched_by_name() -> None:
    """In another order, with another dtype, and with one that the run does not have."""
    wide = np.zeros(
        2, [("more", "<f8"), ("length", "<i8"), ("at", "<f8", (2,)), ("return_", "<f8")]
    )
    wide["return_"], wide["length"], wide["at"], wide["more"] = (
        [1.5, np.nan],
        [7, 8],
        [[1, 2], [3, 4]],
        9,
    )
    packed = UpdateInputs(wide, wide[:1], UNITS).pack()
    back = UpdateInputs.unpack(packed, row_dtype((Column("at", "<f4", (2,)),)))
    assert back.rows.dtype.descr == [("return_", "<f8"), ("length", "<i4"), ("at", "<f4", (2,))]
    assert back.rows["at"].tolist() == [[1, 2], [3, 4]] and back.rows["length"].tolist() == [7, 8]
    assert back.probes.tolist()[0][:2] == (1.5, 7)


@pytest.mark.parametrize("column", [Column("distance", "<f8"), Column("length", "<i4", (2,))])
def test_column_that_is_missing_or_has_another_shape_is_refused(column: Column) -> None:
    packed = UpdateInputs(rows(1.0), rows(), UNITS).pack()
    needed = np.dtype([("return_", "<f8"), (column.name, column.dtype, column.shape)])
    with pytest.raises(CheckpointError, match=f"no column '{column.name}'"):
        UpdateInputs.unpack(packed, needed)


def test_update_inputs_replace_full_checkpoints_within_the_interval(tmp_path: Path) -> None:
    journal = started(tmp_path, 4, interval=3)
    assert journal.since(state(4)) is None  # nothing has been learned since
    for generation in (5, 6):
        journal.add(Results(rows(1.0), []), [])
        result = journal.since(state(generation))
        assert result is not None
        base, since = result
        assert (base, since.base, len(since.learned_from)) == (
            4,
            "checkpoint_0000000004.h5",
            generation - 4,
        )
        assert since.base_sha256 == image_sha256(tmp_path / since.base)
        assert since.theta_sha256 == digest({"theta": np.full(1000, generation, np.float32)})
    journal.add(Results(rows(1.0), []), [])
    assert journal.since(state(7)) is None  # the third generation: a whole one is due


def test_state_is_written_if_it_is_smaller_than_the_update_inputs(tmp_path: Path) -> None:
    journal = started(tmp_path, 0, interval=100)
    journal.add(Results(rows(*np.ones(100)), []), [])  # 100 rows of 16 bytes and more
    assert journal.since(state(1)) is not None  # 4,008 bytes
    assert journal.since(state(1, size=100)) is None  # 408 bytes


@pytest.mark.parametrize("interval", [0, 5])
def test_next_checkpoint_is_full_if_there_are_chunk_arrays(interval: int, tmp_path: Path) -> None:
    journal = started(tmp_path, 0, interval)
    arrays = [{"gradient": np.zeros(3)}] if interval else []
    journal.add(Results(rows(1.0), arrays), [])
    assert journal.since(state(1)) is None


def test_replay_with_a_different_state_ends_the_run(tmp_path: Path) -> None:
    journal = started(tmp_path, 0, interval=5)
    journal.add(Results(rows(1.0), []), [])
    base, since = journal.since(state(1)) or pytest.fail("expected one")
    replay = UpdateReplay(since, state(base), None)
    assert replay.is_due(state(0)) and not replay.is_due(state(1))
    replay.require_same(state(1))
    with pytest.raises(RunError, match=r"recomputed since checkpoint_0000000000\.h5, differs"):
        replay.require_same(State(1, state(1).shared, {"steps": np.array(2)}))


def test_notice_is_repeated_only_after_a_long_pause() -> None:
    shown, lines = Notices(), list[str]()
    due = {
        3: ["a"],
        4: ["a", "b"],
        6: ["a"],
        4 + QUIET_GENERATIONS: ["b"],
        5 + QUIET_GENERATIONS: ["a"],
    }
    for generation, notices in due.items():
        lines += shown.new(generation, notices)
    assert lines == ["generation 4: a", "generation 5: b", f"generation {5 + QUIET_GENERATIONS}: b"]


def test_automatic_interval_limits_the_time_of_a_replay(tmp_path: Path) -> None:
    """Three updates of 75 s may be replayed, a fourth makes 300 s."""
    journal, after = started(tmp_path, 5, "auto"), state(6, size=100_000)
    for _ in range(3):
        journal.add(Results(rows(1.0), []), [], 75.0)
        assert journal.since(after) is not None
    journal.add(Results(rows(1.0), []), [], 75.0)
    assert journal.since(after) is None


def test_automatic_interval_counts_updates_before_a_restart(tmp_path: Path) -> None:
    """Those of a checkpoint are taken to last as long as those since then."""
    before = started(tmp_path, 5, "auto")
    for _ in range(3):
        before.add(Results(rows(1.0), []), [], 1.0)
    kept = before.since(state(8, size=100_000))
    assert kept is not None
    journal = UpdateJournal("auto")
    journal.begin(tmp_path / "checkpoint_0000000008.h5", increment_of(*kept))
    journal.add(Results(rows(1.0), []), [], 80.0)
    assert journal.since(state(9, size=100_000)) is None  # 4 * 80 s


def increment_of(generation: int, increment: Increment) -> Snapshot:
    """An incremental checkpoint."""
    return dataclasses.replace(snapshot_of(State(generation, {}, {})), increment=increment)
