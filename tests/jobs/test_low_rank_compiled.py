"""Jobs with `noise.rank` in compiled environments and models: identical results on any ranks,
and after a kill.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
from hpc_es.config.loading import load
from hpc_es.training.check import check
from tests.helpers import runs

WALK = (
    "task={kind: jax_episodes, env_id: 'tests.helpers.jax_walk:walk', lanes: 3, jobs_per_call: 5}"
)
MODEL = "task={kind: model, model: 'tests.helpers.own_models:layers', jobs_per_call: 5}"
EPISODES = [WALK, "policy.hidden_dims=[12, 12]", "noise={kind: counter, rank: 1}", *runs.EVERY]
SCORES = [
    MODEL,
    "policy=null",
    "noise={kind: counter, rank: 4}",
    "checkpoint.full_interval=3",
    *runs.EVERY,
]
REPLICATED = "mpi.update=replicated"
VARIANTS = {
    "episodes": EPISODES,
    "episodes, replicated": [*EPISODES, REPLICATED],
    "model": SCORES,
    "model, replicated": [*SCORES, REPLICATED],
    "model, delay": [*SCORES, "algorithm.delay=1"],
    "episodes, full": [*EPISODES, "noise={kind: counter}"],
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A function from the number of ranks to the directory of all variants."""
    variants = {name: [*overrides, "stop.generations=3"] for name, overrides in VARIANTS.items()}
    return runs.trained_variants(tmp_path_factory.mktemp("low_rank"), variants)


@pytest.mark.parametrize("variant", ["episodes", "model", "model, delay"])
def test_results_do_not_depend_on_the_number_of_ranks(
    done: Callable[[int], Path], variant: str
) -> None:
    for ranks in (2, 3):
        runs.assert_same(done(ranks) / variant, done(1) / variant)


@pytest.mark.parametrize("variant", ["episodes", "model"])
def test_results_do_not_depend_on_how_updates_are_shared(
    done: Callable[[int], Path], variant: str
) -> None:
    runs.assert_same(done(3) / f"{variant}, replicated", done(1) / variant)


def test_low_rank_differs_from_full_noise(done: Callable[[int], Path]) -> None:
    """Otherwise the comparisons above would not be about factors."""
    thetas = [
        runs.newest(done(1) / variant).state.theta.tobytes()
        for variant in ("episodes", "episodes, full")
    ]
    assert thetas[0] != thetas[1]


@pytest.mark.long
@pytest.mark.parametrize("options", [EPISODES, SCORES], ids=["episodes", "model"])
def test_killed_run_resumes_with_identical_results(tmp_path: Path, options: list[str]) -> None:
    generations = runs.killed_and_resumed(tmp_path / "run", 2, 1, *options)
    reference = tmp_path / "reference"
    runs.here(runs.tiny(tmp_path), reference, [*options, f"stop.generations={generations}"])
    runs.assert_same(tmp_path / "run", reference)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (EPISODES, "candidate: none"),
        (SCORES, "candidate: kernel, recurrent; noise.full: [...] gives"),
    ],
)
def test_check_names_the_matrices_that_are_formed(
    tmp_path: Path, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(load(runs.tiny(tmp_path), options)) == 0
    assert text in capsys.readouterr().out
