"""Networks in TensorFlow with low-rank perturbations of their weights, which are not formed.

A network is traced for one candidate, and the operations of its graph are created again with
weights that are W + sum_k left_k right_k: matrix products, `einsum` and look-ups of rows are those
with W plus a correction. Where another operation uses such a weight, such as a convolution or a
loop, it is formed. Set up TensorFlow before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from hpc_es.core.data import ObservationSpec
from hpc_es.core.policy import Tensor
from hpc_es.core.population import Layout, own_shapes
from hpc_es.policies.networks.network import Network


@dataclass(frozen=True)
class Factored:
    """The weight common + sum_k left[k] right[k] (outer products)."""

    name: str
    common: Tensor  # [*first axes, columns]
    left: Tensor  # [rank, *first axes]
    right: Tensor  # [rank, columns]

    def terms(self) -> list[tuple[Tensor, Tensor]]:
        """Return left[k] and right[k] for each k."""
        return list(zip(tf.unstack(self.left), tf.unstack(self.right), strict=True))

    def formed(self) -> Tensor:
        """Return the weight."""
        return sum((left[..., tf.newaxis] * right for left, right in self.terms()), self.common)


def apply_factored(
    network: Network, parameters: Mapping[str, Tensor], memory: Tensor, observation: Tensor
) -> Any:
    """Return (outputs, memory, names of formed weights) of a network.

    Its parameters may be `Factored`.
    """
    arguments = dict(parameters), memory, observation
    leaves = [leaf for part in arguments for leaf in _leaves(part)]
    specs = tf.nest.map_structure(_spec, arguments)
    with tf.init_scope():
        graph = tf.function(network.apply, autograph=False).get_concrete_function(*specs)
    captures = dict(
        zip(
            [key.ref() for key in graph.graph.internal_captures], graph.captured_inputs, strict=True
        )
    )
    values = {
        **captures,
        **dict(zip([key.ref() for key in graph.graph.inputs], leaves, strict=False)),
    }
    formed: dict[str, None] = {}

    def plain(value: Tensor) -> Tensor:
        if not isinstance(value, Factored):
            return value
        formed[value.name] = None
        return value.formed()

    for operation in graph.graph.get_operations():
        if operation.type == "Placeholder" and operation.outputs[0].ref() in values:
            continue
        inputs = [values[tensor.ref()] for tensor in operation.inputs]
        rule = (
            RULES.get(operation.type)
            if any(isinstance(item, Factored) for item in inputs)
            else None
        )
        output = None if rule is None else rule(operation, *inputs)
        outputs = _created(operation, list(map(plain, inputs))) if output is None else [output]
        values.update(zip([tensor.ref() for tensor in operation.outputs], outputs, strict=True))
    result, after = tf.nest.map_structure(
        lambda tensor: plain(values[tensor.ref()]), graph.graph.structured_outputs
    )
    return result, after, tuple(formed)


def _leaves(tree: Tensor) -> list[Tensor]:
    """Return the leaves of a tree in the order of arguments of a function."""
    if isinstance(tree, Mapping):
        return [leaf for name in sorted(tree) for leaf in _leaves(tree[name])]
    return [tree] if isinstance(tree, Factored) else list(tf.nest.flatten(tree))


def _spec(value: Tensor) -> Any:
    array = value.common if isinstance(value, Factored) else tf.convert_to_tensor(value)
    return tf.TensorSpec(array.shape, array.dtype)


def _created(operation: Any, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the outputs of a copy of an operation with other inputs, in the traced graph."""
    target: Any = ops.get_default_graph()
    attributes = {name: operation.node_def.attr[name] for name in operation.node_def.attr}
    for value in attributes.values():
        if value.HasField("func"):  # a loop, a condition or a call
            target._add_function_recursive(operation.graph._get_function(value.func.name))
    types = [tensor.dtype for tensor in operation.outputs]
    outputs: Sequence[Tensor] = target._create_op_internal(
        operation.type, inputs, types, attrs=attributes, op_def=operation.op_def
    ).outputs
    return outputs


def factored_names(
    network: Network, matrices: Sequence[str], observations: ObservationSpec
) -> tuple[str, ...]:
    """Return which of these matrices are not formed, by tracing.

    There are none if the network cannot be traced.
    """
    layout, own = network.layout, own_shapes(network.layout, matrices, 1)
    formed: tuple[str, ...] = ()

    def traced(
        common: Mapping[str, Tensor], parts: Mapping[str, Tensor], observation: Tensor
    ) -> Any:
        nonlocal formed
        memory = tf.nest.map_structure(tf.convert_to_tensor, network.memory())
        result, after, formed = apply_factored(
            network, parameters_of(layout, common, parts), memory, observation
        )
        return result, after

    specs: list[Any] = [{name: tf.TensorSpec(layout.shapes[name], tf.float32) for name in matrices}]
    specs += [{name: tf.TensorSpec(shape, tf.float32) for name, shape in own.items()}]
    try:
        tf.function(traced, autograph=False).get_concrete_function(
            *specs, tf.TensorSpec(observations.shape, tf.as_dtype(observations.dtype))
        )
    except Exception:  # of operations that cannot be created again: candidates are formed
        return ()
    return tuple(name for name in matrices if name not in formed)


def parameters_of(
    layout: Layout, common: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the parameters of one candidate by name; those in `common` are `Factored`."""
    parameters = {}
    for name, shape in layout.shapes.items():
        if name in common:
            left, right = own[f"{name}:left"], own[f"{name}:right"]
            parameters[name] = Factored(
                name, common[name], tf.reshape(left, [left.shape[0], *shape[:-1]]), right
            )
        else:
            parameters[name] = own[name]
    return parameters


# Rules: (operation, *inputs) -> output, or None if the weight has to be formed.


def _product(operation: Any, lhs: Tensor, rhs: Tensor) -> Any:
    """`MatMul` and `BatchMatMulV2` with a matrix on the right."""
    transposed = [operation.get_attr(name) for name in TRANSPOSES[operation.type]]
    if (
        not isinstance(rhs, Factored)
        or isinstance(lhs, Factored)
        or transposed[0]
        or rhs.left.shape.rank != 2
    ):
        return None
    (output,) = _created(operation, [lhs, rhs.common])
    for left, right in rhs.terms():
        first, last = (right, left) if transposed[1] else (left, right)
        output += tf.reduce_sum(lhs * first, axis=-1, keepdims=True) * last
    return output


TRANSPOSES: Mapping[str, tuple[str, str]] = {
    "MatMul": ("transpose_a", "transpose_b"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
}


def _einsum(operation: Any, lhs: Tensor, rhs: Tensor) -> Any:
    """`einsum` of two operands: that of three, the factors in place of the weight."""
    if not isinstance(rhs, Factored) or isinstance(lhs, Factored):
        return None
    equation = operation.get_attr("equation").decode()
    inputs, outputs = equation.replace(" ", "").split("->")
    of_lhs, of_rhs = inputs.split(",")
    if "." in equation or len(set(of_rhs)) < len(of_rhs):
        return None
    (output,) = _created(operation, [lhs, rhs.common])
    for left, right in rhs.terms():
        output += tf.einsum(f"{of_lhs},{of_rhs[:-1]},{of_rhs[-1]}->{outputs}", lhs, left, right)
    return output


def _rows(operation: Any, weight: Tensor, indices: Tensor, axis: Tensor) -> Any:
    """`gather` of rows, such as those of an embedding."""
    if (
        not isinstance(weight, Factored)
        or operation.get_attr("batch_dims")
        or tf.get_static_value(axis) != 0
    ):
        return None
    (output,) = _created(operation, [weight.common, indices, axis])
    for left, right in weight.terms():
        output += tf.gather(left, indices)[..., tf.newaxis] * right
    return output


def _converted(operation: Any, weight: Tensor) -> Any:
    dtype = operation.get_attr("DstT")
    return Factored(
        weight.name,
        *(tf.cast(array, dtype) for array in (weight.common, weight.left, weight.right)),
    )


def _reshaped(operation: Any, weight: Tensor, shape: Tensor) -> Any:
    """`reshape` that keeps the last axis."""
    sizes = operation.outputs[0].shape
    if (
        not isinstance(weight, Factored)
        or not sizes.is_fully_defined()
        or sizes[-1] != weight.right.shape[-1]
    ):
        return None
    left = tf.reshape(weight.left, [weight.left.shape[0], *sizes[:-1]])
    return replace(weight, common=tf.reshape(weight.common, sizes), left=left)


RULES: Mapping[str, Callable[..., Any]] = {
    "MatMul": _product,
    "BatchMatMulV2": _product,
    "Einsum": _einsum,
    "GatherV2": _rows,
    "Cast": _converted,
    "Identity": lambda operation, weight: weight,
    "Reshape": _reshaped,
}
