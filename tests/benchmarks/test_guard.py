"""The table of `benchmarks.guard`."""

from __future__ import annotations

import pytest

from benchmarks.guard import WORKS, line


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
    text, is_fine = line(WORKS[0], 2, {"auto": auto, "before": before, "16": fixed})
    assert is_fine is passes
    assert text == f"| CartPole 2 x 64 | 2 | {cells} | {'' if passes else 'fails'} |"


def test_what_was_not_measured_does_not_fail() -> None:
    assert line(WORKS[0], 1, {"auto": [100.0]}) == (
        "| CartPole 2 x 64 | 1 | 100 |  |  | 1.00 |  |",
        True,
    )
