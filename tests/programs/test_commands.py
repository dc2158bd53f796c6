"""`hpc-es run-program`: the best program of a search, or a program from the command line,
on an input.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.cli import main
from hpc_es.extend.runs import find_checkpoint, load_checkpoint
from tests.helpers.trained import rewritten


def run_program(
    capsys: pytest.CaptureFixture[str], *words: str, status: int = 0
) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["run-program", *words])
    assert (ended.value.code or 0) == status
    displayed = capsys.readouterr()
    return displayed.out, displayed.err


@pytest.mark.parametrize(
    ("program", "inputs", "output"),
    [
        (",.,.", "7,8", "7 8"),
        (",[.,]", "3,2,1", "3 2 1"),
        (",>,[<+>-]<.", "4,5", "9"),  # the sum
        ("-.", "", "255"),
        (".", "", "0"),
    ],
)
def test_run_program_executes_a_program_from_the_command_line(
    program: str, inputs: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run_program(capsys, f"--program={program}", "--input", inputs)
    assert out == output + "\n"
    assert f"program {program}\n" in err and "it ended after" in err


def test_run_program_uses_the_base_and_the_step_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(capsys, "--program=-.", "--base", "10")[0] == "9\n"
    out, err = run_program(capsys, "--program", "+[.]", "--max-steps", "7", status=1)
    assert out == "1 1 1\n"  # + [ . ] . ] .
    assert "was stopped after 7 of at most 7 steps" in err


def test_run_program_trace_has_a_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    """2 is read, written, and decremented twice."""
    _, err = run_program(capsys, "--program", ",[.-]", "--input", "2", "--trace")
    lines = [line.split() for line in err.splitlines() if line.lstrip()[:1].isdigit()]
    assert [int(line[0]) for line in lines] == list(range(1, 9))
    assert [line[-1] for line in lines if "writes" in line] == ["2", "1"]
    assert lines[-1][-1] == "[0]"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished search for a program of at most three characters that writes 2."""
    run = tmp_path_factory.mktemp("programs") / "run"
    config = {
        "seed": 1,
        "task": {"kind": "programs", "name": "print", "fixed_string": [2], "max_code_length": 4},
        "algorithm": {"kind": "random_search", "programs_per_generation": 2000},
        "stop": {"generations": 5},
    }
    list(hpc_es.train(config, run))
    return run


def test_run_program_executes_the_best_program_of_a_run(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run_program(capsys, str(result))
    assert out == "2\n"
    assert "print: reward 1, correct" in err


def test_invalid_arguments_of_run_program_are_refused(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "expected a run" in run_program(capsys, status=2)[1]
    assert "and not both" in run_program(capsys, str(result), "--program", ".", status=2)[1]
    assert (
        "expected whole numbers"
        in run_program(capsys, "--program", ".", "--input", "a", status=2)[1]
    )
    list(
        hpc_es.train(
            {
                "task": {"env_id": "CartPole-v1", "max_episode_steps": 5},
                "algorithm": {"population_size": 2},
                "noise": {"kind": "counter"},
                "stop": {"generations": 1},
            },
            tmp_path / "run",
        )
    )
    assert "is not a program search" in run_program(capsys, str(tmp_path / "run"), status=2)[1]


def test_repetitions_are_listed_instead_of_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "many" / "repetition_0001").mkdir(parents=True)
    _, err = run_program(capsys, str(tmp_path / "many"), status=2)
    assert "expected one run: name a repetition" in err and "repetition_0001" in err


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("best_reward", np.zeros(3)),
        ("best_reward", np.array(b"x")),
        ("executed", np.array(-1)),
        ("executed", np.array(math.inf)),
        ("best_program", np.zeros((2, 2), np.uint8)),
        ("best_program", np.zeros(4)),
    ],
)
def test_programs_of_another_form_are_none(
    name: str, array: Any, result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load_checkpoint(find_checkpoint(result)).state
    other = dataclasses.replace(state, master={**state.master, name: array})
    file = rewritten(result, tmp_path / "checkpoint_0000000005.h5", state=other)
    assert "is not a program search" in run_program(capsys, str(file), status=2)[1]


def test_bytes_of_a_program_are_shown_escaped(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load_checkpoint(find_checkpoint(result)).state
    program = np.frombuffer(b"+\x1b\x07\xff", np.uint8)
    other = dataclasses.replace(state, master={**state.master, "best_program": program})
    file = rewritten(result, tmp_path / "checkpoint_0000000005.h5", state=other)
    _, err = run_program(capsys, str(file), "--trace")
    assert "program +\\x1b\\x07\\\\xff\n" in err or "program +\\x1b\\x07\\xff\n" in err
    assert "\x1b" not in err and "\x07" not in err


@pytest.mark.parametrize(
    ("said", "by"),
    [
        *(("max_steps: 5000", f"max_steps: {by}") for by in ("10000000000000000", "'x'", "-1")),
        ("name: print", "name: [print]"),
        ("base: null", "base: x"),
    ],
)
def test_options_of_somebody_elses_run_are_those_of_a_task(
    said: str, by: str, result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rewritten(result, tmp_path / "checkpoint_0000000005.h5", (said, by))
    _, err = run_program(capsys, str(file), status=2)
    assert f"task.{said.partition(':')[0]}: expected" in err and "Traceback" not in err
