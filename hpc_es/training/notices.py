"""What an algorithm has to say of its generations, without saying it again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

QUIET = 100  # generations in which a notice is not said again


class Notices:
    """Remembers when a notice was last due."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}

    def new(self, generation: int, notices: Sequence[str]) -> Iterator[str]:
        """Yield those that were not due in one of the last `QUIET` generations."""
        for notice in notices:
            if generation - self._due.get(notice, -QUIET) >= QUIET:
                yield f"generation {generation}: {notice}"
            self._due[notice] = generation
