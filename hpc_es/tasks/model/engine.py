"""`task: {kind: model, call: each}`: engines, into which one candidate after the other is written.

An engine is anything with named parameters and a score in Python: a model of PyTorch, a server for
text generation, a simulator. `make(**model_kwargs)` returns an object with these methods:

| method | meaning |
|---|---|
| `parameters()` | weights by name: NumPy arrays, or what has `shape`, `dtype`, `__array__` |
| `load(name, array)` | writes float32[*shape] into the weight, which the engine casts and copies |
| `score(batch)` | the fitness of the loaded weights, or a pair of it and a dict of numbers |
| `batch(seed)` | what `score` gets, any object; it follows from the seed |
| `validation(seed)` or `validation()` | optional: the batches of evaluations |
| `constants()` | optional: weights by name that are not searched, as in `parameters()` |

Every candidate is computed from the search's float32 vector and its key, and written part by part:
nothing is restored by subtraction, so rounding in the engine never accumulates, and the candidate
does not depend on those before it. Ranks exchange rows.

The weights of the first state are named by their SHA-256, `base_sha256`. A resumed run refuses
others.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import numbers
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from hpc_es.core import machine
from hpc_es.core.data import Array, ConfigData, Float32, Jobs, Json, Poll, aligned_empty
from hpc_es.core.declarations import Searched
from hpc_es.core.errors import (
    ConfigError,
    Failure,
    RunError,
    failure_from_error,
    nearest,
    require_users,
)
from hpc_es.core.interfaces import BASE_HASH, CallMemory, RunContext
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.machine import bytes_text
from hpc_es.core.policy import Policy
from hpc_es.core.population import Explicit, Layout, Perturbed, Population, unperturbed
from hpc_es.tasks.model.quantities import ModelQuantities, ModelQuantityOptions
from hpc_es.tasks.model.scored import ScoredProblem, Scores, joined
from hpc_es.tasks.model.user_function import KEY, call_of_user, prepare_libraries
from hpc_es.tasks.timeouts import Watch

REQUIRED = ("parameters", "load", "score", "batch")
OPTIONAL = ("validation", "constants")
DOCS = "docs/guides/models.md"
FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes of an element
CHECKED_SEEDS = (0, 1, 2)  # of batches that --check compares
Source = Literal["batch", "validation"]
NOTHING_ASKED: Mapping[str, str] = {}


class Engine:
    """An engine of the user.

    `metrics` are the names of the numbers beside the score, with the option that asks for each.
    """

    def __init__(self, created: Any, name: str, metrics: Mapping[str, str] = NOTHING_ASKED) -> None:
        """Raise ConfigError if `created`, the result of the function `name`, is no engine."""
        members = _members(created, name)
        self.created, self.name = created, name
        self.metrics, self._asked = tuple(metrics), metrics
        self._parameters, self._constants = members["parameters"], members["constants"]
        self._load, self._score = members["load"], members["score"]
        self._batches: dict[Source, Callable[..., Any]] = {"batch": members["batch"]}
        self.has_fixed_validation = False
        if members["validation"] is not None:
            self._batches["validation"] = members["validation"]
            self.has_fixed_validation = not inspect.signature(members["validation"]).parameters
        self.forms = self._forms()
        self.layout = Layout({path: shape for path, (_, shape) in self.forms.items()})
        self.is_first = True  # whether the engine has its first weights

    def _forms(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype and shape of each weight; ConfigError if one cannot be searched."""
        found = _called(self._parameters, f"parameters() of {self.name}")
        if not isinstance(found, Mapping) or not found:
            text = f"expected parameters() of {self.name} to return a dict of arrays by name"
            what = "an empty one" if isinstance(found, Mapping) else type(found).__name__
            raise ConfigError([(KEY, f"{text}, found {what}")])
        forms = {}
        for path, value in found.items():
            if not isinstance(path, str) or not hasattr(value, "shape"):
                raise ConfigError(
                    [
                        (
                            KEY,
                            f"expected parameters() of {self.name} to return arrays by name, found "
                            f"{type(value).__name__} as {path!r}",
                        )
                    ]
                )
            dtype, shape = _dtype_name(value.dtype), tuple(map(int, value.shape))
            if dtype not in FLOATS:
                raise ConfigError(
                    [
                        (
                            KEY,
                            f"the parameter {path!r} of {self.name} is {dtype}{list(shape)}: expected "
                            f"{', '.join(FLOATS)}; if it is not searched, return it by constants(), "
                            "or leave it out",
                        )
                    ]
                )
            forms[path] = dtype, shape
        return forms

    @property
    def sources(self) -> tuple[Source, ...]:
        """The functions that batches come from."""
        return tuple(self._batches)

    @property
    def evaluation_source(self) -> Source:
        """The function that the batches of evaluations come from."""
        return self.sources[-1]

    @property
    def bytes(self) -> int:
        """Bytes of the weights in the engine."""
        return sum(FLOATS[dtype] * math.prod(shape) for dtype, shape in self.forms.values())

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest weight in float32, of which some copies exist for a moment."""
        return max(4 * math.prod(shape) for _, shape in self.forms.values())

    def require_same_forms(self) -> None:
        """Raise ConfigError if shapes or dtypes have changed."""
        now = self._forms()
        if now == self.forms:
            return
        different = [
            path for path in {**self.forms, **now} if self.forms.get(path) != now.get(path)
        ]
        path = different[0]
        before, after = (
            "missing" if path not in forms else f"{forms[path][0]}{list(forms[path][1])}"
            for forms in (self.forms, now)
        )
        raise ConfigError(
            [
                (
                    KEY,
                    f"the parameter {path!r} of {self.name} was {before} and is now {after}: expected "
                    "parameters() with the same names and shapes",
                )
            ]
        )

    def first_weights(self) -> Float32:
        """Return the weights that the engine was made with, float32[layout.size]."""
        assert self.is_first
        arrays = self._parameters()
        theta = aligned_empty((self.layout.size,), np.float32)
        for path, part in self.layout.split(theta).items():
            part[...] = np.asarray(arrays[path], np.float32)
        return theta

    @cached_property
    def base_sha256(self) -> str:
        """The SHA-256 of the first weights and the constants, by name, in hexadecimal."""
        assert self.is_first
        total = hashlib.sha256()
        constants = {} if self._constants is None else self._constants()
        for arrays in (self._parameters(), constants):
            for path, value in arrays.items():
                form = f"{path} {_dtype_name(value.dtype)}{list(map(int, value.shape))}\n"
                total.update(form.encode())
                is_float = _dtype_name(value.dtype) in FLOATS
                array = np.asarray(value, np.float32) if is_float else np.asarray(value)
                total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return total.hexdigest()

    def write(self, population: Population) -> None:
        """Write the only candidate of a population into the engine, one weight after the other."""
        self.is_first = False
        for path, shape in self.layout.shapes.items():
            part = population.part(path)[0]
            # an engine may keep the array
            part = part.copy() if isinstance(population, Explicit) else part
            assert part.shape == shape
            self._load(path, np.asarray(part, np.float32))

    def data(self, source: Source, seed: int) -> Any:
        """Return a batch of the user's function."""
        arguments = () if source == "validation" and self.has_fixed_validation else (seed,)
        random.seed(seed)  # for functions that draw from the global generators
        np.random.seed(seed)
        return self._batches[source](*arguments)

    def scored(self, batch: Any) -> tuple[float, list[float]]:
        """Return the score and the metrics of the loaded weights.

        Raises:
            ConfigError: they are not numbers.
        """
        result = self._score(batch)
        is_pair = isinstance(result, tuple) and len(result) == 2
        score, metrics = result if is_pair else (result, {})
        expected = f"expected score of {self.name} to return a number, or a number and a dict"
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{expected}, found a pair with {type(metrics).__name__} as the second item",
                    )
                ]
            )
        number = _number(score)
        if number is None:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{expected}, found {_described(score)}: take its mean, or count what is right",
                    )
                ]
            )
        values = []
        for name in self.metrics:
            if name not in metrics:
                has = ", ".join(map(repr, metrics)) or "none"
                raise ConfigError(
                    [
                        (
                            self._asked[name],
                            f"has {name!r}, which score of {self.name} does not return (it returns: "
                            f"{has}){nearest(name, metrics)}",
                        )
                    ]
                )
            value = _number(metrics[name])
            if value is None:
                raise ConfigError(
                    [(KEY, f"{expected} of numbers, found {_described(metrics[name])} as {name!r}")]
                )
            values.append(value)
        return number, values


def _members(created: Any, name: str) -> dict[str, Any]:
    """Return the methods of what the user's function returns; ConfigError if one is missing."""
    known = (*REQUIRED, *OPTIONAL)
    is_dict = isinstance(created, Mapping)
    members = {key: created.get(key) if is_dict else getattr(created, key, None) for key in known}
    lacking = [key for key in REQUIRED if not callable(members[key])]
    wrong = [key for key in OPTIONAL if members[key] is not None and not callable(members[key])]
    if lacking or wrong:
        raise ConfigError(
            [
                (
                    KEY,
                    f"expected {name} to return an engine with the methods {', '.join(REQUIRED)}, "
                    f"found {type(created).__name__} without {' and '.join([*lacking, *wrong])}: write "
                    "them; TorchEngine and HuggingFaceEngine of "
                    f"hpc_es.extend.engines have them ({DOCS})",
                )
            ]
        )
    return members


def _called(function: Callable[[], Any], what: str) -> Any:
    try:
        return function()
    except Exception as error:  # of the user's code
        raise ConfigError([(KEY, f"{what} fails: {failure_from_error(error).text}")]) from error


def _dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of NumPy, PyTorch or JAX, such as "bfloat16"."""
    return str(dtype).rpartition(".")[2]


def _number(value: Any) -> float | None:
    """Return a number, or an array or tensor of one, as float; None if it is something else."""
    if isinstance(value, numbers.Real):
        return float(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        item = value.item()
        return float(item) if isinstance(item, numbers.Real) else None
    return None


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return kind if shape is None else f"{kind} of shape {list(shape)}"


def content_digest(value: Any) -> str:
    """Return the SHA-256 of a batch of plain data and arrays, in hexadecimal.

    Of other objects only the type counts.
    """
    total = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, Mapping):
            total.update(f"dict {len(item)}\n".encode())
            for pair in item.items():
                add(pair)
        elif isinstance(item, list | tuple):
            total.update(f"list {len(item)}\n".encode())
            for one in item:
                add(one)
        elif item is None or isinstance(item, str | bytes | numbers.Number):
            total.update(f"{item!r}\n".encode())
        elif hasattr(item, "__array__"):
            array = np.asarray(item)
            total.update(f"{array.dtype}{array.shape}\n".encode())
            is_plain = array.dtype.kind != "O"
            total.update(np.ascontiguousarray(array).tobytes() if is_plain else b"")
        else:
            total.update(f"{type(item).__qualname__}\n".encode())

    add(value)
    return total.hexdigest()


class EngineOptions(Protocol):
    """The options of the task that engines use; see `hpc_es.tasks.model.task.Options`."""

    model: str
    model_kwargs: ConfigData
    batches: Literal["generation", "pair"]
    on_failed_evaluation: Literal["drop", "abort"]


class EngineTask:
    """The task. It keeps the engine."""

    spaces = None

    def __init__(self, options: Any, info: Sequence[str] = ()) -> None:
        """Raise ConfigError if the function fails, or returns no engine.

        `info` are numbers that `score` returns.
        """
        assert isinstance(options, ModelQuantityOptions)
        self.options: EngineOptions = options  # type: ignore[assignment]
        self.name: str = self.options.model
        self.info, self.quantities = tuple(info), ModelQuantities.of(options)
        self.aborts = self.options.on_failed_evaluation == "abort"
        self.model = self.created()

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the numbers beside the score."""
        return self.model.metrics

    def created(self) -> Engine:
        """Return the engine of a new call of the user's function."""
        prepare_libraries()
        asked = {**self.quantities.asked, **dict.fromkeys(self.info, "report.info")}
        return Engine(call_of_user(self.name, self.options.model_kwargs), self.name, asked)

    def create_again(self) -> None:
        """Replace the engine, after the old one is freed, by that of a new call."""
        del self.model
        self.model = self.created()

    def problem(
        self, searched: Searched, policy: Policy | None, keys: Keys, unit: int
    ) -> EngineProblem:
        """Return the problem of maximising the score."""
        return EngineProblem(self, keys)

    def restored(self, theta: Float32) -> Any:
        """Return the user's engine with the weights theta, float32[size]."""
        self.model.write(unperturbed(self.model.layout, theta, 1))
        return self.model.created

    def use_what_is_compiled(self, checkpoint: Path) -> None:
        """Do nothing: nothing is compiled."""

    @property
    def check_lines(self) -> Sequence[str]:
        """Lines of --check about parameters and memory."""
        model = self.model
        dtypes = ", ".join(dict.fromkeys(dtype for dtype, _ in model.forms.values()))
        return [
            (
                f"engine {self.name}: {model.layout.size:,} parameters in {len(model.forms)} "
                f"arrays ({dtypes}, {bytes_text(model.bytes)})"
            ),
            f"base weights SHA-256 {self._base}",
        ]

    @cached_property
    def _base(self) -> str:
        if not self.model.is_first:
            self.create_again()
        return self.model.base_sha256

    def close(self) -> None:
        """Close the engine, if it has a method for it."""
        close = getattr(self.model.created, "close", None)
        if callable(close):
            close()


class EngineProblem(ScoredProblem):
    """The search for the weights of an engine with the highest score.

    Candidates are written and scored one at a time, so results do not depend on the chunks.
    """

    cutting = "one by one"

    def __init__(self, task: EngineTask, keys: Keys) -> None:
        super().__init__(task, keys, task.model.layout)
        self._task = task
        self.evaluation_episodes = 1 if task.model.has_fixed_validation else None
        self._cached: tuple[tuple[Source, int], Any] | None = None  # the last batch

    @property
    def _engine(self) -> Engine:
        return self._task.model

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return the weights that the engine was made with.

        It is made again if candidates have been written.
        """
        self._require_memory(4 * self.layout.size)
        if not self._engine.is_first:
            self._task.create_again()
        return self._engine.first_weights()

    # Evaluation.

    def scores(self, population: Population, jobs: Jobs, poll: Poll) -> Scores:
        """Write and score one candidate after the other."""
        written: int | None = None  # the centre in the engine
        found = []
        with Watch(poll=poll) as watch:
            score = watch.timed(0, self._scored_once)
            for row in range(len(jobs)):
                watch.restart(0)
                centre = self._centre(population, row)
                candidate = population.only(row) if centre is None or centre != written else None
                written = centre
                result = self._try(score, candidate, self._source(jobs), self._seed(jobs, row))
                if isinstance(result, Failure):
                    written = None
                    found.append(self.all_failed(range(row, row + 1), result))
                else:
                    number, metrics = result
                    found.append(Scores(np.array([number]), np.array([metrics], np.float64)))
                poll()
        return joined(found)

    def _centre(self, population: Population, row: int) -> int | None:
        """Return the index of the centre that a job evaluates; None if it is perturbed."""
        if not isinstance(population, Perturbed) or len(population.directions):
            return None
        return 0 if population.centre_of is None else int(population.centre_of[row])

    def _source(self, jobs: Jobs) -> Source:
        return self._engine.evaluation_source if jobs.purpose == "evaluate" else "batch"

    def _seed(self, jobs: Jobs, row: int) -> int:
        is_shared = jobs.purpose == "train" and self._task.options.batches == "generation"
        return self.batch_seed(jobs, 0 if is_shared else jobs.groups[row])

    def _try(
        self,
        score: Callable[[Population | None, Source, int], tuple[float, list[float]]],
        candidate: Population | None,
        source: Source,
        seed: int,
    ) -> tuple[float, list[float]] | Failure:
        try:
            return score(candidate, source, seed)
        except BaseException as error:
            require_users(error)
            return failure_from_error(error)

    def _scored_once(
        self, candidate: Population | None, source: Source, seed: int
    ) -> tuple[float, list[float]]:
        """Return the results of a candidate, or of the weights that the engine has."""
        if self._cached is None or self._cached[0] != (source, seed):
            self._cached = None  # frees memory
            self._cached = (source, seed), self._engine.data(source, seed)
        if candidate is not None:
            self._engine.write(candidate)
        return self._engine.scored(self._cached[1])

    # The start of a run, and --check.

    def open(self, run: RunContext) -> None:
        """Raise RunError if this rank has other weights or batches than rank 0."""
        engine = self._engine
        batches = "".join(content_digest(engine.data(source, 0)) for source in engine.sources)
        own = (
            ("parameters", str(engine.forms)),
            ("base weights", self._task._base),
            ("batches", batches),
        )
        for what, text in own:
            if run.call_on_rank_0(lambda text=text: text) != text:  # type: ignore[misc]
                raise RunError(
                    f"{KEY}: rank {run.rank} has other {what} than rank 0: expected "
                    f"{engine.name} to give every rank the same, from the same files"
                )

    def environment_info(self) -> Mapping[str, Json]:
        """Return the digest of the base weights, without which the run is not resumed."""
        return {BASE_HASH: self._task._base}

    def check(self) -> None:
        """Compare calls of the user's functions.

        Raises:
            ConfigError: they differ or fail, or the weights do not fit the memory.
        """
        self._require_memory(4 * self.layout.size)
        self._require_same_batches()
        self._require_same_score()
        self._engine.require_same_forms()
        base = self._task._base
        self._task.create_again()
        self._engine.require_same_forms()
        if self._engine.base_sha256 != base:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{self._engine.name} returns other weights when it is called again, as every "
                        "rank does: read them from files, "
                        "or draw them from a generator with a fixed seed",
                    )
                ]
            )

    def call_memory(self) -> CallMemory:
        """Return the memory of the engine's weights, and of a candidate that is written there."""
        engine = self._engine
        uncounted = "what the engine computes beside its weights, such as activations"
        total = engine.bytes + 3 * engine.largest_bytes
        return CallMemory(1, engine.bytes, total, "task.model_kwargs", uncounted)

    def check_memory(self, state: Mapping[str, Array]) -> None:
        """Raise ConfigError if the arrays of a state do not fit the memory beside the engine."""
        self._require_memory(sum(array.nbytes for array in state.values()))

    def _require_memory(self, state: int) -> None:
        """Raise ConfigError if the state, of so many bytes, and a candidate need too much memory.

        The weights of the engine are not counted: they are there, or on another device.
        """
        has, engine, theta = machine.memory_bytes(), self._engine, 4 * self.layout.size
        # a weight of the candidate, its noise, and what the engine casts
        needed = state + 3 * engine.largest_bytes
        if needed <= has:
            return
        texts = [f"parameters float32[{self.layout.size}] {bytes_text(theta)}"]
        if state > theta:
            texts.append(f"other arrays of the search {bytes_text(state - theta)}")
        texts.append(f"three copies of the largest weight {bytes_text(3 * engine.largest_bytes)}")
        raise ConfigError(
            [
                (
                    KEY,
                    f"expected a search that fits the memory of this machine, {bytes_text(has)}, found "
                    f"{', '.join(texts)}, beside the {bytes_text(engine.bytes)} of the engine: choose "
                    "a smaller model, or an optimizer with fewer arrays, such as none or sgd",
                )
            ]
        )

    def _require_same_batches(self) -> None:
        engine = self._engine
        for source in engine.sources:
            for seed in CHECKED_SEEDS:
                what = f"{source}({seed}) of {engine.name}"
                first, second = (
                    content_digest(_called(lambda s=source, n=seed: engine.data(s, n), what))  # type: ignore[misc]
                    for _ in range(2)
                )
                if first != second:
                    raise ConfigError(
                        [
                            (
                                KEY,
                                f"two calls of {what} differ: expected random numbers from the seed "
                                "only, such as np.random.default_rng(seed)",
                            )
                        ]
                    )

    def _require_same_score(self) -> None:
        """Score the first weights, again, and once more after another candidate."""
        engine = self._engine
        theta = self.initial(self._keys.generator(Purpose.INITIAL_PARAMETERS))
        centre = unperturbed(self.layout, theta, 1)
        other = unperturbed(self.layout, theta * np.float32(1.01), 1)
        source = engine.evaluation_source
        batch = engine.data(source, 0)

        def scored(population: Population | None) -> tuple[float, list[float]]:
            if population is not None:
                _called(lambda: engine.write(population), f"load of {engine.name}")
            try:
                return engine.scored(batch)
            except ConfigError:
                raise
            except Exception as error:  # of the user's code
                raise ConfigError(
                    [
                        (
                            KEY,
                            f"score of {engine.name} fails on {source}(0): "
                            f"{failure_from_error(error).text}",
                        )
                    ]
                ) from error

        first, again = scored(centre), scored(None)
        if not math.isfinite(first[0]):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"expected a finite score of the first weights, found {first[0]} on "
                        f"{source}(0) of {engine.name}: look for overflow, division by 0 and "
                        "logarithms in score, and for such weights",
                    )
                ]
            )
        name = f"score of {engine.name}"
        if not _same(first, again):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"two calls of {name} with the same weights and batch "
                        f"{_difference(first, again)}: expected no random numbers, unless from a seed "
                        "in the batch, and no memory of earlier calls",
                    )
                ]
            )
        scored(other)
        if not _same(first, back := scored(centre)):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{name} with the first weights, before and after another candidate, "
                        f"{_difference(first, back)}: expected load to replace the weight, and no "
                        "cache of what depends on it",
                    )
                ]
            )


def _same(first: tuple[float, list[float]], second: tuple[float, list[float]]) -> bool:
    return bool(np.array_equal([first[0], *first[1]], [second[0], *second[1]], equal_nan=True))


def _difference(first: tuple[float, list[float]], second: tuple[float, list[float]]) -> str:
    if first[0] == second[0]:
        return "return other metrics"
    return f"return {first[0]:.9g} and {second[0]:.9g}"
