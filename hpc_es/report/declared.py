"""The metrics that the kinds of a run declare, as status.json has them, and those of infos."""

from __future__ import annotations

from pathlib import Path

from hpc_es.config import registry
from hpc_es.core.data import ConfigData
from hpc_es.core.declarations import Metric
from hpc_es.core.errors import one_line
from hpc_es.storage.answers import read_object
from hpc_es.storage.status import STATUS

MOST, LONGEST = 40, 80  # metrics that are read, and characters of a text
# what precedes the key of an info: of candidates, and of evaluations of policies and of models
INFOS = ("info_", "evaluation_info_", "centre_info_")


def declared_metrics(run: Path, config: ConfigData) -> dict[str, Metric]:
    """Return the metrics of a run by name, those of `report.info` last.

    For runs of version 0.2 they are those of the built-in kinds in its config.
    """
    return {**_of_kinds(run, config), **_of_infos(config)}


def is_of_info(name: str) -> bool:
    """Return whether a metric is one of `report.info`."""
    return name.startswith(INFOS)


def _of_infos(config: ConfigData) -> dict[str, Metric]:
    report = config.get("report")
    info = report.get("info") if isinstance(report, dict) else None
    keys = dict.fromkeys(info, "final") if isinstance(info, list) else info
    metrics = {}
    for key, reduction in list(keys.items())[:MOST] if isinstance(keys, dict) else ():
        of_steps = f" ({reduction})" if reduction in ("mean", "sum") else ""
        text = f"{one_line(str(key))[:LONGEST]}{of_steps}"
        population, *centre = (f"{prefix}{key}" for prefix in INFOS)
        metrics[population] = Metric(f"{text}, population")
        metrics |= {name: Metric(f"{text}, unperturbed parameters") for name in centre}
    return metrics


def _of_kinds(run: Path, config: ConfigData) -> dict[str, Metric]:
    stored = read_object(run / STATUS).get("metrics")
    if isinstance(stored, dict):
        known = {name: _metric(values) for name, values in list(stored.items())[:MOST]}
        return {
            one_line(name)[:LONGEST]: metric for name, metric in known.items() if metric is not None
        }
    algorithm = registry.built_in("algorithms", config.get("algorithm"))
    task = registry.built_in("tasks", config.get("task"))
    return {
        **(algorithm.NEEDS.metrics if algorithm else {}),
        **(task.OFFERS.metrics if task else {}),
    }


def _metric(values: object) -> Metric | None:
    """Return a metric from its entry; None for an entry of another form."""
    if not isinstance(values, dict) or not isinstance(values.get("label"), str):
        return None
    texts = {name: values.get(name) for name in ("label", "unit", "short")}
    lines = {
        name: one_line(text)[:LONGEST] if isinstance(text, str) else ""
        for name, text in texts.items()
    }
    is_log, is_stated = (values.get(name) is True for name in ("is_log", "is_stated"))
    return Metric(is_log=is_log, is_stated=is_stated, **lines)
