"""Every strategy on vectors: identical results on any number of ranks, and after a restart on
another number.

Found by folder. One job a number of ranks runs all variants one after the other, to save the
starts.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpc_es.config import registry
from tests.helpers import runs, toys
from tests.helpers.harness import ROOT, mpiexec, script
from tests.helpers.stepping import KINDS

COMMON: dict[str, Any] = {
    "seed": 1,
    "noise": {"kind": "counter"},
    "mpi": {"chunk_size": 3},
    "evaluation": {"interval": 2, "episodes": 3},
    "report": {"plot_interval_seconds": 0},
}
ITEMS = {"checkpoint": {"interval": 1, "interval_seconds": 0, "keep_last": 100}}
GENERATIONS = 5
FUNCTION = {"task": {"kind": "function", "function": "tests.helpers.toys:valley", "dimension": 30}}
BLOCKS = {"task": {**FUNCTION["task"], "dimension": 300}}  # two blocks of rows of a covariance
EPISODES = {  # some of them fail
    "task": {
        **{
            "kind": "episodes",
            "env_id": "tests.helpers.trouble:Rough-v0",
            "env_kwargs": {"fault": "raise", "every": 7},
        },
        "observation_normalization": {"enabled": True, "probability": 0.5},
    },
    "policy": {"kind": "mlp", "hidden_dims": [8]},
}
RESTARTS = {
    "task": {
        **FUNCTION["task"],
        "dimension": 4,
        "bounds": {"low": -2, "high": 2},
        "initial": "random",
    }
}


def has(kind: str, option: str) -> bool:
    """Whether the options of a kind have a field of this name."""
    return option in {
        field.name for field in dataclasses.fields(registry.module("algorithms", kind).Options)
    }


def settings(kind: str) -> dict[str, Any]:
    """Options for few jobs per generation, if the kind has one."""
    return {"kind": kind, **({"population_size": 12} if has(kind, "population_size") else {})}


def restarting(kind: str) -> dict[str, Any]:
    """A search that ends with each second generation."""
    restarts = {"restarts": "bipop", "stops": {"max_generations": 2}}
    return {**RESTARTS, "algorithm": {"kind": kind, "population_size": 6, **restarts}}


def alternating(kind: str) -> dict[str, Any]:
    """Large and small searches in turn; a search ends with its second generation."""
    config = restarting(kind)
    return {**config, "algorithm": {**config["algorithm"], "side_by_side": True}}


def on_a_plateau(kind: str) -> dict[str, Any]:
    """A search without any update."""
    stops = {"stops": {"tolflatfitness": 99}} if has(kind, "stops") else {}
    return {
        "task": {**FUNCTION["task"], "function": "tests.helpers.toys:plateau"},
        "algorithm": {**settings(kind), **stops},
    }


MIXED = {
    "task": {"kind": "function", "function": "tests.helpers.toys:mixed", "parameters": toys.MIXED}
}
DISC = {
    "task": {
        **FUNCTION["task"],
        "function": "tests.helpers.toys:disc",
        "dimension": 4,
        "constraints": 2,
    }
}
LAGRANGIAN = {"task": {**DISC["task"], "constraint_handling": "augmented_lagrangian"}}
ADAPT_MIXED = [kind for kind in KINDS if registry.module("algorithms", kind).NEEDS.mixed]


def mixed(kind: str) -> dict[str, Any]:
    """Parameters of every type, with a restart at a random vector after each second generation."""
    restarts = {"restarts": "ipop", "stops": {"max_generations": 2}}
    return {
        "task": {**MIXED["task"], "initial": "random"},
        "algorithm": {"kind": kind, "population_size": 6, **restarts},
    }


INJECT = [kind for kind in KINDS if registry.module("algorithms", kind).NEEDS.injects]
MIXED_POINTS = {
    "task": {**MIXED["task"], "initial_points": str(ROOT / "tests/helpers/mixed_points.csv")}
}
DISC_POINTS = {
    "task": {**DISC["task"], "initial_points": str(ROOT / "tests/helpers/disc_points.json")}
}


SHORT = {kind: {**FUNCTION, "algorithm": settings(kind)} for kind in KINDS}
ALL = {
    **{f"{kind}, blocks": {**ITEMS, **BLOCKS, "algorithm": settings(kind)} for kind in KINDS},
    **{f"{kind}, episodes": {**ITEMS, **EPISODES, "algorithm": settings(kind)} for kind in KINDS},
    **{f"{kind}, plateau": {**ITEMS, **on_a_plateau(kind)} for kind in KINDS},
    **{
        f"{kind}, constraints": {**ITEMS, **DISC, "algorithm": settings(kind)}
        for kind in ("cma_es", "snes", "es")
    },
    "augmented Lagrangian": {**ITEMS, **LAGRANGIAN, "algorithm": settings("cma_es")},
    **{f"{kind}, mixed": {**ITEMS, **mixed(kind)} for kind in ADAPT_MIXED},
    **{
        f"{kind}, mixed points": {**ITEMS, **MIXED_POINTS, "algorithm": settings(kind)}
        for kind in INJECT
    },
    **{f"{kind}, points": {**ITEMS, **DISC_POINTS, "algorithm": settings(kind)} for kind in INJECT},
    **{
        f"{kind}, side by side": {**ITEMS, **alternating(kind)}
        for kind in KINDS
        if has(kind, "side_by_side")
    },
    **{
        f"{kind}, restarts": {**ITEMS, **restarting(kind)}
        for kind in KINDS
        if has(kind, "restarts")
    },
}

TRAIN = """
    import json, sys
    from pathlib import Path
    import hpc_es

    variants, directory, generations = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), int(sys.argv[3])
    for name, config in variants.items():
        for row in hpc_es.train({**config, "stop": {"generations": generations}}, directory / name):
            pass
"""


def trained(
    variants: dict[str, Any], ranks: int, directory: Path, generations: int = GENERATIONS
) -> Path:
    """The directory of these variants, trained by a job of this number of ranks so far."""
    directory.parent.mkdir(exist_ok=True)
    configs = directory.parent / "variants.json"
    configs.write_text(
        json.dumps({name: {**COMMON, **config} for name, config in variants.items()})
    )
    arguments = [*script(TRAIN), str(configs), str(directory), str(generations)]
    job = mpiexec(ranks, arguments, timeout_seconds=300, cwd=ROOT)
    assert job.status == 0, job.stderr
    return directory


def assert_all_same(variants: dict[str, Any], result: Path, alone: Path) -> None:
    """Assert that each variant equals the run on one rank."""
    for variant in variants:
        runs.assert_same(result / variant, alone / variant)
        assert runs.newest(result / variant).state.generation == GENERATIONS
    assert len({runs.digest(runs.newest(result / variant)) for variant in variants}) == len(
        variants
    )


@pytest.mark.long
def test_three_ranks_then_two_equal_one_rank(tmp_path: Path) -> None:
    alone = trained(SHORT, 1, tmp_path / "1")
    trained(SHORT, 3, tmp_path / "32", 2)
    assert_all_same(SHORT, trained(SHORT, 2, tmp_path / "32"), alone)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of all variants on one rank."""
    return trained(ALL, 1, tmp_path_factory.mktemp("every_strategy") / "1")


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_results_do_not_depend_on_the_number_of_ranks(
    alone: Path, ranks: int, tmp_path: Path
) -> None:
    assert_all_same(ALL, trained(ALL, ranks, tmp_path / str(ranks)), alone)


@pytest.mark.long
def test_stops_after_each_generation_do_not_change_results(alone: Path, tmp_path: Path) -> None:
    for generations in range(1, GENERATIONS + 1):
        trained(ALL, 1 + generations % 3, tmp_path / "often", generations)
    assert_all_same(ALL, tmp_path / "often", alone)


@pytest.mark.long
def test_every_variant_uses_the_option_in_its_name(alone: Path) -> None:
    for kind in KINDS:
        rows = runs.rows(alone / f"{kind}, episodes")
        assert sum(row["failed_episodes"] for row in rows) > 0
        assert rows[-1]["observation_count"] > 1
        if has(kind, "restarts"):
            restarts = [row["restarts"] for row in runs.rows(alone / f"{kind}, restarts")]
            assert restarts == [0, 0, 1, 1, 2]
