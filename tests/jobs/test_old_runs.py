"""Runs and tunings that an earlier version has begun carry on: keys that have moved since, and keys it did not have."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import hpc_es
from hpc_es.config import moved as moves
from hpc_es.config.loading import validate
from hpc_es.config.resolved import identity, resolved
from hpc_es.config.yaml_text import override
from hpc_es.core.errors import CheckpointError, ConfigError, UserError
from hpc_es.report.saved_policy import read_policy
from hpc_es.storage import checkpoint
from hpc_es.tuning.master import Master, TuneRequest
from hpc_es.tuning.plan import load
from hpc_es.tuning.trials import freeze, matching_trials
from tests.config.test_moved import NOTICE, TABLE, of_old_version, table
from tests.helpers.runs import assert_same, newest
from tests.helpers.trained import CONFIG, rewritten

__all__ = ["table"]
EVERY = ("checkpoint.interval=1", "checkpoint.keep_last=100")


def train(run: Path, *overrides: str) -> None:
    for _ in hpc_es.train(override(CONFIG, [*EVERY, *overrides]), run):
        pass


def make_old(run: Path) -> None:
    """Rewrite the checkpoints of a run as the earlier version would have."""
    for path in (run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        text = yaml.safe_dump(of_old_version(yaml.safe_load(old.config_text)))
        which = of_old_version(dict(old.identity))
        checkpoint.save(path, dataclasses.replace(old, config_text=text, identity=which, config_hash="of old"))


@pytest.fixture
def old_run(table: None, tmp_path: Path) -> Iterator[Path]:
    train(tmp_path / "old")
    make_old(tmp_path / "old")
    yield tmp_path / "old"


def test_a_run_of_an_earlier_version_carries_on_to_the_undisturbed_bits(old_run: Path, tmp_path: Path) -> None:
    train(old_run, "stop.generations=4")
    train(tmp_path / "reference", "stop.generations=4")
    assert newest(old_run).state.generation == 4
    assert_same(old_run, tmp_path / "reference")
    assert newest(old_run).identity == newest(tmp_path / "reference").identity


@pytest.mark.parametrize("change", ["algorithm.optimizer.learning_rate=0.25", "algorithm.weight_decay=0.5"])
def test_what_differs_from_it_or_from_a_default_is_still_refused(old_run: Path, change: str) -> None:
    with pytest.raises(CheckpointError, match=change.partition("=")[0]):
        train(old_run, "stop.generations=4", change)


def test_the_better_of_two_versions_is_found_though_their_hashes_differ(old_run: Path) -> None:
    best = newest(old_run).best
    assert best is not None
    better = dataclasses.replace(best, return_=best.return_ + 1)
    config = validate(CONFIG)
    rest = {"blas_threads": newest(old_run).identity["blas_threads"]}
    rewritten(old_run, old_run / "checkpoints" / "best.h5", best=better, identity={**identity(config), **rest})
    assert read_policy(old_run, "best").path.name == "best.h5"
    other = {**identity(validate(override(CONFIG, ["seed=5"]))), **rest}
    rewritten(old_run, old_run / "checkpoints" / "best.h5", best=better, identity=other)
    assert read_policy(old_run, "best").path.name != "best.h5"


# Tunings.


def written(directory: Path, space: str, base: dict[str, Any]) -> Path:
    (directory / "base.yaml").write_text(json.dumps(base))
    (directory / "tune.yaml").write_text(f"base: base.yaml\nspace: {space}\n")
    return directory / "tune.yaml"


OLD_BASE = {
    "task": {"env_id": "CartPole-v1"},
    "stop": {"generations": 1},
    "mpi": {"optimizer": {"kind": "adam", "learning_rate": 0.25}},
}
NEW_BASE = {**OLD_BASE, "mpi": {}, "algorithm": {"optimizer": {"kind": "adam", "learning_rate": 0.25}}}


@pytest.mark.parametrize("base", [OLD_BASE, NEW_BASE])
@pytest.mark.parametrize("key", ["mpi.optimizer.learning_rate", "algorithm.optimizer.learning_rate"])
def test_base_and_space_of_a_tuning_meet_at_the_new_place(
    table: None, base: dict[str, Any], key: str, tmp_path: Path, capsys: Any
) -> None:
    plan = load(written(tmp_path, f"{{{key}: [0.5, 0.75]}}", base))
    configs = [plan.config(trial) for trial in plan.table()]
    assert [config.algorithm.optimizer.learning_rate for config in configs] == [0.5, 0.75]
    assert all(config.algorithm.optimizer.kind == "adam" for config in configs)
    assert capsys.readouterr().err.count(NOTICE) == (0 if base is NEW_BASE and "mpi" not in key else 1)


@pytest.mark.parametrize(
    "space",
    [
        "{mpi.optimizer.learning_rate: [1.0], algorithm.optimizer.learning_rate: [2.0]}",
        "{mpi.optimizer: [{}], algorithm.optimizer.learning_rate: [2.0]}",
        "{mpi.optimizer.kind: [sgd], algorithm: [{sigma: 0.5}]}",
    ],
)
def test_a_key_by_both_names_in_a_space_is_refused(table: None, space: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"space\.mpi\.optimizer.*is now algorithm\.optimizer.* is in the space too"):
        load(written(tmp_path, space, NEW_BASE))


def test_a_tuning_goes_on_when_its_files_are_brought_up_to_date(table: None, tmp_path: Path) -> None:
    before = load(written(tmp_path, "{mpi.optimizer.learning_rate: [0.5, 0.75]}", OLD_BASE))
    trials = freeze(tmp_path, before.identity(), before.table())
    after = load(written(tmp_path, "{algorithm.optimizer.learning_rate: [0.5, 0.75]}", NEW_BASE))
    assert matching_trials(tmp_path, after.identity()) == trials
    assert after.named_as(before.identity()).table() == trials
    assert moves.MOVED is TABLE


def test_the_same_values_of_another_key_are_another_tuning(table: None, tmp_path: Path) -> None:
    before = load(written(tmp_path, "{mpi.optimizer.learning_rate: [0.5, 0.75]}", OLD_BASE))
    freeze(tmp_path, before.identity(), before.table())
    other = load(written(tmp_path, "{algorithm.sigma: [0.5, 0.75]}", NEW_BASE))
    with pytest.raises(UserError, match=r"space\.algorithm\.optimizer\.learning_rate"):
        matching_trials(tmp_path, other.identity())
    assert resolved(other.config({}))["algorithm"]["optimizer"]["learning_rate"] == 0.25


def test_a_study_keeps_the_names_that_its_trials_have(table: None, tmp_path: Path) -> None:
    optuna = "[0.5, 0.75]}\nsearch: optuna\ntrials: 2"
    old = written(tmp_path, f"{{mpi.optimizer.learning_rate: {optuna}", OLD_BASE)
    Master(TuneRequest(old, tmp_path / "out"), 1)
    new = written(tmp_path, f"{{algorithm.optimizer.learning_rate: {optuna}", NEW_BASE)
    master = Master(TuneRequest(new, tmp_path / "out"), 1)
    assert list(master._plan.space) == ["mpi.optimizer.learning_rate"]
