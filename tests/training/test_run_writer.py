"""The table of ranks in the log, and the generations that send rows to rank 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hpc_es
from hpc_es.training import run_writer, updates
from hpc_es.training.run_writer import RunWriter, rank_table_lines
from tests.helpers.harness import ROOT, mpiexec, script


def test_few_ranks_are_listed_individually() -> None:
    table = [(0, "n1", 11), (1, "n2", 12)]
    assert rank_table_lines(table) == ["rank=host:pid  0=n1:11  1=n2:12"]


def test_many_ranks_are_listed_by_host() -> None:
    """1,440 ranks on 30 nodes: three lines of ten."""
    lines = rank_table_lines([(rank, f"n{rank // 48}", rank) for rank in range(1440)])
    assert len(lines) == 3
    assert lines[0].startswith("ranks=host  0-47=n0  48-95=n1  ") and lines[2].endswith(
        "  1392-1439=n29"
    )


def test_ranks_distributed_round_robin_are_listed_by_host() -> None:
    lines = rank_table_lines([(rank, f"n{rank % 2}", rank) for rank in range(100)])
    assert lines == ["ranks=host  0,2..98=n0  1,3..99=n1"]


COUNTED = """
    import json, sys
    from pathlib import Path
    import hpc_es
    from hpc_es.mpi.world import World

    calls, gather = [], World.gather
    World.gather = lambda self, mine: (calls.append(len(mine)), gather(self, mine))[1]
    config = json.loads(sys.argv[1])
    with hpc_es.train(config, Path(sys.argv[2])) as run:
        for row in run:
            pass
    if run.state.generation:
        print("gathered", len(calls), flush=True)
"""
FUNCTION = {
    "task": {"kind": "function", "function": "tests.helpers.toys:valley", "dimension": 6},
    "algorithm": {"kind": "cma_es"},
    "stop": {"generations": 3},
}
POLICY = {
    "task": {"env_id": "CartPole-v1", "max_episode_steps": 20},
    "policy": {"hidden_dims": [4]},
    "algorithm": {"population_size": 8},
    "noise": {"table_size": 20_000},
    "stop": {"generations": 3},
}
NORMALISED = {
    "task": {**POLICY["task"], "observation_normalization": {"enabled": True, "probability": 1.0}}
}
CASES = {
    "a function, whose best vector it is": (FUNCTION, 3),
    "a policy": (POLICY, 0),
    "a policy that learns what it observes": ({**POLICY, **NORMALISED}, 3),
    "several blocks": ({**POLICY, "policy": {"hidden_dims": [128, 128]}}, 3),  # 17,410 parameters
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_ranks_gather_only_if_there_is_something_to_send(case: str, tmp_path: Path) -> None:
    config, expected = CASES[case]
    done = mpiexec(2, [*script(COUNTED), json.dumps(config), str(tmp_path / "run")], cwd=ROOT)
    assert done.status == 0, str(done)
    assert f"gathered {expected}" in done.stdout, str(done)


@pytest.mark.long
@pytest.mark.parametrize(
    ("share", "interval", "count"),
    [(1e9, "auto", 3), (1e-9, "auto", 0), (1e-9, 10, 3)],
    ids=["cheap", "expensive", "a number"],
)
def test_automatic_checkpoints_take_little_of_the_time(
    share: float, interval: int | str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    save = RunWriter.save_in_between
    monkeypatch.setattr(run_writer, "SAVING_SHARE", share)
    monkeypatch.setattr(
        RunWriter,
        "save_in_between",
        lambda self: (saved.append(self.standing.state.generation), save(self))[1],
    )
    config = {
        **FUNCTION,
        "stop": {"generations": 35},
        "checkpoint": {"interval": interval, "interval_seconds": 0},
    }
    with hpc_es.train(config, tmp_path / "run") as run:
        for _ in run:
            pass
    assert [generation for generation in saved if generation < 35] == [10, 20, 30][:count]


@pytest.mark.long
def test_evaluations_list_the_centre_that_was_evaluated_if_updates_overwrite_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps so large that only the first centre is the best so far."""
    config = {
        **FUNCTION,
        "algorithm": {"kind": "es", "population_size": 4, "optimizer": {"learning_rate": 100.0}},
        "noise": {"kind": "counter"},
        "evaluation": {"interval": 1, "episodes": 1},
    }
    for name, limit in (("copied", 1 << 22), ("overwritten", 0)):
        monkeypatch.setattr(updates, "OVERWRITTEN", limit)
        for row in hpc_es.train(config, tmp_path / name):
            assert int(row["centre_evaluations"] or 0) == 1
    files = [
        (tmp_path / name / "evaluations.csv").read_text() for name in ("copied", "overwritten")
    ]
    assert files[0] == files[1] and files[0].count("\n") == 1 + 3 * 5
