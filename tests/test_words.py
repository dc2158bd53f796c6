"""The package, README, docs/ and tests/ avoid the wording that tests/helpers/words.py lists."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.helpers import words
from tests.helpers.words import (
    CEILINGS,
    CHECKED,
    EXCEPTIONS,
    FILLER,
    REPEATS,
    ROOT,
    TEST_NAME,
    Finding,
    counts,
    files_under,
    findings,
)


@pytest.fixture(scope="module")
def with_exceptions() -> list[Finding]:
    """All findings, including those that EXCEPTIONS allows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "EXCEPTIONS", ())
        return [finding for path in CHECKED for file in files_under([ROOT / path]) for finding in findings(file)]


@pytest.fixture(scope="module")
def everything(with_exceptions: list[Finding]) -> list[Finding]:
    return [finding for finding in with_exceptions if not words.is_excepted(finding)]


@pytest.mark.parametrize(("folder", "ceiling"), json.loads(CEILINGS.read_text(encoding="utf-8")).items())
def test_folder_has_no_more_findings_than_its_ceiling(everything: list[Finding], folder: str, ceiling: int) -> None:
    """A ceiling may only go down: `python -m tests.helpers.words --lower`."""
    number = counts(everything, [folder])[folder]
    here = [str(one) for one in everything if one.file == folder or one.file.startswith(f"{folder}/")]
    assert number <= ceiling, "\n".join(here)


def test_every_checked_path_has_a_ceiling() -> None:
    assert set(json.loads(CEILINGS.read_text(encoding="utf-8"))) >= set(CHECKED)


@pytest.mark.skipif(not EXCEPTIONS, reason="no exceptions")
def test_every_exception_is_needed_and_has_a_reason(
    with_exceptions: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    for exception in EXCEPTIONS:
        glob, pattern, regex, reason = exception
        assert reason
        monkeypatch.setattr(words, "EXCEPTIONS", (exception,))
        assert any(words.is_excepted(one) for one in with_exceptions), (glob, pattern, regex)


def _patterns(tmp_path: Path, text: str, name: str = "module.py") -> list[tuple[int, str]]:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return [(finding.line, finding.pattern) for finding in findings(file)]


@pytest.mark.parametrize(
    ("sentence", "pattern"),
    [
        ("Evaluate so many jobs.", "so many"),
        ("Add the pairs, of which there are enough.", "of which"),
        ("Call a policy of one's own.", "own"),
        ("Import own kinds.", "own"),
        ("Draw noise, as `--check` tells.", "told"),
        ("Load the arrays as the source has them.", "as ... has it"),
        ("Wait so that nobody waits.", "archaic word"),
        ("Return a path; of a package those of its files.", "inversion"),
        ("Write what is to be known.", "is to be"),
        ("Evaluate 12 jobs a second.", "per unit"),
        ("Read a file; RunError where it is damaged.", "error where"),
        ("Read a file; RunError.", "bare error"),
        ("Return the matrix where it is known.", "where for if"),
        ("Check a file that is no config.", "is no"),
        ("Mean of the returns, None of none.", "of none"),
        ("Of every episode, its mean.", "definition begins with 'of'"),
        ("What the update needs.", "definition is a fragment"),
        ("Return what the update needs.", "Return what"),
        ("Return how many ranks remain.", "Return what"),
        ("Return the ranks have finished.", "Return before a verb"),
    ],
)
def test_docstring_with_the_wording_is_reported(tmp_path: Path, sentence: str, pattern: str) -> None:
    text = f'x = 1\n\n\ndef function() -> None:\n    """{sentence}"""\n'
    assert (5, pattern) in _patterns(tmp_path, text)


@pytest.mark.parametrize(
    "sentence",
    [
        "Return the mean of the returns, float64[rows].",
        "Return the number of ranks that have finished.",
        "Return the rows whose episodes are over.",
        "Evaluate 12 jobs per second.",
        "Give each rank its own directory.",
        "Return as many rows as the task has.",
        "Ask and tell in one call: `told` is an argument.",
        "Raise ConfigError if the file is damaged.",
    ],
)
def test_plain_wording_is_not_reported(tmp_path: Path, sentence: str) -> None:
    assert _patterns(tmp_path, f'def function() -> None:\n    """{sentence}\n\n    Once.\n    """\n') == []


def test_wording_is_found_across_line_breaks_in_comments_strings_and_markdown(tmp_path: Path) -> None:
    assert _patterns(tmp_path, "# one of so\n# many words\n") == [(1, "so many")]
    assert _patterns(tmp_path, 'x = 1\ny = (\n    "a first line "\n    f"and so many {x} words"\n)\n') == [
        (4, "so many")
    ]
    assert _patterns(tmp_path, "# Title\n\nof\nwhich\n\n```sh\nso many\n```\n", "page.md") == [(3, "of which")]
    assert _patterns(tmp_path, "| a | of b |\n|---|---|\n| c | of d |\n", "page.md")[-1] == (
        3,
        "definition begins with 'of'",
    )


def test_help_texts_are_noun_phrases(tmp_path: Path) -> None:
    assert _patterns(tmp_path, 'seed: int = option("of everything random", 0)\n') == [
        (1, "definition begins with 'of'")
    ]
    assert _patterns(tmp_path, 'parser.add_argument("x", help="how fast it is")\n') == [(1, "help is a fragment")]
    assert _patterns(tmp_path, 'seed: int = option("seed of all random numbers", 0)\n') == []


def test_filler_names_are_reported_where_they_stand(tmp_path: Path) -> None:
    text = "def told(given, x):\n    for each in x.found:\n        pass\n"
    assert _patterns(tmp_path, text) == [(1, FILLER), (1, FILLER), (2, FILLER), (2, FILLER)]
    assert list(words.filler_names(ast.parse("gives = finding"))) == []


def test_docstring_that_repeats_the_name_is_reported(tmp_path: Path) -> None:
    repeated = 'def close_environments(rows):\n    """Close all environments of these rows."""\n'
    assert _patterns(tmp_path, repeated) == [(2, REPEATS)]
    assert _patterns(tmp_path, 'def rows(x):\n    """Return the rows of x, float32[jobs, 3]."""\n') == []


@pytest.mark.parametrize(
    "name",
    [
        "a_rank_evaluates_its_chunks",
        "what_is_wrong_is_reported",
        "errors_are_told_at_once",
        "results_have_the_same_bits",
        "cache_of_ones_own_is_used",
        "run_carries_on",
        "killed_run_goes_on",
    ],
)
def test_test_names_to_avoid_are_reported(tmp_path: Path, name: str) -> None:
    assert _patterns(tmp_path, f"def test_{name}():\n    pass\n") == [(1, TEST_NAME)]


def test_test_names_of_unit_and_behaviour_are_not_reported() -> None:
    names = ["ask_returns_the_same_vectors_until_tell", "rank_0_writes_the_log", "whole_run_is_identical"]
    for name in names:
        assert list(words.names_of_tests(ast.parse(f"def test_{name}(): pass"))) == []


def test_docstrings_of_tests_may_be_calculations(tmp_path: Path) -> None:
    text = 'def {}():\n    """With 4 parameters: 2 + 2."""\n'
    assert _patterns(tmp_path, text.format("test_size")) == []
    assert _patterns(tmp_path, text.format("size")) == [(2, "definition is a fragment")]


def test_imported_names_are_not_filler() -> None:
    assert list(words.filler_names(ast.parse("from hypothesis import given\n@given(x)\ndef f(): pass"))) == []
