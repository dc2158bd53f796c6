"""`task: {kind: model}`: the parameters of a model, scored on batches of data.

    task: {kind: model, model: "my_model:make"}

`make(**model_kwargs)` returns a dict, or an object, with the initial `parameters`,
`score(parameters, batch)`, `batch(seed)` and optionally `validation(seed)`: see `jax_model.py`. One
compiled call scores `jobs_per_call` candidates. Results depend on this number, but not on chunks,
ranks, or the place of a candidate in its call.

JAX is imported when the task is built: see `devices/jax_setup.py`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hpc_es.config.options import Together, option, options, unused
from hpc_es.config.schema import NO_NUMBERS, Reduction
from hpc_es.config.source_code import source_hash
from hpc_es.core import machine
from hpc_es.core.data import (
    Array,
    ConfigData,
    Float32,
    Jobs,
    Json,
    Poll,
)
from hpc_es.core.declarations import Offers, Searched
from hpc_es.core.errors import (
    ConfigError,
    EvaluationError,
    Failure,
    RunError,
)
from hpc_es.core.interfaces import CallMemory, RunContext, SearchSize
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.machine import bytes_text
from hpc_es.core.policy import Policy, Tree
from hpc_es.core.population import Factorisation, Perturbed, Population, candidate_parts
from hpc_es.core.streams import say_error
from hpc_es.devices import jax_setup
from hpc_es.tasks.model.engine import EngineTask
from hpc_es.tasks.model.quantities import ModelQuantities, ModelQuantityOptions, declared
from hpc_es.tasks.model.scored import ScoredProblem, Scores, joined
from hpc_es.tasks.model.user_function import call_of_user
from hpc_es.tasks.parts_of_calls import in_parts

if TYPE_CHECKING:
    from hpc_es.tasks.model.jax_model import Model, ScoreCall, Source

KEY = "task.model"
CHECKED_SEEDS = (0, 1, 2)  # of batches that --check compares
ANNOUNCED_SECONDS = 10.0  # after which --check says what it is waiting for

JOBS_PER_CALL = 16
# Of `auto`: the numbers of a call's candidates, which a CPU keeps in its last cache, and
# candidates.
CPU_BYTES, CPU_JOBS = 32 << 20, 64
GPU_BYTES, GPU_JOBS = 1 << 30, 1024

OFFERS = Offers(
    problems=("vectors",),
    compiled=True,
    without_compiler="set task.call: each for an engine, such as a model of PyTorch",
    info=True,
    measures_centre=True,
    automatic_sizes=True,
)


@options
class Options(ModelQuantityOptions):
    """`task:` with `kind: model`."""

    kind: Literal["model"] = option("name of the task", "model")
    model: str = option(
        "'my_model:make', a function that returns a model: its parameters, score and batches"
    )
    model_kwargs: ConfigData = option("keywords of the function", default_factory=dict)
    call: Literal["compiled", "each"] = option(
        "compiled: JAX compiles the score for several candidates; each: `make` returns an engine, such as a model of "
        "PyTorch, into which each candidate is written before it is scored (docs/guides/models.md)",
        "compiled",
    )
    jobs_per_call: Literal["auto"] | Together = option(
        "number of candidates per compiled call, in place of mpi.chunk_size; auto: chosen at the first start "
        "(docs/guides/models.md). Results depend on it",
        JOBS_PER_CALL,
    )
    batches: Literal["generation", "pair"] = option(
        "batches of a generation: one for all candidates, or one for each antithetic pair",
        "generation",
    )
    on_failed_evaluation: Literal["drop", "abort"] = option(
        "action if the score of a candidate is not finite, or Python code that it calls fails: leave it out of the "
        "update, or end the run",
        "drop",
        may_change=True,
    )
    compilation_cache: bool = option(
        "whether compiled code is cached in the run directory, for other ranks and resumed runs",
        True,
        may_change=True,
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for options of compiled calls if there are none."""
        if self.call == "each":
            yield from unused(self, ("jobs_per_call", "compilation_cache"), "call is each")

    def automatic(self, search: SearchSize) -> Mapping[str, int]:
        """Return the jobs per call if they are `auto`, by the rule in docs/guides/models.md."""
        if self.jobs_per_call != "auto":
            return {}
        bytes_, most = (GPU_BYTES, GPU_JOBS) if search.platform == "gpu" else (CPU_BYTES, CPU_JOBS)
        fitting = max(1, min(bytes_ // (4 * search.parameters), search.jobs, most))
        return {"jobs_per_call": 1 << fitting.bit_length() - 1}


class ModelTask:
    """The task. It keeps the model and its compiled calls."""

    spaces = None

    def __init__(self, options: Options, info: Sequence[str] = ()) -> None:
        """Raise ConfigError if the function fails, or returns no model.

        `info` are numbers that `score` returns.
        """
        self.options, self.name = options, options.model
        # `auto` precedes a search, which knows the number.
        self.jobs_per_call = (
            JOBS_PER_CALL if options.jobs_per_call == "auto" else options.jobs_per_call
        )
        self.info, self.quantities = tuple(info), ModelQuantities.of(options)
        self.aborts = options.on_failed_evaluation == "abort"
        self.model = self.created({**self.quantities.asked, **dict.fromkeys(info, "report.info")})
        self._calls: dict[tuple[Source, bool], ScoreCall] = {}
        # of candidates that are evaluated from low-rank factors
        self.factorisation: Factorisation | None = None

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the numbers beside the score."""
        return self.model.metrics

    def restored(self, theta: Float32) -> Any:
        """Return the user's model with the parameters theta, float32[size]."""
        return self.model.parameters.restored(theta)

    def created(self, metrics: Mapping[str, str] | None = None) -> Model:
        """Return the model of a new call of the user's function.

        `metrics` are those that options ask for.
        """
        jax_setup.configured_jax()
        if "keras" not in sys.modules:
            os.environ["KERAS_BACKEND"] = "jax"
        from hpc_es.tasks.model.jax_model import Model

        options = self.options
        created = call_of_user(options.model, options.model_kwargs)
        return Model(created, options.model, metrics or {})

    def problem(
        self, searched: Searched, policy: Policy | None, keys: Keys, unit: int
    ) -> ModelProblem:
        """Return the problem of maximising the score."""
        return ModelProblem(self, keys)

    def training_call(self) -> ScoreCall:
        """Return the call of `jobs_per_call` candidates."""
        return self._call("batch", is_stacked=True)

    def single_call(self, source: Source) -> ScoreCall:
        """Return the call of one candidate on a batch of this kind, for evaluations and probes."""
        return self._call(source, is_stacked=False)

    def _call(self, source: Source, is_stacked: bool) -> ScoreCall:
        from hpc_es.tasks.model.jax_model import ScoreCall

        if (source, is_stacked) not in self._calls:
            jobs = self.jobs_per_call if is_stacked else None
            factorisation = self.factorisation if is_stacked else None
            call = ScoreCall(
                self.model,
                source,
                jobs,
                is_stacked and self.options.batches == "pair",
                factorisation,
            )
            self._calls[source, is_stacked] = call
        return self._calls[source, is_stacked]

    def use_what_is_compiled(self, checkpoint: Path) -> None:
        """Use the compilation cache of a checkpoint's run, if it is trusted."""
        if self.options.compilation_cache:
            jax_setup.use_cache(jax_setup.existing_cache(checkpoint))

    @cached_property
    def check_lines(self) -> Sequence[str]:
        """Lines of --check about parameters, batches and memory."""
        from hpc_es.tasks.model.jax_model import tree_text

        model, call = self.model, self.training_call()
        evaluation = model.evaluation_source
        lines = [
            f"model {self.name}: {model.layout.size:,} parameters in {len(model.layout.shapes)} arrays",
            f"batches {tree_text(model.shapes('batch'))}"
            + (
                f", validation {tree_text(model.shapes(evaluation))}"
                if evaluation == "validation"
                else ""
            ),
            f"a call of {self.jobs_per_call} candidates: {bytes_text(call.total_bytes())}",
        ]
        constants = [path for path, _ in model.parameters.constants if "seed_generator" not in path]
        return [*lines, f"constants, not searched: {', '.join(constants)}"] if constants else lines

    def close(self) -> None:
        """Delete the compiled calls."""
        self._calls.clear()


class ModelProblem(ScoredProblem):
    """The search for the parameters of a model with the highest score.

    The batch of a generation, or of each of its pairs, follows from its key. Evaluations of the
    centre have batches of `validation`, or else further ones of `batch`.
    """

    def __init__(self, task: ModelTask, keys: Keys) -> None:
        super().__init__(task, keys, task.model.layout)
        self._task = task
        self.chunk_size = task.jobs_per_call
        self.evaluation_episodes = 1 if task.model.has_fixed_validation else None
        # the last batch, with its source and seed
        self._cached: tuple[tuple[Source, int], Tree] | None = None
        self._needs_initial = True  # whether the run uses the initial parameters of this rank

    def initial(self, rng: np.random.Generator) -> Float32:
        if not self._needs_initial:
            return np.zeros(self.layout.size, np.float32)  # memory that is never written
        return self._task.model.initial(int(rng.integers(2**31)))

    def use_factors(self, factorisation: Factorisation) -> None:
        """Evaluate candidates from their low-rank factors."""
        self._task.factorisation = factorisation

    def factored(self) -> tuple[str, ...]:
        """Return the matrices that are evaluated from factors; the call forms the others."""
        return self._task.training_call().factored()

    def call_memory(self) -> CallMemory:
        """Return the memory of the compiled call of training."""
        call = self._task.training_call()
        call.compile(lambda: None)
        return CallMemory(self._task.jobs_per_call, *call.memory(), "task.jobs_per_call")

    # Evaluation.

    def scores(self, population: Population, jobs: Jobs, poll: Poll) -> Scores:
        """Return the results of the candidates of a chunk."""
        from hpc_es.tasks.model.jax_model import release_arguments

        score = self._score_together if jobs.purpose == "train" else self._score_singly
        scores = score(population, jobs, poll)
        release_arguments()
        return scores

    def _score_together(self, population: Population, jobs: Jobs, poll: Poll) -> Scores:
        """Return the results of jobs of training, in calls of `jobs_per_call`."""
        size = self._task.jobs_per_call
        if self._task.options.batches == "generation":
            try:
                self._data("batch", self.batch_seed(jobs, 0))
            except EvaluationError as error:
                return self.all_failed(range(len(jobs)), error.failure)
        calls = [range(start, min(start + size, len(jobs))) for start in range(0, len(jobs), size)]
        return joined(
            [scores for rows in calls for scores in self._scored(population, jobs, rows, poll)]
        )

    def _scored(
        self, population: Population, jobs: Jobs, rows: range, poll: Poll
    ) -> Iterator[Scores]:
        """Yield the results of at most `jobs_per_call` jobs.

        If their call fails, they are scored in parts.
        """
        for part, result in in_parts(
            rows, lambda part: self._score_call(population, jobs, part, poll)
        ):
            yield self.all_failed(part, result) if isinstance(result, Failure) else result

    def _score_call(self, population: Population, jobs: Jobs, rows: range, poll: Poll) -> Scores:
        """Return the results of these jobs in one call.

        Raises:
            EvaluationError: it fails, or a batch does.
        """
        from hpc_es.tasks.model.jax_model import candidates_on_device, on_device, stacked_batches

        call, size, taken = (
            self._task.training_call(),
            self._task.jobs_per_call,
            slice(rows.start, rows.stop),
        )
        if self._task.options.batches == "pair":
            seeds = [self.batch_seed(jobs, group) for group in jobs.groups[taken]]
            drawn = {seed: self._task.model.data("batch", seed) for seed in dict.fromkeys(seeds)}
            batch = stacked_batches([drawn[seed] for seed in seeds], size)
        else:
            batch = self._data("batch", self.batch_seed(jobs, 0))
        if call.matrices:
            centre, own = candidate_parts(population, population.layout, call.matrices)
            common = {name: on_device(part) for name, part in centre.items()}
            parts = {name: on_device(part[taken], size) for name, part in own.items()}
        else:
            common, parts = {}, candidates_on_device(population, rows, size)
        poll()
        fitness, metrics = call.compute(parts, batch, poll, common)
        return Scores(fitness[: len(rows)], metrics[: len(rows)])

    def _score_singly(self, population: Population, jobs: Jobs, poll: Poll) -> Scores:
        """Return the results of evaluations or probes, in a call and with a batch for each job."""
        return joined([self._score_alone(population, jobs, row, poll) for row in range(len(jobs))])

    def _score_alone(self, population: Population, jobs: Jobs, row: int, poll: Poll) -> Scores:
        from hpc_es.tasks.model.jax_model import on_device

        source = self._task.model.evaluation_source if jobs.purpose == "evaluate" else "batch"
        call = self._task.single_call(source)
        try:
            batch = self._data(source, self.batch_seed(jobs, jobs.groups[row]))
            parts = {
                name: on_device(part) for name, part in self._candidate(population, row).items()
            }
            fitness, metrics = call.compute(parts, batch, poll)
        except EvaluationError as error:
            return self.all_failed(range(row, row + 1), error.failure)
        return Scores(fitness[np.newaxis], metrics[np.newaxis])

    def _candidate(self, population: Population, row: int) -> Mapping[str, Array]:
        """Return one candidate by name, float32[*shape], without a copy if it is a centre."""
        if isinstance(population, Perturbed) and not len(population.directions):
            centre = 0 if population.centre_of is None else int(population.centre_of[row])
            return self.layout.split(population.centres[centre])
        return {name: population.part(name)[row] for name in self.layout.shapes}

    def _data(self, source: Source, seed: int) -> Tree:
        """Return a batch, which is kept until another one is needed."""
        if self._cached is None or self._cached[0] != (source, seed):
            self._cached = None  # frees memory
            self._cached = (source, seed), self._task.model.data(source, seed)
        return self._cached[1]

    # The start of a run, and --check.

    def open(self, run: RunContext) -> None:
        """Compile, one rank per node before the others, which read the cache.

        Raises RunError if this rank has other parameters or batches than rank 0, as with files in
        the order of a directory.
        """
        self._needs_initial = not run.is_state_replaced
        model = self._task.model
        batches = "".join(model.data_digest(source, 0) for source in model.sources)
        for what, text in (("parameters", model.layout_digest()), ("batches", batches)):
            if run.call_on_rank_0(lambda text=text: text) != text:  # type: ignore[misc]
                raise RunError(
                    f"{KEY}: rank {run.rank} has other {what} than rank 0: expected "
                    f"{model.name} to give every rank the same, for example with files and "
                    "keys in a fixed order"
                )
        if self._task.options.compilation_cache:
            jax_setup.use_cache(run.call_on_rank_0(lambda: jax_setup.prepare_cache(run.directory)))
        jax_setup.compile_in_turn(run, self._compile)

    def _compile(self) -> None:
        for call in (
            self._task.training_call(),
            self._task.single_call(self._task.model.evaluation_source),
        ):
            call.compile(lambda: None)

    def environment_info(self) -> Mapping[str, Json]:
        """Return the device, XLA's flags and the number of candidates per call.

        Results depend on them.
        """
        return {
            "compiled_for": {
                **jax_setup.compilation_info(),
                "jobs_per_call": self._task.jobs_per_call,
            },
        }

    def check(self) -> None:
        """Compare calls of the user's functions, and compile.

        Raises:
            ConfigError: they differ, fail or need too much memory.
        """
        call = self._task.training_call()
        single = self._task.single_call(self._task.model.evaluation_source)
        try:
            self._require_memory(call, call.argument_bytes, 4 * self.layout.size)
            self._require_same_batches()
            call.trace()
            for one in (call, single):
                self._require_memory(
                    one, one.total_bytes(self._announcing("compilation")), 4 * self.layout.size
                )
            self._require_deterministic_score()
        except RunError as error:  # of `Model.data`
            raise ConfigError([(KEY, str(error))]) from error
        self._require_same_model()

    def _require_same_batches(self) -> None:
        model = self._task.model
        for source in model.sources:
            for seed in CHECKED_SEEDS:
                first, second = (model.data_digest(source, seed) for _ in range(2))
                if first != second:
                    raise ConfigError(
                        [
                            (
                                KEY,
                                f"two calls of {source}({seed}) of {model.name} differ: expected "
                                "random numbers from the seed only, such as np.random.default_rng(seed)",
                            )
                        ]
                    )

    def _require_deterministic_score(self) -> None:
        """Score the initial parameters in two calls, which are traced and compiled separately."""
        from hpc_es.tasks.model.jax_model import ScoreCall, not_finite_text, sized_text

        model = self._task.model
        source = model.evaluation_source
        parts = self.layout.split(self.initial(self._keys.generator(Purpose.INITIAL_PARAMETERS)))
        batch = model.data(source, 0)
        calls = self._task.single_call(source), ScoreCall(model, source, None)
        poll = self._announcing(
            f"two calls of score, which need {bytes_text(calls[0].total_bytes())} each,"
        )
        (first, metrics), (second, others) = (call.compute(parts, batch, poll) for call in calls)
        if not np.isfinite(first):
            text = f"expected a finite score of the initial parameters, found {first} on {source}(0) of {model.name}, "
            cause = not_finite_text({"parameters": parts, source: batch})
            remedy = (
                f"correct them: {cause}"
                if cause
                else "look for overflow, division by 0 and logarithms in score"
            )
            raise ConfigError([(KEY, f"{text}{sized_text(model.shapes(source))}: {remedy}")])
        if first != second or not np.array_equal(metrics, others, equal_nan=True):
            text = f"two calls of score of {model.name} with the same arguments return {first:.9g} and {second:.9g}"
            if first == second:
                text = f"two calls of score of {model.name} with the same arguments return other metrics"
            raise ConfigError(
                [(KEY, f"{text}: expected no random numbers, unless from a key in the batch")]
            )

    def _announcing(self, what: str) -> Poll:
        """Return a function that says once that something takes longer than ANNOUNCED_SECONDS."""
        since, is_announced = time.perf_counter(), False

        def poll() -> None:
            nonlocal is_announced
            if not is_announced and time.perf_counter() - since > ANNOUNCED_SECONDS:
                is_announced = True
                say_error(
                    f"{self._task.name}: {what} took more than {ANNOUNCED_SECONDS:g} s so far\n"
                )

        return poll

    def check_memory(self, state: Mapping[str, Array]) -> None:
        """Raise ConfigError if the arrays of a state and a call need more memory than there is."""
        call = self._task.training_call()
        self._require_memory(
            call, call.total_bytes(), sum(array.nbytes for array in state.values())
        )

    def _require_memory(self, call: ScoreCall, needed: int, state: int) -> None:
        """Raise ConfigError if a rank needs too much memory for a call and the search's state.

        Both are in bytes. On a GPU the state is in the memory of the machine. GPUs of other nodes
        are not checked.
        """
        from hpc_es.tasks.model.jax_model import device_memory

        machine_has, device_has = machine.memory_bytes(), device_memory()
        jobs, theta = call.jobs or 1, 4 * self.layout.size
        texts = [f"parameters float32[{self.layout.size}] {bytes_text(theta)}"]
        texts += (
            [f"other arrays of the search {bytes_text(state - theta)}"] if state > theta else []
        )
        if state > machine_has:
            raise ConfigError(
                [
                    (
                        KEY,
                        "expected a search that fits the memory of this machine, "
                        f"{bytes_text(machine_has)}, found {', '.join(texts)}: choose a smaller model, "
                        "or an optimizer with fewer arrays, such as sgd",
                    )
                ]
            )
        if device_has is None and jax_setup.configured_kind() != "cpu":
            return
        has = machine_has - state if device_has is None else device_has
        if needed <= has:
            return
        texts = texts if device_has is None else []
        candidates = "one candidate" if jobs == 1 else f"{jobs} candidates"
        texts.append(f"a call of {candidates} with its intermediate arrays {bytes_text(needed)}")
        if needed > call.argument_bytes:
            texts.append(f"the largest of them {call.largest_array()}")
        what = f"memory of the {'machine' if device_has is None else 'device'}, {bytes_text(device_has or machine_has)}"
        possible = int(jobs * has / needed)
        remedy = f"try {possible}" if possible else "choose a smaller model or batch, or noise.rank"
        text = f"expected a call that fits the {what}, found {', '.join(texts)}: {remedy}"
        if call.jobs is None:
            raise ConfigError([(KEY, text)])
        raise ConfigError([("task.jobs_per_call", f"is {jobs}: {text}")])

    def _require_same_model(self) -> None:
        """Raise ConfigError if a second call of the user's function returns another model."""
        seed = 1
        if self._task.created().digest(seed) != self._task.model.digest(seed):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{self._task.name} returns other parameters or batches when it is called "
                        "again, as every rank does: expected random numbers from a fixed seed, and "
                        "parameters from a function of a seed",
                    )
                ]
            )


def offers(options: Options) -> Offers:
    """Return the capabilities under these options."""
    offered = replace(OFFERS, quantities=declared(options))
    if options.call == "compiled":
        return offered
    return replace(
        offered, compiled=False, automatic_sizes=False, may_use_device=True, any_chunks=True
    )


def sources(section: ConfigData, directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the module of the model, which is not imported."""
    name = str(section.get("model", ""))
    return {name: source_hash(name)}


def build(
    options: Options, repetition: int = 0, info: Mapping[str, Reduction] = NO_NUMBERS
) -> ModelTask | EngineTask:
    """Return the task; `info` has the numbers of `score` that become metrics."""
    if options.call == "each":
        return EngineTask(options, tuple(info))
    return ModelTask(options, tuple(info))
