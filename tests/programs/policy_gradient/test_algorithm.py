"""Policy gradient and priority queue training, update by update on one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpc_es.actor_critic.loss import targets
from hpc_es.algorithms.common.optimizers import GRADIENT, norm
from hpc_es.core.data import CORRECT, NO_FITNESS, Array, Outcome, Results, State, row_dtype
from hpc_es.core.keys import Keys
from hpc_es.programs import task as programs
from hpc_es.programs.policy_gradient.algorithm import (
    PolicyGradient,
    build,
    draw_imitated,
    empty_queue,
    updated_queue,
)
from hpc_es.programs.policy_gradient.loss import SUMS, ProgramBatch, loss_gradient, updated_baseline
from hpc_es.programs.policy_gradient.options import Options
from hpc_es.programs.policy_gradient.token_lstm import lengths, sample_programs
from tests.helpers.toys import nothing

NO_ROWS = np.zeros(0, row_dtype((CORRECT,)))
SMALL: dict[str, Any] = {"batch_size": 8, "policy_lstm_sizes": (5,), "value_lstm_sizes": (4,)}


def created(
    chunk_size: int = 4, seed: int = 1, length: int = 4, task: str = "reverse", **options: Any
) -> PolicyGradient:
    """The algorithm with a small network."""
    arguments: Any = Options
    optimizer = options.pop("optimizer", {"kind": "sgd", "learning_rate": 1.0})
    settings = arguments(
        **{**SMALL, **options},
        optimizer=arguments.__dataclass_fields__["optimizer"].default_factory(),
    )
    settings = replace(settings, optimizer=replace(settings.optimizer, **optimizer))
    coding: Any = programs.Options
    problem = programs.build(coding(name=task, max_code_length=length))
    return build(settings, problem, None, Keys(seed), chunk_size)


def generation(algorithm: PolicyGradient, state: State) -> tuple[list[Outcome], Results]:
    """Its outcomes in chunk order."""
    outcomes = [
        algorithm.evaluate(state, chunk, nothing)
        for chunk in algorithm.ask(state, 0, NO_ROWS, NO_FITNESS)
    ]
    rows = np.concatenate([outcome.rows for outcome in outcomes])
    return outcomes, Results(rows, [outcome.arrays for outcome in outcomes], [])


def trained(algorithm: PolicyGradient, generations: int) -> tuple[State, list[dict[str, float]]]:
    """The state and metrics after some updates."""
    state, rows = algorithm.initial(), []
    for _ in range(generations):
        state, metrics = algorithm.tell(state, generation(algorithm, state)[1])
        rows.append(dict(metrics))
    return state, rows


def whole(algorithm: PolicyGradient, state: State) -> Array:
    """The gradient of the batch."""
    _, results = generation(algorithm, state)
    gradients, _ = algorithm.loss.gradients(state.theta, results.chunk_arrays)
    total: Array = sum(item[GRADIENT].astype(np.float64) for item in gradients)  # type: ignore[assignment]
    return total


# Updates.


@pytest.mark.parametrize("decay", [0.99, 0.0])
def test_update_subtracts_the_rate_times_the_clipped_gradient(decay: float) -> None:
    algorithm = created(eos_token=True, ema_baseline_decay=decay, grad_clip_threshold=0.5)
    state = algorithm.initial()
    _, results = generation(algorithm, state)
    after, metrics = algorithm.tell(state, results)
    gradient = whole(algorithm, state)
    assert (
        metrics["gradient_norm"] == pytest.approx(norm(gradient)) and metrics["gradient_norm"] > 0.5
    )
    expected = state.theta - gradient * 0.5 / norm(gradient)
    np.testing.assert_allclose(after.theta, expected, rtol=1e-4, atol=1e-6)
    for name, part in algorithm.network.layout.split(gradient).items():
        assert (part != 0).any(), name
        assert name == "embedding" or (part != 0).all(), name


@pytest.mark.parametrize(
    "options",
    [
        {"topk": 2, "topk_loss_hparam": 1.0},
        pytest.param({"ema_baseline_decay": 0.0}, marks=pytest.mark.long),
        pytest.param({}, marks=pytest.mark.long),
    ],
)
def test_chunk_gradients_sum_to_the_gradient_of_the_batch(options: dict[str, Any]) -> None:
    """For any division into chunks."""
    state, _ = trained(created(eos_token=True, **options), 2)
    one = whole(created(eos_token=True, chunk_size=8, **options), state)
    for size in (1, 3, 4):
        some = created(eos_token=True, chunk_size=size, **options)
        np.testing.assert_allclose(
            whole(some, state), one, rtol=1e-4, atol=1e-4 * np.abs(one).max()
        )


def test_asynchronous_updates_have_one_chunk_per_batch() -> None:
    algorithm = created(updates="asynchronous", chunk_size=3)
    assert [chunk.jobs for chunk in algorithm.ask(algorithm.initial(), 0, NO_ROWS, NO_FITNESS)] == [
        8
    ]
    assert [
        chunk.jobs
        for chunk in created(chunk_size=3).ask(algorithm.initial(), 0, NO_ROWS, NO_FITNESS)
    ] == [3, 3, 2]


def test_loss_is_the_scaled_mean_of_the_paper() -> None:
    """Without a baseline yet: 64 / B sum R ln p, without the entropy."""
    algorithm = created(chunk_size=8, entropy_beta=0.0, pi_loss_hparam=2.0)
    state = algorithm.initial()
    (outcome,), _ = generation(algorithm, state)
    sums = dict(
        zip(("policy", "value", "imitation", "entropy"), outcome.arrays["sums"][:4], strict=True)
    )
    rewards = outcome.rows["return_"]
    ln_p = np.log(1 / 8) * 4  # nearly: the new network has nearly even odds
    assert sums["policy"] == pytest.approx(-2 * 64 / 8 * ln_p * rewards.sum(), rel=0.3)
    assert sums["value"] == sums["imitation"] == 0
    assert sums["entropy"] == pytest.approx(8 * 4 * np.log(8), rel=0.05)


def test_regularizer_covers_all_weights_except_the_embedding() -> None:
    plain, decayed = created(eos_token=True), created(eos_token=True, regularizer=0.5)
    state = plain.initial()
    difference = whole(decayed, state) - whole(plain, state)
    expected = 0.5 * state.theta.astype(np.float64)
    expected[: 9 * 10] = 0
    np.testing.assert_allclose(difference, expected, atol=1e-6)


def test_programs_depend_on_jobs_and_not_on_chunks() -> None:
    few, many = created(chunk_size=2, eos_token=True), created(chunk_size=8, eos_token=True)
    state = few.initial()
    tokens = [
        np.concatenate([o.arrays["tokens"] for o in generation(item, state)[0]])
        for item in (few, many)
    ]
    assert np.array_equal(*tokens)
    later = np.concatenate(
        [o.arrays["tokens"] for o in generation(few, replace(state, generation=1))[0]]
    )
    assert not np.array_equal(tokens[0], later)


def test_rows_have_the_scores_of_the_programs() -> None:
    algorithm = created(eos_token=True, length=12)
    for outcome in generation(algorithm, algorithm.initial())[0]:
        table = "_" + algorithm.problem.alphabet
        for tokens, row in zip(outcome.arrays["tokens"], outcome.rows, strict=True):
            text = "".join(table[token] for token in tokens[: lengths(tokens[np.newaxis])[0]])
            score = algorithm.problem.coding.score(text)
            assert (row["return_"], bool(row["correct"]), row["length"]) == (
                score.reward,
                score.correct,
                len(text),
            )
            assert ("_" in text) == (text.endswith("_")) and text.count("_") <= 1


# The baseline.


def test_baseline_by_hand() -> None:
    """b = d b + (1 - d) R for each program in turn, up to its length."""
    after = updated_baseline(np.array([1.0, 1.0, 1.0]), np.array([3.0, 5.0]), np.array([3, 2]), 0.5)
    assert after.tolist() == [3.5, 3.5, 2.0]


def test_update_uses_the_baseline_before_it() -> None:
    algorithm = created(pi_loss_hparam=1.0, entropy_beta=0.0)
    state = algorithm.initial()
    assert not state.shared["baseline"].any()
    after, _ = algorithm.tell(state, generation(algorithm, state)[1])
    expected = 0.0
    for reward in generation(algorithm, state)[1].rows["return_"]:
        expected = 0.99 * expected + 0.01 * reward
    np.testing.assert_allclose(after.shared["baseline"], np.full(4, expected), rtol=1e-12)


def test_baseline_equal_to_all_rewards_gives_zero_gradient() -> None:
    algorithm = created(entropy_beta=0.0)
    state = algorithm.initial()
    chunk = algorithm.ask(state, 0, NO_ROWS, NO_FITNESS)[0]
    shared = {**state.shared, "baseline": np.full(4, 0.7)}
    writing = algorithm.sampled(state, chunk)
    even = algorithm.loss.chunk_arrays(shared, writing, np.full(chunk.jobs, 0.7), 0, 2)
    assert not even[GRADIENT].any()
    assert algorithm.loss.chunk_arrays(shared, writing, np.full(chunk.jobs, 0.8), 0, 2)[
        GRADIENT
    ].any()


def test_returns_and_advantages_of_the_published_episode() -> None:
    """A reward of ord(c) per character: the values of the reference implementation's own test."""
    rewards = np.array(
        [ord(c) for c in "".join("_><+-[].,"[t] for t in (4, 5, 3, 6, 8, 1, 0))] + [0.0]
    )
    assert rewards[:-1].tolist() == [45, 91, 43, 93, 44, 62, 95]
    values = np.array([0, 1, 2, 1, 0, 1, 1, 0.0])
    returns, advantages = targets(rewards, values, 1.0, 1.0)
    assert returns.tolist() == [473, 428, 337, 294, 201, 157, 95, 0]
    assert advantages.tolist() == [473, 427, 335, 293, 201, 156, 94, 0]
    assert advantages.tolist() == (returns - values).tolist()  # as the loss computes them


# The queue.


def test_queue_keeps_each_best_program_once_and_prefers_older_ones() -> None:
    arrays = empty_queue(2, 3)
    for tokens, reward in (
        ([1, 2, 3], 0.1),
        ([1, 2, 3], 0.9),
        ([2, 2, 2], 0.5),
        ([3, 3, 3], 0.1),
        ([4, 4, 4], 0.2),
    ):
        arrays = updated_queue(arrays, np.array([tokens], np.uint8), np.array([reward]))
    assert arrays["queue_tokens"].tolist() == [[2, 2, 2], [4, 4, 4]]
    assert arrays["queue_rewards"].tolist() == [0.5, 0.2]
    tied = updated_queue(arrays, np.array([[5, 5, 5]], np.uint8), np.array([0.2]))
    assert tied["queue_tokens"].tolist() == arrays["queue_tokens"].tolist()


@pytest.mark.parametrize(
    ("ties", "unique", "expected"),
    [
        ("older", "programs", [(0.5, 2), (0.2, 1), (0.2, 3)]),
        ("newer", "programs", [(0.5, 2), (0.2, 4), (0.2, 3)]),
        ("older", "rewards", [(0.5, 2), (0.2, 1), (0.1, 5)]),
        ("newer", "rewards", [(0.5, 2), (0.2, 4), (0.1, 5)]),
    ],
)
def test_queue_after_programs_with_equal_rewards(
    ties: Any, unique: Any, expected: list[tuple[float, int]]
) -> None:
    """Programs 1, 3, 4 and 3 again have 0.2; NaN is not a reward."""
    tokens = np.array([[1], [2], [3], [4], [5], [3], [6]], np.uint8)
    rewards = np.array([0.2, 0.5, 0.2, 0.2, 0.1, 0.2, np.nan])
    if (ties, unique) == ("newer", "rewards"):
        tokens, rewards = np.delete(tokens, 5, 0), np.delete(rewards, 5)  # else 3 came back
    arrays = updated_queue(empty_queue(3, 1), tokens, rewards, ties, unique)
    assert (
        list(
            zip(
                arrays["queue_rewards"].tolist(), arrays["queue_tokens"][:, 0].tolist(), strict=True
            )
        )
        == expected
    )


def test_all_programs_of_a_batch_are_queued_if_configured() -> None:
    algorithm = created(topk=8, topk_loss_hparam=1.0, topk_offered="all")
    state = algorithm.initial()
    _, results = generation(algorithm, state)
    after, _ = algorithm.tell(state, results)
    tokens = np.concatenate([arrays["tokens"] for arrays in results.chunk_arrays])
    assert {row.tobytes() for row in after.master["queue_tokens"]} == {
        row.tobytes() for row in tokens
    }
    assert after.master["queue_rewards"].tolist() == sorted(
        results.rows["return_"].tolist(), reverse=True
    )


# Restarts.


def test_weights_and_queue_restart_without_improvement() -> None:
    """Batches of 8: after 16 programs that are not better than the best since the last restart."""
    algorithm = created(topk=2, topk_loss_hparam=1.0, restart_programs=16)
    state = algorithm.initial()
    _, results = generation(algorithm, state)
    rows = results.rows.copy()
    for expected, best in ((0, 0.5), (8, 0.5), (0, 0.6), (8, 0.1)):
        rows["return_"] = best
        state, metrics = algorithm.tell(state, replace(results, rows=rows))
        assert int(state.master["try_waited"]) == expected and metrics["restarts"] == 0
    before = state
    state, _ = algorithm.tell(state, replace(results, rows=rows))
    assert (int(state.master["restarts"]), int(state.master["queue_count"])) == (1, 0)
    assert state.master["try_reward"] == -np.inf and state.generation == 5
    # what was found stays
    assert state.master["best_reward"] == 0.6 and int(state.master["executed"]) == 40
    assert abs(np.corrcoef(state.theta, before.theta)[0, 1]) < 0.2
    assert abs(np.corrcoef(state.theta, algorithm.initial().theta)[0, 1]) < 0.2


# Draws.


def test_draws_from_the_queue_are_uniform_and_none_if_empty() -> None:
    arrays = empty_queue(3, 2)
    assert draw_imitated(arrays, 2, np.random.default_rng(0))["imitated_lengths"].tolist() == [0, 0]
    for token in (1, 2):
        arrays = updated_queue(arrays, np.array([[token, 0]], np.uint8), np.array([float(token)]))
    drawn = draw_imitated(arrays, 1000, np.random.default_rng(0))
    assert set(drawn["imitated_lengths"].tolist()) == {2}
    assert np.bincount(drawn["imitated_tokens"][:, 0], minlength=3)[[0, 1, 2]] == pytest.approx(
        [0, 500, 500], abs=50
    )


def test_each_update_queues_the_best_program_of_its_batch() -> None:
    algorithm = created(topk=3, topk_loss_hparam=1.0)
    state = algorithm.initial()
    _, results = generation(algorithm, state)
    after, metrics = algorithm.tell(state, results)
    best = int(results.rows["return_"].argmax())
    tokens = np.concatenate([arrays["tokens"] for arrays in results.chunk_arrays])
    assert int(after.master["queue_count"]) == 1
    assert (
        after.master["queue_tokens"][0].tolist()
        == tokens[best].tolist()
        == after.shared["imitated_tokens"][0].tolist()
    )
    assert after.master["queue_rewards"][0] == results.rows["return_"].max()
    assert metrics["imitation_loss"] == 0


def test_empty_queue_gives_zero_gradient() -> None:
    plain, queued = created(), created(topk=3, topk_loss_hparam=100.0)
    np.testing.assert_allclose(
        whole(queued, queued.initial()), whole(plain, plain.initial()), rtol=1e-5, atol=1e-6
    )


def test_priority_queue_training_increases_the_queued_probability() -> None:
    algorithm = created(
        **{"topk": 1, "topk_loss_hparam": 1.0, "pi_loss_hparam": 0.0, "entropy_beta": 0.0},
        optimizer={"kind": "adam", "learning_rate": 0.05},
    )
    state, _ = trained(algorithm, 1)
    # nothing takes its place
    state = replace(state, master={**state.master, "queue_rewards": np.array([100.0])})
    losses = []
    for _ in range(30):
        state, metrics = algorithm.tell(state, generation(algorithm, state)[1])
        losses.append(metrics["imitation_loss"])
        assert metrics["policy_loss"] == 0
    assert losses[0] == pytest.approx(4 * np.log(8), rel=0.3)
    assert losses[-1] < 0.5


def test_noise_changes_inputs_of_queued_programs_but_not_targets() -> None:
    """Each token is replaced with probability 0.4 by one of 8 characters:
    0.4 * 7 / 8 of the tokens differ.
    """
    arrays = updated_queue(
        empty_queue(1, 5), np.array([[3, 1, 2, 0, 0]], np.uint8), np.array([1.0])
    )
    drawn = draw_imitated(arrays, 2000, np.random.default_rng(0), 0.4)
    tokens, read = drawn["imitated_tokens"], drawn["imitated_read"]
    assert (tokens == [3, 1, 2, 0, 0]).all() and not read[:, 3:].any() and read[:, :3].min() == 1
    assert (read != tokens)[:, :3].mean() == pytest.approx(0.35, abs=0.03)
    plain = draw_imitated(arrays, 2000, np.random.default_rng(0))
    assert "imitated_read" not in plain and np.array_equal(plain["imitated_tokens"], tokens)


def test_likelihood_of_a_queued_program_depends_on_its_inputs() -> None:
    """With noise 0.9 the likelihood is that of the noisy input tokens."""
    algorithm = created(topk=1, topk_loss_hparam=1.0, topk_noise=0.9, chunk_size=8)
    state, _ = trained(algorithm, 1)
    arrays = generation(algorithm, state)[0][0].arrays
    targets, read = state.shared["imitated_tokens"], state.shared["imitated_read"]
    assert (read != targets).any()
    theta, nobody = state.theta.astype(np.float64), np.zeros((0, 4))
    writing = sample_programs(algorithm.network, theta, nobody, forced=read)
    logits = writing.logits[np.arange(4), :, 0]
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -log_p[np.arange(4), targets[0].astype(int) - 1].sum()
    assert dict(zip(SUMS, arrays["sums"], strict=True))["imitation_loss"] == pytest.approx(
        expected, rel=1e-4
    )


# Entropy and collapse.


def test_entropy_weight_follows_its_target_by_hand() -> None:
    """beta exp(rate (1 - H / target)): zero entropy multiplies by exp(rate), the target by 1;
    at least 0.5.
    """
    factor = created(entropy_beta=0.5, entropy_target=0.8, entropy_rate=0.1).loss.entropy
    first = factor.initial()
    assert factor.value(first) == 0.5
    for entropy, expected in ((0.0, 0.5 * np.exp(0.1)), (0.8, 0.5), (1.6, 0.5)):
        assert factor.value(factor.next(first, entropy, 0)) == pytest.approx(expected, rel=1e-12)
    raised = {"entropy_beta": np.array(2.0)}
    assert factor.value(factor.next(raised, 1.6, 0)) == pytest.approx(2 * np.exp(-0.1), rel=1e-12)
    assert factor.value(factor.next({"entropy_beta": np.array(99.9)}, 0.0, 0)) == 100


def test_entropy_weight_decays_linearly() -> None:
    factor = created(entropy_beta=0.5, entropy_beta_end=0.1, entropy_programs=1000).loss.entropy
    result = [
        factor.value(factor.next(factor.initial(), 1.0, executed))
        for executed in (0, 250, 1000, 5000)
    ]
    assert result == pytest.approx([0.5, 0.4, 0.1, 0.1])


@pytest.mark.parametrize(
    "options", [{"entropy_target": 2.0}, {"entropy_beta_end": 0.0, "entropy_programs": 16}]
)
def test_entropy_weight_is_part_of_the_state_and_the_gradient(options: dict[str, Any]) -> None:
    changing, plain = created(entropy_beta=0.2, **options), created(entropy_beta=0.2)
    first = changing.initial()
    np.testing.assert_array_equal(whole(changing, first), whole(plain, first))
    state = replace(first, shared={**first.shared, "entropy_beta": np.array(0.7)})
    np.testing.assert_array_equal(whole(changing, state), whole(created(entropy_beta=0.7), first))
    after, metrics = changing.tell(state, generation(changing, state)[1])
    assert metrics["entropy_beta"] == 0.7 > float(after.shared["entropy_beta"])
    assert "entropy_beta" not in trained(plain, 1)[0].shared


def test_entropy_target_prevents_a_collapse() -> None:
    """PQT of one program of 4 tokens: with a constant weight,
    only this program is written in the end.
    """
    queued = {"topk": 1, "topk_loss_hparam": 1.0, "pi_loss_hparam": 0.0, "entropy_beta": 1e-4}
    adam = {"kind": "adam", "learning_rate": 0.05}
    entropies = []
    for options in ({}, {"entropy_target": 4.0, "entropy_rate": 0.2}):
        algorithm = created(**queued, **options, optimizer=adam)
        state, _ = trained(algorithm, 1)
        # nothing takes its place
        state = replace(state, master={**state.master, "queue_rewards": np.array([100.0])})
        last: list[float] = []
        for _ in range(160):
            state, metrics = algorithm.tell(state, generation(algorithm, state)[1])
            last.append(metrics["token_entropy"])
        entropies.append(float(np.mean(last[80:])))  # it swings about the target
    assert entropies[0] < 0.1 and 0.5 < entropies[1] < 1.5, entropies


def test_distinct_programs_are_counted_and_a_collapse_is_reported() -> None:
    algorithm = created(chunk_size=8, entropy_beta=0.0, length=2)
    state = algorithm.initial()
    _, results = generation(algorithm, state)
    # five
    tokens = np.array([[1, 1], [1, 2], [1, 1], [1, 1], [2, 1], [2, 2], [1, 2], [8, 8]], np.uint8)
    for number, written in ((5, tokens), (1, 0 * tokens + 3), (5, tokens)):
        arrays = {**results.chunk_arrays[0], "tokens": written}
        message = Results(results.rows, [arrays], [])
        after, metrics = algorithm.tell(state, message)
        assert metrics["distinct_programs"] == number
        notices = algorithm.notices(state, message, after)
        state = after
        assert len(notices) == (number == 1) and all(
            "entropy_target" in notice for notice in notices
        )


# Replay.


def replaying(**options: Any) -> PolicyGradient:
    return created(**{"alpha": 0.5, "replay_capacity": 30, "chunk_size": 8, "length": 2, **options})


@pytest.mark.long
def test_first_batch_has_no_replays_and_no_gradient() -> None:
    algorithm = replaying(entropy_beta=0.0, length=6)
    state = algorithm.initial()
    outcomes, results = generation(algorithm, state)
    assert results.rows["return_"].any()
    assert sum(len(outcome.rows) for outcome in outcomes) == 8
    assert not whole(algorithm, state).any()
    after, _ = algorithm.tell(state, results)
    assert [chunk.jobs for chunk in algorithm.ask(after, 0, NO_ROWS, NO_FITNESS)] == [4]
    assert whole(algorithm, after).any()


def test_importance_weights_of_a_batch_by_hand() -> None:
    """Programs in the buffer have their probability q, others 0: w = 1 / (1 - a + a q / p)."""
    plain, scaled = replaying(iw_normalize=False, entropy_beta=0.0), replaying(entropy_beta=0.0)
    state, _ = trained(plain, 3)
    outcomes, _ = generation(plain, state)
    tokens = np.concatenate([outcomes[0].arrays["tokens"], state.shared["replayed_tokens"]])
    odds = {row.tobytes(): 0.0 for row in tokens}
    count = int(state.master["replay_count"])
    buffer = zip(
        state.master["replay_tokens"][:count],
        plain.loss.replay.probabilities(state.master),
        strict=True,
    )
    odds |= {row.tobytes(): float(item) for row, item in buffer}
    weights = [
        1 / (0.5 + 0.5 * odds[row.tobytes()] / p)
        for row, p in zip(tokens, odds_of(plain, state, tokens), strict=True)
    ]
    assert outcomes[0].arrays["sums"][5] == pytest.approx(sum(weights), rel=1e-4)
    np.testing.assert_allclose(
        whole(scaled, state),
        whole(plain, state) * 8 / sum(weights),
        rtol=1e-3,
        atol=1e-6 * norm(whole(plain, state)),
    )


def odds_of(algorithm: PolicyGradient, state: State, tokens: Array) -> Array:
    """The policy's probability of each program."""
    ones, theta = np.ones(len(tokens)), state.theta.astype(np.float64)
    batch = ProgramBatch(lengths(tokens), 0.0 * tokens, ones, ones, ones, ones)
    read = sample_programs(
        algorithm.network, theta, np.zeros((0, algorithm.network.length)), forced=tokens
    )
    probability: Array = np.exp(loss_gradient(read, batch).log_probability)
    return probability


def test_baseline_includes_replays_first() -> None:
    algorithm = replaying()
    state, _ = trained(algorithm, 1)
    _, results = generation(algorithm, state)
    after, _ = algorithm.tell(state, results)
    rewards = [*state.shared["replayed_rewards"], *results.rows["return_"]]
    assert len(rewards) == 8
    expected = state.shared["baseline"][0]
    for reward in rewards:
        expected = 0.99 * expected + 0.01 * reward
    np.testing.assert_allclose(after.shared["baseline"], np.full(2, expected), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_replays_are_divided_among_chunks(size: int) -> None:
    state, _ = trained(replaying(), 2)
    algorithm = replaying(chunk_size=size)
    _, results = generation(algorithm, state)
    rewards = np.concatenate([arrays["replayed_rewards"] for arrays in results.chunk_arrays])
    assert rewards.tolist() == state.shared["replayed_rewards"].tolist() and len(rewards) == 4
    np.testing.assert_allclose(
        whole(algorithm, state), whole(replaying(), state), rtol=1e-3, atol=1e-4
    )


# Learning.


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"ema_baseline_decay": 0.0},
        {"topk": 10, "topk_loss_hparam": 10.0},
        pytest.param(
            {"alpha": 0.25, "topk": 2, "topk_loss_hparam": 1.0, "eos_token": True},
            marks=pytest.mark.long,
        ),
    ],
)
def test_rewards_rise_and_a_correct_program_ends_the_search(options: dict[str, Any]) -> None:
    """The task is to print 1 2 in five characters;
    random search would need thousands of programs.
    """
    algorithm = created(
        chunk_size=32,
        length=5,
        task="print",
        batch_size=32,
        optimizer={"kind": "rmsprop", "learning_rate": 0.01},
        **options,
    )
    algorithm = replace(
        algorithm, problem=programs.build(programs_options(fixed_string=(1, 2), max_code_length=5))
    )
    state, solved = algorithm.initial(), None
    for _ in range(150):
        state, _ = algorithm.tell(state, generation(algorithm, state)[1])
        solved = algorithm.finished(state)
        if solved:
            break
    assert solved == "a correct program"
    summary = algorithm.summary(state)
    assert algorithm.problem.coding.score(summary["code_solution"]).correct
    assert (
        summary["success"]
        and summary["updates"] == state.generation
        and summary["best_reward"] == 1.0
    )
    assert not replace(
        algorithm, options=replace(algorithm.options, stop_on_success=False)
    ).finished(state)


def programs_options(**options: Any) -> Any:
    created: Any = programs.Options
    return created(name="print", **options)


# The loss by itself.


@pytest.mark.parametrize(
    "options",
    [
        {"entropy_beta": 0.1, "regularizer": 0.01},
        {
            "entropy_beta": 0.1,
            "pi_loss_hparam": 0.0,
            "vf_loss_hparam": 0.5,
            "ema_baseline_decay": 0.0,
        },
    ],
)
def test_gradient_is_that_of_the_sum_of_losses(options: dict[str, Any]) -> None:
    """Along a random direction in float64; the policy term treats values as constants."""
    algorithm = created(**options)
    state = algorithm.initial()
    _, results = generation(algorithm, state)
    sample = algorithm.sample(results)
    assert (
        sample["tokens"].shape == (8, 4)
        and sample["rewards"].tolist() == results.rows["return_"].tolist()
    )
    losses, again = algorithm.losses(state, results), algorithm.sample_losses(state, sample)
    assert again == pytest.approx(dict(losses), rel=1e-5)
    metrics = algorithm.tell(state, results)[1]
    assert [losses[name] for name in ("policy_loss", "loss")] == [
        metrics[name] for name in ("policy_loss", "loss")
    ]
    direction = np.random.default_rng(3).standard_normal(len(state.theta))

    def total(step: float) -> float:
        theta = state.theta.astype(np.float64) + step * direction
        return algorithm.sample_losses(State(0, {**state.shared, "theta": theta}, {}), sample)[
            "loss"
        ]

    slope = (total(1e-4) - total(-1e-4)) / 2e-4
    assert slope == pytest.approx(float(whole(algorithm, state) @ direction), rel=1e-3)
