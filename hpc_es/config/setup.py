"""The kinds of a config, and what they declare: resolved once, and the only place that asks for it.

A kind declares constants as `NEEDS` (algorithms) or `OFFERS` (tasks), and what depends on its options as a function
`needs(options)`, `offers(options)` or `computes(options)` (policies). No other code reads options of a kind, so that
those of a custom kind may have any names.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

from hpc_es.config.registry import module
from hpc_es.core.declarations import Computes, Needs, Offers


class Sections(Protocol):
    """The sections of a config that have kinds."""

    @property
    def algorithm(self) -> Any: ...

    @property
    def task(self) -> Any: ...

    @property
    def policy(self) -> Any: ...

    @property
    def noise(self) -> Any: ...


class Setup:
    """The kinds of a config; each is imported when it is first asked for."""

    def __init__(self, config: Sections) -> None:
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
        declared: Needs = self.algorithm.NEEDS
        by_options = getattr(self.algorithm, "needs", None)
        return by_options(self._config.algorithm) if callable(by_options) else declared

    @cached_property
    def offers(self) -> Offers:
        """The capabilities of the task."""
        declared: Offers = self.task.OFFERS
        by_options = getattr(self.task, "offers", None)
        return by_options(self._config.task) if callable(by_options) else declared

    @cached_property
    def computes(self) -> Computes:
        """How the policy computes; that of a task without a policy computes nothing."""
        options = self._config.policy
        if options is None:
            return Computes(any_chunks=True)
        by_options = getattr(module("policies", options.kind), "computes", None)
        return by_options(options) if callable(by_options) else Computes()
