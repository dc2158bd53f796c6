"""Curves of searches for programs: best reward against programs executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpc_es import cli
from hpc_es.core.errors import UserError
from hpc_es.report.curves import grouped, load, population
from hpc_es.report.plot import figure, plot
from hpc_es.storage.metrics_log import MetricsLog
from tests.report.test_plot import make as episodes


def search(
    path: Path, rewards: Sequence[float], solved: bool = False, measured: Sequence[dict[str, float]] = (), **config: Any
) -> Path:
    """A run of 50 programs, 1,000 characters and one second a generation."""
    path.mkdir(parents=True)
    task = {"kind": "programs", "name": "reverse", "cycle": None, **config.pop("task", {})}
    resolved = {"name": "demo", "seed": 0, "algorithm": {"kind": "ga", "stop_on_success": True}, **config, "task": task}
    (path / "config.yaml").write_text(yaml.safe_dump(resolved))
    log = MetricsLog(path)
    for number, reward in enumerate(rewards, 1):
        last = solved and number == len(rewards)
        totals = {"episodes_total": 50 * number, "timesteps_total": 1000 * number, "seconds_total": float(number)}
        more = measured[number - 1] if measured else {}
        row = {"generation": number - 1, "return_mean": None, "best_reward": reward, "solved": float(last)}
        log.write({**row, **totals, **more})
    log.close()
    return path


def test_a_single_run_is_its_best_reward_by_programs(tmp_path: Path) -> None:
    (group,) = grouped([load(search(tmp_path / "a", [0.25, 0.5, 0.5]))])
    curve = population(group, "programs")
    assert (curve.x.tolist(), curve.mean.tolist()) == ([50, 100, 150], [0.25, 0.5, 0.5])
    assert np.isnan(curve.spread).all()
    drawn = figure([group], group.measure.panels, None)
    assert [ax.get_xlabel() for ax in drawn.axes] == ["programs executed", "wall time (seconds)"]
    assert drawn.axes[0].get_ylabel() == "best reward"
    texts = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
    assert texts == ["best so far", "demo"]
    assert drawn.legends[0].get_title().get_text() == "reverse"


def test_below_is_how_broad_a_search_by_a_network_is(tmp_path: Path) -> None:
    measured = [{"token_entropy": 2.0 / n, "distinct_programs": 64.0 / n} for n in (1, 2, 4)]
    (group,) = grouped([load(search(tmp_path / "a", [0.25, 0.5, 0.5], measured=measured))])
    drawn = figure([group], ("programs",), None)
    entropy, distinct = drawn.axes[1].get_lines()
    assert np.asarray(entropy.get_xydata()).tolist() == pytest.approx(np.array([[50, 2], [100, 1], [150, 0.5]]))
    assert np.asarray(distinct.get_ydata()).tolist() == pytest.approx([64, 32, 16])
    texts = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
    assert texts == ["best so far", "entropy per token", "distinct programs per batch", "demo"]


def test_of_several_runs_those_that_succeeded_keep_their_best_reward(tmp_path: Path) -> None:
    """The first ends at 100 with 1, the second goes on to 200: means of (0, 0), (1, 0), (1, 0.5), (1, 0.5)."""
    runs = [search(tmp_path / "a", [0, 1], solved=True, seed=1), search(tmp_path / "b", [0, 0, 0.5, 0.5], seed=2)]
    (group,) = grouped([load(run) for run in runs])
    curve = population(group, "programs")
    assert (curve.x.tolist(), curve.mean.tolist(), curve.runs) == ([50, 100, 150, 200], [0, 0.5, 0.75, 0.75], 2)
    texts = [text.get_text() for legend in figure([group], ("programs",), None).legends for text in legend.get_texts()]
    assert texts == ["best so far, mean over runs", "± std over runs", "demo (2 seeds)"]


def test_a_run_that_may_still_get_better_is_not_prolonged(tmp_path: Path) -> None:
    on = {"algorithm": {"kind": "ga", "stop_on_success": False}}
    runs = [
        search(tmp_path / "a", [0, 1], solved=True, seed=1, **on),
        search(tmp_path / "b", [0, 0, 1], seed=2, **on),
    ]
    (group,) = grouped([load(run) for run in runs])
    assert population(group, "programs").x.tolist() == [50, 100]


def test_repetitions_with_a_cycle_are_a_line_a_task(tmp_path: Path) -> None:
    cycle = {"name": None, "cycle": ["add", "echo"]}
    runs = [search(tmp_path / f"repetition_{number:04d}", [0.5], task=cycle) for number in range(3)]
    groups = grouped([load(run) for run in runs])
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("demo, task.name add", 2),
        ("demo, task.name echo", 1),
    ]


def test_what_does_not_go_into_one_picture(tmp_path: Path) -> None:
    found, played = search(tmp_path / "a", [0.5]), episodes(tmp_path / "b", [1.0])
    with pytest.raises(UserError, match=r"a has a best reward, .*b has a return per episode: plot them separately"):
        plot([found, played], tmp_path / "out.png")
    with pytest.raises(UserError, match="--x is timesteps: expected programs or seconds for the best reward"):
        cli.run(["plot", str(found), "-o", str(tmp_path / "out.png"), "--x", "timesteps"])
    assert cli.run(["plot", str(found), "-o", str(tmp_path / "out.png"), "--x", "programs"]) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
