"""Rank 0 compares native stepping with Gymnasium's on behalf of all ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import mpiexec, script

COUNTED = """
import sys
import hpc_es.tasks.episodes.native_backend as backend
from hpc_es.cli import main as cli
from hpc_es.mpi.connect import connect
from hpc_es.tasks.episodes.task import Episodes

world, compared, made = connect(), backend.difference, Episodes.new_backend

def difference(*arguments):
    sys.stdout.write(f"<rank {world.rank} compares>\\n")
    return compared(*arguments) or TEXT

def stepping(task, first):
    found = made(task, first)
    sys.stdout.write(f"<rank {world.rank} steps by {type(found).__name__}>\\n")
    return found

backend.difference, Episodes.new_backend = difference, stepping
"""


def run(ranks: int, cache: Path, body: str, text: str = "") -> tuple[list[str], list[str]]:
    """Return the ranks that compared, and the stepping of each rank."""
    done = mpiexec(
        ranks,
        script(COUNTED.replace("TEXT", repr(text)) + body),
        env={"XDG_CACHE_HOME": str(cache)},
    )
    assert done.status == 0, done
    said = re.findall(r"<rank (.*?)>", done.stdout + done.stderr)
    return sorted(line for line in said if "compares" in line), sorted(
        {line for line in said if "steps" in line}
    )


def training(config: Path, run: Path, *overrides: str) -> str:
    overrides = (
        *("task.env_id=CartPole-v1", "stop.generations=1", "noise={kind: counter}"),
        *overrides,
    )
    arguments = [str(config), "--output", str(run), *overrides]
    return f"""
from hpc_es.api.job import parser, run_job
from hpc_es.mpi.guard import guarded
guarded(lambda: run_job(lambda: parser().parse_intermixed_args({arguments})))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "by"), [("", "ClassicControlBackend"), ("another reward", "GymnasiumBackend")]
)
def test_all_ranks_use_the_stepping_that_rank_0_selects(text: str, by: str, tmp_path: Path) -> None:
    """Only rank 0 compares; the others follow its result even if they would find no difference."""
    config, cache = runs.tiny(tmp_path), tmp_path / "cache"
    compared, steps = run(3, cache, training(config, tmp_path / "run"), text)
    assert compared == ["0 compares"]
    assert steps == [f"{rank} steps by {by}" for rank in range(3)]
    compared, steps = run(2, cache, training(config, tmp_path / "again"))
    assert compared == []  # the cache has it
    assert steps == [f"{rank} steps by {by}" for rank in range(2)]


def test_one_rank_per_group_of_repetitions_compares_stepping(tmp_path: Path) -> None:
    """Two groups of two ranks, four repetitions:
    the first rank of a group compares once or reads the cache.
    """
    config = runs.tiny(tmp_path)
    body = training(config, tmp_path / "runs", "repetitions=4", "repetition_groups=2")
    compared, steps = run(4, tmp_path / "cache", body)
    assert compared in ([f"{rank} compares" for rank in pair] for pair in ([0], [2], [0, 2]))
    assert steps == [f"{rank} steps by ClassicControlBackend" for rank in range(4)]


@pytest.mark.long
def test_ranks_that_evaluate_snapshots_use_the_stepping_of_rank_0(tmp_path: Path) -> None:
    config = runs.tiny(tmp_path)
    run(1, tmp_path / "cache", training(config, tmp_path / "run", "stop.generations=4"))
    arguments = [
        "eval",
        str(tmp_path / "run"),
        "--all",
        "--episodes",
        "2",
        "--output",
        str(tmp_path / "all.csv"),
    ]
    body = f"sys.argv[1:] = {arguments}\ncli()"
    compared, steps = run(2, tmp_path / "another", body, "another reward")
    assert compared == ["0 compares"]
    assert steps == [f"{rank} steps by GymnasiumBackend" for rank in range(2)]
