"""hpc_es.results: what runs have written, as arrays with named columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hpc_es
from hpc_es.api.tables import table
from hpc_es.core.errors import UserError
from tests.helpers import runs
from tests.helpers.harness import python
from tests.helpers.trained import run

OBJECTIVE = """
name: valley
task: {kind: function, function: "valley:cost", deterministic: true, parameters: {a: {low: -2, high: 3}, b: {choices: [1, 2]}}}
algorithm: {kind: cma_es, sigma: 0.5, population_size: 8}
repetitions: 2
stop: {generations: 3}
report: {plot_interval_seconds: 0}
"""


def test_rows_become_columns_of_their_types() -> None:
    array = table([{"a": 1, "b": True, "c": "x"}, {"a": 2, "b": False, "d": 0.5}])
    assert [(name, array.dtype[name].kind) for name in array.dtype.names] == [
        *(("a", "i"), ("b", "b"), ("c", "U"), ("d", "f"))
    ]
    assert array["a"].tolist() == [1, 2] and array["c"].tolist() == ["x", ""]
    np.testing.assert_array_equal(array["d"], [np.nan, 0.5])
    assert table([{"n": 1}, {}])["n"].dtype == np.float64  # since it may be NaN
    assert len(table([])) == 0


def test_runs_of_a_policy(tmp_path: Path) -> None:
    path = run("name=one")
    found = hpc_es.results(path)
    assert found.runs["algorithm"].tolist() == ["es"] and found.runs["state"].tolist() == [
        "finished"
    ]
    assert found.runs["generations"].tolist() == [2] and found.runs["goal"].tolist() == ["maximise"]
    rows = runs.rows(path)
    assert found.metrics["generation"].tolist() == [0, 1]
    assert found.metrics["return_mean"].tolist() == [row["return_mean"] for row in rows]
    assert len(found.evaluations) == 0


def test_evaluations_of_repetitions(tmp_path: Path) -> None:
    (tmp_path / "valley.yaml").write_text(OBJECTIVE)
    (tmp_path / "valley.py").write_text("def cost(a, b):\n    return (a - 1) ** 2 + b\n")
    command = ["-m", "hpc_es.main", "valley.yaml", "--output", "runs/valley"]
    done = python(command, cwd=tmp_path)
    assert done.status == 0, str(done)
    found = hpc_es.results(tmp_path / "runs")
    assert [Path(path).name for path in found.runs["path"]] == [
        "repetition_0000",
        "repetition_0001",
    ]
    assert found.runs["repetition"].tolist() == [0, 1] and found.runs["seed"].tolist() == [0, 0]
    trained = found.evaluations[found.evaluations["job"] >= 0]
    assert len(trained) == 2 * 3 * 8 and set(trained["b"]) == {1, 2}
    for row in found.runs:
        own = found.evaluations[found.evaluations["path"] == row["path"]]
        assert row["value"] == own["value"].min() and row["episodes"] >= 24


def test_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a run, or a directory of runs, found none"):
        hpc_es.results(tmp_path)
