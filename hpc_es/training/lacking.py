"""The packages that a config needs and that are not installed, told before the run starts."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_es.config.kinds import module
from hpc_es.config.sections import Config
from hpc_es.config.yaml_text import Problem
from hpc_es.core.extras import lacking


def of_policy(config: Config) -> Iterator[Problem]:
    """Yield (key, text) of each option of the policy that needs a package which is not installed."""
    if getattr(config.policy, "backend", "") == "tensorflow" and (tensorflow := lacking("tensorflow")):
        yield "policy.backend", f"is tensorflow, which needs {tensorflow}, or choose numpy"


def of_algorithm(config: Config) -> Iterator[Problem]:
    """Yield the same of the algorithm."""
    algorithm = config.algorithm.kind
    if module("algorithms", algorithm).NEEDS.tensorflow and (tensorflow := lacking("tensorflow")):
        yield "algorithm.kind", f"{algorithm} needs {tensorflow}"


def of_task(config: Config) -> Iterator[Problem]:
    """Yield the same of the task."""
    if module("tasks", config.task.kind).OFFERS.compiled and (text := lacking("jax")):
        yield "task.kind", f"is {config.task.kind}, which needs {text}"


def of_report(config: Config) -> Iterator[Problem]:
    """Yield the same of extra outputs."""
    report = config.report
    if report.export_interval and (tensorflow := lacking("tensorflow")):
        yield "report.export_interval", f"is {report.export_interval}, which needs {tensorflow}, or set it to 0"
    if report.tensorboard and (text := lacking("tensorboard")):
        yield "report.tensorboard", f"is true, which needs {text}, or set it to false"
    for name in report.loggers:
        if text := lacking(name):
            yield "report.loggers", f"has {name}, which needs {text}, or leave it out"


CHECKS = (of_policy, of_algorithm, of_task, of_report)
