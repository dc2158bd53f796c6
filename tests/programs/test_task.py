"""The task of programs: rows, cycles, rewards by hand, and invalid configs."""

from __future__ import annotations

import logging
import random
import sys
from typing import Any

import pytest

from hpc_es.config.loading import load, validate
from hpc_es.core.errors import ConfigError
from hpc_es.programs import task as programs
from hpc_es.programs.brainfuck import CHARACTERS
from hpc_es.programs.task import BLOCKS, NAMES, PAPER, Options, build, hill_climb_score
from tests.helpers.harness import ROOT
from tests.helpers.toys import nothing

HELLO = "++++++++.---.+++++++..+++."  # prints 8 5 12 12 15


def task(**settings: Any) -> programs.Programs:
    config = validate(
        {"task": {"kind": "programs", **settings}, "algorithm": {"kind": "random_search"}}
    )
    return build(config.task)


def test_program_task_returns_a_row_per_program() -> None:
    """print-hello simplified: 0.935 is the published reward of its solution;
    five missing numbers give 0.8.
    """
    polls: list[int] = []
    created = task(name="print-hello", simplify=True)
    rows = created.evaluate([HELLO, HELLO[:-1], "+[]"], None, lambda: polls.append(1)).rows
    assert rows["return_"].tolist() == pytest.approx([0.935, 0.8 / 4, -2 / 4])
    assert rows["correct"].tolist() == [True, False, False]
    assert rows["length"].tolist() == [26, 25, 3]
    assert polls
    assert created.evaluate([], None, nothing).rows.shape == (0,)


def test_duplicate_programs_are_executed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    created, executed = task(name="print-hello", simplify=True), list[str]()
    score_many = created.score_many
    monkeypatch.setattr(
        created, "score_many", lambda some: (executed.extend(some), score_many(some))[1]
    )
    rows = created.evaluate([HELLO[:-1], HELLO, HELLO[:-1], HELLO], None, nothing).rows
    assert executed == [HELLO[:-1], HELLO]
    assert rows["return_"].tolist() == pytest.approx([0.2, 0.935, 0.2, 0.935])
    assert rows["length"].tolist() == [25, 26, 25, 26]


def test_rows_without_numba_are_identical_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(0)
    some = ["".join(rng.choices(CHARACTERS, k=40)) for _ in range(70)]
    created = task(name="reverse")
    fast = created.evaluate(some, None, nothing).rows
    monkeypatch.setitem(sys.modules, "hpc_es.programs.compiled", None)
    programs.has_numba.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert created.evaluate(some, None, nothing).rows.tobytes() == fast.tobytes()
        assert [record.getMessage()[:38] for record in caplog.records] == [
            "programs run about 100 times slower wi"
        ]
    finally:
        programs.has_numba.cache_clear()


def test_cycle_of_tasks_repeats() -> None:
    options = Options(cycle=("reverse", "add", "echo"))
    assert [build(options, repetition).name for repetition in (0, 1, 2, 3, 7)] == [
        "reverse",
        "add",
        "echo",
        "reverse",
        "add",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_coding_task_can_be_built(name: str) -> None:
    created = task(name=name, max_code_length=5)
    assert (created.name, created.length, created.spaces) == (name, 5, None)
    assert created.evaluate([",.", ""], None, nothing).rows["length"].tolist() == [2, 0]


def test_hill_climb_is_scored_by_tokens() -> None:
    """Characters are the tokens 1 to 8: 123 is one block of a path, 12 is eight twelfths of it."""
    rows = task(name="test-hill-climb").evaluate(["><+", "><"], None, nothing).rows
    assert rows["return_"].tolist() == pytest.approx([1.0, 8 / 12])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "task.name: expected a coding task such as 'reverse'"),
        (
            {"name": "revers"},
            "task.name: expected one of .*, found 'revers'; did you mean 'reverse'",
        ),
        ({"name": "add", "cycle": ["echo"]}, "task.cycle: expected name or cycle, found both"),
        ({"cycle": []}, "task.cycle: expected a list .*not empty"),
        ({"cycle": ["add", "sub"]}, r"task.cycle\[1\]: expected one of .*, found 'sub'"),
        (
            {"name": "add", "base": 27},
            "task.base: is 27, but the task add has its own; other bases are supported by print",
        ),
        ({"name": "print", "base": 1}, "task.base: expected .*at least 2.*found 1"),
        ({"name": "test-hill-climb", "base": 9}, "task.base: is 9, but the task test-hill-climb"),
        (
            {"name": "add", "fixed_string": [1]},
            "task.fixed_string: is for the tasks print and print-hello, not for a",
        ),
        (
            {"name": "print", "fixed_string": [-1]},
            r"task.fixed_string\[0\]: expected .*at least 0, found -1",
        ),
        (
            {"name": "add", "max_steps": 0},
            "task.max_steps: expected",
        ),
        (
            {"name": "add", "correct_bonus": -1.0},
            "task.correct_bonus: expected a number of at least 0",
        ),
        (
            {"name": "fib", "case_count": 3},
            "task.case_count: is for the tasks remove-char, reverse.*, not for fib: remove",
        ),
        (
            {"cycle": ["reverse", "add"], "max_length": 3},
            "task.max_length: is for the tasks echo, .*, not for add",
        ),
        (
            {"name": "add", "case_count": 3},
            "task: case_count is 3: 9 cases of this task are always used",
        ),
        (
            {"name": "test-hill-climb", "case_count": 3},
            "task.case_count: is for .*, not for test-hill-climb",
        ),
        (
            {"name": "test-hill-climb", "reward": "absolute_log_distance_reward"},
            "task.reward: is for coding tasks",
        ),
        (
            {"name": "add", "reward": "absolute"},
            "task.reward: expected .*absolute_distance_reward.*, found 'absolute'",
        ),
        ({"name": "add", "taskname": 1}, "unknown key 'task.taskname'"),
    ],
)
def test_invalid_program_tasks_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        task(**settings)


def test_base_of_a_task_can_be_set() -> None:
    assert task(name="add", base=256).coding.base == 256  # type: ignore[union-attr]
    assert task(name="reverse", base=27).coding.base == 27  # type: ignore[union-attr]
    assert task(name="print", base=27, fixed_string=[1, 2]).coding.cases == (((), (1, 2)),)  # type: ignore[union-attr]


def test_every_option_reaches_the_scores() -> None:
    coding: Any = task(
        name="echo",
        correct_bonus=5.0,
        code_length_bonus=7.0,
        failure_reward=-9.0,
        require_correct_syntax=True,
        max_steps=11,
        max_code_length=13,
        reward="absolute_log_distance_reward",
        min_length=3,
        max_length=4,
    ).coding
    assert coding.reward == "absolute_log_distance_reward"
    assert {len(arguments) for arguments, _ in coding.cases} == {4, 5}  # a 0 is behind each
    result = (
        coding.correct_bonus,
        coding.code_length_bonus,
        coding.failure_reward,
        coding.require_correct_syntax,
    )
    assert (*result, coding.max_steps, coding.max_code_length) == (5.0, 7.0, -9.0, True, 11, 13)


def test_length_bonus_is_zero_for_the_longest_programs() -> None:
    """Beyond 30 characters it is 0, not less; three of four parts are correct for print-hello."""
    coding: Any = task(name="print-hello", simplify=True, max_code_length=30).coding
    texts = [HELLO, HELLO.ljust(30, "["), HELLO.ljust(90, "[")]
    assert coding.score_many(texts)[0].tolist() == pytest.approx([(3 + 4 / 30) / 4, 0.75, 0.75])
    assert coding.score_many(texts)[0].tolist() == [coding.score(item).reward for item in texts]


def test_config_of_all_tasks_has_equal_shares_of_the_paper() -> None:
    config = load(ROOT / "configs" / "all_tasks_ga.yaml")
    assert config.task.cycle == PAPER
    assert config.repetitions == 25 * len(PAPER)


def tokens_of(names: str, *more: int) -> list[int]:
    return [token for name in names for token in BLOCKS[name]] + list(more)


@pytest.mark.parametrize(
    ("tokens", "reward"),
    [
        ([], 0.0),
        ([1, 2], 8 / 12),  # a token is missing: 4 of 12
        ([1, 2, 2], 11 / 12),
        ([1, 0, 2, 0, 3], 1.0),  # zeros do not count
        (tokens_of("ab", 7, 8, 7), 3.0),
        (tokens_of("abc", 3), 3 + 1 - (3 + 8) / 12),  # 3 is 3 from d's 6
        (tokens_of("ab", 7, 8, 7, 3), 3 + 1 / 12),
        (tokens_of("abh", 1), 3 - 1 / 3),  # beyond the end of a path
        (tokens_of("abh", 1, 1, 1), 2.0),
        (tokens_of("abcdefgh"), 8.0),
        (tokens_of("abcdefgh", 1), 8 - 1 / 3),
    ],
)
def test_hill_climb_rewards_by_hand(tokens: list[int], reward: float) -> None:
    assert hill_climb_score(tokens)[0] == pytest.approx(reward)


def test_only_the_target_of_the_hill_climb_is_correct() -> None:
    assert hill_climb_score(tokens_of("abcdefgh", 0)) == (8.0, True)
    assert hill_climb_score(tokens_of("abh")) == (3.0, False)
    assert hill_climb_score(tokens_of("abcdefgh", 1))[1] is False
