"""A state with growing arrays: identical on any ranks and
after a restart on another number of ranks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpc_es.core.data import State
from hpc_es.core.errors import CheckpointError
from hpc_es.storage.compare import verify_restored
from tests.helpers import runs

GROWING = ("algorithm={kind: 'tests.helpers.growing:Walk', population_size: 6}",)


@pytest.mark.long
def test_archive_is_identical_on_any_ranks_and_after_a_restart(tmp_path: Path) -> None:
    runs.finished(1, tmp_path / "one", *GROWING)
    runs.finished(3, tmp_path / "three", *GROWING, "stop.generations=4")
    runs.finished(2, tmp_path / "three", *GROWING)
    runs.assert_same(tmp_path / "three", tmp_path / "one")
    state = runs.newest(tmp_path / "three").state
    assert state.shared["archive"].shape == (7, state.theta.size)
    assert state.master["scores"].shape == (7,)


def test_only_growing_arrays_may_change_their_length() -> None:
    small, large = (State(0, {"archive": np.zeros((n, 2), np.float32)}, {}) for n in (1, 5))
    verify_restored(small, large, growing=True)
    with pytest.raises(
        CheckpointError, match=r"shared/archive: expected float32\[1, 2\], found float32\[5, 2\]"
    ):
        verify_restored(small, large)
    flat = State(0, {"archive": np.zeros(2, np.float32)}, {})
    with pytest.raises(CheckpointError, match=r"expected float32\[\?\], found float32\[\?, \?\]"):
        verify_restored(flat, large, growing=True)
