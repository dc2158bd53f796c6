"""The Optuna sampler: the search of a strategy, replayed by any process,
in any order of results.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

import hpc_es
from hpc_es.api.optuna_sampler import JOB, Sampler
from tests.helpers.harness import ROOT, python

optuna.logging.set_verbosity(optuna.logging.ERROR)
SPACE = {
    "a": FloatDistribution(1e-4, 1, log=True),
    "b": IntDistribution(2, 20, step=3),
    "c": CategoricalDistribution(["x", None, 3.5]),
    "d": FloatDistribution(0, 1, step=0.25),
    "e": IntDistribution(1, 64, log=True),
    "f": FloatDistribution(2, 2),  # one value
}
PARAMETERS = {  # of the same space, in alphabetical order
    "a": {"low": 1e-4, "high": 1, "scale": "log"},
    "b": {"integer": True, "low": 0, "high": 6},
    "c": {"choices": [0, 1, 2]},
    "d": {"integer": True, "low": 0, "high": 4},
    "e": {"integer": True, "low": 1, "high": 64, "scale": "log"},
}


def cost(values: dict[str, Any]) -> float:
    numbers = (
        math.log10(values["a"] / 0.01) ** 2 + (values["b"] - 8) ** 2 + 4 * (values["d"] - 0.5) ** 2
    )
    return float(numbers + (values["c"] is not None) + math.log2(values["e"] / 16) ** 2)


def suggested(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "a": trial.suggest_float("a", 1e-4, 1, log=True),
        "b": trial.suggest_int("b", 2, 20, step=3),
        "c": trial.suggest_categorical("c", ["x", None, 3.5]),
        "d": trial.suggest_float("d", 0, 1, step=0.25),
        "e": trial.suggest_int("e", 1, 64, log=True),
        "f": trial.suggest_float("f", 2, 2),
    }


def study(**options: Any) -> optuna.Study:
    return optuna.create_study(sampler=Sampler(SPACE, seed=4, population_size=6, **options))


def test_trials_are_the_candidates_of_a_strategy() -> None:
    one = study()
    es = hpc_es.Strategy(parameters=PARAMETERS, seed=4, population_size=6)
    for _ in range(5):
        expected = []
        for named in es.named(es.ask()):
            c = ["x", None, 3.5][int(named["c"])]
            values = {
                "a": named["a"],
                "b": 2 + 3 * int(named["b"]),
                "c": c,
                "d": int(named["d"]) / 4,
                "e": named["e"],
            }
            expected.append({**values, "f": 2.0})
        one.optimize(lambda trial: cost(suggested(trial)), n_trials=6)
        assert [trial.params for trial in one.trials[-6:]] == expected
        es.tell([cost(values) for values in expected])
    assert one.best_params["b"] == 8 or one.best_value < 5


def test_another_process_continues_the_study_with_the_same_candidates() -> None:
    whole, parts = study(), study()
    whole.optimize(lambda trial: cost(suggested(trial)), n_trials=20)
    for count in (4, 9, 7):
        parts.sampler = Sampler(SPACE, seed=4, population_size=6)
        parts.optimize(lambda trial: cost(suggested(trial)), n_trials=count)
    assert [trial.params for trial in parts.trials] == [trial.params for trial in whole.trials]


def test_order_of_results_is_irrelevant_and_further_trials_are_random() -> None:
    whole, shuffled = study(), study()
    whole.optimize(lambda trial: cost(suggested(trial)), n_trials=12)
    trials = [shuffled.ask() for _ in range(8)]
    values = [suggested(trial) for trial in trials]
    assert [JOB in trial.system_attrs for trial in shuffled.trials] == [True] * 6 + [False] * 2
    for index in (7, 3, 5, 0, 6, 1, 4, 2):
        shuffled.tell(trials[index], cost(values[index]))
    after = [suggested(shuffled.ask()) for _ in range(6)]
    assert values[:6] + after == [trial.params for trial in whole.trials]


def test_pruned_trials_are_the_worst_and_failed_ones_are_failed_evaluations() -> None:
    """If the pruned trials failed as well, too few results would remain,
    and the update would be skipped.
    """
    one = study()
    es = hpc_es.Strategy(parameters=PARAMETERS, seed=4, population_size=6)
    trials = [one.ask() for _ in range(6)]
    values = [suggested(trial) for trial in trials]
    costs = [cost(item) for item in values]
    for index, trial in enumerate(trials):
        if index in {2, 3, 5}:
            one.tell(trial, state=TrialState.PRUNED)
        elif index == 4:
            one.tell(trial, state=TrialState.FAIL)
        else:
            one.tell(trial, costs[index])
    worst = max(costs[:2])
    es.tell([*costs[:2], worst, worst, math.nan, worst])
    assert suggested(one.ask())["a"] == es.named(es.ask())[0]["a"]


def test_killed_trial_gets_the_same_parameters_again() -> None:
    one = study()
    trial = one.ask()
    values = suggested(trial)["a"]
    one._storage.create_new_trial(one._study_id)  # unrelated
    half = one.ask()
    first = half.suggest_float("a", 1e-4, 1, log=True)
    # another process finds the trial with one of its parameters
    again = optuna.Trial(one, half._trial_id)
    one.sampler = Sampler(SPACE, seed=4, population_size=6)
    es = hpc_es.Strategy(parameters=PARAMETERS, seed=4, population_size=6)
    named = es.named(es.ask())
    assert values == named[0]["a"] and first == named[1]["a"]
    assert suggested(again)["b"] == 2 + 3 * int(named[1]["b"])


def test_maximised_values_have_the_other_sign() -> None:
    up = optuna.create_study(
        direction="maximize", sampler=Sampler(SPACE, seed=4, population_size=6)
    )
    down = study()
    up.optimize(lambda trial: -cost(suggested(trial)), n_trials=18)
    down.optimize(lambda trial: cost(suggested(trial)), n_trials=18)
    assert [trial.params for trial in up.trials] == [trial.params for trial in down.trials]


def test_constraints_are_those_of_the_strategy() -> None:
    space = {"x": FloatDistribution(-2, 2), "y": FloatDistribution(-2, 2)}
    one = optuna.create_study(sampler=Sampler(space, seed=1, constraints=["wall"]))

    def objective(trial: optuna.Trial) -> float:
        x, y = trial.suggest_float("x", -2, 2), trial.suggest_float("y", -2, 2)
        trial.set_constraint("wall", 1 - x)
        return x**2 + y**2

    one.optimize(objective, n_trials=60)
    es = hpc_es.Strategy(
        parameters={name: {"low": -2, "high": 2} for name in "xy"}, seed=1, constraints=["wall"]
    )
    for start in range(0, 60, 6):
        named = es.named(es.ask())
        assert named == [trial.params for trial in one.trials[start : start + 6]]
        es.tell([p["x"] ** 2 + p["y"] ** 2 for p in named], [[1 - p["x"]] for p in named])


def test_constraints_need_optuna_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trials of Optuna 4 have no constraints."""
    monkeypatch.setattr(optuna, "__version__", "4.9.0")
    with pytest.raises(
        ValueError, match=r"constraints: expected Optuna 5 or later, .* found 4\.9\.0"
    ):
        Sampler(SPACE, constraints=["limit"])
    Sampler(SPACE)


def test_space_is_that_of_the_first_finished_trial() -> None:
    one, two = (optuna.create_study(sampler=Sampler(seed=1)) for _ in range(2))
    for item in (one, two):
        item.optimize(lambda trial: cost(suggested(trial)), n_trials=9)
    assert [JOB in trial.system_attrs for trial in one.trials] == [False] + [True] * 8
    assert [trial.params for trial in one.trials] == [trial.params for trial in two.trials]


def test_enqueued_trials_take_no_candidate() -> None:
    one = study()
    one.enqueue_trial({"a": 0.5})
    one.optimize(lambda trial: cost(suggested(trial)), n_trials=2)
    assert one.trials[0].params["a"] == 0.5
    assert [JOB in trial.system_attrs for trial in one.trials] == [False, True]


def two_costs(values: dict[str, Any]) -> list[float]:
    """Their front is between b = 8 and b = 20."""
    return [cost(values), cost({**values, "b": values["b"] - 12})]


def test_studies_with_two_directions_are_searched_by_nsga2() -> None:
    own = optuna.create_study(
        directions=["minimize", "maximize"],
        sampler=Sampler(SPACE, seed=4, population_size=6, objectives=2),
    )

    def values(trial: optuna.Trial) -> tuple[float, float]:
        one, other = two_costs(suggested(trial))
        return one, -other

    own.optimize(values, n_trials=24)
    search = hpc_es.Strategy(
        "nsga2", parameters=PARAMETERS, seed=4, population_size=6, objectives=2
    )
    for generation in range(4):
        trials = own.trials[6 * generation : 6 * (generation + 1)]
        for trial, named in zip(trials, search.named(search.ask()), strict=True):
            assert trial.params["a"] == named["a"] and trial.params["e"] == named["e"]
            assert trial.params["b"] == 2 + 3 * named["b"]
        search.tell([[trial.values[0], -trial.values[1]] for trial in trials])
    assert len(own.best_trials) == len(search.front.f)


def test_pruned_trials_of_several_objectives_are_the_worst_in_each() -> None:
    own = optuna.create_study(
        directions=["minimize", "minimize"],
        sampler=Sampler(SPACE, seed=4, population_size=4, objectives=2),
    )

    def values(trial: optuna.Trial) -> list[float]:
        if trial.number == 1:
            raise optuna.TrialPruned
        return two_costs(suggested(trial))

    own.optimize(values, n_trials=5)
    search = hpc_es.Strategy(
        "nsga2", parameters=PARAMETERS, seed=4, population_size=4, objectives=2
    )
    search.ask()
    told = [trial.values for trial in own.trials[:4]]
    worst = [max(row[column] for row in told if row) for column in range(2)]
    search.tell([row or worst for row in told])
    assert own.trials[4].params["a"] == search.named(search.ask())[0]["a"]


def test_unsupported_spaces_and_studies_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown argument"):
        Sampler(SPACE, populaton_size=3)
    two = optuna.create_study(directions=["minimize", "minimize"], sampler=Sampler(SPACE))
    with pytest.raises(
        ValueError, match=r"the study has 2 directions: expected Sampler\(objectives=2\)"
    ):
        suggested(two.ask())


@pytest.mark.long
def test_example_continues_its_study(tmp_path: Path) -> None:
    for count in (100, 200):
        done = python([str(ROOT / "examples/optuna/study.py")], cwd=tmp_path)
        assert done.status == 0, str(done)
        assert done.stdout.startswith(f"{count} trials, best 0.0"), str(done)
    assert (
        "'layers': 3, 'activation': 'relu'" in done.stdout
        or "'activation': 'relu', 'layers': 3" in done.stdout
    )


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["hpc_es", "optuna"])
def test_example_tunes_return_and_time(sampler: str, tmp_path: Path) -> None:
    words = [str(ROOT / "examples/optuna/return_and_time.py"), sampler, "12"]
    done = python(words, cwd=tmp_path)
    assert done.status == 0, str(done)
    lines = done.stdout[done.stdout.index("return  seconds") :].splitlines()[1:]
    rows = [tuple(map(float, line.split()[:2])) for line in lines]
    # of a front: what takes longer returns more
    assert rows and rows == sorted(rows) and len(rows) <= 12
