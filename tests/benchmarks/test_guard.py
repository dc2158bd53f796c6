"""The table of `benchmarks.guard`."""

from __future__ import annotations

import pytest

from benchmarks.guard import WORKS, line, speeds_of


@pytest.mark.parametrize(
    ("auto", "fixed", "before", "cells", "passes"),
    [
        ([90, 100, 110], [100, 110, 120], [100, 100, 100], "100 | 0.91 (16) | 1.00 | 0.90", True),
        ([84, 84, 84], [100, 100, 100], [90, 90, 90], "84 | 0.84 (16) | 0.93 | 1.00", False),
        ([89, 89, 89], [100, 100, 100], [100, 100, 100], "89 | 0.89 (16) | 0.89 | 1.00", False),
        ([50, 100, 100], [100, 100, 100], [100, 100, 100], "100 | 1.00 (16) | 1.00 | 0.50", False),
    ],
)
def test_a_row_fails_if_it_is_slower_or_unsteady(
    auto: list[float], fixed: list[float], before: list[float], cells: str, passes: bool
) -> None:
    text, is_fine = line(WORKS[0], 2, {"auto": auto, "before": before, "16": fixed}, 9)
    assert is_fine is passes
    assert text == f"| CartPole 2 x 64 | 2 | 9 | {cells} | {'' if passes else 'fails'} |"


def test_what_was_not_measured_does_not_fail() -> None:
    assert line(WORKS[0], 1, {"auto": [100.0]}, 9) == (
        "| CartPole 2 x 64 | 1 | 9 | 100 |  |  | 1.00 |  |",
        True,
    )


def test_the_generations_that_all_runs_reached_are_compared() -> None:
    """Of four generations that both reached the first is left out; a fifth does not count."""
    fast = [(8.0, 9.0), (10.0, 1.0), (20.0, 2.0), (30.0, 3.0), (1000.0, 1.0)]
    slow = [(8.0, 9.0), (10.0, 2.0), (20.0, 4.0), (30.0, 6.0)]
    assert speeds_of({"auto": [fast], "16": [slow]}) == ({"auto": [10.0], "16": [5.0]}, 3)
