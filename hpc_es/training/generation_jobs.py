"""How many training jobs a generation has, before and after a run is built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.config.options import build_kind
from hpc_es.config.registry import is_user_kind
from hpc_es.config.schema import Config
from hpc_es.core.data import NO_FITNESS, Chunk, State, row_dtype
from hpc_es.core.interfaces import AnyAlgorithm, Problem, RepeatsJobs
from hpc_es.core.keys import Keys
from hpc_es.training.build import unit_of
from hpc_es.training.compatibility import algorithm_waits


def unit_before_build(config: Config, problem: Problem) -> int:
    """Return the jobs of a chunk that the algorithm asks for, before a run is built."""
    return problem.chunk_size or unit_of(config)


def initial_state(config: Config, problem: Problem) -> State | None:
    """Return the first state of a search, without a noise table.

    None for custom algorithms and those that only a run builds.
    """
    if algorithm_waits(config) or is_user_kind(config.algorithm.kind):
        return None
    return _begun(config, problem)[1]


def _begun(config: Config, problem: Problem) -> tuple[AnyAlgorithm, State]:
    """Return the algorithm, without noise, and its first state."""
    unit = unit_before_build(config, problem)
    algorithm: AnyAlgorithm = build_kind(
        "algorithms", config.algorithm, problem, None, Keys(config.seed), unit
    )
    return algorithm, problem.carried().merge_into(algorithm.initial())


def jobs_of_generation(config: Config, problem: Problem) -> int:
    """Return the number of training jobs of the first round before a run is built."""
    if algorithm_waits(config):  # the algorithm is not built, as that would use its library
        jobs = config.setup.needs.jobs or 0
    else:
        algorithm, state = _begun(config, problem)
        jobs = usual_jobs(algorithm, state, row_dtype())
        if isinstance(problem, RepeatsJobs) and problem.has_repeats:
            jobs *= problem.repeats(state.shared)
    return jobs


def training_jobs(chunks: Sequence[Chunk]) -> int:
    """Return the number of training jobs in chunks."""
    return sum(chunk.jobs for chunk in chunks if chunk.purpose == "train")


def usual_jobs(algorithm: AnyAlgorithm, state: State, row: np.dtype[np.void]) -> int:
    """Return the number of training jobs of the first round of a generation.

    Jobs that evaluate candidates again are not counted.
    """
    chunks = algorithm.ask(state, 0, np.zeros(0, row), NO_FITNESS)
    if isinstance(algorithm, BaseStrategy):
        chunks = [chunk for chunk in chunks if algorithm.source_chunk(chunk) == chunk]
    return training_jobs(chunks)
