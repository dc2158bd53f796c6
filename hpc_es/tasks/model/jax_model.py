"""Models of `task: {kind: model}` in JAX: the user's function, and calls of its score.

Set up JAX before importing this. The function returns an object with these members:

| member | meaning |
|---|---|
| `parameters` | a tree of floating-point arrays, a Keras model, or a function of a seed |
| `score` | `score(parameters, batch)`: the fitness, or a pair of it and a dict of numbers |
| `batch` | `batch(seed)`: a tree of arrays, always of the same shapes |
| `validation` | optional: `validation(seed)` or `validation()`, the batches of evaluations |

`parameters` are the initial ones. The fitness is a number; higher is better. `score` is traced for
one candidate. Its first argument is a tree like `parameters`, with the dtypes of its arrays, or for
a Keras model a function that calls the model with the candidate's weights. Leaves of a tree that
are not arrays, such as activation functions, are constants.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hpc_es.core.data import ALIGNMENT, Array, Float32, Float64, Poll, aligned_empty
from hpc_es.core.errors import ConfigError, EvaluationError, RunError, failure_from_error, nearest
from hpc_es.core.machine import bytes_text, return_freed_memory
from hpc_es.core.policy import Tree
from hpc_es.core.population import Factorisation, Layout, Population, own_shapes
from hpc_es.core.pytorch import refuse_torch
from hpc_es.devices.jax_setup import in_thread, memory, tracing_text
from hpc_es.noise.portable_jax import candidates
from hpc_es.policies.network import restored_session, seed_generators
from hpc_es.policies.networks.jax_convolutions import convolving_in_turn
from hpc_es.policies.networks.jax_low_rank import formed_weights, with_factors
from hpc_es.policies.networks.jax_networks import TORCH_ARRAYS, is_array, named_arrays
from hpc_es.policies.networks.keras_networks import (
    inference_arguments,
    parameters_by_path,
    stateful_layer,
)
from hpc_es.policies.networks.network import array_text

KEY = "task.model"
WITHOUT_TORCH = (
    f"{TORCH_ARRAYS}, and a score in JAX that computes with them; or call: each, whose score may use PyTorch "
    "(docs/guides/models.md)"
)
FREED_BYTES = 1 << 24  # of initial parameters, after which freed memory is returned to the system
REQUIRED, OPTIONAL = ("parameters", "score", "batch"), ("validation",)
Source = Literal["batch", "validation"]


class Parameters(Protocol):
    """The parameters of a model by name, and what `score` gets for them."""

    layout: Layout
    # names and values, [*shape], of variables that the search does not change
    constants: Sequence[tuple[str, Array]]

    def initial(self, seed: int) -> Mapping[str, Array]:
        """Return the initial parameters by name, [*shape]."""
        ...

    def candidate(self, parts: Mapping[str, Array]) -> Any:
        """Return the first argument of `score` for parameters by name, float32[*shape]."""
        ...

    def restored(self, theta: Float32) -> Any:
        """Return the user's model with the parameters theta, float32[size].

        It is a tree of arrays or a Keras model.
        """
        ...


class TreeParameters:
    """Parameters that are a tree of arrays, named by their path, such as "layers/0/kernel"."""

    constants: Sequence[tuple[str, Array]] = ()

    def __init__(self, create: Callable[[int], Any], name: str) -> None:
        """Raise ConfigError unless the arrays are floating-point.

        `name` is that of the user's function.
        """
        self._create, self._name = create, name
        tree = create(0)
        leaves, self._tree = jax.tree.flatten(tree)
        self._constants = [None if is_array(leaf) else leaf for leaf in leaves]
        arrays = named_arrays(KEY, name, tree)
        self._dtypes = {
            path: jax.dtypes.canonicalize_dtype(array.dtype) for path, array in arrays.items()
        }
        self.layout = Layout({path: array.shape for path, array in arrays.items()})

    def initial(self, seed: int) -> Mapping[str, Array]:
        arrays = named_arrays(KEY, self._name, self._create(seed))
        if {path: array.shape for path, array in arrays.items()} != self.layout.shapes:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{self._name} returns parameters of other names or shapes for the seed {seed} "
                        "than for 0: expected the same for every seed",
                    )
                ]
            )
        return arrays

    def candidate(self, parts: Mapping[str, Array]) -> Any:
        return self._filled(
            jnp.asarray(parts[path]).astype(dtype) for path, dtype in self._dtypes.items()
        )

    def restored(self, theta: Float32) -> Any:
        parts = self.layout.split(theta)
        return self._filled(parts[path].astype(dtype) for path, dtype in self._dtypes.items())

    def _filled(self, arrays: Iterator[Any]) -> Any:
        """Return the tree with these arrays, in order."""
        return jax.tree.unflatten(
            self._tree, [next(arrays) if leaf is None else leaf for leaf in self._constants]
        )


class KerasParameters:
    """The trainable variables of a Keras model on the JAX backend.

    Its other variables are constants. Layers act as in inference: dropout has no effect, and
    statistics of BatchNorm do not change. A call that changes a variable that is not trainable, as
    with training=True, is refused: the change would be lost.
    """

    def __init__(self, create: Callable[[int], Any], name: str) -> None:
        """Raise ConfigError if the model cannot be used; `name` is that of the user's function."""
        import keras

        self._create, self._name, model = create, name, create(0)
        if keras.backend.backend() != "jax":
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{name} returns a Keras model on the backend {keras.backend.backend()}: "
                        "expected jax, which hpc_es sets unless Keras was imported before",
                    )
                ]
            )
        if not model.built:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{name} returns a Keras model without variables: "
                        f"call it once on an input in {name}",
                    )
                ]
            )
        layer = stateful_layer(model)
        if layer is not None:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"the layer {layer!r} of {name} is stateful, which compiled calls cannot keep: "
                        "expected stateful=False",
                    )
                ]
            )
        variables = {
            path: variable.value for path, variable in parameters_by_path(KEY, name, model).items()
        }
        self._model, self._dtypes = model, {path: array.dtype for path, array in variables.items()}
        self.constants: Sequence[tuple[str, Array]] = [
            (variable.path, jnp.asarray(variable.value))
            for variable in model.non_trainable_variables
        ]
        self.layout = Layout({path: tuple(array.shape) for path, array in variables.items()})
        self._training = inference_arguments(model)

    def initial(self, seed: int) -> Mapping[str, Array]:
        import keras

        variables = self._create(seed).trainable_variables
        if [tuple(variable.shape) for variable in variables] != list(self.layout.shapes.values()):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{self._name} returns a model of other shapes for the seed {seed} than for 0",
                    )
                ]
            )
        return dict(
            zip(self.layout.shapes, map(keras.ops.convert_to_numpy, variables), strict=True)
        )

    def candidate(self, parts: Mapping[str, Array]) -> Any:
        weights = [jnp.asarray(parts[path]).astype(dtype) for path, dtype in self._dtypes.items()]

        def call(*inputs: Any, **keywords: Any) -> Any:
            keywords = {**self._training, **keywords}
            constants = [array for _, array in self.constants]
            result, after = self._model.stateless_call(weights, constants, *inputs, **keywords)
            self._require_constants(after)
            return result

        return call

    def _require_constants(self, after: Sequence[Any]) -> None:
        """Raise ConfigError if a call has changed a variable that is not trainable.

        `after` are its values after the call, which JAX may trace.
        """
        for (path, before), value in zip(self.constants, after, strict=True):
            if value is before:
                continue
            action = "draws random numbers" if "seed_generator" in path else f"changes {path}"
            raise ConfigError(
                [
                    (
                        KEY,
                        f"a call of the model in score of {self._name} {action}, which compiled calls "
                        "cannot keep: expected no training=True, and layers whose outputs depend on "
                        "their inputs only",
                    )
                ]
            )

    def restored(self, theta: Float32) -> Any:
        for variable, array in zip(
            self._model.trainable_variables, self.layout.split(theta).values(), strict=True
        ):
            variable.assign(array)
        return self._model


NOTHING_ASKED: Mapping[str, str] = {}


class Model:
    """A model of the user: its parameters, their score on a batch, and the batches.

    `metrics` are the names of the numbers of `score` that calls return, with the option that asks
    for each.
    """

    def __init__(self, created: Any, name: str, metrics: Mapping[str, str] = NOTHING_ASKED) -> None:
        """Raise ConfigError if `created`, the result of the function `name`, has a wrong member."""
        members = _members(created, name)
        self.name, self.metrics, self._asked = name, tuple(metrics), metrics
        self.parameters = _parameters(members["parameters"], name)
        self.layout = self.parameters.layout
        self._score = members["score"]
        self._batches: dict[Source, Callable[..., Any]] = {"batch": members["batch"]}
        self.has_fixed_validation = False
        if members["validation"] is not None:
            self._batches["validation"] = members["validation"]
            self.has_fixed_validation = not inspect.signature(members["validation"]).parameters
        self._shapes: dict[Source, Any] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The functions that batches come from."""
        return tuple(self._batches)

    @property
    def evaluation_source(self) -> Source:
        """The function that the batches of evaluations come from."""
        return self.sources[-1]

    def initial(self, seed: int) -> Float32:
        """Return initial parameters, float32[layout.size]."""
        arrays, theta, freed = (
            dict(self.parameters.initial(seed)),
            aligned_empty((self.layout.size,), np.float32),
            0,
        )
        for name, part in self.layout.split(theta).items():
            part[...] = arrays.pop(name)  # frees memory of a large model
            freed += part.nbytes
            if freed >= FREED_BYTES:
                return_freed_memory()
                freed = 0
        return theta

    def data(self, source: Source, seed: int) -> Tree:
        """Return a batch as a tree of NumPy arrays in dtypes of JAX.

        Raises EvaluationError if the user's function fails, RunError if the batch has other shapes.
        """
        arguments = () if source == "validation" and self.has_fixed_validation else (seed,)
        try:
            batch: Tree = jax.tree.map(_numbers, self._batches[source](*arguments))
        except Exception as error:  # of the user's code
            failure = failure_from_error(error)
            text = f"{source}({seed}) of {self.name} fails: {failure.text}"
            raise EvaluationError(text, replace(failure, text=text)) from error
        shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch)
        expected = self._shapes.setdefault(source, shapes)
        if shapes != expected:
            raise RunError(
                f"{source}({seed}) of {self.name} returns {sized_text(shapes)}, but an earlier "
                f"call returned {sized_text(expected)}: expected batches of one shape, since "
                "calls are compiled: pad them, or drop an incomplete one"
            )
        return batch

    def shapes(self, source: Source) -> Any:
        """Return the shapes and dtypes of batches."""
        if source not in self._shapes:
            self.data(source, 0)
        return self._shapes[source]

    def evaluated(self, parts: Mapping[str, Array], batch: Tree) -> tuple[Array, Array]:
        """Return fitness, float32[], and metrics, float32[metrics], of parameters by name.

        JAX traces this.
        """
        fitness, metrics = self._result(self._score(self.parameters.candidate(parts), batch))
        values = [jnp.asarray(metrics[name]).astype(jnp.float32) for name in self.metrics]
        return jnp.asarray(fitness).astype(jnp.float32), jnp.stack(values) if values else jnp.zeros(
            0
        )

    def _result(self, result: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return fitness and metrics of a result of `score`.

        Raises:
            ConfigError: it is something else.
        """
        refuse_torch(
            KEY,
            f"score of {self.name}",
            result,
            "expected a number that JAX computes (docs/guides/models.md)",
        )
        fitness, metrics = (
            result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        )
        expected = (
            f"expected score of {self.name} to return a number, or a number and a dict of numbers"
        )
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{expected}, found a pair with {type(metrics).__name__} as the second item",
                    )
                ]
            )
        for what, value in (
            ("as fitness", fitness),
            *((f"as {name!r}", value) for name, value in metrics.items()),
        ):
            if not isinstance(value, int | float) and (not is_array(value) or value.shape != ()):
                actual = array_text(value) if is_array(value) else type(value).__name__
                raise ConfigError([(KEY, f"{expected}, found {actual} {what}: take its mean")])
        missing = [name for name in self.metrics if name not in metrics]
        if missing:
            has = ", ".join(map(repr, metrics)) or "none"
            raise ConfigError(
                [
                    (
                        self._asked[missing[0]],
                        f"has {missing[0]!r}, which score of {self.name} does not return (it returns: "
                        f"{has}){nearest(missing[0], metrics)}",
                    )
                ]
            )
        return fitness, metrics

    def data_digest(self, source: Source, seed: int) -> str:
        """Return the SHA-256 of a batch in hexadecimal."""
        leaves, structure = jax.tree.flatten(self.data(source, seed))
        return _digest(str(structure), leaves)

    def layout_digest(self) -> str:
        """Return the SHA-256 of the names and shapes of the parameters and of the constants."""
        return _digest(
            str(dict(self.layout.shapes)), [array for _, array in self.parameters.constants]
        )

    def digest(self, seed: int) -> str:
        """Return the SHA-256 of parameters, constants and batches.

        It compares two calls of the user's function.
        """
        constants = _digest("", [array for _, array in self.parameters.constants])
        batches = [self.data_digest(source, seed) for source in self.sources]
        arrays = [np.asarray(array) for array in self.parameters.initial(seed).values()]
        return _digest("".join([constants, *batches]), arrays)


def _digest(text: str, arrays: Sequence[Array]) -> str:
    total = hashlib.sha256(text.encode())
    for array in arrays:
        total.update(array_text(array).encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _members(created: Any, name: str) -> dict[str, Any]:
    """Return the members of what the user's function returns.

    Raises:
        ConfigError: one is missing or not callable.
    """
    expected = f"expected {name} to return a dict or an object with parameters, score and batch"
    known = (*REQUIRED, *OPTIONAL)
    if not isinstance(created, Mapping):
        refuse_torch(KEY, name, created, WITHOUT_TORCH)
        if callable(getattr(created, "load", None)):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{name} returns an engine ({type(created).__name__}), which JAX cannot "
                        "compile: set task.call: each (docs/guides/models.md)",
                    )
                ]
            )
    if isinstance(created, Mapping):
        unknown = [key for key in created if key not in known]
        if unknown:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{expected}, and optionally validation, found "
                        f"{unknown[0]!r}{nearest(str(unknown[0]), known)}",
                    )
                ]
            )
        members = {key: created.get(key) for key in known}
    else:
        members = {key: getattr(created, key, None) for key in known}
    missing = [key for key in REQUIRED if members[key] is None]
    if missing:
        raise ConfigError(
            [(KEY, f"{expected}, found {type(created).__name__} without {' and '.join(missing)}")]
        )
    for key in ("score", "batch", "validation"):
        if members[key] is not None and not callable(members[key]):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"expected {key} of {name} to be a function, found "
                        f"{type(members[key]).__name__}",
                    )
                ]
            )
    return members


def _parameters(value: Any, name: str) -> Parameters:
    """Return the parameters that a tree, a Keras model, or a function of a seed describes."""
    refuse_torch(KEY, name, value, WITHOUT_TORCH)
    leaves = jax.tree.leaves(value)
    is_function = (
        callable(value) and not _is_keras(value) and len(leaves) == 1 and leaves[0] is value
    )

    def call(seed: int) -> Any:
        if not is_function:
            return value
        with restored_session():
            seed_generators(seed)
            try:
                parameters = value(seed)
            except Exception as error:  # of the user's code
                raise ConfigError(
                    [
                        (
                            KEY,
                            f"the function parameters of {name} fails: {failure_from_error(error).text}",
                        )
                    ]
                ) from error
        refuse_torch(KEY, name, parameters, WITHOUT_TORCH)
        return parameters

    return KerasParameters(call, name) if _is_keras(call(0)) else TreeParameters(call, name)


def _is_keras(value: Any) -> bool:
    cls = getattr(sys.modules.get("keras"), "Model", None)
    return cls is not None and isinstance(value, cls)


def _numbers(leaf: Any) -> Array:
    """Return a leaf of a batch as an array in a dtype of JAX; ValueError if it has no numbers."""
    array = np.asarray(leaf)
    if array.dtype.kind in "OUSMm":
        raise ValueError(f"a batch has an array of dtype {array.dtype}: expected numbers")
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def tree_text(shapes: Any) -> str:
    """Return structure, shapes and dtypes of a batch, such as "(float32[8, 64], int32[8])"."""
    return str(jax.tree.map(array_text, shapes)).replace("'", "")


def sized_text(shapes: Any) -> str:
    """Return the text of `tree_text` and the number of bytes.

    An example is "(float32[8, 2], int32[8]) (96 bytes)".
    """
    return f"{tree_text(shapes)} ({bytes_text(tree_bytes(shapes))})"


def tree_bytes(shapes: Any) -> int:
    """Return the bytes of a tree of arrays with these shapes and dtypes."""
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def not_finite_text(tree: Any) -> str | None:
    """Describe the first array of a tree with values that are not finite.

    None if there is none.
    """
    for path, array in jax.tree_util.tree_flatten_with_path(tree)[0]:
        count = array.size - int(np.count_nonzero(np.isfinite(array)))
        if count:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return (
                f"{count:,} of {array.size:,} values of {name} {sized_text(array)} are not finite"
            )
    return None


class ScoreCall:
    """A compiled call of a model's score, for `jobs` candidates at once.

    It is for one if `jobs` is None. All candidates have one batch, or with `has_batches` each its
    own. The matrices of a factorisation are common weights plus low-rank factors of each candidate.
    `compute` compiles the call unless `compile` has.
    """

    def __init__(
        self,
        model: Model,
        source: Source,
        jobs: int | None,
        has_batches: bool = False,
        factorisation: Factorisation | None = None,
    ) -> None:
        self.jobs, self.layout = jobs, model.layout
        self.matrices: tuple[str, ...] = (
            () if factorisation is None else tuple(factorisation.matrices)
        )
        shapes, rank = model.layout.shapes, 0 if factorisation is None else factorisation.rank
        lead = () if jobs is None else (jobs,)
        self._common = {
            name: jax.ShapeDtypeStruct(shapes[name], np.float32) for name in self.matrices
        }
        own = own_shapes(model.layout, self.matrices, rank)
        self._parts = {
            name: jax.ShapeDtypeStruct((*lead, *shape), np.float32) for name, shape in own.items()
        }
        # views of theta, unless a candidate is formed
        self._in_place = self._parts if jobs is None else self._common
        self._batch = self._one_batch = model.shapes(source)
        if has_batches:
            self._batch = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype), self._batch
            )

        self._model, low_rank = model, with_factors(self._evaluated, model.layout, self.matrices)

        # a new function, so that JAX traces it again
        def score(common: Any, parts: Any, batch: Any) -> Any:
            if self.matrices:
                return low_rank(common, parts, (), batch)[0]
            return convolving_in_turn(model.evaluated)(parts, batch)

        function = (
            score
            if jobs is None
            else jax.vmap(score, in_axes=(None, 0, 0 if has_batches else None))
        )
        self._function = jax.jit(function)
        self._compiled: Any = None

    def _evaluated(self, parts: Mapping[str, Any], memory: Any, batch: Any) -> tuple[Any, Any]:
        return self._model.evaluated(parts, batch), memory

    def factored(self) -> tuple[str, ...]:
        """Return the matrices that are not formed."""
        formed = formed_weights(self._evaluated, self.layout, self.matrices, (), self._one_batch)
        return tuple(name for name in self.matrices if name not in formed)

    @property
    def argument_bytes(self) -> int:
        """Bytes of the parameters and batches of a call, beside theta."""
        return tree_bytes((self._common, self._parts, self._batch)) - self._bytes_of_theta()

    def _bytes_of_theta(self) -> int:
        """Return the bytes of the arguments that a CPU reads in theta:
        the parts at aligned addresses.
        """
        if jax.default_backend() != "cpu":
            return 0
        starts = {
            name: start * np.dtype(np.float32).itemsize
            for name, (start, _) in self.layout.spans.items()
        }
        return tree_bytes(
            [shape for name, shape in self._in_place.items() if starts[name] % ALIGNMENT == 0]
        )

    def trace(self) -> None:
        """Trace the score; ConfigError if it fails, or does not return numbers."""
        self._traced(partial(jax.eval_shape, self._function))

    def compile(self, poll: Poll) -> None:
        """Compile the call, or read it from the persistent cache; ConfigError as for `trace`."""
        if self._compiled is None:
            self._compiled = in_thread(lambda: self._traced(self._function.lower).compile(), poll)

    def _traced(self, trace: Callable[..., Any]) -> Any:
        """Return the result of a function that traces the score for these arguments.

        Raises:
            ConfigError: the score fails.
        """
        try:
            return trace(self._common, self._parts, self._batch)
        except ConfigError:
            raise
        except Exception as error:  # of the user's code
            raise ConfigError(
                [(KEY, f"score fails on a batch {tree_text(self._batch)}: {tracing_text(error)}")]
            ) from error

    def total_bytes(self, poll: Poll = lambda: None) -> int:
        """Return the bytes that the compiled call needs beside theta.

        These are arguments, results and intermediate arrays.
        """
        self.compile(poll)
        return self.memory()[1] - self._bytes_of_theta()

    def memory(self) -> tuple[int, int]:
        """Return the bytes of the compiled call's arguments, and of all its arrays."""
        arguments, total = memory(self._compiled)
        is_cpu = jax.default_backend() == "cpu"
        return arguments, total + (library_bytes(self._compiled.as_text()) if is_cpu else 0)

    def largest_array(self) -> str:
        """Return shape and bytes of the compiled call's largest array, as "f32[8,64] 2.05 kB"."""
        self.compile(lambda: None)
        largest = max(_INSTRUCTION.finditer(self._compiled.as_text()), key=_result_bytes)
        return f"{largest['shape']} {bytes_text(_result_bytes(largest))}"

    def compute(
        self,
        parts: Mapping[str, Any],
        batch: Tree,
        poll: Poll,
        common: Mapping[str, Any] | None = None,
    ) -> tuple[Float64, Float64]:
        """Return fitness and metrics, float64[jobs] and float64[jobs, metrics].

        Without `jobs` they are those of one candidate. `parts` are the parameters by name,
        float32[jobs, *shape], of NumPy or JAX; with low-rank factors they and `common` are those of
        `candidate_parts`.

        Raises:
            EvaluationError: Python code that the score calls fails.
        """
        self.compile(poll)
        arguments = [dict(common or {}), dict(parts), batch]

        def compute() -> tuple[Float64, Float64]:
            fitness, metrics = self._compiled(*arguments)
            arguments.clear()  # the thread may keep this function for a moment
            return np.asarray(fitness, np.float64), np.asarray(metrics, np.float64)

        return in_thread(compute, poll)


def on_device(part: Array, jobs: int | None = None) -> Any:
    """Return a part of some candidates, [candidates, *shape], on the device.

    It is padded to `jobs` rows with the last one. Without `jobs` it is a part of one vector,
    [*shape]. On a CPU the result has the memory of an array at an aligned address, so it must not
    be kept beyond an update, which may overwrite theta.
    """
    if jobs is not None and len(part) < jobs:
        part = part[padded(range(len(part)), jobs)]
    return jax.device_put(part).block_until_ready()


def padded(rows: range, jobs: int) -> npt.NDArray[np.intp]:
    """Return the candidates of a call, int[jobs]: these rows, then the last one again.

    Every place has a candidate that is evaluated anyway, so that Python code that a score calls
    gets no other.
    """
    return np.minimum(np.arange(rows.start, rows.start + jobs), rows.stop - 1)


def candidates_on_device(population: Population, rows: range, jobs: int) -> dict[str, Any]:
    """Return the parts of these candidates by name, [jobs, *shape], on the device, with padding.

    A GPU computes those with portable noise itself.
    """
    taken = slice(rows.start, rows.stop)
    parts = {}
    for name, (start, stop) in population.layout.spans.items():
        drawn = (
            candidates(population, jobs, start, stop) if jax.default_backend() == "gpu" else None
        )
        if drawn is None:
            parts[name] = on_device(population.part(name)[taken], jobs)
        else:
            drawn = drawn[taken] if len(rows) == jobs else drawn[padded(rows, jobs)]
            parts[name] = drawn.reshape(jobs, *population.layout.shapes[name])
    return parts


def release_arguments() -> None:
    """Free arrays that finished calls have read in place.

    JAX keeps references to them until it is called again.
    """
    gc.collect(0)  # calls a function of JAX that drops them


def stacked_batches(batches: Sequence[Tree], jobs: int) -> Tree:
    """Return the batches of some candidates as one tree of arrays [jobs, ...].

    They are padded with the last one.
    """

    def stack(*leaves: Array) -> Array:
        rows = np.empty((jobs, *leaves[0].shape), leaves[0].dtype)
        rows[: len(leaves)] = leaves
        rows[len(leaves) :] = leaves[-1]
        return rows

    stacked: Tree = jax.tree.map(stack, *batches)
    return stacked


# An instruction of a compiled program with one array as its result: "%dot.1 = f32[2,300]{1,0}
# dot(%a, %b)".
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%(?P<name>\S+) = (?P<shape>(?:pred|[a-z]+(?P<bits>\d+)\w*)\[(?P<axes>[\d,]*)\])\S* "
    r"(?P<kind>[\w-]+)\((?P<operands>[^)]*)\)",
    re.MULTILINE,
)
_COMPUTATION = re.compile(r"^%([\w.-]+) .*?\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)


def library_bytes(program: str) -> int:
    """Return the bytes that a library of XLA allocates for a product or convolution on a CPU.

    These are its result, and operands that are computed with it. JAX's analysis of memory does not
    count them. `program` is the text of the compiled program. Its parts run in turn, so the largest
    one counts.
    """
    called = set(re.findall(r"kind=kCustom, calls=%([\w.-]+)", program))
    sizes = [0]
    for name, body in _COMPUTATION.findall(program):
        if name not in called:
            continue
        results = {match["name"]: match for match in _INSTRUCTION.finditer(body)}
        products = [match for match in results.values() if match["kind"] in ("dot", "convolution")]
        operands = [
            results.get(operand)
            for match in products
            for operand in re.findall(r"%([\w.-]+)", match["operands"])
        ]
        computed = [
            match for match in operands if match is not None and match["kind"] != "parameter"
        ]
        sizes.append(sum(map(_result_bytes, [*products, *computed])))
    return max(sizes)


def _result_bytes(instruction: re.Match[str]) -> int:
    count = math.prod(int(axis) for axis in instruction["axes"].split(",") if axis)
    return count * int(instruction["bits"] or 8) // 8


def device_memory() -> int | None:
    """Return the bytes of memory of the GPU that JAX computes on; None for a CPU."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return None
    return (device.memory_stats() or {}).get("bytes_limit")
