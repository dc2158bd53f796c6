"""Runs of engines of PyTorch: the same bits on any number of ranks and when they are rebuilt from
base weights and rows; evaluation and export.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
import hpc_es
from hpc_es import cli
from tests.helpers import runs

ENGINE = """
seed: 1
task: {kind: model, model: "tests.helpers.torch_engines:network", call: each, model_kwargs: {dtype: bfloat16}}
algorithm: {kind: es, population_size: 6, sigma: 0.1, anchored_decay: 0.1, optimizer: {kind: adam, learning_rate: 0.1}}
noise: {kind: portable, rank: 1}
mpi: {update: replicated}
evaluation: {interval: 2}
checkpoint: {interval: 1, interval_seconds: 0, keep_last: 1000, full_interval: 3}
stop: {generations: 4}
report: {plot_interval_seconds: 0}
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in this process."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.here(runs.tiny(run.parent, ENGINE), run, [])
    return run


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_digests_do_not_depend_on_the_number_of_ranks(
    ranks: int, reference: Path, tmp_path: Path
) -> None:
    config, run = runs.tiny(tmp_path, ENGINE), tmp_path / "run"
    line = ("-m", "hpc_es.main", str(config), "--output", str(run), "mpi.chunk_size=1")
    with runs.start(ranks, line, None, runs.ROOT) as job:
        done = job.wait(240)
    assert done.status == 0, str(done)
    assert runs.digests(run) == runs.digests(reference)
    runs.assert_same(run, reference)


def test_state_is_rebuilt_elsewhere_from_base_weights_and_rows(
    reference: Path, tmp_path: Path
) -> None:
    """Without the full checkpoint of generation 0, to which the rows refer."""
    run, name = tmp_path / "run", "checkpoint_0000000002.h5"
    (run / "checkpoints").mkdir(parents=True)
    shutil.copy(reference / "checkpoints" / name, run / "checkpoints")
    runs.here(runs.tiny(tmp_path, ENGINE), run, [])
    assert runs.digest(runs.newest(run)) == runs.digest(runs.newest(reference))


def test_eval_scores_what_export_writes(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    model = hpc_es.load_model(reference, "last")
    assert cli.run(["eval", str(reference), "--which", "last", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["failed"] == 0 and found["score_mean"] < 0
    file = tmp_path / "theta.npz"
    assert cli.run(["export", str(reference), str(file), "--which", "last"]) == 0
    searched = dict(model.parameters.module.named_parameters())
    with np.load(file) as exported:
        for name in model.parameters.parameters():
            expected = torch.from_numpy(exported[name]).bfloat16()
            assert torch.equal(searched[name], expected)
