"""The last line of a run states whether the last theta is better than `best`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.training.recorder import Recorder


@pytest.mark.parametrize(
    ("best", "final", "end"),
    [
        (9.55, 376.1, "final evaluation 376.1  best evaluation 9.55 (the last theta did better)"),
        (500.0, 376.1, "final evaluation 376.1  best evaluation 500"),
        (None, 376.1, "final evaluation 376.1"),
        (9.55, None, "best evaluation 9.55"),
    ],
)
def test_end_message_reports_a_better_last_theta(best: float | None, final: float | None, end: str) -> None:
    """Evaluations were so rare that the first theta was the best of them."""
    problem: Any = None
    recorder = Recorder(validate({"task": {"env_id": "CartPole-v1"}}), problem)
    recorder.counters |= {"episodes": 640, "timesteps": 220_242, "failed_episodes": 7}
    evaluation: Any = SimpleNamespace(return_=best, rows=None)
    recorder.best = None if best is None else evaluation
    results = {} if final is None else {"final_return_mean": final}
    line = recorder.end_message("finished", "stop.timesteps: 200000", 3, results)
    work = "3 generations, 220,242 timesteps, 7 failed episodes"
    assert line == f"finished by stop.timesteps: 200000 after {work}  {end}"
