"""What the kinds of a config declare, so that nothing else needs to know their options.

Constants are `NEEDS` of an algorithm and `OFFERS` of a task. What depends on options is the result
of a function of the kind: `needs(options)`, `offers(options)`, or `computes(options)` for a policy.
`config.setup` calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hpc_es.core.data import Arrays, Column, Json
from hpc_es.core.quantities import NONE, Goal, Quantities

Searched = Literal["vectors", "programs", "trajectories"]
# What a run returns: one solution, the members of a front of several objectives, or those of an
# archive's cells.
Incumbent = Literal["one", "front", "cells"]
# the backend that computes what declares no other; the others are files of `hpc_es.backends` too
NUMPY = "numpy"


@dataclass(frozen=True)
class Setting:
    """What the options of a kind say, in the words of messages, such as "algorithm.delay is 2".

    Examples:
        >>> from hpc_es.extend import Setting
        >>> str(Setting("algorithm.delay", "2"))
        'algorithm.delay is 2'
    """

    key: str  # of the config
    value: str  # as in the config

    def __str__(self) -> str:
        return f"{self.key} is {self.value}"


@dataclass(frozen=True)
class Metric:
    """How progress lines, pictures and reports show a metric of the algorithm or of the problem."""

    label: str  # such as "share of filled cells"
    unit: str = ""
    is_log: bool = False  # whether its axis is logarithmic; it is then positive
    short: str = ""  # its name in progress lines; "": they do not show it
    is_stated: bool = False  # whether reports state its last value, as it hardly changes


@dataclass(frozen=True)
class NoiseReport:
    """How to read what a search has found out about noise, from the shared arrays of its state.

    Algorithms and tasks that find out declare it (`Needs.noise_report`, `Offers.noise_report`).
    """

    is_noisy: Callable[[Arrays], bool]  # whether evaluations were found to be noisy
    # what finding out costs, for --check, from the first state; None: nothing
    cost_text: Callable[[Arrays], str | None]
    # jobs of each round of a usual generation of so many candidates, if evaluations are noisy
    rounds: Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class Requirement:
    """Values of another section of the config without which options of a kind do not work."""

    key: str  # of a section without kinds, such as "mpi.schedule"
    values: tuple[Json, ...]  # that are allowed
    because: Setting
    remedy: str = ""  # after the first allowed value, which messages name


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of an algorithm, declared as `NEEDS` of its module or class.

    What depends on options is declared by a function `needs(options)` beside it, which returns
    `NEEDS` with changes.

    Examples:
        >>> from hpc_es.extend import Metric, Needs
        >>> NEEDS = Needs(searches="vectors", noise=True, metrics={"sigma": Metric("step size")})
    """

    searches: Searched  # kind of problem
    policy: str = "mlp"  # default kind of policy, for tasks in which a policy acts
    noise: bool = False  # whether it perturbs parameters with a `Noise`
    # largest `noise.rank` that it supports: 0, 1 or infinite; squares are summed with rank 1 only
    max_rank: float = 0
    # Backends one of which computes its updates: that of the policy, or the first one if it is not
    # among them.
    backends: tuple[str, ...] = ()
    device: bool = (
        # whether its own code uses a GPU: each rank then sees one only, as `device` of the config
        # says
        False
    )
    gradients: bool = False  # whether chunks return gradients; results then depend on the chunks
    # whether it can learn from data of the caller, for `TrainingRun.update`: `LearnsFromSamples`
    learns_from_samples: bool = False
    columns: tuple[Column, ...] = ()  # further columns of the rows, filled by its `evaluate`
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # that reports show, by name
    # defaults of other sections of the config, by dotted key
    presets: Mapping[str, Json] = field(default_factory=dict)
    # Values of its own options, by name, for tasks whose values may be noisy. Their defaults are
    # for other tasks, ask-and-tell, and runs of versions that did not have these options.
    presets_if_noisy: Mapping[str, Json] = field(default_factory=dict)
    # of what its state knows about noise; None: it does not find out
    noise_report: NoiseReport | None = None
    growing: bool = False  # whether arrays of its state may change their shapes, such as an archive
    # whether its policies return probabilities, from which actions are sampled
    stochastic: bool = False
    # whether it learns a value function, for which custom networks have a further output
    value: bool = False
    mixed: bool = False  # whether it adapts to discrete coordinates, and samples choices
    objectives: bool = False  # whether it ranks by several objectives, which the task must have
    measures: bool = False  # whether it needs measures with ranges
    incumbent: Incumbent = "one"  # what it is looking for
    # whether vectors from elsewhere, such as initial points, can replace its candidates
    injects: bool = False
    # Depending on options:
    requires: tuple[Requirement, ...] = ()  # of other sections
    in_flight: Setting | None = None  # why ranks evaluate several generations at the same time
    asynchronous: Setting | None = None  # why each worker makes updates of its own
    side_by_side: bool = False  # whether two searches of a `DistributionStrategy` alternate
    # whether all generations have the same number of jobs, each a whole episode
    equal_generations: bool = True
    samples_evaluations: bool = False  # whether actions are sampled in evaluations too
    # whether a batch can be evaluated that the run then does not know of
    independent_batches: bool = True
    # of a generation, if building the algorithm would use its backend (`waits_for_run`), or if that
    # limits the number of initial points
    jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Offers:
    """Capabilities of a task, declared as `OFFERS` of its module or class.

    What depends on options is declared by a function `offers(options)` beside it, which returns
    `OFFERS` with changes.

    Examples:
        >>> from hpc_es.extend import Offers
        >>> OFFERS = Offers(problems=("vectors",), values=True, goal="minimise")
        >>> OFFERS.sign
        -1
    """

    problems: tuple[Searched, ...]  # kinds of problem that the task can make
    policy: bool = False  # whether a policy acts in the task
    values: bool = False  # whether jobs have values to which `stop.target_value` can refer
    any_chunks: bool = False  # whether results are independent of the chunks, except for gradients
    info: bool = False  # whether `build` has the argument `info`, for the numbers of `report.info`
    # whether it compiles the pure form of the policy or a model, and chooses the jobs of a call
    compiled: bool = False
    compiler: str = "jax"  # the backend that compiles it, if `compiled`
    without_compiler: str = ""  # what to set if it is not installed, for messages
    device: bool = (
        # whether its own code uses a GPU: each rank then sees one only, as `device` of the config
        # says
        False
    )
    # the same, if code of the user's imports a library with a device; otherwise it is not logged
    may_use_device: bool = False
    # whether evaluations measure vectors without a policy: `hpc-es eval`, target_return
    measures_centre: bool = False
    automatic_sizes: bool = False  # whether its options are `AutomaticSizes`
    counts_steps: bool = False  # whether a job has steps, which messages count
    # whether equal parameters may have different values, unless the task says that they have not
    noisy: bool = False
    # of what its problem finds out about noise; None: it does not
    noise_report: NoiseReport | None = None
    # Options with which a job of training is a single episode whose failure is counted, as
    # evaluations need it.
    single_episodes: Mapping[str, Json] = field(default_factory=dict)
    # Depending on options:
    requires: tuple[Requirement, ...] = ()  # of other sections
    # whether building it compares native stepping with that of Gymnasium
    compares_stepping: bool = False
    wrapped: bool = False  # whether its environments have wrappers that the config names
    # of normalised observations; None: they are not normalised
    observation_limit: float | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # that reports show, by name
    quantities: Quantities = NONE  # objectives, constraints, measures and metrics of its jobs
    goal: Goal | None = None  # of values; None: there are only returns, which are maximised
    # share of a generation's jobs after which the rest is given up: `ClosableProblem`
    close_at: float | None = None
    closes: Setting | None = None  # what sets `close_at`
    platform: Setting | None = None  # the device in place of `device`, "cpu" or "gpu"
    # options that could limit the time or the steps of a job, and do not
    unset_limits: tuple[str, ...] = ()
    checked_call: str = ""  # the option that names a function which `--check` calls once

    @property
    def sign(self) -> int:
        """The factor between values and returns."""
        return -1 if self.goal == "minimise" else 1


@dataclass(frozen=True, kw_only=True)
class Computes:
    """How a policy computes, as a function `computes(options)` of its kind declares it.

    A kind without this function computes with NumPy, or with what it sets up itself.
    """

    backend: str = NUMPY  # library that computes it, and whose device is decided for it
    backends: tuple[str, ...] = ()  # that its option `backend` may name
    device: bool = (
        # whether its own code uses a GPU: each rank then sees one only, as `device` of the config
        # says
        False
    )
    any_chunks: bool = False  # whether results are independent of the chunks
    custom: bool = False  # whether it runs code of the user's, which `--check` tries on a batch
    low_rank_only: Setting | None = None  # an option that has an effect with `noise.rank` only
    own_calls: tuple[str, ...] = ()  # options without effect if the task compiles the policy
    # options with which NumPy computes it, if it can
    in_numpy: Mapping[str, Json] = field(default_factory=dict)


def ignored_backend(computes: Computes, offers: Offers) -> str | None:
    """Return the backend of a policy that a task compiles with another one, else None."""
    is_ignored = offers.compiled and computes.backend not in (NUMPY, offers.compiler)
    return computes.backend if is_ignored else None


def with_asynchronous_updates(needs: Needs) -> Needs:
    """Return the requirements of an algorithm whose option `updates` is asynchronous."""
    why = Setting("algorithm.updates", "asynchronous")
    requires = (*needs.requires, Requirement("mpi.fault_tolerance", (False,), why))
    return replace(needs, asynchronous=why, requires=requires, equal_generations=False)
