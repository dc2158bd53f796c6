"""Whole runs of `task: {kind: model}`: results on any ranks and after a kill; evaluation,
export, loading.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import hpc_es
from hpc_es.api.evaluate import EvaluationRequest, evaluate_all, prepare_all
from hpc_es.cli import main
from hpc_es.cluster.gpu_memory import gpu_memory
from hpc_es.config.loading import validate
from hpc_es.mpi.world import World
from hpc_es.report.curves import load
from hpc_es.tasks.model import jax_model
from hpc_es.training import check as checking
from tests.helpers import own_models, runs
from tests.helpers.harness import ROOT, Finished, Job, start

MODELS = "tests.helpers.own_models"
TINY = f"""
seed: 1
task: {{kind: model, model: "{MODELS}:sometimes_infinite", jobs_per_call: 4}}
algorithm: {{kind: es, population_size: 14, sigma: 0.1, optimizer: {{kind: adam, learning_rate: 0.1}}}}
noise: {{kind: counter}}
evaluation: {{interval: 2}}
checkpoint: {{interval: 1, interval_seconds: 0, keep_last: 1000, full_interval: 3}}
stop: {{generations: 6}}
report: {{plot_interval_seconds: 0}}
"""


def begin(ranks: int, run: Path, *overrides: str) -> Job:
    config = runs.tiny(run.parent, TINY)
    return start(
        ranks, ("-m", "hpc_es.main", str(config), "--output", str(run), *overrides), None, ROOT
    )


def finished(ranks: int, run: Path, *overrides: str) -> Finished:
    with begin(ranks, run, *overrides) as job:
        done = job.wait(120)
    assert done.status == 0, str(done)
    return done


def config(name: str = "line", algorithm: Any = None, **sections: Any) -> Any:
    return validate(
        {
            "seed": 1,
            "task": {
                "kind": "model",
                "model": f"{MODELS}:{name}",
                "jobs_per_call": 8,
                "compilation_cache": False,
            },
            "algorithm": {
                **{"kind": "es", "population_size": 32, "sigma": 0.1},
                "optimizer": {"kind": "adam", "learning_rate": 0.2},
                **(algorithm or {}),
            },
            "noise": {"kind": "counter"},
            "evaluation": {"interval": 1},
            "report": {"plot_interval_seconds": 0},
            "stop": {"generations": 2},
            **sections,
        }
    )


def trained(run: Path, *arguments: Any, **sections: Any) -> list[dict[str, Any]]:
    return list(hpc_es.train(config(*arguments, **sections), run))


def output(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert not left.value.code
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, and a checkpoint of each generation."""
    run = tmp_path_factory.mktemp("reference") / "run"
    finished(1, run)
    return run


@pytest.mark.parametrize("overrides", [(3,), (2, "mpi.update=replicated", "mpi.chunk_size=5")])
def test_results_do_not_depend_on_ranks_and_update(
    reference: Path, tmp_path: Path, overrides: tuple[Any, ...]
) -> None:
    ranks, *others = overrides
    finished(ranks, tmp_path / "run", *others)
    runs.assert_same(tmp_path / "run", reference)


def test_killed_run_resumes_on_other_ranks(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begin(2, run, "stop.generations=100000") as job:
        runs.wait_for(lambda: runs.generation(run) > 3, 120.0)
        job.kill()
    finished(3, run, f"stop.generations={runs.newest(run).state.generation + 2}")
    longer = tmp_path / "longer"
    finished(1, longer, f"stop.generations={runs.newest(run).state.generation}")
    assert runs.digest(runs.newest(run)) == runs.digest(runs.newest(longer))
    assert runs.rows(run) == runs.rows(longer)


def test_exceptions_in_called_code_are_failures_on_any_ranks(tmp_path: Path) -> None:
    """The calls of a round differ: 14 candidates are 4, 4, 4 and 2 on one rank, and 3, 3, 3,
    3 and 2 on two.
    """
    model = (f"task.model={MODELS}:calling", "stop.generations=3")
    finished(1, tmp_path / "one", *model)
    done = finished(2, tmp_path / "two", *model, "mpi.chunk_size=3")
    runs.assert_same(tmp_path / "two", tmp_path / "one")
    assert sum(row["failed_evaluations"] for row in runs.rows(tmp_path / "one")) > 0
    assert "Traceback" not in str(done)
    assert done.stdout.startswith("starting JAX, and compiling what it computes ...\n")
    assert done.stdout.count("starting") == 1  # by rank 0
    log = (tmp_path / "one" / "failures.log").read_text()
    assert "ValueError: too steep (own_models.py:" in log
    assert "site-packages" not in log


def test_resumed_run_does_not_create_initial_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    trained(run, stop={"generations": 1})
    trained(whole, stop={"generations": 2})
    monkeypatch.setattr(
        jax_model.Model, "initial", lambda *_: pytest.fail("a large model would be in memory twice")
    )
    trained(run, stop={"generations": 2})
    assert runs.digest(runs.newest(run)) == runs.digest(runs.newest(whole))


def test_reference_run_covers_failures_and_records_the_call(reference: Path) -> None:
    """Otherwise the comparisons above would cover less than intended."""
    assert sum(row["failed_evaluations"] for row in runs.rows(reference)) > 0
    compiled = runs.newest(reference).provenance["compiled_for"]
    assert (compiled["platform"], compiled["jobs_per_call"]) == ("cpu", 4)


def test_texts_about_a_model_name_scores_and_evaluations(reference: Path) -> None:
    log = (reference / "log.txt").read_text()
    for expected in (
        r"  score -?[\d.]+ ± [\d.]+  score of centre ",
        r"  evaluations \d+  ",
        r"  failed evaluations \d",
    ):
        assert re.search(expected, log), expected
    assert not re.search("episode|timestep|steps/s", log)
    assert load(reference).measure.label == "score"
    assert load(reference).measure.panels[0] == "evaluations"


def test_evaluation_of_a_model_without_a_finite_score_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "run")
    monkeypatch.setattr(
        own_models, "points", lambda seed, rows=8: (np.full((rows, 2), np.inf), np.zeros(rows))
    )
    with pytest.raises(SystemExit) as left:
        main(["eval", str(tmp_path / "run"), "--trust"])
    assert left.value.code == 1
    assert "evaluation 0 failed: the score is nan" in capsys.readouterr().err


def test_es_finds_the_plane_and_the_best_parameters_are_loaded_evaluated_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    rows = trained(
        run, stop={"generations": 60}, report={"plot_interval_seconds": 0, "info": ["absolute"]}
    )
    assert rows[0]["centre_score_mean"] < -3  # the mean of 1 + x . x with a variance of 5
    assert rows[-1]["centre_score_mean"] > -0.05
    assert rows[-1]["centre_info_absolute"] < 0.2
    assert rows[-1]["evaluations_total"] == 60 * 32
    model = hpc_es.load_model(run, "last", trust=True)
    assert model.parameters["slope"] == pytest.approx(own_models.SLOPE, abs=0.1)
    assert model.parameters["offset"]["bias"] == pytest.approx(1, abs=0.1)
    result = json.loads(output(capsys, ["eval", str(run), "--which", "last", "--trust", "--json"]))
    assert (result["evaluations"], result["model"]) == (1, f"{MODELS}:line")
    assert 0 < result["info_absolute"] < 0.2
    prepared = prepare_all(run, lambda source: source, trust=True)
    every = evaluate_all(World("none"), prepared, EvaluationRequest(5, 0), lambda source: source)
    assert [row["snapshot"] for row in every][-1] == "best.h5"
    assert every[-2]["score_mean"] == result["score_mean"]
    output(capsys, ["export", str(run), str(tmp_path / "theta.npz"), "--which", "last", "--trust"])
    with zipfile.ZipFile(tmp_path / "theta.npz") as archive:
        assert archive.namelist() == ["offset/bias.npy", "slope.npy"]
    with np.load(tmp_path / "theta.npz") as arrays:
        assert arrays["slope"].tobytes() == model.arrays["slope"].tobytes()


NOISE = {
    "full": "{kind: counter}",
    "rank 1": "{kind: counter, rank: 1}",
    "rank 4": "{kind: counter, rank: 4}",
}


@pytest.mark.long
@pytest.mark.parametrize("noise", NOISE)
def test_keras_model_killed_on_two_ranks_and_resumed_on_three_equals_one_rank(
    noise: str, tmp_path: Path
) -> None:
    own_models.skip_without_keras()
    options, run = (f"task.model={MODELS}:keras_layers", f"noise={NOISE[noise]}"), tmp_path / "run"
    with begin(2, run, *options, "stop.generations=100000") as job:
        runs.wait_for(lambda: runs.generation(run) > 3, 240.0)
        job.kill()
    end = f"stop.generations={runs.newest(run).state.generation + 2}"
    finished(3, run, *options, end)
    reference = tmp_path / "reference"
    runs.here(runs.tiny(tmp_path, TINY), reference, [*options, end])
    runs.assert_same(run, reference)
    assert len({row["score_mean"] for row in runs.rows(run)}) > 3  # the search moves


def test_keras_model_is_trained_evaluated_loaded_and_exported_with_its_constants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Statistics of BatchNorm and frozen layers do not change, and dropout has no effect."""
    own_models.skip_without_keras()
    run = tmp_path / "run"
    trained(run, "keras_layers")
    import keras

    output(capsys, ["export", str(run), str(tmp_path / "line.keras"), "--which", "last", "--trust"])
    exported = keras.saving.load_model(tmp_path / "line.keras", compile=False)
    loaded = hpc_es.load_model(run, "last", trust=True).parameters
    for model in (exported, loaded):
        weights = np.concatenate(
            [np.ravel(variable.value) for variable in model.trainable_variables]
        )
        assert weights.tobytes() == runs.newest(run).state.theta.tobytes()
        np.testing.assert_array_equal(
            model.get_layer("norm").moving_mean, np.linspace(-1, 1, 16, dtype="f4")
        )
    frozen = [model.layers[0].kernel.value for model in (exported, loaded)]
    np.testing.assert_array_equal(*frozen)
    x, y = own_models.points(1000, 100)
    expected = -np.mean((np.asarray(exported(x))[:, 0] - y) ** 2)
    result = json.loads(output(capsys, ["eval", str(run), "--which", "last", "--trust", "--json"]))
    assert result["score_mean"] == pytest.approx(expected, rel=1e-5)


def test_policy_is_not_loaded_from_a_run_of_a_model(reference: Path) -> None:
    with pytest.raises(Exception, match=r"hpc_es\.load_model loads it"):
        hpc_es.load_policy(reference, trust=True)


def test_check_shows_parameters_batches_and_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        checking.check(config(report={"info": ["absolute"]}), ranks=2, output=tmp_path / "run") == 0
    )
    text = capsys.readouterr().out
    assert f"model {MODELS}:line: 3 parameters in 2 arrays" in text
    assert "batches (float32[8, 2], float32[8]), validation (float32[100, 2], float32[100])" in text
    assert "chunks: 8 jobs (task.jobs_per_call)" in text
    assert "a call of 8 candidates: " in text


def test_plan_counts_the_candidates_and_the_batch_of_a_call() -> None:
    """8 candidates of 3 numbers, and a batch of 8 x 2 and 8 numbers: 192 bytes are read."""
    found = gpu_memory(config())
    assert (found.parameters, found.call.jobs, found.call.arguments) == (3, 8, 192)
    assert found.call.total > 192 and found.shared["theta"] == 12


STRATEGIES: dict[str, dict[str, Any]] = {
    "ars": {"population_size": 16, "top_directions": 4},
    "cma_es": {"sigma": 0.3},
    "cr_fm_nes": {"sigma": 0.3},
    "deep_ga": {"population_size": 16, "validate_top": 2, "validation_episodes": 3},
    "es": {"population_size": 16},
    "pgpe": {"population_size": 16},
    "sep_cma_es": {"sigma": 0.3},
    "snes": {"sigma": 0.3},
    "xnes": {"sigma": 0.3},
}


@pytest.mark.long
@pytest.mark.parametrize("kind", STRATEGIES)
def test_every_strategy_on_vectors_improves_the_score(kind: str, tmp_path: Path) -> None:
    algorithm = {"kind": kind, **STRATEGIES[kind]}
    task = {
        "kind": "model",
        "model": f"{MODELS}:line",
        "jobs_per_call": 8,
        "compilation_cache": False,
    }
    settings: dict[str, Any] = {
        "seed": 1,
        "task": task,
        "algorithm": algorithm,
        "stop": {"generations": 40},
    }
    settings |= {"evaluation": {"interval": 1}, "report": {"plot_interval_seconds": 0}}
    rows = list(hpc_es.train(validate(settings), tmp_path / "run"))
    assert rows[-1]["centre_score_mean"] > rows[0]["centre_score_mean"]


def test_tuning_ranks_the_trials_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = TINY.replace("sometimes_infinite", "line").replace("generations: 6", "generations: 2")
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "tune.yaml").write_text(
        "{base: base.yaml, space: {algorithm.optimizer.learning_rate: [0.001, 0.5]}}"
    )
    arguments = (
        "-m",
        "hpc_es",
        "tune",
        str(tmp_path / "tune.yaml"),
        "--output",
        str(tmp_path / "tuned"),
    )
    with start(1, arguments, None, ROOT) as job:
        done = job.wait(120)
    assert done.status == 0, str(done)
    report = output(capsys, ["tune-report", str(tmp_path / "tuned")])
    assert report.index("0.5") < report.index("0.001")  # the best trial comes first
