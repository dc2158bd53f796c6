"""`python -m benchmarks.learning`: what its picture averages, and that it is drawn from run directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning_plot import draw, means, median
from tests.trained import run

pytest.importorskip("matplotlib")


def test_evaluations_between_two_points_are_averaged_and_gaps_interpolated() -> None:
    """(0, 2] has 10 and 20; (2, 4] nothing, so 20 + 30 * 2 / 3 at 4; (4, 6] has 50, and 70 at 7 is none of them."""
    x, y = np.array([1.0, 2.0, 5.0, 7.0]), np.array([10.0, 20.0, 50.0, 70.0])
    np.testing.assert_allclose(means(x, y, np.array([0.0, 2.0, 4.0, 6.0])), [15, 40, 50])


def test_the_picture_shows_the_median_of_the_seeds(tmp_path: Path) -> None:
    paths = [run(f"seed={seed}") for seed in (1, 2, 3)]
    curves = [curve for each in ([path] for path in paths) if (curve := median(each)) is not None]
    together, without = median(paths), run("evaluation.interval=0")
    assert together is not None
    assert together[1][-1] == sorted(y[-1] for _, y in curves)[1]
    assert len({y[-1] for _, y in curves}) == 3
    assert median([without]) is None
    draw({"Survival": {"es": paths}, "nothing": {"es": [without]}}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
