"""Going on without ranks that died: with the generation they died in, or from the last checkpoint.

A loss is an exception on every rank, at whatever it was doing. Where all were training and rank 0 lives they run that
generation again, with what they have of it (`rows`). Else, in a new session, they begin again at the last checkpoint
(`outliving`), whoever is rank 0 then.


One run on every rank, as a straight list: open the directory, build, restore, loop, close.

Only rank 0 imports what reads and writes the run directory (h5py among it).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpc_es.config.schema import Config
from hpc_es.core.data import Array, Arrays, State
from hpc_es.core.errors import LaunchError, Problems, RunFailedError, UserError
from hpc_es.core.interfaces import AnyAlgorithm, GradientAlgorithm, RunContext
from hpc_es.core.quiet import quiet_stderr
from hpc_es.mpi.fault_tolerance import enable_fault_tolerance
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import Regroup, RestartFromCheckpoint, World
from hpc_es.storage import run_lock as lock
from hpc_es.storage.compare import verify_restored
from hpc_es.tasks.native_differences import differences
from hpc_es.training.build import (
    BuiltTask,
    Parts,
    build_parts,
    build_task,
    preflight,
    require_gradient,
    uses_tensorflow,
)
from hpc_es.training.collective import CollectiveExit, ExitReason, on_rank_0
from hpc_es.training.loop import AfterTrainStep, Training, report_failure
from hpc_es.training.metrics_row import MetricsRow
from hpc_es.training.triggers import IntervalTrigger

if TYPE_CHECKING:
    from hpc_es.training.run_directory import OpenedRun, Resume
    from hpc_es.training.run_writer import RunWriter


TRIES, TRY_SECONDS = 60, 2.0  # a file server may keep the lock of a dead node for a while (NFS: 90 s)


def with_recovery(world: World, run: Callable[[bool], ExitReason]) -> ExitReason:
    """Call `run(again)` until all ranks that live are through with it; all of them get the same answer."""
    try:
        enable_fault_tolerance(world)
    except LaunchError as error:
        return ExitReason(error.status, str(error))
    again = False
    while True:
        ended: ExitReason | None = None
        gc.collect()  # of what was begun before, the noise table above all, nothing is to stay
        try:
            ended = _when_free(world, run, again)
        except RestartFromCheckpoint:  # the ranks have regrouped
            again = True
            continue
        except Exception as error:
            if not world.fault_handler.is_rank_loss(error):
                raise
        if world.fault_handler.regroup(ended is not None, can_continue=False) is Regroup.DONE and ended is not None:
            return ended
        again = True


def _when_free(world: World, run: Callable[[bool], ExitReason], again: bool) -> ExitReason:
    """Run; where a lost rank had the directory, wait until it is given free."""
    for host, pid in world.fault_handler.lost:
        lock.died(host, pid)
    ended = run(again)
    for _ in range(TRIES if world.fault_handler.lost else 0):
        if not ended.in_use:
            break
        time.sleep(TRY_SECONDS)
        ended = run(again)
    return ended


def rows(world: World, training: Training) -> Generator[MetricsRow]:
    """Yield the rows of `training.run()`, continuing after the loss of a rank if rank 0 survived.

    Raises RestartFromCheckpoint after any other loss. The caller must exhaust the generator.
    """
    decision = Regroup.CONTINUE
    while decision is not Regroup.DONE:
        through = False
        try:
            yield from training.run()
            through = True
        except Exception as error:
            if not world.fault_handler.is_rank_loss(error):
                raise
        decision = world.fault_handler.regroup(through, can_continue=True)
        if decision is Regroup.RESTART:
            raise RestartFromCheckpoint
        if decision is Regroup.CONTINUE:
            training.continue_without_lost_ranks()


OnRow = Callable[[int, MetricsRow], bool]
Result = dict[str, Any]


@dataclass(frozen=True)
class RunRequest:
    """What one run of an experiment is started with, besides its config."""

    directory: Path
    resume: Resume = "auto"
    repetition: int = 0
    shared_noise: Any = None  # what the noise shares, such as its table, where it is there already
    on_row: OnRow | None = None  # called on rank 0 with each generation's metrics; False ends the run early
    show_progress: bool = True  # whether rank 0 shows its progress on the console
    triggers: Sequence[IntervalTrigger] = ()  # of the caller; on rank 0
    after_train_step: AfterTrainStep | None = None  # of the caller; on rank 0
    keeps_samples: bool = False  # whether there is one, on every rank


def run_once(world: World, signals: Signals, config: Config, request: RunRequest) -> tuple[ExitReason, Result | None]:
    """Run from the directory to the end, on every rank; return how it ended, and on rank 0 the result if finished."""
    try:
        run = start_run(world, signals, config, request)
    except CollectiveExit as ended:
        return ended.reason, None
    with run:
        rows = run.rows()
        try:
            for row in rows:
                if request.on_row is not None and not request.on_row(request.repetition, row):
                    rows.close()
                    break
        except RunFailedError as error:
            return ExitReason(error.status, str(error)), None
        run.close()
        status = run.training.exit_status
        return (ExitReason(status, "a signal"), None) if status else (ExitReason(0), run.result())


def start_run(world: World, signals: Signals, config: Config, request: RunRequest) -> Run:
    """Do all that comes before the first generation, on every rank; Ended where something stands against it."""
    prepared, told = on_rank_0(world, lambda: prepare(config, request), lambda _: {"differences": differences})
    differences.update(told["differences"])
    try:
        made = build(world, config, request, prepared)
        if request.keeps_samples:
            made = replace(made, algorithm=gradient_algorithm(made.algorithm).with_samples())
        made.problem.open(run_context(world, prepared))
        state, warnings = restored(made, prepared, config)
        writer = writer_of(world, config, request, prepared, made, state, warnings)
        return Run(world, signals, config, request, made, state, writer)
    except BaseException:
        if prepared is not None:
            prepared.opened.lock.release()  # where ranks were lost on the way, this one may try again
        raise


@dataclass(frozen=True)
class PreparedRun:
    """What rank 0 has before the others begin."""

    searched: BuiltTask
    opened: OpenedRun
    source: State | None  # what a new run begins with: `policy.init_from`


def prepare(config: Config, request: RunRequest) -> PreparedRun:
    """Open the directory, on rank 0: all that can go wrong before the start goes wrong here; UserError."""
    from hpc_es.storage.stepping_cache import remembered
    from hpc_es.training.run_directory import open_run

    problems = Problems()
    with remembered():
        searched, source = preflight(config, request.directory, problems, request.repetition)
    if searched is not None and problems:
        searched.task.close()
    problems.raise_any()
    assert searched is not None, "else there are problems"
    opened = open_run(request.directory, config, request.resume, request.repetition)
    return PreparedRun(searched, opened, source)


def build(world: World, config: Config, request: RunRequest, prepared: PreparedRun | None) -> Parts:
    """Make the parts, on every rank; rank 0 has some of them already."""
    with quiet_stderr(prepared is None):  # rank 0 has shown what there is
        searched = build_task(config, request.repetition) if prepared is None else prepared.searched
    if uses_tensorflow(config):
        from hpc_es.mpi.devices import bind_device

        if devices := bind_device(world):  # before the policy computes
            world.notes.append(devices)
    return build_parts(config, world, searched, request.repetition, request.shared_noise)


def run_context(world: World, prepared: PreparedRun | None) -> RunContext:
    """Return the run directory and the communication that a problem may use; every rank calls this."""

    def call_on_rank_0(make: Callable[[], str]) -> str:
        return world.broadcast_text(make() if world.rank == 0 else None)

    directory = call_on_rank_0(lambda: str(prepared.opened.directory.resolve()) if prepared else "")
    return RunContext(Path(directory), world.rank, world.size, call_on_rank_0)


def restored(made: Parts, prepared: PreparedRun | None, config: Config) -> tuple[State, Sequence[str]]:
    """Return where training begins or goes on, and what is to be told of it. Workers begin anew.

    CheckpointError if the checkpoint does not fit, ConfigError if `policy.init_from` does not.
    """
    initial = made.initial()
    if prepared is None:
        return initial, ()
    snapshot = prepared.opened.snapshot
    if snapshot is not None:
        verify_restored(initial, snapshot.state, made.growing)
        return snapshot.state, ()
    if prepared.source is None:
        return initial, ()
    from hpc_es.training.init_from import apply_optimizer, apply_source, mismatches

    carried = made.problem.carried()
    warnings = list(mismatches(config.policy, prepared.source, carried))
    state = apply_source(initial, prepared.source, carried)
    return apply_optimizer(state, prepared.source) if config.policy.init_optimizer else state, warnings


def writer_of(
    world: World,
    config: Config,
    request: RunRequest,
    prepared: PreparedRun | None,
    made: Parts,
    state: State,
    warnings: Sequence[str] = (),
) -> RunWriter | None:
    """Return what writes the run directory, on rank 0, with the first state on disk."""
    if prepared is None:
        return None
    from hpc_es.training.run_writer import RunWriter

    opened = replace(prepared.opened, warnings=(*prepared.opened.warnings, *warnings))
    writer = RunWriter(opened, config, made.problem, world, request.triggers, request.show_progress)
    with report_failure(world, writer):
        writer.started(state, made.task.name, request.repetition)
    return writer


def gradient_algorithm(algorithm: AnyAlgorithm) -> GradientAlgorithm[Any]:
    """Return the algorithm, one that shows its loss; UserError of one that does not, such as a kind of one's own."""
    if not isinstance(algorithm, GradientAlgorithm):
        text = "has a gradient, but does not show its loss: it lacks methods of core.interfaces.GradientAlgorithm"
        raise UserError(f"{type(algorithm).__name__} {text}")
    return algorithm


class Run:
    """A run on one rank. On ranks other than 0 it has the same theta, and writes nothing."""

    def __init__(
        self,
        world: World,
        signals: Signals,
        config: Config,
        request: RunRequest,
        made: Parts,
        state: State,
        writer: RunWriter | None,
    ) -> None:
        self.world, self.config, self._request, self._parts, self._writer = world, config, request, made, writer
        self.training = Training(config, world, made, lambda: signals.count, writer, state)
        self.training.after_train_step = request.after_train_step
        signals.abort_if_hung = self.training.abort_if_hung
        self._is_open = True

    @property
    def state(self) -> State:
        """The state after the last finished generation; on ranks other than 0 its shared arrays are right."""
        return self.training.state

    @property
    def theta(self) -> Array:
        """The parameters after the last finished generation, [params]."""
        return self.state.theta

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._request.directory

    def rows(self) -> Generator[MetricsRow]:
        """Train: yield the metrics of each generation on rank 0, nothing on the others."""
        if self.config.mpi.fault_tolerance:
            return rows(self.world, self.training)
        return self.training.run()

    def stop(self) -> None:
        """End the run after the generation in progress, as finished by the caller; on rank 0."""
        self.training.stop()

    def loss(self, sample: Arrays | None) -> Mapping[str, float] | None:
        """Return the loss of a sample, or of the next batch, which rank 0 evaluates alone; None on the others."""
        if self.world.rank:
            return None
        require_gradient(self.config, "loss()")
        algorithm = gradient_algorithm(self._parts.algorithm)
        if sample is not None:
            return algorithm.sample_losses(self.state, sample)
        if not self._is_open:
            raise UserError("the run is over, and its environments are closed: give loss() a sample")
        if getattr(self.config.algorithm, "update_every", None) is not None:
            raise UserError("with algorithm.update_every the next batch goes on from the last: give loss() a sample")
        return algorithm.losses(self.state, self.training.next_batch())

    def checkpoint(self) -> Path | None:
        """Put the last finished generation on disk now; return the file, None on ranks other than 0. RunError."""
        return None if self._writer is None else self._writer.save()

    def result(self) -> Result | None:
        """Return what is to be known of the finished run, on rank 0, and write it to result.json."""
        if self._writer is None:
            return None
        with report_failure(self.world, self._writer):
            summary = self._parts.algorithm.summary(self.state)
            return self._writer.result(self._parts.task.name, self._request.repetition, self.training.final, summary)

    def close(self) -> None:
        """Close the files, give the directory and the environments back; a second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        if self._writer is not None:
            self._writer.close()
        self._parts.task.close()
        self.world.poll = None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
