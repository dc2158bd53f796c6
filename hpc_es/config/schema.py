"""The sections of a config.

The type hint of a field gives the range of a key and its wording in error messages; `option` gives
the default, the help text, and whether a resumed run may change the key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from hpc_es.config.options import (
    Count,
    Kinds,
    Limits,
    Natural,
    NonNegative,
    PathText,
    Positive,
    option,
    options,
    unused,
)
from hpc_es.config.setup import Setup
from hpc_es.core.declarations import NUMPY, ignored_backend
from hpc_es.core.errors import ConfigProblem, as_yaml

Text = Annotated[str, Limits(min_length=1)]
LIMITS = (
    "set stop.generations, timesteps, episodes, seconds, target_return, target_value or patience"
)
USUAL_CHUNK = 16  # jobs per chunk where results depend on it and the config sets no number
Reduction = Literal["final", "mean", "sum"]
NO_NUMBERS: Mapping[str, Reduction] = {}  # no numbers of infos become metrics
LoggerName = Literal["tensorboard", "mlflow", "wandb"]


@options
class Mpi:
    """`mpi:`, how the ranks share the work.

    Results do not depend on it, with the exceptions of chunk_size.
    """

    chunk_size: Literal["auto"] | Count = option(
        "jobs per chunk, which one rank evaluates together; auto: depends on the number of ranks. Results depend on it "
        "with TensorFlow, vector environments, and custom tasks or policies that do not declare otherwise",
        "auto",
    )
    schedule: Literal["on_demand", "static"] = option(
        "assignment of chunks: to the next free rank, or to a fixed rank",
        "on_demand",
        may_change=True,
    )
    master_evaluates: Literal["auto"] | bool = option(
        "evaluations on rank 0 too; auto: with up to 16 ranks, and where each rank then has fewer jobs",
        "auto",
        may_change=True,
    )
    update: Literal["gathered", "replicated"] = option(
        "gathered: the ranks share the sums of the update, rank 0 makes the step and sends the parameters; replicated: "
        "every rank computes the whole update, and no messages of the size of the parameters are sent",
        "gathered",
        may_change=True,
    )
    ranks_per_gpu: Count = option(
        "largest number of ranks that share a GPU; more ranks than that are refused",
        1,
        may_change=True,
    )
    fault_tolerance: bool = option(
        "experimental: continue without ranks that die; only for Open MPI under mpiexec --with-ft ulfm",
        False,
        may_change=True,
    )


@options
class Evaluation:
    """`evaluation:`, noise-free episodes of the unperturbed policy."""

    interval: Natural = option("generations between evaluations; 0: off", 10)
    episodes: Count = option("episodes per evaluation", 10)
    evaluations: Count = option(
        "evaluations of the centre at the end, whose mean is the result, if noise was measured on a function or program",
        10,
    )
    members: Natural | None = option(
        "further evaluations of each member of a front or archive at the end, whose means are columns of its table; "
        "0: none; null: 8 if a member of a search on a function, program or model returns something else again",
        None,
    )

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for options without effect."""
        if not self.interval:
            yield from unused(self, ("episodes",), "interval is 0, so there is no evaluation")


AUTO_INTERVAL = 10  # generations


@options
class Checkpoint:
    """`checkpoint:`, when the state is written to disk."""

    interval: Literal["auto"] | Natural = option(
        "generations between checkpoints; 0: only by time and at the end; auto: 10, without those that would take more "
        "than 2 % of the time",
        "auto",
    )
    interval_seconds: NonNegative = option("seconds between checkpoints; 0: off", 300.0)
    full_interval: Literal["auto"] | Natural = option(
        "generations between full checkpoints; the checkpoints between them store only the inputs of the updates since "
        "the last full one, a few kB each, from which the state is recomputed on resume; 0: all checkpoints are full; "
        "auto: one when recomputing on one rank would take five minutes",
        0,
    )
    keep_last: Count = option("number of newest checkpoints to keep", 3)
    keep_best: bool = option("keep best.h5 too, the state of the best evaluation", True)

    @property
    def generations(self) -> int:
        """Generations after which a checkpoint is due; 0: never."""
        return AUTO_INTERVAL if self.interval == "auto" else self.interval

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) if a killed job would start from the beginning."""
        if not self.interval and not self.interval_seconds:
            yield (
                "interval",
                "is 0, and interval_seconds too: checkpoints are written only at the end and "
                "on a signal, so a killed job starts from the "
                "beginning (try interval_seconds: 300)",
            )


@options
class Stop:
    """`stop:`, limits; the first one that is reached ends the run; null: no limit."""

    generations: Natural | None = option("number of generations", None)
    timesteps: Count | None = option(
        "timesteps of training episodes; the run ends after the generation that reaches them", None
    )
    episodes: Count | None = option(
        "training episodes, executed programs, or evaluations of an objective, including those of the centre; the last "
        "generation is cut to them and makes no update (exceptions are reported at the start)",
        None,
    )
    seconds: Positive | None = option(
        "seconds of training, over all restarts (wall time, so not reproducible)", None
    )
    target_return: float | None = option("mean return of an evaluation", None)
    target_value: float | None = option(
        "best value of an objective so far, including evaluations of the centre", None
    )
    hypervolume: Positive | None = option(
        "hypervolume of the front of several objectives, measured from their references (see task.objectives)",
        None,
    )
    patience: Count | None = option(
        "evaluations without improvement after which the run ends on a plateau: evaluations of the policy, whose mean "
        "return counts (see evaluation.interval), or of an objective, whose best value so far counts, or of several, whose hypervolume counts",
        None,
    )
    min_improvement: NonNegative = option(
        "an improvement is larger than this, compared with the last evaluation or best value that was one",
        0.0,
    )
    failed_generations: Count | None = option(
        "consecutive generations without a successful evaluation after which the run fails with exit status 1; before "
        "the first successful evaluation, one such generation is enough; null: never",
        2,
    )

    @property
    def has_limit(self) -> bool:
        """True if a limit ends the run, apart from failures and the algorithm."""
        names = (
            "generations",
            "timesteps",
            "episodes",
            "seconds",
            "target_return",
            "target_value",
            "hypervolume",
            "patience",
        )
        return any(getattr(self, name) is not None for name in names)

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for options without effect."""
        if self.patience is None:
            yield from unused(self, ("min_improvement",), "patience is null")


@options
class Mlflow:
    """`report.mlflow:`, options of the logger mlflow."""

    directory: PathText | None = option(
        "file store, which runs may share; null: mlruns in the run directory", None
    )
    experiment: Text = option("MLflow experiment of the run", "hpc_es")


@options
class Wandb:
    """`report.wandb:`, options of the logger wandb."""

    directory: PathText | None = option(
        "directory in which the folder wandb is created; null: the run directory", None
    )
    project: Text = option("W&B project of the run", "hpc_es")


@options
class Report:
    """`report:`, metrics, loggers, plots and exports."""

    loggers: tuple[LoggerName, ...] = option("loggers that receive each row of the metrics too", ())
    tensorboard: bool = option("write TensorBoard event files, like tensorboard in loggers", False)
    tensorboard_directory: PathText | None = option(
        "directory in which each run has a folder of event files, with its name; null: the run directory",
        None,
    )
    mlflow: Mlflow = option("options of the logger mlflow", default_factory=Mlflow)
    wandb: Wandb = option("options of the logger wandb", default_factory=Wandb)
    metrics_interval: Count = option(
        "generations between rows of metrics.jsonl, log.csv and loggers; rows with an evaluation and the last row are "
        "always written",
        1,
    )
    columns: Literal["plain", "classical"] = option(
        "column names of log.csv; plain: those of metrics.jsonl (`ranks` counts all ranks, also a rank 0 that does not "
        "evaluate); classical: those of the notebook and OpenAI's starter (`UniqueWorkers` counts evaluating ranks)",
        "plain",
    )
    info: tuple[Text, ...] | Mapping[Text, Reduction] = option(
        "numbers in the infos of environment steps that become metrics: a list of keys, for the values of the last "
        "step of an episode, or a mapping such as {distance: final, speed: mean, cost: sum}",
        (),
    )
    plot_interval_seconds: NonNegative = option(
        "seconds of training between updates of curve.png, which is also drawn at the end; 0: off",
        600.0,
    )
    export_interval: Natural = option(
        "generations between exports of policy.keras, which is also written at the end; 0: off", 0
    )
    export_numbered: bool = option(
        "also keep each export as policy_000100.keras, with the number of finished generations",
        False,
    )

    def reductions(self) -> Mapping[str, Reduction]:
        """Return the reduction over the steps of an episode for each number of `info`."""
        return self.info if isinstance(self.info, Mapping) else dict.fromkeys(self.info, "final")

    def all_loggers(self) -> tuple[LoggerName, ...]:
        """Return the loggers without duplicates."""
        return tuple(
            dict.fromkeys((*(("tensorboard",) if self.tensorboard else ()), *self.loggers))
        )

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for options without effect."""
        if not self.export_interval:
            yield from unused(
                self, ("export_numbered",), "export_interval is 0, so nothing is exported"
            )
        if "tensorboard" not in self.all_loggers():
            yield from unused(
                self, ("tensorboard_directory",), "tensorboard is not in report.loggers"
            )
        for name, section in (("mlflow", self.mlflow), ("wandb", self.wandb)):
            if name not in self.loggers:
                options = unused(section, vars(section), f"{name} is not in report.loggers")
                yield from ((f"{name}.{key}", text) for key, text in options)


@options
class Config:
    """The config of an experiment; the sections with a kind have the Options of its module."""

    name: Text | None = option(
        "name in plots and reports; null: the name of the config file", None, may_change=True
    )
    seed: Annotated[int, Limits(ge=0, lt=2**63)] = option(
        "seed of all random numbers (0 is valid)", 0
    )
    output: Text | None = option("run directory; null: runs/<name>", None, may_change=True)
    task: Annotated[Any, Kinds("tasks", "episodes")] = option("kind of task")
    policy: Annotated[Any, Kinds("policies", "mlp", optional=True)] = option(
        "kind of policy; null: the task has none, such as a search for programs"
    )
    algorithm: Annotated[Any, Kinds("algorithms", "es")] = option("kind of algorithm")
    directory: Text | None = option(
        "base directory of paths and modules in the config; null: the directory of the config file",
        None,
        may_change=True,
    )
    repetitions: Annotated[int, Limits(ge=1, lt=2**32)] = option(
        "number of independent repetitions, each in output/repetition_NNNN; with 1, directly in output",
        1,
        may_change=True,
    )
    repetition_groups: Count = option(
        "number of groups of ranks, which run repetitions at the same time", 1, may_change=True
    )
    noise: Annotated[Any, Kinds("noise", "table")] = option(
        "kind of noise, which the perturbations are made of"
    )
    device: Literal["auto", "cpu", "gpu"] = option(
        "device of TensorFlow, JAX and custom code that uses GPUs: gpu, one per rank; cpu; or auto, a GPU if every "
        "rank has one that the library can use. NumPy computes on the CPU. A run continues on the kind of device on "
        "which it started",
        "auto",
        may_change=True,
    )
    mpi: Mpi = option("distribution of work over ranks", default_factory=Mpi)
    evaluation: Evaluation = option(
        "evaluations of the unperturbed policy", default_factory=Evaluation, may_change=True
    )
    checkpoint: Checkpoint = option("checkpoints", default_factory=Checkpoint, may_change=True)
    stop: Stop = option("limits of the run", default_factory=Stop, may_change=True)
    report: Report = option(
        "metrics, loggers, plots and exports", default_factory=Report, may_change=True
    )

    @cached_property
    def setup(self) -> Setup:
        """The kinds of the config, with what they need and offer."""
        return Setup(self)

    def depends_on_chunks(self) -> bool:
        """Return whether results depend on mpi.chunk_size."""
        setup = self.setup
        if setup.offers.compiled:
            return False
        return not (setup.offers.any_chunks and setup.computes.any_chunks) or setup.needs.gradients

    def problems(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for mistakes that concern several sections."""
        if self.stop.target_return is not None and not self.evaluation.interval:
            yield (
                "stop.target_return",
                "needs evaluations, but evaluation.interval is 0, so it would not stop (try "
                "evaluation.interval: 10)",
            )
        if self.mpi.fault_tolerance and self.repetition_groups > 1:
            yield (
                "repetition_groups",
                f"is {self.repetition_groups}: with mpi.fault_tolerance the ranks stay "
                "together (expected 1)",
            )
        needs, offers = self.setup.needs, self.setup.offers
        for requirement in (*needs.requires, *offers.requires):
            value = _value(self, requirement.key)
            if value not in requirement.values:
                first = requirement.values[0]
                yield (
                    requirement.key,
                    f"is {as_yaml(value)}, but {requirement.because}: expected "
                    f"{first if isinstance(first, str) else as_yaml(first)}{requirement.remedy}",
                )
        if needs.in_flight is not None and offers.closes is not None:
            yield (
                offers.closes.key,
                f"is {offers.closes.value}, but {needs.in_flight}: expected null",
            )

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for options without effect and for a run without limit."""
        if not self.stop.has_limit:
            yield (
                "stop",
                f"has no limit, so the run continues until it is stopped or the algorithm ends ({LIMITS})",
            )
        setup = self.setup
        platform = setup.offers.platform
        if platform is not None and self.device not in ("auto", platform.value):
            yield (
                "device",
                f"is {self.device}, but {platform}, which takes precedence: set only one",
            )
        if self.repetitions == 1:
            yield from unused(self, ("repetition_groups",), "repetitions is 1")
        if setup.offers.compiled:
            why = f"the task {self.task.kind}"
            yield from (
                (f"mpi.{name}", text)
                for name, text in unused(
                    self.mpi, ("chunk_size",), f"{why} has task.jobs_per_call for it"
                )
            )
            if self.policy is not None:
                yield from (
                    (f"policy.{name}", text)
                    for name, text in unused(
                        self.policy, setup.computes.own_calls, f"{why} compiles the policy"
                    )
                )
            if (
                ignored := ignored_backend(setup.computes, setup.offers)
            ) and NUMPY in setup.computes.backends:
                yield (
                    "policy.backend",
                    f"is {ignored!r}, but does nothing: {why} compiles the policy",
                )
        if setup.needs.searches != "vectors":
            why = f"the algorithm {self.algorithm.kind} learns from more than returns"
            for name, section, key in (
                ("mpi", self.mpi, "update"),
                ("checkpoint", self.checkpoint, "full_interval"),
            ):
                yield from ((f"{name}.{key}", text) for key, text in unused(section, (key,), why))
        if not setup.needs.noise:
            why = f"the algorithm {self.algorithm.kind} perturbs no parameters"
            if self.noise.kind != "table":
                yield "noise.kind", f"is {self.noise.kind!r}, but does nothing: {why}"
            own = [field.name for field in dataclasses.fields(self.noise) if field.name != "kind"]
            yield from ((f"noise.{name}", text) for name, text in unused(self.noise, own, why))


def _value(config: Config, key: str) -> object:
    """Return the value of a dotted key, such as mpi.schedule."""
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value
