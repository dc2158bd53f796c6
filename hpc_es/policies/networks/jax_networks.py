"""Networks in JAX: what a builder may return, as a `Network`, and their compiled calls.

Set up JAX before importing this.

| returned by the builder | parameters | memory |
|---|---|---|
| a pair of functions `(init, apply)` | `init(key)`: a tree | none |
| an object with `init`, `memory`, `apply` | `init(key)`: a tree | `memory()`: a tree |
| a flax.linen module | the collection `params` | none |
| a flax.nnx module | variables of type `nnx.Param` | none |
| an equinox module | floating-point arrays | none |
| a Keras model on the JAX backend | trainable variables | inputs after the first one |
| a `Network` | as it declares | as it declares |

Parameters are named by their path in the tree, such as "layers/0/kernel". Leaves of a tree that are
not arrays, such as activation functions, are constants.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Array, Float32, ObservationSpec, PartOps
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout
from hpc_es.core.pytorch import refuse_torch
from hpc_es.devices.jax_setup import compiling, tracing_text
from hpc_es.policies.networks.jax_convolutions import convolving_in_turn
from hpc_es.policies.networks.jax_low_rank import with_factors
from hpc_es.policies.networks.keras_networks import KerasNetwork
from hpc_es.policies.networks.network import (
    KEY,
    ONE_OBSERVATION,
    STATISTICS,
    Network,
    array_text,
    example,
    network_input,
    require_deterministic,
    require_parameters,
    require_same_network,
    require_same_outputs,
    stochastic_error,
    taking_parts,
)

EXPECTED = "a pair (init, apply) of functions, an object with init, memory and apply, or a module of flax, equinox or Keras"
WITHOUT_TORCH = f"expected {EXPECTED}; policy.backend: torch takes modules of PyTorch"
TORCH_ARRAYS = "expected NumPy or JAX arrays, such as {name: value.float().numpy() for name, value in module.state_dict().items()}"
OPS = PartOps(
    jnp.argmax,
    jnp.stack,
    jnp.reshape,
    # int64 is int32 by default
    lambda array, dtype: array.astype(jax.dtypes.canonicalize_dtype(dtype)),
)
Build = Callable[[int], Any]  # seed -> what the builder returns


@dataclass(frozen=True)
class TreeFunctions:
    """A network whose parameters are a tree."""

    init: Callable[[int], Any]  # seed -> tree of parameters
    # (tree, memory, observation) -> (outputs, memory)
    apply: Callable[[Any, Any, Any], tuple[Any, Any]]
    memory: Callable[[], Any] = tuple


class TreeNetwork:
    """A `Network` of functions of a tree."""

    backend = "jax"

    def __init__(self, functions: TreeFunctions, name: str, observations: ObservationSpec) -> None:
        """Raise ConfigError if a parameter is not floating-point.

        `name` is the builder's name in messages.
        """
        self._functions, self._name, self._observations = functions, name, observations
        leaves, self._tree = jax.tree.flatten(_call(name, "init", functions.init, 0))
        self._constants = [None if is_array(leaf) else leaf for leaf in leaves]
        arrays = named_arrays(KEY, name, jax.tree.unflatten(self._tree, leaves))
        self._dtypes = {path: array.dtype for path, array in arrays.items()}
        self.layout = Layout({path: array.shape for path, array in arrays.items()})
        self._memory = jax.tree.map(np.asarray, _call(name, "memory", functions.memory))

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return the parameters of a new tree, float32[layout.size]."""
        tree = _call(self._name, "init", self._functions.init, int(rng.integers(2**31)))
        arrays = named_arrays(KEY, self._name, tree)
        if {path: array.shape for path, array in arrays.items()} != self.layout.shapes:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{self._name} returns parameters of other names or shapes when it is called "
                        "again: expected the same for every random key",
                    )
                ]
            )
        return self.layout.join(arrays)

    def memory(self) -> Tree:
        """Return the initial memory."""
        memory: Tree = self._memory
        return memory

    def apply(
        self, parameters: Mapping[str, Array], memory: Tree, observation: Array
    ) -> tuple[Array, Tree]:
        """Apply the function to the tree, with the dtypes that the builder gave its arrays."""
        arrays = iter(
            [jnp.asarray(parameters[path]).astype(dtype) for path, dtype in self._dtypes.items()]
        )
        leaves = [next(arrays) if leaf is None else leaf for leaf in self._constants]
        outputs, after = self._functions.apply(
            jax.tree.unflatten(self._tree, leaves),
            memory,
            network_input(self._observations, observation, OPS),
        )
        refuse_torch(KEY, f"apply of {self._name}", outputs, WITHOUT_TORCH)
        return outputs, after


def is_array(leaf: Any) -> bool:
    """Return whether a leaf of a tree is an array; others, such as functions, are constants."""
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")


def named_arrays(key: str, name: str, tree: Any) -> dict[str, Any]:
    """Return the arrays of a tree by path.

    `key` and `name` are the config key and the function that the message names.

    Raises:
        ConfigError: there are none, or not all are floating-point.
    """
    refuse_torch(key, name, tree, TORCH_ARRAYS)
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays = {_path_text(path): leaf for path, leaf in paths if is_array(leaf)}
    require_parameters(key, name, arrays)
    return arrays


def _path_text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "parameters"


def _call(name: str, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user; ConfigError if it raises."""
    try:
        return function(*arguments)
    except ConfigError:
        raise
    except Exception as error:  # of the user's code
        raise ConfigError(
            [(KEY, f"{what} of {name} fails: {failure_from_error(error).text}")]
        ) from error


def _call_apply(
    name: str, observations: ObservationSpec, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call or trace a network of the user for an observation; ConfigError if it raises."""
    try:
        return function(*arguments)
    except ConfigError:
        raise
    except Exception as error:  # of the user's code
        raise ConfigError(
            [
                (
                    KEY,
                    f"apply of {name} fails for an observation {array_text(observations)}: "
                    f"{tracing_text(error)}: {ONE_OBSERVATION}",
                )
            ]
        ) from error


# Adapters


def jax_network(build: Build, name: str, observations: ObservationSpec, frozen: bool) -> Network:
    """Return the result of a builder as a `Network`; ConfigError if it is of no supported kind.

    Args:
        build: function that calls the builder, with a seed for its random numbers.
        name: name of the builder in messages.
        frozen: whether to accept what only training uses: mutable statistics as constants, dropout
            without effect.
    """
    built = build(0)
    refuse_torch(KEY, name, built, WITHOUT_TORCH)
    if all(
        hasattr(built, attribute)
        for attribute in ("layout", "backend", "initial", "memory", "apply")
    ):
        network: Network = built
        return taking_parts(network, observations, OPS)
    if _is_instance(built, "keras", "Model"):
        return KerasNetwork(build, built, name, observations, frozen)
    if all(callable(getattr(built, attribute, None)) for attribute in ("init", "memory", "apply")):
        functions = TreeFunctions(
            lambda seed: built.init(jax.random.key(seed)), built.apply, built.memory
        )
    elif _is_instance(built, "flax.linen", "Module"):
        functions = _from_linen(built, name, observations, frozen)
    elif _is_instance(built, "flax.nnx", "Module"):
        functions = _from_nnx(build, built, name, observations, frozen)
    elif _is_instance(built, "equinox", "Module"):
        functions = _from_equinox(build, built, name, frozen)
    elif isinstance(built, tuple | list) and len(built) == 2 and all(map(callable, built)):
        init, apply = built
        functions = TreeFunctions(
            lambda seed: init(jax.random.key(seed)),
            lambda tree, memory, observation: (apply(tree, observation), memory),
        )
    else:
        raise ConfigError(
            [(KEY, f"expected {name} to return {EXPECTED}, found {_type_text(built)}")]
        )
    return TreeNetwork(functions, name, observations)


def _type_text(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    return f"{kind} of length {len(value)}" if isinstance(value, tuple | list) else kind


def _is_instance(value: Any, module: str, name: str) -> bool:
    """Whether a value is an instance of a class of a module that may not have been imported."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def _from_linen(
    module: Any, name: str, observations: ObservationSpec, frozen: bool
) -> TreeFunctions:
    import flax.linen as nn

    zeros = jax.tree.map(jnp.asarray, example(observations))

    def without_dropout(method: Any, arguments: Any, keywords: Any, context: Any) -> Any:
        """Call a method of a module, unless it is dropout that is not deterministic."""
        layer, deterministic = context.module, [*arguments[1:2], keywords.get("deterministic")]
        is_dropout = isinstance(layer, nn.Dropout) and context.method_name == "__call__"
        if not is_dropout or not layer.rate or layer.deterministic or any(deterministic):
            return method(*arguments, **keywords)
        if not frozen:
            raise stochastic_error(name, "/".join(layer.path), "Dropout")
        return arguments[0]

    def init(seed: int) -> Any:
        with nn.intercept_methods(without_dropout):
            return dict(module.init(jax.random.key(seed), zeros))

    others = {
        collection: tree
        for collection, tree in _call_apply(name, observations, init, 0).items()
        if collection != "params"
    }
    if others and not frozen:
        raise ConfigError([(KEY, f"{name} has {', '.join(sorted(others))}, {STATISTICS}")])
    constants = jax.tree.map(np.asarray, others)

    def apply(tree: Any, memory: Any, observation: Any) -> tuple[Any, Any]:
        with nn.intercept_methods(without_dropout):
            return module.apply({"params": tree, **constants}, observation), memory

    return TreeFunctions(lambda seed: init(seed).get("params", {}), apply)


def _from_nnx(
    build: Build, built: Any, name: str, observations: ObservationSpec, frozen: bool
) -> TreeFunctions:
    from flax import nnx

    def split(module: Any) -> Any:
        module.eval()  # no dropout, and the statistics of BatchNorm as they are
        return nnx.split(module, nnx.Param, ...)

    for path, layer in nnx.iter_modules(built):
        rates = (getattr(layer, attribute, 0) for attribute in ("rate", "dropout_rate"))
        if not frozen and any(rates) and getattr(layer, "deterministic", True) is not True:
            raise stochastic_error(name, "/".join(map(str, path)), type(layer).__name__)
    graph, first, others = split(built)
    values = nnx.to_flat_state(others)
    statistics = [
        "/".join(map(str, path)) for path, value in values if not isinstance(value, nnx.RngState)
    ]
    if statistics and not frozen:
        raise ConfigError([(KEY, f"{name} has {', '.join(statistics)}, {STATISTICS}")])

    def init(seed: int) -> Any:
        return nnx.to_pure_dict(split(build(seed))[1])

    def apply(tree: Any, memory: Any, observation: Any) -> tuple[Any, Any]:
        state = jax.tree.map(lambda array: array, first)
        nnx.replace_by_pure_dict(state, tree)
        return nnx.merge(graph, state, others)(observation), memory

    copy = nnx.merge(
        graph, *(jax.tree.map(lambda array: array, state) for state in (first, others))
    )
    _call_apply(name, observations, copy, jax.tree.map(jnp.asarray, example(observations)))
    for (path, value), (_, after) in zip(values, nnx.to_flat_state(split(copy)[2]), strict=True):
        if any(
            one.tobytes() != other.tobytes()
            for one, other in zip(_bits(value), _bits(after), strict=True)
        ):
            changed = "/".join(map(str, path))
            does = (
                "draws random numbers" if isinstance(value, nnx.RngState) else f"changes {changed}"
            )
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{name} {does} when it acts: expected a model whose "
                        "outputs depend on its inputs only",
                    )
                ]
            )
    return TreeFunctions(init, apply)


def _bits(tree: Any) -> list[Array]:
    """Return the arrays of a tree, those of random keys as numbers."""
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(tree)]
    leaves = zip(jax.tree.leaves(tree), is_key, strict=True)
    return [np.array(jax.random.key_data(leaf) if key else leaf) for leaf, key in leaves]


def _from_equinox(build: Build, built: Any, name: str, frozen: bool) -> TreeFunctions:
    import equinox

    special = equinox.nn.Dropout | equinox.nn.StateIndex
    for path, layer in jax.tree_util.tree_flatten_with_path(
        built, is_leaf=lambda node: isinstance(node, special)
    )[0]:
        if isinstance(layer, equinox.nn.StateIndex):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{_path_text(path)!r} of {name} is state, such as that of BatchNorm, which "
                        "calls would return: expected a layer without it, such as LayerNorm",
                    )
                ]
            )
        if isinstance(layer, equinox.nn.Dropout) and layer.p and not layer.inference and not frozen:
            raise stochastic_error(name, _path_text(path), "Dropout")

    def split(module: Any) -> Any:
        return equinox.partition(equinox.nn.inference_mode(module), equinox.is_inexact_array)

    _, static = split(built)
    return TreeFunctions(
        lambda seed: split(build(seed))[0],
        lambda tree, memory, observation: (equinox.combine(tree, static)(observation), memory),
    )


# Checks


def check(
    network: Network,
    again: Network,
    name: str,
    observations: ObservationSpec,
    outputs: int,
    why: str,
) -> None:
    """Trace a network for one observation and call it twice.

    `again` is the network of a second call of the builder, which must be the same. `why` says what
    the outputs are for.

    Raises:
        ConfigError: it does not fit, or is not deterministic.
    """
    parts = {
        part: jax.ShapeDtypeStruct(shape, jnp.float32)
        for part, shape in network.layout.shapes.items()
    }
    observation = jax.ShapeDtypeStruct(observations.shape, observations.dtype)
    memory = network.memory()
    result = _call_apply(
        name, observations, jax.eval_shape, network.apply, parts, memory, observation
    )
    after = result[1]
    expected = f"expected outputs float32[{outputs}] of {name} ({why})"
    if not is_array(result[0]):
        raise ConfigError([(KEY, f"{expected}, found {_type_text(result[0])}")])
    if result[0].shape != (outputs,) or not jnp.issubdtype(result[0].dtype, jnp.floating):
        actual = array_text(result[0])
        raise ConfigError(
            [(KEY, f"{expected}, found {actual} for an observation {array_text(observations)}")]
        )
    if _memory_text(after) != _memory_text(memory):
        raise ConfigError(
            [
                (
                    KEY,
                    f"expected {name} to return a memory like its memory(), {_memory_text(memory)}, "
                    f"found {_memory_text(after)}",
                )
            ]
        )
    require_same_network(name, network, again)
    parameters = network.layout.split(network.initial(np.random.default_rng(0)))
    ones = np.ones(observations.shape, observations.dtype)
    first, second, other = (
        [
            np.asarray(leaf)
            for leaf in jax.tree.leaves(
                _call_apply(name, observations, one.apply, parameters, one.memory(), ones)
            )
        ]
        for one in (network, network, again)
    )
    require_deterministic(name, first, second)
    require_same_outputs(name, first, other)


def _memory_text(memory: Any) -> str:
    """Return the structure, shapes and dtypes of a tree as text."""
    return str(jax.tree.map(array_text, memory)).replace("'", "")


# Compiled calls


class JaxCall:
    """A network that JAX compiles on its first use, for candidates or for equal rows.

    These are `size` candidates, or rows with the same parameters. The matrices `factored` are
    common weights plus factors of each candidate, and are not formed.
    """

    def __init__(self, network: Network, size: int | None, factored: Sequence[str] = ()) -> None:
        self.size, self.layout, self.factored = size, network.layout, factored
        leaves, tree = jax.tree.flatten(network.memory())
        self.memory: Sequence[Array] = [np.asarray(leaf) for leaf in leaves]

        apply = network.apply if size is None else convolving_in_turn(network.apply)
        low_rank = with_factors(network.apply, network.layout, factored)

        def step(common: Any, parts: Any, memory: Any, observation: Any) -> tuple[Any, Any]:
            memory = jax.tree.unflatten(tree, memory)
            if factored:
                outputs, after = low_rank(common, parts, memory, observation)
            else:
                outputs, after = apply(parts, memory, observation)
            return outputs.astype(jnp.float32), jax.tree.leaves(after)

        self._step = jax.jit(jax.vmap(step, in_axes=(None, None if size is None else 0, 0, 0)))
        self._compiled = set[tuple[int, ...]]()  # shapes of observations

    def load(self, parts: Mapping[str, Float32], common: Mapping[str, Float32]) -> Any:
        own = {
            name: jnp.asarray(part[0] if self.size is None else part)
            for name, part in parts.items()
        }
        return {name: jnp.asarray(part) for name, part in common.items()}, own

    def step(
        self, parameters: Any, memory: Sequence[Any], observations: Array
    ) -> tuple[Any, Sequence[Any]]:
        result: tuple[Any, Sequence[Any]]
        if observations.shape in self._compiled:
            result = self._step(*parameters, list(memory), observations)
        else:
            with compiling():
                result = self._step(*parameters, list(memory), observations)
            self._compiled.add(observations.shape)
        return result
