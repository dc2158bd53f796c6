"""Export of a policy as an ONNX model, for onnxruntime, TensorRT and programs in other languages.

The model has standard operators only (opset 17) and takes any number of observations at once. It
includes the wrappers of the environment, the observation normaliser and the action head, so that
its output are actions. The memory of a recurrent policy is an input and an output: zeros begin an
episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from hpc_es.core.data import Array, Discrete, Float32, MultiDiscrete, Normaliser, Spaces
from hpc_es.core.policy import Policy
from hpc_es.policies.cnn import ConvolutionalPolicy, VirtualBatchPolicy
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.mlp import MLP
from hpc_es.policies.networks.heads import Head
from hpc_es.policies.networks.keras_models import (
    Affine,
    Clip,
    EnvironmentTransformations,
    Transformation,
)

OPSET, IR_VERSION = 17, 8  # of 2022: also read by older runtimes
BATCH = "batch"
LAYER_EPSILON = 1e-5  # of layer normalisation
TO_CHANNELS_FIRST, TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


class Graph:
    """The nodes of a model, whose values are referred to by name.

    The first axis of each value of the network is the batch.

    Args:
        parameters: those of the policy by name, float32[*shape].
    """

    def __init__(self, parameters: dict[str, Float32]) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._parameters = parameters

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its first output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Add the parts of x [batch, elements] with these sizes; return their names."""
        names = [f"split_{len(self.nodes)}_{part}" for part in range(len(sizes))]
        node = onnx.helper.make_node("Split", [x, self.integers(sizes)], names, axis=1)
        self.nodes.append(node)
        return names

    def constant(self, values: Any, name: str | None = None) -> str:
        """Add a constant, float32[...]; return its name."""
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(values, np.float32)
        return name

    def integers(self, values: Sequence[int]) -> str:
        """Add a constant, int64[n]; return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(values, np.int64)
        return name

    def parameter(self, name: str) -> str:
        """Return the name of a parameter of the policy, which becomes part of the model."""
        return self.constant(self._parameters[name], name)

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Add x in another shape, without that of the batch."""
        return self.node("Reshape", x, self.integers((-1, *shape)))

    def clip(self, x: str, low: Array, high: Array) -> str:
        """Add x within bounds, which may be infinite."""
        raised = self.node("Max", x, self.constant(low))
        return self.node("Min", raised, self.constant(high))

    def input(self, name: str, shape: Sequence[int], kind: int) -> str:
        """Add an input [batch, *shape]; return its name."""
        self.inputs.append(onnx.helper.make_tensor_value_info(name, kind, [BATCH, *shape]))
        return name

    def output(self, x: str, name: str, shape: Sequence[int], kind: int) -> None:
        """Add an output [batch, *shape] with the values of x."""
        self.nodes.append(onnx.helper.make_node("Identity", [x], [name]))
        self.outputs.append(onnx.helper.make_tensor_value_info(name, kind, [BATCH, *shape]))

    def model(self, title: str) -> Any:
        """Return the checked ONNX ModelProto."""
        initializers = [
            onnx.numpy_helper.from_array(values, name) for name, values in self.constants.items()
        ]
        graph = onnx.helper.make_graph(
            self.nodes, "policy", self.inputs, self.outputs, initializers
        )
        model = onnx.helper.make_model(
            graph,
            opset_imports=[onnx.helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="hpc_es",
            doc_string=title,
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def dense(graph: Graph, x: str, name: str, has_bias: bool = True) -> str:
    """Add a layer x W + b; return its output [batch, units]."""
    x = graph.node("MatMul", x, graph.parameter(f"{name}_kernel"))
    return graph.node("Add", x, graph.parameter(f"{name}_bias")) if has_bias else x


def activate(graph: Graph, x: str, activation: str) -> str:
    """Add an activation function of the policy kinds."""
    if activation == "leaky_relu":
        return graph.node("LeakyRelu", x, alpha=0.2)
    return graph.node({"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[activation], x)


def normalised(graph: Graph, x: str, rank: int) -> str:
    """Add layer normalisation over all axes of x but the batch, of which there are `rank`."""
    axes = list(range(1, rank + 1))
    x = graph.node("Sub", x, graph.node("ReduceMean", x, axes=axes))
    square = graph.node("ReduceMean", graph.node("Mul", x, x), axes=axes)
    variance = graph.node("Add", square, graph.constant(LAYER_EPSILON))
    return graph.node("Div", x, graph.node("Sqrt", variance))


def feed_forward(graph: Graph, x: str, policy: MLP) -> str:
    """Add the network of an `mlp`; return its outputs [batch, outputs]."""
    *hidden, output = policy.layers.names
    options = policy.options
    for name in hidden:
        x = dense(graph, x, name, options.bias)
        if options.normalisation == "layer":
            x = normalised(graph, x, 1)
        x = activate(graph, x, options.activation)
    return dense(graph, x, output, options.bias)


def cell(graph: Graph, x: str, name: str, size: int) -> str:
    """Add an LSTM cell with its memory as inputs and outputs; return its output [batch, size].

    The gates are i, j (the candidate), f and o; the forget gate has a bias of 1.
    """
    kind = onnx.TensorProto.FLOAT
    h, c = (graph.input(f"{name}_{part}", [size], kind) for part in ("h", "c"))
    i, j, f, o = graph.split(dense(graph, graph.node("Concat", x, h, axis=1), name), [size] * 4)
    kept = graph.node("Sigmoid", graph.node("Add", f, graph.constant(1)))
    added = graph.node("Mul", graph.node("Tanh", j), graph.node("Sigmoid", i))
    c = graph.node("Add", graph.node("Mul", c, kept), added)
    h = graph.node("Mul", graph.node("Tanh", c), graph.node("Sigmoid", o))
    graph.output(h, f"next_{name}_h", [size], kind)
    graph.output(c, f"next_{name}_c", [size], kind)
    return h


def recurrent(graph: Graph, x: str, policy: LSTM) -> str:
    """Add the network of an `lstm`; return its outputs [batch, outputs]."""
    for number, size in enumerate(policy.hidden_dims):
        x = cell(graph, x, f"lstm_{number}", size)
    return dense(graph, x, "output")


def same_padding(image: Sequence[int], kernel: int, stride: int) -> list[int]:
    """Return the padding "same" of an image: before its height and width, then after them."""
    totals = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in image[:2]]
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


def convolutional(graph: Graph, x: str, network: Any) -> str:
    """Add a `ConvolutionalNetwork`, whose module would import JAX; return its outputs."""

    def affine(x: str, number: int, name: str, rank: int) -> str:
        if network.normalisation != "layer":
            return graph.node("Add", x, graph.parameter(f"{name}_bias"))
        scaled = graph.node(
            "Mul", normalised(graph, x, rank), graph.parameter(f"norm_{number}_gamma")
        )
        return graph.node("Add", scaled, graph.parameter(f"norm_{number}_beta"))

    x = graph.reshape(x, network.image)
    images = list(network.sizes())
    for number, (image, layer) in enumerate(zip(images, network.convolutions, strict=False)):
        name, pads = f"conv_{number}", [0] * 4
        if network.padding == "same":
            pads = same_padding(image, layer.kernel, layer.stride)
        kernel = graph.node("Transpose", graph.parameter(f"{name}_kernel"), perm=(3, 2, 0, 1))
        x = graph.node("Transpose", x, perm=TO_CHANNELS_FIRST)
        x = graph.node("Conv", x, kernel, strides=[layer.stride] * 2, pads=pads)
        x = graph.node("Transpose", x, perm=TO_CHANNELS_LAST)
        x = activate(graph, affine(x, number, name, 3), network.activation)
    x = graph.node("Flatten", x)
    for number in range(len(network.hidden_dims)):
        name = f"hidden_{number}"
        x = graph.node("MatMul", x, graph.parameter(f"{name}_kernel"))
        x = affine(x, len(network.convolutions) + number, name, 1)
        x = activate(graph, x, network.activation)
    if network.lstm is not None:
        x = cell(graph, x, "lstm_0", network.lstm)
    return dense(graph, x, "output")


def transformed(graph: Graph, x: str, steps: Sequence[Transformation]) -> str:
    """Add the wrappers of observations or actions."""
    for step in steps:
        if isinstance(step, Affine):
            x = graph.node("Mul", x, graph.constant(step.scale))
            x = graph.node("Add", x, graph.constant(step.offset))
        elif isinstance(step, Clip):
            x = graph.clip(x, step.low, step.high)
        else:
            x = graph.reshape(x, step.shape)
    return x


def normalise(graph: Graph, x: str, normaliser: Normaliser) -> str:
    """Add the normalisation of the observations."""
    mean, deviation, clip = normaliser
    centred = graph.node("Sub", x, graph.constant(mean))
    x = graph.node("Div", centred, graph.constant(deviation))
    limit = np.asarray(clip, np.float32)
    return graph.clip(x, -limit, limit) if np.isfinite(clip) else x


def act(graph: Graph, x: str, head: Head) -> tuple[str, list[int], int]:
    """Add the action head; return the actions, their shape without the batch, and their type."""
    space = head.space
    if isinstance(space, Discrete):
        action = graph.node("ArgMax", x, axis=1, keepdims=0)
        return graph.node("Add", action, graph.integers([space.start])), [], onnx.TensorProto.INT64
    if isinstance(space, MultiDiscrete):
        parts = graph.split(x, space.counts)
        chosen = [graph.node("ArgMax", part, axis=1, keepdims=1) for part in parts]
        return graph.node("Concat", *chosen, axis=1), [len(space.counts)], onnx.TensorProto.INT64
    low, size = graph.constant(space.low), len(space.low)
    width = graph.constant(space.high - space.low)
    if head.bins is not None:
        bins = graph.node("ArgMax", graph.reshape(x, (size, head.bins)), axis=2, keepdims=0)
        share = graph.node(
            "Div",
            graph.node("Cast", bins, to=onnx.TensorProto.FLOAT),
            graph.constant(head.bins - 1),
        )
        x = graph.node("Add", low, graph.node("Mul", share, width))
    elif head.bounds == "squash":
        raised = graph.node("Add", graph.node("Tanh", x), graph.constant(1))
        share = graph.node("Div", raised, graph.constant(2))
        x = graph.node("Add", low, graph.node("Mul", share, width))
    return graph.clip(x, space.low, space.high), [size], onnx.TensorProto.FLOAT


def onnx_model(
    policy: Policy,
    theta: Float32,
    *,
    normaliser: Normaliser | None,
    around: EnvironmentTransformations | None,
    spaces: Spaces,
    title: str,
) -> Any:
    """Return a policy as an ONNX ModelProto.

    Its input is observation [batch, *shape], float32 or the integer type of images; its output
    action is int64[batch] (Discrete), int64[batch, choices] (MultiDiscrete) or float32[batch,
    *shape] (Box). Each layer of a recurrent policy, such as lstm_0, also has the inputs lstm_0_h
    and lstm_0_c and the outputs next_lstm_0_h and next_lstm_0_c, float32[batch, units].

    Args:
        policy: of a kind in `export.NETWORK_KINDS`.
        theta: its parameters, float32[params].
        around: the wrappers of the environment.
        spaces: of the network.
        title: description in the model.

    Raises:
        TypeError: the policy is of another kind.
    """
    spec, network = spaces.observations, policy
    if isinstance(policy, VirtualBatchPolicy):
        network, theta = policy.folded(theta)
    if not isinstance(network, MLP | LSTM | ConvolutionalPolicy):
        raise TypeError(f"{type(policy).__name__} cannot be written as an ONNX model")
    graph = Graph(dict(network.layout.split(theta)))
    shape = around.shape if around is not None else spec.shape
    kind = onnx.helper.np_dtype_to_tensor_dtype(spec.dtype if spec.is_integer else np.dtype("f4"))
    x = graph.input("observation", shape, kind)
    if spec.is_integer:
        x = graph.node("Cast", x, to=onnx.TensorProto.FLOAT)
    if spec.is_integer and isinstance(network, ConvolutionalPolicy):
        x = graph.node("Div", x, graph.constant(255))
    if around is not None:
        x = transformed(graph, x, around.observations)
    if normaliser is not None:
        x = normalise(graph, x, normaliser)
    if isinstance(network, ConvolutionalPolicy):
        x = convolutional(graph, x, network.network)
    elif isinstance(network, MLP):
        x = feed_forward(graph, graph.node("Flatten", x), network)
    else:
        x = recurrent(graph, graph.node("Flatten", x), network)
    x, action_shape, kind = act(graph, x, network.head)
    if around is not None and around.actions:
        x = transformed(graph, x, around.actions)
    graph.output(x, "action", action_shape, kind)
    graph.outputs.insert(0, graph.outputs.pop())  # before the memory
    return graph.model(title)
