"""What a world does when ranks are lost: by default, nothing; `faults.py` has the other answer."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol


class Meeting(enum.Enum):
    """What the survivors have agreed on; the same on all of them."""

    THROUGH = enum.auto()  # nothing is left to do
    GO_ON = enum.auto()  # all of them can go on where they are, rank 0 among them
    START_AGAIN = enum.auto()  # rank 0 is another one, or not all ranks are at the same place


class StartAgain(BaseException):
    """The ranks have met, and begin again at the last checkpoint."""


class Losses(Protocol):
    """How a world takes the loss of ranks."""

    @property
    def outlives(self) -> bool:
        """Whether the others go on."""
        ...

    @property
    def lost(self) -> Sequence[tuple[str, int]]:
        """Host and process id of the ranks that were lost."""
        ...

    def is_loss(self, error: Exception) -> bool:
        """Return whether an error says that a rank was lost."""
        ...

    def meet(self, through: bool, in_place: bool) -> Meeting:
        """Come together with every rank that lives, and go on without the others."""
        ...

    def parted(self) -> bool:
        """Wait shortly for the others, at the end; False where MPI_Finalize does it."""
        ...


class NoFaults:
    """A world that ends when a rank dies."""

    outlives = False
    lost: Sequence[tuple[str, int]] = ()

    def is_loss(self, error: Exception) -> bool:
        """No error is one that can be outlived."""
        return False

    def meet(self, through: bool, in_place: bool) -> Meeting:
        """Nobody was lost."""
        return Meeting.THROUGH

    def parted(self) -> bool:
        """Return the ranks part by MPI_Finalize."""
        return False
