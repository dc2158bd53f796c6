"""checkpoint.full_interval and mpi.update: incremental checkpoints, and identical results after a
kill.

The reference has a whole checkpoint of every generation. A kill is what its newest checkpoints are
removed for.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import hpc_es
from hpc_es.algorithms.common import optimizers
from hpc_es.commands.runs import checkpoint_content
from hpc_es.core.errors import CheckpointError, RunError
from hpc_es.storage.checkpoint import is_full, load
from hpc_es.storage.checkpoint_directory import Store, find
from hpc_es.trained.stored import read_policy
from hpc_es.training import executors, updates
from tests.helpers import runs

LARGE = (*runs.EVERY, "policy.hidden_dims=[64, 64]", "task.observation_normalization.enabled=true")
BETWEEN = (*LARGE, "checkpoint.full_interval=4")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose checkpoints are all full."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *LARGE)
    return run


@pytest.fixture(scope="module")
def incremental(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with full checkpoints of generations 0,
    4 and 6 and incremental ones in between.
    """
    run = tmp_path_factory.mktemp("incremental") / "run"
    runs.finished(2, run, *BETWEEN)
    return run


@pytest.fixture
def finished(incremental: Path, tmp_path: Path) -> Path:
    """A copy of the incremental run, for a test to change."""
    return Path(shutil.copytree(incremental, tmp_path / "killed" / "run"))


@pytest.fixture
def killed(finished: Path) -> Path:
    """A run whose newest checkpoint has the inputs of three
    updates since the full one of generation 0.
    """
    run = finished
    for path in Store(run / "checkpoints").paths()[4:]:
        path.unlink()
    return run


@pytest.mark.long
def test_updates_in_place_equal_those_that_copy(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for theta of millions of parameters."""
    monkeypatch.setattr(updates, "OVERWRITTEN", 0)
    monkeypatch.setattr(optimizers, "STEP_PART", 1000)
    runs.here(runs.tiny(tmp_path), tmp_path / "run", BETWEEN)
    runs.assert_same(tmp_path / "run", reference)
    for path in Store(tmp_path / "run" / "checkpoints").paths()[4:]:
        path.unlink()
    # replays the updates from the full checkpoint
    runs.here(runs.tiny(tmp_path), tmp_path / "run", BETWEEN)
    runs.assert_same(tmp_path / "run", reference)


def test_blocks_of_an_update_that_are_packed_have_the_same_sums(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "PACKED_BYTES", 0)
    runs.here(runs.tiny(tmp_path), tmp_path / "run", BETWEEN)
    runs.assert_same(tmp_path / "run", reference)


@pytest.mark.parametrize("in_place", [False, True])
def test_state_after_a_failed_update_is_saved_only_if_it_is_whole(
    in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update in place has changed theta and the slots when theta is not finite."""
    monkeypatch.setattr(updates, "OVERWRITTEN", 0 if in_place else 1 << 22)
    steep = {"kind": "sgd", "learning_rate": 1e39}
    config = yaml.safe_load(runs.tiny(tmp_path).read_text())
    config["algorithm"]["optimizer"], config["checkpoint"] = (
        steep,
        {"interval": 0, "interval_seconds": 0},
    )
    with hpc_es.train(config, tmp_path / "run") as run:
        with pytest.raises(RunError, match="theta is not finite after generation 1"):
            next(run)
        if in_place:
            with pytest.raises(
                RunError, match="failed while it changed the state, which cannot be saved"
            ):
                run.checkpoint()
        else:
            run.checkpoint()
    (path,) = Store(tmp_path / "run" / "checkpoints").paths()
    assert load(path).generation == 0
    assert np.isfinite(load(path).state.theta).all()


def whole(run: Path) -> list[bool]:
    return [is_full(path) for path in Store(run / "checkpoints").paths()]


def test_every_fourth_and_the_last_checkpoint_are_full(incremental: Path, reference: Path) -> None:
    run = incremental
    assert whole(run) == [True, False, False, False, True, False, True]
    paths = Store(run / "checkpoints").paths()
    sizes = [path.stat().st_size for path in paths]
    assert max(sizes[1:4]) < sizes[0] / 3
    runs.assert_same(run, reference)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("ranks", "update"), [(0, "gathered"), (3, "gathered"), (3, "replicated")])
def test_killed_run_resumes_with_identical_results(
    ranks: int, update: str, killed: Path, reference: Path
) -> None:
    done = runs.finished(ranks, killed, *BETWEEN, f"mpi.update={update}")
    assert "resumed from generation 3" in done.stdout, str(done)
    assert "recomputing 3 updates since checkpoint_0000000000.h5" in done.stdout, str(done)
    assert [
        json.loads(line)["generation"]
        for line in (killed / "metrics.jsonl").read_text().splitlines()
    ] == [*range(6)]
    runs.assert_same(killed, reference)


def test_full_interval_1_makes_all_later_checkpoints_full(killed: Path, reference: Path) -> None:
    runs.finished(2, killed, *LARGE)
    assert whole(killed) == [True, False, False, False, True, True, True]
    runs.assert_same(killed, reference)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", ["gone", "damaged", "another"])
def test_older_full_checkpoint_is_used_if_the_newest_is_missing(
    damage: str, finished: Path, reference: Path
) -> None:
    run = finished
    paths = Store(run / "checkpoints").paths()
    paths[6].unlink()
    if damage == "gone":
        paths[4].unlink()
    else:
        paths[4].write_bytes(
            paths[4].read_bytes()[:-9] if damage == "damaged" else paths[0].read_bytes()
        )
    done = runs.finished(2, run, *BETWEEN)
    result = {
        "gone": "cannot be loaded",
        "damaged": "cannot be loaded",
        "another": "based on another version",
    }[damage]
    assert re.search(rf"WARNING: .*{paths[5].name}.*{result}.*continuing from", done.stdout), str(
        done
    )
    runs.assert_same(run, reference)


def test_changed_bit_of_an_incremental_checkpoint_is_detected(
    killed: Path, reference: Path
) -> None:
    path = Store(killed / "checkpoints").paths()[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = runs.finished(0, killed, *BETWEEN)
    assert f"{path.name}: damaged" in done.stdout and "resumed from generation 2" in done.stdout, (
        str(done)
    )
    runs.assert_same(killed, reference)


def test_full_checkpoint_that_incremental_ones_need_is_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.finished(0, run, *BETWEEN, "checkpoint.keep_last=2")
    assert [path.stem[-1] for path in Store(run / "checkpoints").paths()] == ["4", "5", "6"]


def test_inspect_shows_full_and_incremental_checkpoints(killed: Path, reference: Path) -> None:
    path = find(killed, full=False)
    output = checkpoint_content(path, load(path))
    expected = checkpoint_content(reference, load(Store(reference / "checkpoints").path(3)))
    assert path.name == "checkpoint_0000000003.h5" and output["generation"] == 3
    assert output["since"] == {
        "checkpoint": "checkpoint_0000000000.h5",
        "generations": 3,
        "bytes": output["since"]["bytes"],
    }
    assert 3 * 12 * 12 < output["since"]["bytes"] < 3000
    for name in ("theta_sha256", "state_sha256"):
        assert output[name] == expected[name]


def test_commands_that_need_parameters_use_the_newest_full_checkpoint(killed: Path) -> None:
    assert read_policy(killed, "last").generation == 0
    with pytest.raises(
        CheckpointError,
        match=r"an incremental checkpoint without parameters: expected the full one",
    ):
        read_policy(find(killed, full=False), "last")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_replicated_update_gives_identical_results(
    ranks: int, tmp_path: Path, reference: Path
) -> None:
    run = tmp_path / "run"
    runs.finished(ranks, run, *LARGE, "mpi.update=replicated")
    runs.assert_same(run, reference)


def test_failed_replicated_update_ends_all_ranks(tmp_path: Path) -> None:
    steep = ("algorithm.optimizer.kind=sgd", "algorithm.optimizer.learning_rate=1e39")
    done = runs.train(3, tmp_path / "run", *LARGE, "mpi.update=replicated", *steep)
    assert done.status == 1 and "theta is not finite after generation" in done.stderr, str(done)
