"""`hpc_es.minimize(f, x0, sigma0)`: minimise a Python function on all ranks of the job."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, overload
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from hpc_es.api.arguments import BoundsInput, argument_errors, in_arguments
from hpc_es.api.front import Front, Objectives, front_in, objective_options
from hpc_es.api.strategy import (
    OUTSIDE,
    Parameters,
    Region,
    algorithm_options,
    default_algorithm,
    repeat_options,
    serial_parts,
    vector_options,
)
from hpc_es.config.loading import validate
from hpc_es.config.resolved import dump_json, parse_resolved
from hpc_es.config.schema import Config
from hpc_es.core.data import ConfigData, Float64, JsonObject
from hpc_es.core.errors import Exit, RunFailedError, exits_as_errors
from hpc_es.core.global_generators import GlobalGenerators
from hpc_es.core.interfaces import KeepsElites
from hpc_es.core.paths import argument
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals, install_hooks
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.world import World
from hpc_es.report.progress import Progress
from hpc_es.storage.files import finite
from hpc_es.tasks.functions.best import BestVector
from hpc_es.tasks.functions.initial_points import Points, points_from
from hpc_es.tasks.functions.initial_vector import initial_vector
from hpc_es.tasks.functions.objective_task import ObjectiveTask
from hpc_es.tasks.functions.options import returned_quantities
from hpc_es.tasks.functions.parameters import Value
from hpc_es.tasks.functions.problem import ObjectiveProblem
from hpc_es.tasks.functions.python_evaluator import PythonEvaluator, objective
from hpc_es.training.budget import budget_warning
from hpc_es.training.build import Parts
from hpc_es.training.collective import CollectiveExit, FailureReports, on_rank_0
from hpc_es.training.compatibility import points_text, rounding_warnings
from hpc_es.training.executors import Executor
from hpc_es.training.generation import MetricsRow
from hpc_es.training.loop import Training
from hpc_es.training.pool import PoolExecutor, Workers, alone, one_thread, require_pool
from hpc_es.training.recorder import MemoryRecorder
from hpc_es.training.standing import Standing

EVALUATIONS = 10_000  # default limit
# Stopping criteria that mean convergence; the others mean divergence or a limit.
CONVERGENCE = (
    *(
        "tolfun",
        "tolfunhist",
        "tolfunrel",
        "tolx",
        "tolxstagnation",
        "tolflatfitness",
        "tolstagnation",
    ),
    *("noeffectcoord", "noeffectaxis", "the convergence of all kernels"),
)
SUCCESS, LIMIT, NOT_CONVERGED, CALLER, SIGNAL, RUNNING = 0, 1, 2, 3, 4, -1  # status of a search


@dataclass(frozen=True)
class Minimum:
    """The result of a search, the same on every rank.

    It also has the names of SciPy's `OptimizeResult`.
    """

    x: Float64  # float64[size], the best vector that was evaluated, or the centre with noise
    f: float  # its value; also `fun`
    evaluations: int  # also `nfev`
    generations: int  # also `nit`
    reason: str  # why the search ended; also `message`
    parameters: Mapping[str, Value]  # x by name: x0, x1, ... unless `parameters` has names
    violation: float = 0.0  # sum of the positive constraint values
    # of f, if noise was measured: x is then the centre of the search, and f the mean of
    # `evaluation.evaluations` evaluations of it at the end
    standard_error: float | None = None
    # 0: converged, or reached the target, with a feasible x; 1: max_evaluations; 2: ended without
    # convergence; 3: the callback raised StopIteration; 4: a signal; -1: the search is running
    status: int = RUNNING
    # of the generation; at the end, of the last one
    metrics: MetricsRow = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Whether status is 0."""
        return self.status == SUCCESS

    @property
    def fun(self) -> float:
        """The value of x, `f`."""
        return self.f

    @property
    def nfev(self) -> int:
        """Number of evaluations."""
        return self.evaluations

    @property
    def nit(self) -> int:
        """Number of generations."""
        return self.generations

    @property
    def message(self) -> str:
        """The reason why the search ended."""
        return self.reason

    def data(self) -> JsonObject:
        """Return the result as plain data, for the other ranks."""
        return {**vars(self), "x": self.x.tolist()}


# of an intermediate Minimum or Front, or of x if its only parameter is named x or xk
Callback = Callable[..., object]


@overload
def minimize(
    f: Callable[..., object],
    x0: npt.ArrayLike | None = None,
    sigma0: float | None = None,
    *,
    objectives: None = None,
    **more: Any,
) -> Minimum: ...


@overload
def minimize(
    f: Callable[..., object],
    x0: npt.ArrayLike | None = None,
    sigma0: float | None = None,
    *,
    objectives: Objectives,
    **more: Any,
) -> Front: ...


def minimize(
    f: Callable[..., object],
    x0: npt.ArrayLike | None = None,
    sigma0: float | None = None,
    *,
    region: Region | None = None,
    parameters: Parameters | None = None,
    algorithm: str | None = None,
    max_evaluations: int = EVALUATIONS,
    target: float | None = None,
    bounds: BoundsInput = None,
    keep: str = "reflect",
    arguments: Mapping[str, object] | None = None,
    batch: int = 0,
    timeout_seconds: float | None = None,
    deterministic: bool = False,
    repeats: int | tuple[int, int] = 1,
    seed: int = 0,
    noise: str = "counter",
    callback: Callback | None = None,
    constraints: int | Sequence[str] | None = None,
    constraint_handling: str = "feasible_first",
    objectives: Objectives | None = None,
    reference: npt.ArrayLike | None = None,
    initial_points: str | Path | Points | None = None,
    verbose: bool = False,
    workers: Workers | None = None,
    **options: object,
) -> Minimum | Front:
    """Minimise a function on all ranks of the job, by default with CMA-ES.

    With several objectives it is NSGA-II by default, and the result is a `Front`.

    The search ends after `max_evaluations`, at a value of at most `target`, when the algorithm has
    converged, or on a signal such as SIGINT. Under MPI every rank calls this function with the same
    arguments and gets the same result, whatever the number of ranks. No files are written; for a
    search that can be resumed, use `task: {kind: function}`.

    Args:
        f: takes float64[size] and returns a number. An exception, NaN or time-out is a failed
            evaluation; the first of each kind is written to stderr.
        x0: the first centre, float64[size], or "random" with `parameters`.
        sigma0: the initial step size; None: that of `algorithm.sigma`.
        region: (low, high), in place of `x0`: the first centre, and that of each restart, is drawn
            from it.
        parameters: named parameters in place of `x0` and `bounds`, as in `Strategy`: `f` then gets
            a keyword for each, of its type. `x0="random"` draws the first centre, and that of each
            restart, from their ranges.
        algorithm: the kind of a strategy for vectors.
        max_evaluations: of `f`, exactly: the last generation is cut to them.
        target: value at which the search ends.
        bounds: (low, high), each a number, a list or None, or one pair (low, high) per coordinate
            like in SciPy; for two coordinates see `Strategy`.
        keep: how vectors are kept within the bounds: "reflect", "clip", "penalty" or "transform".
        arguments: further keyword arguments of `f`, of any type. Each call gets copies of lists and
            mappings; others, such as arrays, are not copied, so `f` must not change them.
        batch: if greater than 0, `f` takes up to this number of vectors, float64[<= batch, size],
            and returns as many values.
        timeout_seconds: for one call of `f`; None: unlimited.
        deterministic: whether equal vectors always have equal values. Otherwise CMA-ES and
            sep-CMA-ES evaluate one candidate twice, and if its values differ they handle noise
            (`noise_handling`). x is then the centre of the search, which is evaluated ten times
            more.
        repeats: how often each candidate is evaluated, with the mean as its value; (least, most):
            as often as the noise requires (`task.repeats`).
        seed: of all random numbers.
        noise: the kind of noise.
        callback: called on rank 0 after each generation as `callback(intermediate_result)`, with
            the best vector so far and the metrics of the generation. If its only parameter is named
            x or xk, it gets the best vector. If it raises StopIteration, the search ends.
        constraints: number or names of constraints; `f` then returns {"value": ..., "constraints":
            [...]}, and x is feasible where they are at most 0.
        constraint_handling: "feasible_first" or "augmented_lagrangian".
        objectives: their number, names, or goals by name such as {"cost": "minimise", "range":
            "maximise"}, for nsga2 and como_cma_es. `f` then returns as many numbers, or
            {"objectives": [...]} with constraints beside them.
        reference: a value for each objective that no solution of interest is worse than, from which
            the hypervolume is measured.
        initial_points: vectors, float64[k, size], or mappings such as {"layers": 3, "solver":
            "cg"}, that are evaluated first; a mapping may also have `value` (and `constraints`),
            which are then taken over without an evaluation. Or a CSV or JSON file of points, as in
            `task.initial_points`. For cma_es and sep_cma_es.
        verbose: whether rank 0 prints progress lines, at most one per second, as a run of the
            function would.
        workers: without MPI, the number of processes that evaluate `f`, or a callable such as the
            map of a pool, which gets `f` with each chunk. See docs/guides/workers.md.
        **options: those of the algorithm, as in `Strategy`.

    Returns:
        The best vector that was evaluated, its value, and why the search has ended.

    Raises:
        ConfigError: wrong arguments, on rank 0; SystemExit on the other ranks.
        hpc_es.core.errors.RunFailedError: on every rank, if all evaluations of the first generation
            or of two consecutive generations failed, or if none had succeeded at the end.

    Examples:
        >>> import hpc_es
        >>> def rosenbrock(x):
        ...     return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
        >>> best = hpc_es.minimize(rosenbrock, x0=[-1.0, 1.0], sigma0=0.5, target=1e-8)
        >>> best.success, best.x.round(3)
        (True, array([1., 1.]))
    """
    world = connect() if workers is None else alone(workers)
    install_hooks()

    def data() -> ConfigData:
        task = {
            "kind": "function",
            "function": OUTSIDE,
            **vector_options(x0, region, bounds, keep, parameters),
        }
        task |= {
            "constraints": constraints,
            "constraint_handling": constraint_handling,
            "objectives": objective_options(objectives, reference),
            "batch": batch,
            "timeout_seconds": timeout_seconds,
            "deterministic": deterministic,
            "repeats": repeat_options(repeats),
            # their names; f gets the values themselves
            "arguments": dict.fromkeys(arguments or ()),
        }
        return {
            "seed": seed,
            "task": task,
            "algorithm": algorithm_options(
                default_algorithm(objectives) if algorithm is None else algorithm, sigma0, options
            ),
            "noise": {"kind": noise},
            "evaluation": {"interval": 0},
            "stop": {"episodes": max_evaluations, "target_value": target},
        }

    generators = GlobalGenerators()
    with one_thread(workers), generators.exchanged(), exits_as_errors():
        config = _config(world, data, f, arguments, initial_points)
        signals = Signals()
        try:
            # again, since a KeyboardInterrupt is no Ctrl-C while signals are handled
            with exits_as_errors():
                parts = _parts(config, f, arguments, initial_points)
                make_executor = None
                if workers is not None:
                    require_pool(config)
                    recipe = SearchRecipe(dump_json(config), f, arguments, initial_points)
                    make_executor = partial(PoolExecutor, recipe, workers, signals.count)
                return _run(
                    world,
                    signals,
                    config,
                    parts,
                    make_executor,
                    callback=callback,
                    generators=generators,
                    verbose=verbose,
                )
        finally:
            signals.restore()


def _config(
    world: World,
    data: Callable[[], ConfigData],
    f: Callable[..., object],
    arguments: Mapping[str, object] | None,
    initial_points: str | Path | Points | None,
) -> Config:
    """Return the config of the arguments of `minimize` on every rank.

    Rank 0 validates it, builds the parts and warns. Raises ConfigError on rank 0, SystemExit on the
    other ranks.
    """

    def checked() -> Config:
        config = validate(data())
        # Raises if f cannot be called so, or the algorithm or a point does not fit.
        problem = _parts(config, f, arguments, initial_points).problem
        for text in filter(
            None, (*rounding_warnings(config, problem), budget_warning(config, problem))
        ):
            warnings.warn(in_arguments(text), stacklevel=6)  # where `minimize` is called
        return config

    try:
        _, message = on_rank_0(
            world, argument_errors()(checked), lambda config: {"config": dump_json(config)}
        )
    except CollectiveExit as ended:
        raise (ended.__cause__ or Exit(ended.reason.status)) from None
    return parse_resolved(message["config"])


def _parts(
    config: Config,
    f: Callable[..., object],
    arguments: Mapping[str, object] | None,
    initial_points: str | Path | Points | None,
) -> Parts:
    """Return the parts of a run on this rank, with function and points in place of names."""
    source = (
        argument(initial_points, "initial_points")
        if isinstance(initial_points, str | Path)
        else initial_points
    )
    points = None if source is None else points_from(source, config.task)
    scales = config.task.coordinates().scales
    calls = PythonEvaluator(
        objective(f, dict(arguments or {}), scales),
        config.task.batch > 0,
        config.task.timeout_seconds,
        returned_quantities(config.task),
    )
    name, initial = getattr(f, "__name__", "f"), initial_vector(config.task)
    task = ObjectiveTask(
        name, config.task, initial, evaluator=calls, batch=config.task.batch, points=points
    )
    return serial_parts(config, task, config.task.batch or 1)


@dataclass(frozen=True)
class SearchRecipe:
    """How a worker gets the parts of a search."""

    config: str  # as JSON
    f: Callable[..., object]
    arguments: Mapping[str, object] | None
    initial_points: str | Path | Points | None
    key: str = field(default_factory=lambda: uuid4().hex)

    def parts(self) -> Parts:
        """Build the parts."""
        return _parts(parse_resolved(self.config), self.f, self.arguments, self.initial_points)


def _run(
    world: World,
    signals: Signals,
    config: Config,
    parts: Parts,
    make_executor: Callable[[Work, FailureReports], Executor] | None,
    *,
    callback: Callback | None,
    generators: GlobalGenerators,
    verbose: bool,
) -> Minimum | Front:
    state = parts.initial()
    recorder = MemoryRecorder(Standing(config, parts.problem, state)) if world.rank == 0 else None
    progress = None
    if verbose and recorder is not None:
        progress = Progress(
            None,
            config.stop,
            vocabulary=config.setup.vocabulary,
            metrics=config.setup.metrics,
            objectives=tuple(parts.problem.quantities.objectives),
        )
    if progress is not None and (text := points_text(config, parts.problem)):
        progress.message(text)
    training = Training(
        config,
        world,
        parts,
        signals=signals.count,
        recorder=recorder,
        state=state,
        make_executor=make_executor,
    )
    signals.abort_if_hung = training.abort_if_hung
    call = _with_scipy_arguments(callback) if callback is not None else None
    is_stopped = False
    row: MetricsRow = {}
    with contextlib.closing(training), world.polling(training.check_messages):
        for row in training.run():
            if progress is not None:
                progress.update(row)
            if call is not None and recorder is not None and not is_stopped:
                so_far = _so_far(config, parts, training, recorder, row)
                with (
                    generators.exchanged(),
                    exits_as_errors("the callback", "raise StopIteration to end the search"),
                ):
                    try:
                        call(so_far)
                    except StopIteration:
                        is_stopped = True
                        training.stop()

    if progress is not None:
        progress.finish(
            f"ended by {'the callback' if is_stopped else recorder.reason if recorder else ''}"
        )

    def result() -> JsonObject:
        assert recorder is not None
        best = _so_far(config, parts, training, recorder, row)
        answer = recorder.standing.found(training.final).answer
        is_mean = answer.kind == "mean" and answer.value is not None
        if isinstance(best, Minimum) and is_mean and answer.value is not None:
            coordinates = config.task.coordinates()
            centre = training.state.theta[np.newaxis]
            x = coordinates.to_objective(np.asarray(centre, np.float64))[0][0]
            best = dataclasses.replace(
                best,
                x=x,
                f=answer.value,
                standard_error=answer.standard_error,
                evaluations=best.evaluations + answer.evaluations,
                parameters=dict(zip(coordinates.names, coordinates.decoded(x), strict=True)),
            )
        if isinstance(best, Minimum) and math.isnan(best.f):
            raise RunFailedError(f"no evaluation succeeded; the search ended by {recorder.reason}")
        status = (
            CALLER
            if is_stopped
            else SIGNAL
            if training.exit_status
            else _status(config, recorder, best.violation if isinstance(best, Minimum) else 0.0)
        )
        reason = "the callback raised StopIteration" if is_stopped else recorder.reason
        ended = replace(best, reason=reason, status=status, metrics=finite(row))
        return ended.message() if isinstance(ended, Front) else ended.data()

    try:
        with world.polling(training.check_messages):
            _, message = on_rank_0(world, result, dict)
    except CollectiveExit as ended:
        raise RunFailedError(ended.reason.text) from None
    if config.setup.needs.objectives:
        return Front.from_message(message, config.task.coordinates().size)
    return Minimum(**{**message, "x": np.array(message["x"])})


def _with_scipy_arguments(callback: Callback) -> Callable[[Minimum | Front], object]:
    """Return a function that calls `callback` as SciPy does, by the names of its parameters."""
    try:
        names = list(inspect.signature(callback).parameters)
    except (TypeError, ValueError):  # a function without a signature
        names = []
    if "intermediate_result" in names:
        return lambda result: callback(intermediate_result=result)
    if names in (["x"], ["xk"]):
        return lambda result: callback(result.x)
    return callback


def _so_far(
    config: Config, parts: Parts, training: Training, recorder: MemoryRecorder, metrics: MetricsRow
) -> Minimum | Front:
    """Return the best vector so far, NaN before the first successful evaluation; or the front."""
    found = recorder.standing.outcome  # of a generation that was cut short, too
    if config.setup.needs.objectives:
        evaluations = int(recorder.standing.counters["episodes"])
        algorithm, problem = parts.algorithm, parts.problem
        assert isinstance(algorithm, KeepsElites) and isinstance(problem, ObjectiveProblem)
        return front_in(algorithm, problem, found, evaluations=evaluations, metrics=metrics)
    best = BestVector.from_arrays(parts.problem.carried().extract_from(found).master)
    coordinates = config.task.coordinates()
    values = [] if math.isnan(best.value) else coordinates.decoded(best.x)
    return Minimum(
        x=best.x,
        f=best.value,
        evaluations=int(recorder.standing.counters["episodes"]),
        generations=training.state.generation,
        reason="",
        parameters=dict(zip(coordinates.names, values, strict=False)),
        violation=best.violation or 0.0,
        metrics=metrics,
    )


def _status(config: Config, recorder: MemoryRecorder, violation: float) -> int:
    """Return the status of a search that neither the callback nor a signal has ended."""
    stop = config.stop
    is_reached = stop.target_value is not None and recorder.standing.is_reached(stop.target_value)
    if is_reached or (
        not violation and any(name in CONVERGENCE for name in recorder.reason.split(", "))
    ):
        return SUCCESS
    is_over = stop.episodes is not None and recorder.standing.counters["episodes"] >= stop.episodes
    return LIMIT if is_over else NOT_CONVERGED
