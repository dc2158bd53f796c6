"""What an algorithm has to say is said when it is new, not in each generation, nor each time that it is due again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hpc_es.training.loop import QUIET, Training


def test_a_notice_is_said_once_and_again_after_it_was_not_due_for_long() -> None:
    said: list[str] = []
    training: Any = Training.__new__(Training)
    training.writer = SimpleNamespace(progress=SimpleNamespace(message=said.append))
    training._noticed = {}
    due = {3: ["a"], 4: ["a", "b"], 6: ["a"], 4 + QUIET: ["b"], 5 + QUIET: ["a"]}
    for generation, notices in due.items():
        training._notice(generation, notices)
    assert said == ["generation 3: a", "generation 4: b", f"generation {4 + QUIET}: b"]
