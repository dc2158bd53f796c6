"""BIPOP's searches side by side: two searches in turn,
which do not depend on each other's candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es import Strategy
from hpc_es.algorithms.common.side_by_side import FIRST_SMALL, SMALL
from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from hpc_es.training.alternating_line import AlternatingLine
from hpc_es.training.build import build_task


def search(kind: str = "cma_es", **options: Any) -> Strategy:
    region = ([-2.0] * 4, [2.0] * 4)
    stops = {"max_generations": 3}
    both = {"restarts": "bipop", "side_by_side": True, "population_size": 6, "stops": stops}
    return Strategy(kind, region=region, sigma0=0.5, seed=1, **{**both, **options})


def advance(es: Strategy, scale_of_small: float = 1.0) -> None:
    """One generation on the sphere, whose values are scaled in generations of the small search."""
    scale = scale_of_small if es.generation % 2 else 1.0
    es.tell(scale * np.square(es.ask()).sum(axis=1))


def test_large_and_small_searches_alternate_and_restart_on_their_own() -> None:
    es, sizes, numbers = search(), [], []
    for _ in range(12):
        sizes.append(len(es.ask()))
        numbers.append(int(es._state.master[f"{SMALL}run_restart"]) - FIRST_SMALL)
        advance(es)
    assert sizes[::2] == [6, 6, 6, 12, 12, 12]  # restarted after three generations of its own
    # The second small search may use half of the 18 evaluations of the first large one: two
    # generations of 6.
    assert max(sizes[1::2]) <= 12 and numbers == [0] * 6 + [1] * 4 + [2] * 2


def test_large_search_does_not_depend_on_the_results_of_small_ones() -> None:
    """Nor does it depend on whether the update of the previous generation is known."""
    plain, other = search(), search()
    line = AlternatingLine()
    for _ in range(6):
        assert np.array_equal(plain.ask(), other.ask()) or plain.generation % 2
        before = plain._state
        advance(plain)
        advance(other, scale_of_small=-1.0)
        early, late = (
            line.drawn_around(before, plain.generation),
            line.drawn_around(plain._state, plain.generation),
        )
        chunk = plain._chunks[0]
        drawn = [plain._algorithm.candidates(state, chunk).stacked() for state in (early, late)]
        assert np.array_equal(*drawn)
        assert np.array_equal(
            *(line.measured(state, plain.generation).theta for state in (before, plain._state))
        )


@pytest.mark.parametrize("kind", ["cma_es", "sep_cma_es", "snes", "xnes", "cr_fm_nes"])
def test_both_searches_improve(kind: str) -> None:
    es = search(kind, stops={}, population_size=10)
    for _ in range(120):
        advance(es)
    assert es.best is not None and es.best.f < 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": {"restarts": "ipop"}},
            "side_by_side: is true, but restarts is ipop: expected restarts: bipop",
        ),
        (
            {"mpi": {"schedule": "static"}},
            "is 'static', but algorithm.side_by_side is true: expected on_demand",
        ),
        ({"task": {"close_at": 0.9}}, "task.close_at: is 0.9, but algorithm.side_by_side is true"),
        (
            {"task": {"constraints": 1, "constraint_handling": "augmented_lagrangian"}},
            "algorithm.side_by_side: is true",
        ),
    ],
)
def test_settings_that_do_not_fit_are_config_errors(changes: dict[str, Any], message: str) -> None:
    data: dict[str, Any] = {
        "task": {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 3},
        "algorithm": {"kind": "cma_es", "restarts": "bipop", "side_by_side": True},
        "mpi": {},
        "stop": {"generations": 1},
    }
    with pytest.raises(ConfigError, match=message):
        config = validate(
            {name: {**section, **changes.get(name, {})} for name, section in data.items()}
        )
        build_task(config)
