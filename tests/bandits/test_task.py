"""Bandits: distributions, the Gymnasium environment,
and the task that plays many bandits in parallel.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hpc_es.bandits import task as bandits
from hpc_es.bandits.extension import BanditPurpose
from hpc_es.bandits.families import FAMILIES, Arms, family
from hpc_es.bandits.setting import Lockstep, generators, setting
from hpc_es.config.loading import validate
from hpc_es.core.data import Array, Discrete
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.core.tabulated import LastStepInputs
from tests.helpers.toys import batch, nothing

EPISODES = 4000
PULLED: dict[str, Any] = {"k_armed": {"num_arms": 3}, "gaussian": {"num_arms": 3}}


def arms(distribution: str, episodes: int = EPISODES, **keywords: Any) -> Arms:
    return family(distribution, **keywords).draw(np.random.default_rng(0), episodes)


class Script:
    """An actor that pulls these arms, int64[trials, rows], and records observations."""

    def __init__(self, pulls: Array) -> None:
        self.pulls, self.observed, self.restarted = pulls, list[Array](), list[int]()

    def act(self, observations: Array) -> Array:
        self.observed.append(observations.copy())
        return self.pulls[len(self.observed) - 1]

    def restart(self, row: int) -> None:
        self.restarted.append(row)


def scripted(trials: int, rows: int, number: int) -> Array:
    return np.random.default_rng(5).integers(number, size=(trials, rows))


# Distributions.


@pytest.mark.parametrize("distribution", FAMILIES)
def test_every_distribution_has_arms_of_its_shape(distribution: str) -> None:
    result = family(distribution)
    drawn = result.draw(np.random.default_rng(0), 7)
    trials = 100 if result.changes else 1
    for array in (drawn.chances, drawn.values, drawn.spreads):
        assert (array.dtype, array.shape) == (np.float32, (7, trials, result.arms))
    assert ((drawn.chances >= 0) & (drawn.chances <= 1)).all()
    assert result.is_noisy == bool(drawn.spreads.any())
    assert result.is_binary == bool((drawn.values == 1).all() and not result.is_noisy)


@pytest.mark.parametrize(("distribution", "low"), [("easy", 0.1), ("medium", 0.25), ("hard", 0.4)])
def test_two_probabilities_occur_in_both_orders(distribution: str, low: float) -> None:
    """A set of two, not an interval."""
    drawn = arms(distribution)
    first = drawn.chances[:, 0, 0]
    assert sorted(set(first.tolist())) == pytest.approx([low, 1 - low])
    np.testing.assert_allclose(drawn.chances.sum(axis=2), 1, atol=1e-6)
    assert abs((first > 0.5).mean() - 0.5) < 4 * 0.5 / np.sqrt(EPISODES)


@pytest.mark.parametrize("distribution", ["independent", "uniform", "k_armed"])
def test_uniform_probabilities_have_the_expected_moments(distribution: str) -> None:
    """Mean 1/2 and variance 1/12; opposite in "uniform", uncorrelated otherwise."""
    chances = arms(distribution).chances[:, 0].astype(np.float64)
    assert abs(chances[:, 0].mean() - 0.5) < 4 * np.sqrt(1 / 12 / EPISODES)
    assert abs(chances[:, 0].var() - 1 / 12) < 0.005
    correlation = np.corrcoef(chances[:, 0], chances[:, 1])[0, 1]
    assert correlation == pytest.approx(-1 if distribution == "uniform" else 0, abs=0.07)


@pytest.mark.parametrize(
    ("distribution", "reward"),  # T16, of 100 trials
    [
        ("independent", 66.6667),
        ("uniform", 75),
        ("easy", 90),
        ("medium", 75),
        ("hard", 60),
        ("k_armed", 100 * 5 / 6),
    ],
)
def test_oracle_reward_equals_the_expected_maximum(distribution: str, reward: float) -> None:
    assert 100 * arms(distribution, 40_000).best().mean() == pytest.approx(reward, abs=0.5)


@pytest.mark.parametrize(
    ("distribution", "regret"), [("easy", 0.8), ("medium", 0.5), ("hard", 0.2)]
)
def test_regret_of_the_worse_arm_by_hand(distribution: str, regret: float) -> None:  # T21
    drawn = arms(distribution, 5)
    worse = 1 - drawn.optimal()
    pulls = np.concatenate([drawn.optimal(), worse, drawn.optimal()], axis=1)
    np.testing.assert_allclose(drawn.regrets(pulls), [[0, regret, 0]] * 5, atol=1e-6)


def test_optimal_arm_is_numbered_from_0() -> None:  # T22
    assert arms("fixed", 1, chances=[0.9, 0.1]).optimal().tolist() == [[0]]
    assert arms("fixed", 1, chances=[0.1, 0.9]).optimal().tolist() == [[1]]
    assert arms("fixed", 1, chances=[0.5, 0.5]).optimal().tolist() == [[0]]
    assert arms("fixed", 1, chances=[0.9, 0.1], values=[1, 10]).optimal().tolist() == [[1]]
    named = {"deterministic": 0, "high_low": 0, "high_high": 1, "low_low": 1}
    assert {name: arms(name, 1).optimal()[0, 0] for name in named} == named


@pytest.mark.parametrize("other", [1.1, 1.0])
def test_arms_of_the_eleven_arm_task_by_hand(other: float) -> None:  # T20
    drawn = arms("eleven", 500, non_target_reward=other)
    targets = drawn.optimal()[:, 0]
    assert set(targets.tolist()) == set(range(10))
    assert (drawn.chances == 1).all()
    for values, target in zip(drawn.values[:, 0], targets, strict=True):
        expected = [other] * 10 + [0.1 * (target + 1)]
        expected[target] = 5.0
        np.testing.assert_allclose(values, expected, rtol=1e-6)
        assert round(10 * float(values[10])) - 1 == target


def test_restless_arms_walk_from_0_to_1() -> None:
    drawn = arms("restless", 200, num_trials=150)
    walk = drawn.chances[:, :, 0]
    np.testing.assert_allclose(drawn.chances.sum(axis=2), 1, atol=1e-6)
    assert walk.min(axis=1).tolist() == [0] * 200
    assert walk.max(axis=1).tolist() == [1] * 200
    assert arms("restless", 3, num_trials=20).chances.shape == (3, 20, 2)
    assert arms("restless", 3, num_trials=200).chances.shape == (3, 200, 2)


def test_restless_gaussian_arms_have_the_configured_volatility() -> None:
    """Far from the bounds a step has the configured deviation; without volatility nothing moves."""
    walk = (
        arms("restless", 3000, walk="gaussian", volatilities=[0.02])
        .chances[:, :, 0]
        .astype(np.float64)
    )
    far = (walk[:, 0] > 0.2) & (walk[:, 0] < 0.8)
    assert np.diff(walk[far, :2]).std() == pytest.approx(0.02, rel=0.1)
    assert np.abs(np.diff(walk)).max() < 0.02 * 6
    assert ((walk >= 0) & (walk <= 1)).all()
    still = arms("restless", 5, walk="gaussian", volatilities=[0.0]).chances
    assert (still == still[:, :1]).all()


def test_rewards_have_the_moments_of_their_arms() -> None:
    rng, pulls = np.random.default_rng(1), np.zeros(EPISODES, np.int64)
    uniforms, normal = (
        rng.random((2, EPISODES), np.float32),
        rng.standard_normal(EPISODES, np.float32),
    )
    paid = arms("fixed", chances=[0.3], values=[5]).rewards(0, pulls, uniforms[0])
    assert set(paid.tolist()) == {0, 5}
    assert (paid > 0).mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / EPISODES))
    noisy = Arms(*(np.full((EPISODES, 1, 1), value, np.float32) for value in (1, 2, 0.5)))
    paid = noisy.rewards(0, pulls, uniforms[1], normal)
    assert paid.mean() == pytest.approx(2, abs=4 * 0.5 / np.sqrt(EPISODES))
    assert paid.std() == pytest.approx(0.5, rel=0.05)


def test_probabilities_0_and_1_are_deterministic() -> None:
    uniforms = np.array([0, np.nextafter(np.float32(1), np.float32(0))], np.float32)
    assert arms("deterministic", 2).rewards(0, np.array([0, 0]), uniforms).tolist() == [1, 1]
    assert arms("deterministic", 2).rewards(0, np.array([1, 1]), uniforms).tolist() == [0, 0]


# What the agent sees.


def test_observed_reward_can_be_clipped() -> None:
    """2 and -3 as 1 and -1; with slots, 2 has the slot of 1. The reward itself does not change."""
    pulls, rewards = np.array([1, 0]), np.array([2.0, -3.0], np.float32)
    assert LastStepInputs(2, 4, reward_clip=1.0).after(0, pulls, rewards)[:, 0].tolist() == [1, -1]
    assert (
        LastStepInputs(2, 4, reward="one_hot", reward_clip=1.0).after(0, pulls, rewards)[0].argmax()
        == 10
    )
    gym = gymnasium.make(
        "hpc_es.tasks.bandits:hpc_es/Bandit-v0",
        distribution="eleven",
        num_trials=5,
        reward_clip=0.5,
    )
    gym.reset(seed=1)
    observed, reward, *_ = gym.step(0)
    assert observed[0] == 0.5 and reward >= 1
    task = {"kind": "bandits", "distribution": "eleven", "num_trials": 5, "reward_clip": 0.5}
    assert validate({"task": task}).task.reward_clip == 0.5
    created = bandits.setting_of(validate({"task": task}).task)
    assert created.inputs.reward_clip == 0.5
    with pytest.raises(
        ConfigError, match="reward_clip: expected a number greater than 0, or null, found -1"
    ):
        setting("easy", reward_clip=-1)


# The same episode in each form.


def test_arms_are_drawn_from_the_generators_of_the_keys() -> None:
    for seed, rng in zip((3, 2**31 - 1, 3), generators([3, 2**31 - 1, 3]), strict=True):
        expected = Keys(seed).generator(BanditPurpose.BANDITS)
        assert rng.random(3).tolist() == expected.random(3).tolist()
        rng.random(3, np.float32)  # leaves half a word behind


@pytest.mark.parametrize("distribution", FAMILIES)
@pytest.mark.parametrize("meta", [True, False])
def test_environment_and_the_task_play_the_same_episode(distribution: str, meta: bool) -> None:
    trials, seeds = 6, [3, 8, 8]
    created = {"distribution": distribution, "num_trials": trials, "meta": meta}
    options = PULLED.get(distribution, {})
    task = bandits.build(bandits.Options(**created, family=options))
    assert task.spaces.actions == Discrete(task.setting.family.arms)
    actor = Script(scripted(trials, 3, task.spaces.actions.n))
    outcome = task.evaluate(actor, batch(seeds), nothing)
    environment = gymnasium.make("hpc_es.tasks.bandits:hpc_es/Bandit-v0", **created, **options)
    for row, seed in enumerate(seeds):
        observation, info = environment.reset(seed=seed)
        rewards, over = [], False
        for trial in range(trials):
            assert not over
            assert observation.tobytes() == actor.observed[trial][row].tobytes()
            best, expected = info["optimal_arm"], info["expected_reward"]
            pull = int(actor.pulls[trial, row])
            observation, reward, over, _, info = environment.step(pull)
            assert info["regret"] == pytest.approx(expected.max() - expected[pull], abs=1e-12)
            assert expected[best] == expected.max()
            rewards.append(reward)
        assert over
        assert outcome.rows["return_"][row] == pytest.approx(sum(rewards), rel=1e-12)
        assert outcome.rows["sign_return"][row] == np.sign(rewards).sum()
    assert outcome.rows["length"].tolist() == [trials] * 3


def test_environment_passes_the_gymnasium_checker() -> None:
    environment = gymnasium.make("hpc_es/Bandit-v0", distribution="restless", num_trials=5)
    with pytest.warns(UserWarning, match="infinity"):
        check_env(environment.unwrapped, skip_render_check=True)
    environment.reset(seed=1)
    for trial in range(5):
        assert environment.step(0)[2] == (trial == 4)
    with pytest.raises(RuntimeError, match="call reset"):
        environment.unwrapped.step(0)
    environment.reset()
    with pytest.raises(ValueError, match="expected an arm from 0 to 1, found 2"):
        environment.unwrapped.step(2)


def test_arms_are_redrawn_per_episode_or_per_job() -> None:  # T14
    def chances(**keywords: Any) -> list[Any]:
        environment = gymnasium.make("hpc_es/Bandit-v0", num_trials=2, **keywords)
        infos = [environment.reset(seed=seed)[1] for seed in (1, None, None, 1)]
        return [info["expected_reward"].tolist() for info in infos]

    first, second, third, again = chances()
    assert first == again
    assert len({tuple(item) for item in (first, second, third)}) == 3
    assert chances() == [first, second, third, again]
    fixed = chances(meta=False)
    assert fixed == [fixed[0]] * 4
    assert chances(meta=False, arms_seed=1)[0] != fixed[0] == chances(meta=False, arms_seed=0)[0]


def test_bandits_do_not_use_the_global_generator() -> None:
    np.random.seed(1)
    first = setting("gaussian", 5).episodes_of_seeds([4])
    np.random.seed(2)
    second = setting("gaussian", 5).episodes_of_seeds([4])
    assert first.uniforms.tobytes() == second.uniforms.tobytes()
    assert first.arms.values.tobytes() == second.arms.values.tobytes()


# The task.


def test_several_episodes_per_job_are_averaged() -> None:
    """The same result if they are played in parallel or one by one."""
    task = bandits.build(bandits.Options(num_trials=4, episodes_per_job=3))
    seeds = np.arange(6).reshape(2, 3)
    pulls = scripted(4, 6, 2)

    class Wide(Script):
        def with_episodes(self, episodes: int) -> Any:
            assert episodes == 3
            return self

    wide = task.evaluate(Wide(pulls), batch(seeds, observe=[False, True]), nothing)
    # a job's episodes are rows side by side
    order = np.concatenate([pulls[:, episode::3] for episode in range(3)])
    one_by_one = Script(order)
    narrow = task.evaluate(one_by_one, batch(seeds, observe=[False, True]), nothing)
    assert one_by_one.restarted == [0, 1] * 3
    assert wide.rows.tobytes() == narrow.rows.tobytes()
    assert wide.rows["length"].tolist() == [12, 12]
    for name in ("observation_sum", "observation_squares", "observation_count"):
        np.testing.assert_allclose(wide.learned[0][0][name], narrow.learned[0][0][name], rtol=1e-12)
    assert len(wide.learned) == 1 and wide.learned[0][0]["observation_count"] == 12
    single = bandits.build(bandits.Options(num_trials=4)).evaluate(
        Script(pulls), batch(seeds.ravel()), nothing
    )
    np.testing.assert_allclose(
        wide.rows["return_"], single.rows["return_"].reshape(2, 3).mean(axis=1)
    )


def test_training_reward_can_be_the_negative_regret() -> None:
    task = bandits.build(
        bandits.Options(distribution="easy", num_trials=5, training_return="negative_regret")
    )
    seeds = [1, 2, 3, 4]
    drawn = task.setting.episodes_of_seeds(seeds)
    pulls = np.repeat(1 - drawn.arms.optimal().T, 5, axis=0)
    pulls[0] = 1 - pulls[0]
    trained = task.evaluate(Script(pulls), batch(seeds), nothing).rows
    np.testing.assert_allclose(trained["return_"], -4 * 0.8, rtol=1e-6)
    lockstep = Lockstep(task.setting, drawn)
    for arm in pulls:
        lockstep.pull(arm)
    evaluated = task.evaluate(Script(pulls), batch(seeds, training=False), nothing).rows
    assert evaluated["return_"].tolist() == lockstep.rewards.sum(axis=1).tolist()
    assert trained["sign_return"].tolist() == evaluated["sign_return"].tolist()


def test_task_polls_messages_in_each_trial() -> None:
    polls: list[int] = []
    task = bandits.build(bandits.Options(num_trials=7))
    task.evaluate(Script(scripted(7, 2, 2)), batch([1, 2]), lambda: polls.append(1))
    assert len(polls) == 7


# Mistakes.


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (
            {"distribution": "esay"},
            r"task.distribution: expected one of 'independent', .*, found 'esay'",
        ),
        (
            {"distribution": "k_armed", "family": {"num_arms": 0}},
            r"task.family.num_arms: expected a whole number from 1 to 10000, found 0",
        ),
        (
            {"distribution": "easy", "family": {"num_arms": 3}},
            r"task.family.num_arms: is unknown: 'easy' takes no key",
        ),
        (
            {"distribution": "restless", "family": {"num_trials": 9}},
            r"task.family.num_trials: is not an option",
        ),
        (
            {"distribution": "restless", "family": {"walk": "x"}},
            r"task.family.walk: expected one of 'rescaled', 'ga",
        ),
        (
            {"distribution": "restless", "family": {"volatilities": [-1]}},
            r"task.family.volatilities: expected a list",
        ),
        (
            {"distribution": "fixed", "family": {"chances": [2]}},
            r"task.family.chances: expected a list .each item: a number from 0 to 1.",
        ),
        (
            {"distribution": "fixed", "family": {"values": [1]}},
            r"task.family.values: expected a number, or one for each",
        ),
        (
            {"distribution": "eleven", "family": {"target_reward": 1}},
            r"task.family.target_reward: is 1: the target must",
        ),
        ({"num_trials": -5}, r"task.num_trials: expected a whole number of at least 1, found -5"),
        (
            {"reward": "two"},
            r"task.reward: expected one of 'value', 'one_hot', 'none', found 'two'",
        ),
        (
            {"reward": "none", "action": False, "time": "none"},
            r"task.reward: is 'none', and so are action and time",
        ),
    ],
)
def test_invalid_bandit_configs_are_refused(task: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        validate({"task": {"kind": "bandits", **task}, "policy": {"kind": "lstm"}, "algorithm": {}})


@pytest.mark.parametrize(
    "keywords", [{"distribution": "esay"}, {"num_trials": 0}, {"num_arm": 3}, {"time": "now"}]
)
def test_invalid_environment_arguments_are_refused(keywords: dict[str, Any]) -> None:
    key = next(iter(keywords))
    with pytest.raises(ConfigError, match=key):
        gymnasium.make("hpc_es/Bandit-v0", **keywords)


def test_nan_action_fails_its_job_only() -> None:
    """Of the second job, in the second of four trials."""
    task = bandits.build(bandits.Options(num_trials=4))
    pulls = np.zeros((4, 3))
    good = task.evaluate(
        Script(pulls.astype(np.int64)), batch([1, 2, 3], observe=[True] * 3), nothing
    )
    pulls[1, 1] = np.nan
    outcome = task.evaluate(Script(pulls), batch([1, 2, 3], observe=[True] * 3), nothing)
    assert [failure.position for failure in outcome.failures] == [1]
    assert "the action of the policy is NaN" in outcome.failures[0].text
    assert np.isnan(outcome.rows["return_"][1])
    assert outcome.rows["return_"][[0, 2]].tolist() == good.rows["return_"][[0, 2]].tolist()
    assert outcome.learned[0][0]["observation_count"] == 8
