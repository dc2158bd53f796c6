"""The metrics that the kinds of a run declare, as status.json has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_es.config import registry
from hpc_es.core.data import ConfigData
from hpc_es.core.declarations import Metric
from hpc_es.core.errors import UserError, one_line
from hpc_es.storage.answers import read_object
from hpc_es.storage.status import STATUS

MOST, LONGEST = 40, 80  # metrics that are read, and characters of a text


def declared_metrics(run: Path, config: ConfigData) -> dict[str, Metric]:
    """Return the metrics of a run by name.

    For runs of version 0.2 they are those of the built-in kinds in its config.
    """
    stored = read_object(run / STATUS).get("metrics")
    if isinstance(stored, dict):
        known = {name: _metric(values) for name, values in list(stored.items())[:MOST]}
        return {
            one_line(name)[:LONGEST]: metric for name, metric in known.items() if metric is not None
        }
    algorithm, task = _built_in("algorithms", config), _built_in("tasks", config)
    return {
        **(algorithm.NEEDS.metrics if algorithm else {}),
        **(task.OFFERS.metrics if task else {}),
    }


def _metric(values: object) -> Metric | None:
    """Return a metric from its entry; None for an entry of another form."""
    if not isinstance(values, dict) or not isinstance(values.get("label"), str):
        return None
    unit = values.get("unit")
    label = one_line(values["label"])[:LONGEST]
    return Metric(
        label,
        one_line(unit)[:LONGEST] if isinstance(unit, str) else "",
        values.get("is_log") is True,
    )


def _built_in(package: registry.Package, config: ConfigData) -> Any:
    """Return the module of the kind in a config if it is a built-in one, else None.

    Nothing else is imported.
    """
    section = config.get("algorithm" if package == "algorithms" else "task")
    kind = section.get("kind") if isinstance(section, dict) else None
    if not isinstance(kind, str) or kind not in registry.kinds(package):
        return None
    try:
        return registry.module(package, kind)
    except UserError:
        return None
