"""Episodes in lanes: returns by hand, independent of lane, call and segment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
from hpc_es.core.data import BEHAVIOUR, Outcome
from hpc_es.core.errors import RunError
from hpc_es.core.policy import DIVERGED
from hpc_es.core.population import Factorisation, LowRank
from hpc_es.tasks.jax_episodes import task as tasks
from hpc_es.tasks.observation_statistics import Deviations, Moments
from tests.helpers.jax_playing import (
    CONSTANT,
    constant,
    created,
    in_segments,
    parts,
    plainly,
    played,
)
from tests.helpers.jax_walk import lengths

SEEDS = np.random.default_rng(5).integers(2**31, size=24)
BIASES = np.linspace(-0.9, 0.8, 24).astype(np.float32)
ALL = constant(*BIASES)
MLP = (("hidden_dims", (8, 8)),)


def bytes_of(outcome: Outcome) -> list[bytes]:
    return [row.tobytes() for row in outcome.rows]


def test_returns_and_lengths_by_hand() -> None:
    """24 jobs on 4 lanes in calls of 8: every lane is refilled, after lengths of 1 to 20."""
    n, result = lengths(SEEDS), played(parts(), ALL, SEEDS).rows
    assert n.min() <= 3
    assert n.max() >= 18
    np.testing.assert_array_equal(result["length"], n)
    np.testing.assert_allclose(result["return_"], BIASES * n * (n + 1) / 2, rtol=1e-6)
    np.testing.assert_array_equal(result["sign_return"], np.sign(BIASES) * n)


def test_last_call_is_padded() -> None:
    """11 jobs in calls of 8: the 3 of the last call equal those of a full one,
    and no others run.
    """
    whole, part = played(parts(), ALL, SEEDS), played(parts(), ALL[:11], SEEDS[:11])
    assert bytes_of(part) == bytes_of(whole)[:11]
    assert len(part.rows) == 11


def test_call_is_built_and_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of chunks; each starts from new episodes."""
    created = parts()
    first = played(created, ALL, SEEDS)
    monkeypatch.setattr("hpc_es.tasks.jax_episodes.program.EpisodesCall.__init__", _never)
    assert bytes_of(played(created, ALL, SEEDS)) == bytes_of(first)


def _never(*_: Any) -> None:
    raise AssertionError("a call was made anew")


def test_time_limit_ends_episodes() -> None:
    n = np.minimum(lengths(SEEDS), 5)
    result = played(parts(max_episode_steps=5), ALL, SEEDS).rows
    np.testing.assert_array_equal(result["length"], n)
    np.testing.assert_allclose(result["return_"], BIASES * n * (n + 1) / 2, rtol=1e-6)


def test_return_of_a_job_is_the_mean_of_its_episodes() -> None:
    n = lengths(SEEDS.reshape(12, 2))
    result = played(parts(episodes_per_job=2), ALL[:12], SEEDS.reshape(12, 2)).rows
    np.testing.assert_array_equal(result["length"], n.sum(axis=1))
    np.testing.assert_allclose(
        result["return_"], BIASES[:12] * (n * (n + 1) / 2).mean(axis=1), rtol=1e-6
    )


def test_reward_offset_applies_in_training_only() -> None:
    created, n = parts(reward_offset=-1.0), lengths(SEEDS)
    result, measured = (
        played(created, ALL, SEEDS).rows,
        played(created, ALL, SEEDS, training=False).rows,
    )
    np.testing.assert_allclose(
        result["return_"], BIASES * n * (n + 1) / 2 - n, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(measured["return_"], BIASES * n * (n + 1) / 2, rtol=1e-6)


def test_many_small_rewards_are_summed_exactly() -> None:
    """10,000 times float32(0.1): a plain sum in float32 gives 999.9."""
    keywords = {"reward": 0.1, "longest": 1, "offset": 0.0}
    created = parts(env_kwargs={**keywords, "limit": 10_000, "endless": True})
    result = played(created, constant(0.0), [1]).rows
    assert result["length"][0] == 10_000
    assert result["return_"][0] == pytest.approx(10_000 * float(np.float32(0.1)), abs=1e-6)


def test_steps_after_an_episode_do_not_count() -> None:
    """The walk is NaN after its end, where a finished lane waits for the others."""
    assert np.isfinite(played(parts(), ALL, SEEDS).rows["return_"]).all()


@pytest.mark.parametrize("fault", ["nan_observation_at", "nan_reward_at"])
def test_nan_fails_its_job_only(fault: str) -> None:
    """Walkers to the right get a NaN in their 4th step, if they get that far."""
    n, outcome = lengths(SEEDS), played(parts(env_kwargs={fault: 3}), ALL, SEEDS)
    failed = (BIASES > 0) & (n > 3)
    assert failed.any()
    np.testing.assert_array_equal(np.isnan(outcome.rows["return_"]), failed)
    assert len(outcome.failures) == failed.sum()
    first = int(np.flatnonzero(failed)[0])
    what = "the observation is NaN" if fault == "nan_observation_at" else "the return is nan"
    assert (outcome.failures[0].position, outcome.failures[0].text) == (first, f"{what} at step 4")
    good = ~failed
    np.testing.assert_allclose(
        outcome.rows["return_"][good], (BIASES * n * (n + 1) / 2)[good], rtol=1e-6
    )


def test_nan_at_the_reset_fails_its_job() -> None:
    n, outcome = lengths(SEEDS), played(parts(env_kwargs={"nan_at_reset": True}), ALL, SEEDS)
    np.testing.assert_array_equal(np.isnan(outcome.rows["return_"]), n % 2 == 1)
    assert outcome.failures[0].text == "the observation is NaN at step 0"


def test_infinite_observation_fails_its_job_and_enters_no_statistics() -> None:
    """Walkers to the right observe it after their 4th step, if they get that far."""
    n, observe = lengths(SEEDS), np.ones(24, np.bool_)
    outcome = played(
        parts(env_kwargs={"infinite_observation_at": 3}),
        ALL,
        SEEDS,
        NORMALISER,
        observe=observe,
        unit=24,
    )
    failed = (BIASES > 0) & (n > 3)
    np.testing.assert_array_equal(np.isnan(outcome.rows["return_"]), failed)
    assert outcome.failures[0].text == "the observation is infinite at step 4"
    arrays = outcome.learned[0][0]
    assert (
        arrays["observation_count"] == n[~failed].sum()
        and np.isfinite(arrays["observation_squares"]).all()
    )


@pytest.mark.parametrize("name", ["Box", "Discrete"])
def test_nan_action_fails_its_job(name: str) -> None:
    thetas = np.array(ALL, np.float32)
    if name == "Discrete":
        thetas = np.zeros((24, 4 * 2 + 2), np.float32)
    thetas[1, -1] = np.nan
    created = parts() if name == "Box" else parts(env_id="gymnax:CartPole-v1")
    outcome = played(created, thetas, SEEDS)
    assert np.flatnonzero(np.isnan(outcome.rows["return_"])).tolist() == [1]
    assert (
        outcome.failures[0].text == f"the action of the policy is not finite ({DIVERGED}) at step 1"
    )


@pytest.mark.parametrize("episodes", [1, 2])
def test_exception_in_called_code_fails_its_job_only(
    episodes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The code raises beyond 3; the others have the bits that
    they have in calls without the failed jobs.
    """
    created, jobs = (
        parts(env_id="tests.helpers.jax_walk:called", episodes_per_job=episodes),
        24 // episodes,
    )
    seeds, biases = SEEDS.reshape(jobs, episodes), BIASES[-jobs:]
    outcome = played(created, constant(*biases), seeds)
    x = np.cumsum(np.repeat(biases[:, None], 20, axis=1), axis=1, dtype=np.float32)
    ends = np.take_along_axis(x, lengths(seeds).max(axis=1)[:, None] - 1, axis=1)[:, 0]
    failed = ends > 3
    assert 3 < failed.sum() < jobs
    np.testing.assert_array_equal(np.isnan(outcome.rows["return_"]), failed)
    assert [failure.position for failure in outcome.failures] == np.flatnonzero(failed).tolist()
    assert {failure.text.partition(" (")[0] for failure in outcome.failures} == {
        "ValueError: it diverged"
    }
    good = played(created, constant(*biases[~failed]), seeds[~failed])
    assert bytes_of(good) == [row.tobytes() for row in outcome.rows[~failed]]
    assert not caplog.records


def test_on_failure_abort_raises() -> None:
    created = parts(env_kwargs={"nan_at_reset": True}, on_failed_episode="abort")
    with pytest.raises(RunError, match=r"task\.on_failed_episode is abort: job"):
        played(created, ALL, SEEDS)


def test_behaviour_is_the_last_observation() -> None:
    n = lengths(SEEDS)
    created = parts(behaviour=tasks.FinalObservationOptions(final_observation=(0,)))
    np.testing.assert_allclose(
        played(created, ALL, SEEDS).rows[BEHAVIOUR][:, 0], BIASES * n, rtol=1e-5
    )


NORMALISER = (np.zeros(2, np.float32), np.ones(2, np.float32), math.inf)


def sums_by_hand(job: int, offset: float) -> tuple[Any, Any, int]:
    """Sum and squares in float64 of the observations: [offset + b t, n - t] before step t + 1."""
    n, b = int(lengths(SEEDS[job])), float(BIASES[job])
    t = np.arange(n)
    observed = np.stack([offset + b * t, n - t], axis=1)
    return observed.sum(axis=0), np.square(observed).sum(axis=0), n


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_observation_sums_cover_the_observed_jobs(offset: float) -> None:
    observe = np.arange(24) % 3 == 0
    created = parts(env_kwargs={"offset": offset})
    ((unit,),) = played(created, ALL, SEEDS, NORMALISER, observe=observe, unit=24).learned
    expected = [sums_by_hand(job, offset) for job in np.flatnonzero(observe)]
    np.testing.assert_allclose(
        unit["observation_sum"], sum(item[0] for item in expected), rtol=1e-6, atol=1e-4
    )
    np.testing.assert_allclose(
        unit["observation_squares"], sum(item[1] for item in expected), rtol=1e-6
    )
    assert unit["observation_count"] == sum(item[2] for item in expected)


def test_sample_deviations_of_two_episodes_per_job() -> None:
    """Differences from the first observation of a job lose no precision far from 0."""
    created = parts(env_kwargs={"offset": 1000.0}, episodes_per_job=2)
    observe = np.ones(12, np.bool_)
    pairs = SEEDS.reshape(12, 2)
    ((unit,),) = played(
        created, ALL[:12], pairs, NORMALISER, observe=observe, unit=12, centred=True
    ).learned
    observed = []
    for job, row in enumerate(lengths(pairs)):
        for n in row:
            t = np.arange(n)
            observed.append(np.stack([1000 + float(BIASES[job]) * t, n - t], axis=1))
    every = np.concatenate(observed)
    result = Deviations.from_arrays(unit)
    np.testing.assert_allclose(result.deviation(), every.std(axis=0, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(result.mean(), every.mean(axis=0), rtol=1e-6)


def test_failed_jobs_are_not_observed() -> None:
    created = parts(env_kwargs={"nan_at_reset": True})
    ((unit,),) = played(
        created, ALL, SEEDS, NORMALISER, observe=np.ones(24, np.bool_), unit=24
    ).learned
    n = lengths(SEEDS)
    assert Moments.from_arrays(unit).count == n[n % 2 == 0].sum()


def test_policy_observes_normalised_and_clipped_values() -> None:
    """(n - 10) / 5, clipped to 0.5, times 1: the first action, observed in episodes of one step."""
    normaliser = (np.array([0, 10], np.float32), np.array([1, 5], np.float32), 0.5)
    theta = np.tile(np.array([[0, 1, 0]], np.float32), (24, 1))
    result = played(parts(max_episode_steps=1), theta, SEEDS, normaliser).rows
    expected = np.clip((lengths(SEEDS) - 10) / 5, -0.5, 0.5)
    np.testing.assert_allclose(result["return_"], expected, rtol=1e-6)


def test_action_noise_differs_by_job_and_applies_in_training_only() -> None:
    noisy = (*CONSTANT, ("action_noise_std", 0.1))
    theta, created = constant(*np.zeros(24)), parts(noisy, max_episode_steps=1)
    first, again = (
        played(created, theta, SEEDS).rows["return_"],
        played(created, theta, SEEDS).rows["return_"],
    )
    np.testing.assert_array_equal(first, again)
    assert len(set(first.tolist())) == 24
    assert 0.05 < first.std() < 0.2
    assert not played(created, theta, SEEDS, training=False).rows["return_"].any()


# Places, calls and segments.

CASES = {
    "walk": ({"env_kwargs": {"jitter": 0.3}}, MLP, "mlp"),
    "cartpole": ({"env_id": "gymnax:CartPole-v1"}, MLP, "mlp"),
    "pendulum": ({"env_id": "gymnax:Pendulum-v1"}, MLP, "mlp"),
    "acrobot lstm": (
        {"env_id": "gymnax:Acrobot-v1", "max_episode_steps": 100},
        (("hidden_dims", (6,)),),
        "lstm",
    ),
}


def case(name: str, **more: Any) -> Any:
    options, policy, kind = CASES[name]
    if "gymnax" in str(options):
        pytest.importorskip("gymnax", reason="gymnax is not installed here: make test-jax")
    return parts(policy, kind, **{**options, **more})


def thetas(created: Any, jobs: int = 24) -> Any:
    return 0.5 * np.random.default_rng(3).standard_normal((jobs, created[1].layout.size)).astype(
        np.float32
    )


@pytest.mark.parametrize("name", CASES)
def test_results_of_a_job_do_not_depend_on_its_lane(name: str) -> None:
    created = case(name)
    theta, n = thetas(created), np.arange(24)
    forward = bytes_of(played(created, theta, SEEDS))
    for order in (n[::-1], np.random.default_rng(1).permutation(24), np.roll(n, 5)):
        result = bytes_of(played(created, theta[order], SEEDS[order]))
        assert result == [forward[job] for job in order]


@pytest.mark.parametrize("name", CASES)
def test_results_of_a_job_do_not_depend_on_segments(name: str) -> None:
    created = case(name)
    whole, short = (
        played(in_segments(created, steps), thetas(created), SEEDS) for steps in (1000, 7)
    )
    assert bytes_of(short) == bytes_of(whole)


def test_observation_sums_do_not_depend_on_segments() -> None:
    observe = np.ones(24, np.bool_)
    created = parts()
    units = [
        played(
            in_segments(created, steps), ALL, SEEDS, NORMALISER, observe=observe, unit=24
        ).learned[0][0]
        for steps in (1000, 3)
    ]
    for name, array in units[0].items():
        assert array.tobytes() == units[1][name].tobytes()


@pytest.mark.parametrize("name", ["walk", "cartpole"])
def test_results_of_a_job_do_not_depend_on_the_size_of_a_call(name: str) -> None:
    theta = thetas(case(name))
    assert bytes_of(played(case(name, jobs_per_call=24), theta, SEEDS)) == bytes_of(
        played(case(name), theta, SEEDS)
    )


@pytest.mark.parametrize("name", ["walk", "cartpole", "pendulum", "acrobot lstm"])
def test_episodes_equal_a_plain_loop(name: str) -> None:
    """To the precision of float32 after this many steps; lengths are equal."""
    created = case(name)
    theta = thetas(created)[:6]
    result = played(created, theta, SEEDS[:6]).rows
    for job in range(6):
        total, length, _ = plainly(created, theta[job], int(SEEDS[job]))
        assert result["length"][job] == length
        assert result["return_"][job] == pytest.approx(total, rel=1e-3, abs=1e-4)


LOW_RANK = {  # policies whose matrices have fewer factors than elements
    "mlp": ("mlp", (("hidden_dims", (12, 12)), ("normalisation", "layer"))),
    "mlp without biases": ("mlp", (("hidden_dims", (12, 12)), ("bias", False))),
    "lstm": ("lstm", (("hidden_dims", (8,)),)),
}


@pytest.mark.parametrize("name", LOW_RANK)
def test_low_rank_candidates_play_as_formed_ones_in_any_lane(name: str) -> None:
    """24 jobs in calls of 8; the common weights are shared by all lanes,
    and no candidate is formed.
    """
    kind, options = LOW_RANK[name]
    task, policy = parts(options, kind)
    theta = policy.initial(np.random.default_rng(0))
    factorisation = Factorisation(policy.layout, 1)
    rows, scales = np.arange(24) // 2, np.where(np.arange(24) % 2, 0.2, -0.2).astype(np.float32)
    numbers = (
        np.random.default_rng(1)
        .standard_normal((12, factorisation.compact.size))
        .astype(np.float32)
    )
    candidates = LowRank(factorisation, theta, numbers, rows, scales)
    result = played((task, policy), candidates, SEEDS).rows
    formed = played((task, policy), candidates.stacked(), SEEDS).rows
    np.testing.assert_allclose(result["return_"], formed["return_"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(result["length"], formed["length"])
    program = task.program(policy, False, False, factorisation)
    assert program.factored == tuple(factorisation.matrices)
    assert program.form.params < policy.layout.size
    order = np.random.default_rng(2).permutation(24)
    turned = LowRank(factorisation, theta, numbers, rows[order], scales[order])
    assert played((task, policy), turned, SEEDS[order]).rows.tobytes() == result[order].tobytes()


def test_parameters_read_lane_by_lane_are_those_of_a_gather(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hpc_es.tasks.jax_episodes import rollout

    rng = np.random.default_rng(0)
    thetas, seeds = rng.normal(0, 1, (20, 3)), np.arange(20)
    here = played(parts(lanes=3, jobs_per_call=20), thetas, seeds)
    created.cache_clear()  # compiled calls
    monkeypatch.setattr(rollout.jax, "default_backend", lambda: "tpu")  # neither this CPU nor a GPU
    there = played(parts(lanes=3, jobs_per_call=20), thetas, seeds)
    created.cache_clear()
    assert here.rows.tobytes() == there.rows.tobytes() and len(set(here.rows["length"])) > 3
