"""Checkpoints with right digests that no run has written: somebody else's, or damaged before they
were sealed. Each is refused in one line, without much memory, and without code of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.cluster.requeue import decide_in
from hpc_es.config.registry import module
from hpc_es.config.yaml_text import override
from hpc_es.core.data import Box, Discrete, Spaces, State
from hpc_es.core.errors import CheckpointError, ConfigError, RunError, UserError
from hpc_es.storage import checkpoint
from hpc_es.storage.checkpoint import CutShort, Increment, Snapshot
from hpc_es.storage.checkpoint_directory import find
from hpc_es.tasks.functions.best_arrays import has_best
from hpc_es.training import init_from_parts
from hpc_es.training.generation import UpdateInputs
from hpc_es.training.messages import encode
from tests.helpers.trained import CONFIG

FUNCTION: dict[str, Any] = {
    "seed": 1,
    "task": {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 6},
    "algorithm": {"kind": "cma_es"},
    "report": {"plot_interval_seconds": 0},
    "stop": {"generations": 2},
}
GA: dict[str, Any] = {
    "task": {"kind": "programs", "name": "reverse"},
    "algorithm": {"kind": "ga", "population_size": 8},
    "report": {"plot_interval_seconds": 0},
    "stop": {"generations": 2},
}
Change = Callable[[Snapshot], Snapshot]


def trained(config: dict[str, Any], run: Path, generations: int = 2) -> None:
    with hpc_es.train({**config, "stop": {"generations": generations}}, run) as training:
        for _ in training:
            pass


def with_arrays(group: str, **arrays: Any) -> Change:
    def change(snapshot: Snapshot) -> Snapshot:
        changed = {**getattr(snapshot.state, group), **arrays}
        return replace(snapshot, state=replace(snapshot.state, **{group: changed}))

    return change


def with_counters(**counters: Any) -> Change:
    return lambda snapshot: replace(snapshot, counters={**snapshot.counters, **counters})


def changed(run: Path, change: Change) -> Path:
    """Replace the newest checkpoint of a run with a changed one, whose digests are right."""
    file = find(run)
    checkpoint.save(file, change(checkpoint.load(file)))
    return file


REFUSED: dict[str, tuple[dict[str, Any], Change, str]] = {
    "population": (FUNCTION, with_arrays("shared", population=np.array(10**6)), "population of 1,"),
    "no population": (FUNCTION, with_arrays("shared", population=np.array(-1)), "population of -1"),
    "programs": (GA, with_arrays("shared", count=np.array(1 << 40)), "of 8 programs"),
    "unknown genes": (
        GA,
        with_arrays("shared", programs=np.full((8, 100), 255, np.uint8), count=np.array(8)),
        "generation 2 cannot be continued, and may be damaged",
    ),
    "counters": (FUNCTION, with_counters(episodes="x"), "expected a number as counter episodes"),
    "no counters": (FUNCTION, with_counters(seconds=None), "a number as counter seconds"),
    "NaN": (FUNCTION, with_counters(seconds=float("nan")), "a number as counter seconds"),
    "lengths": (
        FUNCTION,
        lambda old: replace(old, file_lengths={**old.file_lengths, "log.csv": "x"}),
        "file_lengths",
    ),
    "negative": (
        FUNCTION,
        lambda old: replace(old, file_lengths={**old.file_lengths, "log.csv": -1}),
        "found a negative number",
    ),
    "cut": (
        FUNCTION,
        lambda old: replace(old, cut=CutShort({}, b"")),
        "cannot be continued, and may be damaged",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_run_is_not_continued_from_what_no_run_has_written(name: str, tmp_path: Path) -> None:
    config, change, message = REFUSED[name]
    trained(config, tmp_path)
    changed(tmp_path, change)
    with pytest.raises(UserError, match=message):
        trained(config, tmp_path, 4)


def test_error_of_a_trigger_of_mine_is_shown_as_it_is(tmp_path: Path) -> None:
    def broken() -> None:
        raise ValueError("mine")

    trained(FUNCTION, tmp_path)
    triggers = [hpc_es.IntervalTrigger(broken, interval=1)]
    config = {**FUNCTION, "stop": {"generations": 4}}
    with pytest.raises(ValueError, match=r"^mine$"):
        list(hpc_es.train(config, tmp_path, triggers=triggers))


def test_missing_log_of_any_length_is_not_written(tmp_path: Path) -> None:
    trained(FUNCTION, tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    changed(tmp_path, lambda old: replace(old, file_lengths={"metrics.jsonl": 1 << 50}))
    with pytest.raises(RunError, match=r"metrics\.jsonl is missing, and had 1,125,899,906,842,624"):
        trained(FUNCTION, tmp_path, 3)


def test_numbers_of_units_do_not_size_memory() -> None:
    packed = encode({"units": np.array(1 << 40)}).tobytes()
    with pytest.raises(ValueError, match=r"found 1,099,511,627,776 of them"):
        UpdateInputs.unpack(packed, np.dtype([("return_", "<f8"), ("length", "<i4")]))


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("best_x", np.array([["a"]], "S1")),
        ("best_value", np.zeros(3)),
        ("best_value", np.array(b"x")),
        ("best_at", np.zeros(1, np.int64)),
        ("best_at", np.zeros(2)),
    ],
)
def test_best_vector_of_another_form_counts_as_none(
    name: str, array: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(FUNCTION, tmp_path)
    file = changed(tmp_path, with_arrays("master", **{name: array}))
    assert not has_best(checkpoint.load(file).state.master)
    capsys.readouterr()
    assert cli.run(["eval", str(file)]) == 0
    assert "which          last" in capsys.readouterr().out  # the centre
    assert cli.run(["export", str(file), str(tmp_path / "x.npy")]) == 0
    assert np.load(tmp_path / "x.npy").shape == (6,)
    assert cli.run(["inspect", str(file)]) == 0


@pytest.mark.parametrize("base", ["a\0b", "../other.h5", "", 3, ["x"]])
def test_base_of_an_increment_is_a_name(base: Any, tmp_path: Path) -> None:
    trained(FUNCTION, tmp_path)
    change = Increment(base, "0" * 64, [b""] * 2, "0" * 64, "0" * 64)
    file = changed(tmp_path, lambda old: replace(old, increment=change, state=State(2, {}, {})))
    with pytest.raises(CheckpointError):
        checkpoint.load(file)


# policy.init_from


def source(directory: Path, change: Change) -> Path:
    trained(CONFIG, directory)
    return changed(directory, change)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (lambda theta: theta.astype("c16"), "found none"),
        (lambda theta: np.full(theta.size, b"abcd"), "found none"),
        (lambda theta: np.full(theta.size, 1 << 62), "found none"),
        (lambda theta: np.full(theta.size, 1e308), "not all finite float32 numbers"),
        (lambda theta: theta * np.nan, "not all finite float32 numbers"),
    ],
)
def test_parameters_of_other_types_are_refused(array: Any, message: str, tmp_path: Path) -> None:
    def change(old: Snapshot) -> Snapshot:
        return with_arrays("shared", theta=array(old.state.shared["theta"]))(old)

    file = source(tmp_path / "theirs", lambda old: replace(change(old), best=None))
    with pytest.raises(ConfigError, match=message):
        trained(override(CONFIG, (f"policy.init_from={file}",)), tmp_path / "mine", 1)


def test_run_from_other_precision_and_reserved_names_can_be_resumed(tmp_path: Path) -> None:
    """Arrays that look like the mask of what was taken would be broadcast to any size."""

    def change(old: Snapshot) -> Snapshot:
        theta = old.state.shared["theta"].astype(np.float64)
        mask = np.ones((1000, 1), bool)
        arrays = {"theta": theta, init_from_parts.TAKEN: mask, f"{init_from_parts.FRESH}x": theta}
        return replace(with_arrays("shared", **arrays)(old), best=None)

    file, mine = source(tmp_path / "theirs", change), tmp_path / "mine"
    config = override(CONFIG, (f"policy.init_from={file}",))
    trained(config, mine, 1)
    assert checkpoint.load(find(mine)).state.shared["theta"].dtype == np.float32
    trained(config, mine, 3)
    assert checkpoint.load(find(mine)).generation == 3


@pytest.mark.parametrize(
    "arrays",
    [
        {"_sum": np.zeros((1, 3)), "sumsq": np.ones((3, 1)), "count": np.array(1.0)},
        {"_sum": np.zeros(3), "sumsq": np.ones(4), "count": np.array(1.0)},
        {"_sum": np.zeros(3), "sumsq": np.ones(3), "count": np.ones(3)},
        {"_sum": np.array(["a"] * 3), "sumsq": np.ones(3), "count": np.array(1.0)},
    ],
)
def test_statistics_of_other_shapes_are_refused(arrays: dict[str, Any], tmp_path: Path) -> None:
    np.savez(statistics := tmp_path / "o.npz", **arrays)
    file = source(tmp_path / "theirs", lambda old: old)
    changes = (f"policy.init_from={file}", f"policy.init_observations={statistics}")
    with pytest.raises(ConfigError, match="one number per observation, and a number as count"):
        trained(override(CONFIG, changes), tmp_path / "mine", 1)


def test_functions_of_mine_get_no_arguments_of_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    options = module("policies", "network").Options(network="mine:build", network_kwargs={"a": 1})
    given: list[Any] = []

    class Policies:
        @staticmethod
        def build(chosen: Any, spaces: Spaces) -> None:
            given.append(chosen.network_kwargs)
            raise TypeError

    monkeypatch.setattr(init_from_parts, "module", lambda package, kind: Policies)
    theirs = {"kind": "network", "network": "mine:build", "network_kwargs": {"a": "os:abort"}}
    spaces = Spaces(Box(np.zeros(2, np.float32), np.ones(2, np.float32)), Discrete(2))
    assert init_from_parts.other_layout(options, {"policy": theirs}, 7, spaces) is None
    assert given == [{"a": 1}]


# hpc_es.Strategy.load


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    search = hpc_es.Strategy("cma_es", x0=[1.0, 1.0], sigma0=0.5)
    search.tell([float(x @ x) for x in search.ask()])
    search.save(tmp_path / "search.h5")
    return tmp_path / "search.h5"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("policy: null", "policy: {kind: 'imported_by_a_file:X'}"),
        ("initial_points: null", "initial_points: /etc/passwd"),
        ("the_caller:evaluates", "imported_by_a_file:f"),
    ],
)
def test_file_of_a_strategy_names_no_other_code_or_file(
    old: str, new: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved.parent / "imported_by_a_file.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(saved.parent)
    snapshot = checkpoint.load(saved)
    assert old in snapshot.config_text
    text = snapshot.config_text.replace(old, new)
    checkpoint.save(saved, replace(snapshot, config_text=text))
    with pytest.raises(CheckpointError, match=r"expected a file of Strategy\.save"):
        hpc_es.Strategy.load(saved)


@pytest.mark.parametrize(
    "counters",
    [
        {"rounds": "abc"},
        {"rounds": [1]},
        {"told": {"a": 1}},
        {"to_inject": [[1, 2, 3]]},
        {"injected": ["x"]},
        {"episodes": float("inf")},
        {"generation_mean": []},
    ],
)
def test_damaged_file_of_a_strategy_is_named(counters: dict[str, Any], saved: Path) -> None:
    checkpoint.save(saved, with_counters(**counters)(checkpoint.load(saved)))
    with pytest.raises(CheckpointError, match=r"search\.h5"):
        hpc_es.Strategy.load(saved)


# status.json of a job


@pytest.mark.parametrize("generation", ["x", None, [], 1.5])
def test_job_is_requeued_whatever_the_status_of_a_run_says(generation: Any, tmp_path: Path) -> None:
    job = {"job": "8", "restarts": 1}
    status = {"status": "interrupted", "generation": generation, **job}
    (tmp_path / "status.json").write_text(json.dumps(status))
    (tmp_path / "restarts.json").write_text(json.dumps({"generation": generation, "idle": "x"}))
    (tmp_path / "repetition_0000").mkdir()
    (tmp_path / "repetition_0000/status.json").write_text(json.dumps({"job": "8"}))
    assert decide_in(tmp_path, None, 75, job).requeue
