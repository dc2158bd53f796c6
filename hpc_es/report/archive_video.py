"""A video of several members of an archive, side by side where their measures are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from hpc_es.core.closing import closing
from hpc_es.core.data import Array
from hpc_es.core.errors import UserError
from hpc_es.core.global_generators import restored_generators
from hpc_es.report.video import frames, rendering, save
from hpc_es.storage.members import StoredArchive, read_vectors
from hpc_es.trained.stored import StoredPolicy, single_episodes

WIDEST = 1_200  # pixels of a video; larger frames are thinned
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
    episodes: list[list[Array]] = []
    with closing("the task", single_episodes(first.config)) as task:
        for name in names:
            if name is None:
                episodes.append([])
                continue
            theta = vectors[row_of[name]]
            source = replace(first, which=name, shared={**first.shared, "theta": theta})
            with rendering(task, output) as (environment, seconds):
                episodes.append(
                    [_thinned(frame, columns) for frame in frames(source, task, environment, seed)]
                )
    save(_tiled(episodes, columns), seconds, output)


def _thinned(frame: Array, columns: int) -> Array:
    """Return every nth pixel, so that a row of frames is not wider than WIDEST."""
    step = -(-frame.shape[1] * columns // WIDEST)
    return np.ascontiguousarray(frame[::step, ::step])


def _tiled(episodes: Sequence[Sequence[Array]], columns: int) -> Iterator[Array]:
    """Yield the frames of all episodes beside each other."""
    height, width, channels = next(frame[0] for frame in episodes if frame).shape
    empty = np.full((height, width, channels), 32, np.uint8)
    last = [empty] * len(episodes)
    for now in zip_longest(*(episode or [empty] for episode in episodes)):
        last = [old if new is None else new for old, new in zip(last, now, strict=True)]
        padded = [np.pad(frame, ((0, BORDER), (0, BORDER), (0, 0))) for frame in last]
        lines = [
            np.concatenate(padded[start : start + columns], axis=1)
            for start in range(0, len(padded), columns)
        ]
        yield np.concatenate(lines, axis=0)
