"""The best vector of an objective in inspect and export, its curve, and the output of --check."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.core.errors import CheckpointError, UserError
from hpc_es.report.curves import load
from hpc_es.report.drawn import Style
from hpc_es.report.export import ExportOptions, export_vector
from hpc_es.report.plot import figure, grouped, plot
from hpc_es.storage.metrics_log import MetricsLog
from hpc_es.trained.policy import load_policy
from tests.helpers import trained
from tests.helpers.harness import python

Created = Callable[..., Path]


@pytest.fixture
def created(tmp_path: Path) -> Created:
    """Make a finished run of a + 2 b, or of another function of a vector."""
    (tmp_path / "report_model.py").write_text(
        "def line(a, b): return a + 2 * b\n"
        "def power(x): return 10.0 ** (4 * x[0])\n"
        "def above(x): return 9 + x[0]\n"
        "def below(x): return -x[0] - 9\n"
    )

    def run(name: str = "run", seed: int = 0, **task: Any) -> Path:
        parameters = {"parameters": {"a": {"low": 1, "high": 3}, "b": {"low": 4, "high": 8}}}
        shape = (
            parameters if not task else {"dimension": 1, "bounds": {"low": -1, "high": 1}, **task}
        )
        config = {
            "name": name,
            "seed": seed,
            "directory": str(tmp_path),
            "task": {"kind": "function", "function": "report_model:line", **shape},
            "algorithm": {
                "population_size": 8,
                "sigma": 0.3,
                "optimizer": {"kind": "adam", "learning_rate": 0.3},
            },
            "noise": {"kind": "counter"},
            "evaluation": {"interval": 1},
            "stop": {"generations": 6},
            "report": {"plot_interval_seconds": 0},
        }
        assert len(list(hpc_es.train(config, tmp_path / name))) == 6
        return tmp_path / name

    return run


def read_png_size(path: Path) -> Any:
    """Width and height in pixels."""
    return struct.unpack(">II", path.read_bytes()[16:24])


def rows(run: Path) -> list[list[float]]:
    lines = (run / "evaluations.csv").read_text().splitlines()[1:]
    return [[float(cell) for cell in line.split(",")] for line in lines]


@pytest.mark.long
def test_inspect_shows_the_best_of_all_evaluations_by_name(
    created: Created, capsys: pytest.CaptureFixture[str]
) -> None:
    run = created()
    generation, job, value, a, b = min(rows(run), key=lambda row: row[2])
    capsys.readouterr()
    assert cli.run(["inspect", str(run), "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best_vector"]
    assert best == {"value": value, "x": {"a": a, "b": b}, "generation": generation, "job": job}
    assert value == a + 2 * b
    assert cli.run(["inspect", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"value {value:,}, x a {a:,}, b {b:,}" in out and re.search(r"seconds \d+\.\d,", out)


@pytest.mark.long
def test_export_writes_the_best_vector(created: Created, tmp_path: Path) -> None:
    run = created()
    best = min(rows(run), key=lambda row: row[2])
    for output in (tmp_path / "best.json", tmp_path / "best.npy"):
        assert cli.run(["export", str(run), str(output)]) == 0
    message = json.loads((tmp_path / "best.json").read_text())
    assert (message["value"], list(message["x"].values())) == (best[2], best[3:])
    x = np.load(tmp_path / "best.npy")
    assert x.dtype == np.float64 and x.tolist() == best[3:]


WELLS = """
import numpy as np
from hpc_es.extend import *

class Wells(VectorProblemDefaults):
    layout = Layout({"positions": (3,)})

    def __init__(self, options):
        self.dtype = np.dtype(options.dtype)

    def initial(self, rng):
        return np.ones(3, self.dtype)

    def evaluate(self, population, jobs, carried, poll):
        rows = np.zeros(len(jobs), row_dtype())
        rows["length"], rows["return_"] = 1, -(population.stacked() ** 2).sum(axis=1)
        return Outcome(rows)

class Task:
    OFFERS = Offers(problems=("vectors",))

    @options
    class Options:
        kind: str = option("this class", "wells_to_export:Task")
        dtype: str = option("dtype of the vector", "float64")

    @staticmethod
    def build(options, repetition=0):
        return VectorTask("wells", lambda keys: Wells(options))
"""


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("which", ["best", "last"])
def test_export_writes_the_vector_of_a_custom_task(
    dtype: str, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wells_to_export.py").write_text(WELLS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    config = {
        "directory": str(tmp_path),
        "task": {"kind": "wells_to_export:Task", "dtype": dtype},
        "algorithm": {"kind": "es", "population_size": 8, "sigma": 0.1},
        "noise": {"kind": "counter"},
        "evaluation": {"interval": 3},
        "stop": {"generations": 5},
        "report": {"plot_interval_seconds": 0},
    }
    thetas = [np.ones(3)]
    with hpc_es.train(config, tmp_path / "run") as run:
        thetas += [run.theta.copy() for _ in run]
    theta = thetas[-1]
    if which == "best":  # of the centres before generations 0 and 3
        theta = min(thetas[0], thetas[3], key=lambda x: float((x**2).sum()))
    for suffix in ("npy", "json"):
        assert (
            cli.run(
                ["export", str(tmp_path / "run"), str(tmp_path / f"x.{suffix}"), "--which", which]
            )
            == 0
        )
    x = np.load(tmp_path / "x.npy")
    assert x.dtype == dtype and x.tolist() == theta.tolist()
    assert json.loads((tmp_path / "x.json").read_text())["x"] == theta.tolist()


@pytest.mark.long
def test_all_checkpoints_of_a_function_are_refused_with_what_shows_the_answer(
    created: Created,
) -> None:
    done = python(["-m", "hpc_es", "eval", str(created()), "--all"])  # it ends its process
    text = r"holds no policy; hpc-es inspect shows .*, hpc-es export RUN best\.npy"
    assert done.status == 2 and re.search(text, done.stderr), str(done)


def test_export_writes_the_parameters_of_a_policy(tmp_path: Path) -> None:
    assert (
        cli.run(["export", str(trained.run()), str(tmp_path / "theta.npy"), "--which", "last"]) == 0
    )
    assert (
        np.load(tmp_path / "theta.npy").tolist()
        == load_policy(trained.run(), "last").source.theta.tolist()
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "scale"), [("power", "log"), ("above", "linear"), ("below", "linear")]
)
def test_value_axis_is_logarithmic_for_wide_ranges(
    function: str, scale: str, created: Created
) -> None:
    run = created(f"run_{function}", function=f"report_model:{function}", initial=0.9)
    left, right = figure(grouped([load(run)]), ("evaluations", "seconds"), None).axes
    assert left.get_yscale() == right.get_yscale() == scale
    assert (left.get_xlabel(), left.get_ylabel()) == ("evaluations", "best value (lower is better)")
    (line,) = left.get_lines()
    values = [min(row[2] for row in rows(run) if row[0] <= generation) for generation in range(6)]
    assert list(line.get_xdata()) == [9, 18, 27, 36, 45, 54] and list(line.get_ydata()) == values


@pytest.mark.long
def test_curves_of_several_runs_are_averaged_with_their_spread(created: Created) -> None:
    several = [load(created(f"run_{seed}", seed)) for seed in range(3)]
    (ax,) = figure(grouped(several), ("evaluations",), None).axes
    *single, line = ax.get_lines()  # the runs are thin lines
    assert len(single) == len(several)
    values = np.array([run.series("timesteps_total", "best_value")[1] for run in several])
    assert np.allclose(line.get_ydata(), values.mean(axis=0)) and len(ax.collections) == 1


SHRINKING = ({"sigma": 1.0, "axis_ratio": 1.0}, {"sigma": 0.01, "axis_ratio": 100.0})


def searched(
    path: Path,
    distributions: Sequence[Mapping[str, float | None]],
    seed: int = 0,
    kind: str = "cma_es",
) -> Path:
    """A run directory with these metrics, a generation of ten evaluations each."""
    path.mkdir()
    (path / "config.yaml").write_text(
        f"name: search\nseed: {seed}\nalgorithm: {{kind: {kind}}}\ntask: {{kind: function}}\n"
    )
    log = MetricsLog(path)
    for generation, numbers in enumerate(distributions, start=1):
        log.write(
            {
                "best_value": 1.0,
                "timesteps_total": 10 * generation,
                "seconds_total": 1.0 * generation,
                **numbers,
            }
        )
    log.close()
    return path


def test_step_size_is_plotted_below_the_values_and_the_axis_ratio_in_a_panel_of_its_own(
    tmp_path: Path,
) -> None:
    run = searched(tmp_path / "run", SHRINKING)
    groups = grouped([load(run)])
    drawn = figure(groups, ("evaluations", "seconds"), None)
    _, _, left, right = drawn.axes
    assert left.get_yscale() == right.get_yscale() == "log"
    assert left.get_xlabel() == "evaluations" and right.get_xlabel() == "wall time (seconds)"
    (line,) = left.get_lines()
    assert list(line.get_xdata()) == [10, 20] and list(line.get_ydata()) == pytest.approx([1, 0.01])
    assert left.get_ylabel() == "step size sigma"
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == ["best value so far"]
    chosen = figure(groups, ("evaluations",), None, Style(panels=("axis_ratio",)))
    (line,) = chosen.axes[0].get_lines()
    assert list(line.get_ydata()) == pytest.approx([1, 100])
    assert chosen.axes[0].get_ylabel() == "longest axis / shortest axis"
    plot([run], tmp_path / "curve.png")
    assert read_png_size(tmp_path / "curve.png") == (1200, 750)


def test_step_sizes_of_several_runs_are_averaged_as_factors(tmp_path: Path) -> None:
    """1 and 4 give 2; 0.01 and 0.01 give 0.01. A ratio that no run has is not plotted."""
    runs = [
        searched(tmp_path / str(seed), [{"sigma": first}, {"sigma": 0.01}], seed)
        for seed, first in enumerate((1.0, 4.0))
    ]
    drawn = figure(grouped([load(run) for run in runs]), ("evaluations",), None)
    *seeds, line = drawn.axes[1].get_lines()
    assert len(seeds) == 2 and list(line.get_ydata()) == pytest.approx([2, 0.01])


def test_restarts_and_paths_are_plotted_and_constants_are_not(tmp_path: Path) -> None:
    numbers = [
        {"restarts": n, "path_length": p, "axis_ratio": 3.0}
        for n, p in ((0, 1.0), (0, 0.5), (1, 2.0))
    ]
    groups = grouped([load(searched(tmp_path / "run", numbers))])
    drawn = figure(groups, ("evaluations",), None, Style(panels=("value", "path_length")))
    path, restart = drawn.axes[1].get_lines()
    assert list(path.get_ydata()) == pytest.approx([1, 0.5, 2]) and list(restart.get_xdata()) == [
        30,
        30,
    ]
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == ["best value so far", "restart"]
    with pytest.raises(UserError, match="--panels axis_ratio: expected value, path_length"):
        figure(groups, ("evaluations",), None, Style(panels=("axis_ratio",)))


def test_violation_and_feasible_share_are_plotted_and_infeasible_values_are_not(
    tmp_path: Path,
) -> None:
    numbers = [
        {"best_value": value, "best_violation": violation, "feasible_share": share}
        for value, violation, share in (
            (0.5, 2.0, 0.0),
            (0.7, 1.0, 0.0),
            (5.0, 0.0, 0.25),
            (4.0, 0.0, 0.5),
        )
    ]
    groups = grouped([load(searched(tmp_path / "run", numbers))])
    panels = ("value", "best_violation", "feasible_share")
    drawn = figure(groups, ("evaluations",), None, Style(panels=panels))
    (value,) = drawn.axes[0].get_lines()
    assert list(value.get_xdata()) == [30, 40] and list(value.get_ydata()) == [5, 4]
    ((violation,), (share,)) = (ax.get_lines() for ax in drawn.axes[1:])
    assert list(violation.get_xdata()) == [10, 20] and list(violation.get_ydata()) == pytest.approx(
        [2, 1]
    )
    assert list(share.get_xdata()) == [30, 40] and list(share.get_ydata()) == pytest.approx(
        [0.25, 0.5]
    )
    labels = [ax.get_ylabel() for ax in drawn.axes[1:]]
    assert labels == ["violation of the best vector", "share of feasible vectors"]
    never = searched(tmp_path / "never", [{**item, "best_violation": 1.0} for item in numbers])
    (value,) = figure(grouped([load(never)]), ("evaluations",), None).axes[0].get_lines()
    assert len(value.get_ydata()) == 4


def test_archive_size_of_a_policy_search_is_a_panel(tmp_path: Path) -> None:
    numbers = [{"best_value": None, "return_mean": 1.0, "archive_size": size} for size in (2, 3)]
    groups = grouped([load(searched(tmp_path / "run", numbers, kind="novelty"))])
    style = Style(panels=("return", "archive_size"))
    drawn = figure(groups, ("timesteps",), None, style)
    assert drawn.axes[0].get_ylabel() == "return per episode"
    (archive,) = drawn.axes[1].get_lines()
    assert list(archive.get_ydata()) == pytest.approx([2, 3])


def test_search_without_a_distribution_has_one_panel(tmp_path: Path) -> None:
    assert (
        len(
            figure(
                grouped([load(searched(tmp_path / "run", [{}, {}]))]), ("evaluations",), None
            ).axes
        )
        == 1
    )


def test_check_describes_the_search_space(
    created: Created, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "one.yaml"
    config.write_text(
        'task: {kind: function, function: "report_model:power", dimension: 7}\n'
        "algorithm: {kind: es}\nnoise: {kind: counter}\n"
    )
    assert cli.run(["check", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == [
        "  objective report_model:power, of 7 numbers",
        "  numbers without bounds",
        "  an evaluation returns value (minimise)",
    ]


def test_repetitions_are_listed_instead_of_an_export(tmp_path: Path) -> None:
    (tmp_path / "many" / "repetition_0001").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="expected one run: name a repetition"):
        export_vector(tmp_path / "many", tmp_path / "best.npy", ExportOptions())
