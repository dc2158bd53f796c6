"""Work that is done again and again within a share of the time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class TimeShare:
    """Whether something that takes a while may be done again, such as writing files.

        share = TimeShare(0.02)  # of the time
        if share.is_due():
            with share.spent():
                ...

    The first time is always due.
    """

    def __init__(self, share: float) -> None:
        self._share, self._done_at, self._seconds = share, time.monotonic(), 0.0

    def is_due(self) -> bool:
        """Whether what the last time took is at most this share of the time since then."""
        return (time.monotonic() - self._done_at) * self._share >= self._seconds

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Measure what is done in this context, unless it fails."""
        started = time.monotonic()
        yield
        self._done_at = time.monotonic()
        self._seconds = self._done_at - started
