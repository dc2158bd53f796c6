"""Values and names as a user reads them in an error."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


def found_text(value: Any) -> str:
    """Return a value as an error shows what came."""
    if isinstance(value, Mapping):
        return "a mapping"
    text = shown(value)
    return "a list" if isinstance(value, list) and len(text) > 60 else text


def shown(value: Any) -> str:
    """Return a value as it is written in YAML, texts in quotes."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    return repr(value) if isinstance(value, str) else json.dumps(value)


def nearest(name: str, names: Iterable[str]) -> str:
    """ "; did you mean ...?" for the valid name most like this one, or nothing."""
    near = nearest_name(name, names)
    return f"; did you mean {near!r}?" if near else ""


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return the valid name most like this one, or ""."""
    lowered = {valid.lower(): valid for valid in names}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    return lowered[near[0]] if near else ""


def join(key: str, name: str) -> str:
    """Return the dotted key of a name in a section."""
    return f"{key}.{name}" if key else name
