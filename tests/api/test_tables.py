"""hpc_es.results: what runs have written, as arrays with named columns."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

import hpc_es
from hpc_es.api.tables import table
from hpc_es.core.errors import ConfigError, UserError
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
        assert row["value"] == own["value"].min() and row["evaluations"] >= 24


def test_paths_are_below_the_directory_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tmp_path / "runs/one"
    one.mkdir(parents=True)
    (one / "status.json").write_text("{}")
    (one / "metrics.jsonl").write_text('{"generation": 0}\n')
    monkeypatch.chdir(tmp_path)
    for given, path in [("runs", "runs/one"), ("./runs/one/", "runs/one"), (one, str(one))]:
        found = hpc_es.results(given)
        assert found.runs["path"].tolist() == [path] == found.metrics["path"].tolist()
    found = hpc_es.results("runs")
    monkeypatch.chdir("/")
    assert found.runs["path"].tolist() == ["runs/one"]


def test_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a run, or a directory of runs, found none"):
        hpc_es.results(tmp_path)
    with pytest.raises(UserError, match="nowhere: no such directory"):
        hpc_es.results(tmp_path / "nowhere")


def written(tmp_path: Path, config: str, evaluations: str, metrics: str = "") -> hpc_es.Results:
    """Return the results of a run with these files."""
    (tmp_path / "status.json").write_text('{"status": "finished", "generation": 1}')
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "evaluations.csv").write_text(f"generation,job,value,{evaluations}")
    (tmp_path / "metrics.jsonl").write_text(metrics)
    return hpc_es.results(tmp_path)


def test_categories_stay_as_they_were_given(tmp_path: Path) -> None:
    config = """task: {kind: function, parameters: {
        code: {choices: ["01", "1", "1_0", "nan"]}, size: {choices: [8, 16]}, on: {boolean: true}}}"""
    found = written(tmp_path, config, "code,size,on\n0,0,1.0,01,8,true\n0,1,2.5,1,16,false\n")
    rows = found.evaluations
    assert rows["code"].tolist() == ["01", "1"]
    assert rows["size"].tolist() == [8, 16] and rows["on"].tolist() == [True, False]
    assert rows["value"].tolist() == [1.0, 2.5]


def test_text_that_only_looks_like_a_number_is_text(tmp_path: Path) -> None:
    rows = written(tmp_path, "{}", "a,b\n0,0,1e-05,1_0,-3\n0,1,-inf,2,4\n").evaluations
    assert rows["a"].tolist() == ["1_0", "2"] and rows["b"].tolist() == [-3, 4]
    assert rows["value"].tolist() == [1e-05, -np.inf]


def test_parameter_called_path_leaves_that_of_the_run(tmp_path: Path) -> None:
    metrics = '{"generation": 0, "path": 5}\n'
    found = written(tmp_path, "{}", "path\n0,0,1.0,7\n", metrics)
    assert found.evaluations["path"].tolist() == found.metrics["path"].tolist() == [str(tmp_path)]
    assert found.evaluations["path_"].tolist() == [7] and found.metrics["path_"].tolist() == [5]


def test_long_and_large_cells(tmp_path: Path) -> None:
    cell, large = "a" * 100_000, "1" + "0" * 400
    lines = [f"0,0,{large},{cell}\n", *["0,0,-1.0,b\n"] * 1000]
    rows = written(tmp_path, "{}", "x\n" + "".join(lines), f'{{"a": {large}}}\n')
    table = rows.evaluations
    assert table.nbytes < 1e6 and table["x"][:2].tolist() == [cell, "b"]
    assert table["value"][:2].tolist() == [np.inf, -1.0]
    assert rows.metrics["a"].tolist() == [np.inf]


@pytest.mark.parametrize("evaluations", ["x\n0,0,1," + "9" * 200_000 + "\n", ",x\n0,0,1,2,3\n"])
def test_damaged_table_is_named(evaluations: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluations.csv"):
        _ = written(tmp_path, "{}", evaluations).evaluations


def test_table_of_many_rows_takes_seconds() -> None:
    """Its time grew with the square of the rows: 12 s for these."""
    since = time.process_time()
    assert len(table({f"c{i}": i for i in range(12)} for _ in range(40_000))) == 40_000
    assert time.process_time() - since < 5


def test_damaged_run_hides_no_other(tmp_path: Path) -> None:
    written(tmp_path, "{}", "x\n0,0,1.0,2\n", '{"generation": 0}\n')
    bad = tmp_path / "bad\x1b[31m"
    bad.mkdir()
    written(bad, "{}", "x,\n0,0,1,2,3\n", '{"generation": 7, "other": 1}\ndamaged\n')
    with pytest.warns(UserWarning, match=r"bad\\x1b\[31m is left out: .*has a column without"):
        assert hpc_es.results(tmp_path).evaluations["x"].tolist() == [2]
    with pytest.warns(UserWarning, match=r"is left out: .*metrics.jsonl, line 2: expected a JSON"):
        found = hpc_es.results(tmp_path).metrics
    assert found.dtype.names == ("path", "generation") and found["generation"].tolist() == [0]
    (bad / "evaluations.csv").write_bytes(b"x\n\xff\n")  # no text
    with pytest.warns(UserWarning, match="left out"):
        assert len(hpc_es.results(tmp_path).evaluations) == 1
    with pytest.raises(UserError, match="UnicodeDecodeError"):
        _ = hpc_es.results(bad).evaluations


@pytest.mark.long
def test_rows_whose_table_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    wide = json.dumps({f"k{number}": number for number in range(20_000)})
    rows = "\n".join([wide, *["{}"] * 20_000, ""])
    with pytest.raises(UserError, match=r"501 rows have 20,000 .*, 10,020,000 cells for 20,000"):
        _ = written(tmp_path, "{}", "", rows).metrics


@pytest.mark.parametrize("choices", ['[1, "1"]', '["true", true]', '[2.5, "2.5"]'])
def test_categories_that_look_the_same_in_the_table_are_refused(choices: str) -> None:
    config = {"task": {"kind": "function", "function": "statistics:fmean"}}
    config["task"]["parameters"] = {"a": {"choices": json.loads(choices)}}  # type: ignore[assignment]
    config |= {"algorithm": {"kind": "cma_es"}, "stop": {"generations": 1}}  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"choices: has .* and the text .* evaluations.csv"):
        list(hpc_es.train(config))
