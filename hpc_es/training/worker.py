"""What a worker of a `PoolExecutor` does.

It builds the parts of the run, as a rank does, and evaluates chunks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import numpy as np

from hpc_es.config import user_code
from hpc_es.config.resolved import dump_json, parse_resolved
from hpc_es.config.schema import Config
from hpc_es.core.data import Chunk, Json, Outcome, State
from hpc_es.core.interfaces import RunContext
from hpc_es.mpi.world import World, decode
from hpc_es.tasks.episodes.stepping import stepping_differences
from hpc_es.training.build import Parts, build_parts, build_task, decide_device
from hpc_es.training.generation import Generation


class Recipe(Protocol):
    """How a worker gets the parts of a run."""

    @property
    def key(self) -> str:
        """Differs from run to run."""
        ...

    def parts(self) -> Parts:
        """Build the parts."""
        ...


@dataclass(frozen=True)
class RunRecipe:
    """The recipe of a run with a directory; plain data, which any pool can send."""

    config: str  # as JSON
    directory: str  # run directory
    repetition: int
    import_paths: tuple[str, ...]
    differences: Mapping[str, Json]  # of native stepping, as the main process has found
    key: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def of(cls, config: Config, directory: Path, repetition: int) -> RunRecipe:
        """Return the recipe of this run."""
        paths = tuple(user_code.import_directories())
        return cls(dump_json(config), str(directory), repetition, paths, dict(stepping_differences))

    def parts(self) -> Parts:
        """Build the parts, and open the problem in the run directory."""
        user_code.import_from(self.import_paths)
        stepping_differences.update(self.differences)  # type: ignore[arg-type]
        config, world = parse_resolved(self.config), World("none")
        decide_device(config, world)
        parts = build_parts(config, world, build_task(config, self.repetition), self.repetition)
        # Numbers of processes name their scratch files; those of dead ones are removed by the main
        # process, rank 0.
        number = os.getpid()
        parts.problem.open(
            RunContext(Path(self.directory), number, number + 1, lambda make: make())
        )
        return parts


@dataclass(frozen=True)
class Item:
    """A chunk, and what a worker needs to evaluate it."""

    key: str  # of the recipe
    generation: int
    state: bytes  # shared arrays, encoded
    chunk: Chunk
    recipe: Recipe | None = None  # for workers that do not have it


@dataclass(frozen=True)
class Reply:
    """The outcome of a chunk, who evaluated it, and in how many seconds."""

    outcome: Outcome
    worker: tuple[str, int, int]  # host, process, thread
    seconds: float


class _Built(threading.local):
    """What this thread has built from the last recipe."""

    key = ""
    parts: Parts
    initial: State


_built = _Built()


def build(recipe: Recipe) -> None:
    """Build the parts of a recipe in this worker, unless it has them."""
    if _built.key != recipe.key:
        _built.parts = recipe.parts()
        _built.initial, _built.key = _built.parts.initial(), recipe.key


def evaluate(item: Item) -> Reply:
    """Evaluate a chunk, in a worker."""
    if item.recipe is not None:
        build(item.recipe)
    assert _built.key == item.key
    since = time.perf_counter()
    shared = decode(np.frombuffer(item.state, np.uint8))
    # As on ranks other than 0, arrays that only the update needs are the first ones.
    state = State(item.generation, shared, _built.initial.master)
    outcome = Generation(_built.parts, state).evaluate(item.chunk, lambda: None)
    seconds = time.perf_counter() - since
    return Reply(outcome, (os.uname().nodename, os.getpid(), threading.get_ident()), seconds)
