"""`stop.failed_generations`: the end of a run whose evaluations all fail, and how it is resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import RunFailedError
from hpc_es.storage.checkpoint import load, save
from hpc_es.storage.checkpoint_directory import find
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec

POPULATION = 6
SILENT = {
    "report": {"plot_interval_seconds": 0},
    "evaluation": {"interval": 0},
    "noise": {"kind": "counter"},
}
FAILS_FROM = '''
from pathlib import Path

def cost(x, folder, first, last):
    """Fail in the generations from `first` to before `last`, by the evaluations that were finished before."""
    calls = Path(folder, "calls")
    count = calls.stat().st_size if calls.exists() else 0
    with calls.open("a") as file:
        file.write(".")
    if first <= count // 6 < last:
        raise ValueError("no licence")
    return float((x ** 2).sum())
'''


def config(directory: Path, first: int, last: int = 99, **sections: Any) -> dict[str, Any]:
    """A search for 3 numbers whose evaluations fail in a range of generations."""
    (directory / "licensed.py").write_text(FAILS_FROM)
    arguments = {"folder": str(directory), "first": first, "last": last}
    task = {
        "kind": "function",
        "function": "licensed:cost",
        "dimension": 3,
        "arguments": arguments,
        "journal": False,
    }
    algorithm = {"kind": "snes", "population_size": POPULATION}
    return {
        "seed": 1,
        "directory": str(directory),
        "task": task,
        "algorithm": algorithm,
        **SILENT,
        **sections,
    }


def train(directory: Path, settings: dict[str, Any]) -> list[int]:
    """The generations that this start has finished."""
    return [int(row["generation"] or 0) for row in hpc_es.train(settings, directory / "run")]


def failed_after(directory: Path, settings: dict[str, Any]) -> tuple[int, str]:
    """Number of generations that a failed run has finished in total, and the reason."""
    with pytest.raises(RunFailedError) as raised:
        train(directory, settings)
    message = runs.status(directory / "run")
    assert (message["status"], message["exit_status"], message["reason"]) == (
        "failed",
        1,
        str(raised.value),
    )
    assert runs.newest(directory / "run").generation == message["generation"]  # nothing is lost
    return message["generation"], message["reason"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "limit", "finished"),
    [(0, 2, 1), (0, 5, 1), (3, 2, 5), (3, 1, 4), (1, 3, 4)],
)
def test_run_fails_after_the_limit_of_failed_generations(
    first: int, limit: int, finished: int, tmp_path: Path
) -> None:
    settings = config(tmp_path, first, stop={"generations": 9, "failed_generations": limit})
    generations, reason = failed_after(tmp_path, settings)
    assert generations == finished
    which = f"the last {limit} generations" if first and limit > 1 else f"generation {finished}"
    cause = "first failure: ValueError: no licence (licensed.py:11 in cost)"
    assert reason.startswith(
        f"all jobs of {which} failed; {cause} (stop.failed_generations: {limit}); see "
    )
    assert runs.status(tmp_path / "run")["failed_evaluations"] == POPULATION * (finished - first)


@pytest.mark.long
def test_successful_generation_resets_the_count(tmp_path: Path) -> None:
    assert train(tmp_path, config(tmp_path, 2, 3, stop={"generations": 6})) == list(range(6))
    message = runs.status(tmp_path / "run")
    assert (message["failed_evaluations"], message["failed_generations"]) == (POPULATION, 0)
    assert (
        f"6 generations, 36 evaluations, {POPULATION} failed evaluations"
        in (tmp_path / "run" / "log.txt").read_text()
    )


@pytest.mark.long
def test_failed_generations_null_never_ends_a_run(tmp_path: Path) -> None:
    stop = {"generations": 4, "failed_generations": None}
    assert train(tmp_path, config(tmp_path, 0, stop=stop)) == list(range(4))
    assert runs.status(tmp_path / "run")["status"] == "finished"


@pytest.mark.long
@pytest.mark.parametrize("full_interval", [0, 100])
def test_count_of_failed_generations_continues_after_a_restart(
    full_interval: int, tmp_path: Path
) -> None:
    """Also from an incremental checkpoint, whose generations are computed again."""
    checkpoint = {"interval": 1, "full_interval": full_interval}
    settings = config(
        tmp_path, 2, checkpoint=checkpoint, stop={"generations": 9, "failed_generations": 4}
    )
    assert train(tmp_path, {**settings, "stop": {"generations": 4, "failed_generations": 4}}) == [
        0,
        1,
        2,
        3,
    ]
    assert failed_after(tmp_path, settings)[0] == 6


@pytest.mark.long
def test_resumed_run_continues_if_repaired_and_fails_again_if_not(tmp_path: Path) -> None:
    settings = config(tmp_path, 3, 6, stop={"generations": 9})
    assert failed_after(tmp_path, settings)[0] == 5
    assert failed_after(tmp_path, settings)[0] == 6
    assert train(tmp_path, settings) == [6, 7, 8]
    assert runs.status(tmp_path / "run")["status"] == "finished"
    assert (tmp_path / "run" / "failures.log").read_text().count("=== ") == 1


@pytest.mark.long
def test_failed_run_at_its_generation_limit_fails_again_when_restarted(tmp_path: Path) -> None:
    settings = config(tmp_path, 0, stop={"generations": 1})
    assert failed_after(tmp_path, settings)[0] == 1
    assert failed_after(tmp_path, settings)[0] == 1


@pytest.mark.long
def test_checkpoint_without_counts_can_be_resumed(tmp_path: Path) -> None:
    """Checkpoints of earlier versions have no counts."""
    train(tmp_path, config(tmp_path, 99, stop={"generations": 2}))
    path = find(tmp_path / "run")
    snapshot = load(path)
    before = {name: snapshot.counters[name] for name in ("episodes", "timesteps", "seconds")}
    save(path, dataclasses.replace(snapshot, counters=before))
    assert train(tmp_path, config(tmp_path, 99, stop={"generations": 3})) == [2]


RANDOM = """
task: {{kind: function, function: "tests.jobs.test_failed_generations:seldom", dimension: 3}}
algorithm: {{kind: {kind}, population_size: 6}}
noise: {{kind: counter}}
evaluation: {{interval: 0}}
checkpoint: {{interval: 1, keep_last: 1000}}
report: {{plot_interval_seconds: 0}}
stop: {{generations: 200}}
"""


def seldom(x: Any, seed: int) -> float:
    """Nine of ten evaluations fail."""
    if seed % 10:
        raise ValueError("seldom")
    return float((x**2).sum())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["es", "cma_es"])
def test_run_ends_after_the_same_generation_on_any_ranks(kind: str, tmp_path: Path) -> None:
    """With `es`, pairs with one failed half give no update, but their generation has not failed."""
    path = runs.tiny(tmp_path, RANDOM.format(kind=kind))
    with pytest.raises(RunFailedError, match="all jobs of "):
        runs.here(path, tmp_path / "1", ["seed=4"])
    done = mpiexec(
        3, ["-m", "hpc_es.main", str(path), "--output", str(tmp_path / "3"), "seed=4"], cwd=ROOT
    )
    assert done.status == 1 and "all jobs of " in done.stderr, str(done)
    one, three = (
        (runs.newest(run).generation, runs.digest(runs.newest(run)), runs.rows(run))
        for run in (tmp_path / "1", tmp_path / "3")
    )
    assert one == three and one[0] > 1


class OldStep(gymnasium.Env[Any, Any]):
    """Step returns the four values of old gym, so an episode fails before anything was measured."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, True, {}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["es", "ars", "cma_es", "pgpe", "deep_ga", "novelty"])
def test_episodes_that_all_fail_in_their_first_step_end_the_run_with_the_reason(
    kind: str, tmp_path: Path
) -> None:
    gymnasium.register("OldStep-v0", OldStep)
    task: dict[str, Any] = {"env_id": "OldStep-v0"}
    if kind == "novelty":
        task["behaviour"] = {"final_observation": True}
    settings = {
        "task": task,
        "policy": {"hidden_dims": [4]},
        "algorithm": {"kind": kind, "population_size": 8},
        "stop": {"generations": 3},
        **SILENT,
    }
    try:
        with pytest.raises(RunFailedError, match="all jobs of generation 1 failed"):
            train(tmp_path, settings)
    finally:
        gymnasium.registry.pop("OldStep-v0")


def test_reason_names_the_log_below_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in reports, which are handed on."""
    monkeypatch.chdir(tmp_path)
    _, reason = failed_after(tmp_path, config(tmp_path, 0, stop={"generations": 2}))
    assert "; see run/failures.log, fix the cause" in reason and str(tmp_path) not in reason
