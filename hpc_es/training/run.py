"""One run on every rank: open the directory, build the parts, restore the state, train, close.

Only rank 0 imports what reads and writes the run directory (h5py among it). A fault-tolerant run
that loses a rank repeats the generation without it if rank 0 survived (`Run.rows`); otherwise the
surviving ranks restart from the last checkpoint (`with_recovery`).
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_es.config.resolved import named_user_kinds, resolved
from hpc_es.config.schema import Config
from hpc_es.core.closing import close
from hpc_es.core.data import Array, Arrays, Json, JsonObject, State
from hpc_es.core.errors import (
    READING,
    CheckpointError,
    LaunchError,
    Problems,
    RunFailedError,
    UserError,
    unreadable_reason,
)
from hpc_es.core.interfaces import (
    AnyAlgorithm,
    GradientAlgorithm,
    LearnsFromSamples,
    ProbesHiddenState,
    RunContext,
)
from hpc_es.core.machine import keep_freed_memory
from hpc_es.core.paths import followed, kept_directory
from hpc_es.core.quiet import quiet_stderr
from hpc_es.core.streams import announce
from hpc_es.devices.backend import backend
from hpc_es.devices.decision import current_decision
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import Regroup, RestartFromCheckpoint, World
from hpc_es.tasks.episodes.stepping import stepping_differences
from hpc_es.training.build import BuiltTask, Parts, build_parts, build_task, preflight
from hpc_es.training.collective import CollectiveExit, ExitReason, on_rank_0
from hpc_es.training.compatibility import learning_from_samples, require_gradient
from hpc_es.training.failure import report_failure
from hpc_es.training.finished import AfterTrainStep
from hpc_es.training.generation import MetricsRow
from hpc_es.training.loop import Training
from hpc_es.training.sizes import earlier_options, sized, with_earlier_options, with_sizes

if TYPE_CHECKING:
    from hpc_es.mpi.scheduler import Work
    from hpc_es.training.collective import FailureReports
    from hpc_es.training.executors import Executor
    from hpc_es.training.pool import Workers
    from hpc_es.training.run_directory import OpenedRun, Resume
    from hpc_es.training.run_writer import RunWriter
    from hpc_es.training.triggers import IntervalTrigger

# file servers may keep the lock of a dead node for a while (NFS: 90 s)
LOCK_TRIES, LOCK_SECONDS = 60, 2.0

OnRow = Callable[[int, MetricsRow], bool]
RunResult = JsonObject


@dataclass(frozen=True)
class RunRequest:
    """Directory and options of one run of an experiment, in addition to its config."""

    directory: Path  # an absolute one, as code of the user may change the current directory
    resume: Resume = "auto"
    repetition: int = 0
    shared_noise: object = None  # the result of build.shared_noise, if several runs share it
    # called on rank 0 with the metrics of each generation; False ends the run early
    on_row: OnRow | None = None
    show_progress: bool = True  # on the console of rank 0
    triggers: Sequence[IntervalTrigger] = ()  # of the caller; on rank 0
    ends_program: bool = False  # whether the program ends after this run
    after_train_step: AfterTrainStep | None = None  # of the caller; on rank 0
    keeps_samples: bool = False  # whether after_train_step is set, on every rank
    workers: Workers | None = None  # that evaluate, in place of ranks


def run_once(
    world: World, signals: Signals, config: Config, request: RunRequest
) -> tuple[ExitReason, RunResult | None]:
    """Run to the end, on every rank.

    Returns:
        How the run ended and, on rank 0 of a finished run, its result.
    """
    with kept_directory():  # code of the user may change it, and the next run starts in it
        return _run_once(world, signals, config, request)


def _run_once(
    world: World, signals: Signals, config: Config, request: RunRequest
) -> tuple[ExitReason, RunResult | None]:
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
            run.close(error.status)
            return ExitReason(error.status, str(error)), None
        status = run.training.exit_status
        result = None if status else run.result()  # written before code of the user is called again
        run.close(status)
        return ExitReason(status, "a signal" if status else ""), result


def with_recovery(world: World, run: Callable[[bool], ExitReason]) -> ExitReason:
    """Call `run(restarted)` until all surviving ranks have finished it.

    All of them return the same reason.
    """
    from hpc_es.mpi.fault_tolerance import enable_fault_tolerance  # which few runs need
    from hpc_es.storage import run_lock

    try:
        enable_fault_tolerance(world)
    except LaunchError as error:
        return ExitReason(error.status, str(error))
    restarted = False
    while True:
        reason: ExitReason | None = None
        gc.collect()  # free the parts of the previous attempt, above all its noise table
        try:
            for host, pid in world.fault_handler.lost:
                run_lock.died(host, pid)
            reason = run(restarted)
            for _ in range(LOCK_TRIES if world.fault_handler.lost else 0):
                if not reason.in_use:  # else a lost rank still holds the directory
                    break
                time.sleep(LOCK_SECONDS)
                reason = run(restarted)
        except RestartFromCheckpoint:  # the ranks have regrouped
            restarted = True
            continue
        except Exception as error:
            if not world.fault_handler.is_rank_loss(error):
                raise
        if (
            world.fault_handler.regroup(reason is not None, can_continue=False) is Regroup.DONE
            and reason is not None
        ):
            return reason
        restarted = True


@dataclass(frozen=True)
class PreparedRun:
    """Task, run directory and initial state that rank 0 prepares before the other ranks start."""

    sizes: Mapping[str, int]  # numbers in place of `auto`, by option of the task
    options: Mapping[str, Json]  # of the algorithm, which an earlier version started the run with
    built: BuiltTask
    opened: OpenedRun
    source: State | None  # of `policy.init_from`, for a new run


def prepare_run(config: Config, request: RunRequest) -> PreparedRun:
    """Check the config and open the directory, on rank 0.

    Raise UserError if the run cannot start.
    """
    from hpc_es.storage.stepping_cache import remembered
    from hpc_es.training.run_directory import open_run

    problems = Problems()
    options = earlier_options(config, request.directory)
    config = with_earlier_options(config, options)
    with remembered():
        built, source = preflight(config, request.directory, problems, request.repetition)
    if built is not None and problems:
        close(built.task.name, built.task.close)
    problems.raise_any()
    assert built is not None, "otherwise there are problems"
    config, built, numbers = with_sizes(config, built, request.directory, request.repetition)
    info = built.problem.environment_info()
    opened = open_run(request.directory, config, request.resume, request.repetition, info)
    return PreparedRun(numbers, options, built, opened, source)


def start_run(world: World, signals: Signals, config: Config, request: RunRequest) -> Run:
    """Do all that precedes the first generation, on every rank.

    Raises:
        CollectiveExit: rank 0 cannot prepare the run.
    """

    def message(prepared: PreparedRun | None) -> JsonObject:
        assert prepared is not None
        directory = str(followed(prepared.opened.directory))
        return {
            "differences": stepping_differences,
            "directory": directory,
            "sizes": dict(prepared.sizes),
            "options": dict(prepared.options),
            "resumed": None if (old := prepared.opened.snapshot) is None else old.generation,
        }

    keep_freed_memory()
    if world.rank == 0 and request.show_progress:
        announce_library()
    prepared, shared = on_rank_0(world, lambda: prepare_run(config, request), message)
    stepping_differences.update(shared["differences"])
    directory = Path(shared["directory"])
    config = with_earlier_options(sized(config, shared["sizes"]), shared["options"])
    runs_users_code = named_user_kinds(resolved(config)) or request.triggers
    resumed = None if runs_users_code or request.after_train_step else shared["resumed"]
    try:
        parts = build_run(world, config, request, prepared.built if prepared else None)

        def call_on_rank_0(make: Callable[[], str]) -> str:
            return world.broadcast_text(make() if world.rank == 0 else None)

        snapshot = None if prepared is None else prepared.opened.snapshot
        is_replaced = prepared is None or (snapshot is not None and not snapshot.is_rows_only)
        context = RunContext(
            directory,
            world.rank,
            world.size,
            call_on_rank_0,
            world.node_rank,
            world.barrier,
            is_replaced,
        )
        parts.problem.open(context)
        writer: RunWriter | None = None
        if prepared is None:
            state = parts.initial()
        else:
            with damage_said(directory, resumed):
                state, writer = start_writer(world, config, request, parts, prepared)
        return Run(
            world,
            signals,
            config,
            request=request,
            parts=parts,
            state=state,
            writer=writer,
            resumed=resumed,
        )
    except BaseException:
        if prepared is not None:
            prepared.opened.lock.release()  # after the loss of a rank this one may start again
        raise


def announce_library() -> None:
    """Say that the library that computes starts, if it has not been imported yet:
    that takes seconds.
    """
    decision = current_decision()
    if decision is None or decision.request.library is None:
        return
    library = backend(decision.request.library)
    if library.package not in sys.modules:
        announce(f"starting {library.title}, and compiling what it computes")


def build_run(world: World, config: Config, request: RunRequest, built: BuiltTask | None) -> Parts:
    """Return all parts, on every rank; `built` is the task that rank 0 has built already."""
    if built is None:
        with quiet_stderr(True):  # rank 0 has shown its warnings
            built = build_task(config, request.repetition)
    if (decision := current_decision()) is not None:
        world.notes += [line for line in decision.lines(world) if line not in world.notes]
    parts = build_parts(config, world, built, request.repetition, request.shared_noise)
    if request.keeps_samples:
        parts = replace(parts, algorithm=gradient_algorithm(parts.algorithm).with_samples())
    return parts


def start_writer(
    world: World, config: Config, request: RunRequest, parts: Parts, prepared: PreparedRun
) -> tuple[State, RunWriter]:
    """Return the first state, and the writer, which has saved it if the run is new; on rank 0."""
    from hpc_es.training.run_writer import RunWriter

    state, warnings = initial_state(parts, prepared, config)
    if prepared.opened.snapshot is None and isinstance(parts.task, ProbesHiddenState):
        warning = parts.task.hidden_state_warning()
        warnings = [*warnings, *([warning] if warning else [])]
    opened = replace(prepared.opened, warnings=(*prepared.opened.warnings, *warnings))
    members = None
    if config.setup.needs.incumbent != "one":  # few runs need it
        from hpc_es.training.members import MembersWriter

        members = MembersWriter(config, parts)
    writer = RunWriter(
        opened,
        config,
        parts.problem,
        state=state,
        world=world,
        triggers=request.triggers,
        show_progress=request.show_progress,
        members=members,
    )
    with report_failure(world, writer):
        writer.started(parts.task.name, request.repetition)
    return state, writer


def initial_state(
    parts: Parts, prepared: PreparedRun, config: Config
) -> tuple[State, Sequence[str]]:
    """Return the state of the checkpoint, or that of a new run, and warnings, on rank 0.

    Raises CheckpointError if the checkpoint does not match the config, ConfigError if
    `policy.init_from` does not.
    """
    from hpc_es.storage.compare import verify_restored

    initial = parts.initial()
    snapshot = prepared.opened.snapshot
    if snapshot is not None and snapshot.is_rows_only:
        return initial, ()  # which the digest of the recomputed state verifies
    if snapshot is not None:
        verify_restored(initial, snapshot.state, parts.growing)
        return snapshot.state, ()
    if prepared.source is None:
        return initial, ()
    from hpc_es.training.init_from import apply_optimizer, apply_source, mismatches

    carried = parts.problem.carried()
    warnings = list(mismatches(config.policy, prepared.source, carried))
    state = apply_source(initial, prepared.source, carried)
    if config.policy.init_optimizer:
        state = apply_optimizer(state, prepared.source)
    return parts.started_with(state), warnings


def gradient_algorithm(algorithm: AnyAlgorithm) -> GradientAlgorithm[Any]:
    """Return the algorithm as one with a loss.

    Raises:
        UserError: it lacks these methods, as a custom kind may.
    """
    if not isinstance(algorithm, GradientAlgorithm):
        name = type(algorithm).__name__
        raise UserError(
            f"{name} follows a gradient, but lacks methods of core.interfaces.GradientAlgorithm"
        )
    return algorithm


@contextlib.contextmanager
def damage_said(
    directory: Path, resumed: int | None, generation: Callable[[], int] | None = None
) -> Iterator[None]:
    """Name the checkpoint that a run was resumed from in an error of what its arrays lead to.

    Digests show that a file is whole, not that hpc_es wrote what it holds.

    Args:
        directory: of the run.
        resumed: generation of the checkpoint; None: the run is new, or has code of the user's, of
            which errors are shown as they are.
        generation: returns the one in which the run is; the third one and later are not concerned.

    Raises:
        CheckpointError: in place of errors of READING.
    """
    try:
        yield
    except UserError:
        raise
    except (*READING, AssertionError) as error:
        if resumed is None or (generation is not None and generation() > resumed + 2):
            raise
        raise CheckpointError(
            f"{directory}: the checkpoint of generation {resumed} cannot be continued, and may be damaged: "
            f"{unreadable_reason(error)}; without this file the run resumes from the one before"
        ) from error


class Run:
    """A run on one rank. Other ranks than 0 have the same theta and write nothing."""

    def __init__(
        self,
        world: World,
        signals: Signals,
        config: Config,
        *,
        request: RunRequest,
        parts: Parts,
        state: State,
        writer: RunWriter | None,
        resumed: int | None = None,
    ) -> None:
        self._resumed = resumed
        self.world, self.config, self._request, self._parts, self._writer = (
            world,
            config,
            request,
            parts,
            writer,
        )
        make_executor: Callable[[Work, FailureReports], Executor] | None = None
        if (workers := request.workers) is not None:
            from hpc_es.training.pool import PoolExecutor
            from hpc_es.training.worker import RunRecipe

            recipe = RunRecipe.of(config, followed(request.directory), request.repetition)
            make_executor = partial(PoolExecutor, recipe, workers, signals.count)
        self.training = Training(
            config,
            world,
            parts,
            signals=signals.count,
            recorder=writer,
            state=state,
            after_train_step=request.after_train_step,
            make_executor=make_executor,
        )
        signals.abort_if_hung = self.training.abort_if_hung
        self._polling = contextlib.ExitStack()  # until the run is closed
        self._polling.enter_context(world.polling(self.training.check_messages))
        self._is_open = True

    @property
    def state(self) -> State:
        """State after the last finished generation.

        On ranks other than 0 only its shared arrays are valid. The next update overwrites the
        arrays of a large state.
        """
        return self.training.state

    @property
    def theta(self) -> Array:
        """A copy of the parameters after the last finished generation, float32[params]."""
        return np.array(self.state.theta)

    @property
    def directory(self) -> Path:
        """Directory with the checkpoints, metrics and results of this run."""
        return self._request.directory

    def rows(self) -> Generator[MetricsRow]:
        """Train, yielding the metrics of each generation on rank 0 and nothing on other ranks.

        In a fault-tolerant run, continue after the loss of a rank if rank 0 survived; the caller
        must then exhaust the generator. Raises RestartFromCheckpoint after any other loss.
        """
        if self.config.mpi.fault_tolerance:
            return self._fault_tolerant_rows()
        return self._rows()

    def _rows(self) -> Generator[MetricsRow]:
        """Train; an error of the first generations after a restart names the checkpoint."""
        with damage_said(self.directory, self._resumed, lambda: self.state.generation):
            yield from self.training.run()

    def _fault_tolerant_rows(self) -> Generator[MetricsRow]:
        decision = Regroup.CONTINUE
        while decision is not Regroup.DONE:
            finished = False
            try:
                yield from self.training.run()
                finished = True
            except Exception as error:
                if not self.world.fault_handler.is_rank_loss(error):
                    raise
            decision = self.world.fault_handler.regroup(finished, can_continue=True)
            if decision is Regroup.RESTART:
                raise RestartFromCheckpoint
            if decision is Regroup.CONTINUE:
                self.training.continue_without_lost_ranks()

    def stop(self) -> None:
        """Stop after the current generation, as if the run had finished; call on rank 0."""
        self.training.stop()

    def loss(self, sample: Arrays | None) -> Mapping[str, float] | None:
        """Return the terms of the loss of a sample, or of the next batch; None off rank 0.

        The batch is evaluated on rank 0.
        """
        if self.world.rank:
            return None
        require_gradient(self.config, "loss()")
        algorithm = gradient_algorithm(self._parts.algorithm)
        if sample is not None:
            return algorithm.sample_losses(self.state, sample)
        if not self._is_open:
            raise UserError(
                "the run has ended and its environments are closed: pass a sample to loss()"
            )
        if not self.config.setup.needs.independent_batches:
            raise UserError(
                "with algorithm.update_every the next batch depends on the last one: pass loss() a sample"
            )
        return algorithm.losses(self.state, self.training.next_batch())

    def learn_next(self, sample: Arrays) -> None:
        """Rank 0: let the next generation learn from a sample; UserError if it cannot.

        Other ranks do nothing.
        """
        if self.world.rank:
            return
        require_gradient(self.config, "update()")
        algorithm = gradient_algorithm(self._parts.algorithm)
        if not isinstance(algorithm, LearnsFromSamples):
            raise UserError(
                f"algorithm.kind is {self.config.algorithm.kind!r}, expected {learning_from_samples()} for update()"
            )
        if (why := self.config.setup.needs.asynchronous) is not None:
            raise UserError(f"{why}, expected 'synchronous' for update()")
        if not self._is_open:
            raise UserError("the run has ended: update() needs a run in progress")
        self.training.learn_next(algorithm.results_of(self.state, sample))

    def checkpoint(self) -> Path | None:
        """Save the last finished generation now; return the file, None on ranks other than 0.

        RunError.
        """
        return None if self._writer is None else self._writer.save()

    def result(self) -> RunResult | None:
        """Return the result of the finished run on rank 0, and write it to result.json."""
        if self._writer is None:
            return None
        with report_failure(self.world, self._writer):
            summary = self._parts.algorithm.summary(self._writer.standing.outcome)
            return self._writer.result(
                self._parts.task.name, self._request.repetition, self.training.final, summary
            )

    def close(self, status: int = 0) -> None:
        """Close files, release the directory and close the environments; further calls do nothing.

        If an environment cannot be closed, all ranks end with this status, provided that the run
        ends the program.
        """
        if not self._is_open:
            return
        self._is_open = False
        self.training.close()
        if self._writer is not None:
            self._writer.close()
        task = self._parts.task
        close(
            task.name,
            task.close,
            stuck=(lambda: self.world.abort(status)) if self._request.ends_program else None,
        )
        self._polling.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(0 if error is None else 1)
