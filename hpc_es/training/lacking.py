"""The packages that a config needs and that are not installed, told before the run starts."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_es.config.kinds import module
from hpc_es.config.sections import Config
from hpc_es.config.yaml_text import Problem
from hpc_es.core.extras import lacking


def lacking_packages(config: Config) -> Iterator[Problem]:
    """Yield (key, text) of each option that needs a package which is not installed."""
    algorithm, report = config.algorithm.kind, config.report
    tensorflow = lacking("tensorflow")
    if tensorflow and getattr(config.policy, "backend", "") == "tensorflow":
        yield "policy.backend", f"is tensorflow, which needs {tensorflow}, or choose numpy"
    if tensorflow and module("algorithms", algorithm).NEEDS.tensorflow:
        yield "algorithm.kind", f"{algorithm} needs {tensorflow}"
    if tensorflow and report.export_interval:
        yield "report.export_interval", f"is {report.export_interval}, which needs {tensorflow}, or set it to 0"
    if report.tensorboard and (text := lacking("tensorboard")):
        yield "report.tensorboard", f"is true, which needs {text}, or set it to false"
    if module("tasks", config.task.kind).OFFERS.compiled and (text := lacking("jax")):
        yield "task.kind", f"is {config.task.kind}, which needs {text}"
    for name in report.loggers:
        if text := lacking(name):
            yield "report.loggers", f"has {name}, which needs {text}, or leave it out"
