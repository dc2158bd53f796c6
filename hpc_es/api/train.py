"""Training from a program: `for generation in hpc_es.train(config): ...`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from hpc_es.config import user_kinds
from hpc_es.config.loading import read
from hpc_es.config.schema import Config
from hpc_es.core.data import Array, Arrays, State
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals, install_hooks
from hpc_es.mpi.world import World
from hpc_es.training.build import require_gradient, valid_config
from hpc_es.training.collective import CollectiveExit, ExitReason, config_from_message, config_message, on_rank_0
from hpc_es.training.loop import AfterTrainStep
from hpc_es.training.metrics_row import MetricsRow
from hpc_es.training.run import Run, RunRequest, start_run
from hpc_es.training.triggers import IntervalTrigger

ConfigSource = Config | str | Path | Mapping[str, Any]
Trigger = IntervalTrigger | tuple[Callable[..., object], float]


def train(
    config: ConfigSource,
    output: str | Path | None = None,
    triggers: Sequence[Trigger] = (),
    after_train_step: AfterTrainStep | None = None,
) -> TrainingRun:
    """Train as a library: iterate over the result for the metrics of each generation.

        def show(generation, run):
            print(generation, run.theta[:3])

        with hpc_es.train("config.yaml", triggers=[(show, 10)]) as run:
            for row in run:
                if row["return_mean"] > 400:
                    run.stop()

    `config` is a YAML file's path, a config string, a mapping as in such a file, or a Config; `output` the run
    directory, where a checkpoint is carried on from. A trigger is a function and its interval in generations, or an
    `hpc_es.IntervalTrigger`, which may count timesteps or seconds; triggers are called on rank 0 and their counts are
    checkpointed by name. A function of two arguments gets the number of finished generations and the run, any other
    one nothing. `after_train_step(sample, loss)` is called on rank 0 after each update of an algorithm with a gradient
    (actor_critic, policy_gradient): with the arrays of the batch that it has learned from, and with the parts of the
    loss that it has followed, "loss" being their sum. Batches travel to rank 0 for that, and no bit changes. Under MPI
    every rank calls this; the body of the loop is entered on rank 0 only. Raises UserError (on rank 0; the others
    raise SystemExit) for what a user can mend.
    """
    world = connect()
    install_hooks()
    try:
        request, told = on_rank_0(world, partial(_request, config, output, triggers, after_train_step), _told)
    except CollectiveExit as ended:
        raise (ended.__cause__ or SystemExit(ended.reason.status)) from None
    mine = request[0] if request else RunRequest(Path(told["directory"]), keeps_samples=told["keeps_samples"])
    signals = Signals()
    try:
        run = TrainingRun(start_run(world, signals, config_from_message(world, told), mine), signals)
        for trigger in mine.triggers:
            trigger.run = weakref.ref(run)  # not more, as a run that nobody holds is closed
        return run
    except CollectiveExit as ended:
        signals.restore()
        raise (ended.__cause__ or _told_or_silent(world, ended.reason)) from None
    except BaseException:
        signals.restore()
        raise


def _told_or_silent(world: World, reason: ExitReason) -> BaseException:
    """Return what a rank raises where all end: rank 0 says why."""
    return SystemExit(reason.status) if world.rank else UserError(reason.text)


def _told(request: tuple[RunRequest, Mapping[str, Any]] | None) -> Mapping[str, Any]:
    return request[1] if request else {}


def _request(
    source: ConfigSource,
    output: str | Path | None,
    triggers: Sequence[Trigger],
    after_train_step: AfterTrainStep | None,
) -> tuple[RunRequest, Mapping[str, Any]]:
    config = _config(source, output)
    directory = Path(output or config.output or f"runs/{config.name or 'unnamed'}")
    made = [_trigger(trigger, number) for number, trigger in enumerate(triggers)]
    keeps = after_train_step is not None
    if keeps:
        require_gradient(config, "after_train_step")
    request = RunRequest(directory, triggers=made, after_train_step=after_train_step, keeps_samples=keeps)
    return request, {**config_message(config), "directory": str(directory), "keeps_samples": keeps}


def _trigger(trigger: Trigger, number: int) -> IntervalTrigger:
    if isinstance(trigger, IntervalTrigger):
        return trigger
    function, interval = trigger
    name = getattr(function, "__name__", "")
    return IntervalTrigger(function, interval, name=f"user_{number}" if name in {"", "<lambda>"} else name)


def _config(source: ConfigSource, output: str | Path | None) -> Config:
    if isinstance(source, str | Path):
        source = read(source)
    else:
        user_kinds.use()
    config = source if isinstance(source, Config) else valid_config(source, Path(output) if output else None)
    if config.repetitions > 1:
        raise ConfigError([("repetitions", f"is {config.repetitions}, but train() is for one run: start it so often")])
    if config.mpi.fault_tolerance:
        raise ConfigError([("mpi.fault_tolerance", "is true, but train() has none: use python -m hpc_es.main")])
    return config


class TrainingRun:
    """A run in progress: an iterator of metrics, with a look at what is trained."""

    def __init__(self, run: Run, signals: Signals) -> None:
        self._run, self._signals = run, signals
        self._rows: Generator[MetricsRow] = run.rows()

    @property
    def state(self) -> State:
        """The state after the last finished generation; on ranks other than 0 its shared arrays alone are right."""
        return self._run.state

    @property
    def theta(self) -> Array:
        """The parameters after the last finished generation, [params]."""
        return self._run.theta

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._run.directory

    def loss(self, sample: Arrays | None = None) -> Mapping[str, float] | None:
        """Return the loss of the newest parameters, in its parts, without a step; of algorithms with a gradient.

        "loss" is the sum of the parts, each with its weight. Without a `sample` it is that of the batch that the next
        update learns from; with one, as `after_train_step` gets it, that of this batch. Rank 0 computes it while the
        others wait; None on these. Nothing changes: neither parameters, counters nor random numbers. UserError of
        algorithms without a gradient, of a run that is over, and, without a sample, of updates in the middle of an
        episode (`algorithm.update_every`).
        """
        return self._run.loss(sample)

    def checkpoint(self) -> Path | None:
        """Put the last finished generation on disk now; return the file, None on ranks other than 0. RunError."""
        return self._run.checkpoint()

    def stop(self) -> None:
        """End the run with the generation in progress, checkpointed, as finished by the caller; on rank 0."""
        self._run.stop()

    def close(self) -> None:
        """Leave the run now: the ranks stop, files are closed. A second call does nothing."""
        try:
            self._rows.close()
        finally:
            self._end()

    def _end(self) -> None:
        self._signals.restore()
        self._run.close()

    def __iter__(self) -> TrainingRun:
        return self

    def __next__(self) -> MetricsRow:
        try:
            return next(self._rows)
        except BaseException:  # the end among them
            self._end()
            raise

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_rows"):
            self.close()
