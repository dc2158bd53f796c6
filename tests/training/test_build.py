"""What fits and what does not, and rows with columns of a strategy's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.config.registry import module
from hpc_es.core.data import CORRECT, SIGN_RETURN, Column, row_dtype
from hpc_es.core.errors import ConfigError
from hpc_es.core.interfaces import Needs
from hpc_es.mpi.world import World
from hpc_es.programs.task import Programs
from hpc_es.training.build import build_parts, build_task, cutting_of

SURVIVAL = {"kind": "episodes", "env_id": "tests.helpers.toys:Survival-v0"}
PROGRAMS = {"kind": "programs", "name": "reverse"}


def told(**sections: Any) -> list[str]:
    """What is said of an experiment that does not fit, a line a problem."""
    with pytest.raises(ConfigError) as error:
        build_task(validate({"noise": {"table_size": 10_000}, **sections}))
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    ("task", "algorithm", "searched", "tasks", "algorithms"),
    [
        (PROGRAMS, "es", "vectors", ["bandits", "episodes"], ["ga", "policy_gradient", "random_search"]),
        (PROGRAMS, "actor_critic", "trajectories", ["bandits", "episodes"], ["ga", "policy_gradient", "random_search"]),
        (SURVIVAL, "ga", "programs", ["programs"], ["actor_critic", "es"]),
        ({"kind": "bandits"}, "random_search", "programs", ["programs"], ["actor_critic", "es"]),
    ],
)
def test_a_task_that_the_algorithm_cannot_search_is_told_with_those_that_fit(
    task: dict[str, Any], algorithm: str, searched: str, tasks: list[str], algorithms: list[str]
) -> None:
    lines = told(task=task, algorithm={"kind": algorithm})
    start = f"task.kind: is '{task['kind']}', but the algorithm '{algorithm}' searches {searched}: expected "
    assert lines[0].startswith(start), lines
    first, second = lines[0].removeprefix(start).split(", or algorithm.kind: ")
    assert set(tasks) <= set(first.replace("'", "").split(" or ")), first
    assert set(algorithms) <= set(second.replace("'", "").split(" or ")), second
    assert repr(task["kind"]) not in first and repr(algorithm) not in second


def test_a_policy_is_for_tasks_in_which_one_acts() -> None:
    config = validate({"task": SURVIVAL, "algorithm": {"kind": "es"}})
    with pytest.raises(ConfigError, match="policy: is null, but the task 'episodes' needs a policy"):
        build_task(dataclasses.replace(config, policy=None))
    lines = told(task=PROGRAMS, policy={"kind": "mlp"}, algorithm={"kind": "ga"}, stop={"target_return": 1.0})
    assert lines == [
        "policy: the task 'programs' has no policy: expected null, or no such key",
        "stop.target_return: the task 'programs' has no returns of evaluation episodes: expected null",
    ]


def test_gradients_of_returns_do_not_go_with_a_fitness_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Programs, "fitness", lambda self, rows, carried: rows["correct"])
    (line,) = told(task=PROGRAMS, algorithm={"kind": "policy_gradient"})
    assert line.startswith("algorithm.kind: is 'policy_gradient', which follows gradients of returns, but the task")
    build_task(validate({"task": PROGRAMS, "algorithm": {"kind": "ga"}}))


def test_the_row_has_the_columns_of_the_problem_and_then_of_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Column("distance", "<f8", (2,))
    for algorithm, sections, column in (
        ("es", {"task": SURVIVAL}, SIGN_RETURN),
        ("random_search", {"task": PROGRAMS}, CORRECT),
    ):
        settings = {"noise": {"table_size": 10_000}, **sections, "algorithm": {"kind": algorithm}}
        config = validate(settings)
        made = build_parts(config, World("none"), build_task(config))
        assert made.row == row_dtype((column,))
        is_noisy = algorithm == "es"
        needs = Needs(searches="vectors" if is_noisy else "programs", noise=is_noisy, columns=(own,))
        monkeypatch.setattr(module("algorithms", algorithm), "NEEDS", needs)
        assert build_parts(config, World("none"), build_task(config)).row == row_dtype((column, own))


@pytest.mark.parametrize(("kind", "cutting"), [("policy_gradient", "fixed"), ("ga", "one by one")])
def test_chunks_that_give_gradients_are_cut_as_the_algorithm_asks(kind: str, cutting: str) -> None:
    """A sum of gradients has other bits where chunks follow the ranks."""
    config = validate({"task": PROGRAMS, "algorithm": {"kind": kind}})
    assert cutting_of(config, build_task(config).problem) == cutting
    assert config.depends_on_chunks() is (cutting == "fixed")
