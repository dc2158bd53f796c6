"""Coding tasks: fingerprints of the published cases, and the published rewards."""

from __future__ import annotations

import hashlib
import json
import math
import random
from dataclasses import replace

import pytest

from hpc_es.core.errors import UserError
from hpc_es.programs import coding_tasks
from hpc_es.programs.brainfuck import CHARACTERS
from hpc_es.programs.coding_cases import REFERENCE_PROGRAMS, TASKS
from hpc_es.programs.task import PAPER, make_task

FINGERPRINTS = {
    "reverse": "f8680bc3d012",
    "remove-char": "492ab9f38be7",
    "count-char": "432364d31714",
    "echo": "1c8993a7d772",
    "add": "67445ec0f814",
    "bool-logic": "a8ed14a8c635",
    "sort3": "045ece9c6300",
    "echo-twice": "e4fbb8df3f90",
    "echo-thrice": "03c6c0bff93e",
    "copy-reverse": "9f54ed63ca1a",
    "zero-cascade": "8559fc35b0af",
    "cascade": "0e7c04b895ec",
    "shift-left": "ed6a65bab871",
    "unriffle": "79d63f6097c6",
    "remove-last": "6c97d0b88bcc",
    "remove-last-two": "f65d0f92a5b6",
    "echo-alternating": "6b0390bf2ee9",
    "echo-half": "513b3a5cded2",
    "length": "cbe7d462916d",
    "echo-second-seq": "4f4966bf3526",
    "divide-2": "865d29b4cedc",
    "print-hello": "cfa96098a432",
    "print": "df5ad3cc19e1",
    "divmod": "6a80ca6ae6f5",
    "multiply": "50be069881a6",
}
HELLO_NEARLY, HELLO = "++++++++.---.+++++++...", "++++++++.---.+++++++..+++."


def padded(code: str) -> str:
    return code.ljust(100, "[")


@pytest.mark.parametrize(("name", "digest"), list(FINGERPRINTS.items()))
def test_cases_have_the_published_fingerprints(name: str, digest: str) -> None:
    cases = [[list(options), list(wanted)] for options, wanted in make_task(name).cases]
    assert (
        hashlib.sha256(json.dumps(cases, separators=(",", ":")).encode()).hexdigest()[:12] == digest
    )


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("shift-right", 16),
        ("riffle", 16),
        ("echo-nth-seq", 16),
        ("circle-route", 109),
        ("sort3", 150),
        ("trim-left", 5),
    ],
)
def test_tasks_have_the_expected_number_of_cases(name: str, first: int) -> None:
    assert len(make_task(name).cases) == first


def test_circle_routes_lead_back_to_their_start() -> None:
    for options, wanted in make_task("circle-route").cases:
        closed = options.count(1) == options.count(3) and options.count(2) == options.count(4)
        assert wanted == (int(closed),)


def test_dedup_and_remove_target_char_by_hand() -> None:
    for options, wanted in make_task("dedup").cases:
        assert wanted == (*dict.fromkeys(options[:-1]), 0)  # each number stands in one run
    for options, wanted in make_task("remove-target-char").cases:
        assert wanted == (*(value for value in options[1:-1] if value != options[0]), 0)


def test_all_tasks_of_the_paper_exist() -> None:
    assert len(PAPER) == 26
    assert set(PAPER) <= set(TASKS)


def test_published_rewards_of_printing() -> None:
    task = make_task("print", fixed_string=[8, 5, 12, 12, 15], base=27, do_code_simplification=True)
    assert task.score(HELLO_NEARLY).reward == pytest.approx((135 - 3) / 135 / 4)
    assert task.score(HELLO).reward == pytest.approx(0.935)
    assert task.score(padded(HELLO)).reward == pytest.approx(0.75)
    plain = make_task("print-hello")
    assert plain.score(padded(HELLO_NEARLY)).reward == pytest.approx(0.2444, abs=1e-4)
    assert plain.score(padded(HELLO)).reward == 1.0


def test_published_rewards_of_reverse() -> None:
    plain, short = (
        make_task("reverse", base=27),
        make_task("reverse", base=27, do_code_simplification=True),
    )
    assert plain.score(padded(">,>,>,.<.<.<.")).reward == pytest.approx(0.1345, abs=1e-4)
    assert short.score(">,>,>,.<.<.<.").reward == pytest.approx(0.1324, abs=1e-4)
    assert make_task("reverse").score(padded(">,>,>,.<.<.<.")).reward == pytest.approx(
        0.13312, abs=1e-5
    )
    assert plain.score(padded(",[>,]+[,<.]")).reward == 1.0
    assert short.score(",[>,]+[,<.]").reward == pytest.approx(0.9725)
    assert short.score(padded(",[>,]+[,<.]")).reward == pytest.approx(0.75)


@pytest.mark.parametrize("name", REFERENCE_PROGRAMS)
def test_known_program_solves_its_task(name: str) -> None:
    score = make_task(name).score(REFERENCE_PROGRAMS[name].program)
    assert (score.reward, score.correct, score.status) == (1.0, True, "correct")
    assert score.outputs == tuple(wanted for _, wanted in make_task(name).cases)


@pytest.mark.parametrize("name", TASKS)
def test_empty_program_has_the_published_reward(name: str) -> None:
    assert make_task(name).score("").reward == (0.1875 if name == "substring" else 0.0)


def test_endless_and_invalid_programs_fail_with_their_rewards() -> None:
    score = make_task("reverse").score("+[]")
    assert (score.reward, score.correct, score.status, score.outputs) == (
        -2 / 64,
        False,
        "step-limit",
        (),
    )
    assert make_task("print").score("+[]").reward == -0.5
    assert make_task("reverse", require_correct_syntax=True).score("[").status == "syntax-error"


@pytest.mark.parametrize("name", ["reverse", "print-hello", "substring", "bool-logic"])
@pytest.mark.parametrize(
    ("simplify", "reward"),
    [(True, "distance"), (False, "distance"), (True, "mod_distance"), (False, "log_distance")],
)
def test_compiled_score_equals_the_reference(name: str, simplify: bool, reward: str) -> None:
    rng = random.Random(7)
    task = make_task(
        name, do_code_simplification=simplify, max_steps=300, reward=f"absolute_{reward}_reward"
    )
    programs = ["".join(rng.choices(CHARACTERS, k=rng.randrange(101))) for _ in range(300)]
    programs += [padded(HELLO), ",[>,]+[,<.]", ""]
    result, correct = task.score_many(programs)
    expected = [task.score(program) for program in programs]
    assert result.tolist() == [score.reward for score in expected]
    assert correct.tolist() == [score.correct for score in expected]
    assert correct.any() == (name in ("reverse", "print-hello"))


def test_rewards_of_the_original_by_hand() -> None:
    """26 instead of 0 in base 27 is 26 away, or 1 on the circle;
    the logarithmic factor is ln(27 // 2 + 2).
    """
    expected = {
        "distance": 1 / 27,
        "mod_distance": 26 / 27,
        "log_distance": 1 - math.log(2) / math.log(15),
    }
    for name, reward in expected.items():
        task = make_task("print", fixed_string=[0], base=27, reward=f"absolute_{name}_reward")
        assert task.score("-.").reward == pytest.approx(reward / 4)
        assert task.score_many(["-."])[0].tolist() == [task.score("-.").reward]
        assert task.score(".").reward == 1.0


def test_output_equal_only_on_the_circle_is_not_correct() -> None:
    """Inputs are stored unchanged: 27 is echoed, and its distance from 0 is 0 in base 27."""
    task = replace(
        make_task("print", base=27, reward="absolute_mod_distance_reward"), cases=(((27,), (0,)),)
    )
    assert (task.score(",.").reward, task.score(",.").correct) == (0.25, False)
    assert [array.tolist() for array in task.score_many([",."])] == [[0.25], [False]]


@pytest.mark.parametrize(
    "name", ["reverse", "remove-char", "sort3", "count-char", "echo-twice", "divmod", "multiply"]
)
def test_fewer_or_more_cases_come_from_the_same_stream(name: str) -> None:
    default = make_task(name).cases
    assert make_task(name, chosen={"case_count": 7}).cases == default[:7]
    more = make_task(name, chosen={"case_count": len(default) + 2}).cases
    assert (len(more), more[:-2]) == (len(default) + 2, default)


def test_inputs_have_the_configured_lengths() -> None:
    for name in ("reverse", "remove-char"):
        cases = make_task(name, chosen={"min_length": 8, "max_length": 9}).cases
        assert {len(options) for options, _ in cases} == {8, 9}
    assert {len(options) for options, _ in make_task("echo", chosen={"max_length": 2}).cases} == {
        2,
        3,
    }  # a 0 behind them
    assert {len(options) for options, _ in make_task("sort3", chosen={"max_length": 5}).cases} == {
        5
    }
    assert (
        max(
            len(options) for options, _ in make_task("circle-route", chosen={"max_length": 4}).cases
        )
        == 5
    )


def test_additional_sums_are_drawn() -> None:
    *first, last = make_task("add", chosen={"case_count": 10}).cases
    assert tuple(first) == make_task("add").cases
    assert last[1] == (sum(last[0]) % 256, 0)


@pytest.mark.parametrize(
    ("name", "chosen", "text"),
    [
        ("add", {"case_count": 8}, "case_count is 8: 9 cases of this task are always used"),
        ("count-char", {"case_count": 4}, "case_count is 4: 5 cases of this task are always used"),
        (
            "count-char",
            {"max_length": 1},
            "max_length is 1: the inputs of count-char have at least 2",
        ),
        ("reverse", {"min_length": 7}, "min_length is 7: expected at most max_length, which is 6"),
    ],
)
def test_impossible_cases_are_refused(name: str, chosen: dict[str, int], text: str) -> None:
    with pytest.raises(UserError, match=text):
        make_task(name, chosen=chosen)


def test_invalid_coding_tasks_are_refused() -> None:
    with pytest.raises(
        UserError, match="unknown task 'reserve': expected one of print-hello, print"
    ):
        make_task("reserve")
    with pytest.raises(UserError, match="the task add has base 256"):
        make_task("add", base=27)
    with pytest.raises(UserError, match="fixed_string is for the tasks print"):
        make_task("reverse", fixed_string=[1])


def test_distances_by_hand() -> None:
    assert coding_tasks.absolute([1, 2, 4], [1, 2, 3], 5) == 1 - 1 / 15
    assert coding_tasks.modular_difference(13, 4, 5) == 1
    assert coding_tasks.logarithmic_distance([0], [4], 5) == pytest.approx(
        math.log(2) / math.log(4)
    )
    assert coding_tasks.absolute([], [1, 2], 5) == 0.0
    assert coding_tasks.absolute([1, 1, 1, 1], [1], 5) == 1 - 15 / 5
    assert coding_tasks.absolute_modular([4], [0], 5) == 1 - 1 / 5
    assert coding_tasks.absolute_logarithmic([3, 3], [3], 5) == 0.0
    assert coding_tasks.logarithmic_distance([], [], 5) == 0.0
