"""Reading of evaluations.csv, with the types of the parameters."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_es.core.errors import UserError
from hpc_es.core.run_files import each_line, exists, open_file
from hpc_es.storage.answers import read_config
from hpc_es.storage.line_logs import EVALUATIONS

MOST_DIGITS = 19  # of an int64; longer numbers are float64
# As Python writes numbers: categories such as 1_0 are texts.
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|-?inf|nan", re.ASCII)


def each_evaluation(path: Path) -> Iterator[dict[str, object]]:
    """Yield the rows of evaluations.csv by column; nothing if there is none.

    Numbers are int or float, categories what the config lists; an empty cell is None. A line that
    is being written is left out.
    """
    file = path / EVALUATIONS
    if not exists(file):
        return
    categories = _categories(read_config(path))
    try:
        with open_file(file) as content:
            rows = csv.reader(line.decode() for line in each_line(content))
            names = next(rows, [])
            if "" in names:
                raise UserError(f"{file} has a column without a name")
            for row in rows:
                if len(row) == len(names):  # else it is a line that is being written
                    yield {
                        name: _value(text, categories.get(name))
                        for name, text in zip(names, row, strict=True)
                    }
    except csv.Error as error:
        raise UserError(f"{file}: {error}") from error


def _categories(config: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """Return the categories of each parameter with choices, by their text in evaluations.csv."""
    task = config.get("task")
    parameters = task.get("parameters") if isinstance(task, Mapping) else None
    if not isinstance(parameters, Mapping):
        return {}
    choices = {
        name: [False, True] if parameter.get("boolean") else parameter.get("choices")
        for name, parameter in parameters.items()
        if isinstance(parameter, Mapping)
    }
    return {
        name: {item if isinstance(item, str) else json.dumps(item): item for item in items}
        for name, items in choices.items()
        if isinstance(items, list)
    }


def _value(text: str, categories: Mapping[str, object] | None) -> object:
    """Return the category, number or text of a cell, None for an empty one."""
    if categories is not None:
        return categories.get(text, text)
    if NUMBER.fullmatch(text):
        return int(text) if len(text) < MOST_DIGITS and text.lstrip("-").isdigit() else float(text)
    return text or None
