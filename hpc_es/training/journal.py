"""Incremental checkpoints store the inputs of each update instead of the state.

A resumed run computes the updates again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from hpc_es.core.data import Arrays, Results, State, without_info
from hpc_es.core.errors import RunError
from hpc_es.storage.checkpoint import Increment, Snapshot, image_sha256
from hpc_es.storage.results import digest
from hpc_es.training.generation import UpdateInputs


class UpdateReplay:
    """The updates since the last full checkpoint, computed again before new generations."""

    def __init__(self, since: Increment, state: State, best_generation: int | None) -> None:
        self._since, self._first, self._best_generation = since, state.generation, best_generation
        # the shared arrays of the best evaluation, once they were computed
        self.best: Arrays | None = None

    @property
    def message(self) -> str:
        """The line for the log."""
        count = len(self._since.learned_from)
        return f"recomputing {count} update{'s'[: count > 1]} since {self._since.base}"

    def next(self, state: State, measured: State) -> bytes:
        """Return the packed inputs of the update after this state.

        Its generation measured the other state.
        """
        if state.generation == self._best_generation:
            self.best = {name: array.copy() for name, array in measured.shared.items()}
        return self._since.learned_from[state.generation - self._first]

    def is_due(self, state: State) -> bool:
        """Return whether there are updates after this state."""
        return state.generation < self._first + len(self._since.learned_from)

    def require_same(self, state: State) -> None:
        """Raise RunError if the recomputed state differs from the one that was saved."""
        if digest({**state.shared, **state.master}) != self._since.state_sha256:
            base = self._since.base
            raise RunError(
                f"generation {state.generation}, recomputed since {base}, differs from the saved state: has a library, "
                "the processor or the GPU changed? Resume where the run was started, "
                f"or remove checkpoints newer than {base}"
            )


REPLAY_SECONDS = 300.0  # that a replay may take with `checkpoint.full_interval: auto`


class UpdateJournal:
    """The inputs of the updates since the last full checkpoint."""

    def __init__(self, interval: int | Literal["auto"]) -> None:
        # maximum number of updates between full checkpoints; 0: all are full
        self._interval = interval
        # of the updates of this process, their number and their seconds
        self._timed, self._seconds = 0, 0.0
        # name, SHA-256 and generation of the last full checkpoint
        self._base: tuple[str, str, int] | None = None
        self._inputs: list[bytes] = []

    def begin(self, path: Path, snapshot: Snapshot) -> None:
        """Continue from this checkpoint, which was loaded or written just now."""
        since, generation = snapshot.increment, snapshot.state.generation
        if since is not None:
            self._base, self._inputs = (
                (since.base, since.base_sha256, generation),
                list(since.learned_from),
            )
        elif self._interval:
            try:
                self._base, self._inputs = (path.name, image_sha256(path), generation), []
            except OSError as error:
                raise RunError(
                    f"{path} cannot be written: it could not be read back ({error.strerror}); "
                    "the previous checkpoints are unchanged"
                ) from error

    def add(self, results: Results[object], units: Sequence[Arrays], seconds: float = 0.0) -> None:
        """Add the inputs of an update, which one rank would compute in so many seconds.

        If they include arrays of chunks, the next checkpoint must be whole.
        """
        self._timed, self._seconds = self._timed + 1, self._seconds + seconds
        if any(results.chunk_arrays):
            self._base = None
        if self._interval and self._base:
            # without the columns of `report.info`, which a restart may change
            self._inputs.append(
                UpdateInputs(without_info(results.rows), without_info(results.probes), units).pack()
            )

    def since(self, state: State) -> tuple[int, Increment] | None:
        """Return (generation of the full checkpoint, updates since) in place of this state.

        None: save a full one.
        """
        if not self._interval or self._base is None or self._is_long():
            return None
        name, sha256, generation = self._base
        arrays = {**state.shared, **state.master}
        if generation == state.generation or sum(map(len, self._inputs)) > sum(
            a.nbytes for a in arrays.values()
        ):
            return None
        return generation, Increment(
            name, sha256, self._inputs, digest({"theta": state.theta}), digest(arrays)
        )

    def _is_long(self) -> bool:
        """Return whether a full checkpoint is due."""
        count = len(self._inputs)
        if self._interval != "auto":
            return count >= self._interval
        # those before a restart are taken to last as long as those since then
        return count * self._seconds >= REPLAY_SECONDS * max(self._timed, 1)
