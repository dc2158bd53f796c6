"""Networks in PyTorch: the modules that a builder may return, as a `Network`.

Set up PyTorch before importing this. A module is called with a batch of one observation and returns
the outputs of a batch of one. A recurrent module has a method `memory()` that returns the memory at
the start of an episode, a tensor or a tree of tensors; it is called with the observation and the
memory, and returns the outputs and the next memory.

| of the module | is |
|---|---|
| parameters with `requires_grad` | the parameters of the search, named by their path |
| other parameters and buffers | constants, with the values of the first module that is built |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as trees

from hpc_es.core.data import Float32, ObservationSpec, PartOps
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout
from hpc_es.policies.networks.network import (
    KEY,
    STATISTICS,
    Network,
    array_text,
    example,
    network_input,
    stochastic_error,
    taking_parts,
)
from hpc_es.policies.networks.torch_files import (
    SUFFIXES,
    mapped,
    read_weights,
    with_one_name,
    write_weights,
)
from hpc_es.policies.networks.torch_functions import Functions

EXPECTED = "a torch.nn.Module, or an object with layout, backend, initial, memory and apply"
ONE_BATCH = "expected a module of a batch of one observation that returns the outputs of a batch"
MEMORY = (
    "expected a module whose outputs depend on its inputs only: a recurrent one has a method memory(), the memory at "
    "the start of an episode, and forward(observation, memory) returns the outputs and the next memory"
)
CONVOLUTIONS = (
    *(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d),
    *(torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d),
)
STATISTICAL = (torch.nn.modules.batchnorm._NormBase,)
STOCHASTIC = (torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU)
# of errors of PyTorch, what they mean for a module, and the remedy
CAUSES = {
    "data-dependent control flow": (
        "its Python code branches on values of tensors, which differ between candidates: expected operations on "
        "tensors, such as torch.where"
    ),
    ".item()": (
        "Python code cannot read the values of tensors, which differ between candidates: expected operations on "
        "tensors, such as torch.where"
    ),
    "Cannot access data pointer": (
        "Python and NumPy code cannot read the values of tensors, which differ between candidates: "
        "expected operations of PyTorch"
    ),
    "dynamic shape": (
        "the shape of a result depends on values of tensors, which differ between candidates: expected results of "
        "fixed shapes, such as those of torch.where"
    ),
    "random operation": (
        "it draws random numbers when it acts: expected a module whose outputs depend on its inputs only"
    ),
    "inplace arithmetic": f"it writes into a tensor of its own when it acts: {MEMORY}",
    "doesn't match the broadcast shape": f"it may write into a tensor of its own: {MEMORY}",
}


OPS = PartOps(
    torch.argmax,
    torch.stack,
    torch.reshape,
    lambda tensor, dtype: tensor.to(torch.from_numpy(np.empty(0, dtype)).dtype),
)


def torch_network(
    build: Callable[[int], Any], name: str, observations: ObservationSpec, frozen: bool
) -> Network:
    """Return the result of a builder as a `Network`; ConfigError if it is of no supported kind.

    `build` calls the builder with a seed; `name` is its name in messages. `frozen` accepts
    statistics as constants, and dropout without effect.
    """
    built = build(0)
    if isinstance(built, torch.nn.Module):
        return TorchNetwork(build, built, name, observations, frozen)
    if all(
        hasattr(built, attribute)
        for attribute in ("layout", "backend", "initial", "memory", "apply")
    ):
        network: Network = built
        return taking_parts(network, observations, OPS)
    actual = f"{type(built).__module__}.{type(built).__name__}".removeprefix("builtins.")
    raise ConfigError(
        [
            (
                KEY,
                f"expected {name} to return {EXPECTED}, found {actual}: return one, or policy.backend: "
                "jax for networks in JAX and Keras",
            )
        ]
    )


class TorchNetwork:
    """A `Network` of a module.

    Kernels of convolutions are matrices [*first axis, others] in the layout, so that perturbations
    of low rank have the rows and columns of the product that a convolution is.
    """

    backend = "torch"
    weight_suffixes: Sequence[str] = SUFFIXES

    def __init__(
        self,
        build: Callable[[int], Any],
        module: Any,
        name: str,
        observations: ObservationSpec,
        frozen: bool,
    ) -> None:
        """Raise ConfigError if the module cannot be used; `build` returns it for a seed."""
        self._build, self._name, self._observations = build, name, observations
        self.module = self._prepared(module)
        _refuse(self.module, name, frozen)
        parameters = trained(self.module)
        if not parameters:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"expected at least one parameter with requires_grad from {name}, found none",
                    )
                ]
            )
        self.shapes = {path: tuple(tensor.shape) for path, tensor in parameters.items()}
        self.dtypes = {path: tensor.dtype for path, tensor in parameters.items()}
        kernels = _kernels(self.module)
        self.layout = Layout(
            {
                path: (shape[0], prod(shape[1:])) if path in kernels else shape
                for path, shape in self.shapes.items()
            }
        )
        self._memory = self._initial_memory()

    def _prepared(self, module: Any) -> Any:
        """Return the module for inference on the CPU, with the parameters of lazy layers."""
        module = module.cpu().eval()
        if any(torch.nn.parameter.is_lazy(tensor) for tensor in module.parameters()):
            inputs = trees.tree_map(torch.from_numpy, example(self._observations, (1,)))
            with torch.no_grad(), self.failures(module):
                module(inputs, *_memory_of(module))
        return module

    def _initial_memory(self) -> Tree | None:
        """Return the memory as a tree of arrays, None without memory."""
        found = _memory_of(self.module)
        if not found:
            return None
        leaves, tree = trees.tree_flatten(found[0])
        wrong = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        if wrong:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"expected tensors from memory() of {self._name}, found "
                        f"{type(wrong[0]).__name__}: {MEMORY}",
                    )
                ]
            )
        try:
            arrays = [leaf.detach().cpu().numpy().copy() for leaf in leaves]
        except TypeError as error:  # of dtypes that NumPy lacks
            raise ConfigError(
                [
                    (
                        KEY,
                        f"expected a memory() of {self._name} of dtypes that NumPy has, such as "
                        f"float32: {error}",
                    )
                ]
            ) from error
        memory: Tree = trees.tree_unflatten(arrays, tree)
        return memory

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return the parameters of a newly built module, float32[layout.size]."""
        parameters = trained(self._prepared(self._build(int(rng.integers(2**31)))))
        if {path: tuple(tensor.shape) for path, tensor in parameters.items()} != self.shapes:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{self._name} returns parameters of other names or shapes when it is called "
                        "again: expected the same for every seed",
                    )
                ]
            )
        return self.joined(parameters)

    def joined(self, tensors: Mapping[str, Any]) -> Float32:
        """Return tensors by path as a vector, float32[layout.size]."""
        arrays = [tensors[path].detach().cpu().float().numpy().ravel() for path in self.shapes]
        return np.concatenate(arrays)

    def saved(self, path: Path) -> Float32:
        """Return the weights of a state_dict or of safetensors, float32[layout.size].

        Raises:
            ValueError: they are those of another module.
        """
        elements = sum(tensor.numel() for tensor in self.module.state_dict().values())
        tensors = with_one_name(read_weights(path, elements), self._other_names())
        return self.joined(mapped(tensors, self.shapes, self._constants()))

    def save(self, path: Path, theta: Float32, suffix: str) -> None:
        """Write the state_dict of the module with the weights theta, float32[layout.size]."""
        tensors = self.tensors(theta)
        tensors |= {other: tensors[name] for other, name in self._other_names().items()}
        state = self.module.state_dict(keep_vars=True)
        written = {name: tensors.get(name, tensor) for name, tensor in state.items()}
        write_weights(path, written, suffix)

    def _other_names(self) -> dict[str, str]:
        """Return further names of parameters that layers share, each with that in `shapes`."""
        names = {id(tensor): path for path, tensor in trained(self.module).items()}
        state = self.module.state_dict(keep_vars=True)
        return {
            name: names[id(tensor)]
            for name, tensor in state.items()
            if id(tensor) in names and names[id(tensor)] != name
        }

    def _constants(self) -> dict[str, Any]:
        """Return the buffers and other parameters that a state_dict has."""
        parameters = {id(tensor) for tensor in trained(self.module).values()}
        state = self.module.cpu().state_dict(keep_vars=True)
        return {name: tensor for name, tensor in state.items() if id(tensor) not in parameters}

    def tensors(self, theta: Float32) -> dict[str, Any]:
        """Return the parameters of the module by path, in its shapes and dtypes."""
        parts = self.layout.split(theta)
        return self.converted({path: torch.tensor(part) for path, part in parts.items()})

    def converted(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors of the shapes in the layout in those of the module, with its dtypes.

        A tensor that has them is returned itself.
        """
        result = {}
        for path, shape in self.shapes.items():
            tensor, dtype = parameters[path], self.dtypes[path]
            tensor = tensor if tensor.shape == shape else tensor.reshape(shape)
            result[path] = tensor if tensor.dtype == dtype else tensor.to(dtype)
        return result

    def memory(self) -> Tree:
        """Return the memory at the start of an episode, a tree of arrays; () without memory."""
        return () if self._memory is None else self._memory

    def apply(
        self, parameters: Mapping[str, Any], memory: Tree, observation: Any
    ) -> tuple[Any, Any]:
        """Call the module with parameters of the shapes in the layout, for one observation."""
        has_memory = self._memory is not None
        inputs = network_input(self._observations, observation, OPS, (1,))
        arguments = (inputs, memory) if has_memory else (inputs,)
        with Functions():
            result = torch.func.functional_call(self.module, self.converted(parameters), arguments)
        if not has_memory:
            return self._only(result)[0], ()
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"expected {self._name}, which has memory(), to return (outputs, memory), "
                        f"found {_type_text(result)}",
                    )
                ]
            )
        outputs, after = result
        return self._only(outputs)[0], after

    def _only(self, outputs: Any) -> Any:
        """Return the outputs, a tensor of a batch of one."""
        if isinstance(outputs, torch.Tensor) and outputs.ndim > 1 and len(outputs) == 1:
            return outputs
        text = f"expected {self._name} to return outputs of a batch of one, a tensor [1, outputs]"
        remedy = "" if isinstance(outputs, torch.Tensor) else f": {MEMORY}"
        raise ConfigError([(KEY, f"{text}, found {_type_text(outputs)}{remedy}")])

    @contextlib.contextmanager
    def failures(self, module: Any = None) -> Iterator[None]:
        """Raise ConfigError for an exception of the module, with the path of the failing layer."""
        with located(self.module if module is None else module) as entered:
            try:
                yield
            except ConfigError:
                raise
            except Exception as error:  # of the user's code
                where = f" in its layer {entered[-1]!r}" if entered and entered[-1] else ""
                raise ConfigError(
                    [
                        (
                            KEY,
                            f"{self._name} fails for an observation "
                            f"{array_text(self._observations)}{where}: {cause_text(error)}",
                        )
                    ]
                ) from error


def cause_text(error: Exception) -> str:
    """Return the text of an exception of a module, with its remedy."""
    text = str(error)
    causes = [cause for words, cause in CAUSES.items() if words in text]
    is_known = isinstance(error, RuntimeError) and causes
    found = failure_from_error(error).text
    return f"{causes[0]} ({found})" if is_known else f"{found}: {ONE_BATCH}"


@contextlib.contextmanager
def located(module: Any) -> Iterator[list[str]]:
    """Yield a list of the paths of the layers that are being called, the innermost one last."""
    entered: list[str] = []

    def hooks(path: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(*_: Any) -> None:
            entered.append(path)

        def leave(*_: Any) -> None:
            entered.pop()

        return enter, leave

    handles = []
    for path, layer in module.named_modules():
        enter, leave = hooks(path)
        handles += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    try:
        yield entered
    finally:
        for handle in handles:
            handle.remove()


def trained(module: Any) -> dict[str, Any]:
    """Return the parameters with `requires_grad` by path, those that are tied once."""
    return {path: tensor for path, tensor in module.named_parameters() if tensor.requires_grad}


def _kernels(module: Any) -> frozenset[str]:
    """Return the paths of the kernels of convolutions."""
    return frozenset(
        f"{path}.weight".lstrip(".")
        for path, layer in module.named_modules()
        if isinstance(layer, CONVOLUTIONS)
    )


def _memory_of(module: Any) -> list[Any]:
    """Return [the initial memory of a recurrent module], [] for others."""
    memory = getattr(module, "memory", None)
    return [memory()] if callable(memory) else []


def _refuse(module: Any, name: str, frozen: bool) -> None:
    """Raise ConfigError for layers that act in training only, and parameters of other types."""
    for path, layer in module.named_modules():
        kind = type(layer).__name__
        if isinstance(layer, torch.jit.ScriptModule):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"the layer {path!r} of {name} is compiled by TorchScript ({kind}), so that "
                        "its parameters cannot be replaced: expected the module that it was made of",
                    )
                ]
            )
        if _is_stochastic(layer) and not frozen:
            raise stochastic_error(name, path, kind)
        if isinstance(layer, STATISTICAL) and layer.track_running_stats and not frozen:
            raise ConfigError(
                [(KEY, f"the layer {path!r} of {name} ({kind}) has statistics, {STATISTICS}")]
            )
    for path, tensor in module.named_parameters():
        if not tensor.is_floating_point():
            text = f"expected floating-point parameters from {name}, found {path!r} {tensor_text(tensor)}"
            size = tensor.numel() * tensor.element_size()
            raise ConfigError(
                [(KEY, f"{text} ({size:,} bytes): keep it as a buffer (register_buffer)")]
            )


def _is_stochastic(layer: Any) -> bool:
    """Whether a layer draws random numbers in training."""
    if isinstance(layer, STOCHASTIC):
        return bool(getattr(layer, "p", 1.0))
    rate = getattr(layer, "dropout", 0.0)  # of recurrent layers and attention
    return isinstance(rate, float | int) and bool(rate)


def tensor_text(tensor: Any) -> str:
    """Return dtype and shape of a tensor, such as "float32[2, 3]"."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}[{', '.join(map(str, tensor.shape))}]"


def _type_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return tensor_text(value)
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    return f"{kind} of length {len(value)}" if isinstance(value, tuple | list) else kind
