"""Labels of curves: the shortest texts that tell configurations apart.

A name that the user has given comes first, then the strategy, then further options, and only what
is needed: two runs of one config with different strategies are `es` and `cma_es`, with different
step sizes `sigma 0.1` and `sigma 0.2`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from hpc_es.core.data import ConfigData, Json

Flat: TypeAlias = Mapping[str, Json]
STRATEGY = "algorithm.kind"
# keys whose values say enough without the key; the first of them name a task
PLAIN = ("kind", "env_id", "game", "function", "command", "model", "name", "distribution")
# keys that say nothing without their section: repeats.at_least 4
VAGUE = ("at_least", "at_most", "enabled", "interval", "probability", "low", "high")
MOST_LETTERS = 1 << 22  # of all dotted keys
MOST_KEYS = 3  # of a label, after the strategy
LONGEST_VALUE = 40


def flat(config: ConfigData) -> ConfigData:
    """Return a config with dotted keys, such as algorithm.sigma.

    Raises:
        ValueError: the keys are longer than those of any config that somebody has written.
    """
    result: dict[str, Json] = {}
    letters = 0
    waiting: list[tuple[str, Json]] = [*config.items()][::-1]
    while waiting:
        key, value = waiting.pop()
        letters += len(key)
        if letters > MOST_LETTERS:
            raise ValueError(f"its dotted keys have more than {MOST_LETTERS:,} letters")
        if isinstance(value, dict):
            waiting += [(f"{key}.{name}", item) for name, item in value.items()][::-1]
        else:
            result[key] = value
    return result


def config_labels(
    names: Sequence[str], configs: Sequence[Flat], fallbacks: Sequence[str]
) -> list[str]:
    """Return a label for each configuration.

    Args:
        names: name of each.
        configs: its settings by dotted key.
        fallbacks: its label where the settings do not tell it from another one.

    Examples:
        >>> settings = [{"algorithm.kind": "es"}, {"algorithm.kind": "cma_es"}]
        >>> config_labels(["reach", "reach"], settings, ["a", "b"])
        ['es', 'cma_es']
    """
    if len(set(names)) == 1:
        if len(names) == 1:
            return list(names)
        parts: list[list[str]] = [[] for _ in names]
    else:
        parts = [[name] for name in names]
    for alike in _alike(parts):
        _add_strategy(parts, alike, configs)
    for _ in range(MOST_KEYS):
        for alike in _alike(parts):
            _add_key(parts, alike, configs)
    for alike in _alike(parts):
        for index in alike:
            parts[index].append(fallbacks[index])
    return [", ".join(part) for part in parts]


def _alike(parts: Sequence[Sequence[str]]) -> Iterator[list[int]]:
    """Yield the indices of the configurations that have the same label so far."""
    classes: dict[tuple[str, ...], list[int]] = {}
    for index, part in enumerate(parts):
        classes.setdefault(tuple(part), []).append(index)
    yield from (indices for indices in classes.values() if len(indices) > 1)


def _add_strategy(
    parts: Sequence[list[str]], alike: Sequence[int], configs: Sequence[Flat]
) -> None:
    kinds = [configs[index].get(STRATEGY) for index in alike]
    if len(set(map(str, kinds))) > 1:
        for index, kind in zip(alike, kinds, strict=True):
            parts[index].append(str(kind))


def _add_key(parts: Sequence[list[str]], alike: Sequence[int], configs: Sequence[Flat]) -> None:
    """Add the option that divides these configurations into most parts."""
    texts = {key: [_text(configs[index], key) for index in alike] for key in configs[alike[0]]}
    texts = {key: values for key, values in texts.items() if all(values)}
    best = max(texts, key=lambda key: len(set(texts[key])), default=None)
    if best is None or len(set(texts[best])) == 1:
        return
    section, _, last = best.rpartition(".")
    if last in VAGUE:
        last = f"{section.rpartition('.')[2]}.{last}"
    for index, value in zip(alike, texts[best], strict=True):
        parts[index].append(value if last in PLAIN else f"{last} {value}")


def _text(config: Flat, key: str) -> str:
    """Return a setting as text; "" if there is none."""
    if key not in config:
        return ""
    value = config[key]
    text = (
        value
        if isinstance(value, str)
        else f"{value:.12g}"
        if isinstance(value, float)
        else json.dumps(value, default=str)
    )
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
