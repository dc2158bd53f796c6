"""`hpc_es.minimize(f, x0, sigma0)`: minimise a Python function on all ranks of the job."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc_es.api.arguments import BoundsInput, argument_errors
from hpc_es.api.strategy import ALGORITHM, OUTSIDE, Parameters, Region, algorithm_options, parts_of, vector_options
from hpc_es.config.loading import validate
from hpc_es.config.resolved import dump_json, parse_resolved
from hpc_es.config.schema import Config
from hpc_es.core.data import Float64, JsonObject
from hpc_es.core.errors import RunFailedError
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals, install_hooks
from hpc_es.mpi.world import World
from hpc_es.tasks.function import ObjectiveTask, initial_vector
from hpc_es.tasks.functions.parameters import Value
from hpc_es.tasks.functions.problem import BestVector
from hpc_es.tasks.functions.python_evaluator import PythonEvaluator, objective
from hpc_es.training.build import Parts
from hpc_es.training.collective import CollectiveExit, on_rank_0
from hpc_es.training.compatibility import rounding_warnings
from hpc_es.training.generation import MetricsRow
from hpc_es.training.loop import Training
from hpc_es.training.recorder import Recorder

EVALUATIONS = 10_000  # default limit


@dataclass(frozen=True)
class Minimum:
    """The result of a search, the same on every rank."""

    x: Float64  # float64[size], the best vector that was evaluated
    f: float  # its value
    evaluations: int
    generations: int
    reason: str  # why the search ended
    parameters: Mapping[str, Value]  # x by name: x0, x1, ... unless `parameters` has names
    violation: float = 0.0  # sum of the positive constraint values


def minimize(
    f: Callable[..., object],
    x0: npt.ArrayLike | None = None,
    sigma0: float | None = None,
    *,
    region: Region | None = None,
    parameters: Parameters | None = None,
    algorithm: str = ALGORITHM,
    max_evaluations: int = EVALUATIONS,
    target: float | None = None,
    bounds: BoundsInput = None,
    keep: str = "reflect",
    arguments: JsonObject | None = None,
    batch: int = 0,
    timeout_seconds: float | None = None,
    seed: int = 0,
    noise: str = "counter",
    callback: Callable[[MetricsRow], object] | None = None,
    constraints: int | Sequence[str] | None = None,
    constraint_handling: str = "feasible_first",
    **options: object,
) -> Minimum:
    """Minimise `f` from `x0` with step size `sigma0` on all ranks of the job, by default with CMA-ES.

    - `f(x)` takes float64[size] and returns a number. With `batch=K` it takes up to K vectors, float64[<= K, size], and
      returns as many values. An exception, NaN or time-out is a failed evaluation; the first of each kind is written to
      stderr.
    - `region`, (low, high), may replace `x0`: the first centre, and that of each restart, is drawn from it.
    - `parameters` may replace `x0` and `bounds`, as in `Strategy`: `f` then gets a keyword for each, of its type.
    - `bounds`: (low, high), each a number, a list or None, or one pair (low, high) per coordinate like in SciPy; for
      two coordinates see `Strategy`. `keep`: "reflect", "clip" or "penalty", how vectors are kept within them.
    - The search ends after `max_evaluations` (at the end of a generation), at a value of at most `target`, when the
      algorithm has converged, or on a signal such as SIGINT.
    - `constraints`: number or names of constraints; `f` then returns {"value": ..., "constraints": [...]}, and x is
      feasible where they are at most 0. `constraint_handling`: "feasible_first" or "augmented_lagrangian".
    - `arguments`: further keyword arguments of `f`.
    - `callback` gets the metrics of each generation on rank 0.
    - `options` are the options of the algorithm, as in `Strategy`.

    Under MPI every rank calls this function with the same arguments and gets the same result, whatever the number of
    ranks. No files are written; for a search that can be resumed, use `task: {kind: function}`.

    Raises ConfigError for wrong arguments on rank 0, and SystemExit on the other ranks. Raises
    `hpc_es.core.errors.RunFailedError` on every rank if all evaluations of the first generation or of two consecutive
    generations failed, or if none had succeeded at the end.
    """
    world = connect()
    install_hooks()

    def checked() -> Config:
        task = {"kind": "function", "function": OUTSIDE, **vector_options(x0, region, bounds, keep, parameters)}
        task |= {
            "constraints": constraints,
            "constraint_handling": constraint_handling,
            "batch": batch,
            "timeout_seconds": timeout_seconds,
            "arguments": dict(arguments or {}),
        }
        config = validate(
            {
                "seed": seed,
                "task": task,
                "algorithm": algorithm_options(algorithm, sigma0, options),
                "noise": {"kind": noise},
                "evaluation": {"interval": 0},
                "stop": {"episodes": max_evaluations, "target_value": target},
            }
        )
        # Raises if f cannot be called so, or the algorithm does not fit.
        for text in rounding_warnings(config, _parts(config, f).problem):
            warnings.warn(text.replace("algorithm.kind", "algorithm"), stacklevel=5)
        return config

    try:
        _, message = on_rank_0(world, argument_errors()(checked), lambda config: {"config": dump_json(config)})
    except CollectiveExit as ended:
        raise (ended.__cause__ or SystemExit(ended.reason.status)) from None
    config = parse_resolved(message["config"])
    signals = Signals()
    try:
        return _run(world, signals, config, _parts(config, f), callback)
    finally:
        signals.restore()
        world.poll = None


def _parts(config: Config, f: Callable[..., object]) -> Parts:
    """Return the parts of a run on this rank, with the function itself in place of a name."""
    scales = config.task.coordinates().scales
    calls = PythonEvaluator(
        objective(f, config.task.arguments, scales),
        config.task.batch > 0,
        config.task.timeout_seconds,
        config.task.constraint_names,
    )
    task = ObjectiveTask(
        getattr(f, "__name__", "f"), config.task, initial_vector(config.task), calls, config.task.batch
    )
    return parts_of(config, task, config.task.batch or 1)


def _run(
    world: World, signals: Signals, config: Config, parts: Parts, callback: Callable[[MetricsRow], object] | None
) -> Minimum:
    state = parts.initial()
    recorder = Recorder(config, parts.problem, state) if world.rank == 0 else None
    training = Training(config, world, parts, signals.count, recorder, state)
    signals.abort_if_hung = training.abort_if_hung
    for row in training.run():
        if callback is not None:
            callback(row)

    coordinates = config.task.coordinates()

    def result() -> JsonObject:
        assert recorder is not None
        best = BestVector.from_arrays(parts.problem.carried().extract_from(training.state).master)
        if math.isnan(best.value):
            raise RunFailedError(f"no evaluation succeeded; the search ended by {recorder.reason}")
        count = {"evaluations": int(recorder.counters["episodes"]), "generations": training.state.generation}
        named = dict(zip(coordinates.names, coordinates.decoded(best.x), strict=True))
        return {
            "x": best.x.tolist(),
            "f": best.value,
            **count,
            "reason": recorder.reason,
            "parameters": named,
            "violation": best.violation or 0.0,
        }

    try:
        _, message = on_rank_0(world, result, dict)
    except CollectiveExit as ended:
        raise RunFailedError(ended.reason.text) from None
    return Minimum(**{**message, "x": np.array(message["x"])})
