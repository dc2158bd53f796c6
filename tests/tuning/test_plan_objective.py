"""The objective of a trial, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_es.tuning.plan import fraction, limits, measures, objective


def row(
    success: bool | None, timesteps: int = 0, final: float | None = None, **budget: Any
) -> dict[str, Any]:
    stop = {"generations": None, "timesteps": 1000, "seconds": None, "target_return": 5.0, **budget}
    used = {"generations": 3, "timesteps": timesteps, "seconds": 9.0}
    return {"repetition": 0, "success": success, "final_return": final, "budget": stop, **used}


def test_final_return_is_the_mean_over_repetitions() -> None:
    assert objective([row(None, final=1.0), row(None, final=4.0)], "final_return") == 2.5
    assert objective([row(None, final=1.7e308)] * 2, "final_return") == 1.7e308


def test_best_reward_is_the_mean_over_repetitions() -> None:
    rows = [{**row(False), "best_reward": 0.5}, {**row(True), "best_reward": 1.0}]
    assert objective(rows, "best_reward") == 0.75


def test_answer_is_the_mean_in_the_sign_of_the_objective() -> None:
    def with_answer(value: float | None, violation: float | None = None) -> dict[str, Any]:
        answer = {"kind": "evaluation", "value": value, "violation": violation}
        return {**row(None, final=-9.0), "goal": "minimise", "answer": answer}

    assert objective([with_answer(1.0), with_answer(2.0, 0.0)], "answer") == 1.5
    for bad in (with_answer(None), with_answer(1.0, 0.5)):
        with pytest.raises(
            ValueError,
            match="there is no answer: no evaluation was successful and feasible in repet",
        ):
            objective([with_answer(1.0), bad], "answer")


def test_search_without_a_reward_has_no_objective() -> None:
    with pytest.raises(ValueError, match="there is no best reward"):
        objective([{**row(False), "best_reward": None}], "best_reward")


def test_success_rate_and_budget_are_weighted() -> None:
    rows = [row(True, 250), row(False, 100), row(True, 500), row(False, 1000)]
    # rate 1/2; used (0.25 + 1 + 0.5 + 1) / 4 = 0.6875
    assert objective(rows, {"success_rate_weight": 1}) == 0.5
    assert objective(rows, {"success_rate_weight": 0}) == 0.3125
    assert objective(rows, {"success_rate_weight": 0.25}) == 0.25 * 0.5 + 0.75 * 0.3125


def test_nearest_limit_is_the_budget_and_seconds_only_if_alone() -> None:
    used = {"generations": 3, "timesteps": 250, "seconds": 9.0}
    assert (
        fraction(used, {"timesteps": 1000, "generations": 4, "seconds": 10.0, "target_return": 1})
        == 0.75
    )
    assert fraction(used, {"timesteps": None, "generations": None, "seconds": 10.0}) == 0.9
    assert fraction({"timesteps": 1200}, {"timesteps": 1000}) == 1.0
    assert fraction({"evaluations": 300}, {"episodes": 1000}) == 0.3
    assert fraction({"generations": 3}, {"episodes": 1000, "generations": 4}) == 0.75
    assert fraction({"npe": 200, "episodes": 900}, {"episodes": 1000}) == 0.2
    assert limits({"timesteps": None, "target_return": 3.0}) == {}


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "no results"),
        (
            [row(None, final=1.0), row(None, final=None)],
            "the final evaluation failed in repetition 0",
        ),
        ([row(None, final=float("nan"))], "the objective is nan"),
    ],
)
def test_trial_without_an_objective_has_a_reason(rows: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        objective(rows, "final_return")


def test_budget_of_a_program_search_ends_at_the_first_correct_program() -> None:
    """200 of 1,000 programs until success, in a generation of 300; without success all count."""
    budget = {"episodes": 1000, "target_return": None}
    rows = [
        {**row(True), "budget": budget, "episodes": 300, "npe": 200},
        {**row(False), "budget": budget, "npe": 900},
    ]
    assert objective(rows, {"success_rate_weight": 0.5}) == 0.5 * 0.5 + 0.5 * (1 - (0.2 + 1) / 2)


def test_further_measures_of_a_trial() -> None:
    """Success in 2 of 4, after 200 of 1,000 programs and beyond the limit,
    in the last generation: (0.2 + 3) / 4.
    """
    budget = {"episodes": 1000, "target_return": None}
    result = [(True, 200), (False, 1000), (True, 1040), (False, 300)]
    rows = [{**row(success), "budget": budget, "npe": npe} for success, npe in result]
    assert measures(rows) == {"success_rate": 0.5, "programs_seen_fraction": 0.8}
    assert measures([row(True, 250), row(False, 100)]) == {"success_rate": 0.5}
    assert measures([{**rows[0], "budget": {"episodes": None}}]) == {"success_rate": 1.0}
    assert measures([row(None, final=1.0)]) == measures([]) == {}
