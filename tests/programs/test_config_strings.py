"""Config strings: syntax, errors, and the same config as from YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpc_es
from hpc_es.config.loading import load, validate
from hpc_es.config.resolved import resolved
from hpc_es.core.errors import ConfigError
from hpc_es.core.paths import is_config_string
from hpc_es.programs.config_strings import parse_config_string, parse_settings
from tests.helpers import runs
from tests.helpers.harness import ROOT, python


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("  ", {}),
        ("a=1", {"a": 1}),
        (' a = 1.5 , b="x" ', {"a": 1.5, "b": "x"}),
        ("a=[1,2,(3,4)],b={'k': [1]}", {"a": [1, 2, (3, 4)], "b": {"k": [1]}}),
        ("a=c(),b=c(x=c(y=-1e-3),z=None)", {"a": {}, "b": {"x": {"y": -0.001}, "z": None}}),
        (
            'env=c(task="print"),agent=c(algorithm="pg",optimizer="sgd",lr=1.0,policy_lstm_sizes=[10],eos_token=True),'
            "batch_size=64,timestep_limit=2",
            {
                "env": {"task": "print"},
                "agent": {
                    "algorithm": "pg",
                    "optimizer": "sgd",
                    "lr": 1.0,
                    "policy_lstm_sizes": [10],
                    "eos_token": True,
                },
                "batch_size": 64,
                "timestep_limit": 2,
            },
        ),
    ],
)
def test_config_strings_are_parsed(text: str, expected: dict[str, Any]) -> None:
    assert parse_settings(text) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('a=[1,2,b="hello"', "a bracket is not closed"),
        ('a=1,b=c(x="a",y="b"', "a bracket is not closed"),
        ('a=1,b=c(x="a")y="b"', "expected a number"),
        ("a=1,", "expected name=value, found ''"),
        ("a=1,,b=2", "expected name=value"),
        ("a", "expected name=value, found 'a'"),
        ("a.b=1", "expected name=value"),
        ("a=1)", "closed that was not opened"),
        ("a=1,a=2", "a is set twice"),
        ("a=__import__('os').getcwd()", "expected a number"),
        ("a=lambda: 1", "expected a number"),
        ("a=b", "expected a number"),
    ],
)
def test_invalid_syntax_is_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_settings(text)


PG = (
    'env=c(task="print"),agent=c(algorithm="pg",optimizer="sgd",lr=1.0,policy_lstm_sizes=[10],eos_token=True),'
    "batch_size=64,timestep_limit=2"
)
LIMIT = ["stop.generations=2"]


def from_string(text: str, *overrides: str) -> dict[str, Any]:
    return resolved(load(text, overrides))


def from_data(
    name: str, task: dict[str, Any], algorithm: dict[str, Any], **more: Any
) -> dict[str, Any]:
    task = {"kind": "programs", "max_code_length": 32, **task}
    data = {"name": name, "output": f"runs/{name}", "task": task, "algorithm": algorithm, **more}
    return resolved(validate(data))


def test_config_string_of_ga_equals_its_yaml() -> None:
    text = 'env=c(task="reverse"),agent=c(algorithm="ga",mutation_rate=0.15),batch_size=100,timestep_limit=50'
    expected = from_data(
        "ga_reverse",
        {"name": "reverse", "max_code_length": 50},
        {"kind": "ga", "population_size": 100, "crossover_rate": 0.99, "mutation_rate": 0.15},
        stop={"episodes": 1000},
    )
    assert from_string(text, "stop.episodes=1000") == expected


def test_config_string_of_random_search_equals_its_yaml() -> None:
    manager = "task_manager_config=c(correct_bonus=3.0)"
    kwargs = "task_kwargs=\"{'base': 27}\""
    text = f'env=c(task="reverse",correct_syntax=True,{manager},{kwargs}),agent=c(algorithm="rand"),batch_size=1'
    task = {"name": "reverse", "base": 27, "require_correct_syntax": True, "correct_bonus": 3.0}
    assert from_string(text) == from_data("rand_reverse", task, {"kind": "random_search"})


@pytest.mark.parametrize(
    ("name", "kwargs", "task"),
    [
        (
            "reverse",
            {"n": 5, "min_len": 2, "max_len": 3},
            {"case_count": 5, "min_length": 2, "max_length": 3},
        ),
        ("echo", {"min_length": 2, "max_length": 3}, {"min_length": 2, "max_length": 3}),
        ("sort3", {"n": 9, "length": 4}, {"case_count": 9, "max_length": 4}),
        ("print", {"fixed_string": [7]}, {"fixed_string": [7]}),
        ("reverse-tune", {"reward_type": "static-bylen"}, {}),
    ],
)
def test_tasks_of_config_strings_have_their_options(
    name: str, kwargs: dict[str, Any], task: dict[str, Any]
) -> None:
    text = f'env=c(task="{name}",task_kwargs="{kwargs}"),agent=c(algorithm="rand")'
    assert from_string(text) == from_data(
        f"rand_{name}", {"name": name, **task}, {"kind": "random_search"}
    )


def test_config_string_with_a_cycle_of_tasks() -> None:
    text = 'env=c(task_cycle=["reverse-tune","remove-char-tune"]),agent=c(algorithm="rand")'
    task = {"cycle": ["reverse-tune", "remove-char-tune"]}
    assert from_string(text) == from_data(
        "rand_reverse-tune_remove-char-tune", task, {"kind": "random_search"}
    )


def test_policy_gradient_config_strings_have_the_original_defaults() -> None:
    algorithm = {
        "kind": "policy_gradient",
        "batch_size": 64,
        "optimizer": {"kind": "sgd", "learning_rate": 1.0},
        "policy_lstm_sizes": [10],
        "eos_token": True,
        "grad_clip_threshold": 10.0,
    }
    assert from_string(PG) == from_data(
        "pg_print", {"name": "print", "max_code_length": 2}, algorithm
    )


def test_config_string_without_an_agent_is_policy_gradient() -> None:
    algorithm = {"kind": "policy_gradient", "optimizer": {"kind": "rmsprop", "learning_rate": 5e-5}}
    assert from_string('env=c(task="echo")') == from_data("pg_echo", {"name": "echo"}, algorithm)


def test_config_for_iclr_false_gives_the_earlier_tasks() -> None:
    """config_for_iclr=False: base 27, short programs are better,
    and 'print' requests HELLO or another string.
    """
    hello = parse_config_string(
        'env=c(task="print",config_for_iclr=False),agent=c(algorithm="rand"),timestep_limit=100'
    )["task"]
    assert (hello["name"], hello["base"], hello["simplify"]) == ("print-hello", 27, True)
    fixed = 'env=c(task="print",config_for_iclr=False,fixed_string=[8,5,12,12,15]),agent=c(algorithm="rand")'
    config = load(fixed, ["task.max_code_length=100"])
    from hpc_es.programs.task import build

    coding: Any = build(config.task).coding
    rewards = [
        coding.score(code).reward
        for code in ("++++++++.---.+++++++...", "++++++++.---.+++++++..+++.")
    ]
    assert rewards == pytest.approx([0.2444, 0.935], abs=1e-4)  # as published
    assert (
        "base"
        not in parse_config_string(
            'env=c(task="add",config_for_iclr=False),agent=c(algorithm="rand")'
        )["task"]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'env=c(task="print"),agent=c(algorithm="sarsa")',
            "agent.algorithm: expected one of 'pg', 'ga', 'rand', foun",
        ),
        (
            'env=c(task="print"),agent=c(lr=1e-4)',
            "agent.algorithm: expected one of .*but the key is missing",
        ),
        ('env=c(task="print"),agent="ga"', r"agent: expected c\(algorithm=...\), found 'ga'"),
        (
            'env=c(task="print"),agent=c(algorithm="ga",lr=1e-4)',
            "unknown key 'agent.lr'; valid keys are 'crossover_ra",
        ),
        (
            'env=c(task="print"),agent=c(algorithm="rand",lr=1.0)',
            "unknown key 'agent.lr'; valid keys are none",
        ),
        (
            'env=c(task="print"),agent=c(algorithm="pg",lr=1)',
            "agent.lr: expected a number with a point.*found 1",
        ),
        (
            'env=c(task="print"),agent=c(algorithm="pg",topk=True)',
            "agent.topk: expected a whole number, found True",
        ),
        ('env=c(taks="print")', "unknown key 'env.taks'; did you mean 'task'"),
        (
            'env=c(task="print",task_cycle=["add"])',
            "env.task_cycle: expected task or task_cycle, found both",
        ),
        ("batch_size=5", "env.task: expected a coding task"),
        ('env=c(task="print"),batch_size=64.0', "batch_size: expected a whole number, found 64.0"),
        ('env="print"', r"env: expected c\(...\), found 'print'"),
        ('env=c(task="print",task_kwargs="1 2")', "env.task_kwargs: expected a dict in quotes"),
        (
            'env=c(task="print",task_kwargs="{\'m\': 3}")',
            "env.task_kwargs: expected a dict with keys of 'base', 'fi",
        ),
        (
            'env=c(task="print",task_kwargs="{\'n\': 3}")',
            "task.case_count: is for the tasks .*, not for print",
        ),
        (
            "env=c(task=\"reverse-tune\",task_kwargs=\"{'reward_type': 'rand-one'}\")",
            "env.task_kwargs: expected reward_type 'static-bylen', .*: the others draw new cases",
        ),
        ('env=c(task="print"),num_steps=5', "unknown key 'num_steps'"),
        (
            'env=c(task="prin"),agent=c(algorithm="ga")',
            "task.name: expected one of .*did you mean 'print'",
        ),
        (
            'env=c(task="print"),agent=c(algorithm="ga"),batch_size=2',
            "population_size: is 2, but the hall of fame",
        ),
    ],
)
def test_values_that_are_not_valid_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)


def test_override_can_set_the_task() -> None:
    with_task = 'env=c(task="reverse"),agent=c(algorithm="ga"),batch_size=10'
    assert load('agent=c(algorithm="ga"),batch_size=10', ["task.name=reverse"]) == load(with_task)
    assert load('agent=c(algorithm="ga")', ["task.cycle=[add, reverse]"]).name == "ga_add_reverse"
    assert load(with_task, ["task.name=add"]).task.name == "add", (
        "an override is stronger than the string"
    )
    with pytest.raises(ConfigError, match=r"or an override task\.name=\.\.\., found none"):
        load('agent=c(algorithm="ga")', ["seed=1"])


def test_all_errors_of_a_config_string_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        load('env=c(task="print",a=1),agent=c(algorithm="ga",b=2),c=3')
    assert [key for key, _ in error.value.problems] == ["env.a", "c", "agent.b"]


def test_config_strings_are_distinguished_from_paths() -> None:
    assert is_config_string(PG) and is_config_string(" a = 1") and is_config_string("env=")
    assert not any(
        map(
            is_config_string,
            ["configs/ga.yaml", "algorithm.sigma=0.1", "a b=1", "", "=1", "dir/x=1.yaml"],
        )
    )


def test_train_accepts_a_config_string(tmp_path: Path) -> None:
    text = 'env=c(task="reverse"),agent=c(algorithm="ga"),batch_size=10,timestep_limit=8'
    with hpc_es.train(text, tmp_path / "run") as run:
        for row in run:
            if row["generation"] == 1:
                run.stop()
    assert runs.newest(tmp_path / "run").state.generation == 2


@pytest.mark.long
def test_command_line_accepts_a_config_string(tmp_path: Path) -> None:
    text = 'env=c(task="reverse"),agent=c(algorithm="ga"),batch_size=10,timestep_limit=8'
    done = python(
        ["-m", "hpc_es.main", text, "--output", str(tmp_path / "run"), *LIMIT, "seed=5"], cwd=ROOT
    )
    assert done.status == 0, str(done)
    assert runs.newest(tmp_path / "run").state.generation == 2
    again = python(
        ["-m", "hpc_es.main", text, "--output", str(tmp_path / "run"), *LIMIT, "seed=6"], cwd=ROOT
    )
    assert again.status == 2 and "seed" in again.stderr, str(again)
    wrong = python(
        ["-m", "hpc_es.main", 'env=c(task="reverse"),agent=c(algorithm="Rand")'], cwd=ROOT
    )
    assert (
        wrong.status == 2
        and "expected one of 'pg', 'ga', 'rand', found 'Rand'; did you mean 'rand'?" in wrong.stderr
    )
