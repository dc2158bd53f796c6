"""From YAML and overrides to frozen dataclasses; validated on rank 0 only, then broadcast."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Interval

from hpc_es.options import Count, Natural, NonNegative, Positive, option, options


@options
class Noise:
    """`noise:`, where perturbations come from."""

    kind: Literal["table", "counter"] = option(
        "table: slices of a table shared by the ranks of a node; counter: computed from the key, no memory", "table"
    )
    table_size: Count = option("float32 numbers in the table (4 bytes each)", 25_000_000)


@options
class Mpi:
    """`mpi:`, how the ranks share the work; none of it but chunk_size changes a bit of the result."""

    chunk_size: Count = option("jobs evaluated together by one rank; part of the result", 16)
    schedule: Literal["on_demand", "static"] = option("who evaluates a chunk: whoever is free, or a fixed rank", "on_demand")
    master_evaluates: Literal["auto"] | bool = option("whether rank 0 evaluates too; auto: on up to 16 ranks", "auto")


@options
class Evaluation:
    """`evaluation:`, noise-free episodes of the unperturbed theta."""

    interval: Natural = option("generations between evaluations; 0 is off", 10)
    episodes: Count = option("episodes an evaluation", 10)


@options
class Checkpoint:
    """`checkpoint:`, what is kept of the run on disk."""

    interval: Natural = option("generations between checkpoints; 0: by time and at the end only", 10)
    interval_seconds: NonNegative = option("seconds between checkpoints; 0 is off", 300.0)
    keep_last: Count = option("how many of the newest are kept", 3)
    keep_best: bool = option("also keep best.h5, the state of the best evaluation", True)


@options
class Stop:
    """`stop:`, the first limit reached ends the run, at a generation's end; null is no limit."""

    generations: Natural | None = option("finished generations", None)
    timesteps: Count | None = option("environment steps of training episodes", None)
    seconds: Positive | None = option("of training, over all restarts (by the clock, so not reproducible)", None)
    target_return: float | None = option("mean return of an evaluation", None)


@options
class Report:
    """`report:`."""

    tensorboard: bool = option("write TensorBoard event files", False)


@options
class Config:
    """A whole experiment. task, policy and algorithm are the Options of the module that their kind names."""

    name: str | None = option("shown in plots and reports; default: the config file's name", None)
    seed: Annotated[int, Interval(ge=0, lt=2**63)] = option("of everything random; 0 is a seed", 0)
    output: str | None = option("the run directory; default: runs/<name>", None)
    task: Any = option("what is optimised")
    policy: Any = option("what acts")
    algorithm: Any = option("how it learns")
    noise: Noise = option("perturbations", default_factory=Noise)
    mpi: Mpi = option("sharing of work", default_factory=Mpi)
    evaluation: Evaluation = option("measuring theta", default_factory=Evaluation)
    checkpoint: Checkpoint = option("what is kept", default_factory=Checkpoint)
    stop: Stop = option("when to end", default_factory=Stop)
    report: Report = option("extra outputs", default_factory=Report)
