"""A network that writes programs token by token (Abolafia et al. 2018, arXiv:1801.03526, section 3).

    embedding of the last token -> LSTM layers -> logits of the next; the first token follows 0

Token 0 ends a program, 1 to 8 are the characters of Brainf*ck. A second stack on the same embedding may tell the value
of each position. Weights are in one flat vector. A batch of programs is sampled by one compiled graph and
differentiated by another. Arithmetic is float32; tests ask for float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.policies.networks import lstm
from hpc_es.policies.networks.layout import Layout, Shape
from hpc_es.policies.networks.lstm_tensorflow import fused, sequence
from hpc_es.policies.networks.tensorflow_setup import tensorflow

TOKENS = 9
END = 0


@dataclass(frozen=True)
class TokenLSTM:
    """The network's form."""

    policy_sizes: tuple[int, ...]
    value_sizes: tuple[int, ...]  # none: it tells no values
    embedding_size: int
    length: int  # tokens of the longest program
    ends: bool  # whether token 0 may be written; otherwise all programs are of full length

    @functools.cached_property
    def layout(self) -> Layout:
        """The embedding, the policy's layers and its output, then the same of the values."""
        shapes: dict[str, Shape] = {"embedding": (TOKENS, self.embedding_size)}
        for stack, sizes, outputs in (("policy", self.policy_sizes, TOKENS), ("value", self.value_sizes, 1)):
            for number, (inputs, units) in enumerate(pairwise((self.embedding_size, *sizes))):
                for name, shape in lstm.shapes(inputs, units).items():
                    shapes[f"{stack}/{number}/{name}"] = shape
            if sizes:
                shapes[f"{stack}/output"] = (sizes[-1], outputs)
        return Layout(shapes)

    @property
    def first_token(self) -> int:
        """The smallest that is written."""
        return END if self.ends else END + 1

    def initial(self, rng: np.random.Generator, factor: float = 1.0) -> Float32:
        """float32[params]: embedding in +-1, biases 0, weights in +-sqrt(6 factor / (inputs + outputs)) (Glorot)."""

        def drawn(name: str, shape: Shape) -> Array:
            if len(shape) == 1:
                return np.zeros(shape)
            limit = 1.0 if name == "embedding" else np.sqrt(6 * factor / sum(shape))
            return rng.uniform(-limit, limit, shape)

        return self.layout.joined({name: drawn(name, shape) for name, shape in self.layout.shapes.items()})

    @functools.cached_property
    def embedded(self) -> int:
        """How many parameters the embedding has; they come first."""
        return prod(self.layout.shapes["embedding"])


def lengths(tokens: Array) -> Array:
    """int32[rows]: tokens of each program up to and with the one that ends it, from [rows, length]."""
    ended = tokens == END
    found: Array = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, tokens.shape[1]).astype(np.int32)
    return found


class ProgramBatch(NamedTuple):
    """Programs and what the loss makes of each; `dtype` is that of the graph.

    loss = sum over rows ( - policy * w * sum_t (returns_t - judged * value_t) log p(token_t)
                           - entropy * sum_t H_t  +  value * sum_t (value_t - returns_t)^2 )

    w is 1 / (1 - a + a q / p) for judged rows, 1 else, where a is the share of replays, q the probability that a
    program is replayed and p the policy's. Values are 0 in a network without.
    """

    tokens: Array  # int32[rows, length]
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


@functools.cache
def sampler(network: TokenLSTM, sharpness: float = 1.0, dtype: str = "float32") -> Callable[[Array, Array], Array]:
    """Return a function of (theta [params], uniform numbers [rows, length]) that writes programs: uint8[rows, length].

    A token is the place of its number among the sums of the probabilities, softmax(sharpness * logits). Zeros stand
    behind the end of a program.
    """
    tf = tensorflow()

    def sample(theta: Any, uniforms: Any) -> Any:
        arrays = network.layout.split(theta, tf.reshape)
        uniforms = tf.transpose(uniforms)
        rows = uniforms.shape[1]
        numbers = tf.TensorArray(theta.dtype, network.length).unstack(uniforms)
        written = tf.TensorArray(tf.int32, network.length, element_shape=[rows])
        zeros = tuple(tf.zeros([rows, units], theta.dtype) for units in network.policy_sizes)

        def step(t: Any, token: Any, ended: Any, h: Any, c: Any, written: Any) -> Any:
            h, c = _step(tf, network, arrays, token, h, c)
            logits = tf.matmul(h[-1], arrays["policy/output"])[:, network.first_token :]
            below = tf.cumsum(tf.nn.softmax(sharpness * logits), axis=1)[:, :-1] <= numbers.read(t)[:, tf.newaxis]
            token = network.first_token + tf.reduce_sum(tf.cast(below, tf.int32), axis=1)
            token = tf.where(ended, END, token)
            return t + 1, token, ended | (token == END), h, c, written.write(t, token)

        first = (0, tf.zeros([rows], tf.int32), tf.zeros([rows], tf.bool), zeros, zeros, written)
        *_, written = tf.while_loop(lambda t, *_: t < network.length, step, first)
        return tf.cast(tf.transpose(written.stack()), tf.uint8)

    compiled = tf.function(sample, autograph=False, jit_compile=dtype == "float32")
    return lambda theta, uniforms: np.asarray(compiled(theta.astype(dtype), uniforms.astype(dtype)))


def _step(tf: Any, network: TokenLSTM, arrays: Any, token: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """(h, c) of each layer after reading a token."""
    ops, x = lstm.TensorFlowOps(tf), tf.matmul(tf.one_hot(token, TOKENS, dtype=h[0].dtype), arrays["embedding"])
    new_h, new_c = [], []
    for number in range(len(network.policy_sizes)):
        kernel, bias = (arrays[f"policy/{number}/{name}"] for name in ("kernel", "bias"))
        x, state = lstm.gates(ops, tf.matmul(tf.concat([x, h[number]], axis=1), kernel) + bias, c[number])
        new_h.append(x)
        new_c.append(state)
    return tuple(new_h), tuple(new_c)


@functools.cache
def differentiator(
    network: TokenLSTM, replayed_share: float = 0.0, apart: bool = False, dtype: str = "float32"
) -> Callable[[Array, ProgramBatch], Terms]:
    """Return a function of (theta [params], batch) that gives the gradient of the loss and its terms.

    With `apart` the gradient of the judged rows' policy term is given apart from the rest.
    """
    tf = tensorflow()

    def differentiate(theta: Any, batch: ProgramBatch) -> Terms:
        with tf.GradientTape(persistent=apart) as tape:
            tape.watch(theta)
            terms = _terms(tf, network, replayed_share, theta, batch)
            policy = -batch.policy * terms.policy
            rest = batch.value * terms.value - batch.entropy * terms.entropy
            parts = (
                [tf.reduce_sum(batch.judged * policy), tf.reduce_sum(rest + (1 - batch.judged) * policy)]
                if apart
                else [tf.reduce_sum(policy + rest)]
            )
        return terms._replace(gradients=tf.stack([tape.gradient(part, theta) for part in parts]))

    compiled = tf.function(differentiate, autograph=False)

    def run(theta: Array, batch: ProgramBatch) -> Terms:
        rows = len(batch.tokens)
        terms = Terms(*(np.asarray(each) for each in compiled(theta.astype(dtype), even(batch))))
        return Terms(terms.gradients, *(each[:rows] for each in terms[1:]))

    return run


def even(batch: ProgramBatch) -> ProgramBatch:
    """With an empty row more where their number is odd, for which the kernel of a layer is slow, and says so."""
    if len(batch.tokens) % 2 == 0:
        return batch
    more: Any = [None if a is None else np.concatenate([a, np.zeros_like(a[:1])]) for a in batch]
    return ProgramBatch(*more)


def _terms(tf: Any, network: TokenLSTM, replayed_share: float, theta: Any, batch: ProgramBatch) -> Terms:
    """Return the terms of the loss as tensors, their gradients left out."""
    log_p, entropy, values = _outputs(tf, network, theta, batch.tokens)
    mask = tf.cast(tf.range(network.length)[:, tf.newaxis] < batch.lengths, theta.dtype)
    returns = tf.transpose(batch.returns)
    probability = tf.reduce_sum(mask * log_p, axis=0)
    w = tf.ones_like(probability)
    if batch.log_replayed is not None:
        mixed = _log_add(
            tf,
            np.log1p(-replayed_share),
            np.log(replayed_share) + batch.log_replayed - tf.cast(probability, tf.float64),
        )
        w = tf.stop_gradient(tf.where(batch.judged > 0, tf.cast(tf.exp(-mixed), theta.dtype), w))
    advantages = tf.stop_gradient(returns - batch.judged * values)
    return Terms(
        gradients=None,  # type: ignore[arg-type]
        policy=w * tf.reduce_sum(mask * advantages * log_p, axis=0),
        entropy=tf.reduce_sum(mask * entropy, axis=0),
        value=batch.judged * tf.reduce_sum(mask * tf.square(values - returns), axis=0),
        log_probability=probability,
        w=w,
    )


def _outputs(tf: Any, network: TokenLSTM, theta: Any, tokens: Any) -> tuple[Any, Any, Any]:
    """log p of the tokens, entropy and value of each step, all [length, rows]."""
    arrays = network.layout.split(theta, tf.reshape)
    tokens = tf.transpose(tokens)
    before = tf.concat([tf.zeros_like(tokens[:1]), tokens[:-1]], axis=0)
    embedded = tf.tensordot(tf.one_hot(before, TOKENS, dtype=theta.dtype), arrays["embedding"], 1)

    def outputs(stack: str, sizes: tuple[int, ...]) -> Any:
        hidden, through = embedded, fused if theta.dtype == tf.float32 else sequence
        for number in range(len(sizes)):
            kernel, bias = (arrays[f"{stack}/{number}/{name}"] for name in ("kernel", "bias"))
            hidden = through(tf, hidden, kernel, bias)
        return tf.tensordot(hidden, arrays[f"{stack}/output"], 1)

    log_all = tf.nn.log_softmax(outputs("policy", network.policy_sizes)[..., network.first_token :])
    chosen = tf.one_hot(tokens - network.first_token, TOKENS - network.first_token, dtype=theta.dtype)
    log_p = tf.reduce_sum(chosen * log_all, axis=-1)
    entropy = -tf.reduce_sum(tf.exp(log_all) * log_all, axis=-1)
    values = outputs("value", network.value_sizes)[..., 0] if network.value_sizes else tf.zeros_like(log_p)
    return log_p, entropy, values


def _log_add(tf: Any, a: float, b: Any) -> Any:
    """ln(e^a + e^b), b may be -inf."""
    larger = tf.maximum(tf.cast(a, b.dtype), b)
    return larger + tf.math.log(tf.exp(a - larger) + tf.exp(b - larger))
