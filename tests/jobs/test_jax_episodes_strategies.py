"""Jobs of compiled episodes: every strategy on two ranks, repetitions in groups, tuning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, start
from tests.helpers.stepping import KINDS
from tests.jobs.test_jax_episodes import TINY, finished

RECURRENT = "lstm"  # a policy, by OpenAI-ES
ALL = """
import sys
from pathlib import Path
import hpc_es
from tests.jobs.test_jax_episodes_strategies import settings
for name in sys.argv[2:]:
    list(hpc_es.train(settings(name), Path(sys.argv[1]) / name))
"""
TUNING = """
base: tiny.yaml
search: grid
space: {algorithm.sigma: [0.1, 0.2], task.env_kwargs: [{}], stop.generations: [2]}
"""


def settings(name: str) -> dict[str, object]:
    """The config of a strategy, whose policy sees normalised observations."""
    task = {
        **{
            "kind": "jax_episodes",
            "env_id": "tests.helpers.jax_walk:walk",
            "lanes": 4,
            "jobs_per_call": 8,
        },
        **{
            "compilation_cache": False,
            "observation_normalization": {"enabled": True, "probability": 0.5},
        },
        "behaviour": {"final_observation": [0]},
    }
    return {
        **{
            "seed": 1,
            "task": task,
            "noise": {"kind": "counter"},
            "evaluation": {"interval": 1, "episodes": 2},
        },
        "policy": {"kind": RECURRENT if name == RECURRENT else "mlp", "hidden_dims": [4]},
        "algorithm": {"kind": "es" if name == RECURRENT else name},
        **{"report": {"plot_interval_seconds": 0}, "stop": {"generations": 2}},
    }


def job(ranks: int, *arguments: str, cache: Path) -> Finished:
    """Run a job that uses the compilation cache of another one."""
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with start(ranks, arguments, env, ROOT) as started:
        done = started.wait(300)
    assert done.status == 0, str(done)
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All strategies in one job of one rank, and in one of two."""
    folder = tmp_path_factory.mktemp("strategies")
    for ranks in (1, 2):
        job(ranks, "-c", ALL, str(folder / f"{ranks}"), *KINDS, RECURRENT, cache=folder / "cache")
    return folder


@pytest.mark.parametrize("name", [*KINDS, RECURRENT])
def test_every_strategy_is_identical_on_two_ranks(name: str, folder: Path) -> None:
    runs.assert_same(folder / "2" / name, folder / "1" / name)
    result = runs.rows(folder / "1" / name)
    assert len(result) == 2
    assert all(np.isfinite(row["return_mean"]) for row in result)
    assert result[-1]["observation_count"] > 0


def test_repetitions_in_groups_equal_those_of_one_rank(tmp_path: Path) -> None:
    options = ("repetitions=2", "stop.generations=3")
    finished(1, tmp_path / "one", *options)
    finished(2, tmp_path / "two", *options, "repetition_groups=2")
    for name in ("repetition_0000", "repetition_0001"):
        runs.assert_same(tmp_path / "two" / name, tmp_path / "one" / name)


def test_tuning_of_compiled_episodes_runs(tmp_path: Path) -> None:
    """Two trials on two ranks; if they share a cache, the second compiles nothing."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "tuning.yaml").write_text(TUNING)
    arguments = (
        "-m",
        "hpc_es",
        "tune",
        str(tmp_path / "tuning.yaml"),
        "--output",
        str(tmp_path / "study"),
    )
    done = job(2, *arguments, cache=tmp_path / "cache")
    assert "2 trials: 2 complete" in done.stdout
    assert len(list((tmp_path / "cache").glob("jit_segment*-cache"))) == 1
