"""Networks in JAX whose weights are common ones plus low-rank perturbations, which are not formed.

A network is traced, and its program is evaluated with weights that are W + sum_k left_k right_k
(outer products): matrix products and look-ups of rows are those with W plus a correction. Where
another operation uses such a weight, such as a convolution, it is formed. Set up JAX before
importing this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpc_es.core.data import ObservationSpec
from hpc_es.core.policy import Pure, Tensor
from hpc_es.core.population import Factorisation, Layout, Shape, own_shapes
from hpc_es.policies.networks.jax_convolutions import Interpreter

LEFT, RIGHT = ":left", ":right"  # suffixes of the names of factors


@dataclass(frozen=True)
class Factored:
    """The weight common + sum_k left[k] right[k].

    Its first axes are those of left, and the last those of right.
    """

    name: str
    common: Tensor  # [*first axes, *last axes]
    left: Tensor  # [rank, *first axes]
    right: Tensor  # [rank, *last axes]

    @property
    def first_axes(self) -> int:
        """Number of axes of left[k]."""
        axes: int = self.left.ndim - 1
        return axes

    def terms(self) -> list[tuple[Tensor, Tensor]]:
        """Return left[k] and right[k] for each k."""
        return [(self.left[k], self.right[k]) for k in range(self.left.shape[0])]

    def formed(self) -> Tensor:
        """Return the weight.

        For a low rank, sums of outer products take less time than a matrix product.
        """
        return sum((jnp.multiply.outer(left, right) for left, right in self.terms()), self.common)


class FactoredInterpreter(Interpreter):
    """Evaluates programs with `Factored` arguments.

    `formed` are the names of those that were formed.
    """

    def __init__(self) -> None:
        self.formed: dict[str, None] = {}

    def enters(self, program: Any, inputs: Sequence[Any]) -> bool:
        return any(isinstance(item, Factored) for item in inputs) or super().enters(program, inputs)

    def outputs(self, equation: Any, inputs: Sequence[Any]) -> list[Any]:
        if any(isinstance(item, Factored) for item in inputs):
            rule = RULES.get(equation.primitive.name)
            output = None if rule is None else rule(equation.params, *inputs)
            if output is not None:
                return [output]
        return super().outputs(equation, [self.plain(item) for item in inputs])

    def plain(self, value: Any) -> Any:
        """Return an array; a factored weight is formed."""
        if not isinstance(value, Factored):
            return value
        self.formed[value.name] = None
        return value.formed()


def apply_factored(
    apply: Callable[..., Any], parameters: Mapping[str, Any], memory: Any, observation: Any
) -> tuple[Any, tuple[str, ...]]:
    """Return the result of `apply`, and the names of the parameters that were formed.

    Parameters may be `Factored`.
    """
    arrays = {
        name: jax.ShapeDtypeStruct(item.common.shape, item.common.dtype)
        if isinstance(item, Factored)
        else item
        for name, item in parameters.items()
    }
    closed, result = jax.make_jaxpr(apply, return_shape=True)(arrays, memory, observation)
    interpreter = FactoredInterpreter()
    leaves = jax.tree.leaves((dict(parameters), memory, observation))
    outputs = interpreter.evaluate(closed.jaxpr, closed.consts, leaves)
    plain = [interpreter.plain(output) for output in outputs]
    return jax.tree.unflatten(jax.tree.structure(result), plain), tuple(interpreter.formed)


def with_factors(
    apply: Callable[..., Any], layout: Layout, names: Sequence[str]
) -> Callable[..., Any]:
    """Return `apply` of one candidate without forming weights.

    It is (common, own, memory, observation) -> (outputs, memory). `common` are the common weights
    of the parts `names`, `own` their factors, "<name>:left" [rank, rows] and "<name>:right" [rank,
    columns], and the other parts.
    """

    def applied(
        common: Mapping[str, Any], own: Mapping[str, Any], memory: Any, observation: Any
    ) -> Any:
        parameters = {name: own[name] for name in layout.shapes if name not in names}
        for name in names:
            left, right = own[name + LEFT], own[name + RIGHT]
            left = left.reshape(len(left), *layout.shapes[name][:-1])
            parameters[name] = Factored(name, common[name], left, right)
        return apply_factored(apply, parameters, memory, observation)[0]

    return applied


def formed_weights(
    apply: Callable[..., Any], layout: Layout, names: Sequence[str], memory: Any, observation: Any
) -> tuple[str, ...]:
    """Return which of the weights `names` have to be formed, by tracing.

    `observation` is a tree, whose leaves have a shape and a dtype.
    """
    formed: tuple[str, ...] = ()

    def traced(parts: Mapping[str, Any], factors: Mapping[str, Any], observed: Any) -> Any:
        nonlocal formed
        weights = {name: Factored(name, parts[name], *factors[name]) for name in names}
        result, formed = apply_factored(apply, {**parts, **weights}, memory, observed)
        return result

    def struct(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    parts = {name: struct(*shape) for name, shape in layout.shapes.items()}
    factors = {
        name: (struct(1, *layout.shapes[name][:-1]), struct(1, layout.shapes[name][-1]))
        for name in names
    }
    observed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), observation)
    jax.eval_shape(traced, parts, factors, observed)
    return formed


class FactoredPolicy:
    """A policy as pure functions of common weights and the factors of each candidate.

    See `core.policy.Pure`. A candidate is a vector of `layout`: the factors of the matrices
    `factored`, and the other parts.
    """

    def __init__(
        self, pure: Pure, layout: Layout, factorisation: Factorisation, observation: ObservationSpec
    ) -> None:
        self._pure, self._parts = pure, layout
        self._leaves, self._tree = _leaves_of_parts(pure, layout)
        matrices = [name for name in factorisation.matrices if name in self._leaves]
        formed = (
            formed_weights(self._apply, layout, matrices, pure.memory, observation)
            if matrices
            else ()
        )
        self.factored = tuple(name for name in matrices if name not in formed)
        self.layout = Layout(own_shapes(layout, self.factored, factorisation.rank))

    def _apply(self, parts: Mapping[str, Any], memory: Any, observation: Any) -> tuple[Any, Any]:
        leaves = [parts[leaf] if isinstance(leaf, str) else leaf for leaf in self._leaves]
        return self._pure.apply(jax.tree.unflatten(self._tree, leaves), memory, observation)

    def bound(self, common: Mapping[str, Any]) -> Pure:
        """Return the functions of a candidate for the common weights, by name of the matrix.

        These are the matrices `factored`.
        """
        applied = with_factors(self._apply, self._parts, self.factored)

        def parameters(own: Any) -> Any:
            return self.layout.split(own, jnp.reshape)

        return Pure(parameters, partial(applied, common), self._pure.memory)


def _leaves_of_parts(pure: Pure, layout: Layout) -> tuple[list[Any], Any]:
    """Return the leaves of a policy's parameters, as names of parts or constants, and their tree.

    The names are found by splitting the vector 1, 2, ... . There are none if a leaf is something
    else.
    """
    numbers = np.arange(1, layout.size + 1, dtype=np.float32)
    leaves, tree = jax.tree.flatten(pure.parameters(jnp.asarray(numbers)))
    others = jax.tree.leaves(pure.parameters(jnp.zeros_like(numbers)))
    parts = layout.split(numbers)
    names: list[Any] = []
    for leaf, other in zip(leaves, others, strict=True):
        equal = (
            name
            for name, part in parts.items()
            if part.shape == leaf.shape and np.array_equal(part, leaf)
        )
        names.append(next(equal, leaf if np.array_equal(leaf, other) else None))
    return ([], tree) if any(leaf is None for leaf in names) else (names, tree)


# Rules: (parameters of the equation, *inputs) -> output, or None if the weight has to be formed.


def _product(params: Mapping[str, Any], lhs: Tensor, rhs: Tensor) -> Any:
    """`dot_general` over axes of one factor."""
    contracted, batch = params["dimension_numbers"]
    is_right = isinstance(rhs, Factored)
    weight, other = (rhs, lhs) if is_right else (lhs, rhs)
    if isinstance(other, Factored) or any(batch):
        return None
    axes, others = contracted[is_right], contracted[not is_right]
    in_first = all(axis < weight.first_axes for axis in axes)
    if not in_first and any(axis < weight.first_axes for axis in axes):
        return None

    def product(array: Any, array_axes: Sequence[int]) -> Any:
        """Return the product of the other operand with an array, whose own axes come last."""
        dimensions = ((tuple(others), tuple(array_axes)), ((), ()))
        types = {name: params[name] for name in ("precision", "preferred_element_type")}
        return lax.dot_general(other, array, dimensions, **types)

    free = other.ndim - len(others)  # axes of the other operand in the output
    output = product(weight.common, axes)
    for left, right in weight.terms():
        if in_first:  # [free, rest of first] * [last]
            along = product(left, axes)
            output += along.reshape(*along.shape, *(1,) * right.ndim) * right
        else:  # [free, 1, rest of last] * [first, 1]
            along = product(right, [axis - weight.first_axes for axis in axes])
            rest = along.shape[free:]
            along = along.reshape(*along.shape[:free], *(1,) * left.ndim, *rest)
            output += along * left.reshape(*left.shape, *(1,) * len(rest))
    return output if is_right else jnp.moveaxis(output, range(free), range(-free, 0))


def _rows(params: Mapping[str, Any], weight: Tensor, indices: Any) -> Any:
    """`gather` of whole rows, such as those of an embedding."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    if not isinstance(weight, Factored) or weight.right.ndim != 2:
        return None
    last = weight.common.ndim - 1
    is_indexed = last in (
        *numbers.start_index_map,
        *numbers.collapsed_slice_dims,
        *numbers.operand_batching_dims,
    )
    if is_indexed or sizes[last] != weight.common.shape[last]:
        return None
    output = lax.gather_p.bind(weight.common, indices, **params)
    if numbers.offset_dims[-1] != output.ndim - 1:
        return None
    for left, right in weight.terms():
        of_rows = {**params, "slice_sizes": (*sizes[:-1], 1)}
        output += lax.gather_p.bind(left[..., jnp.newaxis], indices, **of_rows) * right
    return output


def _converted(params: Mapping[str, Any], weight: Tensor) -> Any:
    arrays = (
        array.astype(params["new_dtype"]) for array in (weight.common, weight.left, weight.right)
    )
    return Factored(weight.name, *arrays)


def _reshaped(params: Mapping[str, Any], weight: Tensor) -> Any:
    """`reshape` that does not join axes of different factors."""
    shape: Shape = params["new_sizes"]
    first = prod(weight.left.shape[1:])
    for cut in range(len(shape) + 1):
        if params["dimensions"] is None and prod(shape[:cut]) == first:
            left = weight.left.reshape(-1, *shape[:cut])
            right = weight.right.reshape(-1, *shape[cut:])
            return Factored(weight.name, weight.common.reshape(shape), left, right)
    return None


def _transposed(params: Mapping[str, Any], weight: Tensor) -> Any:
    """`transpose` of a matrix."""
    if tuple(params["permutation"]) != (1, 0) or weight.first_axes != 1:
        return None
    return Factored(weight.name, weight.common.T, weight.right, weight.left)


RULES: Mapping[str, Callable[..., Any]] = {
    "dot_general": _product,
    "gather": _rows,
    "convert_element_type": _converted,
    "copy": lambda params, weight: weight,
    "reshape": _reshaped,
    "transpose": _transposed,
}
