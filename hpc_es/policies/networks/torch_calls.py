"""Calls of networks in PyTorch for a fixed number of candidates.

A call is recorded once, as a program of tensor operations for all candidates, which later calls
repeat without the Python code of the module. Set up PyTorch before importing this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as trees

from hpc_es.core.data import Array, Float32, ObservationSpec
from hpc_es.core.errors import ConfigError
from hpc_es.core.population import own_shapes
from hpc_es.devices.torch_setup import MKL, device, multiple_of
from hpc_es.policies.networks.network import Network
from hpc_es.policies.networks.torch_functions import Factored, Functions
from hpc_es.policies.networks.torch_networks import TorchNetwork

TRIALS = 8  # of moved candidates; with `multiple_of` left out, one in three finds a difference
LEFT, RIGHT = ":left", ":right"  # suffixes of the names of factors


class OnDevice:
    """A tensor on a GPU, which NumPy copies when it asks for the array."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array: Array = self.tensor.cpu().numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __getitem__(self, index: Any) -> Array:
        array: Array = np.asarray(self)[index]
        return array


class TorchCall:
    """A network that is recorded in its first call, for candidates or for equal rows.

    These are `size` candidates, or rows with the same parameters. The matrices `factored` are
    common weights plus factors of each candidate, and are not formed.
    """

    def __init__(self, network: Network, size: int | None, factored: Sequence[str] = ()) -> None:
        self.size, self.layout, self.factored = size, network.layout, factored
        leaves, self._tree = trees.tree_flatten(network.memory())
        self.memory: Sequence[Array] = [np.asarray(leaf) for leaf in leaves]
        self._network = network
        self._own = [*own_shapes(network.layout, factored, 1)]
        self._device = device()
        self._missing = -(size or 0) % multiple_of()  # candidates that fill a call up
        # by shape and dtype of the inputs
        self._recorded: dict[Any, Callable[..., Sequence[Any]]] = {}

    def load(self, parts: Mapping[str, Float32], common: Mapping[str, Float32]) -> Any:
        own = [parts[name][0] if self.size is None else parts[name] for name in self._own]
        shared = [self._tensor(common[name]) for name in self.factored]
        tensors = [self._tensor(array) for array in own]
        return [*shared, *(tensors if self.size is None else map(self._filled, tensors))]

    def step(
        self, parameters: Any, memory: Sequence[Any], observations: Array
    ) -> tuple[Any, Sequence[Any]]:
        rows = map(self._filled, map(self._tensor, (observations, *memory)))
        inputs = [*parameters, *rows]
        key = tuple((tensor.shape, tensor.dtype) for tensor in inputs[len(parameters) :])
        with torch.no_grad():
            if key not in self._recorded:
                self._recorded[key] = self._record(inputs)
            outputs, *after = (tensor[: self.size] for tensor in self._recorded[key](*inputs))
        if self._device.type == "cpu":
            return outputs, after
        return OnDevice(outputs), [OnDevice(leaf) for leaf in after]

    def _tensor(self, array: Any) -> Any:
        if isinstance(array, torch.Tensor):
            return array
        if isinstance(array, OnDevice):
            return array.tensor
        # a copy if it cannot be written, which PyTorch requires
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self._device)

    def _filled(self, tensor: Any) -> Any:
        """Return the rows of all candidates of a call, with copies of the last one."""
        if not self._missing:
            return tensor
        return torch.cat([tensor, tensor[-1:].expand(self._missing, *tensor.shape[1:])])

    def _record(self, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        """Return the program of all candidates; ConfigError if bits depend on places in a call."""
        if isinstance(self._network, TorchNetwork):
            self._network.module.to(self._device)
            with self._network.failures():
                recorded = make_fx(self._batched)(*inputs)
        else:
            recorded = make_fx(self._batched)(*inputs)
        program: Callable[..., Sequence[Any]] = recorded.forward
        if self.size is not None:
            self._require_same_bits(program, inputs)
        return program

    def _batched(self, *inputs: Any) -> list[Any]:
        """Return the outputs and the leaves of the next memory of all candidates."""
        shared, own = len(self.factored), None if self.size is None else 0
        parts = len(self._own)
        places = [None] * shared + [own] * parts + [0] * (len(inputs) - shared - parts)
        results: list[Any] = torch.func.vmap(self._one, in_dims=tuple(places))(*inputs)
        return results

    def _one(self, *inputs: Any) -> list[Any]:
        """Return the same of one candidate."""
        shared, parts = len(self.factored), len(self._own)
        own = dict(zip(self._own, inputs[shared : shared + parts], strict=True))
        observation, *leaves = inputs[shared + parts :]
        memory = trees.tree_unflatten(leaves, self._tree)
        common = dict(zip(self.factored, inputs[:shared], strict=True))
        outputs, after, _ = apply_factored(self._network, common, own, memory, observation)
        return [outputs.float(), *trees.tree_leaves(after)]

    def _require_same_bits(
        self, program: Callable[..., Sequence[Any]], inputs: Sequence[Any]
    ) -> None:
        """Raise ConfigError if the candidates in other places have results of other bits."""
        assert self.size is not None
        shared, rng = len(self.factored), np.random.default_rng(0)
        for trial in range(TRIALS):
            rows = [_normal(tensor, rng) if trial else tensor for tensor in inputs[shared:]]
            moved = [tensor.roll(1 + trial, 0) for tensor in rows]
            results = zip(
                program(*inputs[:shared], *rows), program(*inputs[:shared], *moved), strict=True
            )
            if not all(_same_bits(one.roll(1 + trial, 0), other) for one, other in results):
                raise _place_error(self.size)


def _normal(tensor: Any, rng: np.random.Generator) -> Any:
    """Return normal random numbers in place of a tensor of real numbers, or a whole one itself."""
    if not tensor.is_floating_point():
        return tensor
    numbers = torch.from_numpy(rng.standard_normal(tuple(tensor.shape), np.float32))
    return numbers.to(tensor.device, tensor.dtype)


def _same_bits(one: Any, other: Any) -> bool:
    return bool(np.array_equal(_bytes(one), _bytes(other)))


def _bytes(tensor: Any) -> Array:
    """Return the bytes of a tensor of any dtype."""
    array: Array = tensor.cpu().contiguous().flatten().view(torch.uint8).numpy()
    return array


def _place_error(size: int) -> ConfigError:
    name, value = MKL
    return ConfigError(
        [
            (
                "policy.candidates_per_call",
                f"is {size}, but results of a candidate depend on its place in such a call: start "
                f"Python with {name}={value} in its environment, before it imports PyTorch, or set 1",
            )
        ]
    )


def apply_factored(
    network: Network,
    common: Mapping[str, Any],
    own: Mapping[str, Any],
    memory: Any,
    observation: Any,
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return (outputs, memory, names of formed weights) of one candidate.

    `common` are the common weights of factored matrices by name, `own` their factors, "<name>:left"
    [rank, rows] and "<name>:right" [rank, columns], and the other parts.
    """
    parameters, weights = {}, []
    for name, shape in network.layout.shapes.items():
        if name in common:
            # a module gets this tensor, by which its functions know the weight
            weight = common[name].reshape(shape)
            weights.append(Factored(name, weight, own[name + LEFT], own[name + RIGHT]))
            parameters[name] = weight
        else:
            parameters[name] = own[name]
    functions = Functions(weights)
    with functions:
        outputs, after = network.apply(parameters, memory, observation)
    return outputs, after, tuple(functions.formed)


def factored_names(
    network: Network, matrices: Sequence[str], observations: ObservationSpec
) -> tuple[str, ...]:
    """Return which of these matrices are not formed, by a call for one candidate."""
    parts = {name: torch.zeros(shape) for name, shape in network.layout.shapes.items()}
    own = own_shapes(network.layout, matrices, 1)
    factors = {name: torch.zeros(shape) for name, shape in own.items()}
    memory = trees.tree_map(lambda leaf: torch.from_numpy(np.array(leaf)), network.memory())
    observation = torch.from_numpy(np.zeros(observations.shape, observations.dtype))
    if isinstance(network, TorchNetwork):
        network.module.cpu()
    common = {name: parts[name] for name in matrices}
    with torch.no_grad():
        formed = apply_factored(network, common, factors, memory, observation)[2]
    return tuple(name for name in matrices if name not in formed)
