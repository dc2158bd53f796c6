"""Episodes in lockstep: exact returns; failures affect only their job;
results do not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from hpc_es.core.data import Box, Outcome, Spaces
from hpc_es.core.errors import ConfigError, RunError
from hpc_es.mpi.guard import Signals
from hpc_es.policies import mlp
from hpc_es.tasks.episodes.rollout import NOISE_STEPS
from hpc_es.tasks.episodes.task import Episodes, Options, build
from tests.helpers import toys
from tests.helpers.populations import centre, population
from tests.helpers.toys import Faulty, Still, batch, episodes, lifetime, nothing, played

SEEDS = [49, 3, 0, 20, 99, 7, 31, 12]  # lifetimes 50, 4, 1, 21, 50, 8, 32, 13


def lengths(outcome: Outcome) -> list[int]:
    return outcome.rows["length"].tolist()


def returns(outcome: Outcome) -> list[float]:
    return outcome.rows["return_"].tolist()


def failed(outcome: Outcome) -> list[int]:
    return np.flatnonzero(np.isnan(outcome.rows["return_"])).tolist()


# What an episode gives.


@pytest.mark.parametrize("name", ["Survival", "IntegerSurvival", "DoubleSurvival"])
def test_returns_and_lengths_are_exact(name: str) -> None:
    outcome = played(episodes(name), SEEDS)
    assert lengths(outcome) == [50, 4, 1, 21, 50, 8, 32, 13]
    assert returns(outcome) == [50, 4, 1, 21, 50, 8, 32, 13]
    assert not outcome.failures


def test_batch_equals_its_jobs_one_by_one() -> None:
    task = episodes("Survival")
    assert [returns(played(task, [seed])) for seed in SEEDS] == [[lifetime(seed)] for seed in SEEDS]


def test_policy_sees_every_observation_of_its_own_episode_only() -> None:
    """Also while finished rows are still in the stack, and after it was compacted."""
    actor = Still(4)
    played(episodes("Survival"), [2, 9, 1, 4], actor)
    rows, recorded = [0, 1, 2, 3], []
    kept = iter(actor.kept)
    for observations in actor.recorded:
        rows = rows if len(rows) == len(observations) else next(kept)
        recorded += [
            (rows[i], *o.astype(int).tolist()) for i, o in enumerate(observations) if o.any()
        ]
    expected = [(job, t, life, 1) for job, life in enumerate([3, 10, 2, 5]) for t in range(life)]
    assert sorted(recorded) == sorted(expected)


def test_batch_shrinks_when_a_quarter_is_idle() -> None:
    """Eight lifetimes 1 .. 8: two of eight are idle after 2 steps, then two of six,
    one of four, three, two.
    """
    actor = Still(8)
    played(episodes("Survival"), range(8), actor)
    assert actor.sizes == [8, 8, 6, 6, 4, 3, 2, 1]
    assert actor.kept[-1] == [7]


def test_time_limit_ends_episodes() -> None:
    assert lengths(played(episodes("Survival", max_episode_steps=10), SEEDS)) == [
        10,
        4,
        1,
        10,
        10,
        8,
        10,
        10,
    ]


def test_sign_return_is_the_sum_of_the_rewards_signs() -> None:  # T51
    """Rewards -2 for each of 3 steps; then 0, 0, ...: not the sign of the return."""
    minus = episodes("Survival", wrappers=({"tests.helpers.toys:Plus": {"by": -3.0}},))
    none = episodes("Survival", wrappers=({"tests.helpers.toys:Plus": {"by": -1.0}},))
    assert [(r["return_"], r["sign_return"]) for r in played(minus, [2]).rows] == [(-6, -3)]
    assert [(r["return_"], r["sign_return"]) for r in played(none, [2]).rows] == [(0, 0)]


class Rewards:
    """An actor whose actions, which Reach adds up as reward, are 3, -1 and 2 as in T51."""

    def __init__(self) -> None:
        self.actions = iter([3, -1, 2])

    def act(self, observations: Any) -> Any:
        return np.array([[next(self.actions), 0]], np.float32)


def test_signs_of_mixed_rewards() -> None:  # T51: [3, -1, 2] -> 1 - 1 + 1
    outcome = played(episodes("Reach", env_kwargs={"low": -5.0, "high": 5.0}), [2], Rewards())
    assert returns(outcome) == [4]
    assert outcome.rows["sign_return"].tolist() == [1]


@pytest.mark.parametrize(("training", "expected"), [(True, -10), (False, 10)])
def test_reward_offset_only_in_training(training: bool, expected: float) -> None:
    outcome = played(episodes("Survival", reward_offset=-2.0), [9], training=training)
    assert (returns(outcome), lengths(outcome)) == ([expected], [10])


def test_several_episodes_per_job_are_averaged() -> None:
    task, actor = episodes("Survival", episodes_per_job=3), Still(3)
    assert task.episodes_per_job == 3
    outcome = played(task, [[0, 1, 2], [49, 0, 9], [5, 5, 5]], actor)
    assert returns(outcome) == [2, 61 / 3, 6]
    assert lengths(outcome) == [6, 61, 18]
    np.testing.assert_allclose(outcome.rows["sign_return"], [2, 61 / 3, 6], rtol=1e-6)
    assert sorted(actor.restarts) == [0, 0, 1, 1, 2, 2]


def test_discrete_actions_are_valid_ints_from_start() -> None:
    spaces = episodes("Shifted").spaces
    policy = mlp.build(mlp.Options(hidden_dims=()), spaces)
    theta = np.zeros((3, 12), np.float32)
    theta[[0, 1, 2], [9, 10, 11]] = 1  # biases: each job has its favourite
    jobs = population(np.zeros(12, np.float32), theta, np.arange(3), np.ones(3, np.float32))
    assert returns(played(episodes("Shifted"), [3, 3, 3], policy.bind(jobs, None))) == [20, 24, 28]


def test_outcome_counts_policy_calls_and_seconds() -> None:
    polls: list[int] = []
    outcome = episodes("Survival").evaluate(Still(2), batch([3, 9]), lambda: polls.append(1))
    assert outcome.seconds["policy_calls"] == len(polls) == 10
    assert outcome.seconds["environment"] > 0
    assert outcome.seconds["policy"] > 0


# Independence of company, place and history.


@pytest.mark.parametrize(
    ("env", "limit"), [("Chaos", None), ("Pendulum-v1", 60), ("CartPole-v1", None)]
)
@pytest.mark.parametrize("noise_std", [0.0, 0.1])
def test_jobs_result_does_not_depend_on_its_chunk(
    env: str, limit: int | None, noise_std: float
) -> None:
    """One chunk of 16, then 5 and 1 at a time in reverse on the same environments:
    returns and actions, bit for bit.
    """
    task = episodes(env, max_episode_steps=limit)
    noise_std = noise_std if isinstance(task.spaces.actions, Box) else 0.0
    policy = mlp.build(mlp.Options(hidden_dims=(17, 16)), task.spaces)
    rng = np.random.default_rng(0)
    theta = policy.initial(rng)
    directions = rng.standard_normal((16, policy.layout.size)).astype(np.float32)

    def run(first: int, count: int) -> list[tuple[bytes, tuple[bytes, ...]]]:
        rows = np.arange(first, first + count)
        jobs = population(theta, directions, rows, np.full(count, 0.5, np.float32))
        actor = Recorder(policy.bind(jobs, (np.zeros_like(mean), mean, 5.0)), count)
        outcome = task.evaluate(
            actor,
            batch(
                1000 + rows,
                action_noise_std=noise_std,
                action_noise=lambda j: np.random.default_rng(first + j),
            ),
            nothing,
        )
        ran = zip(outcome.rows, actor.actions, strict=True)
        return [(row.tobytes(), tuple(actions[: int(row["length"])])) for row, actions in ran]

    mean = np.ones(task.spaces.observations.size, np.float32)
    whole = run(0, 16)
    assert len({row for row, _ in whole}) > 5  # the jobs differ
    assert [result for first in (15, 10, 5, 0) for result in run(first, min(5, 16 - first))] == (
        whole[15:] + whole[10:15] + whole[5:10] + whole[:5]
    )
    assert [run(job, 1)[0] for job in reversed(range(16))] == whole[::-1]


class Recorder:
    """Forwards to an actor, and records the bytes of each job's actions."""

    def __init__(self, actor: Any, jobs: int) -> None:
        self.actor, self.rows = actor, list(range(jobs))
        self.actions: list[list[bytes]] = [[] for _ in range(jobs)]

    def act(self, observations: Any) -> Any:
        actions = self.actor.act(observations)
        for row, job in enumerate(self.rows):
            self.actions[job].append(actions[row].tobytes())
        return actions

    def keep(self, rows: Any) -> None:
        self.rows = [self.rows[row] for row in rows]
        self.actor.keep(rows)

    def restart(self, row: int) -> None:
        self.actor.restart(row)


def test_environment_with_global_generators_gives_the_same_on_each_run() -> None:
    task = episodes("Globals")
    first = returns(played(task, SEEDS))
    np.random.seed(99)
    assert returns(played(task, SEEDS)) == first
    assert returns(played(episodes("Globals"), SEEDS)) == first
    assert len(set(first)) == len(SEEDS)


def test_fresh_environments_remove_the_effect_of_hidden_state() -> None:
    used, fresh = episodes("Hidden"), episodes("Hidden", fresh_environment=True)
    assert [returns(played(used, [4])) for _ in range(3)] == [[5], [10], [15]]
    assert [returns(played(fresh, [4])) for _ in range(3)] == [[5], [5], [5]]


def test_fresh_environment_is_created_per_job_not_per_episode() -> None:
    """Rewards 1 in the first episode of a job, 2 in its second, for any earlier jobs."""
    task = episodes("Hidden", fresh_environment=True, episodes_per_job=2)
    assert [returns(played(task, [[4, 4], [0, 0]])) for _ in range(2)] == [[7.5, 1.5], [7.5, 1.5]]


# Action noise.


class Ones:
    """A generator that returns ones and counts its calls."""

    def __init__(self) -> None:
        self.draws = 0

    def standard_normal(self, out: Any, dtype: Any) -> None:
        self.draws += 1
        out[:] = 1


@pytest.mark.parametrize(("training", "expected"), [(True, 2 * 0.75), (False, 2 * 0.5)])
def test_action_noise_only_in_training(training: bool, expected: float) -> None:
    outcome = played(
        episodes("Reach"),
        [9],
        Still(1, 0.5, 2),
        training=training,
        action_noise_std=0.25,
        action_noise=lambda _: Ones(),
    )
    assert returns(outcome) == [10 * expected]


def test_noisy_actions_are_clipped_to_the_box() -> None:
    keywords: dict[str, Any] = {"action_noise_std": 5.0, "action_noise": lambda _: Ones()}
    assert returns(played(episodes("Reach"), [9], Still(1, 0.5, 2), **keywords)) == [20]


def test_action_noise_differs_by_step_and_job() -> None:
    """Steps 0 .. 74 of two jobs, past the buffer of NOISE_STEPS:
    returns are sums of the jobs' own noise.
    """
    task = episodes("Reach", env_kwargs={"low": -100.0, "high": 100.0}, episodes_per_job=2)
    outcome = played(task, [[24, 49], [0, 1]], Still(2, 0.0, 2), action_noise_std=0.5)
    assert NOISE_STEPS < 75
    for job, (steps, episodes_steps) in enumerate([(75, 2), (3, 2)]):
        drawn = np.random.default_rng(job).standard_normal((2 * NOISE_STEPS, 2), dtype=np.float32)
        assert outcome.rows["return_"][job] == pytest.approx(
            0.5 * drawn[:steps].sum() / episodes_steps, abs=1e-4
        )


@pytest.mark.parametrize("bound", [0.1, 0.3, 1 / 3, 2.7])
def test_actions_are_inside_the_bounds_of_a_float64_box(bound: float) -> None:
    """The nearest float32 of 0.1 is above 0.1; Reach asserts that the actions are legal."""
    task = episodes("Reach", env_kwargs={"low": -bound, "high": bound, "dtype": "float64"})
    policy = mlp.build(mlp.Options(hidden_dims=()), task.spaces)
    large = centre(np.full(policy.layout.size, 9, np.float32), 2)
    small = centre(np.full(policy.layout.size, -9, np.float32), 2)
    for jobs, sign in ((large, 1), (small, -1)):
        outcome = played(task, [9, 9], policy.bind(jobs, None))
        assert not outcome.failures
        assert returns(outcome) == pytest.approx([sign * 20 * bound] * 2, rel=1e-6)


def _two() -> tuple[Any, Any]:
    return np.zeros(2, np.intp), np.zeros(2, np.float32)


# Faults.

FAULTS = (
    "raise",
    "nan reward",
    "infinite reward",
    "nan observation",
    "nan observation and reward",
    "two flags",
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", [1, 3, 8])  # 8 is the last step of lifetime(7)
def test_exception_in_step_fails_its_job_only(fault: str, at: int) -> None:
    seeds = [49, 7, 3, 20, 0]
    outcome = played(episodes("Faulty", env_kwargs={"fault": fault, "at": at}), seeds)
    assert failed(outcome) == [1]
    assert [failure.position for failure in outcome.failures] == [1]
    others = [0, 2, 3, 4]
    assert outcome.rows["return_"][others].tolist() == [50, 4, 21, 1]
    assert outcome.rows["length"][others].tolist() == [50, 4, 21, 1]
    assert 0 <= outcome.rows["length"][1] <= 8


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("raise", "ValueError: the simulator diverged"), ("nan observation", "NaN")],
)
def test_exception_in_reset_fails_its_job_only(fault: str, reason: str) -> None:
    outcome = played(episodes("Faulty", env_kwargs={"fault": fault, "at": 0}), [3, 7, 5])
    assert failed(outcome) == [1]
    assert reason in outcome.failures[0].text
    assert lengths(outcome) == [4, 0, 6]


@pytest.fixture
def signals() -> Iterator[None]:
    """Signals are handled, as in a run: only code of the user's then raises KeyboardInterrupt."""
    handlers = Signals()
    yield
    handlers.restore()


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("fault", toys.ENDS)
@pytest.mark.parametrize("at", [0, 3])
def test_exception_that_would_end_the_program_fails_its_job_only(fault: str, at: int) -> None:
    task = episodes("Faulty", env_kwargs={"fault": fault, "at": at})
    outcome = played(task, [49, 7, 3])
    assert failed(outcome) == [1]
    assert outcome.failures[0].text.startswith(f"{toys.ENDS[fault].__name__} (toys.py:")
    assert outcome.rows["return_"][[0, 2]].tolist() == [50, 4]
    assert returns(played(task, [5, 5])) == [6, 6]


def test_ctrl_c_ends_an_evaluation_outside_of_a_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        played(episodes("Faulty", env_kwargs={"fault": "interrupt"}), [7, 3])


def test_constructor_that_exits_fails_the_jobs_without_an_environment(monkeypatch: Any) -> None:
    monkeypatch.setattr(toys.Rare, "created", 0)
    monkeypatch.setattr(toys.Rare, "working", (1, 3, 4))
    task = episodes("Rare")
    outcome = played(task, [3, 5, 7])
    assert failed(outcome) == [1] and outcome.rows["return_"][[0, 2]].tolist() == [4, 8]
    assert outcome.failures[0].text.startswith("SystemExit: 0 (toys.py:")
    assert returns(played(task, [3, 5, 7])) == [4, 6, 8]  # created again


def test_environment_that_changes_its_action_changes_no_other_one() -> None:
    """The actor returns the same array in each step."""
    actor, action = Still(2), np.full((2, 2), 0.25, np.float32)
    actor.act = lambda observations: action[: len(observations)]  # type: ignore[method-assign]
    assert returns(played(episodes("Repairing"), [3, 3], actor)) == [1.0, 1.0]  # 4 steps of 0.25


@pytest.mark.parametrize("fault", FAULTS)
def test_environment_of_a_failed_job_is_replaced(fault: str) -> None:
    """A failed instance refuses another episode; the new one is used at once."""
    task = episodes("Faulty", env_kwargs={"fault": fault})
    played(task, [7, 3])
    created, closed = Faulty.created, Faulty.closed
    assert failed(played(task, [7, 3])) == [0]
    assert (Faulty.created - created, Faulty.closed - closed) == (1, 1)
    assert returns(played(task, [5, 3])) == [6, 4]


def test_failure_names_the_line_that_raised() -> None:
    outcome = played(episodes("Faulty"), [7])
    source = Path(toys.__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(source, start=1) if "the simulator diverged" in text)
    (failure,) = outcome.failures
    assert failure.text == f"ValueError: the simulator diverged (toys.py:{line} in fail)"
    assert failure.kind == f"ValueError at toys.py:{line} in fail"
    assert (
        failure.details.startswith("Traceback")
        and f'{toys.__file__}", line {line}, in fail' in failure.details
    )


def test_failure_in_any_episode_of_a_job_fails_the_job() -> None:
    task = episodes("Faulty", episodes_per_job=2)
    outcome = played(task, [[7, 4], [4, 7], [4, 4]])
    assert failed(outcome) == [0, 1]
    assert len(outcome.failures) == 2
    assert returns(outcome)[2] == 5


def test_chunk_can_consist_of_failed_jobs() -> None:
    outcome = played(episodes("Faulty"), [7] * 5)
    assert failed(outcome) == [0, 1, 2, 3, 4]
    outcome = played(episodes("Faulty", env_kwargs={"at": 0}), [7] * 5)
    assert failed(outcome) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fault", FAULTS)
def test_on_failure_abort_raises(fault: str) -> None:
    task = episodes("Faulty", env_kwargs={"fault": fault}, on_failed_episode="abort")
    with pytest.raises(
        RunError,
        match=r"an episode failed and task.on_failed_episode is abort: job 1 of the chunk: ",
    ):
        played(task, [3, 7])


@pytest.mark.parametrize("fault", ["hang", "swallow"])
@pytest.mark.parametrize("at", [0, 3])
def test_hanging_environment_fails_its_job_only(fault: str, at: int) -> None:
    task = episodes("Faulty", env_kwargs={"fault": fault, "at": at}, episode_timeout_seconds=0.5)
    outcome = played(task, [20, 7, 3])
    assert failed(outcome) == [1]
    assert "took longer than task.episode_timeout_seconds: 0.5" in outcome.failures[0].text
    assert outcome.rows["return_"][[0, 2]].tolist() == [21, 4]
    assert outcome.seconds["environment"] < 10
    assert returns(played(task, [5, 5])) == [6, 6]


def test_time_limit_applies_to_each_episode() -> None:
    """20 ms per step and a limit of 1 s: 50 steps exceed it, two episodes of 30 do not."""
    task = episodes("Slow", episode_timeout_seconds=1.0, episodes_per_job=2)
    for _ in range(3):  # on a loaded machine, 30 steps may take as long
        outcome = played(task, [[49, 0], [29, 29], [2, 2]])
        if failed(outcome) == [0]:
            break
    assert failed(outcome) == [0]
    assert returns(outcome)[1:] == [30, 3]


# Observation sums.


def recomputed(lives: list[int]) -> tuple[np.ndarray, np.ndarray, int]:
    """Observations in episodes with these lifetimes:
    (t, lifetime, 1) for t in 0 .. lifetime - 1.
    """
    recorded = np.array([[t, life, 1] for life in lives for t in range(life)], np.float64)
    return recorded.sum(axis=0), np.square(recorded).sum(axis=0), len(recorded)


@pytest.mark.parametrize("name", ["Survival", "IntegerSurvival", "DoubleSurvival"])
def test_observation_sums_equal_a_plain_recomputation(name: str) -> None:
    observe = [True, False, True, True, False, True, False, True]
    ((arrays,),) = played(episodes(name), SEEDS, observe=observe).learned
    total, squares, count = recomputed([50, 1, 21, 8, 13])
    assert arrays["observation_sum"].tolist() == total.tolist()
    assert arrays["observation_squares"].tolist() == squares.tolist()
    assert arrays["observation_count"] == count
    assert all(
        isinstance(array, np.ndarray) and array.dtype == np.float64 for array in arrays.values()
    )


def test_observation_sums_cover_all_episodes_of_a_job() -> None:
    ((arrays,),) = played(
        episodes("Survival", episodes_per_job=2), [[3, 9], [0, 0]], observe=[True, False]
    ).learned
    total, _, count = recomputed([4, 10])
    assert (arrays["observation_sum"].tolist(), arrays["observation_count"]) == (
        total.tolist(),
        count,
    )


def test_without_observed_jobs_there_are_no_observation_sums() -> None:
    assert list(played(episodes("Survival"), SEEDS).learned) == [[{}]]


def test_failed_jobs_are_not_observed() -> None:
    ((arrays,),) = played(episodes("Faulty"), [7, 3], observe=[True, True]).learned
    total, _, count = recomputed([4])
    assert (arrays["observation_sum"].tolist(), arrays["observation_count"]) == (
        total.tolist(),
        count,
    )
    ((none,),) = played(episodes("Faulty"), [7, 3], observe=[True, False]).learned
    assert none["observation_count"] == 0


def test_observation_sums_are_separate_per_unit() -> None:
    """Five jobs in units of two, with lifetimes 4, 10, 8, 3 and 6;
    no job of the second unit is observed.
    """
    observe = [True, True, False, False, True]
    whole, units = (
        played(episodes("Survival"), [3, 9, 7, 2, 5], observe=observe, unit=unit).learned
        for unit in (None, 2)
    )
    assert len(whole) == 1 and len(units) == 3 and units[1] == [{}]
    for (arrays,), lives in ((whole[0], [4, 10, 6]), (units[0], [4, 10]), (units[2], [6])):
        total, squares, count = recomputed(lives)
        assert arrays["observation_sum"].tolist() == total.tolist()
        assert arrays["observation_squares"].tolist() == squares.tolist()
        assert arrays["observation_count"] == count


def test_sums_of_a_unit_cut_by_the_chunk_are_reported_per_job() -> None:
    """Units of three: one job of the first is in the chunk before, one of the last in the next."""
    played_ = played(
        episodes("Survival"), [3, 9, 7, 2, 5, 0, 1], observe=[True] * 7, unit=3, offset=1
    )
    actual = [[arrays["observation_count"] for arrays in parts] for parts in played_.learned]
    assert actual == [[4, 10], [8 + 3 + 6], [1, 2]]


# The task.


def test_build_returns_the_spaces_of_the_environment() -> None:
    task = build(episodes("Reach").options)
    assert isinstance(task, Episodes)
    assert isinstance(task.spaces, Spaces)
    assert task.spaces.observations.size == 3
    assert isinstance(task.spaces.actions, Box)
    assert task.spaces.actions.low.tolist() == [-1, -1]


def test_build_refuses_invalid_environments() -> None:
    with pytest.raises(ConfigError, match=r"task\.env_id"):
        episodes("Nothing-v0")


def test_close_closes_all_environments() -> None:
    task = episodes("Faulty")
    played(task, [1, 2, 3])
    closed = Faulty.closed
    task.close()
    assert Faulty.closed - closed == 3


class Draws(gymnasium.Env[Any, Any]):
    """Its only step pays number `index` of the global NumPy generator."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, index: int) -> None:
        self.index = index

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.drawn = np.random.normal(size=8)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), self.drawn[self.index], True, False, {}


gymnasium.register("GlobalDraws-v0", Draws)


@pytest.mark.parametrize(
    "seed, published",
    [
        (42, [0.49671415, -0.1382643, 0.64768854, 1.52302986]),  # NumPy's well-known first numbers
        (
            123,
            [
                -1.0856307,
                0.99734545,
                0.2829785,
                -1.5062947,
                -0.5786002,
                1.6514366,
                -2.4266791,
                -0.42891264,
            ],
        ),
    ],
)
def test_job_seeds_the_global_generator(seed: int, published: list[float]) -> None:
    for index, expected in enumerate(published):
        task = Episodes(Options(env_id="GlobalDraws-v0", env_kwargs={"index": index}))
        assert returns(played(task, [seed], Still(1))) == pytest.approx([expected], abs=1e-6)
