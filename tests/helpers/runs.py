"""Tiny experiments for the end-to-end tests, and what two runs of one experiment must have in
common.

run = tmp_path / "run"
done = train(3, run, "mpi.schedule=static")     to its end; 0 ranks: without mpiexec
with begin(3, run) as job: ...                  a job to signal or kill
assert_same(run, reference)
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import hpc_es
from hpc_es.config.loading import load as load_config
from hpc_es.storage import metrics_log as metrics
from hpc_es.storage.checkpoint import Snapshot, load
from hpc_es.storage.checkpoint_directory import Store, find
from tests.helpers.harness import ROOT, Finished, Job, mpiexec, script, start

TINY = """
seed: 1
task: {kind: episodes, env_id: "tests.helpers.trouble:Rough-v0"}
policy: {kind: mlp, hidden_dims: [8]}
algorithm: {kind: es, population_size: 12, sigma: 0.1, optimizer: {kind: adam, learning_rate: 0.05}}
noise: {kind: table, table_size: 20_000}
mpi: {chunk_size: 4}
evaluation: {interval: 2, episodes: 3}
checkpoint: {interval: 2, interval_seconds: 0, keep_last: 3}
stop: {generations: 6}
report: {plot_interval_seconds: 0}
"""
CLOCK_AND_RANKS = re.compile(
    r"seconds_.*|tail_seconds|steps_per_second|time_.*|predict_microseconds_.*|ranks|evaluating_ranks|busy_ranks"
)
EVERY = ("checkpoint.interval=1", "checkpoint.keep_last=1000")  # a checkpoint of each generation


def tiny(directory: Path, text: str = TINY) -> Path:
    """The config file in this directory."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "tiny.yaml"
    path.write_text(text)
    return path


def command(run: Path, *arguments: str) -> list[str]:
    """Arguments of Python that train the tiny config, with these overrides and options,
    into `run`.
    """
    return ["-m", "hpc_es.main", str(tiny(run.parent)), "--output", str(run), *arguments]


def begin(ranks: int, run: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Job:
    """Start a training job; 0 ranks is one process without a launcher."""
    arguments = tuple(command(run, *arguments))
    return (
        start(ranks, arguments, env, ROOT)
        if ranks
        else Job([sys.executable, *arguments], env, ROOT)
    )


def train(ranks: int, run: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Finished:
    """Run a training job to its end."""
    with begin(ranks, run, *arguments, env=env) as job:
        return job.wait()


def finished(ranks: int, run: Path, *arguments: str) -> Finished:
    """Run a training job that must end with status 0."""
    done = train(ranks, run, *arguments)
    assert done.status == 0, str(done)
    return done


def here(config: Path, run: Path, overrides: Sequence[str]) -> None:
    """Train in this process to the end, without the start-up time of a job."""
    for _ in hpc_es.train(load_config(config, overrides), run):
        pass


VARIANTS_SECONDS = 300.0  # time limit of a job; one of 40 variants takes 10 s on an idle machine
TRAIN_VARIANTS = """
    import json, sys
    from pathlib import Path
    import hpc_es
    from hpc_es.config.loading import load

    config, directory, variants = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    for name, overrides in variants.items():
        for row in hpc_es.train(load(config, overrides), directory / name):
            pass
"""


def trained_variants(
    directory: Path, variants: Mapping[str, Sequence[str]]
) -> Callable[[int], Path]:
    """A function from the number of ranks to a directory with a run of each variant of the tiny
    config, by name.

    `variants` are overrides. One job trains all of them at the first call for a number of ranks, to
    save starts.
    """
    config = str(tiny(directory))

    @functools.cache  # a failed job is not repeated either
    def job(ranks: int) -> Finished:
        arguments = [
            *script(TRAIN_VARIANTS),
            config,
            str(directory / str(ranks)),
            json.dumps(variants),
        ]
        return mpiexec(ranks, arguments, VARIANTS_SECONDS, cwd=ROOT)

    def trained(ranks: int) -> Path:
        assert job(ranks).status == 0, str(job(ranks))
        return directory / str(ranks)

    return trained


@contextlib.contextmanager
def working_in(directory: Path, module: str) -> Iterator[Path]:
    """Make a directory with a module of environments the current one;
    afterwards they are forgotten.
    """
    known = dict(gymnasium.registry)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setattr(sys, "path", [str(directory), *sys.path])
        sys.modules.pop(module, None)
        yield directory
    sys.modules.pop(module, None)
    gymnasium.registry.clear()
    gymnasium.registry.update(known)


def newest(run: Path) -> Snapshot:
    """The newest checkpoint."""
    return load(find(run))


def digest(snapshot: Snapshot) -> str:
    """SHA-256 of the state that training resumes from, and of the best theta."""
    total = hashlib.sha256(str(snapshot.state.generation).encode())
    groups: list[Mapping[str, Any]] = [snapshot.state.shared, snapshot.state.master]
    if snapshot.best:
        groups.append({**snapshot.best.shared, "return_": np.float64(snapshot.best.return_)})
    for group in groups:
        for name in sorted(group):
            total.update(name.encode() + np.asarray(group[name]).tobytes())
    return total.hexdigest()


def digests(run: Path) -> dict[int, str]:
    """The digest of every existing checkpoint, by generation."""
    snapshots = [load(path) for path in Store(run / "checkpoints").paths()]
    return {snapshot.state.generation: digest(snapshot) for snapshot in snapshots}


def rows(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the columns of time and rank."""
    return [_without_clock(row) for row in metrics.read_metrics(run)]


def table(run: Path) -> list[dict[str, Any]]:
    """log.csv without those columns."""
    with (run / "log.csv").open() as file:
        return [_without_clock(row) for row in csv.DictReader(file)]


def _without_clock(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not CLOCK_AND_RANKS.fullmatch(name)}


def status(run: Path) -> dict[str, Any]:
    """status.json."""
    values: dict[str, Any] = json.loads((run / "status.json").read_text())
    return values


def files(run: Path) -> dict[str, bytes]:
    """Files of a run directory, except those that every start writes: the lock and log.txt."""
    paths = [
        path
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in {"lock", "log.txt"}
    ]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


def assert_same(run: Path, reference: Path) -> None:
    """Assert bit-identical theta, optimizer, normaliser, best and rows;
    a longer reference is truncated.
    """
    snapshot = newest(run)
    generations = snapshot.state.generation
    assert digests(reference)[generations] == digest(snapshot)
    assert [row["generation"] for row in rows(run)] == list(range(generations))
    assert rows(run) == rows(reference)[:generations]
    assert table(run) == table(reference)[:generations]


def wait_for(condition: Any, timeout_seconds: float = 60.0) -> None:
    """Return when the condition holds."""
    limit = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.005)


def generation(run: Path) -> int:
    """Number of generations that a running job has recorded."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed_and_resumed(run: Path, ranks: int, resumed_on: int, *options: str) -> int:
    """Kill a run after its second generation and resume it on other ranks;
    return its number of generations.
    """
    with begin(ranks, run, *options, "stop.generations=10000") as job:
        wait_for(lambda: generation(run) > 2, 240.0)
        job.kill()
    end = generation(run) + 2  # the newest checkpoint may be an incremental one, of an older state
    finished(resumed_on, run, *options, f"stop.generations={end}")
    return end
