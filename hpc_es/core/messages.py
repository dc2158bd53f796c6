"""Values and names as error messages show them, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping


def found_text(value: object) -> str:
    """Return a value as an error shows what came."""
    if isinstance(value, Mapping):
        return "a mapping"
    text = as_yaml(value)
    return "a list" if isinstance(value, list) and len(text) > 60 else text


def as_yaml(value: object) -> str:
    """Return a value as it is written in YAML, texts in quotes."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    return repr(value) if isinstance(value, str) else json.dumps(value)


# Names of other libraries for options of this one.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "budget": ("episodes", "timesteps"),
    "env": ("env_id",),
    "environment": ("env_id",),
    "gamma": ("discount",),
    "hidden_layers": ("hidden_dims",),
    "hidden_sizes": ("hidden_dims",),
    "layers": ("hidden_dims",),
    "lr": ("learning_rate",),
    "max_steps": ("max_episode_steps",),
    "pop_size": ("population_size",),
    "popsize": ("population_size",),
    "std": ("sigma",),
    "stdev": ("sigma",),
    "step_size": ("learning_rate", "sigma"),
}


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the valid name most like this one, or "" if none is similar."""
    near = nearest_name(name, names)
    return f"; did you mean {near!r}?" if near else ""


def has_synonym(name: str, names: Iterable[str]) -> bool:
    """Return whether one of the valid names is another word for this name."""
    return not set(SYNONYMS.get(name.lower(), ())).isdisjoint(names)


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return the valid name most like this one, a synonym first, or "" if none is similar."""
    lowered = {valid.lower(): valid for valid in names}
    near = [synonym for synonym in SYNONYMS.get(name.lower(), ()) if synonym in lowered]
    near = near or difflib.get_close_matches(name.lower(), lowered, 1)
    return lowered[near[0]] if near else ""


def join(key: str, name: str) -> str:
    """Return the dotted key of a name in a section."""
    return f"{key}.{name}" if key else name
