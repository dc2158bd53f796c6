"""Programs as objectives: what they are told, what they answer, what is kept of failures."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hpc_es.core.interfaces import RunContext
from hpc_es.tasks.functions.python_evaluator import EvaluationResult
from hpc_es.tasks.functions.subprocess_evaluator import Command, SubprocessEvaluator, escaped

X = np.array([[0.1, -2e-300]])
SH = shutil.which("sh") or "/bin/sh"
Run = Callable[..., EvaluationResult]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a shell text, of which $1 is the parameters' path and $2 the result's."""
    made: list[SubprocessEvaluator] = []

    def run(text: str, words: tuple[str, ...] = ("{parameters}", "{result}"), **more: object) -> EvaluationResult:
        external = SubprocessEvaluator(Command((SH, "-c", text, "sh", *words), tmp_path, **more))  # type: ignore[arg-type]
        external.open(RunContext(tmp_path, 0, 1, lambda make: make()))
        made.append(external)
        (found,) = external.evaluate(X, [7], lambda: None)
        assert (found.failure is None) == math.isfinite(found.value)
        return found

    yield run
    for each in made:
        each.close()


def why(found: EvaluationResult) -> str:
    """Why it failed."""
    assert found.failure is not None
    return found.failure.text


def test_the_parameters_are_json_and_the_result_a_number(run: Run, tmp_path: Path) -> None:
    assert run(f'cp "$1" {tmp_path}/told; echo 3.5e-1 > "$2"').value == 0.35
    assert (tmp_path / "told").read_text() == "[0.1, -2e-300]\n"
    assert not list((tmp_path / "scratch").iterdir())


def test_named_parameters_are_an_object_and_text_is_a_line_each(run: Run, tmp_path: Path) -> None:
    copy = f'cp "$1" {tmp_path}/told; echo 1 > "$2"'
    run(copy, names=("a", "b"))
    assert (tmp_path / "told").read_text() == '{"a": 0.1, "b": -2e-300}\n'
    run(copy, format="text")
    assert (tmp_path / "told").read_text() == "0.1\n-2e-300\n"


def test_marks_are_replaced_literally_wherever_they_stand(run: Run, tmp_path: Path) -> None:
    words = ("--in={parameters}", "{result}", "{seed} {config} {other}", "$HOME; {result")
    run(f'printf "%s\\n" "$@" > {tmp_path}/told; echo 1 > "$2"', words)
    first, second, third, fourth = (tmp_path / "told").read_text().splitlines()
    scratch = Path(second).parent
    assert first == f"--in={scratch}/parameters" and scratch.parent == tmp_path / "scratch"
    assert (third, fourth) == (f"7 {tmp_path} {{other}}", "$HOME; {result")


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), (" 1.5e3\n\n", 1500), ('{"value": 2, "more": [1]}', 2), (".5", 0.5), ("+1.", 1)]
)
def test_results(run: Run, text: str, value: float) -> None:
    assert run(f"printf '{text}' > \"$2\"").value == value


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("exit 3", "ended with status 3"),
        ("kill -9 $$", "ended with signal 9"),
        ("sleep 60", "took longer than task.timeout_seconds: 0.3"),
        ("true", "no result was written"),
        ('echo nan > "$2"', "the value is nan"),
        ('echo inf > "$2"', "the value is inf"),
        ('echo true > "$2"', 'the result is true: expected a number, or JSON such as {"value": 1.5}'),
        ('printf "\\033[2J" > "$2"', r"the result is \x1b[2J"),
        ('head -c 1000001 /dev/zero > "$2"', "larger than 1,000,000 bytes"),
        ('mkdir "$2"', "Is a directory"),
        (
            'echo 1 > "$2"; echo one >&2; printf "two\\033[31m\\n" >&2; exit 1',
            r"status 1; stderr: one | two\x1b[31m; kept",
        ),
    ],
)
def test_failures(run: Run, text: str, failure: str) -> None:
    assert failure in why(run(text, timeout_seconds=0.3))


def test_what_a_program_wrote_is_kept_and_the_kind_of_failure_is_how_it_ended(run: Run) -> None:
    failures = [run(f"seq 12 >&2; exit {status}").failure for status in (1, 1, 3)]
    assert failures[0] is not None and failures[0].details == "".join(f"{number}\n" for number in range(1, 13))
    assert failures[0].text.startswith(f"{SH} ended with status 1; stderr: 8 | 9 | 10 | 11 | 12; kept in ")
    kinds = [failure.kind for failure in failures if failure is not None]
    assert kinds == [f"{SH} ended with status {status}" for status in (1, 1, 3)]


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    external = SubprocessEvaluator(Command(("/no/such",), tmp_path))
    (found,) = external.evaluate(X, [7], lambda: None)
    external.close()
    assert "/no/such could not be started" in why(found)


def test_ten_directories_of_failures_are_kept(run: Run, tmp_path: Path) -> None:
    said = [why(run('cat "$1" > seen; exit 1')) for _ in range(12)]
    kept = sorted(path.name for path in (tmp_path / "scratch").iterdir())
    assert kept == [f"failed_{number}" for number in range(10)]
    assert (tmp_path / "scratch" / "failed_9" / "seen").read_text() == "[0.1, -2e-300]\n"
    assert "kept in" in said[9] and "not kept" in said[10]


def test_what_a_killed_run_left_is_removed_by_its_rank(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    for name in ("rank_0_11_0", "rank_1_12_0", "rank_5_13_0", "failed_3"):
        (scratch / name).mkdir(parents=True)
    SubprocessEvaluator(Command(("x",), tmp_path)).open(RunContext(tmp_path, 0, 2, lambda make: make()))
    assert sorted(path.name for path in scratch.iterdir()) == ["failed_3", "rank_1_12_0"]


def test_the_program_gets_the_variables_that_are_put_in(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    assert run('echo $N${PMI_RANK:-0} > "$2"', environment={"N": "4"}).value == 40


def test_escaped() -> None:
    assert escaped("é\x1b\r\\") == "é\\x1b\\r\\"
