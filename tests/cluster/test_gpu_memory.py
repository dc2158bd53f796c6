"""`hpc-es plan --gpu`: the memory of theta, the optimizer and a call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_es.cli import main
from hpc_es.cluster.gpu_memory import GpuMemory, text
from hpc_es.core.interfaces import CallMemory
from tests.helpers import runs

CALL = CallMemory(8, 100_000_000, 592_000_000, "task.jobs_per_call")


def status(*words: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    return ended.value.code


def test_the_table_names_what_is_where() -> None:
    """10 million parameters: 40 MB, and two arrays of adam on rank 0."""
    master = {"adam_m": 40_000_000, "adam_v": 40_000_000, "step": 8}
    memory = GpuMemory(CALL, 10_000_000, {"theta": 40_000_000}, master, 1_000_000_000)
    assert text("words", memory).splitlines() == [
        "words: 10,000,000 parameters; memory of a rank with a GPU of its own, its calls compiled "
        "on this machine",
        "  on the GPU                 592 MB"
        "  a call of 8 candidates, of it parameters and data 100 MB; see task.jobs_per_call",
        "  in main memory, each rank   40 MB  theta",
        "  in main memory, rank 0      80 MB  adam_m, adam_v",
        "  in main memory, each node    1 GB  the noise table",
    ]


def test_what_a_policy_needs_is_counted_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """4 inputs, 2 x 8 units, 2 actions: 4 x 8 + 8 + 8 x 8 + 8 + 8 x 2 + 2 = 130 parameters."""
    pytest.importorskip("tensorflow")
    config = runs.tiny(tmp_path)
    words = ["task.env_id=CartPole-v1", "policy.hidden_dims=[8, 8]", "policy.backend=tensorflow"]
    words += ["policy.candidates_per_call=4", "noise.kind=table", "noise.table_size=100000"]
    words += ["algorithm.optimizer={kind: adam}"]
    assert status("plan", config, *words, "--gpu", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 130
    assert (found["call"]["jobs"], found["call"]["total"]) == (4, 4 * 520)
    assert found["shared"]["theta"] == 520
    assert (found["master"]["adam_m"], found["master"]["adam_v"]) == (520, 520)
    assert found["noise_table"] == 400_000
    assert not list(tmp_path.glob("runs"))


def test_a_run_without_a_gpu_has_no_such_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("plan", runs.tiny(tmp_path), "--gpu") == 2
    assert "nothing of this config is computed on a GPU" in capsys.readouterr().err
