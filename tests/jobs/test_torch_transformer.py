"""The example torch_transformer: its judge, its sampling, learning, and drift."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
pytest.importorskip("safetensors")
import torch

import hpc_es
from hpc_es.config.loading import load
from tests.helpers.harness import ROOT

EXAMPLE = ROOT / "examples" / "torch_transformer"
SHAPE = {"width": 16, "layers": 2, "heads": 2}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import transformer_model

    yield transformer_model
    del sys.modules["transformer_model"]


@pytest.fixture
def base(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights after a few steps of the pre-training, in the current directory."""
    monkeypatch.chdir(tmp_path)
    example.pretrain(path := tmp_path / "base.safetensors", steps=25, batch=8, **SHAPE)
    return path


@pytest.mark.parametrize("text", ["1\n", "(2+3)*4\n", "-7/(1)\n\n\n", "9*-1\n"])
def test_expressions_with_a_value_are_valid(example: Any, text: str) -> None:
    assert example.is_valid(text)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1+\n", "(1\n", "1/0\n", "9**9\n", "07\n", "1 2\n", "a\n", "1//2\n", "(1)(2)\n"],
)
def test_other_texts_are_not(example: Any, text: str) -> None:
    assert not example.is_valid(text)


def test_sampling_with_what_was_attended_to_equals_that_of_whole_texts(example: Any) -> None:
    torch.manual_seed(1)
    module = example.Transformer(**SHAPE)
    codes = torch.randint(0, 40, (3, 9))
    whole, _ = module(codes)
    logits, pasts = module(codes[:, :5])
    for place in range(5, 9):
        torch.testing.assert_close(logits[:, -1], whole[:, place - 1], atol=1e-5, rtol=1e-4)
        logits, pasts = module(codes[:, place : place + 1], pasts)
    torch.testing.assert_close(logits[:, -1], whole[:, 8], atol=1e-5, rtol=1e-4)


def test_weights_in_bfloat16_drift_only_if_they_are_restored(example: Any, base: Path) -> None:
    found = example.drift(base, **SHAPE)
    assert found["written from a master"] == 0
    assert found["perturbed and restored in place"] > 1e-5


def test_run_reports_held_out_shares_and_measures(
    example: Any, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {**SHAPE, "prompts": 2, "samples": 2, "held_out": 4}
    config = load(
        EXAMPLE / "expressions.yaml",
        [
            *(f"task.model_kwargs.{name}={value}" for name, value in sizes.items()),
            "algorithm.population_size=4",
            "stop.generations=2",
            "evaluation.interval=1",
            "report.plot_interval_seconds=0",
        ],
    )
    rows = list(hpc_es.train(config, tmp_path / "run"))
    assert 0 <= rows[0]["centre_score_mean"] <= 1
    example.measure(base, str(tmp_path / "run"))
    before, after = capsys.readouterr().out.splitlines()[-2:]
    assert before.startswith("before: valid 0.") and after.startswith("after: valid 0.")
