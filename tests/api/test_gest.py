"""The gest-api generator: the rules of the standard, variables and constraints,
and a run under libEnsemble.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gest_api", reason="gest-api is not installed here: make test-all-extras")

from gest_api.generator import Generator as StandardGenerator
from gest_api.vocs import VOCS, ContextualVariable, ContinuousVariable

import hpc_es
from hpc_es.api.gest import Generator
from tests.helpers.harness import ROOT, python

BOX = VOCS(
    variables={"x": [-5, 5], "y": [-5, 5]},
    objectives={"f": "MINIMIZE"},
    constants={"shift": 1.0},
    observables=["t"],
)


def evaluated(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**point, "f": (point["x"] - point["shift"]) ** 2 + point["y"] ** 2, "t": 0.0}
        for point in points
    ]


def test_points_are_those_of_the_strategy_with_constants_and_numbers() -> None:
    generator = Generator(BOX, seed=3, sigma0=0.2, population_size=6)
    assert isinstance(generator, StandardGenerator) and generator.returns_id
    es = hpc_es.Strategy(
        parameters={name: {"low": -5, "high": 5} for name in "xy"},
        seed=3,
        sigma0=0.2,
        population_size=6,
    )
    for generation in range(4):
        points = generator.suggest(None)
        named = es.named(es.ask())
        ids = range(6 * generation, 6 * generation + 6)
        assert points == [
            {**point, "shift": 1.0, "_id": number} for point, number in zip(named, ids, strict=True)
        ]
        results = evaluated(points)
        generator.ingest(results)
        es.tell([item["f"] for item in results])
    assert es.best is not None and generator.best is not None
    assert (generator.best["x"], generator.best["y"], generator.best["f"]) == (
        *es.best.x.tolist(),
        es.best.f,
    )


def test_parts_of_a_generation_give_the_same_points_in_any_order() -> None:
    whole, parts = (Generator(BOX, seed=1, population_size=6) for _ in range(2))
    for _ in range(3):
        points = whole.suggest()
        assert parts.suggest(2) + parts.suggest() == points
        assert whole.suggest() == []
        results = evaluated(points)
        whole.ingest(results)
        parts.ingest([results[index] for index in (4, 1)])
        parts.ingest([results[index] for index in (5, 0, 2, 3)])


def test_more_points_than_are_left_are_refused() -> None:
    generator = Generator(BOX, population_size=6)
    generator.suggest(4)
    with pytest.raises(
        ValueError, match=r"expected 0 to 2 points, .* found 3: ask for fewer, or ingest"
    ):
        generator.suggest(3)
    assert len(generator.suggest(2)) == 2


def test_unknown_and_repeated_ids_are_refused_and_nothing_is_taken() -> None:
    generator = Generator(BOX, population_size=6)
    results = evaluated(generator.suggest(4))
    for wrong in (4, 17, -1):  # not yet suggested, never, never
        with pytest.raises(
            ValueError, match=f"_id {wrong}: expected the _id of a point that was suggested"
        ):
            generator.ingest([results[0], {**results[1], "_id": wrong}])
    with pytest.raises(ValueError, match="_id 0: its result was ingested before"):
        generator.ingest([results[0], results[0]])
    assert generator.best is None
    generator.ingest(results)
    with pytest.raises(ValueError, match="_id 3: its result was ingested before"):
        generator.ingest([results[3]])


def test_results_without_a_name_of_the_vocs_are_refused() -> None:
    generator = Generator(BOX)
    (point,) = generator.suggest(1)
    with pytest.raises(ValueError, match="found no f, t in"):
        generator.ingest([point])
    with pytest.raises(ValueError, match="f: expected a number, found 'a'"):
        generator.ingest([{**point, "f": "a", "t": 0}])


def test_foreign_points_may_be_the_best_but_do_not_count() -> None:
    generator, other = (Generator(BOX, seed=1, population_size=6) for _ in range(2))
    results = evaluated(generator.suggest())
    foreign = {"x": 1.0, "y": 0.0, "shift": 1.0, "f": 0.0, "t": 0.0}
    generator.ingest([foreign])
    generator.ingest(results)
    other.suggest()
    other.ingest(results)
    assert generator.best == foreign and generator.suggest() == other.suggest()
    generator.finalize()
    generator.finalize()


def test_maximised_objective_and_failed_evaluations() -> None:
    up = VOCS(variables={"x": [-5, 5]}, objectives={"f": "MAXIMIZE"})
    down = VOCS(variables={"x": [-5, 5]}, objectives={"f": "MINIMIZE"})
    first, second = Generator(up, seed=1), Generator(down, seed=1)
    for _ in range(3):
        points = first.suggest()
        assert second.suggest() == points
        values = [float("nan") if index == 1 else point["x"] for index, point in enumerate(points)]
        first.ingest([{**point, "f": value} for point, value in zip(points, values, strict=True)])
        second.ingest([{**point, "f": -value} for point, value in zip(points, values, strict=True)])
    assert first.best is not None and first.best["f"] == max(first.best["f"], 0)


def test_discrete_variables_have_sorted_values_and_single_ones_are_constants() -> None:
    vocs = VOCS(
        variables={
            "grid": {64, 16, 32, 128},
            "solver": {"gmres", "cg", "bicgstab"},
            "fast": {True, False},
            "order": {2},
            "x": ContinuousVariable(domain=[0, 1]),
        },
        objectives={"f": "MINIMIZE"},
    )
    generator = Generator(vocs, seed=1)
    parameters = generator._search.config.task.parameters
    assert parameters["grid"].values == (16, 32, 64, 128)
    assert parameters["solver"].choices == ("bicgstab", "cg", "gmres") and parameters[
        "fast"
    ].choices == (False, True)
    for _ in range(60):
        points = generator.suggest()
        cost = [
            abs(p["grid"] - 32) + (p["solver"] != "cg") + (not p["fast"]) + p["x"] + p["order"]
            for p in points
        ]
        generator.ingest([{**point, "f": value} for point, value in zip(points, cost, strict=True)])
    best = generator.best
    assert best is not None
    assert {name: best[name] for name in ("grid", "solver", "fast", "order")} == {
        "grid": 32,
        "solver": "cg",
        "fast": True,
        "order": 2,
    }
    assert [type(best[name]) for name in ("grid", "solver", "fast", "x")] == [int, str, bool, float]


def test_limits_are_strict_and_bounds_are_not() -> None:
    limits = {"a": ["LESS_THAN", 2.0], "b": ["GREATER_THAN", 1.0], "c": ["BOUNDS", 0.0, 1.0]}
    vocs = VOCS(variables={"x": [0, 1]}, objectives={"f": "MINIMIZE"}, constraints=limits)
    generator = Generator(vocs)
    results = [  # costs; a, b and c: only the last but one is feasible
        (1.0, (2.0, 1.5, 0.5)),
        (2.0, (1.0, 1.0, 0.5)),
        (3.0, (1.0, 1.5, 1.1)),
        (5.0, (1.0, 1.5, 1.0)),
        (6.0, (1.0, 1.5, 0.0)),
    ]
    for value, (a, b, c) in results:
        generator.ingest([{"x": 0.5, "f": value, "a": a, "b": b, "c": c}])
    assert generator.best is not None and generator.best["f"] == 5.0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"objectives": {"f": "MINIMIZE", "g": "MINIMIZE"}}, "expected one objective"),
        ({"objectives": {}}, "found none"),
        ({"objectives": {"f": "EXPLORE"}}, "f: ExploreObjective"),
        ({"variables": {}}, "expected at least one variable"),
        (
            {"variables": {"x": ContextualVariable()}},
            "variable x: expected a domain or discrete values",
        ),
        (
            {"variables": {"x": {(1, 2), (3, 4)}}},
            "variable x: expected numbers, text, true or false",
        ),
    ],
)
def test_unsupported_vocs_are_refused(changes: dict[str, Any], text: str) -> None:
    vocs = VOCS(**{"variables": {"x": [0, 1]}, "objectives": {"f": "MINIMIZE"}, **changes})
    with pytest.raises(ValueError, match=text):
        Generator(vocs)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown argument"):
        Generator(BOX, populaton_size=3)


def test_example_runs_under_libensemble(tmp_path: Path) -> None:
    """mass = w h is least at w = 1, where w h^3 = 500 gives h = 500^(1/3) = 7.937;
    flanges add more than they save.
    """
    pytest.importorskip("libensemble")
    done = python([str(ROOT / "examples/libensemble/beam.py")], cwd=tmp_path)
    assert done.status == 0, str(done)
    said = re.search(r"mass ([\d.]+): width ([\d.]+), height ([\d.]+), (\d) flanges", done.stdout)
    assert said is not None, str(done)
    assert float(said[1]) == pytest.approx(500 ** (1 / 3), rel=0.03) and said[4] == "1"
