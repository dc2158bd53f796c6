"""The sections of a config: every key with its type, range, default and help.

Everything known about a key stands at its field: the type hint gives the range and its wording in errors, `option`
gives default, help, and whether a resumed run may change it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from annotated_types import Interval, MinLen

from hpc_es.config.options import Count, Kinds, Natural, NonNegative, Positive, option, options, unused
from hpc_es.config.registry import is_user_kind, module
from hpc_es.config.yaml_text import ConfigProblem

Text = Annotated[str, MinLen(1)]
LIMITS = "set stop.generations, timesteps, episodes, seconds, target_return or target_value"
USUAL_CHUNK = 16  # jobs, where bits depend on it and no number is given
Reduction = Literal["final", "mean", "sum"]
NO_NUMBERS: Mapping[str, Reduction] = {}  # of infos
LoggerName = Literal["tensorboard", "mlflow", "wandb"]


@options
class Mpi:
    """`mpi:`, how the ranks share the work; no bit of the result depends on it, but for what chunk_size says."""

    chunk_size: Literal["auto"] | Count = option(
        "jobs evaluated together by one rank; auto: what fits the ranks. Part of the result where TensorFlow computes, "
        "of vector environments, and of a task or policy of one's own that does not say otherwise",
        "auto",
    )
    schedule: Literal["on_demand", "static"] = option(
        "who evaluates a chunk: whoever is free, or a fixed rank", "on_demand", may_change=True
    )
    master_evaluates: Literal["auto"] | bool = option(
        "whether rank 0 evaluates too; auto: on up to 16 ranks", "auto", may_change=True
    )
    update: Literal["gathered", "replicated"] = option(
        "gathered: ranks share the update's sums, rank 0 makes the step and sends the parameters; replicated: every "
        "rank makes the whole update, and nothing of the parameters' size travels",
        "gathered",
        may_change=True,
    )
    fault_tolerance: bool = option(
        "experimental: go on without ranks that die; Open MPI under mpiexec --with-ft ulfm only", False, may_change=True
    )


@options
class Evaluation:
    """`evaluation:`, noise-free episodes of the unperturbed theta."""

    interval: Natural = option("generations between evaluations; 0 is off", 10)
    episodes: Count = option("episodes an evaluation", 10)

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield what has no effect: (key, text)."""
        if not self.interval:
            yield from unused(self, ("episodes",), "interval is 0, so there is no evaluation")


@options
class Checkpoint:
    """`checkpoint:`, what is kept of the run on disk."""

    interval: Natural = option("generations between checkpoints; 0: by time and at the end only", 10)
    interval_seconds: NonNegative = option("seconds between checkpoints; 0 is off", 300.0)
    full_interval: Natural = option(
        "generations between checkpoints that are whole; those between them hold what the generations since the last "
        "whole one learned from, a few kB each, from which the same command computes the state again; 0: all are whole",
        0,
    )
    keep_last: Count = option("how many of the newest are kept", 3)
    keep_best: bool = option("also keep best.h5, the state of the best evaluation", True)

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield what is risky: (key, text)."""
        if not self.interval and not self.interval_seconds:
            text = (
                "is 0, and interval_seconds too: only the end and a signal save, and a job that is killed begins anew"
            )
            yield "interval", f"{text} (try interval_seconds: 300)"


@options
class Stop:
    """`stop:`, the first limit reached ends the run, at a generation's end; null is no limit."""

    generations: Natural | None = option("finished generations", None)
    timesteps: Count | None = option("environment steps of training episodes", None)
    episodes: Count | None = option(
        "training episodes, programs executed, or evaluations of an objective, those of the centre too", None
    )
    seconds: Positive | None = option("of training, over all restarts (by the clock, so not reproducible)", None)
    target_return: float | None = option("mean return of an evaluation", None)
    target_value: float | None = option(
        "value of an objective, of the best vector so far, evaluations of the centre included", None
    )
    failed_generations: Count | None = option(
        "consecutive generations without a successful evaluation, after which the run ends as failed, with exit status "
        "1; a run in which nothing has succeeded yet ends after the first; null: never",
        2,
    )

    @property
    def has_limit(self) -> bool:
        """Whether something ends the run, apart from failures and the algorithm itself."""
        names = ("generations", "timesteps", "episodes", "seconds", "target_return", "target_value")
        return any(getattr(self, name) is not None for name in names)


@options
class Mlflow:
    """`report.mlflow:`, of the logger mlflow."""

    directory: Text | None = option("its file store, which runs may share; default: mlruns in the run directory", None)
    experiment: Text = option("MLflow's experiment, which runs belong to", "hpc_es")


@options
class Wandb:
    """`report.wandb:`, of the logger wandb."""

    directory: Text | None = option("where its folder wandb is made; default: in the run directory", None)
    project: Text = option("W&B's project, which runs belong to", "hpc_es")


@options
class Report:
    """`report:`."""

    loggers: tuple[LoggerName, ...] = option("packages that get each row of the metrics too", ())
    tensorboard: bool = option("write TensorBoard event files, as tensorboard in loggers does", False)
    mlflow: Mlflow = option("of the logger mlflow", default_factory=Mlflow)
    wandb: Wandb = option("of the logger wandb", default_factory=Wandb)
    metrics_interval: Count = option(
        "generations between rows of metrics.jsonl, log.csv and loggers; those with an evaluation and the last one "
        "are always there",
        1,
    )
    columns: Literal["plain", "classical"] = option(
        "names in log.csv: plain, those of metrics.jsonl (`ranks` are all, also a rank 0 that does not evaluate); "
        "classical, those of the notebook and OpenAI's starter (`UniqueWorkers` are the ranks that evaluate)",
        "plain",
    )
    info: tuple[Text, ...] | Mapping[Text, Reduction] = option(
        "numbers in the infos of an environment's steps that become metrics: a list of keys, of each of which the "
        "episode's last step counts; or a mapping such as {distance: final, speed: mean, cost: sum}",
        (),
    )
    plot_interval_seconds: NonNegative = option(
        "of training, between drawings of curve.png; also at the end; 0: off", 600.0
    )
    export_interval: Natural = option("generations between exports of policy.keras; also at the end; 0 is off", 0)
    export_numbered: bool = option("keep each export as policy_000100.keras too, by finished generations", False)

    def reductions(self) -> Mapping[str, Reduction]:
        """Return how the numbers of `info` are made of an episode's steps."""
        return self.info if isinstance(self.info, Mapping) else dict.fromkeys(self.info, "final")

    def all_loggers(self) -> tuple[LoggerName, ...]:
        """Return the loggers, each once."""
        return tuple(dict.fromkeys((*(("tensorboard",) if self.tensorboard else ()), *self.loggers)))

    def warnings(self) -> Iterator[ConfigProblem]:
        """Yield what has no effect: (key, text)."""
        if not self.export_interval:
            yield from unused(self, ("export_numbered",), "export_interval is 0, so nothing is exported")
        for name, section in (("mlflow", self.mlflow), ("wandb", self.wandb)):
            if name not in self.loggers:
                options = unused(section, vars(section), f"{name} is not in report.loggers")
                yield from ((f"{name}.{key}", text) for key, text in options)


@options
class Config:
    """A whole experiment. task, policy and algorithm are the Options of the module that their kind names."""

    name: Text | None = option("shown in plots and reports; default: the config file's name", None, may_change=True)
    seed: Annotated[int, Interval(ge=0, lt=2**63)] = option("of everything random; 0 is a seed", 0)
    output: Text | None = option("the run directory; default: runs/<name>", None, may_change=True)
    task: Annotated[Any, Kinds("tasks", "episodes")] = option("what is optimised")
    policy: Annotated[Any, Kinds("policies", "mlp", optional=True)] = option(
        "what acts; null where nothing does, as in a search for programs"
    )
    algorithm: Annotated[Any, Kinds("algorithms", "es")] = option("how it learns")
    directory: Text | None = option(
        "what paths in the config are relative to, and where its modules are; default: the config file's directory",
        None,
        may_change=True,
    )
    repetitions: Annotated[int, Interval(ge=1, lt=2**32)] = option(
        "run it so often, with other random numbers, in output/repetition_0000 ...; 1: in output itself",
        1,
        may_change=True,
    )
    repetition_groups: Count = option(
        "groups that the ranks are split into, to run repetitions side by side", 1, may_change=True
    )
    noise: Annotated[Any, Kinds("noise", "table")] = option("where perturbations come from")
    mpi: Mpi = option("sharing of work", default_factory=Mpi)
    evaluation: Evaluation = option("measuring theta", default_factory=Evaluation, may_change=True)
    checkpoint: Checkpoint = option("what is kept", default_factory=Checkpoint, may_change=True)
    stop: Stop = option("when to end", default_factory=Stop, may_change=True)
    report: Report = option("extra outputs", default_factory=Report, may_change=True)

    def depends_on_chunks(self) -> bool:
        """Whether bits depend on mpi.chunk_size."""
        offers = module("tasks", self.task.kind).OFFERS
        if offers.compiled:
            return False
        if not offers.any_chunks or getattr(self.task, "stepping", "") == "vector":
            return True
        if self.policy is not None and (is_user_kind(self.policy.kind) or self.policy.backend == "tensorflow"):
            return True
        return bool(module("algorithms", self.algorithm.kind).NEEDS.gradients)

    def problems(self) -> Iterator[ConfigProblem]:
        """Mistakes that no single section shows: (key, text)."""
        if self.stop.target_return is not None and not self.evaluation.interval:
            text = (
                "needs evaluations, but evaluation.interval is 0: the run would not stop (try evaluation.interval: 10)"
            )
            yield "stop.target_return", text
        if self.mpi.fault_tolerance and self.repetition_groups > 1:
            text = f"is {self.repetition_groups}: with mpi.fault_tolerance the ranks stay together (expected 1)"
            yield "repetition_groups", text
        if self.mpi.fault_tolerance and getattr(self.algorithm, "updates", "") == "asynchronous":
            yield "algorithm.updates", "is asynchronous: with mpi.fault_tolerance expected synchronous"

    def warnings(self) -> Iterator[ConfigProblem]:
        """Options that do nothing beside others, and a run without an end: (key, text)."""
        if not self.stop.has_limit:
            yield "stop", f"has no limit, so the run goes on until it is stopped, or the algorithm ends it ({LIMITS})"
        if self.repetitions == 1:
            yield from unused(self, ("repetition_groups",), "repetitions is 1")
        if module("tasks", self.task.kind).OFFERS.compiled:
            why = f"the task {self.task.kind}"
            yield from (
                (f"mpi.{name}", text)
                for name, text in unused(self.mpi, ("chunk_size",), f"{why} has task.jobs_per_call for it")
            )
            if getattr(self.policy, "backend", "numpy") != "numpy":
                yield "policy.backend", f"is {self.policy.backend!r}, but does nothing: {why} compiles the policy"
        if module("algorithms", self.algorithm.kind).NEEDS.searches != "vectors":
            why = f"the algorithm {self.algorithm.kind} learns from more than returns"
            for name, section, key in (("mpi", self.mpi, "update"), ("checkpoint", self.checkpoint, "full_interval")):
                yield from ((f"{name}.{key}", text) for key, text in unused(section, (key,), why))
        if not module("algorithms", self.algorithm.kind).NEEDS.noise:
            why = f"the algorithm {self.algorithm.kind} perturbs no parameters"
            if self.noise.kind != "table":
                yield "noise.kind", f"is {self.noise.kind!r}, but does nothing: {why}"
            own = [field.name for field in dataclasses.fields(self.noise) if field.name != "kind"]
            yield from ((f"noise.{name}", text) for name, text in unused(self.noise, own, why))
