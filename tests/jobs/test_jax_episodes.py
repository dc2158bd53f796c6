"""Whole runs of compiled episodes: identical results on any number of ranks and after a kill."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import hpc_es
from hpc_es.cli import main
from hpc_es.cluster.gpu_memory import gpu_memory
from hpc_es.config.loading import validate
from hpc_es.core.data import Discrete
from hpc_es.trained.policy import load_policy
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, Job, start
from tests.helpers.jax_playing import WALK, parts, played

TINY = f"""
seed: 1
task:
  kind: jax_episodes
  env_id: '{WALK}'
  env_kwargs: {{nan_observation_at: 9}}
  lanes: 3
  jobs_per_call: 4
  observation_normalization: {{enabled: true, probability: 0.5}}
policy: {{kind: mlp, hidden_dims: [4], action_noise_std: 0.05}}
algorithm: {{kind: es, population_size: 20, sigma: 0.1, optimizer: {{kind: adam, learning_rate: 0.05}}}}
noise: {{kind: counter}}
evaluation: {{interval: 2, episodes: 3}}
checkpoint: {{interval: 1, interval_seconds: 0, keep_last: 1000}}
stop: {{generations: 8}}
report: {{plot_interval_seconds: 0}}
"""


def begin(ranks: int, run: Path, *overrides: str) -> Job:
    config = run.parent / "tiny.yaml"
    run.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(TINY)
    return start(
        ranks, ("-m", "hpc_es.main", str(config), "--output", str(run), *overrides), None, ROOT
    )


def finished(ranks: int, run: Path, *overrides: str) -> Finished:
    with begin(ranks, run, *overrides) as job:
        done = job.wait(120)
    assert done.status == 0, str(done)
    return done


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, and a checkpoint of each generation."""
    run = tmp_path_factory.mktemp("reference") / "run"
    finished(1, run)
    return run


def test_automatic_sizes_are_chosen_once(tmp_path: Path) -> None:
    auto = ("task.lanes=auto", "task.jobs_per_call=auto", "algorithm.population_size=64")
    for name, overrides in (
        ("auto", auto),
        ("given", (*auto[2:], "task.lanes=16", "task.jobs_per_call=16")),
    ):
        finished(2, tmp_path / name, *overrides, "stop={generations: 2}")
    runs.assert_same(tmp_path / "auto", tmp_path / "given")
    # A resumed run keeps the sizes of its config.yaml, whatever the rule says now.
    overrides = [f"algorithm.population_size={64}", "task.lanes=8", "task.jobs_per_call=8"]
    finished(1, tmp_path / "kept", *overrides, "stop={generations: 2}")
    finished(1, tmp_path / "kept", *auto)
    finished(1, tmp_path / "whole", *overrides)
    runs.assert_same(tmp_path / "kept", tmp_path / "whole")


@pytest.mark.parametrize(("ranks", "chunk_size"), [(2, 5), (3, 16)])
def test_results_do_not_depend_on_ranks_and_chunk_size(
    reference: Path, tmp_path: Path, ranks: int, chunk_size: int
) -> None:
    done = finished(ranks, tmp_path / "run", f"mpi.chunk_size={chunk_size}")
    runs.assert_same(tmp_path / "run", reference)
    warning = f"mpi.chunk_size: is {chunk_size}, but does nothing: the task jax_episodes has task.jobs_per_call for it"
    assert warning in done.stdout + done.stderr


def test_killed_run_resumes_on_other_ranks(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begin(2, run, "stop.generations=100000") as job:
        runs.wait_for(lambda: runs.generation(run) >= 3, 120)
        job.signal(1, signal.SIGKILL)
        job.wait(30)
    before = runs.newest(run).state.generation
    assert before >= 2
    finished(1, run, f"stop.generations={before + 2}")
    longer = tmp_path / "longer"
    finished(1, longer, f"stop.generations={before + 2}")
    runs.assert_same(run, longer)


def test_run_includes_failures_and_observation_statistics(reference: Path) -> None:
    """Otherwise the comparisons above would cover less than intended."""
    result = runs.rows(reference)
    assert sum(row["failed_episodes"] for row in result) > 0
    assert result[-1]["observation_count"] > 0


def test_checkpoint_records_device_and_compilation_options(reference: Path) -> None:
    message = runs.newest(reference).provenance
    assert message["versions"]["jax"]
    assert message["versions"]["jaxlib"]
    assert message["compiled_for"]["platform"] == "cpu"
    assert message["compiled_for"]["device_kind"] == "cpu"
    assert message["compiled_for"]["lanes"] == 3
    assert "--xla_cpu_multi_thread_eigen=false" in message["compiled_for"]["xla_flags"]


def test_compilation_cache_is_private_and_used(reference: Path) -> None:
    """Rank 0 compiles once; a second run in the same directory adds no entries."""
    folder = reference / "jax_cache"
    assert folder.stat().st_mode & 0o777 == 0o700
    (own,) = [path for path in folder.iterdir() if path.is_dir()]
    assert own.stat().st_mode & 0o777 == 0o700
    compiled = {path.name for path in own.iterdir() if path.name.startswith("jit_segment")}
    assert len({name.removesuffix("-cache").removesuffix("-atime") for name in compiled}) == 1
    finished(2, reference, "stop.generations=9")
    assert {path.name for path in own.iterdir() if path.name.startswith("jit_segment")} == compiled


def test_loaded_policy_acts_as_the_compiled_one(reference: Path) -> None:
    """The NumPy actor agrees to about 1e-6: an episode of one step returns the action."""
    policy = load_policy(reference, "last", trust=True)
    assert not isinstance(policy.spaces.actions, Discrete)
    created = parts((("hidden_dims", (4,)),), max_episode_steps=1)
    source = policy.source
    result = played(created, source.theta[np.newaxis], [7], source.normaliser).rows["return_"][0]
    _, first = created[0].traced.reset(_reset_key(7))
    assert policy(np.asarray(first)) == pytest.approx(result, abs=1e-5)


def _reset_key(seed: int) -> Any:
    import jax

    return jax.random.split(jax.random.key(seed, impl="threefry2x32"))[0]


def status(*arguments: str) -> int:
    """That of the command hpc-es."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)


def test_eval_plays_compiled_episodes(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same numbers twice; 20 episodes are more than the jobs of one call."""
    texts = []
    for _ in range(2):
        assert status("eval", str(reference), "--episodes", "20", "--seed", "3", "--trust") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "20" in texts[0]


def test_eval_uses_the_compilation_cache_of_the_run(reference: Path) -> None:
    """It reads the call from the cache of the run and adds only small functions."""
    import jax

    def calls() -> set[str]:
        folder = Path(jax.config.jax_compilation_cache_dir).resolve()
        assert folder.parent == reference / "jax_cache"
        return {path.name for path in folder.iterdir() if path.stat().st_size > 20_000}

    assert status("eval", str(reference), "--episodes", "20", "--seed", "3", "--trust") == 0
    before = calls()
    assert before
    jax.clear_caches()
    assert status("eval", str(reference), "--episodes", "20", "--seed", "3", "--trust") == 0
    assert calls() == before


def test_eval_of_compiled_episodes_has_no_video(reference: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio")
    assert status("eval", str(reference), "--trust", "--video", str(tmp_path / "film.gif")) == 2


# Strategies.

COMMON: dict[str, Any] = {
    "seed": 1,
    "noise": {"kind": "counter"},
    "policy": {"kind": "mlp", "hidden_dims": [4]},
    "evaluation": {"interval": 1, "episodes": 2},
    "report": {"plot_interval_seconds": 0},
    "stop": {"generations": 2},
}
TASK = {
    "kind": "jax_episodes",
    "env_id": WALK,
    "lanes": 4,
    "jobs_per_call": 8,
    "compilation_cache": False,
}


def test_es_walks_to_the_right(tmp_path: Path) -> None:
    """A linear policy: the best return is n (n + 1) / 2, by the action 1;
    a policy of zeros returns 0.
    """
    config = validate(
        {
            **COMMON,
            "task": {**TASK, "env_kwargs": {"longest": 1}},
            "policy": {"kind": "mlp", "hidden_dims": [], "initial": "zeros"},
            "algorithm": {
                "kind": "es",
                "population_size": 16,
                "sigma": 0.2,
                "optimizer": {"kind": "adam", "learning_rate": 0.3},
            },
            "stop": {"generations": 12},
        }
    )
    result = list(hpc_es.train(config, tmp_path / "run"))
    assert result[0]["evaluation_return_mean"] == 0.0
    assert result[-1]["evaluation_return_mean"] > 0.9


def test_plan_counts_the_candidates_of_a_call() -> None:
    """4 candidates of the walk's parameters are among what a call reads."""
    found = gpu_memory(
        validate(
            {
                "task": {"kind": "jax_episodes", "env_id": WALK, "lanes": 3, "jobs_per_call": 4},
                "policy": {"kind": "mlp", "hidden_dims": [4]},
                "noise": {"kind": "counter"},
            }
        )
    )
    assert found.call.jobs == 4 and found.noise_table == 0
    assert found.call.total > found.call.arguments > 4 * 4 * found.parameters
    assert found.shared["theta"] == 4 * found.parameters
