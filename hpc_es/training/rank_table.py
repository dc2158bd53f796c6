"""The ranks in the log: each with its process, or of many those of each host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

FEW = 64  # ranks that are told one by one


def table_lines(table: Sequence[tuple[int, str, int]]) -> list[str]:
    """Return lines of (rank, host, process id): `rank=host:pid`, or of many ranks `ranks=host`, ten hosts a line."""
    if len(table) <= FEW:
        return ["rank=host:pid  " + "  ".join(f"{rank}={host}:{pid}" for rank, host, pid in table)]
    runs = [(host, [rank for rank, _, _ in ranks]) for host, ranks in groupby(table, key=lambda entry: entry[1])]
    told = [f"{ranks[0]}-{ranks[-1]}={host}" if len(ranks) > 1 else f"{ranks[0]}={host}" for host, ranks in runs]
    if len(told) > len(table) // 2:  # ranks that go round the hosts
        by_host: dict[str, list[int]] = {}
        for rank, host, _ in table:
            by_host.setdefault(host, []).append(rank)
        told = [f"{ranks[0]},{ranks[1]}..{ranks[-1]}={host}" for host, ranks in by_host.items() if len(ranks) > 1]
        told += [f"{ranks[0]}={host}" for host, ranks in by_host.items() if len(ranks) == 1]
    return ["ranks=host  " + "  ".join(told[start : start + 10]) for start in range(0, len(told), 10)]
