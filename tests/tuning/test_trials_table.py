"""The table of trials is fixed by the first task that writes it."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import RunError, UserError
from hpc_es.tuning import trials as trials_module
from hpc_es.tuning.plan import load
from hpc_es.tuning.report import draw, read_report, report_text
from hpc_es.tuning.trials import TABLE_FILE, extend, freeze, matching_trials
from tests.helpers.runs import TINY

IDENTITY = {
    "base": {"seed": 1},
    "space": {"algorithm.sigma": [0.1, 0.2]},
    **{"trials": 2, "search": "grid", "objective": "final_return"},
}
TRIALS = [{"algorithm.sigma": 0.1}, {"algorithm.sigma": 0.2}]


def test_table_is_restored_exactly(tmp_path: Path) -> None:
    assert matching_trials(tmp_path, IDENTITY) is None
    assert freeze(tmp_path, IDENTITY, TRIALS) == TRIALS == matching_trials(tmp_path, IDENTITY)
    assert list(tmp_path.iterdir()) == [tmp_path / TABLE_FILE]


def test_concurrent_tasks_use_one_table(tmp_path: Path) -> None:
    """Other machines may compute other last bits, so the first writer decides."""
    with ThreadPoolExecutor(16) as pool:
        result = list(
            pool.map(lambda n: freeze(tmp_path, IDENTITY, [{"algorithm.sigma": n}]), range(16))
        )
    assert all(trials == result[0] for trials in result)
    assert list(tmp_path.iterdir()) == [tmp_path / TABLE_FILE]


def test_table_is_shared_without_hard_links(tmp_path: Path, monkeypatch: Any) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert freeze(tmp_path, IDENTITY, TRIALS) == TRIALS
    assert freeze(tmp_path, IDENTITY, TRIALS[:1]) == TRIALS


def test_different_tuning_is_refused_with_the_differences(tmp_path: Path) -> None:
    freeze(tmp_path, IDENTITY, TRIALS)
    other = {**IDENTITY, "base": {"seed": 2}, "space": {"algorithm.sigma": [0.1, 0.3]}}
    with pytest.raises(UserError) as error:
        matching_trials(tmp_path, other)
    assert "base.seed: 1 in the directory, 2" in str(error.value)
    assert "space.algorithm.sigma: [0.1, 0.2] in the directory, [0.1, 0.3]" in str(error.value)
    assert "trials:" not in str(error.value)


def test_options_that_do_not_affect_results_may_differ(tmp_path: Path) -> None:
    freeze(tmp_path, IDENTITY, TRIALS)
    base = {"seed": 1, "name": "x", "report": {"tensorboard": True}, "mpi": {"schedule": "static"}}
    assert matching_trials(tmp_path, {**IDENTITY, "base": base}) == TRIALS
    with pytest.raises(
        UserError, match=r"base\.mpi\.chunk_size: auto in the directory, 4 in the config"
    ):
        matching_trials(tmp_path, {**IDENTITY, "base": {**base, "mpi": {"chunk_size": 4}}})


RANDOM = (
    "search: random\nspace: {algorithm.sigma: {log_uniform: [0.01, 1]}, seed: {integer: [0, 9]}}\n"
)
SIGMAS, RATES = "algorithm.sigma: [0.1, 0.2]", "algorithm.optimizer.learning_rate: [0.1, 0.2]"


def planned(directory: Path, tuning: str) -> Any:
    """The plan of a tuning file with these lines."""
    (directory / "tiny.yaml").write_text(TINY)
    (directory / "tune.yaml").write_text(f"base: tiny.yaml\n{tuning}")
    return load(directory / "tune.yaml")


def test_longer_random_search_keeps_its_first_trials(tmp_path: Path) -> None:
    six, eight, output = (
        planned(tmp_path, f"{RANDOM}trials: 6"),
        planned(tmp_path, f"{RANDOM}trials: 8"),
        tmp_path,
    )
    first = freeze(output, six.identity(), six.table())
    assert matching_trials(output, eight.identity()) == first
    assert (
        extend(output, eight.identity(), eight.table())
        == matching_trials(output, eight.identity())
        == eight.table()
    )
    assert eight.table()[:6] == first
    assert matching_trials(output, six.identity()) == eight.table(), "fewer are known too"
    assert extend(output, six.identity(), six.table()) == eight.table(), "none is lost"


def test_stored_values_are_kept_if_this_machine_rounds_differently(tmp_path: Path) -> None:
    freeze(
        tmp_path,
        planned(tmp_path, f"{RANDOM}trials: 1").identity(),
        [{"algorithm.sigma": 0.5, "seed": 1}],
    )
    two = planned(tmp_path, f"{RANDOM}trials: 2")
    assert extend(tmp_path, two.identity(), two.table()) == [
        {"algorithm.sigma": 0.5, "seed": 1},
        two.table()[1],
    ]


def test_extended_grid_appends_its_new_trials(tmp_path: Path) -> None:
    """[0.1, 0.2] x [0.1, 0.2] and 0.05 in the first list: the four keep their numbers,
    and two are new.
    """
    small = planned(tmp_path, f"space: {{{SIGMAS}, {RATES}}}")
    large = planned(tmp_path, f"space: {{algorithm.sigma: [0.05, 0.1, 0.2], {RATES}}}")
    there = freeze(tmp_path, small.identity(), small.table())
    assert matching_trials(tmp_path, large.identity()) == there
    grown = extend(tmp_path, large.identity(), large.table())
    assert grown[:4] == there
    assert [
        (trial["algorithm.sigma"], trial["algorithm.optimizer.learning_rate"])
        for trial in grown[4:]
    ] == [
        (0.05, 0.1),
        (0.05, 0.2),
    ]
    assert matching_trials(tmp_path, large.identity()) == grown


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (f"space: {{{SIGMAS}}}", "space: {algorithm.sigma: [0.1]}", "but keeps those that it has"),
        (f"space: {{{SIGMAS}}}", f"space: {{{SIGMAS}, {RATES}}}", "but keeps those that it has"),
        (
            f"{RANDOM}trials: 3",
            f"{RANDOM.replace('0.01', '0.02')}trials: 4",
            "the space decides what is drawn",
        ),
        (
            f"{RANDOM}trials: 3",
            f"{RANDOM}trials: 3\nrepetitions: 2",
            "repetitions: null in the directory, 2",
        ),
        (
            f"{RANDOM}trials: 3",
            f"{RANDOM}trials: 3".replace("random", "optuna"),
            "search: random in the directory",
        ),
    ],
)
def test_change_of_existing_trials_is_refused_with_the_reason(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    plan = planned(tmp_path, old)
    freeze(tmp_path, plan.identity(), plan.table())
    with pytest.raises(UserError, match="whose trials these would change") as error:
        matching_trials(tmp_path, planned(tmp_path, new).identity())
    assert said in str(error.value)


def test_damaged_table_is_detected(tmp_path: Path) -> None:
    freeze(tmp_path, IDENTITY, TRIALS)
    path = tmp_path / TABLE_FILE
    changed = json.loads(path.read_text())
    changed["identity"]["base"]["seed"] = 2
    for text in ("", "[]", json.dumps(changed)):
        path.write_text(text)
        with pytest.raises(UserError, match=r"trials\.json: expected the trials of a tuning"):
            matching_trials(tmp_path, IDENTITY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("trials", value) for value in (None, {}, 10**9, -1, "x")),
        *(("search", 3), ("objective", [1]), ("base", [[1]]), ("space", "x"), ("space", None)),
        *(("repetitions", value) for value in ("x", [[]], {}, 0, float("inf"))),
        *(("base", {"repetitions": value}) for value in ("x", [[]], 0, float("inf"))),
    ],
)
def test_table_of_other_types_is_damaged_although_its_hash_is_right(
    name: str, value: Any, tmp_path: Path
) -> None:
    identity = {**IDENTITY, name: value}
    for table in (
        (identity, TRIALS),
        ({key: IDENTITY[key] for key in IDENTITY if key not in (name, "space")}, []),
        (IDENTITY, [[1]]),
        (IDENTITY, [{}] * (trials_module.MOST_TRIALS + 1)),
    ):
        text = json.dumps(
            {"hash": trials_module.digest(table[0]), "identity": table[0], "trials": table[1]}
        )
        (tmp_path / TABLE_FILE).write_text(text)
        with pytest.raises(
            UserError, match=r"trials\.json: expected the trials of a tuning, but it cannot be read"
        ):
            read_report(tmp_path)


def test_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"trials\.json: cannot be written"):
        freeze(tmp_path / "none", IDENTITY, TRIALS)


def test_report_of_many_trials_takes_seconds(tmp_path: Path) -> None:
    """Its time grew with the square of the trials."""
    trials = [TRIALS[0]] * 10_000
    identity = {**IDENTITY, "trials": len(trials)}
    table = {"hash": trials_module.digest(identity), "identity": identity, "trials": trials}
    (tmp_path / TABLE_FILE).write_text(json.dumps(table))
    since = time.process_time()
    assert f"{len(trials)} missing" in report_text(read_report(tmp_path))
    assert time.process_time() - since < 8


def table_of(directory: Path, identity: JsonObject, trials: list[JsonObject]) -> None:
    table = {"hash": trials_module.digest(identity), "identity": identity, "trials": trials}
    (directory / TABLE_FILE).write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({f"algorithm.k{number}": [0] for number in range(2000)}, "2,000 keys, expected at most"),
        ({"algorithm.sigma": list(range(100_000))}, "characters of 'algorithm.sigma'"),
        ({"algorithm.sigma": ["x" * 1_000_000]}, "1,000,004 characters"),
        ({"k" * 300: [1, 2]}, "characters of 'kkk"),
    ],
)
def test_space_that_no_report_can_show_is_refused(
    space: JsonObject, message: str, tmp_path: Path
) -> None:
    table_of(tmp_path, {**IDENTITY, "space": space}, [])
    with pytest.raises(UserError, match=message):
        read_report(tmp_path)


def test_picture_of_many_values_and_keys_is_drawn_in_seconds(tmp_path: Path) -> None:
    space: JsonObject = {f"algorithm.k{number}": [0, 1] for number in range(500)}
    space["algorithm.kind"] = [f"value {number}" for number in range(5000)]
    identity = {**IDENTITY, "space": space, "search": "random"}
    table_of(tmp_path, identity, [{key: values[0] for key, values in space.items()}])
    since = time.process_time()
    draw(read_report(tmp_path), tmp_path / "picture.png")
    assert time.process_time() - since < 30


def test_reason_of_a_failed_trial_changes_no_terminal(tmp_path: Path) -> None:
    table_of(tmp_path, IDENTITY, TRIALS)
    (trial := tmp_path / "trial_0000").mkdir()
    record = {"state": "failed", "reason": "\x1b]0;title\x07", "hyperparameters": TRIALS[0]}
    (trial / "trial.json").write_text(json.dumps(record))
    assert "trial 0 failed: \\x1b]0;title\\x07" in report_text(read_report(tmp_path))
    record = {"state": "complete", "objective": 1.0, "success_rate": 10**400}
    (trial / "trial.json").write_text(json.dumps({**record, "hyperparameters": TRIALS[0]}))
    assert "1 failed  1 missing" in report_text(read_report(tmp_path))


def test_table_of_very_many_values_is_refused(tmp_path: Path) -> None:
    """Somebody else's file of 0.2 MB would be 20 million cells of a report."""
    space = {f"key{number}": [1] for number in range(101)}
    with pytest.raises(UserError, match="10,000 trials of 101 keys, more than 1,000,000 values"):
        freeze(tmp_path, {**IDENTITY, "trials": 10_000, "space": space}, [])  # reads it again
