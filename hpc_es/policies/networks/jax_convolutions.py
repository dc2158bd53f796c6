"""Traced programs of custom networks in JAX, with convolutions that suit a CPU.

Under `jax.vmap` over kernels JAX makes a grouped convolution, which takes longer on a CPU than one
candidate after the other. A function is therefore traced, and its convolutions are replaced. Those
within loops and conditions stay as they are. Set up JAX before importing this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.custom_batching import sequential_vmap
from jax.extend.core import Literal
from jax.extend.core.primitives import conv_general_dilated_p

# parameters of equations that call a function, such as those of `jax.jit`
INNER = ("jaxpr", "call_jaxpr")
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def convolving_in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, whose convolutions `jax.vmap` computes one after the other on a CPU."""

    def wrapped(*arguments: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*arguments)
        closed, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not _convolves(closed.jaxpr):
            return function(*arguments)
        leaves = Interpreter().evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    return wrapped


def called_program(equation: Any) -> Any:
    """Return the program of a function that an equation calls; None if it calls none."""
    if equation.primitive.name not in CALLS:
        return None
    return next(
        (equation.params[name] for name in INNER if hasattr(equation.params.get(name), "jaxpr")),
        None,
    )


def _convolves(program: Any) -> bool:
    """Return whether a program has a convolution outside of loops and conditions."""
    inner = [called_program(equation) for equation in program.eqns]
    is_here = any(equation.primitive is conv_general_dilated_p for equation in program.eqns)
    return is_here or any(called is not None and _convolves(called.jaxpr) for called in inner)


class Interpreter:
    """Evaluates traced programs; `jax.vmap` computes their convolutions one after the other.

    This is for CPUs.
    """

    def evaluate(
        self, program: Any, constants: Sequence[Any], arguments: Sequence[Any]
    ) -> list[Any]:
        """Return the outputs of a program; see `jax.core.eval_jaxpr`."""
        values = dict(
            zip([*program.constvars, *program.invars], [*constants, *arguments], strict=True)
        )

        def read(variable: Any) -> Any:
            return variable.val if isinstance(variable, Literal) else values[variable]

        for equation in program.eqns:
            inputs, called = (
                [read(variable) for variable in equation.invars],
                called_program(equation),
            )
            if called is not None and self.enters(called.jaxpr, inputs):
                outputs = self.evaluate(called.jaxpr, called.consts, inputs)
            else:
                outputs = self.outputs(equation, inputs)
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(variable) for variable in program.outvars]

    def enters(self, program: Any, inputs: Sequence[Any]) -> bool:
        """Return whether to evaluate the equations of a called program one by one."""
        return _convolves(program)

    def outputs(self, equation: Any, inputs: Sequence[Any]) -> list[Any]:
        """Compute an equation; return a list of arrays."""
        if equation.primitive is conv_general_dilated_p and jax.default_backend() == "cpu":
            return [
                sequential_vmap(partial(conv_general_dilated_p.bind, **equation.params))(*inputs)
            ]
        primitive = equation.primitive
        parameters = primitive.get_bind_params(equation.params)
        # before JAX 0.10
        functions, parameters = parameters if isinstance(parameters, tuple) else ((), parameters)
        result = primitive.bind(*functions, *inputs, **parameters)
        return list(result) if primitive.multiple_results else [result]
