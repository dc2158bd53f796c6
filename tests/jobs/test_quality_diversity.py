"""Runs of map_elites, cma_me, cma_mae and dms: the same bits on any ranks and after kills."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.core.errors import CheckpointError
from hpc_es.storage.members import read_member
from tests.helpers.harness import mpiexec, python, start

FUNCTIONS = """
import numpy as np

def f(x):
    return {"value": float(((x - 0.3) ** 2).sum()), "measures": [x[0], np.tanh(x[1:]).mean()]}
"""
TASK = """
task: {kind: function, function: "here:f", dimension: 6, initial: 0.0, measures: {a: [-1, 1], b: [-1, 1]}}
checkpoint: {interval: 2%s}
report: {plot_interval_seconds: 0}
stop: {generations: 12}
seed: 4
"""
KINDS = {
    "map_elites": "kind: map_elites, population_size: 20, sigma: 0.3, archive: {cells: [8, 8]}",
    "cvt": "kind: map_elites, population_size: 20, sigma: 0.3, archive: {kind: cvt, cells: 30}",
    "unstructured": "kind: map_elites, population_size: 20, sigma: 0.3, "
    "archive: {kind: unstructured, cells: 30, distance: 0.2}",
    "cma_me": "kind: cma_me, population_size: 6, sigma: 0.3, archive: {cells: [8, 8]}, "
    "emitters: {improvement: 1, random_direction: 1, optimising: 1}",
    "cma_mae": "kind: cma_mae, population_size: 6, emitters: 3, sigma: 0.3, "
    "archive: {cells: [8, 8], threshold_min: -9}",
    "dms": "kind: dms, population_size: 6, emitters: 3, sigma: 0.3, threshold_min: -9, "
    "threshold_max: 0, archive: {cells: [8, 8]}, discount: {hidden: [16]}",
}


def config(directory: Path, kind: str, increments: bool = False) -> str:
    (directory / "here.py").write_text(FUNCTIONS)
    file = directory / "c.yaml"
    text = TASK % (", full_interval: 5" if increments else "")
    file.write_text(f"{text}algorithm: {{{KINDS[kind]}}}\n")
    return str(file)


def trained(ranks: int, file: str, run: Path, *overrides: str) -> dict[str, Any]:
    ended = mpiexec(ranks, ["-m", "hpc_es.main", file, *overrides, "--output", str(run)])
    assert ended.status == 0, ended.stderr
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_archive_is_the_same_on_any_ranks_and_after_resuming_from_rows(
    kind: str, tmp_path: Path
) -> None:
    """Checkpoints between full ones have the rows only; the archive is computed again."""
    file = config(tmp_path, kind, increments=True)
    whole = trained(1, file, tmp_path / "1")
    for ranks in (3, 5):
        assert trained(ranks, file, tmp_path / f"{ranks}")["state_sha256"] == whole["state_sha256"]
    trained(2, file, tmp_path / "part", "stop.generations=7")
    resumed = trained(3, file, tmp_path / "part")
    assert resumed["state_sha256"] == whole["state_sha256"]
    tables = [(tmp_path / name / "archive.csv").read_bytes() for name in ("1", "3", "part")]
    assert tables[0] == tables[1] == tables[2]
    assert whole["coverage"] * 64 > 5


@pytest.mark.long
@pytest.mark.parametrize("kind", ["map_elites", "cma_mae"])
def test_archive_is_the_same_after_kills(kind: str, tmp_path: Path) -> None:
    """kill -9 of each rank in turn, at different times; most checkpoints have rows only."""
    file, run = config(tmp_path, kind, increments=True), tmp_path / "run"
    slow = FUNCTIONS.replace("import numpy as np", "import time\nimport numpy as np")
    slow = slow.replace("    return", "    time.sleep(0.002)\n    return")
    options = ("checkpoint.interval=1", "stop.generations=40")
    whole = trained(1, file, tmp_path / "whole", *options)
    (tmp_path / "here.py").write_text(slow)
    words = ["-m", "hpc_es.main", file, *options, "--output", str(run)]
    for rank in (0, 1, 2):
        with start(3, words) as job:
            job.wait_for_output("name ", 60)
            time.sleep(0.15 + 0.1 * rank)
            if job.process.poll() is None and rank in job.pids():
                job.signal(rank, signal.SIGKILL)
            job.wait()
    assert trained(2, file, run, *options)["state_sha256"] == whole["state_sha256"]
    assert (run / "archive.csv").read_bytes() == (tmp_path / "whole/archive.csv").read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("archive")
    trained(1, config(directory, "map_elites"), directory / "run")
    return directory / "run"


def test_damaged_archive_is_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    file = copy / "archive.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    name = table(run / "archive.csv")[0]["member"]
    with pytest.raises(CheckpointError, match="is damaged"):
        read_member(copy, name)


def test_member_is_found_by_its_cell_and_by_its_measures(run: Path) -> None:
    rows = table(run / "archive.csv")
    row = rows[len(rows) // 2]
    named = read_member(run, row["member"])
    assert read_member(run, f"cell={row['cell'].replace(' ', ',')}").name == named.name
    assert read_member(run, f"measures={row['a']},{row['b']}").name == named.name
    # the nearest one, where each measure has the range of the members
    far = read_member(run, "measures=-100,-100")
    measures = np.array([[float(row["a"]), float(row["b"])] for row in rows])
    distances = np.linalg.norm((measures + 100) / np.ptp(measures, axis=0), axis=1)
    assert far.name == rows[int(distances.argmin())]["member"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cell=1", "has 2 numbers for each cell"),
        ("cell=99,99", "there is no member in the cell 99,99"),
        ("cell=a,b", "expected whole numbers"),
        ("measures=1,2,3", "has 2 measures"),
        ("measures=1,nan", "expected finite numbers"),
        ("somebody", "names are such as g12j7, cell=3,4 or measures=0.2,0.5"),
    ],
)
def test_members_that_are_not_there_are_refused(name: str, text: str, run: Path) -> None:
    with pytest.raises(CheckpointError, match=text):
        read_member(run, name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            "algorithm.archive.cells=[8]",
            "algorithm.archive.cells: has 1 number, but the task has 2",
        ),
        (
            "algorithm.archive.cells=[8, 0]",
            "algorithm.archive.cells: expected a whole number of at least 1",
        ),
        ("algorithm.archive.cells=[100000, 100000]", "bytes on rank 0, but this machine has"),
        ("task.measures=null", "which needs measures, but the task has none"),
        ("algorithm.archive={kind: cvt, cells: 9, distance: 0.1}", "algorithm.archive.distance"),
        ("algorithm={kind: cma_me, emitters: {improvement: 0}}", "expected at least one emitter"),
        ("algorithm={kind: cma_mae} task.dimension=3000", "whose covariance has the square of"),
        (
            "algorithm={kind: cma_mae, emitters: 100000} task.dimension=2000",
            "algorithm.emitters: are 100,000 with 2,000 parameters, whose covariances need",
        ),
        ("algorithm={kind: dms, threshold_min: 0, threshold_max: 0}", "expected a higher number"),
        ("algorithm={kind: dms, threshold_max: 0}", "algorithm.threshold_min"),
        (
            "algorithm={kind: dms, threshold_min: 0, threshold_max: 1, archive: {kind: unstructured, cells: 9}}",
            "algorithm.archive.kind: is unstructured",
        ),
        (
            "task.constraints=[c] task.constraint_handling=augmented_lagrangian",
            "expected task.constraint_handling: feasible_first",
        ),
    ],
)
def test_mistakes_are_found_before_a_run(more: str, text: str, tmp_path: Path) -> None:
    overrides = more.split(" task.") if " task." in more else [more]
    overrides = [overrides[0], *(f"task.{item}" for item in overrides[1:])]
    ended = python(["-m", "hpc_es.main", config(tmp_path, "map_elites"), "--check", *overrides])
    assert text in ended.stderr + ended.stdout, ended


@pytest.mark.long
def test_table_of_very_many_numbers_has_no_parameters(tmp_path: Path) -> None:
    file = config(tmp_path, "map_elites")
    (tmp_path / "here.py").write_text(FUNCTIONS.replace("x[1:]", "x[1:9]"))
    run = tmp_path / "run"
    trained(1, file, run, "task.dimension=200000", "stop.generations=2")
    rows = table(run / "archive.csv")
    assert len(rows) > 10 and list(rows[0]) == [
        "member",
        "generation",
        "job",
        "cell",
        "value",
        "a",
        "b",
    ]
    assert "without their parameters, which archive.npz has" in (run / "log.txt").read_text()
    assert read_member(run, rows[3]["member"]).vector.shape == (200_000,)


def test_measures_outside_their_range_are_counted(tmp_path: Path) -> None:
    file = config(tmp_path, "map_elites")
    trained(1, file, tmp_path / "run", "task.measures={a: [-0.1, 0.1], b: [-1, 1]}")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert max(json.loads(line)["outside_share"] for line in lines) > 0.3


def test_a_nan_measure_fails_its_evaluation_only(tmp_path: Path) -> None:
    file = config(tmp_path, "cma_mae")
    (tmp_path / "here.py").write_text(FUNCTIONS.replace("x[0],", "x[0] if x[0] < 0.4 else np.nan,"))
    result = trained(2, file, tmp_path / "run", "task.on_failed_evaluation=drop")
    assert result["coverage"] > 0 and result["failed_evaluations"] > 0


EPISODES = """
task:
  kind: episodes
  env_id: CartPole-v1
  max_episode_steps: 40
  measures:
    position: {from: observation.0, range: [-2.4, 2.4]}
    angle: {from: observation.2, range: [-0.21, 0.21]}
policy: {kind: mlp, hidden_dims: []}
algorithm: {kind: map_elites, population_size: 30, sigma: 0.3, archive: {cells: [6, 6]}}
evaluation: {interval: 0}
stop: {generations: 6}
"""


def test_all_members_are_evaluated_on_all_ranks_and_correct_the_score(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(EPISODES)
    run = tmp_path / "run"
    trained(2, str(tmp_path / "c.yaml"), run)
    words = ["-m", "hpc_es", "eval", str(run), "--members", "all", "--episodes", "6", "--output"]
    for ranks in (1, 3):
        ended = mpiexec(ranks, [*words, str(tmp_path / f"{ranks}.csv")])
        assert ended.status == 0, ended.stderr
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "3.csv").read_bytes()
    members, rows = table(run / "archive.csv"), table(tmp_path / "1.csv")
    assert [row["member"] for row in rows] == [row["member"] for row in members]
    # the best mean return of each cell of the mean measures
    best: dict[tuple[int, int], float] = {}
    for row in rows:
        place = tuple(
            min(max(int((float(row[f"measure_{name}"]) + end) / (2 * end) * 6), 0), 5)
            for name, end in (("position", 2.4), ("angle", 0.21))
        )
        best[place] = max(best.get(place, 0.0), float(row["return_mean"]))
    assert f"corrected by 6 episodes: {len(best)} members" in ended.stderr
    assert f"QD score {sum(best.values()):.6g}" in ended.stderr
    one = python(["-m", "hpc_es", "eval", str(run), "--member", rows[1]["member"], "--episodes", "6", "--json"])  # fmt: skip
    assert str(json.loads(one.stdout)["return_mean"]) == rows[1]["return_mean"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--members", "3x3"], "is a grid for a video: add --video FILE"),
        (["--members", "3y3"], "expected all, or a grid such as 3x4"),
        (["--members", "all", "--all"], "expected one of them"),
        (["--members", "all", "--member", "g0j0"], "leave --which or --member out"),
        (["--members", "all", "--video", "a.gif"], "leave --video out"),
        (["--members", "all"], "holds no policy"),
    ],
)
def test_wrong_members_of_eval_are_refused(words: list[str], text: str, run: Path) -> None:
    ended = python(["-m", "hpc_es", "eval", str(run), *words])
    assert ended.status == 2 and text in ended.stderr, ended
