"""Configs in one text, name=value,..., in the notations of extensions (`core.extensions`)."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from hpc_es.config import extensions
from hpc_es.core.data import ConfigData
from hpc_es.core.errors import ConfigError


class Notation(Protocol):
    """The module of an extension that converts such texts."""

    def reads(self, text: str) -> bool:
        """Return whether a text is in this notation; its mistakes are then reported by it."""
        ...

    def parse_config_string(self, text: str, task: object = None) -> dict[str, Any]:
        """Return the data of a YAML config with its name; ConfigError with every mistake.

        `task` is the section of the overrides.
        """
        ...


def parse_config_string(text: str, task: object = None) -> ConfigData:
    """Return the data of a config in one text; ConfigError with every mistake.

    The notation is the first one that reads the text; if none does, the first of all reports the
    mistakes.
    """
    others: list[Notation] = []
    for _, extension in extensions.every():
        if extension.config_strings:
            notation: Any = importlib.import_module(extension.config_strings)
            if notation.reads(text):
                return dict(notation.parse_config_string(text, task))
            others.append(notation)
    if others:
        return others[0].parse_config_string(text, task)
    what = f"expected the path of a config file, found {text!r}, in a notation that no installed package reads"
    raise ConfigError([("", what + extensions.unusable_text())])
