"""The network that writes programs: parameters, sampling, and the gradient of its loss."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Array
from hpc_es.programs.policy_gradient.loss import LossTerms, ProgramBatch, loss_gradient
from hpc_es.programs.policy_gradient.token_lstm import TOKENS, TokenLSTM, lengths, sample_programs

SMALL = TokenLSTM((5,), (), 3, 2, ends=True)
RNG = np.random.default_rng


def theta_of(network: TokenLSTM, seed: int = 1, spread: float = 2.0) -> Array:
    """Parameters far from even odds."""
    return spread * network.initial(RNG(seed)).astype(np.float64)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def stack(arrays: Any, name: str, layers: int, inputs: Array) -> Array:
    """The outputs of a stack of layers over [steps, inputs], cell by cell,
    as in Zaremba et al. 2014.
    """
    for layer in range(layers):
        kernel, bias = arrays[f"{name}/{layer}/kernel"], arrays[f"{name}/{layer}/bias"]
        h = c = np.zeros(kernel.shape[1] // 4)
        hidden = []
        for x in inputs:
            i, j, f, o = np.split(np.concatenate([x, h]) @ kernel + bias, 4)
            c = c * sigmoid(f + 1) + sigmoid(i) * np.tanh(j)
            h = np.tanh(c) * sigmoid(o)
            hidden.append(h)
        inputs = np.array(hidden)
    outputs: Array = inputs @ arrays[f"{name}/output"]
    return outputs


def odds(network: TokenLSTM, theta: Array, tokens: Any) -> Array:
    """[steps, TOKENS] probabilities before each token of one program."""
    arrays = network.layout.split(theta)
    logits = stack(
        arrays, "policy", len(network.policy_sizes), arrays["embedding"][[0, *tokens[:-1]]]
    )
    weights = np.exp(logits)
    weights[:, : network.first_token] = 0
    normalised: Array = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def batch(network: TokenLSTM, tokens: Any, **fields: Any) -> ProgramBatch:
    """A batch of programs with the loss -sum ln p, unless `fields` replace it."""
    tokens = np.array(tokens)
    ones = np.ones(len(tokens))
    options: dict[str, Any] = {
        "lengths": lengths(tokens),
        "returns": np.ones(tokens.shape),
        "rewarded": ones,
        "policy": ones,
        "entropy": 0 * ones,
        "value": 0 * ones,
    }
    return ProgramBatch(**{**options, **fields})


def written(
    network: TokenLSTM, theta: Array, numbers: Array, sharpness: float = 1.0, noise: float = 0.0
) -> Array:
    return sample_programs(network, theta, numbers, sharpness, noise=noise).tokens


def terms_of(
    network: TokenLSTM, theta: Array, tokens: Any, message: ProgramBatch, *arguments: Any
) -> LossTerms:
    """The terms of the loss of these programs."""
    nothing = np.zeros((0, network.length))
    return loss_gradient(
        sample_programs(network, theta, nothing, forced=np.array(tokens, np.uint8)),
        message,
        *arguments,
    )


def single(message: ProgramBatch) -> ProgramBatch:
    """The batch in float32, except the probabilities."""
    names = ("returns", "rewarded", "policy", "entropy", "value")
    return message._replace(**{name: getattr(message, name).astype(np.float32) for name in names})


# Form.


def test_default_network_has_the_parameter_count_of_the_paper() -> None:
    network = TokenLSTM((35, 35), (), 10, 100, ends=False)
    assert network.layout.size == 90 + (45 * 140 + 140) + (70 * 140 + 140) + 315 == 16_785
    assert next(iter(network.layout.shapes)) == "embedding"
    assert network.embedding_parameters == 90


def test_value_network_exists_only_if_configured() -> None:
    network = TokenLSTM((5,), (4,), 3, 2, ends=True)
    assert network.layout.size == SMALL.layout.size + 4 * 4 * (3 + 4 + 1) + 4


def test_initial_weights_are_uniform_within_their_limits() -> None:
    network = TokenLSTM((35, 35), (), 10, 100, ends=False)
    arrays = network.layout.split(network.initial(RNG(0), factor=0.5))
    assert 0.95 < np.abs(arrays["embedding"]).max() <= 1
    for number, inputs in enumerate((10, 35)):
        assert not arrays[f"policy/{number}/bias"].any()
        limit = np.sqrt(3 * 0.5 / ((inputs + 35 + 140) / 2))
        assert 0.99 * limit < np.abs(arrays[f"policy/{number}/kernel"]).max() <= limit
    limit = np.sqrt(3 * 0.5 / ((35 + 9) / 2))
    assert 0.97 * limit < np.abs(arrays["policy/output"]).max() <= limit


def test_lengths_include_the_end_token() -> None:
    tokens = np.array([[0, 0, 0], [3, 0, 0], [3, 4, 0], [3, 4, 5]])
    assert lengths(tokens).tolist() == [1, 2, 3, 3]


# Writing.


@pytest.mark.parametrize(("sharpness", "noise"), [(1.0, 0.0), (2.5, 0.0), (1.0, 0.3)])
def test_token_is_the_quantile_of_its_uniform_number(sharpness: float, noise: float) -> None:
    network = TokenLSTM((5, 4), (), 3, 6, ends=False)
    theta, numbers = theta_of(network), RNG(2).random((40, 6))
    programs = written(network, theta, numbers, sharpness, noise)
    assert programs.dtype == np.uint8 and programs.shape == (40, 6)
    for row, drawn in zip(programs, numbers, strict=True):
        weights = odds(network, theta, row) ** sharpness
        mixed = (1 - noise) * weights / weights.sum(axis=1, keepdims=True) + noise / 8 * (
            weights > 0
        )
        sums = np.cumsum(mixed, axis=1)
        assert row.tolist() == [int((sums[t] <= drawn[t]).sum()) for t in range(6)]


def test_tokens_after_the_end_are_zero() -> None:
    network = TokenLSTM((5,), (), 3, 8, ends=True)
    programs = written(network, network.initial(RNG(0)), RNG(1).random((200, 8)))
    reached = lengths(programs)
    assert len(set(reached.tolist())) > 1
    for row, length in zip(programs, reached, strict=True):
        assert (row[: length - 1] > 0).all() and not row[length:].any()


def test_sampling_stops_after_the_longest_program() -> None:
    network, ends_at = TokenLSTM((5,), (), 3, 8, ends=True), np.array([[0.9, 0.0], [0.0, 0.9]])
    numbers = np.concatenate([ends_at, np.full((2, 6), 0.9).T.reshape(2, 6)], axis=1)
    # even odds: 0 gives token 0, which ends, and 0.9 the last one
    theta = 0 * network.initial(RNG(0))
    writing = sample_programs(
        network, theta, numbers, forced=np.array([[3, 4, 5, 0, 0, 0, 0, 0]], np.uint8)
    )
    assert writing.tokens.tolist() == [[8, 0, *[0] * 6], [0] * 8, [3, 4, 5, 0, 0, 0, 0, 0]]
    assert writing.steps == 4 and len(writing.logits) == 4
    assert sample_programs(network, theta, numbers).steps == 2


def test_programs_without_end_token_have_full_length() -> None:
    network = TokenLSTM((5,), (), 3, 8, ends=False)
    programs = written(network, network.initial(RNG(0)), RNG(1).random((200, 8)))
    assert programs.min() == 1 and programs.max() == TOKENS - 1


@pytest.mark.long
def test_program_does_not_depend_on_the_batch() -> None:
    network = TokenLSTM((35, 35), (), 10, 20, ends=True)
    theta, numbers = network.initial(RNG(0)), RNG(1).random((12, 20))
    together = written(network, theta, numbers)
    apart = np.concatenate(
        [written(network, theta, numbers[start : start + 4]) for start in (0, 4, 8)]
    )
    assert np.array_equal(together, apart)


# The loss.


def test_log_probabilities_equal_those_of_the_cells() -> None:
    network = TokenLSTM((5, 4), (3, 2), 3, 4, ends=True)
    theta = theta_of(network)
    tokens = np.array([[3, 1, 0, 0], [8, 7, 6, 5], [0, 0, 0, 0]])
    returns = RNG(3).standard_normal((3, 4))
    terms = terms_of(network, theta, tokens, batch(network, tokens, returns=returns))
    arrays = network.layout.split(theta)
    for row, (program, length) in enumerate(zip(tokens, lengths(tokens), strict=True)):
        p = odds(network, theta, program)
        log_p = np.log(p[range(4), program])[:length]
        values = stack(arrays, "value", 2, arrays["embedding"][[0, *program[:-1]]])[:length, 0]
        error = returns[row, :length] - values
        np.testing.assert_allclose(terms.log_probability[row], log_p.sum(), rtol=1e-12)
        np.testing.assert_allclose(terms.policy[row], (error * log_p).sum(), rtol=1e-12)
        np.testing.assert_allclose(terms.entropy[row], -(p * np.log(p))[:length].sum(), rtol=1e-12)
        np.testing.assert_allclose(terms.value[row], (error**2).sum(), rtol=1e-12)


def test_imitated_programs_have_no_value_loss_and_empty_ones_no_loss() -> None:
    network = TokenLSTM((5,), (3,), 3, 2, ends=True)
    theta, one = theta_of(network), np.ones(2)
    tokens = [[3, 1], [3, 1]]
    message = batch(
        network, tokens, rewarded=0 * one, value=one, lengths=np.array([2, 0], np.int32)
    )
    terms = terms_of(network, theta, tokens, message)
    assert terms.value.tolist() == [0, 0]
    np.testing.assert_allclose(terms.policy, [terms.log_probability[0], 0])
    empty = message._replace(lengths=np.array([0, 0], np.int32))
    assert not terms_of(network, theta, tokens, empty).gradients.any()


VALUED = TokenLSTM((4, 3), (3,), 2, 3, ends=True)
FIXED = TokenLSTM((4,), (), 2, 3, ends=False)


@pytest.mark.parametrize("network", [pytest.param(VALUED, marks=pytest.mark.long), FIXED])
def test_gradient_equals_central_differences(network: TokenLSTM) -> None:
    """For each parameter of a loss in which advantages are constants."""
    rng, theta = RNG(5), theta_of(network, spread=1.0)
    tokens = (
        [[3, 1, 8], [2, 2, 2], [5, 6, 7]] if network is FIXED else [[3, 0, 0], [8, 7, 6], [0, 0, 0]]
    )
    judged = np.array([1.0, 1.0, 0.0])
    fields = {name: rng.random(3) for name in ("policy", "entropy", "value")}
    message = batch(network, tokens, returns=rng.standard_normal((3, 3)), rewarded=judged, **fields)
    result = terms_of(network, theta, tokens, message).gradients[0]

    # d/dtheta of policy * (returns - value) * ln p, the value held: two calls with the values'
    # share taken out
    def loss(at: Array) -> float:
        cached = message._replace(
            returns=message.returns - values, rewarded=0 * judged, value=0 * judged
        )
        terms = terms_of(network, at, tokens, cached)
        total = -message.policy @ terms.policy - message.entropy @ terms.entropy
        return float(total + message.value @ terms_of(network, at, tokens, message).value)

    arrays = network.layout.split(theta)
    values = np.zeros((3, 3))
    if network.value_sizes:
        for row, program in enumerate(np.array(tokens)):
            outputs = stack(arrays, "value", 1, arrays["embedding"][[0, *program[:-1]]])
            values[row] = judged[row] * outputs[:, 0]
    step = 1e-6
    for index in range(theta.size):
        there, back = theta.copy(), theta.copy()
        there[index] += step
        back[index] -= step
        expected = (loss(there) - loss(back)) / (2 * step)
        np.testing.assert_allclose(
            result[index], expected, rtol=1e-5, atol=1e-7, err_msg=str(index)
        )


@pytest.mark.parametrize("taught", [(0, 0, 1, 1), (0, 1, 0, 0), (1, 0, 1, 0), (0, 0, 0, 0)])
def test_rows_with_zero_weight_are_skipped(taught: tuple[int, ...]) -> None:
    """The gradient is that of the other rows, because it is a sum over rows."""
    network = TokenLSTM((5, 4), (3,), 3, 3, ends=True)
    theta, tokens = theta_of(network), np.array([[3, 1, 8], [2, 2, 0], [5, 6, 7], [8, 0, 0]])
    factors, returns = np.array(taught, np.float64), RNG(7).standard_normal((4, 3))
    message = batch(network, tokens, returns=returns, policy=2 * factors, value=factors)
    result = terms_of(network, theta, tokens, message)
    expected = np.zeros(theta.size)
    for row in np.flatnonzero(factors):
        only = batch(
            network, tokens[[row]], returns=returns[[row]], policy=2 * np.ones(1), value=np.ones(1)
        )
        expected += terms_of(network, theta, tokens[[row]], only).gradients[0]
    np.testing.assert_allclose(result.gradients[0], expected, rtol=1e-10, atol=1e-12)
    assert result.log_probability.all()  # of all rows


@pytest.mark.long
def test_gradient_in_float32_equals_float64_to_its_precision() -> None:
    network, rng = TokenLSTM((35, 35), (35,), 10, 30, ends=True), RNG(0)
    theta = network.initial(rng)
    tokens = written(network, theta, rng.random((8, 30)))
    message = batch(
        network, tokens, returns=rng.random((8, 30)), entropy=np.full(8, 0.1), value=np.full(8, 0.5)
    )
    result = terms_of(network, theta, tokens, single(message))
    expected = terms_of(network, theta.astype(np.float64), tokens, message)
    for name in ("policy", "entropy", "value", "log_probability"):
        np.testing.assert_allclose(getattr(result, name), getattr(expected, name), rtol=1e-4)
    length = np.linalg.norm(expected.gradients)
    assert np.linalg.norm(result.gradients - expected.gradients) < 1e-5 * length


@pytest.mark.long
def test_gradient_is_the_sum_of_its_parts() -> None:
    theta = theta_of(SMALL)
    tokens = [[3, 1], [0, 0], [4, 4]]
    message = batch(
        SMALL, tokens, rewarded=np.array([1.0, 1, 0]), entropy=np.array([0.1, 0.1, 0]),
        returns=RNG(0).random((3, 2)), log_replayed=np.log([0.5, 0.2, 1]),
    )  # fmt: skip
    whole = terms_of(SMALL, theta, tokens, message, 0.5).gradients
    judged, rest = terms_of(SMALL, theta, tokens, message, 0.5, True).gradients
    np.testing.assert_allclose(judged + rest, whole[0], rtol=1e-12, atol=1e-14)
    only = message._replace(entropy=0 * message.entropy, policy=message.policy * message.rewarded)
    np.testing.assert_allclose(
        judged, terms_of(SMALL, theta, tokens, only, 0.5).gradients[0], rtol=1e-12, atol=1e-14
    )


def test_importance_weights_by_hand() -> None:
    """w = 1 / (1 - a + a q / p), and 1 for an imitated program."""
    theta, a = theta_of(SMALL), 0.25
    with np.errstate(divide="ignore"):
        odds_of_replay = np.log([0.5, 0, 0.3])
    tokens = [[3, 1], [3, 1], [4, 0]]
    message = batch(SMALL, tokens, rewarded=np.array([1.0, 1, 0]), log_replayed=odds_of_replay)
    terms = terms_of(SMALL, theta, tokens, message, a)
    p = np.exp(terms.log_probability)
    np.testing.assert_allclose(terms.w, [1 / (0.75 + a * 0.5 / p[0]), 1 / 0.75, 1], rtol=1e-12)
    plain = terms_of(SMALL, theta, tokens, message._replace(log_replayed=None))
    np.testing.assert_allclose(terms.policy, terms.w * plain.policy, rtol=1e-12)


def test_program_with_zero_probability_in_float32_has_a_weight() -> None:
    network = TokenLSTM((5,), (), 3, 100, ends=False)
    tokens = RNG(0).integers(1, 9, (2, 100))
    message = batch(network, tokens, log_replayed=np.array([np.log(1e-3), -np.inf]))
    terms = terms_of(network, network.initial(RNG(0)), tokens, single(message), 0.5)
    assert np.exp(terms.log_probability[0]) == 0
    assert terms.w.tolist() == [0, 2]
    assert np.isfinite(terms.gradients).all()


# Monte Carlo against enumeration.

EVERY = [(0, 0), *product(range(1, TOKENS), range(TOKENS))]  # all programs of at most two tokens


def smape(a: Any, b: Any) -> float:
    """Symmetric relative error."""
    return float(abs(a - b) / ((abs(a) + abs(b)) / 2))


@pytest.mark.long
def test_sampled_gradient_equals_the_exact_one() -> None:
    """With this seed; about half of all other seeds exceed the tolerances of angle and norm."""
    assert len(EVERY) == 73
    network, samples = TokenLSTM((10,), (), 10, 2, ends=True), 100_000
    theta, numbers = network.initial(RNG(4)).astype(np.float64), RNG(12).random((samples, 2))
    rewards = {
        program: float(value) for program, value in zip(EVERY, RNG(9).random(73), strict=True)
    }

    def estimate(tokens: Any, weights: Array) -> tuple[Array, Array]:
        """Probabilities, and the gradient of sum weight * reward * ln p."""
        reward = np.array([rewards[tuple(row)] for row in tokens])
        returns = np.repeat(reward[:, np.newaxis], 2, axis=1)
        terms = terms_of(
            network, theta, tokens, batch(network, tokens, returns=returns, policy=weights)
        )
        return np.exp(terms.log_probability), terms.gradients[0]

    p, _ = estimate(np.array(EVERY), np.ones(73))
    assert abs(p.sum() - 1) < 1e-12
    _, exact = estimate(np.array(EVERY), p)
    programs = written(network, theta, numbers).tolist()
    _, sampled = estimate(programs, np.full(samples, 1 / samples))

    counts = np.array([programs.count(list(program)) for program in EVERY])
    assert counts.sum() == samples
    assert max(smape(count / samples, item) for count, item in zip(counts, p, strict=True)) < 0.15
    expected = sum(item * rewards[program] for item, program in zip(p, EVERY, strict=True))
    assert smape(np.mean([rewards[tuple(row)] for row in programs]), expected) < 0.005
    angle = np.arccos(exact @ sampled / np.linalg.norm(exact) / np.linalg.norm(sampled))
    assert angle < 0.02 * np.pi
    assert smape(np.linalg.norm(exact), np.linalg.norm(sampled)) < 0.02
