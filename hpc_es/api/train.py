"""Training from Python: `for row in hpc_es.train(config): ...`."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from hpc_es.config import user_code
from hpc_es.config.loading import read
from hpc_es.config.schema import Config
from hpc_es.core.data import Array, Arrays, ConfigData, JsonObject, State, read_only
from hpc_es.core.errors import ConfigError, Exit, RunError, UserError, exits_as_errors
from hpc_es.core.global_generators import GlobalGenerators, restored_generators
from hpc_es.core.handlers import OwnProcess
from hpc_es.core.paths import argument, current_directory, expanded, is_config_string
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals, install_hooks
from hpc_es.mpi.world import World
from hpc_es.training.build import decide_device, valid_config
from hpc_es.training.collective import (
    CollectiveExit,
    config_from_message,
    config_message,
    on_all_ranks,
    on_rank_0,
)
from hpc_es.training.compatibility import require_gradient
from hpc_es.training.finished import AfterTrainStep
from hpc_es.training.generation import MetricsRow
from hpc_es.training.pool import Workers, alone, one_thread, require_pool
from hpc_es.training.run import Run, RunRequest, start_run
from hpc_es.training.triggers import IntervalTrigger

ConfigSource = Config | str | Path | ConfigData
Trigger = IntervalTrigger | tuple[Callable[..., object], float]


def train(
    config: ConfigSource,
    output: str | Path | None = None,
    triggers: Sequence[Trigger] = (),
    after_train_step: AfterTrainStep | None = None,
    workers: Workers | None = None,
    *,
    overrides: Sequence[str] = (),
) -> TrainingRun:
    """Start or resume a run; iterate over the result to train.

    Each item has the metrics of a generation. Under MPI every rank calls this function; the body of
    the loop runs on rank 0 only.

    Args:
        config: path of a YAML file, config string, mapping with the keys of such a file, or Config.
        output: the run directory; None: that of the config, by default runs/NAME. If it contains a
            checkpoint of this experiment, the run is resumed.
        triggers: pairs of a function and an interval in generations, or an
            `hpc_es.IntervalTrigger`, which can also count timesteps or seconds. They are called on
            rank 0. A function with two arguments gets the number of finished generations and the
            run; any other function gets no arguments. Checkpoints store when each trigger was last
            called, by the name of its function.
        after_train_step: a function of (sample, loss) that is called on rank 0 after each update of
            `actor_critic` or `policy_gradient`, with the arrays of the batch and the terms of the
            loss; `loss["loss"]` is their weighted sum. It does not change the results, but batches
            are sent to rank 0.
        workers: without MPI, the number of processes that evaluate, or a callable such as the map
            of a pool of `concurrent.futures`. Results are those of any number of ranks. See
            docs/guides/workers.md.
        overrides: keys of a YAML file or config string with other values, as on the command line:
            `["stop.generations=5"]`. A mapping can be changed itself.

    Returns:
        The run, an iterator of dicts with the metrics of metrics.jsonl; as a context manager it
        closes the run.

    Raises:
        UserError: on rank 0, for errors that the user can correct.
        SystemExit: on the other ranks, for the same errors.

    Examples:
        >>> import tempfile
        >>> import hpc_es
        >>> config = {
        ...     "task": {"env_id": "CartPole-v1"},
        ...     "policy": {"hidden_dims": [8]},
        ...     "algorithm": {"population_size": 8},
        ...     "stop": {"generations": 3},
        ... }
        >>> with tempfile.TemporaryDirectory() as output:
        ...     with hpc_es.train(config, output) as run:
        ...         for row in run:
        ...             if row["return_mean"] > 400:
        ...                 run.stop()
        ...     policy = hpc_es.load_policy(output)  # doctest: +ELLIPSIS
        rank=host:pid  0=...
        task CartPole-v1  params 58  ranks 1 ...
        generation 1 of 3 ...
        finished by stop.generations: 3 after 3 generations, ...
        >>> row["generation"], row["episodes_total"]
        (2, 24)
        >>> policy([0.0, 0.1, 0.0, -0.1]) in (0, 1)
        True
    """
    world = connect() if workers is None else alone(workers)
    install_hooks()
    for run in [_deleted_elsewhere.pop() for _ in range(len(_deleted_elsewhere))]:
        run.close()
    generators, threads = GlobalGenerators(), contextlib.ExitStack()
    threads.enter_context(one_thread(workers))
    with contextlib.ExitStack() as on_error, generators.exchanged(), exits_as_errors():
        on_error.push(threads)
        try:
            request, message = on_rank_0(
                world,
                lambda: _request(config, output, triggers, after_train_step, generators, overrides),
                lambda pair: pair[1] if pair else {},
            )
        except CollectiveExit as ended:
            raise (ended.__cause__ or Exit(ended.reason.status)) from None
        run_request = RunRequest(Path(message["directory"]), keeps_samples=message["keeps_samples"])
        if request is not None:
            run_request = replace(request[0], workers=workers)
        run = _started(world, message, run_request, generators)
        run.at_end = on_error.pop_all().close
        return run


def _started(
    world: World, message: JsonObject, request: RunRequest, generators: GlobalGenerators
) -> TrainingRun:
    signals = Signals()
    try:
        with exits_as_errors():
            received = config_from_message(world, message)
            on_all_ranks(lambda: decide_device(received, world))
            if request.workers is not None:
                require_pool(received)
            run = TrainingRun(start_run(world, signals, received, request), signals, generators)
        for trigger in request.triggers:
            trigger.run = weakref.ref(run)  # weak, so that a run without other references is closed
        return run
    except CollectiveExit as ended:
        signals.restore()
        text = ended.reason.text
        raise (
            ended.__cause__ or (Exit(ended.reason.status) if world.rank else UserError(text))
        ) from None
    except BaseException:
        signals.restore()
        raise


@contextlib.contextmanager
def callers_code(generators: GlobalGenerators, name: str, remedy: str) -> Iterator[None]:
    """Call a function of the caller's within a run, with the caller's own random generators.

    Raises:
        RunError: in place of an exception that would end the program, or an iterator of the run.
    """
    with generators.exchanged(), exits_as_errors(name, remedy):
        try:
            yield
        except StopIteration as error:
            raise RunError(f"{name} must not raise StopIteration: {remedy}") from error


def _request(
    source: ConfigSource,
    output: str | Path | None,
    triggers: Sequence[Trigger],
    after_train_step: AfterTrainStep | None,
    generators: GlobalGenerators,
    overrides: Sequence[str],
) -> tuple[RunRequest, ConfigData]:
    here = current_directory()  # code of the user may change it as soon as it is imported
    own = argument(output, "output") if output else None
    config = _config(source, own, overrides)
    directory = own or here / expanded(config.output or f"runs/{config.name or 'unnamed'}")
    keeps_samples = after_train_step is not None
    if keeps_samples:
        require_gradient(config, "after_train_step")

    def context(name: str) -> AbstractContextManager[None]:
        return callers_code(generators, name, "run.stop() ends the run")

    def call_after_train_step(sample: Arrays, loss: Mapping[str, float]) -> None:
        assert after_train_step is not None
        with context("after_train_step"):
            after_train_step(read_only(sample), loss)

    own_triggers = [_trigger(trigger, number) for number, trigger in enumerate(triggers)]
    for trigger in own_triggers:
        trigger.context = lambda name: context(f"the trigger {name}")
    request = RunRequest(
        directory,
        triggers=own_triggers,
        after_train_step=call_after_train_step if keeps_samples else None,
        keeps_samples=keeps_samples,
    )
    return request, {
        **config_message(config),
        "directory": str(directory),
        "keeps_samples": keeps_samples,
    }


def _trigger(trigger: Trigger, number: int) -> IntervalTrigger:
    if isinstance(trigger, IntervalTrigger):
        return trigger
    function, interval = trigger
    name = getattr(function, "__name__", "")
    return IntervalTrigger(
        function, interval, name=f"user_{number}" if name in {"", "<lambda>"} else name
    )


def _source(source: str | Path) -> str | Path:
    """Return a config string, or the path of a config file with ~ and variables replaced."""
    return source if is_config_string(str(source)) else argument(source, "config")


def _config(source: ConfigSource, output: Path | None, overrides: Sequence[str]) -> Config:
    if isinstance(overrides, str) or not all(isinstance(item, str) for item in overrides):
        raise ConfigError(
            [
                (
                    "overrides",
                    f"expected a list of texts such as 'stop.generations=5', found {overrides!r}",
                )
            ]
        )
    if isinstance(source, str | Path):
        source = read(_source(source), overrides)
    elif not isinstance(source, Mapping | Config):
        raise ConfigError(
            [
                (
                    "config",
                    f"expected a path, a config string or a mapping, found {type(source).__name__}",
                )
            ]
        )
    elif overrides:
        raise ConfigError(
            [
                (
                    "overrides",
                    "go with a YAML file or a config string: "
                    "expected none, and the new values in config",
                )
            ]
        )
    else:
        user_code.make_importable()
    config = source if isinstance(source, Config) else valid_config(source, output)
    if config.repetitions > 1:
        raise ConfigError(
            [
                (
                    "repetitions",
                    f"is {config.repetitions}, but train() runs one: call it for each one",
                )
            ]
        )
    if config.mpi.fault_tolerance:
        raise ConfigError(
            [
                (
                    "mpi.fault_tolerance",
                    "is true, but train() has no support for it: use hpc-es train",
                )
            ]
        )
    return config


class TrainingRun:
    """A run in progress: an iterator of the metrics of each generation; see `train`.

    As a context manager it closes the run.
    """

    def __init__(self, run: Run, signals: Signals, generators: GlobalGenerators) -> None:
        self._run, self._signals, self._generators = run, signals, generators
        self._process = OwnProcess()
        self.at_end: Callable[[], None] = lambda: None  # called when the run has ended
        self._thread = threading.get_ident()
        self._rows: Generator[MetricsRow] = run.rows()

    @property
    def state(self) -> State:
        """State after the last finished generation, with read-only arrays.

        On ranks other than 0 only its shared arrays are current. With 4 million parameters and
        more, the next update overwrites them.
        """
        state = self._run.state
        return replace(state, shared=read_only(state.shared), master=read_only(state.master))

    @property
    def theta(self) -> Array:
        """A copy of the parameters after the last finished generation, [params]."""
        return self._run.theta

    @property
    def directory(self) -> Path:
        """Directory with the checkpoints, metrics and results of this run."""
        return self._run.directory

    def loss(self, sample: Arrays | None = None) -> Mapping[str, float] | None:
        """Return the loss of the newest parameters and its terms, without an update.

        The call changes neither parameters nor counters nor random numbers.

        Args:
            sample: a batch as received by `after_train_step`; None: the batch of the next update.

        Returns:
            Numbers by name, of which "loss" is the weighted sum of the others; None on ranks other
            than 0.

        Raises:
            UserError: the algorithm has no gradients, or without a sample the run has ended or
                updates within an episode (`algorithm.update_every`).
        """
        with self._generators.exchanged(), restored_generators():
            return self._run.loss(sample)

    def update(self, sample: Arrays) -> MetricsRow | None:
        """Train one generation of `actor_critic` with data of your own.

        The call takes the place of `next(run)`: the trajectories count as episodes of this
        generation, and evaluations, limits, checkpoints and triggers are as usual. Under MPI every
        rank calls it; only the sample on rank 0 matters. Other ranks return at the end of the run.

        A resumed run continues exactly from its checkpoint, but its results then depend on the
        samples that follow, which are not stored.

        Args:
            sample: trajectories with the names, shapes and units of those that `after_train_step`
                receives.

        Returns:
            The metrics of the generation; None on ranks other than 0, and if a limit has ended the
            run.

        Raises:
            UserError: the algorithm is another one, its updates are asynchronous, the run has
                ended, or an array is missing or has another shape.
        """
        self._run.learn_next(sample)
        return next(self, None)

    def checkpoint(self) -> Path | None:
        """Write a checkpoint now and return its path, None on ranks other than 0.

        Raises:
            RunError: it cannot be written.
        """
        return self._run.checkpoint()

    def stop(self) -> None:
        """Stop after the current generation, write a checkpoint and mark the run finished.

        Call on rank 0.
        """
        self._run.stop()

    def close(self) -> None:
        """Leave the run now: all ranks stop and files are closed. Further calls do nothing."""
        is_running = inspect.getgeneratorstate(self._rows) == inspect.GEN_SUSPENDED
        with self._generators.exchanged():
            try:
                self._rows.close()
            except BaseException:
                self._end()
                raise
            if is_running:
                self._finish()
            else:
                self._end()

    def _finish(self) -> None:
        """End the run, and write result.json unless a signal has interrupted it."""
        self._end()
        if not self._run.training.exit_status:
            self._run.result()

    def _end(self) -> None:
        if self._process.is_forked():
            return
        if not self._signals.restore():  # the main thread does it, by the next run or at the end
            _deleted_elsewhere.append(self)
        self._run.close()
        self.at_end()

    def __iter__(self) -> TrainingRun:
        return self

    def __next__(self) -> MetricsRow:
        self._process.end_forked()
        with self._generators.exchanged():
            try:
                return next(self._rows)
            except StopIteration:
                self._finish()
                raise
            except BaseException:
                self._end()
                raise

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not hasattr(self, "_rows"):
            return
        if threading.get_ident() == self._thread:
            self.close()
        else:  # the garbage collector runs in any thread, such as JAX's, but only the main one may set signal handlers
            _deleted_elsewhere.append(self)
            atexit.register(self.close)


# to be closed in the main thread, by the next run or at the end
_deleted_elsewhere: list[TrainingRun] = []
