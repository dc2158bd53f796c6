"""The last line of a run says where the best theta is not the one that `best` names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.training.end_message import end_message


@pytest.mark.parametrize(
    ("best", "final", "end"),
    [
        (9.55, 376.1, "final evaluation 376.1  best evaluation 9.55 (the last theta did better)"),
        (500.0, 376.1, "final evaluation 376.1  best evaluation 500"),
        (None, 376.1, "final evaluation 376.1"),
        (9.55, None, "best evaluation 9.55"),
    ],
)
def test_a_last_theta_that_did_better_is_told(best: float | None, final: float | None, end: str) -> None:
    """Evaluations were so few that the best of them was that of the first theta."""
    writer: Any = SimpleNamespace(
        counters={"episodes": 640, "timesteps": 220_242, "failed_episodes": 7},
        best=None if best is None else SimpleNamespace(return_=best),
    )
    found = {} if final is None else {"final_return_mean": final}
    line = end_message(
        validate({"task": {"env_id": "CartPole-v1"}}), "finished", "stop.timesteps: 200000", 3, writer, found
    )
    work = "3 generations, 220,242 timesteps, 7 failed episodes"
    assert line == f"finished by stop.timesteps: 200000 after {work}  {end}"
