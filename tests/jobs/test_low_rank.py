"""Jobs with `noise.rank`: identical results after a kill and with replicated updates, and what
`--check` refuses.

tests/jobs/test_determinism.py has such jobs on several MPI ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from hpc_es.training.check import check
from tests.helpers import runs

RANK_2 = ("noise.rank=2", "policy.hidden_dims=[300, 300]", *runs.EVERY)


def test_killed_run_resumes_with_identical_results(tmp_path: Path) -> None:
    """Updates are replicated, and computed again from incremental checkpoints;
    the reference has neither.
    """
    options = (*RANK_2, "checkpoint.full_interval=3", "mpi.update=replicated")
    generations = runs.killed_and_resumed(tmp_path / "run", 2, 3, *options)
    reference = tmp_path / "reference"
    runs.here(runs.tiny(tmp_path), reference, [*RANK_2, f"stop.generations={generations}"])
    runs.assert_same(tmp_path / "run", reference)


TASK: dict[str, Any] = {"kind": "episodes", "env_id": "CartPole-v1"}  # 4 inputs, 2 outputs
VALLEY: dict[str, Any] = {
    "kind": "function",
    "function": "tests.helpers.toys:valley",
    "dimension": 3,
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a strategy without low rank": (
        {"algorithm": {"kind": "cma_es"}, "noise": {"rank": 1}},
        "noise.rank: is 1, but 'cma_es' does not support low-rank perturbations: expected null, or algorithm.kind: "
        "'es' or 'pgpe' or 'snes'",
    ),
    "squares": (
        {"algorithm": {"kind": "pgpe"}, "noise": {"rank": 2}},
        "noise.rank: is 2, but 'pgpe' sums squares of perturbations, which only rank 1 allows: expected 1, or null",
    ),
    "a function": (
        {"task": VALLEY, "algorithm": {"kind": "es"}, "noise": {"rank": 1}},
        "noise.rank: is 1, but no part of the parameters is a matrix with more elements than factors",
    ),
    "a high rank": (
        {"noise": {"rank": 8}},
        "(hidden_0_kernel [4, 16], hidden_0_bias [16], output_kernel [16, 2], output_bias [2]): expected null",
    ),
    "an unknown part": (
        {"noise": {"rank": 1, "full": ["hidden"]}},
        "noise.full: expected some of 'hidden_0_kernel', 'output_kernel', found 'hidden'",
    ),
    "all parts": (
        {"noise": {"rank": 1, "full": ["hidden_0_kernel", "output_kernel"]}},
        "noise.full: names all matrices: leave one out, or set noise.rank: null instead of 1",
    ),
    "a product without a rank": (
        {"policy": {"kind": "mlp", "low_rank_product": "matrix"}},
        "policy.low_rank_product: is 'matrix', but noise.rank is null: remove it, or set noise.rank: 1",
    ),
    "a table that is too small": (
        # 4 + 16 + 16 + 16 + 2 + 2 numbers
        {"noise": {"kind": "table", "rank": 1, "table_size": 50}},
        "noise.table_size: is 50, but the policy has 56 parameters",
    ),
    "rank 0": (
        {"noise": {"rank": 0}},
        "noise.rank: expected a whole number of at least 1, or null, found 0",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_check_refuses_a_rank_that_does_not_fit(mistake: str) -> None:
    sections, text = REFUSED[mistake]
    has_policy = sections.get("task", TASK) is TASK
    config = {
        "task": TASK,
        **({"policy": {"kind": "mlp", "hidden_dims": [16]}} if has_policy else {}),
        **sections,
    }
    with pytest.raises(ConfigError) as caught:
        check(validate(config))
    assert text in str(caught.value)


@pytest.mark.long
def test_check_shows_which_parts_are_of_low_rank(capsys: pytest.CaptureFixture[str]) -> None:
    policy = {"kind": "mlp", "hidden_dims": [16]}
    noise = {"kind": "table", "rank": 1, "table_size": 100, "full": ["output_kernel"]}
    assert check(validate({"task": TASK, "policy": policy, "noise": noise})) == 0
    text = "noise of rank 1: hidden_0_kernel; full noise: hidden_0_bias, output_kernel, output_bias"
    assert text in capsys.readouterr().out
