"""`hpc-es tune` of searches for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_es.storage import results
from hpc_es.tuning.trials import Trial
from tests.jobs.test_tuning import tune

SEARCH = """
task: {kind: programs, name: print, base: 27, fixed_string: [1], max_code_length: 2}
algorithm: {kind: random_search, programs_per_generation: 20}
repetitions: 3
stop: {episodes: 1000}
report: {plot_interval_seconds: 0}
"""


def test_a_trial_of_searches_tells_its_success_rate_and_the_programs_seen(tmp_path: Path) -> None:
    """Of the programs of two characters one is right (it is +.), of those of one character none."""
    tuning = "space: {task.max_code_length: [1, 2]}\nobjective: {success_rate_weight: 1.0}"
    tune(0, tmp_path / "out", tuning, base=SEARCH)
    never, found = (Trial(tmp_path / "out", number).record() for number in (0, 1))
    assert (never["success_rate"], never["programs_seen_fraction"]) == (0.0, 1.0)
    npe = [row["npe"] for row in results.read_results(tmp_path / "out" / "trial_0001")]
    assert len(npe) == 3 and max(npe) <= 1000
    assert found["success_rate"] == 1.0
    assert found["programs_seen_fraction"] == pytest.approx(sum(npe) / 3000)
