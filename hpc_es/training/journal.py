"""Rank 0: checkpoints between whole ones are kept as what generations learned from, and the state is computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_es.core.data import Arrays, Results, State
from hpc_es.core.errors import RunError
from hpc_es.storage.checkpoint import Since, Snapshot, image_sha256
from hpc_es.storage.results import digest
from hpc_es.training.replay import LearnedFrom


class Replay:
    """The generations that are to be computed again before the first new one."""

    def __init__(self, since: Since, state: State, best_generation: int | None) -> None:
        self._since, self._begin, self._best_generation = since, state.generation, best_generation
        self.best: Arrays | None = None  # the shared arrays that the best evaluation measured, once they are there

    @property
    def told(self) -> str:
        """What is to be done, for the log."""
        count = len(self._since.learned_from)
        return f"computing {count} generation{'s'[: count > 1]} again that came after {self._since.base}"

    def next(self, state: State) -> bytes:
        """Return what the generation after this state learned from; take note of the state."""
        if state.generation == self._best_generation:
            self.best = {name: array.copy() for name, array in state.shared.items()}
        return self._since.learned_from[state.generation - self._begin]

    def is_due(self, state: State) -> bool:
        """Return whether there are generations after this state."""
        return state.generation < self._begin + len(self._since.learned_from)

    def require_same(self, state: State) -> None:
        """RunError if the state that came out is another than the one that was there."""
        if digest({**state.shared, **state.master}) != self._since.state_sha256:
            text = f"the state of generation {state.generation}, computed again since {self._since.base}, is another"
            remedy = f"go on where it was computed, or remove the checkpoints that are newer than {self._since.base}"
            raise RunError(f"{text}: have versions or the processor changed? {remedy}")


class Journal:
    """What the generations since the last whole checkpoint learned from, for the next one."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._base: tuple[str, str, int] | None = None  # name, digest and generation of the whole one
        self._learned_from: list[bytes] = []

    def begin(self, path: Path, snapshot: Snapshot) -> None:
        """A run goes on from this checkpoint, or has just written it."""
        since, generation = snapshot.since, snapshot.state.generation
        if since is not None:
            self._base, self._learned_from = (since.base, since.base_sha256, generation), list(since.learned_from)
        elif self._interval:
            self._base, self._learned_from = (path.name, image_sha256(path), generation), []

    def add(self, results: Results, units: Sequence[Arrays]) -> None:
        """Keep what a generation learned from; where that is more than rows the next checkpoint is a whole one."""
        if any(results.chunk_arrays):
            self._base = None
        if self._interval and self._base:
            self._learned_from.append(LearnedFrom.of(results, units).packed())

    def since(self, state: State) -> tuple[int, Since] | None:
        """Return what stands for this state, and the generation that it leads on from; None: it is to be whole."""
        if not self._interval or self._base is None or len(self._learned_from) >= self._interval:
            return None
        name, sha256, generation = self._base
        arrays = {**state.shared, **state.master}
        if generation == state.generation or sum(map(len, self._learned_from)) > sum(a.nbytes for a in arrays.values()):
            return None
        return generation, Since(name, sha256, self._learned_from, digest({"theta": state.theta}), digest(arrays))
