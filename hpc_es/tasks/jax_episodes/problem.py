"""A policy's parameters, evaluated by compiled episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hpc_es.core.acting import PurePolicy
from hpc_es.core.data import Column
from hpc_es.core.keys import Keys
from hpc_es.core.places import RunPlace
from hpc_es.policies.compiled import CompiledPolicy
from hpc_es.tasks.jax_episodes import cache
from hpc_es.tasks.policy_problems import PolicyProblem

if TYPE_CHECKING:
    from hpc_es.tasks.jax_episodes.program import Program


class CompiledTask(Protocol):
    """What the problem needs of its task."""

    options: Any

    @property
    def columns(self) -> tuple[Column, ...]:
        """What a row has besides what every episode's has."""
        ...

    def program(self, policy: PurePolicy, is_normalised: bool) -> Program:
        """Return the compiled call of a policy."""
        ...

    def require_device(self) -> None:
        """Raise ConfigError where there is no such device."""
        ...

    def circumstances(self) -> Mapping[str, Any]:
        """Return what bits depend on besides config and versions."""
        ...


class CompiledProblem(PolicyProblem):
    """Its chunks are the calls: their size is part of what is compiled."""

    def __init__(self, task: CompiledTask, policy: CompiledPolicy, keys: Keys) -> None:
        o = task.options
        given: tuple[Any, Any] = task, policy  # the one takes what the other binds, which is no Actor
        super().__init__(*given, keys, o.observation_normalization, o.jobs_per_call, task.columns)
        self._compiled_task, self._pure = task, policy.policy

    @property
    def program(self) -> Program:
        """The call of training and of its evaluations."""
        enabled = self._compiled_task.options.observation_normalization.enabled
        return self._compiled_task.program(self._pure, enabled)

    def check(self) -> None:
        """Trace a call without compiling it; ConfigError."""
        self.program.trace()

    def open(self, place: RunPlace) -> None:
        """Compile on rank 0, then read what it has compiled on the others; signals are seen meanwhile."""
        self._compiled_task.require_device()
        if self._compiled_task.options.compilation_cache:
            cache.use(place.from_rank_0(lambda: cache.prepared(place.directory)))
        if place.rank == 0:
            self._compile()
        place.from_rank_0(lambda: "compiled")
        if place.rank != 0:
            self._compile()

    def _compile(self) -> None:
        self.program.compile(lambda: None)

    def circumstances(self) -> Mapping[str, Any]:
        """Return the device, the lanes and XLA's flags."""
        return self._compiled_task.circumstances()
