"""The gradient of the loss of programs, backwards through the pass that has written or read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpc_es.algorithms.policy_gradient.options import TOKENS
from hpc_es.algorithms.policy_gradient.writing import Writing
from hpc_es.core.data import Array


class ProgramBatch(NamedTuple):
    """What the loss makes of the programs of a pass; `dtype` is that of theta.

    loss = sum over rows ( - policy * w * sum_t (returns_t - judged * value_t) log p(token_t)
                           - entropy * sum_t H_t  +  value * sum_t (value_t - returns_t)^2 )

    w is 1 / (1 - a + a q / p) for judged rows, 1 else, where a is the share of replays, q the probability that a
    program is replayed and p the policy's. Values are 0 in a network without.
    """

    lengths: Array  # int32[rows]; 0 gives no loss
    returns: Array  # dtype[rows, length]: what each step is worth
    judged: Array  # dtype[rows]: 1 for programs of this batch, 0 for those that are imitated
    policy: Array  # dtype[rows]
    entropy: Array  # dtype[rows]
    value: Array  # dtype[rows]
    log_replayed: Array | None = None  # float64[rows], ln q, -inf if q is 0; None where there is no replay


class Terms(NamedTuple):
    """What a batch gives."""

    gradients: Array  # dtype[1, params], or [2, params]: of the judged rows' policy term, and of the rest
    policy: Array  # dtype[rows], the term of the loss that `policy` belongs to, times w, sign and `policy` left out
    entropy: Array  # dtype[rows], sum of H
    value: Array  # dtype[rows], sum of squared errors
    log_probability: Array  # dtype[rows], of the program
    w: Array  # dtype[rows]


def differentiate(writing: Writing, batch: ProgramBatch, replayed_share: float = 0.0, apart: bool = False) -> Terms:
    """Return the gradient of the loss and its terms.

    With `apart` the gradient of the judged rows' policy term is given apart from the rest.
    """
    steps, dtype = writing.steps, writing.logits.dtype
    mask = (np.arange(steps)[:, np.newaxis] < batch.lengths).astype(dtype)
    returns = np.ascontiguousarray(batch.returns.T[:steps])
    log_all = _log_softmax(writing.logits)
    p_all = np.exp(log_all)
    chosen = _chosen(writing, dtype)
    log_p, entropy = mask * (chosen * log_all).sum(axis=1), -mask * (p_all * log_all).sum(axis=1)
    values = _values(writing)
    error, probability = mask * (values - returns), log_p.sum(axis=0)
    w = _weights(batch, probability, replayed_share).astype(dtype)
    advantages = returns - batch.judged * values
    terms = Terms(
        gradients=np.zeros(0, dtype),
        policy=w * (advantages * log_p).sum(axis=0),
        entropy=entropy.sum(axis=0),
        value=batch.judged * (error**2).sum(axis=0),
        log_probability=probability,
        w=w,
    )
    by_log_p = (-batch.policy * w * mask * advantages)[:, np.newaxis] * (chosen - p_all)
    rest = (batch.entropy * mask)[:, np.newaxis] * p_all * (log_all + entropy[:, np.newaxis])
    by_value = 2 * batch.value * batch.judged * error
    if not apart:
        taught = _taught(batch)
        some = (taught, (by_log_p + rest)[..., taught], by_value[:, taught])
        return terms._replace(gradients=_gradient(writing, *some)[np.newaxis])
    judged, imitated = batch.judged * by_log_p, (1 - batch.judged) * by_log_p
    whole = slice(0, len(batch.lengths))
    both = [_gradient(writing, whole, judged, 0 * by_value), _gradient(writing, whole, imitated + rest, by_value)]
    return terms._replace(gradients=np.stack(both))


def _taught(batch: ProgramBatch) -> slice:
    """Return the rows from the first to the last that have a part in the loss; the others' gradients are 0."""
    places = np.flatnonzero((batch.policy != 0) | (batch.entropy != 0) | (batch.value != 0))
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _log_softmax(logits: Array) -> Array:
    """Over [steps, tokens, rows]."""
    less = logits - logits.max(axis=1, keepdims=True)
    log_all: Array = less - np.log(np.exp(less).sum(axis=1, keepdims=True))
    return log_all


def _chosen(writing: Writing, dtype: np.dtype[np.generic]) -> Array:
    """1 where a token was written or read, [steps, tokens, rows]."""
    tokens = writing.tokens.T[: writing.steps].astype(np.int64) - writing.network.first_token
    chosen: Array = (tokens[:, np.newaxis] == np.arange(writing.logits.shape[1])[:, np.newaxis]).astype(dtype)
    return chosen


def _weights(batch: ProgramBatch, probability: Array, share: float) -> Array:
    """w of each row; in float64, where p may be smaller than float32 has it."""
    if batch.log_replayed is None:
        return np.ones_like(probability)
    mixed = np.logaddexp(np.log1p(-share), np.log(share) + batch.log_replayed - probability.astype(np.float64))
    return np.where(batch.judged > 0, np.exp(-mixed), 1.0)


def _values(writing: Writing) -> Array:
    """[steps, rows] of the second stack, which reads the programs here; 0 in a network without."""
    if writing.values is None:
        return np.zeros(writing.before.shape, writing.logits.dtype)
    embedding, output = writing.arrays["embedding"].T.copy(), writing.arrays["value/output"]
    writing.values.set(writing.network.weights(writing.arrays, "value"))
    for t, before in enumerate(writing.before):
        embedding.take(before, axis=1, out=writing.values.input(t), mode="clip")
        writing.values.step(t)
    values: Array = np.matmul(output.T, writing.values.h[: writing.steps])[:, 0]
    return values


def _gradient(writing: Writing, rows: slice, by_logits: Array, by_values: Array) -> Array:
    """[params], from the gradients of these rows' logits [steps, tokens, rows] and values [steps, rows]."""
    network, steps, whole = writing.network, writing.steps, rows == slice(0, writing.before.shape[1])
    by_input: Array | float = 0.0
    gradients = {name: np.zeros(shape, by_logits.dtype) for name, shape in network.layout.shapes.items()}
    if rows.start == rows.stop:
        return np.concatenate([zeros.ravel() for zeros in gradients.values()])
    stacks = [("policy", writing.policy, network.first_token, by_logits)]
    if writing.values is not None:
        stacks.append(("value", writing.values, 0, by_values[:, np.newaxis]))
    for stack, every, first, by_outputs in stacks:
        layers = every if whole else every.of(rows)
        output = writing.arrays[f"{stack}/output"][:, first:]
        by_output = np.matmul(layers.h[:steps], by_outputs.transpose(0, 2, 1)).sum(axis=0)
        gradients[f"{stack}/output"][:, first:] = by_output
        weights, by_x = layers.backwards(np.matmul(output, by_outputs))
        for number, (kernel, bias) in enumerate(weights):
            gradients[f"{stack}/{number}/kernel"], gradients[f"{stack}/{number}/bias"] = kernel, bias
        by_input = by_input + by_x
    assert isinstance(by_input, np.ndarray)
    read = (writing.before[:, np.newaxis, rows] == np.arange(TOKENS)[:, np.newaxis]).astype(by_logits.dtype)
    gradients["embedding"] = np.matmul(read, by_input.transpose(0, 2, 1)).sum(axis=0)
    return np.concatenate([gradients[name].ravel() for name in network.layout.shapes])
