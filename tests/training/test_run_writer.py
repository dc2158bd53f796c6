"""The ranks in the log, few and many."""

from __future__ import annotations

from hpc_es.training.run_writer import table_lines


def test_few_are_told_one_by_one() -> None:
    table = [(0, "n1", 11), (1, "n2", 12)]
    assert table_lines(table) == ["rank=host:pid  0=n1:11  1=n2:12"]


def test_many_are_told_by_host() -> None:
    """1,440 ranks on 30 nodes: three lines of ten."""
    lines = table_lines([(rank, f"n{rank // 48}", rank) for rank in range(1440)])
    assert len(lines) == 3
    assert lines[0].startswith("ranks=host  0-47=n0  48-95=n1  ") and lines[2].endswith("  1392-1439=n29")


def test_ranks_that_go_round_the_hosts_are_told_by_host_too() -> None:
    lines = table_lines([(rank, f"n{rank % 2}", rank) for rank in range(100)])
    assert lines == ["ranks=host  0,2..98=n0  1,3..99=n1"]
