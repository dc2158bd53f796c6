"""`hpc_es.minimize(f, x0, sigma0)`: minimise a Python function on all ranks of the job."""

from __future__ import annotations

import contextlib
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
FINAL_EVALUATIONS = 10  # of the centre, if noise was measured
# Stopping criteria that mean convergence; the others mean divergence or a limit.
CONVERGENCE = (
    "tolfun",
    "tolfunhist",
    "tolfunrel",
    "tolx",
    "tolxstagnation",
    "tolflatfitness",
    "tolstagnation",
    "noeffectcoord",
    "noeffectaxis",
    "the convergence of all kernels",
)

# Status of a search, see `Minimum`.
SUCCESS = 0
LIMIT = 1
NOT_CONVERGED = 2
CALLER = 3
SIGNAL = 4
RUNNING = -1


@dataclass(frozen=True)
class Minimum:
    """The result of a search, the same on every rank.

    It also has the names of SciPy's `OptimizeResult`: fun, nfev, nit, message and success.

    Attributes:
        x: float64[size], the best vector that was evaluated. If noise was measured, the centre of
            the search.
        f: the value of x. If noise was measured, the mean of further evaluations of x at the end.
        evaluations: number of evaluations.
        generations: number of generations.
        reason: why the search ended.
        parameters: x by name: x0, x1, ... unless `parameters` has names.
        violation: sum of the positive constraint values.
        standard_error: of f, if noise was measured.
        status: 0: converged, or reached the target, with a feasible x; 1: max_evaluations; 2: ended
            without convergence; 3: the callback raised StopIteration; 4: a signal; -1: the search
            is running.
        metrics: those of the last generation.
    """

    x: Float64
    f: float
    evaluations: int
    generations: int
    reason: str
    parameters: Mapping[str, Value]
    violation: float = 0.0
    standard_error: float | None = None
    status: int = RUNNING
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


# A function of the intermediate Minimum or Front. If its only parameter is named x or xk, of x.
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
    final_evaluations: int = FINAL_EVALUATIONS,
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
        max_evaluations: largest number of evaluations of `f`; the last generation is cut to it.
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
            (`noise_handling`).
        repeats: how often each candidate is evaluated, with the mean as its value; (least, most):
            as often as the noise requires (`task.repeats`).
        final_evaluations: where noise was measured, x is the centre of the search, and f its mean
            in this many evaluations after the search, which count beyond `max_evaluations`.
        seed: that of all random numbers.
        noise: the kind of noise.
        callback: called on rank 0 after each generation as `callback(intermediate_result)`, with
            the best vector so far and the metrics of the generation. If its only parameter is named
            x or xk, it gets the best vector. If it raises StopIteration, the search ends.
        constraints: number or names of constraints; `f` then returns {"value": ..., "constraints":
            [...]}, and x is feasible where they are at most 0.
        constraint_handling: "feasible_first" or "augmented_lagrangian".
        objectives: their number, their names, or goals by name, {"cost": "minimise", "range":
            "maximise"}, for nsga2 and como_cma_es. `f` then returns as many numbers, or
            {"objectives": [...]} with constraints beside them.
        reference: a value for each objective that no solution of interest is worse than, from which
            the hypervolume is measured.
        initial_points: vectors, float64[k, size], or mappings such as {"layers": 3, "solver":
            "cg"}, that are evaluated first; a mapping may also have `value` (and `constraints`),
            which are then taken over without an evaluation. Or a CSV or JSON file of points, as in
            `task.initial_points`. For cma_es, sep_cma_es and random.
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
            "evaluation": {"interval": 0, "evaluations": final_evaluations},
            "stop": {"episodes": max_evaluations, "target_value": target},
        }

    function = SearchedFunction(f, arguments, initial_points)
    generators = GlobalGenerators()
    with one_thread(workers), generators.exchanged(), exits_as_errors():
        config = _config(world, data, function)
        signals = Signals()
        try:
            # Signals are handled from here on, so Ctrl-C no longer raises KeyboardInterrupt: one
            # that is raised now comes from the code of `f`, and is an error.
            with exits_as_errors():
                make_executor = None
                if workers is not None:
                    require_pool(config)
                    recipe = SearchRecipe(dump_json(config), function)
                    make_executor = partial(PoolExecutor, recipe, workers, signals.count)
                search = _Search(world, config, function.parts(config))
                return search.run(
                    signals,
                    make_executor,
                    callback=callback,
                    generators=generators,
                    verbose=verbose,
                )
        finally:
            signals.restore()


@dataclass(frozen=True)
class SearchedFunction:
    """What a search has in place of the names in its config."""

    f: Callable[..., object]
    arguments: Mapping[str, object] | None
    initial_points: str | Path | Points | None

    def parts(self, config: Config) -> Parts:
        """Return the parts of a search on this rank."""
        source = self.initial_points
        if isinstance(source, str | Path):
            source = argument(source, "initial_points")
        task = config.task
        evaluator = PythonEvaluator(
            objective(self.f, dict(self.arguments or {}), task.coordinates().scales),
            task.batch > 0,
            task.timeout_seconds,
            returned_quantities(task),
        )
        built = ObjectiveTask(
            getattr(self.f, "__name__", "f"),
            task,
            initial_vector(task),
            evaluator=evaluator,
            batch=task.batch,
            points=None if source is None else points_from(source, task),
        )
        return serial_parts(config, built, task.batch or 1)


@dataclass(frozen=True)
class SearchRecipe:
    """How a worker gets the parts of a search."""

    config: str  # as JSON
    function: SearchedFunction
    key: str = field(default_factory=lambda: uuid4().hex)

    def parts(self) -> Parts:
        """Build the parts."""
        return self.function.parts(parse_resolved(self.config))


def _config(world: World, data: Callable[[], ConfigData], function: SearchedFunction) -> Config:
    """Return the config of the arguments of `minimize` on every rank.

    Rank 0 validates it, builds the parts and warns. Raises ConfigError on rank 0, SystemExit on the
    other ranks.
    """

    def checked() -> Config:
        config = validate(data())
        # Raises if f cannot be called so, or the algorithm or a point does not fit.
        problem = function.parts(config).problem
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


class _Search:
    """One search, on this rank; only rank 0 records what it finds."""

    def __init__(self, world: World, config: Config, parts: Parts) -> None:
        self._world, self._config, self._parts = world, config, parts
        self._state = parts.initial()
        self._recorder = None
        if world.rank == 0:
            self._recorder = MemoryRecorder(Standing(config, parts.problem, self._state))
        self._is_stopped = False  # by the callback
        self._row: MetricsRow = {}  # of the last generation

    def run(
        self,
        signals: Signals,
        make_executor: Callable[[Work, FailureReports], Executor] | None,
        *,
        callback: Callback | None,
        generators: GlobalGenerators,
        verbose: bool,
    ) -> Minimum | Front:
        """Search, and return what was found, on every rank."""
        progress = self._progress() if verbose else None
        call = None if callback is None else _with_scipy_arguments(callback)
        training = Training(
            self._config,
            self._world,
            self._parts,
            signals=signals.count,
            recorder=self._recorder,
            state=self._state,
            make_executor=make_executor,
        )
        signals.abort_if_hung = training.abort_if_hung
        with contextlib.closing(training), self._world.polling(training.check_messages):
            for row in training.run():
                self._row = row
                if call is not None and self._recorder is not None and not self._is_stopped:
                    so_far = self._so_far(training, self._recorder)
                    with (
                        generators.exchanged(),
                        exits_as_errors("the callback", "raise StopIteration to end the search"),
                    ):
                        try:
                            call(so_far)
                        except StopIteration:
                            self._is_stopped = True
                            training.stop()
        if progress is not None and self._recorder is not None:
            ended_by = "the callback" if self._is_stopped else self._recorder.reason
            generations, standing = training.state.generation, self._recorder.standing
            progress.finish(standing.end_message("ended", ended_by, generations, training.final))
        return self._shared_result(training)

    def _progress(self) -> Progress | None:
        """Return the progress lines of rank 0; None on the other ranks."""
        if self._recorder is None:
            return None
        setup, problem = self._config.setup, self._parts.problem
        progress = Progress(
            None,
            self._config.stop,
            vocabulary=setup.vocabulary,
            metrics=setup.metrics,
            objectives=tuple(problem.quantities.objectives),
        )
        if text := points_text(self._config, problem):
            progress.message(text)
        self._recorder.progress = progress
        return progress

    def _shared_result(self, training: Training) -> Minimum | Front:
        """Return the result of rank 0 on every rank."""

        def message_of_result() -> JsonObject:
            assert self._recorder is not None
            result = self._result(training, self._recorder)
            return result.message() if isinstance(result, Front) else result.data()

        try:
            with self._world.polling(training.check_messages):
                _, message = on_rank_0(self._world, message_of_result, dict)
        except CollectiveExit as ended:
            raise RunFailedError(ended.reason.text) from None
        if self._config.setup.needs.objectives:
            return Front.from_message(message, self._config.task.coordinates().size)
        return Minimum(**{**message, "x": np.array(message["x"])})

    def _result(self, training: Training, recorder: MemoryRecorder) -> Minimum | Front:
        result = self._so_far(training, recorder)
        if isinstance(result, Minimum):
            result = self._with_mean(result, training, recorder)
            if math.isnan(result.f):
                raise RunFailedError(
                    f"no evaluation succeeded; the search ended by {recorder.reason}"
                )
        violation = result.violation if isinstance(result, Minimum) else 0.0
        return replace(
            result,
            reason="the callback raised StopIteration" if self._is_stopped else recorder.reason,
            status=self._status(training, recorder, violation),
            metrics=finite(self._row),
        )

    def _so_far(self, training: Training, recorder: MemoryRecorder) -> Minimum | Front:
        """Return the best vector so far, or the front.

        Its value is NaN before the first successful evaluation.
        """
        found = recorder.standing.outcome  # of a generation that was cut short, too
        evaluations = int(recorder.standing.counters["episodes"])
        problem = self._parts.problem
        if self._config.setup.needs.objectives:
            algorithm = self._parts.algorithm
            assert isinstance(algorithm, KeepsElites) and isinstance(problem, ObjectiveProblem)
            return front_in(algorithm, problem, found, evaluations=evaluations, metrics=self._row)
        best = BestVector.from_arrays(problem.carried().extract_from(found).master)
        coordinates = self._config.task.coordinates()
        values = [] if math.isnan(best.value) else coordinates.decoded(best.x)
        return Minimum(
            x=best.x,
            f=best.value,
            evaluations=evaluations,
            generations=training.state.generation,
            reason="",
            parameters=dict(zip(coordinates.names, values, strict=False)),
            violation=best.violation or 0.0,
            metrics=self._row,
        )

    def _with_mean(self, best: Minimum, training: Training, recorder: MemoryRecorder) -> Minimum:
        """Return the centre with the mean of its evaluations, if the search measured noise."""
        answer = recorder.standing.found(training.final).answer
        if answer.kind != "mean" or answer.value is None:
            return best
        coordinates = self._config.task.coordinates()
        centre = np.asarray(training.state.theta[np.newaxis], np.float64)
        x = coordinates.to_objective(centre)[0][0]
        return replace(
            best,
            x=x,
            f=answer.value,
            standard_error=answer.standard_error,
            evaluations=best.evaluations + answer.evaluations,
            parameters=dict(zip(coordinates.names, coordinates.decoded(x), strict=True)),
        )

    def _status(self, training: Training, recorder: MemoryRecorder, violation: float) -> int:
        if self._is_stopped:
            return CALLER
        if training.exit_status:
            return SIGNAL
        stop, standing = self._config.stop, recorder.standing
        if stop.target_value is not None:
            found = standing.found(training.final)
            if standing.has_succeeded(found, stop.target_value):
                return SUCCESS
        if not violation and any(name in CONVERGENCE for name in recorder.reason.split(", ")):
            return SUCCESS
        if stop.episodes is not None and standing.counters["episodes"] >= stop.episodes:
            return LIMIT
        return NOT_CONVERGED


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
