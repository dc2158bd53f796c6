"""Aliases of YAML: shared values are allowed, small texts that expand to any size are not."""

from __future__ import annotations

import time

import pytest

from hpc_es.config.yaml_text import MOST_VALUES, parse


def bomb(levels: int, items: int = 10) -> str:
    """A text whose last value has items ** levels numbers."""
    lines = [f"a0: &a0 [{', '.join(['1'] * items)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * items)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_small_texts_do_not_expand_without_end() -> None:
    assert len(bomb(12)) < 1000
    since = time.monotonic()
    with pytest.raises(ValueError, match=r"aliases expand it to 1,234,567,901,\d+ values"):
        parse(bomb(12))
    assert time.monotonic() - since < 1


@pytest.mark.parametrize("text", [bomb(4), "a: &a {b: 1}\nc: *a\nd: {<<: *a, e: 2}", "[" + "1, " * MOST_VALUES + "1]"])
def test_values_that_are_shared_or_written_out_are_read(text: str) -> None:
    assert parse(text) is not None


def test_alias_to_itself_is_an_error() -> None:
    with pytest.raises(ValueError, match="refers to itself"):
        parse("a: &a {b: [*a]}")
