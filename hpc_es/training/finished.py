"""A finished generation: what a phase of the loop yields on rank 0, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpc_es.core.data import Arrays, State
from hpc_es.training.generation import Evaluated

# of the caller; called with (sample, loss)
AfterTrainStep = Callable[[Arrays, Mapping[str, float]], object]


@dataclass(frozen=True)
class Update:
    """The update of a state by a generation."""

    units: Sequence[Arrays]  # what the problem learned, in order
    after: State  # the algorithm's next state
    # the same with the problem's arrays, and with earlier states where updates are delayed
    state: State
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Measured:
    """The state that the evaluation of a generation measured.

    It has copies of arrays that recording needs later.
    """

    state: State
    is_best: bool = False  # whether its evaluation is the best so far


@dataclass(frozen=True, kw_only=True)
class FinishedGeneration:
    """A generation and the update by it, with all that recording needs.

    If a budget has cut the generation short, there is no update: `update.state` then is the state
    before it with what its jobs have found, such as the best vector, for reports only. A run whose
    budget is raised completes the generation from the state before it and from the stored outcomes.
    """

    before: State  # the update may have overwritten theta if it is large
    measured: Measured
    evaluated: Evaluated
    update: Update
    started: float  # when the generation, including its command, started; by time.perf_counter
    workers: tuple[int, int]  # number of all workers, and of those that evaluated
    # in addition to those of the update and the problem
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """The state from which training continues."""
        return self.before if self.evaluated.is_cut else self.update.state
