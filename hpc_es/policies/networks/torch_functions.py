"""Functions of PyTorch that calls of many candidates replace.

The vmap of PyTorch cannot batch its recurrent layers (LSTM, GRU and RNN): they are computed from
linear layers and elementwise functions here, with the same equations.

A weight may be common + sum_k left_k right_k (outer products), the same for all candidates plus a
perturbation of low rank. Linear layers, products and look-ups of rows are those with the common
weight plus a correction; other functions get the weight formed. Set up PyTorch before importing
this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Factored:
    """The weight common + sum_k left[k] right[k] (outer products)."""

    name: str
    common: Any  # [rows, columns]
    left: Any  # [rank, rows]
    right: Any  # [rank, columns]

    def terms(self) -> list[tuple[Any, Any]]:
        """Return left[k] and right[k] for each k."""
        return list(zip(self.left.unbind(0), self.right.unbind(0), strict=True))

    def formed(self) -> Any:
        """Return the weight, in the shape of `common`."""
        matrix = sum(left[:, None] * right for left, right in self.terms())
        return self.common + matrix.reshape(self.common.shape)

    def transposed(self) -> Factored:
        """Return the transposed weight."""
        return Factored(self.name, self.common.t(), self.right, self.left)


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """Replaces functions of PyTorch within its context; see the module.

    `formed` are the names of the weights that were formed.
    """

    def __init__(self, weights: Sequence[Factored] = ()) -> None:
        super().__init__()
        # by the identity of `common`, which modules get in place of the weight
        self._weights = {id(weight.common): weight for weight in weights}
        self.formed: dict[str, None] = {}

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        keywords = keywords or {}
        name = getattr(function, "__name__", "")
        if name in RECURRENT and isinstance(function, type(torch.lstm)):
            with self:
                return RECURRENT[name](*arguments, **keywords)
        if self._weights and any(map(self._has_factored, (*arguments, *keywords.values()))):
            return self._with_factored(function, name, arguments, keywords)
        return function(*arguments, **keywords)

    def _factored(self, value: Any) -> Factored | None:
        return self._weights.get(id(value)) if isinstance(value, torch.Tensor) else None

    def _has_factored(self, value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(map(self._has_factored, value))
        return self._factored(value) is not None

    def _with_factored(
        self, function: Any, name: str, arguments: Any, keywords: Mapping[str, Any]
    ) -> Any:
        """Return the result of a function of factored weights."""
        if function in DESCRIPTIONS:
            return function(*arguments, **keywords)
        weights = [self._factored(argument) for argument in arguments]
        if function in TRANSPOSES and weights[0] is not None and not keywords:
            turned = weights[0].transposed()
            self._weights[id(turned.common)] = turned
            return turned.common
        rule = RULES.get(function)
        if rule is not None:
            result = rule(arguments, weights, keywords)
            if result is not None:
                return result
        return function(
            *map(self._plain, arguments),
            **{key: self._plain(value) for key, value in keywords.items()},
        )

    def _plain(self, value: Any) -> Any:
        """Return an argument in which factored weights are formed."""
        if isinstance(value, list | tuple):
            return type(value)(map(self._plain, value))
        weight = self._factored(value)
        if weight is None:
            return value
        self.formed[weight.name] = None
        return weight.formed()


# Recurrent layers, with the arguments of the functions of PyTorch. Dropout is not for inference.


def _lstm_cell(
    x: Any, memory: Sequence[Any], w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None
) -> tuple[Any, Any]:
    h, c = memory
    gates = functional.linear(x, w_x, b_x) + functional.linear(h, w_h, b_h)
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_cell(x: Any, h: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    r_x, z_x, n_x = functional.linear(x, w_x, b_x).chunk(3, -1)
    r_h, z_h, n_h = functional.linear(h, w_h, b_h).chunk(3, -1)
    z = torch.sigmoid(z_x + z_h)
    n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return n + z * (h - n)


def _rnn_tanh_cell(x: Any, h: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    return torch.tanh(functional.linear(x, w_x, b_x) + functional.linear(h, w_h, b_h))


def _rnn_relu_cell(x: Any, h: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    return torch.relu(functional.linear(x, w_x, b_x) + functional.linear(h, w_h, b_h))


def _layers(
    cell: Callable[..., Any],
    x: Any,
    memory: Sequence[Any],
    weights: Sequence[Any],
    options: Sequence[Any],
) -> tuple[Any, list[Any]]:
    """Return the outputs of all steps, and the memory of each layer and direction after them.

    `memory` has [layers * directions, batch, units] once or, for an LSTM, twice.
    """
    has_bias, layers, _, _, both_ways, batch_first = options
    if not isinstance(x, torch.Tensor) or not isinstance(layers, int):
        raise RuntimeError("packed sequences cannot be batched: expected padded ones")
    x = x.transpose(0, 1) if batch_first else x
    number, directions, after = 2 + 2 * has_bias, 1 + both_ways, []
    if len(weights) != number * layers * directions:
        raise RuntimeError("recurrent layers with projections (proj_size) cannot be batched")
    for layer in range(layers):
        results = []
        for direction in range(directions):
            index = layer * directions + direction
            own = weights[index * number : (index + 1) * number]
            state: Any = [leaf[index] for leaf in memory]
            state = state if len(memory) == 2 else state[0]
            steps = list(x.unbind(0))
            outputs = []
            for step in reversed(steps) if direction else steps:
                state = cell(step, state, *own)
                outputs.append(state[0] if len(memory) == 2 else state)
            results.append(torch.stack(outputs[::-1] if direction else outputs))
            after.append(state)
        x = results[0] if directions == 1 else torch.cat(results, -1)
    return (x.transpose(0, 1) if batch_first else x), after


def _lstm(x: Any, memory: Any, weights: Any, *options: Any) -> tuple[Any, Any, Any]:
    outputs, after = _layers(_lstm_cell, x, memory, weights, options)
    h, c = zip(*after, strict=True)
    return outputs, torch.stack(h), torch.stack(c)


def _recurrent(cell: Callable[..., Any]) -> Callable[..., Any]:
    def layers(x: Any, memory: Any, weights: Any, *options: Any) -> tuple[Any, Any]:
        outputs, after = _layers(cell, x, [memory], weights, options)
        return outputs, torch.stack(after)

    return layers


RECURRENT: Mapping[str, Callable[..., Any]] = {
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "rnn_tanh_cell": _rnn_tanh_cell,
    "rnn_relu_cell": _rnn_relu_cell,
    "lstm": _lstm,
    "gru": _recurrent(_gru_cell),
    "rnn_tanh": _recurrent(_rnn_tanh_cell),
    "rnn_relu": _recurrent(_rnn_relu_cell),
}


# Factored weights: rules are (arguments, their weights, keywords) -> result, or None if the weight
# has to be formed.


def _linear(arguments: Any, weights: Any, keywords: Any) -> Any:
    if len(weights) < 2 or weights[1] is None or weights[0] is not None:
        return None
    x, weight = arguments[0], weights[1]
    bias = arguments[2] if len(arguments) > 2 else keywords.get("bias")
    result = functional.linear(x, weight.common, bias)
    for left, right in weight.terms():
        result = result + (x * right).sum(-1, keepdim=True) * left
    return result


def _product(arguments: Any, weights: Any, keywords: Any) -> Any:
    """x W."""
    if len(arguments) != 2 or keywords or weights[0] is not None:
        return None
    x, weight = arguments[0], weights[1]
    result = torch.matmul(x, weight.common)
    for left, right in weight.terms():
        result = result + (x * left).sum(-1, keepdim=True) * right
    return result


def _rows(arguments: Any, weights: Any, keywords: Any) -> Any:
    """Look-ups of rows, such as those of an embedding."""
    if len(weights) < 2 or weights[1] is None or weights[0] is not None:
        return None
    # `max_norm` changes the weight
    if arguments[3:4] not in ((), (None,)) or keywords.get("max_norm") is not None:
        return None
    indices, weight = arguments[0], weights[1]
    result = functional.embedding(indices, weight.common)
    for left, right in weight.terms():
        result = result + left[indices][..., None] * right
    return result


RULES: Mapping[Any, Callable[..., Any]] = {
    functional.linear: _linear,
    torch.matmul: _product,
    torch.Tensor.matmul: _product,
    torch.Tensor.__matmul__: _product,
    torch.mm: _product,
    torch.Tensor.mm: _product,
    functional.embedding: _rows,
}
TRANSPOSES = frozenset({torch.t, torch.Tensor.t, torch.Tensor.T.__get__, torch.Tensor.mT.__get__})
# of shape, dtype and device, which are those of the common weight
DESCRIPTIONS = frozenset(
    {
        torch.Tensor.dim,
        torch.Tensor.size,
        torch.Tensor.numel,
        torch.Tensor.is_floating_point,
        torch.Tensor.shape.__get__,
        torch.Tensor.dtype.__get__,
        torch.Tensor.device.__get__,
        torch.Tensor.ndim.__get__,
        torch.Tensor.requires_grad.__get__,
        torch.Tensor.is_cuda.__get__,
        torch.Tensor.layout.__get__,
        torch.Tensor.is_nested.__get__,
        torch.Tensor.is_sparse.__get__,
        torch.Tensor.__len__,
    }
)
