"""The comparison of two versions: differences in bits, order, dtype and rows are detected."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h5py
import numpy as np
import pytest

from benchmarks import same_bits_runs
from benchmarks.jobs import ROOT
from benchmarks.same_bits_cases import all_cases
from benchmarks.same_bits_compare import Comparison, compare
from hpc_es.config.loading import load
from hpc_es.config.registry import Package, kinds

PACKAGES: dict[Package, str] = {
    "algorithms": "algorithm",
    "tasks": "task",
    "policies": "policy",
    "noise": "noise",
}
ROW = {
    "generation": 0,
    "return_mean": 1.5,
    "seconds_total": 1.0,
    "ranks": 2,
    "predict_microseconds_mean": 3.0,
}


class Run:
    """A run directory of one generation, written by hand."""

    def __init__(self) -> None:
        self.shared: dict[str, Any] = {
            "theta": np.array([1, 0, np.nan], np.float32),
            "a/b": np.int64(3),
        }
        self.best = {"theta": np.array([1, 2, 3], np.float32)}
        self.counters: dict[str, Any] = {"episodes": 4, "seconds": 1.0}
        self.rows: list[dict[str, Any]] = [dict(ROW)]

    def write(self, run: Path) -> Path:
        (run / "checkpoints").mkdir(parents=True)
        groups = {"shared": self.shared, "master": {}, "best/shared": self.best}
        with h5py.File(
            run / "checkpoints/checkpoint_0000000001.h5", "w", userblock_size=512
        ) as file:
            file["generation"], file["best/return_"], file["best/generation"] = (
                np.int64(1),
                np.float64(1.5),
                np.int64(0),
            )
            for group, arrays in groups.items():
                file.require_group(group)
                for name, array in arrays.items():
                    file[group][quote(name, safe="")] = array
            file["order"] = json.dumps({group: list(arrays) for group, arrays in groups.items()})
            file["counters"] = json.dumps(self.counters)
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        return run


def compared(tmp_path: Path, change: Callable[[Run], object]) -> Comparison:
    other = Run()
    change(other)
    return compare(Run().write(tmp_path / "before"), other.write(tmp_path / "after"))


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (
            lambda run: run.shared["theta"].__setitem__(1, -0.0),
            "shared/theta: 1 of 3 differ, first [1]",
        ),
        (
            lambda run: run.best["theta"].__setitem__(2, 4),
            "best/shared/theta: 1 of 3 differ, first [2]",
        ),
        (
            lambda run: run.shared.update(theta=np.zeros(3)),
            "shared/theta: float32[3], then float64[3]",
        ),
        (lambda run: run.shared.update(theta=run.shared.pop("theta")), "arrays ['generation', "),
        (lambda run: run.shared.pop("a/b"), "arrays ['generation', "),
        (lambda run: run.counters.update(episodes=5), "counter episodes: 4, then 5"),
        (
            lambda run: run.rows[0].update(return_mean=1.5000000000000002),
            "column return_mean: 1.5, then 1.50",
        ),
        (lambda run: run.rows[0].update(generation=0.0), "column generation: 0, then 0.0 (row 0)"),
        (lambda run: run.rows[0].pop("return_mean"), "column return_mean is missing"),
        (lambda run: run.rows.append(ROW), "metrics.jsonl: 1 rows, then 2"),
    ],
)
def test_difference_is_detected_and_described(
    change: Callable[[Run], object], result: str, tmp_path: Path
) -> None:
    differences = compared(tmp_path, change).differences
    assert len(differences) == 1 and result in differences[0], differences


def test_job_that_takes_too_long_and_ignores_sigterm_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(same_bits_runs, "LIMIT_SECONDS", 2)
    monkeypatch.setattr(same_bits_runs, "GRACE_SECONDS", 0.1)
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with pytest.raises(same_bits_runs.JobError, match="no result within 2 s"):
        same_bits_runs.finish([sys.executable, "-c", program], dict(os.environ), ".")


def test_times_and_ranks_are_ignored(tmp_path: Path) -> None:
    def change(run: Run) -> None:
        run.rows[0].update(seconds_total=9.0, ranks=1, predict_microseconds_mean=None)
        run.counters["seconds"] = 9.0

    result = compared(tmp_path, change)
    assert (result.differences, result.added) == ((), ())
    assert result.generations == 1 and result.sha256[0] == result.sha256[1]


def test_additions_are_reported_but_not_a_difference(tmp_path: Path) -> None:
    def change(run: Run) -> None:
        run.rows[0]["solved"] = 1
        run.counters["restarts"] = 0

    result = compared(tmp_path, change)
    assert not result.differences
    assert [text.split(": ")[-1] for text in result.added] == [
        "counter restarts is new",
        "column solved is new",
    ]


def test_program_with_another_result_differs(tmp_path: Path) -> None:
    for name, value in (("before", "0x1.8p+0"), ("after", "0x1.8000000000001p+0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps({"snes": [[value]]}))
    assert compare(tmp_path / "before", tmp_path / "before").differences == ()
    result = compare(tmp_path / "before", tmp_path / "after")
    assert result.differences == ('record: snes: [["0x1.8p+0"]], then [["0x1.8000000000001p+0"]]',)


def test_every_committed_config_has_a_case_or_a_reason() -> None:
    cases, skipped = all_cases(ROOT)
    names = [case.name for case in cases]
    assert len(names) == len(set(names))
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} <= {*names, *skipped}
    assert {case.begins_from for case in cases} - {None} <= set(names)
    assert all((ROOT / case.config).exists() for case in cases)


def test_every_kind_has_a_case() -> None:
    cases, skipped = all_cases(ROOT)
    kinds_used: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for case in cases:
        if case.config:
            # Modules of the benchmark itself are on the path of its jobs only.
            overrides = [word for word in case.words if "same_bits_" not in word]
            config = load(ROOT / case.config, overrides)
            for package, section in PACKAGES.items():
                kinds_used[package].add(getattr(getattr(config, section), "kind", ""))
    if "es_jax_cartpole" in skipped:
        kinds_used["tasks"].add("jax_episodes")
    for package, kind in (("policies", "network"), ("tasks", "model"), ("noise", "portable")):
        # newer than the older version, and without a config of the package
        kinds_used[package].add(kind)
    missing = {package: set(kinds(package)) - used for package, used in kinds_used.items()}
    assert not any(missing.values()), missing


def test_older_version_runs_with_the_option_of_a_custom_kind_renamed() -> None:
    cases = [case for case in all_cases(ROOT)[0] if case.newer_words]
    named = {case.name.removeprefix("option_") for case in cases}
    assert named == {"close_at", "updates", "side_by_side"}
    for case in cases:
        (option,) = (name for name in named if name in case.name)
        assert option not in "".join(case.words)
        assert option in "".join(case.newer_words)


def test_tuning_is_compared_at_its_first_trial(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/base.yaml").write_text("{algorithm: {}, task: {}}")
    space = "{a: [[x, y], [z]], b: {log_uniform: [0.5, 2]}, c: [null], stop.episodes: [9]}"
    (tmp_path / "configs/tune_it.yaml").write_text(f"base: base.yaml\nspace: {space}\n")
    cases, _ = all_cases(tmp_path)
    result = next(case for case in cases if case.name == "tune_it")
    assert (result.config, result.words) == ("configs/base.yaml", ("a=[x, y]", "b=0.5", "c=null"))


@pytest.mark.parametrize(("high", "result"), [(0.5, ()), (0.25, ("return_min",))])
def test_names_and_signs_of_values_are_those_of_earlier_returns(
    high: float, result: tuple[str, ...], tmp_path: Path
) -> None:
    """Of a minimised function the lowest return is the highest value."""
    before, after = Run(), Run()
    before.rows[0].update(return_mean=-0.25, return_min=-0.5, return_max=-0.0, episodes_total=4)
    after.rows[0].pop("return_mean")
    after.rows[0].update(value_mean=0.25, value_max=high, value_min=0.0, evaluations_total=4)
    paths = [run.write(tmp_path / name) for run, name in ((before, "before"), (after, "after"))]
    (paths[1] / "status.json").write_text('{"goal": "minimise"}')
    found = compare(*paths)
    assert len(found.differences) == len(result) and not found.added
    assert all(name in text for name, text in zip(result, found.differences, strict=True))
