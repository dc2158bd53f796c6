"""The tables of profile.txt, from profiles of ranks whose sums are computed by hand."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpc_es.core.data import Chunk
from hpc_es.mpi.world import World
from hpc_es.training.profiler import FunctionTime, Profiler, RankProfile, profile_text, summed

STEP = ("/home/me/walker.py", 12, "step")
SUM = ("~", 0, "<built-in method sum>")
RANKS = [
    RankProfile(
        0, "node1", 4, 2.0, 4.0, {STEP: FunctionTime(10, 1.0, 1.5), SUM: FunctionTime(20, 0.5, 0.5)}
    ),
    RankProfile(1, "node2", 6, 4.0, 5.0, {STEP: FunctionTime(30, 1.0, 2.5)}),
]


def test_profiles_of_ranks_are_added() -> None:
    assert summed(RANKS) == {STEP: FunctionTime(40, 2.0, 4.0), SUM: FunctionTime(20, 0.5, 0.5)}


def test_profile_survives_a_message() -> None:
    assert RankProfile.from_json(RANKS[0].to_json()) == RANKS[0]


def test_tables_have_shares_of_all_and_of_each_rank() -> None:
    """4 of 6 s are spent in step: 75 % of rank 0's time and 62.5 % of rank 1's;
    its own time is 50 % and 25 %.
    """
    text = profile_text(RANKS)
    assert text.startswith("Time in evaluations since the last start: 2 ranks, 10 chunks, 6.00 s\n")
    tables = {
        block.splitlines()[0]: [line.split() for line in block.splitlines()[2:]]
        for block in text.split("\n\n")
    }
    step = ["40", "*", "step", "(me/walker.py:12)"]
    assert tables["Your code, by cumulative time"] == [
        ["2.000", "s", "4.000", "s", "67", "%", "62-75", "%", *step]
    ]
    own = tables["All functions, by self time"]
    assert own[0] == ["2.000", "s", "4.000", "s", "33", "%", "25-50", "%", *step]
    assert own[1] == [
        "0.500",
        "s",
        "0.500",
        "s",
        "8",
        "%",
        "0-25",
        "%",
        "20",
        "<built-in",
        "method",
        "sum>",
    ]
    ranks = text.split("\n\n")[1].splitlines()
    assert ranks[1].split() == ["0", "4", "2.00", "s", "50.0", "%", "node1"]
    assert ranks[2].split() == ["1", "6", "4.00", "s", "80.0", "%", "node2"]


def wait() -> str:
    time.sleep(0.02)
    return "outcome"


def test_evaluations_are_measured_and_nothing_else(tmp_path: Path) -> None:
    profiler, messages = Profiler(World("none"), tmp_path), []
    generation: Any = SimpleNamespace(evaluate=lambda chunk, poll: wait())
    for index in range(3):
        assert profiler.evaluate(generation, Chunk(index, 0, 1), lambda: None) == "outcome"  # type: ignore[comparison-overlap]
    wait()
    profiler.write(messages.append)
    assert messages == [f"time by function: {tmp_path / 'profile.txt'}"]
    line = next(
        line for line in (tmp_path / "profile.txt").read_text().splitlines() if " wait (" in line
    )
    _, _, seconds, *_ = line.split()
    assert line.split()[8] == "3" and 0.06 <= float(seconds) < 0.5


def test_directory_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    messages: list[str] = []
    Profiler(World("none"), tmp_path / "missing").write(messages.append)
    assert [message.partition(":")[0] for message in messages] == ["WARNING", "WARNING"]
