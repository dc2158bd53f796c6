"""How many cheap evaluations make a chunk, by the time that they took in the last generation; chunks become one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.data import Chunk, Results, cut, row_dtype
from hpc_es.training.generation import HEADER, Evaluated
from hpc_es.training.joining import joined
from hpc_es.training.loop import Training


def chosen(seconds: float, ranks: int, jobs: int = 64, joinable: bool = True, outlives: bool = False) -> int:
    """The jobs of a chunk after a generation in which each evaluation took so many seconds."""
    headers = np.zeros(ranks, HEADER)
    headers["environment"] = seconds * jobs / ranks
    world = SimpleNamespace(size=ranks, faults=SimpleNamespace(outlives=outlives))
    parts = SimpleNamespace(problem=SimpleNamespace(joinable=joinable))
    training: Any = SimpleNamespace(parts=parts, world=world, _jobs_at_once=1)
    Training._join(training, Evaluated(headers, Results(np.zeros(jobs, row_dtype()), []), np.zeros(0, row_dtype())))
    found: int = training._jobs_at_once
    return found


@pytest.mark.parametrize(
    ("seconds", "ranks", "expected"),
    [
        (0.001, 1, 10),
        (0.003, 1, 3),
        (0.001, 2, 8),
        (0.001, 64, 1),
        (0.02, 1, 1),
        (0.0, 1, 64),
        (1e-4, 2, 32),
        (1e-6, 2, 64),
    ],
)
def test_a_chunk_takes_ten_milliseconds_and_a_rank_gets_four_or_one_of_few(
    seconds: float, ranks: int, expected: int
) -> None:
    assert chosen(seconds, ranks) == expected


def test_chunks_stay_where_bits_depend_on_them_or_ranks_may_be_lost() -> None:
    assert chosen(0.001, 1, joinable=False) == chosen(0.001, 1, outlives=True) == 1


def test_no_bit_depends_on_how_chunks_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seconds in (0.0, 0.01, 1.0):
        monkeypatch.setattr("hpc_es.training.joining.CHUNK_SECONDS", seconds)
        minimum = hpc_es.minimize(
            lambda x: float((x * x).sum()), np.ones(3), 0.5, algorithm="cma_es", max_evaluations=70
        )
        found.append((minimum.x.tobytes(), minimum.f, minimum.evaluations))
    assert len(set(found)) == 1


def test_neighbouring_chunks_are_joined_up_to_a_number_of_jobs() -> None:
    """Of one purpose and one parent, and without a gap."""
    chunks = [*cut(5, 1), *cut(2, 1, 5, "probe"), Chunk(0, 7, 1, "probe", 1), Chunk(0, 9, 1, "probe", 1)]
    found = joined(chunks, 2)
    assert [(chunk.first_job, chunk.jobs, chunk.purpose, chunk.parent) for chunk in found] == [
        *[(0, 2, "train", 0), (2, 2, "train", 0), (4, 1, "train", 0)],
        *[(5, 2, "probe", 0), (7, 1, "probe", 1), (9, 1, "probe", 1)],
    ]
    assert joined(chunks, 1) == chunks
