"""Configs in one line, such as `env=c(task="print"),agent=c(algorithm="pg",lr=1e-4),batch_size=64`.

    settings = [setting {"," setting}]      setting = name "=" value      value = "c(" settings ")" | a Python literal

A comma separates where no bracket of any kind is open; brackets within quotes count too, as in the system that this
notation comes from. Nothing is evaluated but literals.
"""

from __future__ import annotations

import ast
from typing import Any

from hpc_es.core.errors import ConfigError

OPENING, CLOSING = "([{", ")]}"


def parse(text: str) -> dict[str, Any]:
    """Return the settings as nested dicts; ConfigError says which piece is wrong, and how."""
    settings: dict[str, Any] = {}
    for piece in _split(text):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name.isidentifier():
            raise _error(text, f"expected name=value, found {piece.strip()!r}")
        if name in settings:
            raise _error(text, f"{name} is set twice")
        settings[name] = _value(value)
    return settings


def _value(text: str) -> Any:
    if text.startswith("c(") and text.endswith(")"):
        return parse(text[2:-1])
    try:
        return literal(text)
    except ValueError as error:
        raise _error(text, 'expected a number, a "text", a list, True, False, None or c(...)') from error


def literal(text: str) -> Any:
    """Return the value of a Python literal; ValueError."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text!r} is no Python literal") from error


def _split(text: str) -> list[str]:
    pieces, depth = [""], 0
    for character in text:
        depth += (character in OPENING) - (character in CLOSING)
        if depth < 0:
            raise _error(text, "a bracket is closed that was not opened")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    if depth:
        raise _error(text, "a bracket is not closed")
    return [] if pieces == [""] or not text.strip() else pieces


def _error(text: str, what: str) -> ConfigError:
    return ConfigError([("", f"the config string {text!r}: {what}")])
