"""What an algorithm has to say is said when it is new, not in each generation, nor each time that it is due again."""

from __future__ import annotations

from hpc_es.training.loop import QUIET_GENERATIONS, Notices


def test_a_notice_is_said_once_and_again_after_it_was_not_due_for_long() -> None:
    notices, said = Notices(), []
    due = {3: ["a"], 4: ["a", "b"], 6: ["a"], 4 + QUIET_GENERATIONS: ["b"], 5 + QUIET_GENERATIONS: ["a"]}
    for generation, told in due.items():
        said += notices.new(generation, told)
    assert said == ["generation 3: a", "generation 4: b", f"generation {4 + QUIET_GENERATIONS}: b"]
