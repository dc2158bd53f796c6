"""Whole runs of `task: {kind: model, call: each}`: results on any ranks and after a kill, base
weights that have changed; evaluation, export, loading.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hpc_es
from hpc_es.cli import main
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, Job, start

TINY = """
seed: 1
task: {kind: model, model: "tests.helpers.own_engines:Held", call: each}
algorithm: {kind: es, population_size: 10, sigma: 0.1, optimizer: {kind: adam, learning_rate: 0.1}}
noise: {kind: counter}
evaluation: {interval: 2}
checkpoint: {interval: 1, interval_seconds: 0, keep_last: 1000, full_interval: 3}
stop: {generations: 6}
report: {plot_interval_seconds: 0, info: [absolute]}
"""


def begin(ranks: int, run: Path, *overrides: str, text: str = TINY) -> Job:
    config = runs.tiny(run.parent, text)
    arguments = ("-m", "hpc_es.main", str(config), "--output", str(run), *overrides)
    return start(ranks, arguments, None, ROOT)


def finished(ranks: int, run: Path, *overrides: str, text: str = TINY) -> Finished:
    with begin(ranks, run, *overrides, text=text) as job:
        done = job.wait(120)
    assert done.status == 0, str(done)
    return done


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, and a checkpoint of each generation."""
    run = tmp_path_factory.mktemp("reference") / "run"
    finished(1, run)
    return run


@pytest.mark.parametrize(
    "overrides", [(2,), (3, "mpi.update=replicated", "mpi.chunk_size=3", "mpi.schedule=static")]
)
def test_results_do_not_depend_on_ranks_update_and_chunks(
    reference: Path, tmp_path: Path, overrides: tuple[int | str, ...]
) -> None:
    ranks, *others = overrides
    assert isinstance(ranks, int)
    finished(ranks, tmp_path / "run", *map(str, others))
    runs.assert_same(tmp_path / "run", reference)


def test_killed_run_resumes_on_other_ranks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    slow = TINY.replace("call: each", "call: each, model_kwargs: {seconds: 0.005}")
    with begin(2, run, "stop.generations=100000", text=slow) as job:
        runs.wait_for(lambda: runs.generation(run) > 3, 120.0)
        job.kill()
    end = runs.newest(run).state.generation + 2
    finished(3, run, f"stop.generations={end}", text=slow)
    longer = tmp_path / "longer"
    finished(1, longer, f"stop.generations={end}", text=slow)
    assert runs.digest(runs.newest(run)) == runs.digest(runs.newest(longer))
    assert runs.rows(run) == runs.rows(longer)


def test_other_base_weights_are_refused_on_resume(tmp_path: Path) -> None:
    base, run = tmp_path / "base.txt", tmp_path / "run"
    base.write_text("0.5")
    engine = f'from_file", model_kwargs: {{path: {base}}}'
    text = TINY.replace('Held"', engine)
    finished(1, run, text=text)
    base.write_text("0.25")
    with begin(1, run, "stop.generations=8", text=text) as job:
        done = job.wait(120)
    assert done.status == 2
    assert "was started from base weights with SHA-256" in str(done)
    base.write_text("0.5")
    finished(2, run, "stop.generations=8", text=text)


def test_runs_are_evaluated_exported_and_loaded(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = hpc_es.load_model(reference, "last")
    assert model.parameters.weights["slope"].dtype == np.float16
    np.testing.assert_array_equal(
        model.parameters.weights["slope"], model.arrays["slope"].astype(np.float16)
    )
    batch = model.parameters.validation()
    expected, metrics = model.parameters.score(batch)
    with pytest.raises(SystemExit):
        main(["eval", str(reference), "--which", "last", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["return_mean"] == pytest.approx(expected)
    assert found["info_absolute"] == pytest.approx(metrics["absolute"])
    with pytest.raises(SystemExit):
        main(["export", str(reference), str(tmp_path / "theta.npz"), "--which", "last"])
    with np.load(tmp_path / "theta.npz") as exported:
        np.testing.assert_array_equal(exported["slope"], model.arrays["slope"])
