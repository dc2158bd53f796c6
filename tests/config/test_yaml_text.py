"""Aliases of YAML: shared values are allowed, small texts that expand to any size are not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpc_es.config.loading import load
from hpc_es.config.yaml_text import MOST_MARKS, MOST_VALUES, parse
from hpc_es.core.errors import ConfigError
from hpc_es.core.run_files import LARGEST_CONFIG


def bomb(levels: int, items: int = 10) -> str:
    """A text whose last value has items ** levels numbers."""
    lines = [f"a0: &a0 [{', '.join(['1'] * items)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * items)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_small_texts_do_not_expand_without_end() -> None:
    assert len(bomb(12)) < 1000
    since = time.process_time()
    with pytest.raises(ValueError, match=r"aliases expand it to 1,234,567,901,\d+ values"):
        parse(bomb(12))
    assert time.process_time() - since < 1


@pytest.mark.parametrize(
    "text", [bomb(4), "a: &a {b: 1}\nc: *a\nd: {<<: *a, e: 2}", "[" + "1, " * MOST_VALUES + "1]"]
)
def test_values_that_are_shared_or_written_out_are_read(text: str) -> None:
    assert parse(text) is not None


def test_a_mapping_that_is_merged_many_times_is_refused() -> None:
    """It has 2,000 keys and is named 20,000 times: PyYAML alone takes half a minute."""
    keys = ", ".join(f"k{number}: 0" for number in range(2000))
    text = f"all: &all {{{keys}}}\nonce: {{<<: [{', '.join(['*all'] * 20_000)}]}}"
    since = time.process_time()
    with pytest.raises(ValueError, match="merge keys expand it to more than 100,000 keys"):
        parse(text)
    assert time.process_time() - since < 5


def test_keys_that_are_merged_later_are_counted() -> None:
    """The mapping deep inside is constructed after the one that names it."""
    keys = ", ".join(f"k{number}: 0" for number in range(2000))
    inner = "deep: {er: {est: &inner {<<: *all}}}"
    text = f"all: &all {{{keys}}}\n{inner}\nonce: {{<<: [{', '.join(['*inner'] * 20_000)}]}}"
    with pytest.raises(ValueError, match="merge keys expand it to more than 100,000 keys"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" + "1, " * MOST_MARKS + "1]", "has more than .* 500,000 values"),
        ("a:\n" + ("- " * 100 + "1\n") * 20_000, "has more than .* 500,000 values"),
        ("a: " + "x" * LARGEST_CONFIG, "has more than 4,194,304 characters"),
        (f"a: 0x{'f' * 5000}", "has a number of 5,002 digits"),
    ],
)
def test_what_takes_long_to_parse_or_cannot_be_written_is_refused(text: str, reason: str) -> None:
    since = time.process_time()
    with pytest.raises(ValueError, match=reason):
        parse(text)
    assert time.process_time() - since < 5


def test_own_keys_count_and_then_those_of_the_first_mapping() -> None:
    """https://yaml.org/type/merge.html: keys of earlier mappings override those of later ones."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {z: 3, <<: [*a, *b], w: 3}"
    merged = parse(text)["c"]
    assert isinstance(merged, dict)
    assert list(merged.items()) == [("x", 1), ("y", 1), ("z", 3), ("w", 3)]
    with pytest.raises(
        ValueError, match="a mapping or a list of mappings to merge, found something else"
    ):
        parse("a: {<<: 1}")
    assert parse("a: &a {x: 1, <<: *a}") == {"a": {"x": 1}}


def test_alias_to_itself_is_an_error() -> None:
    with pytest.raises(ValueError, match="refers to itself"):
        parse("a: &a {b: [*a]}")


def test_merge_keys_that_expand_a_text_are_refused() -> None:
    """Each of 8,000 mappings would get the same 4,000 keys."""
    keys = "".join(f"  k{number}: 0\n" for number in range(4000))
    text = f"all: &all\n{keys}each:\n" + "- {<<: *all}\n" * 8000
    since = time.process_time()
    with pytest.raises(ValueError, match="merge keys expand it to more than 100,000 keys"):
        parse(text)
    assert time.process_time() - since < 5
    assert parse("a: &a {b: 1}\nc: {<<: *a, d: 2}\n") == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # in both forms; dotted; and unknown
        (
            "stop:\n"
            + "".join(f"  k{i}: 1\n" for i in range(5000))
            + "".join(f"stop.k{i}: 1\n" for i in range(5000)),
            "'stop.k0' stands twice, in lines 2 and 5002",
        ),
        ("".join(f"stop.k{i}: 1\n" for i in range(20_000)), "stop: has 19,950 more unknown keys"),
        ("".join(f"k{i}: 1\n" for i in range(20_000)), "config: has 19,950 more unknown keys"),
    ],
)
def test_config_of_many_wrong_keys_is_refused_in_seconds(
    text: str, message: str, tmp_path: Path
) -> None:
    """Their time grew with the square of the keys."""
    (tmp_path / "wrong.yaml").write_text(text)
    since = time.process_time()
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "wrong.yaml")
    assert time.process_time() - since < 10
