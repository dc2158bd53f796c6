"""The kinds of a config, and what they declare: resolved once, and the only place that asks for it.

A kind declares constants as `NEEDS` (algorithms) or `OFFERS` (tasks), and what depends on its
options as a function `needs(options)`, `offers(options)` or `computes(options)` (policies). No
other code reads options of a kind, so that those of a custom kind may have any names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeVar

from hpc_es.config.registry import module
from hpc_es.core.data import Arrays
from hpc_es.core.declarations import Computes, Metric, Needs, NoiseReport, Offers
from hpc_es.core.errors import ConfigError
from hpc_es.core.vocabulary import Vocabulary, vocabulary_of

T = TypeVar("T")


class Setup:
    """The kinds of a config; each is imported when it is first asked for."""

    def __init__(self, config: Any) -> None:  # a Config, whose module imports this one
        self._config = config

    @cached_property
    def algorithm(self) -> Any:
        """The module or class of the algorithm."""
        return module("algorithms", self._config.algorithm.kind)

    @cached_property
    def task(self) -> Any:
        """The module or class of the task."""
        return module("tasks", self._config.task.kind)

    @cached_property
    def noise(self) -> Any:
        """The module or class of the noise."""
        return module("noise", self._config.noise.kind)

    @cached_property
    def needs(self) -> Needs:
        """The requirements of the algorithm."""
        constant: Needs = self.algorithm.NEEDS
        return _declared(self.algorithm, "needs", self._config.algorithm, constant)

    @cached_property
    def offers(self) -> Offers:
        """The capabilities of the task."""
        constant: Offers = self.task.OFFERS
        return _declared(self.task, "offers", self._config.task, constant)

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics that the algorithm and the task declare, by name."""
        return {**self.needs.metrics, **self.offers.metrics}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What files and progress lines call the results of the task."""
        return vocabulary_of(self.offers)

    @property
    def noise_reports(self) -> tuple[NoiseReport, ...]:
        """How to read what the algorithm and the problem have found out about noise."""
        declared = self.needs.noise_report, self.offers.noise_report
        return tuple(report for report in declared if report is not None)

    def has_noise(self, shared: Arrays) -> bool:
        """Return whether evaluations were found to be noisy, from the shared arrays of a state."""
        return any(report.is_noisy(shared) for report in self.noise_reports)

    @cached_property
    def computes(self) -> Computes:
        """How the policy computes; without a policy nothing depends on the chunks."""
        options = self._config.policy
        if options is None:
            return Computes(any_chunks=True)
        return _declared(module("policies", options.kind), "computes", options, Computes())


def _declared(kind: Any, name: str, options: Any, constant: T) -> T:
    """Return what a function of a kind declares for these options.

    It is the constant if the kind has no such function.

    Raises:
        ConfigError: the function fails.
    """
    function = getattr(kind, name, None)
    if not callable(function):
        return constant
    result = function(options)
    if not isinstance(result, type(constant)):
        expected, found = type(constant).__name__, type(result).__name__
        raise ConfigError(
            [
                (
                    "kind",
                    f"{name}(options) of {options.kind!r} returns {found}: expected {expected} "
                    f"(hpc_es.extend.{expected})",
                )
            ]
        )
    return result
