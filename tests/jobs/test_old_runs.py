"""Runs of an earlier version resume: keys that it did not have get their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import hpc_es
from hpc_es.config.loading import validate
from hpc_es.config.resolved import identity
from hpc_es.config.yaml_text import override
from hpc_es.core.errors import CheckpointError
from hpc_es.storage import checkpoint
from hpc_es.trained.stored import read_policy
from tests.config.test_resolved_earlier_versions import of_old_version
from tests.helpers.runs import assert_same, newest
from tests.helpers.trained import CONFIG, rewritten

EVERY = ("checkpoint.interval=1", "checkpoint.keep_last=100")


def train(run: Path, *overrides: str) -> None:
    for _ in hpc_es.train(override(CONFIG, [*EVERY, *overrides]), run):
        pass


def make_old(run: Path) -> None:
    """Rewrite the checkpoints of a run in the form of the earlier version."""
    for path in (run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        text = yaml.safe_dump(of_old_version(yaml.safe_load(old.config_text)))
        which = of_old_version(dict(old.identity))
        checkpoint.save(
            path, dataclasses.replace(old, config_text=text, identity=which, config_hash="of old")
        )


@pytest.fixture
def old_run(tmp_path: Path) -> Iterator[Path]:
    train(tmp_path / "old")
    make_old(tmp_path / "old")
    yield tmp_path / "old"


def test_run_of_an_earlier_version_resumes_with_identical_results(
    old_run: Path, tmp_path: Path
) -> None:
    train(old_run, "stop.generations=4")
    train(tmp_path / "reference", "stop.generations=4")
    assert newest(old_run).state.generation == 4
    assert_same(old_run, tmp_path / "reference")
    assert newest(old_run).identity == newest(tmp_path / "reference").identity


@pytest.mark.parametrize(
    "change", ["algorithm.optimizer.learning_rate=0.25", "algorithm.weight_decay=0.5"]
)
def test_resumed_old_run_refuses_changed_and_non_default_options(
    old_run: Path, change: str
) -> None:
    with pytest.raises(CheckpointError, match=change.partition("=")[0]):
        train(old_run, "stop.generations=4", change)


@pytest.mark.long
def test_best_run_of_two_versions_is_selected_despite_different_hashes(old_run: Path) -> None:
    best = newest(old_run).best
    assert best is not None
    better = dataclasses.replace(best, return_=best.return_ + 1)
    config = validate(CONFIG)
    rest = {"blas_threads": newest(old_run).identity["blas_threads"]}
    rewritten(
        old_run,
        old_run / "checkpoints" / "best.h5",
        best=better,
        identity={**identity(config), **rest},
    )
    assert read_policy(old_run, "best").path.name == "best.h5"
    other = {**identity(validate(override(CONFIG, ["seed=5"]))), **rest}
    rewritten(old_run, old_run / "checkpoints" / "best.h5", best=better, identity=other)
    assert read_policy(old_run, "best").path.name != "best.h5"
