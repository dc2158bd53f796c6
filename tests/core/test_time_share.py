"""Work within a share of the time, by a clock that the test sets."""

from __future__ import annotations

import time

import pytest

from hpc_es.core.time_share import TimeShare


def test_work_is_due_when_its_seconds_are_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds of work, a fiftieth of the time: due again after 100 seconds."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    share = TimeShare(0.02)
    assert share.is_due()
    with share.spent():
        now += 2.0
    now += 99.0
    assert not share.is_due()
    now += 1.0
    assert share.is_due()
    with pytest.raises(OSError, match="full"), share.spent():
        now += 50.0
        raise OSError("full")
    assert share.is_due()  # what failed is done again
