"""Novelty search: updates, archive, behaviours and the weight of returns, by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.algorithms.novelty import (
    NOVELTY,
    SearchProgress,
    extended,
    novelties,
    novelty,
    selection_probabilities,
)
from hpc_es.config.loading import validate
from hpc_es.core.data import (
    NO_FITNESS,
    SIGN_RETURN,
    Array,
    Column,
    Outcome,
    ProblemState,
    Rows,
    State,
    behaviour,
    row_dtype,
    with_columns,
)
from hpc_es.core.errors import ConfigError
from hpc_es.training.build import build_task
from tests.helpers import runs
from tests.helpers.stepping import D4, Cost, following, generation, sphere, strategy

MU = (0.1, -0.2, 0.3)
RETURNS = [[1, 0], [3, 2.5], [-2, 1], [0.5, 4]]  # of D4: theta + sigma z, theta - sigma z
NOVELTIES = [[0.1, 0.7], [0.3, 0.2], [0.9, 0.5], [0.4, 0.4]]


class Placed(Cost):
    """The behaviour of a job is its first two coordinates; the initial theta is random."""

    columns: tuple[Column, ...] = (behaviour(2),)

    def initial(self, rng: np.random.Generator) -> Array:
        return rng.standard_normal(self.size)

    def evaluate(self, candidates: Any, jobs: Any, carried: ProblemState, poll: Any) -> Outcome:
        outcome = super().evaluate(candidates, jobs, carried, poll)
        outcome.rows["behaviour"] = candidates.stacked()[:, :2]
        return outcome


def created(cost: Any = sphere, **options: Any) -> Any:
    arguments = {"population_size": 8, "parents": 3, "rollouts": 2, "sigma": 0.1, **options}
    return dataclasses.replace(
        strategy("novelty", cost, MU, D4, **arguments), problem=Placed(cost, np.array(MU))
    )


def prepared_by(es: Any, state: State, rows: Rows) -> Any:
    """The prepared update for rows whose fitness is the return."""
    return es.prepare(state, rows, rows["return_"])


def rows_of(returns: Any, novelties: Any) -> Rows:
    rows = np.zeros(np.size(returns), row_dtype((SIGN_RETURN, behaviour(2))))
    rows["return_"] = np.ravel(returns)
    return with_columns(rows, {NOVELTY: np.ravel(novelties)})


def changed(state: State, **shared: Any) -> State:
    arrays = {name: np.asarray(value, state.shared[name].dtype) for name, value in shared.items()}
    return dataclasses.replace(state, shared={**state.shared, **arrays})


# The update.


@pytest.mark.parametrize(
    ("mode", "weight", "gradient"),
    [
        ("nsra", 0.8, [0.1160714286, 0.03125, -0.09464285714]),
        ("nsr", 0.5, [0.05915178571, 0.07142857143, -0.05580357143]),
        ("ns", 0.0, [-0.03571428571, 0.1383928571, 0.008928571429]),
    ],
)
def test_update_mixes_the_ranks_of_return_and_novelty(
    mode: str, weight: float, gradient: list[float]
) -> None:
    es = created(mode=mode, reward_weight=weight)
    state = es.initial()
    assert float(state.shared["reward_weight"]) == weight
    result = prepared_by(es, state, rows_of(RETURNS, NOVELTIES))
    if mode == "nsra":
        pairs = [0.1142857143, 0.1428571429, -0.3428571429, -0.5714285714]
        assert result.values[0] == pytest.approx(pairs, rel=1e-9)
    assert es.partial_update(state, result, 0)["sums"][0] / result.count == pytest.approx(
        gradient, rel=1e-9
    )


def test_only_the_chosen_parent_is_updated() -> None:
    """A plain step of rate 1: theta + g - decay * theta."""
    es = created(mode="ns", weight_decay=0.5, optimizer={"kind": "none", "learning_rate": 1.0})
    state = es.initial()
    results = generation(es, state)
    rows = rows_of(RETURNS, NOVELTIES)
    prepared = es.prepare(state, rows, rows["return_"])
    results = dataclasses.replace(
        results, rows=rows, prepared=prepared, blocks=[es.partial_update(state, prepared, 0)]
    )
    after, metrics = es.tell(state, results)
    parent = int(after.shared["moved"])
    expected = state.shared["parents"].copy()
    expected[parent] = 0.5 * expected[parent] + [-0.03571428571, 0.1383928571, 0.008928571429]
    np.testing.assert_allclose(after.shared["parents"], expected, rtol=1e-9)
    assert after.master["optimizer_steps"].tolist() == [int(item == parent) for item in range(3)]
    assert metrics["parent"] == parent + 1


def test_failed_job_drops_its_pair() -> None:
    failed = [[1, np.nan], *RETURNS[1:]]
    es = created(mode="nsr")
    result, whole = prepared_by(es, es.initial(), rows_of(failed, NOVELTIES)), slice(1, None)
    alone = prepared_by(es, es.initial(), rows_of(RETURNS[whole], NOVELTIES[whole]))
    assert result.values[0].tolist() == [0, *alone.values[0]] and result.count == 6


def test_without_information_parents_stay_and_the_return_weight_falls() -> None:
    """All returns are equal and novelty has no weight:
    the weight of returns falls after `patience`.
    """
    es = created(lambda x: 1.0, patience=2, reward_weight_step=0.25)
    first = state = es.initial()
    # the thetas of the last two have been probed so far: a first return, and one that is no better
    for _ in range(3):
        results = generation(es, state)
        assert es.notices(state, results, state) == ["all evaluations are equal: no update"]
        state = es.tell(state, results)[0]
    assert np.array_equal(state.shared["parents"], first.shared["parents"])
    assert state.master["optimizer_steps"].tolist() == [0, 0, 0]
    assert [float(item.shared["reward_weight"]) for item in (state, following(es, state))] == [
        1,
        0.75,
    ]


def test_without_a_valid_pair_all_parents_stay() -> None:
    es = created(lambda x: np.nan)
    state = es.initial()
    results = generation(es, state)
    after, metrics = es.tell(state, results)
    assert es.notices(state, results, after) == ["every pair has a failed evaluation: no update"]
    assert np.array_equal(after.shared["parents"], state.shared["parents"])
    assert metrics["skipped_update"] == 1 and not len(after.shared["archive"])


# The archive.


def test_theta_joins_the_archive_after_its_evaluation() -> None:
    """First the initial parents, then the updated parent of each generation."""
    es = created(mode="nsr")
    state = es.initial()
    expected = state.shared["parents"][:, :2].tolist()
    for _ in range(4):
        state = following(es, state)
        np.testing.assert_allclose(state.shared["archive"], expected, rtol=1e-6)
        expected.append(state.shared["parents"][int(state.shared["moved"]), :2].tolist())


def test_probes_evaluate_all_parents_first_and_then_the_updated_one() -> None:
    es = created()
    chunks = es.ask(es.initial(), 0, rows_of([], []), NO_FITNESS)
    assert [(chunk.purpose, chunk.parent, list(chunk.job_numbers)) for chunk in chunks] == [
        ("probe", 1, [0, 1]),
        ("probe", 2, [2, 3]),
        ("probe", 3, [4, 5]),
    ]
    chunks = es.ask(changed(es.initial(), moved=1), 0, rows_of([], []), NO_FITNESS)
    assert [(chunk.purpose, chunk.parent, list(chunk.job_numbers)) for chunk in chunks] == [
        ("probe", 2, [0, 1])
    ]


def test_behaviours_are_means_over_valid_rollouts() -> None:
    es = created(parents=2, rollouts=3)
    probes = rows_of([1, 3, np.nan, np.nan, np.nan, np.nan], np.zeros(6))
    probes["behaviour"] = [[1, 2], [2, 4], [9, 9], [9, 9], [9, 9], [9, 9]]
    after = es.with_probes(es.initial(), probes, probes["return_"])
    assert after.shared["archive"].tolist() == [[1.5, 3.0]]
    assert after.shared["returns"][0] == 2.0 and np.isnan(after.shared["returns"][1])
    assert es.selected(after) in (0, 1)


def test_novelty_is_computed_with_the_new_archive_entry() -> None:
    """With one parent: the nearest of its initial and its current behaviour counts."""
    es = created(parents=1, neighbours=1, rollouts=1)
    first = es.initial()
    second = following(es, first)
    for state, places in ((first, [first.theta]), (second, [first.theta, second.theta])):
        result = generation(es, state).rows
        nearest = [
            min(float(np.hypot(*(row["behaviour"] - index[:2]))) for index in places)
            for row in result
        ]
        assert result["novelty"] == pytest.approx(nearest, rel=1e-5)


# The parents.


def test_parents_are_chosen_in_proportion_to_their_novelty() -> None:
    """The nearest entries of the behaviours 0, 10 and 20 are 2, 1 and 5 away."""
    es = created(neighbours=1)
    state = changed(
        es.initial(), behaviours=[[0, 0], [10, 0], [20, 0]], archive=[[0, 2], [10, 1], [20, 5]]
    )
    drawn = Counter(
        es.selected(dataclasses.replace(state, generation=number)) for number in range(2000)
    )
    assert [drawn[parent] / 2000 for parent in range(3)] == pytest.approx(
        [0.25, 0.125, 0.625], abs=0.03
    )


def test_theta_is_that_of_the_parent_with_the_best_return() -> None:
    es = created(mode="nsr")
    state = following(es, es.initial())
    # the cost is the sphere
    best = int(np.argmin(np.square(es.initial().shared["parents"]).sum(axis=1)))
    assert np.array_equal(state.theta, state.shared["parents"][best])
    assert np.array_equal(es.centre(state, 0), state.theta)
    assert np.array_equal(es.centre(state, 2), state.shared["parents"][1])


def test_init_from_sets_the_first_parent() -> None:
    es = created()
    state = changed(es.initial(), theta=[7, 8, 9])
    assert es.centre(state, 1).tolist() == [7, 8, 9]
    assert (
        7 in following(es, state).shared["parents"][0]
        or int(following(es, state).shared["moved"]) == 0
    )


# In a run.


@pytest.mark.long
def test_novelty_runs_are_identical_on_any_ranks_and_after_a_restart(tmp_path: Path) -> None:
    novelty = ("algorithm={kind: novelty, population_size: 12, parents: 2, rollouts: 3}",)
    runs.finished(1, tmp_path / "one", *novelty)
    runs.finished(3, tmp_path / "three", *novelty, "stop.generations=3")
    runs.finished(2, tmp_path / "three", *novelty)
    runs.assert_same(tmp_path / "three", tmp_path / "one")
    rows = [
        json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["archive_size"] for row in rows] == [2, 3, 4, 5, 6, 7]
    # the archive has what the probes of this generation have shown
    assert rows[0]["novelty_mean"] > 0
    assert runs.newest(tmp_path / "three").state.shared["archive"].shape[0] == 2 + 5


def test_ask_tell_with_behaviours_can_be_saved_and_resumed(tmp_path: Path) -> None:
    es = hpc_es.Strategy(
        "novelty", x0=[1.0, 2.0], sigma0=0.1, population_size=6, parents=1, rollouts=1
    )
    for _ in range(3):
        assert np.array_equal(es.ask(), [es.theta])  # its behaviour must be evaluated first
        es.tell([sphere(x) for x in es.ask()])
        assert es.ask().shape == (6, 2)
        es.tell([sphere(x) for x in es.ask()])
    es.tell([sphere(x) for x in es.ask()])
    es.save(tmp_path / "saved.h5")
    assert np.array_equal(hpc_es.Strategy.load(tmp_path / "saved.h5").ask(), es.ask())


@pytest.mark.parametrize(
    "task",
    [
        {"env_id": "CartPole-v1", "behaviour": None},
        pytest.param({"kind": "bandits"}, marks=pytest.mark.satellite("bandits")),
        {
            "kind": "function",
            "function": "tests.helpers.toys:noisy_bowl",
            "dimension": 2,
            "vector_behaviour": False,
        },
    ],
)
def test_task_without_behaviour_is_refused(task: dict[str, Any]) -> None:
    config = validate({"task": task, "algorithm": {"kind": "novelty"}})
    with pytest.raises(ConfigError, match=r"task has none: expected task.behaviour, such as"):
        build_task(config)


ARCHIVE = np.array([[0, 0], [3, 4], [1, 0], [0, 2]], np.float32)


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [  # with 1, 2 and 10 neighbours; there are 4
        ((0, 1), (1, 1, 1.914213562)),
        ((2, 2), (2, 2.118033989, 2.32514077)),
        ((0, 0), (0, 0.5, 2)),
    ],
)
def test_novelty_is_the_mean_distance_to_the_nearest(
    behaviour: tuple[int, int], expected: tuple[float, ...]
) -> None:
    result = [novelty(np.array(behaviour, np.float32), ARCHIVE, k) for k in (1, 2, 10)]
    assert result == pytest.approx(expected, rel=1e-9)


def test_novelties_of_a_batch_equal_single_ones() -> None:
    rng = np.random.default_rng(0)
    behaviours, archive = (
        rng.standard_normal((9, 3)),
        rng.standard_normal((50, 3)).astype(np.float32),
    )
    assert novelties(behaviours, archive, 10).tolist() == [
        novelty(item, archive, 10) for item in behaviours
    ]


def test_novelty_against_an_empty_archive_is_zero() -> None:
    assert novelties(np.ones((2, 3)), np.zeros((0, 3)), 10).tolist() == [0, 0]


def test_selection_probabilities_are_proportional_to_novelty() -> None:
    assert selection_probabilities(np.array([2.0, 1.0, 5.0])).tolist() == [0.25, 0.125, 0.625]
    assert selection_probabilities(np.zeros(4)).tolist() == [0.25] * 4


def test_full_archive_keeps_the_newest_entries() -> None:
    longer = extended(ARCHIVE, np.array([[9, 9]], np.float32), None)
    assert longer.tolist() == [*ARCHIVE.tolist(), [9, 9]]
    assert extended(ARCHIVE, np.array([[9, 9]], np.float32), 2).tolist() == [[0, 2], [9, 9]]
    assert longer.dtype == np.float32


def test_return_weight_rises_after_a_new_best_and_falls_otherwise() -> None:
    """Steps of 0.05, patience 3; the first return is a new best, and the weight is already 1."""
    progress, weights = SearchProgress(1.0), []
    for return_ in (1, 1, 0, 1, 1, 1, 1, 2, 3, 2, 2, 2):
        progress = SearchProgress.from_arrays(progress.after(return_, 0.05, 3).arrays())
        weights.append(progress.weight)
    assert weights == pytest.approx([1, 1, 1, 0.95, 0.95, 0.95, 0.9, 0.95, 1, 1, 1, 0.95])


def test_return_of_minus_infinity_is_not_a_new_best() -> None:
    progress = SearchProgress(0.04)
    for _ in range(3):
        progress = progress.after(-math.inf, 0.05, 2)
    assert (progress.weight, progress.stagnant) == (0.0, 1)
