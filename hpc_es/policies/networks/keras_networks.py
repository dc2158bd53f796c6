"""Keras models as networks, on the backend that Keras uses in this process.

A model takes [observation, *memory] and returns [outputs, *memory]; without memory one input and
one output. If the observation has parts, it is a dict or tuple of inputs. Keras is imported in
functions only, after its backend was chosen.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float32, ObservationSpec, PartOps, parts_of
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout
from hpc_es.policies.networks.keras_loading import load_model
from hpc_es.policies.networks.network import (
    KEY,
    STATISTICS,
    array_text,
    example,
    network_input,
    require_parameters,
    stochastic_error,
)

# of the states of random generators, which layers such as Dropout and LSTM have
SEED_DTYPE = "uint32"
# of layers that draw random numbers in training
RATES = ("rate", "stddev", "dropout", "recurrent_dropout")


class KerasNetwork:
    """A `Network` of a Keras model.

    Its parameters are the trainable variables, in their order and with their paths.
    """

    def __init__(
        self,
        build: Callable[[int], Any],
        model: Any,
        name: str,
        observations: ObservationSpec,
        frozen: bool,
    ) -> None:
        """Raise ConfigError if the model cannot be used.

        `build` returns it with initial weights for a seed. `frozen` accepts mutable statistics as
        constants.
        """
        import keras

        self.backend: str = keras.backend.backend()
        self._build, self._name, self._observations = build, name, observations
        self._model = self._with_variables(model)
        _refuse_state(self._model, name, frozen)
        variables = parameters_by_path(KEY, name, self._model)
        self._constants = [
            keras.ops.convert_to_numpy(variable) for variable in self._model.non_trainable_variables
        ]
        self.layout = Layout({path: tuple(variable.shape) for path, variable in variables.items()})
        self._training = inference_arguments(self._model)
        inputs = getattr(self._model, "inputs", None) or []
        parts = len(parts_of(observations))
        memory = inputs[parts or 1 :]
        self._memory = tuple(np.zeros(tensor.shape[1:], tensor.dtype) for tensor in memory)
        is_list = isinstance(getattr(self._model, "input", None), list | tuple)
        self._takes_list = bool(memory) if parts else is_list
        self._require_constant_variables()

    def _with_variables(self, model: Any) -> Any:
        """Call a model once if it has no variables yet, such as a subclassed one."""
        if not model.built:
            try:
                model(example(self._observations, (1,)))
            except Exception as error:  # of the user's code
                raise ConfigError([(KEY, self._failure_text(error))]) from error
        return model

    def _require_constant_variables(self) -> None:
        """Raise ConfigError if a call outside of training changes a variable.

        The state of a generator is one.
        """
        import keras

        weights = [variable.value for variable in self._model.trainable_variables]
        observation = np.zeros(self._observations.shape, self._observations.dtype)
        try:
            _, after = self._call(weights, [observation, *self._memory])
        except Exception as error:  # of the user's code
            raise ConfigError([(KEY, self._failure_text(error))]) from error
        for before, value, variable in zip(
            self._constants, after, self._model.non_trainable_variables, strict=True
        ):
            if keras.ops.convert_to_numpy(value).tobytes() != before.tobytes():
                does = (
                    "draws random numbers"
                    if "seed_generator" in variable.path
                    else f"changes {variable.path}"
                )
                raise ConfigError(
                    [
                        (
                            KEY,
                            f"{self._name} {does} when it acts: expected a model whose outputs depend "
                            "on its inputs only",
                        )
                    ]
                )

    def _failure_text(self, error: Exception) -> str:
        return (
            f"{self._name} fails for an observation {array_text(self._observations)}: "
            f"{failure_from_error(error).text}: expected a model of a batch of one observation"
        )

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return the weights of a newly built model, float32[layout.size]."""
        import keras

        variables = self._with_variables(self._build(int(rng.integers(2**31)))).trainable_variables
        shapes = [tuple(variable.shape) for variable in variables]
        if shapes != list(self.layout.shapes.values()):
            raise ConfigError(
                [(KEY, f"{self._name} returns a model of other shapes when it is called again")]
            )
        arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
        return self.layout.join(dict(zip(self.layout.shapes, arrays, strict=True)))

    def saved(self, path: Path) -> Float32:
        """Return the weights of a saved model, float32[layout.size].

        The model may be one that was exported, with the normalisation of observations and the
        action head.

        Raises:
            ValueError: its architecture is another one.
        """
        import keras

        variables = load_model(path, "policy.init_from").trainable_variables
        expected, shapes = (
            [*self.layout.shapes.values()],
            [tuple(variable.shape) for variable in variables],
        )
        if shapes != expected:
            raise ValueError(f"expected weights of the shapes {expected}, found {shapes}")
        return np.concatenate(
            [np.ravel(keras.ops.convert_to_numpy(variable)) for variable in variables]
        )

    def model(self, theta: Float32) -> Any:
        """Return the Keras model with the weights theta, float32[layout.size]."""
        for variable, array in zip(
            self._model.trainable_variables, self.layout.split(theta).values(), strict=True
        ):
            variable.assign(array)
        return self._model

    def called(self, model: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs and the memory of a model for [observation, *memory] of a batch."""
        result = model(inputs if self._takes_list else inputs[0], **self._training)
        return result if self._memory else [_only(result)]

    def memory(self) -> Tree:
        """Return zeros in the shapes of the further inputs."""
        return self._memory

    def apply(
        self, parameters: Mapping[str, Array], memory: Tree, observation: Array
    ) -> tuple[Array, Tree]:
        result, _ = self._call(
            [parameters[path] for path in self.layout.shapes], [observation, *memory]
        )
        if not self._memory:
            return _only(result)[0], ()
        outputs, *after = result
        return outputs[0], tuple(array[0] for array in after)

    def _call(self, weights: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, Any]:
        """Call the model without changing it, for a batch of one.

        Returns:
            Its result and its further variables.
        """
        observation, *memory = arrays
        inputs: Any = [network_input(self._observations, observation, _ops(), (1,))]
        inputs += [array[None] for array in memory]
        result: tuple[Any, Any] = self._model.stateless_call(
            weights, self._constants, inputs if self._takes_list else inputs[0], **self._training
        )
        return result


def _ops() -> PartOps:
    """Return the functions that cut vectors into parts, on any backend of Keras."""
    from keras import backend, ops

    def cast(array: Any, dtype: np.dtype[np.generic]) -> Any:
        # JAX has int32 in place of int64 by default
        is_long = dtype == np.int64 and backend.backend() == "jax"
        return ops.cast(array, "int32" if is_long else dtype.name)

    return PartOps(ops.argmax, ops.stack, ops.reshape, cast)


def _only(result: Any) -> Any:
    """Return the only output of a model, [1, outputs]."""
    if isinstance(result, Sequence) and len(result) == 1:
        return result[0]
    if isinstance(result, Sequence | Mapping):
        raise ConfigError(
            [
                (
                    KEY,
                    f"expected a model with one output, found {len(result)}: a recurrent model has an "
                    "input for each of its outputs, [observation, *memory] and [outputs, *memory]",
                )
            ]
        )
    if not hasattr(result, "shape"):
        raise ConfigError(
            [(KEY, f"expected a model that returns its outputs, found {type(result).__name__}")]
        )
    return result


def inference_arguments(model: Any) -> dict[str, bool]:
    """Return the keyword arguments of a call of a model outside of training."""
    parameters = inspect.signature(model.call).parameters.values()
    takes_training = any(
        one.name == "training" or one.kind is one.VAR_KEYWORD for one in parameters
    )
    return {"training": False} if takes_training else {}


def stateful_layer(model: Any) -> str | None:
    """Return the name of a recurrent layer that keeps its state between calls, or None."""
    import keras

    layers = (layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.RNN))
    return next((layer.name for layer in layers if layer.stateful), None)


def _refuse_state(model: Any, name: str, frozen: bool) -> None:
    """Raise ConfigError if a layer keeps state between calls, or training updates statistics."""
    layer = stateful_layer(model)
    if layer is not None:
        raise ConfigError(
            [
                (
                    KEY,
                    f"the layer {layer!r} of {name} is stateful, which compiled calls cannot keep: "
                    "expected a model with inputs [observation, *memory] and outputs [outputs, "
                    "*memory], such as LSTMCell returns",
                )
            ]
        )
    layers = model._flatten_layers()
    stochastic = [layer for layer in layers if any(_number(layer, rate) for rate in RATES)]
    if stochastic and not frozen:
        raise stochastic_error(name, stochastic[0].name, type(stochastic[0]).__name__)
    statistics = [
        variable.path
        for layer in layers
        if layer.trainable
        for variable in layer._non_trainable_variables
        if str(variable.dtype) != SEED_DTYPE
    ]
    if statistics and not frozen:
        raise ConfigError([(KEY, f"{name} has {', '.join(statistics)}, {STATISTICS}")])


def _number(layer: Any, attribute: str) -> float:
    value = getattr(layer, attribute, 0)
    return (
        float(value) if isinstance(value, int | float) and hasattr(layer, "seed_generator") else 0.0
    )


def parameters_by_path(key: str, name: str, model: Any) -> dict[str, Any]:
    """Return the trainable variables of a model by path, in their order.

    `key` and `name` are the config key and the function that the message names.

    Raises:
        ConfigError: they cannot be parameters.
    """
    variables: dict[str, Any] = {}
    for variable in model.trainable_variables:
        if variable.path in variables:
            raise ConfigError(
                [
                    (
                        key,
                        f"{name} returns a Keras model with two variables of the path "
                        f"{variable.path!r}: expected different names of layers and their weights, "
                        "since paths name the parameters",
                    )
                ]
            )
        variables[variable.path] = variable
    require_parameters(key, name, variables)
    return variables
