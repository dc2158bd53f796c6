"""How many cheap evaluations make a chunk, by the time that they took in the last generation; chunks become one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.data import Chunk, Results, cut, row_dtype
from hpc_es.training.generation import HEADER, Evaluated
from hpc_es.training.joining import joined
from hpc_es.training.loop import Training


def chosen(
    seconds: float,
    ranks: int,
    jobs: int = 64,
    joinable: str = "one by one",
    outlives: bool = False,
    parameters: int = 10,
) -> int:
    """The jobs of a chunk after a generation in which each evaluation took so many seconds."""
    headers = np.zeros(ranks, HEADER)
    headers["environment"] = seconds * jobs / ranks
    world = SimpleNamespace(size=ranks, faults=SimpleNamespace(outlives=outlives))
    work, state = SimpleNamespace(evaluators=range(ranks)), SimpleNamespace(theta=np.zeros(parameters, np.float32))
    parts = SimpleNamespace(problem=SimpleNamespace(joinable=joinable))
    training: Any = SimpleNamespace(parts=parts, world=world, state=state, _work=work, _jobs_at_once=1)
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


@pytest.mark.parametrize(
    ("seconds", "ranks", "parameters", "expected"),
    [
        (0.001, 1, 10, 64),  # all at once
        (0.001, 2, 10, 32),
        (0.001, 3, 10, 22),
        (0.1, 2, 10, 8),  # 6.4 s in all: four chunks a rank
        (0.001, 1, 17_000, 30),  # of 68 kB each, in 2 MiB
        (0.001, 1, 1_000_000, 1),
    ],
)
def test_jobs_in_lockstep_are_as_many_as_a_rank_can_have(
    seconds: float, ranks: int, parameters: int, expected: int
) -> None:
    assert chosen(seconds, ranks, joinable="at once", parameters=parameters) == expected


@pytest.mark.parametrize("normalised", [False, True])
def test_no_bit_of_a_policy_depends_on_how_chunks_are_joined(
    normalised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 jobs in chunks of 4, the sums of whose observations are added by fours."""
    found = []
    for jobs in (1, 9, 30):
        monkeypatch.setattr("hpc_es.training.loop.jobs_in_lockstep", lambda *_, jobs=jobs: jobs)
        config = {
            "task": {
                "env_id": "CartPole-v1",
                "max_episode_steps": 40,
                "observation_normalization": {"enabled": normalised, "probability": 0.5} if normalised else {},
            },
            "policy": {"hidden_dims": [4]},
            "algorithm": {"population_size": 30, "sigma": 0.5, "optimizer": {"learning_rate": 0.3}},
            "noise": {"table_size": 10_000},
            "mpi": {"chunk_size": 4},
            "stop": {"generations": 4},
        }
        with hpc_es.train(config, tmp_path / str(jobs)) as run:
            lengths = [row["timesteps_this_generation"] for row in run]
            found.append((run.theta.tobytes(), *lengths))
    assert len(set(found)) == 1


def test_chunks_stay_where_bits_depend_on_them_or_ranks_may_be_lost() -> None:
    assert chosen(0.001, 1, joinable="no") == chosen(0.001, 1, outlives=True) == 1


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
