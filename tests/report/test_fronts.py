"""What pictures and reports show of fronts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import UserError
from hpc_es.report.front_sections import _Axis, _front
from hpc_es.report.fronts import SavedFront, height_of, pairs_of, read_front, scaled_to_best
from hpc_es.report.plot import plot
from tests.helpers.harness import python

COSTS = """
import numpy as np

def costs(x):
    return [float((x - corner) @ (x - corner)) for corner in np.eye(len(x))]
"""


def run_of(directory: Path, objectives: int, name: str = "run", **more: Any) -> Path:
    (directory / "corners.py").write_text(COSTS)
    goals: dict[str, Any] = {f"f{number}": "minimise" for number in range(objectives)}
    config = {
        "task": {
            "kind": "function",
            "function": "corners:costs",
            "dimension": objectives,
            "objectives": goals,
            "bounds": {"low": 0, "high": 1},
        },
        "algorithm": {"kind": "nsga2", "population_size": 12},
        "stop": {"generations": 4},
        **more,
    }
    list(hpc_es.train(config, directory / name))
    return directory / name


def test_front_is_read_with_its_names_and_directions() -> None:
    values = np.array([[0.0, 10.0], [2.0, 30.0]])
    front = SavedFront(
        ["a", "b"], [False, True], values, ["g0j0", "g0j1"], ["best a", "knee, best b"]
    )
    assert front.knee == 1 and front.label(1) == "b (higher is better)"
    assert scaled_to_best(front, values.min(axis=0), values.max(axis=0)).tolist() == [
        [1, 0],
        [0, 1],
    ]
    assert pairs_of(front) == [(0, 1)] and height_of([]) == 0 < height_of([front])


@pytest.mark.long
@pytest.mark.parametrize("objectives", [2, 3, 6])
def test_pictures_of_fronts(
    objectives: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_of(tmp_path, objectives)
    front = read_front(
        run, {"task": {"objectives": dict.fromkeys("abcdefgh"[:objectives], "maximise")}}
    )
    assert front is not None and all(front.maximised) and front.values.shape[1] == objectives
    plot([run], tmp_path / "front.svg")
    text = (tmp_path / "front.svg").read_text()
    label = "hypervolume (higher is better)" if objectives < 6 else "members of the front"
    assert label in text and "knee" in text
    assert ("f0 (lower is better)" in text) == (objectives < 6)
    (run / "front.npz").write_bytes(b"PK damaged")
    assert read_front(run, {}) is None
    plot([run], tmp_path / "again.svg")  # without the front


@pytest.mark.long
def test_fronts_of_episodes_are_drawn_against_timesteps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of_function = run_of(tmp_path, 2)
    end = {"from": "observation.0", "goal": "maximise", "reference": -10}
    config = {
        "task": {
            "env_id": "CartPole-v1",
            "max_episode_steps": 10,
            "objectives": {"place": end, "angle": {**end, "from": "observation.2"}},
        },
        "policy": {"hidden_dims": []},
        "algorithm": {"kind": "nsga2", "population_size": 4},
        "stop": {"generations": 2},
    }
    list(hpc_es.train(config, tmp_path / "episodes"))
    plot([tmp_path / "episodes"], tmp_path / "front.svg")
    text = (tmp_path / "front.svg").read_text()
    assert "<!-- timesteps -->" in text and "<!-- evaluations -->" not in text
    plot([tmp_path / "episodes"], tmp_path / "front.svg", x="evaluations")
    assert "<!-- episodes -->" in (tmp_path / "front.svg").read_text()
    with pytest.raises(UserError, match="expected evaluations, seconds or generation"):
        plot([of_function], tmp_path / "front.svg", x="timesteps")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("choice", np.array([1])),
        ("member", np.array("g1j1")),
        ("member", np.array([b"g1j1"])),
        ("objectives", np.array([[1e308, -1e308]])),
        ("objectives", np.array([[1.0, np.nan]])),
        ("objectives", np.zeros((1, 3000))),
        ("objectives", np.zeros((1, 0))),
    ],
)
def test_front_that_cannot_be_drawn_is_left_out(tmp_path: Path, name: str, array: Any) -> None:
    good: dict[str, Any] = {
        "objectives": np.array([[1.0, 2.0]]),
        "member": np.array(["g1j1"]),
        "choice": np.array(["knee"]),
    }
    np.savez(tmp_path / "front.npz", **good)
    assert read_front(tmp_path, {}) is not None
    np.savez(tmp_path / "front.npz", **{**good, name: array})
    assert read_front(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 10.0], [0, 2, 4, 6, 8, 10]),
        ([0.0104, 1.912], [0.02, 0.05, 0.1, 0.2, 0.5, 1]),
        ([5.231, 93557.0], [10, 30, 100, 300, 1000, 3000, 10000, 30000]),
        ([1.0, 1e15], [1, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12, 1e14]),
        ([3.0, 3.0], [3]),
    ],
)
def test_axes_of_fronts_have_round_ticks(values: list[float], ticks: list[float]) -> None:
    axis = _Axis(np.array(values), 10.0, 110.0)
    assert axis.ticks() == pytest.approx(ticks)
    assert axis.is_log == (values[0] > 0 and values[1] > 100 * values[0])
    places = [axis.at(tick) for tick in axis.ticks()]
    assert places == sorted(places) and all(10 <= place <= 110 for place in places)


@pytest.mark.long
def test_report_has_a_section_with_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_of(tmp_path, 3)
    ended = python(["-m", "hpc_es", "report", str(run), "-o", str(tmp_path / "r.html")])
    assert ended.status == 0, ended.stderr
    page = (tmp_path / "r.html").read_text()
    front = page[page.index('class="front"') : page.index("</figure>", page.index('class="front"'))]
    members = read_front(run, {})
    assert members is not None
    assert front.count('type="range"') == 3
    # a dot in each of three pairs, a line and a row of the table
    assert front.count("data-shares") == 5 * len(members.members)
    assert front.count('class="knee"') == 4
    for svg in re.findall(r"<svg.*?</svg>", front, re.DOTALL):
        ElementTree.fromstring(svg)
    best = page[page.index("Best solutions") :]
    for choice in ("knee", "best f0", "best f1", "best f2"):
        assert f"{choice}: f0 " in best or f"{choice}, " in best, choice


@pytest.mark.long
def test_runs_with_a_front_and_others_are_not_drawn_in_one_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    both = [run_of(tmp_path, 2, "a"), run_of(tmp_path, 2, "b", seed=2)]
    assert plot(both, tmp_path / "two.png") == []
    assert (tmp_path / "two.png").stat().st_size > 10_000


def test_compressed_front_is_left_out_and_vectors_are_not_read(tmp_path: Path) -> None:
    good: dict[str, Any] = {
        "objectives": np.array([[1.0, 2.0]]),
        "member": np.array(["g1j1"]),
        "choice": np.array(["knee"]),
    }
    np.savez(tmp_path / "front.npz", vectors=np.array([None]), **good)  # objects cannot be read
    assert read_front(tmp_path, {}) is not None
    # 8 MB of such a file expand to 8 GB
    np.savez_compressed(tmp_path / "front.npz", vectors=np.zeros((1, 10**6)), **good)
    assert read_front(tmp_path, {}) is None


def test_large_front_is_thinned(tmp_path: Path) -> None:
    count, knee = 300_000, 12_345
    x = np.linspace(0, 1, count)
    choices = [""] * count
    choices[knee] = "knee"
    front = SavedFront(
        ["a", "b"],
        [False, False],
        np.stack([x, 1 - x], axis=1),
        [f"g0j{row}" for row in range(count)],
        choices,
    )
    thin = front.thinned(1000)
    assert 1000 <= len(thin.members) <= 1005 and front.thinned(count) is front
    assert thin.knee is not None and thin.members[thin.knee] == f"g0j{knee}"
    assert thin.values.min(axis=0).tolist() == [0, 0] and thin.values.max(axis=0).tolist() == [1, 1]
    page = ElementTree.tostring(_front(front, "run", 0, 0), "unicode")
    assert f"300,000 members, of which {len(thin.members):,} are shown (front.csv has all)" in page
    assert page.count("data-shares") == 2 * len(thin.members)
