"""The interpreter of programs: published outputs,
and the compiled version against the reference.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_es.programs.brainfuck import pack_programs
from hpc_es.programs.compiled import FIRST_SNAPSHOT, pair, run
from hpc_es.tasks.brainfuck import CHARACTERS, Result, Status, evaluate, execute

Inputs = list[int]


def both(code: str, inputs: Inputs, **options: Any) -> Result:
    """The result of the reference, after comparing the compiled interpreter with it."""
    expected = evaluate(code, inputs, **options)
    assert execute([code], [inputs], **options) == [[expected]]
    return expected


@pytest.mark.parametrize(
    ("code", "inputs", "base", "output"),
    [
        ("+++.--.+.", [], 256, [3, 1, 2]),
        ("+.<.>++.", [], 256, [1, 1, 2]),
        ("+,.", [], 256, [0]),
        ("+.--.", [], 5, [1, 4]),
        (">,[>,]<[.<]", [4, 3, 2], 256, [2, 3, 4]),
        ("+++.]]]]>----.[[[[[>+.", [], 10, [3, 6, 1]),
        (",.,.", [300, -4], 256, [300, -4]),  # inputs are stored as they are
        (",+.", [300], 256, [0]),  # 300 is not below 255
        ("", [1], 256, []),
    ],
)
def test_interpreter_has_the_published_outputs(
    code: str, inputs: Inputs, base: int, output: Inputs
) -> None:
    result = both(code, inputs, base=base)
    assert (result.output, result.status, result.success) == (output, Status.SUCCESS, True)


def test_memory_grows_to_the_right_only() -> None:
    assert both("<+>++>+++>++++.", []).memory == [1, 2, 3, 4]


def test_step_limit_keeps_the_output_so_far() -> None:
    result = both("+.[].", [], base=5, max_steps=100)
    assert (result.output, result.status, result.steps, result.success) == (
        [1],
        Status.STEP_LIMIT,
        100,
        False,
    )


def test_program_ending_at_the_step_limit_has_exceeded_it() -> None:
    assert both("+++", [], max_steps=3).status == Status.STEP_LIMIT
    assert both("+++", [], max_steps=4).status == Status.SUCCESS


@pytest.mark.parametrize("code", ["+++.]]]]>----.[[[[[>+.", "[", "]", "]["])
def test_strict_syntax_refuses_unmatched_brackets(code: str) -> None:
    assert both(code, [], require_correct_syntax=True) == Result([], Status.SYNTAX_ERROR, 0, [])


def test_loop_jumps_behind_its_opening_bracket() -> None:
    """+ [ - ] with one iteration: 4 steps; with two, the [ is not executed again: 2 + 2 + 2."""
    assert both("+[-]", []).steps == 4
    assert both("++[-]", []).steps == 2 + 1 + 2 + 2


def test_other_characters_take_one_step() -> None:
    assert both("+_ é+", []).steps == 5


@pytest.mark.parametrize("code", ["+[>+]", "+[.]", "+[[]]", "+[,+.]"])
def test_endless_programs_end_at_the_step_limit(code: str) -> None:
    result = both(code, [])
    assert result.status == Status.STEP_LIMIT
    assert len(result.memory) <= 5001
    assert len(result.output) <= 5000


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_compiled_interpreter_equals_the_reference_on_many_programs(count: int) -> None:
    """Programs and step limits are small because the reference takes 5 us per step."""
    rng = random.Random(20)
    programs = ["".join(rng.choices(CHARACTERS + "_", k=rng.randrange(30))) for _ in range(count)]
    inputs = [[5, 0, 2], []]
    for first in range(0, len(programs), 5000):
        part = programs[first : first + 5000]
        expected = [[evaluate(code, case, 27, 60) for case in inputs] for code in part]
        assert execute(part, inputs, 27, 60) == expected


@settings(max_examples=300, deadline=None)
@given(
    st.text(CHARACTERS + "x", max_size=60),
    st.lists(st.integers(-3, 300), max_size=5),
    st.integers(2, 300),
)
def test_compiled_interpreter_equals_the_reference(code: str, inputs: Inputs, base: int) -> None:
    both(code, inputs, base=base, max_steps=500)
    both(code, inputs, base=base, max_steps=500, require_correct_syntax=True)


def watched(
    programs: list[str], inputs: Inputs, base: int, watches: bool, max_steps: int = 5000
) -> list[list[int]]:
    """Status and steps of each, where endless loops are looked for or not."""
    operations, lengths = pack_programs(programs)
    memory, output = np.empty(max_steps + 1, np.int64), np.empty(max_steps, np.int64)
    partner, opened = np.empty((2, operations.shape[1]), np.int64)
    observed, options_ = (
        np.empty(max_steps + 1 if watches else 0, np.int64),
        np.array(inputs, np.int64),
    )
    actual = []
    for code, length in zip(operations, lengths, strict=True):
        pair(code, length, partner, opened)
        actual.append(
            run(
                code,
                length,
                partner,
                options_,
                0,
                len(inputs),
                base,
                max_steps,
                memory,
                output,
                observed,
            )[:2]
        )
    return [list(map(int, item)) for item in actual]


@pytest.mark.parametrize(
    "code", ["+[]", "+[-+]", "+[>+]", "-[.,-]", "+[<[>]+]", "+>+[>>++[<]>[>]<-]", "+[[>]+[<]>]+"]
)
def test_endless_loops_are_detected_if_configured(code: str) -> None:
    (status, steps), (known, all_steps) = (
        *watched([code], [7, 8], 5, True),
        *watched([code], [7, 8], 5, False),
    )
    assert status == known == Status.STEP_LIMIT and steps < 1000 < all_steps == 5000


@pytest.mark.parametrize(
    ("code", "base", "steps"),
    [
        # to the right each time, until what it counts there is 0
        (">" + "+" * 30 + ">+[>+[<]>-[>]<]", 256, 2310),
        # < at cell 0 stays, and is a step to the left everywhere else
        ("++" + "+-" * 20 + "<[[[[>+<+]<>]", 4, 74),
    ],
)
def test_loops_that_move_left_are_not_endless(code: str, base: int, steps: int) -> None:
    assert (
        watched([code], [], base, True)
        == watched([code], [], base, False)
        == [[Status.SUCCESS, steps]]
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("seed", "base", "length"), [(1, 2, 24), (2, 5, 24), (3, 16, 12), (4, 256, 40)]
)
def test_only_endless_loops_are_detected(seed: int, base: int, length: int) -> None:
    """Many short programs on a long input; results of programs that end do not change."""
    rng = random.Random(seed)
    programs = ["".join(rng.choices(CHARACTERS + "[],", k=length)) for _ in range(50_000)]
    inputs = [rng.randrange(1, base) for _ in range(60)]
    expected, actual = watched(programs, inputs, base, False), watched(programs, inputs, base, True)
    assert [status for status, _ in actual] == [status for status, _ in expected]
    ended = [number for number, (status, _) in enumerate(expected) if status == Status.SUCCESS]
    assert [actual[number] for number in ended] == [expected[number] for number in ended]
    # these could be taken for endless
    assert sum(expected[number][1] > 3 * FIRST_SNAPSHOT for number in ended) > 500
    left = sum(steps < 5000 for status, steps in actual if status == Status.STEP_LIMIT)
    assert left > 0.9 * (len(programs) - len(ended)) > 1000
