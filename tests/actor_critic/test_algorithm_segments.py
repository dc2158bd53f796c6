"""Updates within an episode: targets by hand, memory, random numbers, counters, and learning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.actor_critic.algorithm import SUMS, ActorCritic
from hpc_es.actor_critic.differentiable import Loss, episodes_graph, segments_graph
from hpc_es.actor_critic.episodes import MAX_FAILURES
from hpc_es.algorithms.common.optimizers import GRADIENT
from hpc_es.config.loading import validate
from hpc_es.config.schema import Config
from hpc_es.config.yaml_text import override
from hpc_es.core.data import NO_FITNESS, Chunk, Outcome, Results, State
from hpc_es.core.errors import ConfigError, RunError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.mpi.world import World
from hpc_es.policies.networks.tensorflow_sequences import DifferentiableNetwork
from hpc_es.training.build import build_parts, build_task
from tests.helpers import runs
from tests.helpers.populations import centre
from tests.helpers.toys import lifetime, nothing

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

SURVIVAL: dict[str, Any] = {
    "seed": 1,
    "task": {"kind": "episodes", "env_id": "tests.helpers.toys:Survival-v0"},
    "policy": {"kind": "lstm", "hidden_dims": [4]},
    "algorithm": {
        **{
            "kind": "actor_critic",
            "updates": "asynchronous",
            "update_every": 3,
            "batch_size": 2,
            "discount": 0.9,
        },
        "optimizer": {"kind": "adam", "learning_rate": 0.01},
    },
    "evaluation": {"interval": 0},
    "stop": {"generations": 40},
    "report": {"plot_interval_seconds": 0},
}
CARTPOLE = "task={kind: episodes, env_id: CartPole-v1, max_episode_steps: 20}"


def config(*overrides: str) -> Config:
    return dataclasses.replace(validate(override(SURVIVAL, overrides)), name="segments")


def built(*overrides: str) -> Any:
    created = config(*overrides)
    return build_parts(created, World("none"), build_task(created)).algorithm


def update(algorithm: Any, state: State) -> Outcome:
    (chunk,) = algorithm.ask(state, 0, np.zeros(0), NO_FITNESS)
    outcome: Outcome = algorithm.evaluate(state, chunk, nothing)
    return outcome


def later(state: State, generation: int) -> State:
    """The same parameters in another update."""
    return dataclasses.replace(state, generation=generation)


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Seeds of the episodes of each update, which a test appends; the last ones are repeated."""
    updates: list[list[int]] = []

    def drawn(self: Any, state: State, chunk: Chunk) -> Any:
        return np.array(updates[min(state.generation, len(updates) - 1)])[:, np.newaxis]

    monkeypatch.setattr(ActorCritic, "_seeds", drawn)
    return updates


def constant(state: State, value: float) -> State:
    """The state with a value head that returns this value everywhere."""
    column = np.append(np.zeros(len(state.shared["value"]) - 1, np.float32), np.float32(value))
    return dataclasses.replace(state, shared={**state.shared, "value": column})


def squares(returns: Sequence[float], value: float) -> float:
    return sum((item - value) ** 2 for item in returns)


# Targets, with a reward of 1 per step, the discount 0.9 and the value 2 of every state.


def test_targets_bootstrap_from_the_value_unless_the_episode_ended(seeds: list[list[int]]) -> None:
    """Lengths 2 and 12: R is 1.9, 1; and 1 + 0.9 * 3.52 = 4.168, 1 + 0.9 * 2.8 = 3.52,
    1 + 0.9 * 2 = 2.8.
    """
    seeds += [[1, 11]]
    algorithm = built()
    result = update(algorithm, constant(algorithm.initial(), 2.0))
    assert result.rows["length"].tolist() == [2, 3] and result.rows["episode_length"].tolist() == [
        2,
        0,
    ]
    assert result.arrays[SUMS][1] == pytest.approx(
        squares([1.9, 1.0, 4.168, 3.52, 2.8], 2.0), rel=1e-5
    )


def test_targets_bootstrap_at_a_time_limit(seeds: list[list[int]]) -> None:
    """A limit of 2 steps truncates the episode of length 12: R is 3.52, 2.8;
    that of length 2 terminates.
    """
    seeds += [[1, 11]]
    algorithm = built("task.max_episode_steps=2")
    result = update(algorithm, constant(algorithm.initial(), 2.0))
    assert result.rows["episode_length"].tolist() == [2, 2]
    assert result.arrays[SUMS][1] == pytest.approx(squares([1.9, 1.0, 3.52, 2.8], 2.0), rel=1e-5)


def test_bootstrap_values_use_the_memory_of_the_whole_episode() -> None:
    """V is linear in h, a part of the memory:
    10 steps at once equal 4 and then 6 with the stored memory.
    """
    network, rng = DifferentiableNetwork((3, 5, 4, 2), None), np.random.default_rng(0)
    from hpc_es.policies.networks.tensorflow_actors import tensorflow

    tf = tensorflow()
    policy = built("policy.hidden_dims=[5, 4]").policy
    theta, x = 3 * policy.initial(rng), rng.standard_normal((10, 2, 3)).astype(np.float32)
    actor = policy.bind(centre(theta, 2), None)
    for step in x[:4]:
        actor.act(step)
    whole = network(tf, theta, x)
    rest = network(
        tf, theta, x[4:], memory=[(cached[:, 0], cached[:, 1]) for cached in actor.memory()]
    )
    for one, other in zip(whole, rest, strict=True):
        np.testing.assert_allclose(other, one[4:], atol=1e-5)
        assert np.abs(network(tf, theta, x[4:])[0] - whole[0][4:]).max() > 1e-3


def test_gradient_stops_at_the_start_of_a_segment() -> None:
    """With targets that do not bootstrap, segments of 4 sum to the
    result of unrolls of 4 over the whole episode.
    """
    network, rng = DifferentiableNetwork((3, 5, 2), None), np.random.default_rng(0)
    policy = built("policy.hidden_dims=[5]").policy
    theta, value = 3 * policy.initial(rng), rng.standard_normal(6).astype(np.float32)
    x, rewards = (
        rng.standard_normal((12, 2, 3)).astype(np.float32),
        rng.standard_normal((12, 2)).astype(np.float32),
    )
    options = [
        x,
        rng.integers(2, size=(12, 2)).astype(np.int32),
        rewards,
        np.ones_like(rewards),
        0 * rewards,
    ]
    fixed, beta = (theta, value), np.float32(0.1)
    expected = episodes_graph(network, Loss(0.0, 1.0, 0.3, None, 4))(*fixed, beta, *options)
    actor, total = policy.bind(centre(theta, 2), None), np.zeros(len(theta) + len(value))
    for start in (0, 4, 8):
        memory, part = actor.memory(), [array[start : start + 4] for array in options]
        total += segments_graph(network, Loss(0.0, 1.0, 0.3, None, None))(
            *fixed, beta, memory, *part
        )[0].numpy()
        for step in part[0]:
            actor.act(step)
    np.testing.assert_allclose(total, expected[0], atol=1e-4)


# Continuing episodes.


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_policy_memory_continues_after_an_update(seeds: list[list[int]], backend: str) -> None:
    """Lengths 41, and 5 and 31: after three segments of 3 steps they are at 9,
    and at 1 + 3 of the next episode.
    """
    seeds += [[40, 4], [0, 0], [0, 30]]
    algorithm = built(f"policy.backend={backend}")
    state = algorithm.initial()
    lengths = [update(algorithm, later(state, n)).rows["length"].tolist() for n in range(3)]
    assert lengths == [[3, 3], [3, 2], [3, 3]]
    for row, (life, steps) in enumerate([(41, 9), (31, 3)]):
        actor = algorithm.policy.bind(centre(state.theta, 1), None)
        for step in range(steps):
            actor.act(np.array([[step, life, 1]], np.float32))
        for whole, kept in zip(actor.memory(), algorithm._segment_player.memory, strict=True):
            np.testing.assert_allclose(kept[row], whole[0], atol=1e-6)
            assert np.abs(whole).max() > 1e-3


def test_gradients_of_a_segment_use_its_initial_memory(seeds: list[list[int]]) -> None:
    """Without discount R is 1: errors of the second segment are V - 1 in steps 3, 4,
    5 of an uninterrupted pass.
    """
    from hpc_es.policies.networks.tensorflow_actors import tensorflow

    seeds += [[5, 5]]  # a life of 6
    algorithm = built("algorithm.discount=0")
    state = algorithm.initial()
    # far from saturation
    state = dataclasses.replace(state, shared={**state.shared, "theta": state.theta / 4})
    result = [update(algorithm, later(state, n)).arrays[SUMS][1] for n in range(2)]
    observed = np.array([[[step, 6, 1]] for step in range(6)], np.float32)
    features = DifferentiableNetwork((3, 4, 2), None)(tensorflow(), state.theta, observed)[
        1
    ].numpy()[:, 0]
    errors = (features @ state.shared["value"][:-1] - 1) ** 2
    assert result == pytest.approx([2 * errors[:3].sum(), 2 * errors[3:].sum()], rel=1e-4)


@pytest.mark.parametrize(
    "policy", ["policy={kind: lstm, hidden_dims: [4]}", "policy={kind: mlp, hidden_dims: [4]}"]
)
def test_segments_as_long_as_episodes_give_the_update_of_whole_episodes(policy: str) -> None:
    """At most 20 steps: the same episodes, actions and, up to the order of sums, gradient,
    also later.
    """
    long, whole = (built(CARTPOLE, policy, f"algorithm.update_every={n}") for n in ("20", "null"))
    for generation in range(2):
        result, expected = (
            update(item, later(item.initial(), generation)) for item in (long, whole)
        )
        assert (
            result.rows.tobytes() == expected.rows.tobytes()
            and len(set(result.rows["length"])) == 2
        )
        for name in (GRADIENT, SUMS):
            np.testing.assert_allclose(
                result.arrays[name], expected.arrays[name], rtol=1e-4, atol=1e-4
            )


def test_episodes_are_seeded_by_the_update_in_which_they_start() -> None:
    """As whole episodes of the same update are; the length of an episode shows its seed."""
    algorithm, started, ended = built("algorithm.update_every=8"), [0, 0], 0
    for generation in range(40):
        rows = update(algorithm, later(algorithm.initial(), generation)).rows
        for job in range(2):
            if length := int(rows["episode_length"][job]):
                keys = Keys(1).generator(Purpose.ENVIRONMENT, started[job], 0)
                assert length == lifetime(int(keys.integers(2**31, size=(16, 1))[job, 0]))
                started[job], ended = generation + 1, ended + 1
    assert ended > 8


def test_evaluation_does_not_change_episodes_in_progress(seeds: list[list[int]]) -> None:
    seeds += [[40, 4]]
    algorithm = built()
    state = algorithm.initial()
    update(algorithm, state)
    kept = [cached.copy() for cached in algorithm._segment_player.memory]
    algorithm.evaluate(state, Chunk(0, 0, 2, "evaluate"), nothing)
    assert update(algorithm, later(state, 1)).rows["return_"].tolist() == [6, 5]
    assert kept[0].any()


# What is counted.


def test_episodes_and_steps_are_counted_once_over_segments(tmp_path: Path) -> None:
    """One rank, whose environments continue between updates:
    the rows include all of its episodes.
    """
    rows = list(hpc_es.train(config("stop.generations=40"), tmp_path / "run"))
    without = [row for row in rows if not row["episodes_this_generation"]]
    assert len(without) > 20 and all(
        row["return_mean"] is None and row["length_mean"] is None for row in without
    )
    ended = [row for row in rows if row["episodes_this_generation"]]
    assert all(row["return_mean"] == row["length_mean"] for row in ended)  # of whole episodes
    steps = sum(row["length_mean"] * row["episodes_this_generation"] for row in ended)
    total = rows[-1]["timesteps_total"]
    assert total == sum(row["timesteps_this_generation"] for row in rows) <= 40 * 6
    assert 0 <= total - steps < 2 * 50  # what the two episodes on their way have taken
    assert rows[-1]["episodes_total"] == len(
        [1 for row in ended for _ in range(row["episodes_this_generation"])]
    )
    assert int(runs.newest(tmp_path / "run").state.shared["episodes"]) == rows[-1]["episodes_total"]


def test_stop_limits_count_updates_steps_and_finished_episodes(tmp_path: Path) -> None:
    for limit, key in (("episodes: 3", "episodes_total"), ("timesteps: 50", "timesteps_total")):
        rows = list(hpc_es.train(config(f"stop={{{limit}}}"), tmp_path / key))
        enough = int(limit.split()[1])
        assert rows[-1][key] >= enough > rows[-2][key]
        assert rows[-1]["generation"] == len(rows) - 1 > 3


def test_entropy_weight_anneals_with_finished_episodes(seeds: list[list[int]]) -> None:
    """Lengths 2 and 12, three steps per update: 1 episode in each of three updates, then 2;
    of 10 in total.
    """
    seeds += [[1, 11]]
    algorithm = built("algorithm.entropy={start: 1.0, end: 0.0, episodes: 10}")
    state, weights = algorithm.initial(), []
    for _ in range(5):
        outcome = update(algorithm, state)
        state, metrics = algorithm.tell(state, Results(outcome.rows, [outcome.arrays]))
        weights.append(metrics["entropy_weight"])
    assert weights == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.5])


# Failures.


def faulty(at: int, bad_seed: int) -> str:
    kwargs = f"{{fault: raise, at: {at}, bad_seed: {bad_seed}}}"
    return f"task={{kind: episodes, env_id: 'tests.helpers.toys:Faulty-v0', env_kwargs: {kwargs}}}"


def test_update_without_a_valid_episode_keeps_the_parameters(seeds: list[list[int]]) -> None:
    seeds += [[7, 7], [40, 40]]
    algorithm = built(faulty(0, 7))
    state = algorithm.initial()
    outcome = update(algorithm, state)
    assert np.isnan(outcome.rows["return_"]).all() and not outcome.rows["length"].any()
    after, _ = algorithm.tell(state, Results(outcome.rows, [outcome.arrays]))
    assert after.generation == 1 and int(after.shared["episodes"]) == 2
    assert after.theta.tobytes() == state.theta.tobytes()
    assert int(after.master["optimizer_steps"]) == 0
    assert update(algorithm, after).rows["length"].tolist() == [3, 3]


def test_environments_that_always_fail_end_the_run(seeds: list[list[int]]) -> None:
    seeds += [[7, 7]]
    algorithm = built(faulty(2, 7))
    for generation in range(MAX_FAILURES - 1):
        update(algorithm, later(algorithm.initial(), generation))
    with pytest.raises(RunError, match=r"failed in 20 updates in a row.*the simulator diverged"):
        update(algorithm, later(algorithm.initial(), MAX_FAILURES))


# Mistakes.

BANDITS = "task={kind: bandits, num_trials: 6}"
MISTAKES = {
    "synchronous": (
        ["algorithm.updates=synchronous"],
        "algorithm.update_every",
        "try updates: asynchronous",
    ),
    "bandits": ([BANDITS], "algorithm.update_every", "hpc_es.tasks.bandits:hpc_es/Bandit-v0"),
    "long unroll": (["algorithm.unroll=4"], "algorithm.unroll", "the 3 steps of update_every"),
    "fault tolerance": (
        ["mpi.fault_tolerance=true"],
        "mpi.fault_tolerance",
        "algorithm.updates is asynchronous: expected false",
    ),
    "nothing": (["algorithm.update_every=0"], "algorithm.update_every", "0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_segment_options_are_refused_before_the_run(mistake: str) -> None:
    overrides, key, text = MISTAKES[mistake]
    with pytest.raises(ConfigError) as result:
        build_task(config(*overrides))
    lines = [line for line in str(result.value).splitlines() if key in line]
    assert len(lines) == 1 and text in lines[0], str(result.value)


def test_bandits_are_played_in_segments_as_an_environment(tmp_path: Path) -> None:
    """10 trials in updates of 4: every third update of both environments ends an episode of 10."""
    task = "task={kind: episodes, env_id: 'hpc_es.tasks.bandits:hpc_es/Bandit-v0', env_kwargs: {num_trials: 10}}"
    rows = list(
        hpc_es.train(
            config(task, "algorithm.update_every=4", "stop.generations=6"), tmp_path / "run"
        )
    )
    assert [row["timesteps_this_generation"] for row in rows] == [8, 8, 4] * 2
    assert [row["length_mean"] for row in rows] == [None, None, 10] * 2
    assert all(math.isfinite(row["policy_loss"]) for row in rows)


# It learns.


@pytest.mark.long
def test_actor_critic_with_segments_learns_cartpole(tmp_path: Path) -> None:
    """A random policy lasts about 20 steps. Means over the episodes of 250 updates of 80 steps."""
    overrides = (
        *(
            "task={kind: episodes, env_id: CartPole-v1}",
            "policy={kind: mlp, hidden_dims: [64, 64]}",
        ),
        *("algorithm.update_every=20", "algorithm.batch_size=4", "algorithm.discount=0.99"),
        *(
            "algorithm.gae_lambda=0.95",
            "algorithm.entropy.start=0.01",
            "algorithm.optimizer.learning_rate=0.002",
        ),
        "stop.generations=1000",
    )
    rows = list(hpc_es.train(config(*overrides), tmp_path / "run"))
    returns = [
        [row["return_mean"] for row in part if row["return_mean"]]
        for part in (rows[:50], rows[-250:])
    ]
    assert np.mean(returns[0]) < 50 and np.mean(returns[1]) > 100, np.mean(returns[1])
