"""Compiled calls in TensorFlow, and the networks of `mlp` and `lstm`.

TensorFlow is imported on first use. It gets one thread and deterministic operations unless
TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS or TF_DETERMINISTIC_OPS are set.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.core.errors import ConfigError, missing_text
from hpc_es.core.policy import Policy, Tensor, Tree
from hpc_es.core.quiet import quiet_stderr
from hpc_es.devices.backend import warn_of_use
from hpc_es.devices.tensorflow_setup import import_tensorflow
from hpc_es.policies.networks.layers import (
    Normalisation,
    TensorFlowOps,
    dense,
    lstm_step,
    tensorflow_activation,
)
from hpc_es.policies.networks.network import Network


@functools.cache
def tensorflow() -> ModuleType:
    """Import and configure TensorFlow; ConfigError if it is not installed."""
    if text := missing_text("tensorflow"):
        raise ConfigError(
            [("policy.backend", f"is tensorflow, which needs {text}, or choose numpy")]
        )
    tf: ModuleType = import_tensorflow()
    threading = tf.config.threading
    try:
        if (
            "TF_NUM_INTRAOP_THREADS" not in os.environ
            and not threading.get_intra_op_parallelism_threads()
        ):
            threading.set_intra_op_parallelism_threads(1)
        if (
            "TF_NUM_INTEROP_THREADS" not in os.environ
            and not threading.get_inter_op_parallelism_threads()
        ):
            threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:  # its thread pools exist
        warn_of_use("TensorFlow")
    if "TF_DETERMINISTIC_OPS" not in os.environ:
        tf.config.experimental.enable_op_determinism()
    return tf


class TensorFlowCall:
    """A network that TensorFlow compiles on its first use.

    XLA compiles it where that is possible; not for LSTM layers of Keras, nor for convolutions,
    whose kernels differ between candidates.

    Args:
        network: for one candidate and one observation.
        size: number of candidates of a call; None: all rows have the same parameters.
        factored: matrices that are common weights plus factors of each candidate. They are not
            formed.
    """

    def __init__(self, network: Network, size: int | None, factored: Sequence[str] = ()) -> None:
        self.size, self.layout, self.factored = size, network.layout, factored
        self._tf = tensorflow()
        self._step: Callable[..., Tensor] | None = None
        nest, memory = self._tf.nest, network.memory()
        self.memory: Sequence[Array] = [np.asarray(leaf) for leaf in nest.flatten(memory)]

        def step(common: Tensor, arguments: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            parameters, leaves, observation = arguments
            before = nest.pack_sequence_as(memory, leaves)
            if factored:
                from hpc_es.policies.networks.tensorflow_low_rank import (
                    apply_factored,
                    parameters_of,
                )

                weights = parameters_of(network.layout, common, parameters)
                outputs, after, _ = apply_factored(network, weights, before, observation)
            else:
                outputs, after = network.apply(parameters, before, observation)
            return self._tf.cast(outputs, self._tf.float32), nest.flatten(after)

        self._one = step

    def load(self, parts: Mapping[str, Float32], common: Mapping[str, Float32]) -> Tensor:
        own = {
            name: self._tf.constant(part[0] if self.size is None else part)
            for name, part in parts.items()
        }
        return {name: self._tf.constant(part) for name, part in common.items()}, own

    def step(
        self, parameters: Tensor, memory: Sequence[Tensor], observations: Array
    ) -> tuple[Tensor, Sequence[Tensor]]:
        tensors = [self._tf.convert_to_tensor(array) for array in (observations, *memory)]
        arguments = (*parameters, tensors[1:], tensors[0])
        if self._step is None:
            self._step = self._compiled(arguments)
        result: tuple[Tensor, Sequence[Tensor]] = self._step(*arguments)
        return result

    def _compiled(self, arguments: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """Return the step of all candidates, compiled by XLA if such a call succeeds."""

        def batch(common: Tensor, parameters: Tensor, *rows: Tensor) -> Tensor:
            if self.size is None:
                return self._tf.vectorized_map(
                    lambda row: self._one(common, (parameters, *row)), rows
                )
            return self._tf.vectorized_map(
                functools.partial(self._one, common), (parameters, *rows)
            )

        return compiled_for(self._tf, batch, *arguments)


def compiled_for(
    tf: ModuleType, function: Callable[..., Tensor], *arguments: Tensor
) -> Callable[..., Tensor]:
    """Return the function compiled by XLA if a call with these arguments succeeds.

    Otherwise it is compiled without XLA.
    """
    result: Callable[..., Tensor] = tf.function(function, jit_compile=True, autograph=False)
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # of layers that are computed in a loop
    try:
        with quiet_stderr():
            result(*arguments)
    except Exception:  # of any kind; an error of the network itself comes again in the next call
        result = tf.function(function, autograph=False)
        result(*arguments)
    finally:
        logger.setLevel(level)
    return result


class TensorFlowMLP:
    """The network of `mlp` in TensorFlow; it agrees with `MLPActor` to about 1e-6."""

    backend = "tensorflow"

    def __init__(
        self,
        policy: Policy,
        names: Sequence[str],
        activation: str,
        normalisation: Normalisation = "none",
    ) -> None:
        """Make a network with the layout and the initial parameters of `policy`.

        `names` are those of its layers, from inputs to outputs.
        """
        self.layout, self.initial = policy.layout, policy.initial
        self._names, self._activation, self._normalisation = names, activation, normalisation

    def memory(self) -> Tree:
        return ()

    def apply(
        self, parameters: Mapping[str, Tensor], memory: Tree, observation: Tensor
    ) -> tuple[Tensor, Tree]:
        tf = tensorflow()
        layers = [
            (parameters[f"{name}_kernel"], parameters.get(f"{name}_bias", 0.0))
            for name in self._names
        ]
        activate = tensorflow_activation(tf, self._activation, self._normalisation)
        outputs, _ = dense(tf.matmul, activate, layers, observation[tf.newaxis])
        return outputs[0], memory


class TensorFlowLSTM:
    """The network of `lstm` in TensorFlow; it agrees with `LSTMActor` to about 1e-6."""

    backend = "tensorflow"

    def __init__(self, policy: Policy, hidden_dims: Sequence[int]) -> None:
        """Make a network with the layout and the initial parameters of `policy`.

        `hidden_dims` has the number of units of each layer.
        """
        self.layout, self.initial = policy.layout, policy.initial
        self._hidden_dims = hidden_dims

    def memory(self) -> list[Float32]:
        """Return h and c of each layer, float32[2, units]."""
        return [np.zeros((2, units), np.float32) for units in self._hidden_dims]

    def apply(
        self, parameters: Mapping[str, Tensor], memory: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        tf = tensorflow()
        before = tuple((h_and_c[:1], h_and_c[1:]) for h_and_c in memory)
        outputs, after = lstm_step(TensorFlowOps(tf), parameters, observation[tf.newaxis], before)
        return outputs[0], [tf.concat(h_and_c, axis=0) for h_and_c in after]
