"""A video of several members of an archive, side by side where their measures are."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from hpc_es.core.closing import closing
from hpc_es.core.data import Array
from hpc_es.core.errors import UserError
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.streams import say_error
from hpc_es.report.video import frames, rendering, save
from hpc_es.storage.members import StoredArchive, read_vectors
from hpc_es.trained.stored import StoredPolicy, single_episodes

WIDEST = 1_200  # pixels of a video; larger frames are thinned
MOST_BYTES = 1 << 30  # of the frames of all episodes in memory, compressed
BORDER = 2  # pixels between the frames


def members_in_grid(archive: StoredArchive, rows: int, columns: int) -> list[str | None]:
    """Return a member for each place of a grid over the first two measures, row by row from the
    highest second measure; None where no member is.

    A place has the member nearest to its middle. With one measure all rows are one sequence.
    """
    low, high = archive.division.low, archive.division.high
    shares = np.clip((archive.measures - low) / (high - low), 0, 1 - 1e-12)
    if shares.shape[1] == 1:
        places = (shares[:, 0] * rows * columns).astype(np.int64)
        offsets = np.abs(shares[:, 0] * rows * columns - places - 0.5)
    else:
        x, y = shares[:, 0] * columns, (1 - 1e-12 - shares[:, 1]) * rows
        places = y.astype(np.int64) * columns + x.astype(np.int64)
        offsets = np.hypot(x - np.floor(x) - 0.5, y - np.floor(y) - 0.5)
    names: list[str | None] = [None] * (rows * columns)
    for index in np.argsort(-offsets, kind="stable").tolist():
        names[places[index]] = archive.names[index]
    if not any(names):
        raise UserError(f"{archive.path}: has no members: expected at least one")
    return names


@restored_generators()
def write_grid(
    first: StoredPolicy,
    archive: StoredArchive,
    names: Sequence[str | None],
    columns: int,
    seed: int,
    *,
    output: Path,
) -> None:
    """Write a video of an episode of each member, all with the same seed; ended ones stay at their
    last frame.

    Raises UserError if the environment cannot be rendered.
    """
    vectors, row_of = read_vectors(archive), {name: row for row, name in enumerate(archive.names)}
    episodes: list[Iterable[Array]] = []
    left = MOST_BYTES
    with closing("the task", single_episodes(first.config)) as task:
        for name in names:
            if name is None:
                episodes.append([])
                continue
            theta = vectors[row_of[name]]
            source = replace(first, which=name, shared={**first.shared, "theta": theta})
            with rendering(task, output) as (environment, seconds):
                film = Film(left)
                for frame in frames(source, task, environment, seed):
                    if not film.add(_thinned(frame, columns)):
                        say_error(
                            f"the video of {name} ends early: the frames take {MOST_BYTES:,} bytes\n"
                        )
                        break
                episodes.append(film)
                left -= film.bytes
    save(_tiled(episodes, columns), seconds, output)


class Film:
    """Frames of an episode, in memory as compressed differences, of at most so many bytes."""

    def __init__(self, most: int) -> None:
        self._most, self.bytes = most, 0
        self._parts: list[bytes] = []
        self._last: Array | None = None

    def add(self, frame: Array) -> bool:
        """Add a frame uint8[height, width, 3]; return False if there is no space for it."""
        before = np.zeros_like(frame) if self._last is None else self._last
        part = zlib.compress((frame ^ before).tobytes(), 1)
        if self._parts and self.bytes + len(part) > self._most:
            return False
        self._parts.append(part)
        self.bytes += len(part)
        self._last = frame
        return True

    def __iter__(self) -> Iterator[Array]:
        assert self._last is not None
        frame = np.zeros_like(self._last)
        for part in self._parts:
            frame = frame ^ np.frombuffer(zlib.decompress(part), np.uint8).reshape(frame.shape)
            yield frame


def _thinned(frame: Array, columns: int) -> Array:
    """Return every nth pixel, so that a row of frames is not wider than WIDEST."""
    step = -(-frame.shape[1] * columns // WIDEST)
    return np.ascontiguousarray(frame[::step, ::step])


def _tiled(episodes: Sequence[Iterable[Array]], columns: int) -> Iterator[Array]:
    """Yield the frames of all episodes beside each other."""
    shape = next(frame.shape for episode in episodes for frame in episode)
    empty = np.full(shape, 32, np.uint8)
    last = [empty] * len(episodes)
    for now in zip_longest(*episodes):
        last = [old if new is None else new for old, new in zip(last, now, strict=True)]
        padded = [np.pad(frame, ((0, BORDER), (0, BORDER), (0, 0))) for frame in last]
        lines = [
            np.concatenate(padded[start : start + columns], axis=1)
            for start in range(0, len(padded), columns)
        ]
        yield np.concatenate(lines, axis=0)
