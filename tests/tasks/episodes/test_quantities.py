"""Objectives, measures and constraints of episodes, with an environment whose numbers are known."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.config.options import build_kind
from hpc_es.core.data import Jobs
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.core.population import unperturbed


class Walk(gymnasium.Env[Any, Any]):
    """Four steps with the rewards 1, 2, 3, 4; energy is the square of the step,
    and `late` appears in the last one.
    """

    observation_space = gymnasium.spaces.Box(-99, 99, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: object = None
    ) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info: dict[str, Any] = {"energy": self.steps**2, "text": "none"}
        if self.steps == 4:
            info["late"] = 0.25
        observation = np.array([1, 2, 3], np.float32) * self.steps
        return observation, float(self.steps), self.steps == 4, False, info


gymnasium.register("hpc_es_walk/Walk-v0", Walk)


def problem_of(**task: Any) -> Any:
    data = {"kind": "episodes", "env_id": "hpc_es_walk/Walk-v0", **task}
    config = validate({"task": data, "policy": {"kind": "mlp"}, "algorithm": {"kind": "es"}})
    built = build_kind("tasks", config.task)
    return built.problem(
        "vectors", build_kind("policies", config.policy, built.spaces), Keys(0), 16
    )


def evaluated(problem: Any) -> Any:
    population = unperturbed(problem.layout, problem.initial(np.random.default_rng(0)), 2)
    return problem.evaluate(population, Jobs(0, range(2), [0, 1]), problem.carried(), lambda: None)


def test_numbers_come_from_return_length_observation_behaviour_and_infos() -> None:
    problem = problem_of(
        behaviour={"final_observation": [1]},
        episodes_per_job=2,
        objectives={"return": "maximise", "energy": {"reduce": "sum"}},
        constraints={"late": "info.late", "steps": {"from": "length"}},
        measures={
            "x": {"from": "observation.2", "range": [0, 20]},
            "y": {"from": "behaviour.0", "range": [0, 9]},
        },
    )
    outcome = evaluated(problem)
    row = outcome.rows[0]
    assert problem.quantities.names == ("return", "energy", "late", "steps", "x", "y")
    assert row["objectives"].tolist() == [10.0, 30.0]  # 1 + 2 + 3 + 4, and 1 + 4 + 9 + 16
    assert row["constraints"].tolist() == [0.25, 4.0] and row["measures"].tolist() == [12.0, 8.0]
    assert row["return_"] == 10.0 and row["length"] == 8 and not outcome.failures


def test_one_objective_and_constraints_are_the_fitness() -> None:
    energy = problem_of(objectives={"energy": {"reduce": "mean"}})
    rows = evaluated(energy).rows
    assert energy.derives_fitness and energy.fitness(rows, energy.carried()).tolist() == [
        -7.5,
        -7.5,
    ]
    rows["return_"][1] = math.nan
    assert np.isnan(energy.fitness(rows, energy.carried())).tolist() == [False, True]
    limited = problem_of(constraints={"late": "info.late"})
    rows = evaluated(limited).rows
    # feasible, with the return 10: so the other one has the cost -10 + 0.25
    rows["constraints"][1] = -1.0
    assert limited.fitness(rows, limited.carried()).tolist() == [9.75, 10.0]
    assert not problem_of(measures={"x": {"from": "length", "range": [0, 9]}}).derives_fitness


def test_episode_without_a_number_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(objectives={"late": "maximise"})
    monkeypatch.setattr(
        Walk, "step", lambda self, action: (np.zeros(3, np.float32), 1.0, True, False, {})
    )
    outcome = evaluated(problem)
    assert np.isnan(outcome.rows["return_"]).all() and np.isnan(outcome.rows["objectives"]).all()
    assert (
        outcome.failures[0].text
        == "ValueError: info.late is no finite number at the end of an episode"
    )


def test_job_fails_if_one_of_its_episodes_lacks_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, step, ended = (
        problem_of(objectives={"late": "maximise"}, episodes_per_job=2),
        Walk.step,
        Counter[int](),
    )

    def without_infos_in_the_first_episode(self: Walk, action: int) -> Any:
        *values, info = step(self, action)
        ended[id(self)] += values[2]
        return (*values, {} if ended[id(self)] == 1 else info)

    monkeypatch.setattr(Walk, "step", without_infos_in_the_first_episode)
    assert np.isnan(evaluated(problem).rows["return_"]).all()


@pytest.mark.parametrize(
    ("task", "key", "text"),
    [
        ({"objectives": {}}, "task.objectives", "expected at least one name"),
        (
            {"objectives": {"a": {"from": "infos.a"}}},
            "task.objectives.a.from",
            "expected return, length, info.KEY",
        ),
        (
            {"objectives": {"a": {"from": "length", "reduce": "sum"}}},
            "task.objectives.a.reduce",
            "is one number",
        ),
        ({"objectives": {"a": "down"}}, "task.objectives.a.goal", "expected one of"),
        (
            {"objectives": {"energy": "minimise"}, "constraints": {"energy": "length"}},
            "task.objectives",
            "also another",
        ),
        (
            {"measures": {"cell": {"from": "length", "range": [0, 1]}}},
            "task.measures",
            "a column of the tables",
        ),
        (
            {"measures": {"x": [1, 0]}},
            "task.measures.x.range",
            "expected a lower and a higher number",
        ),
        (
            {"measures": {"x": {"from": "observation.3", "range": [0, 1]}}},
            "task.measures.x.from",
            "has 3 numbers",
        ),
        (
            {"measures": {"x": {"from": "behaviour.0", "range": [0, 1]}}},
            "task.measures.x.from",
            "has no numbers",
        ),
        (
            {"measures": {"speed": [0, 1]}},
            "task.measures",
            "has 'speed' (it has numbers: energy, late)",
        ),
        ({"constraints": {"a": "info.text"}}, "task.constraints", "'text' in the infos"),
    ],
)
def test_names_and_sources_that_are_not_valid_are_refused(
    task: dict[str, Any], key: str, text: str
) -> None:
    with pytest.raises(ConfigError) as error:
        problem_of(**task)
    assert any(found == key and text in message for found, message in error.value.problems), str(
        error.value
    )
