"""What a rank has of a generation already, when that is run again because ranks were lost in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpc_es.core.data import Chunk, Outcome
from hpc_es.mpi.world import World


class KeptOutcomes:
    """The outcomes that this rank has of a generation, and, where it is run again without lost ranks, who has which."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._of: tuple[int, bool] | None = None
        self._outcomes: dict[int, Outcome] = {}  # of this rank, by chunk index
        self._owners: dict[int, int] = {}  # ranks that have an outcome already, by chunk index
        self.to_tell = False  # whether ranks were lost since the last beginning; the same on every rank

    def begin(self, generation: int, train: bool) -> None:
        """Forget the outcomes of another generation; tell the others which there are of this one, if it is repeated."""
        if self._of != (generation, train):
            self._of, self._outcomes = (generation, train), {}
        self._owners = {}
        if self.to_tell:
            every = self._world.allgather(np.array(sorted(self._outcomes), np.int64).view(np.uint8))
            for rank in reversed(range(len(every))):  # of two that have it the first
                self._owners |= dict.fromkeys(np.frombuffer(every[rank].tobytes(), np.int64).tolist(), rank)
            self.to_tell = False

    def kept(self, chunk: Chunk, outcome: Outcome) -> Outcome:
        """Return the outcome, which is remembered where it may be asked for again."""
        if self._world.faults.outlives:
            self._outcomes[chunk.index] = outcome
        return outcome

    def shared_out(self, chunks: Sequence[Chunk]) -> tuple[dict[int, Outcome], list[Chunk]]:
        """Return the outcomes that this rank has to offer already, and the chunks that nobody has."""
        mine = [chunk.index for chunk in chunks if self._owners.get(chunk.index) == self._world.rank]
        left = [chunk for chunk in chunks if chunk.index not in self._owners]
        return {index: self._outcomes[index] for index in mine}, left
