"""Whole runs of `task: {kind: model, call: each}`: results on any ranks and after a kill, base
weights that have changed; evaluation, export, loading.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import hpc_es
from hpc_es.cli import main
from hpc_es.core.data import State
from hpc_es.storage.checkpoint import load, save
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, Job, start

TINY = """
seed: 1
task: {kind: model, model: "tests.helpers.own_engines:Held", call: each, model_kwargs: {unused: 500}}
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
    slow = TINY.replace("unused: 500", "unused: 500, seconds: 0.005")
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
    text = TINY.replace("Held", "from_file").replace("unused: 500", f"path: {base}")
    finished(1, run, text=text)
    base.write_text("0.25")
    with begin(1, run, "stop.generations=8", text=text) as job:
        done = job.wait(120)
    assert done.status == 2
    assert "was started from base weights with SHA-256" in str(done)
    base.write_text("0.5")
    finished(2, run, "stop.generations=8", text=text)


def test_state_is_rebuilt_elsewhere_from_base_weights_and_rows(
    reference: Path, tmp_path: Path
) -> None:
    """A checkpoint of 2 updates without the full one of generation 0, to which they refer."""
    run, name = tmp_path / "run", "checkpoint_0000000002.h5"
    (run / "checkpoints").mkdir(parents=True)
    shutil.copy(reference / "checkpoints" / name, run / "checkpoints")
    done = finished(2, run)
    assert "recomputing 2 updates since checkpoint_0000000000.h5" in str(done)
    assert runs.digest(runs.newest(run)) == runs.digest(runs.newest(reference))


def test_changed_rows_are_not_taken_for_those_of_the_run(reference: Path, tmp_path: Path) -> None:
    """The state that they give has another digest."""
    run, name = tmp_path / "run", "checkpoint_0000000002.h5"
    (run / "checkpoints").mkdir(parents=True)
    first = load(reference / "checkpoints" / name)
    assert first.increment is not None
    bare = dataclasses.replace(first, state=State(0, {}, {}))
    swapped = first.increment.learned_from[::-1]
    other = dataclasses.replace(first.increment, learned_from=swapped)
    save(run / "checkpoints" / name, dataclasses.replace(bare, increment=other))
    with begin(1, run) as job:
        done = job.wait(120)
    assert done.status
    assert "differs from the saved state" in str(done)


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
    assert found["score_mean"] == pytest.approx(expected)
    assert found["info_absolute"] == pytest.approx(metrics["absolute"])
    with pytest.raises(SystemExit):
        main(["export", str(reference), str(tmp_path / "theta.npz"), "--which", "last"])
    with np.load(tmp_path / "theta.npz") as exported:
        np.testing.assert_array_equal(exported["slope"], model.arrays["slope"])
