"""A Griffe extension for the API page: the comment of a field becomes its docstring.

    chunk_size: int  # jobs per chunk           or a comment in the lines above

Without it the page would omit the fields of dataclasses and protocols.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Sequence
from typing import Any

import griffe


def comment_of(lines: Sequence[str], first: int, last: int) -> str:
    """Return the comment of the statement in lines first .. last (counted from 1),
    or "" if it has none.
    """
    statement = "\n".join(line.strip() for line in lines[first - 1 : last])
    tokens = tokenize.generate_tokens(io.StringIO(f"{statement}\n").readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    above = first - 1
    while not comments and above and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    comments = comments or [line.strip() for line in lines[above : first - 1]]
    text = " ".join(
        comment.lstrip("# ")
        for comment in comments
        if "noqa" not in comment and "type:" not in comment
    )
    first = text.split(" ", 1)[0].rstrip(",:;.")
    # not code such as float32[jobs] or row_dtype
    if first.isalpha() and first not in ("dtype", "theta"):
        text = text[:1].upper() + text[1:]
    return text if not text or text.endswith(".") else f"{text}."


class FieldComments(griffe.Extension):
    """Turns comments into docstrings of attributes that have none."""

    def on_attribute_instance(self, *, attr: Any, **_: Any) -> None:
        """Set the docstring of an attribute from its comment."""
        if attr.docstring is None and attr.lineno is not None:
            text = comment_of(
                attr.lines_collection[attr.filepath], attr.lineno, attr.endlineno or attr.lineno
            )
            if text:
                attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)
