"""Ask and tell: the vectors of the batch job, updates by `tell`, and saved searches."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import Strategy
from hpc_es.api.arguments import read_bounds
from hpc_es.config import yaml_text
from hpc_es.core.errors import CheckpointError, ConfigError
from tests.helpers.stepping import KINDS

SPHERE = """
def cost(x):
    return float((x * x).sum())
"""


def sphere(vectors: Any) -> Any:
    return np.square(vectors).sum(axis=1)


def strategy(**changes: Any) -> hpc_es.Strategy:
    options: dict[str, Any] = {
        "x0": [1.0, -2.0, 0.5],
        "sigma0": 0.1,
        "population_size": 8,
        "seed": 5,
    }
    return hpc_es.Strategy("es", **{**options, **changes})


def test_equal_seeds_give_the_vectors_of_the_batch_job(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "sphere_of_a_test.py").write_text(SPHERE)
    monkeypatch.chdir(tmp_path)
    task = {
        "kind": "function",
        "function": "sphere_of_a_test:cost",
        "dimension": 3,
        "initial": [1.0, -2.0, 0.5],
    }
    config = {
        "seed": 5,
        "task": task,
        "algorithm": {"kind": "es", "population_size": 8, "sigma": 0.1},
        "noise": {"kind": "counter"},
        "evaluation": {"interval": 0},
        "stop": {"generations": 3},
        "report": {"plot_interval_seconds": 0},
    }
    list(hpc_es.train(config, tmp_path / "run"))
    rows = list(csv.reader((tmp_path / "run" / "evaluations.csv").open()))[1:]
    evaluated = np.array([[float(cell) for cell in row[3:]] for row in rows])
    es = strategy()
    asked = []
    for _ in range(3):
        asked.append(es.ask())
        es.tell(sphere(asked[-1]))
    assert np.array_equal(np.concatenate(asked), evaluated)


def test_ask_returns_the_same_vectors_until_tell() -> None:
    es = strategy()
    first = es.ask()
    assert first.shape == (8, 3) and first.dtype == np.float64
    assert np.array_equal(es.ask(), first)
    # mirrored about x0
    np.testing.assert_allclose(first[0::2] + first[1::2], np.tile([2.0, -4.0, 1.0], (4, 1)))
    es.tell(sphere(first))
    assert not np.array_equal(es.ask(), first)


def test_best_is_the_smallest_value_passed_to_tell() -> None:
    es = strategy()
    assert es.best is None
    x = es.ask()
    es.tell([5.0, 4.0, 3.0, 7.0, 1.5, np.nan, 9.0, 8.0])
    assert es.best is not None
    assert (es.best.f, es.evaluations) == (1.5, 8)
    assert np.array_equal(es.best.x, x[4])


def test_centre_moves_towards_smaller_values() -> None:
    """Two directions, unit steps: w = u+ - u-, centred ranks of -values,
    so theta follows the better halves.
    """
    es = strategy(population_size=4, optimizer_kind="none", learning_rate=1.0)
    x = es.ask()
    eps = (x[0::2] - x[1::2]) / 0.2
    es.tell([1.0, 2.0, 4.0, 3.0])  # ranks of -values: 3, 2, 0, 1 -> 1/2, 1/6, -1/2, -1/6
    expected = (
        np.array([1.0, -2.0, 0.5]) + (eps[0] * (1 / 2 - 1 / 6) + eps[1] * (-1 / 2 + 1 / 6)) / 4
    )
    np.testing.assert_allclose(es.theta, expected, rtol=1e-12)


def test_strategy_minimises_a_sphere_and_stops_at_the_target() -> None:
    es = strategy(population_size=20, learning_rate=0.1, target=0.01, max_evaluations=20_000)
    while not es.stop():
        es.tell(sphere(es.ask()))
    assert es.stop() == "target: 0.01"
    assert es.best is not None and es.best.f <= 0.01
    evaluations = es.evaluations
    es.tell(sphere(es.ask()))  # goes on all the same
    assert es.evaluations == evaluations + 20


def test_strategy_stops_at_the_number_of_evaluations() -> None:
    es = strategy(max_evaluations=16)
    for _ in range(2):
        assert es.stop() is None
        es.tell(sphere(es.ask()))
    assert es.stop() == "max_evaluations: 16"


@pytest.mark.parametrize("rounds", [0, 8])
def test_last_generation_is_cut_to_the_number_of_evaluations(rounds: int, tmp_path: Path) -> None:
    """A search that goes on gets the other vectors of the generation,
    and is the one without a limit.
    """
    es = strategy(max_evaluations=13, min_timesteps_per_generation=rounds and 2 * rounds)
    free = strategy(min_timesteps_per_generation=rounds and 2 * rounds)
    first, second = free.ask(), None
    free.tell(sphere(first))
    second = free.ask()
    while es.stop() is None:
        es.tell(sphere(es.ask()))
    assert es.evaluations == 13 and es.stop() == "max_evaluations: 13"
    assert es.best is not None and es.best.f == sphere(np.concatenate([first, second[:5]])).min()
    es.save(tmp_path / "es.h5")
    for search in (es, hpc_es.Strategy.load(tmp_path / "es.h5")):
        assert search.best is not None and search.best.f == es.best.f
        assert np.array_equal(search.ask(), second[5:])
        with pytest.raises(ValueError, match="expected 3 values, one for each vector of ask"):
            search.tell(np.ones(8))
        search.tell(sphere(search.ask()))
    free.tell(sphere(second))
    assert np.array_equal(es.theta, free.theta) and np.array_equal(search.theta, free.theta)
    assert np.array_equal(es.ask(), free.ask()) and es.generation == free.generation == (
        1 if rounds else 2
    )


def test_rounds_of_one_generation_are_asked_in_turn() -> None:
    es = strategy(population_size=4, min_timesteps_per_generation=8)
    first = es.ask()
    es.tell(sphere(first))
    second = es.ask()
    assert es.generation == 0 and es.evaluations == 4
    assert not np.array_equal(first, second)
    assert np.array_equal(es.theta, [1.0, -2.0, 0.5])
    es.tell(sphere(second))
    assert es.generation == 1 and not np.array_equal(es.theta, [1.0, -2.0, 0.5])


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_saved_strategy_continues_with_the_same_vectors(tmp_path: Path, rounds: int) -> None:
    """Also in the middle of a generation of two rounds."""
    es = strategy(population_size=4, min_timesteps_per_generation=8)
    for _ in range(rounds):
        es.tell(sphere(es.ask()))
    es.save(tmp_path / "es.h5")
    loaded = hpc_es.Strategy.load(tmp_path / "es.h5")
    for _ in range(3):
        assert np.array_equal(loaded.ask(), es.ask())
        for item in (loaded, es):
            item.tell(sphere(item.ask()))
    assert np.array_equal(loaded.theta, es.theta)
    assert loaded.evaluations == es.evaluations
    assert loaded.best is not None and es.best is not None and loaded.best.f == es.best.f


def test_strategy_with_a_long_first_vector_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config is too long to be parsed as YAML."""
    monkeypatch.setattr(yaml_text, "MOST_MARKS", 100)
    first = np.linspace(0, 1, 200)
    es = Strategy("sep_cma_es", x0=first, sigma0=0.1, seed=1)
    es.save(tmp_path / "es.h5")
    loaded = Strategy.load(tmp_path / "es.h5")
    assert np.array_equal(loaded.ask(), es.ask())


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_can_be_saved_after_every_generation(tmp_path: Path, kind: str) -> None:
    """Also if its arrays grow."""
    es = hpc_es.Strategy(kind, x0=[1.0, -2.0, 0.5], seed=5)
    for _ in range(7):
        es.save(tmp_path / "es.h5")
        loaded = hpc_es.Strategy.load(tmp_path / "es.h5")
        for item in (loaded, es):
            item.tell(sphere(item.ask()))
        assert np.array_equal(loaded.ask(), es.ask())


def test_checkpoint_of_a_run_is_refused_as_a_strategy(tmp_path: Path) -> None:
    config = {
        "task": {"env_id": "CartPole-v1"},
        "algorithm": {"population_size": 4},
        "noise": {"table_size": 1000},
        "policy": {"hidden_dims": []},
        "stop": {"generations": 0},
        "report": {"plot_interval_seconds": 0},
    }
    list(hpc_es.train(config, tmp_path / "run"))
    (saved,) = (tmp_path / "run" / "checkpoints").glob("checkpoint_*.h5")
    with pytest.raises(CheckpointError, match=r"expected a file of Strategy\.save"):
        hpc_es.Strategy.load(saved)


def test_asked_vectors_are_within_the_bounds() -> None:
    es = strategy(x0=[0.9, 0.9, 0.9], sigma0=0.5, bounds=(-1, [1.0, 1.0, 0.95]))
    x = es.ask()
    assert (x >= -1).all() and (x <= [1.0, 1.0, 0.95]).all()
    assert (x[:, 2] > 0.5).any()


def test_initial_vectors_of_restarts_are_drawn_from_the_region() -> None:
    """All values are equal, and one flat generation ends a search."""
    ends: dict[str, Any] = {"restarts": "ipop", "stops": {"tolflatfitness": 0}}
    es = hpc_es.Strategy("cma_es", region=(np.full(3, -4.0), 4.0), sigma0=0.1, seed=2, **ends)
    centres = []
    for _ in range(3):
        centres.append(es.theta)
        es.tell(np.zeros(len(es.ask())))
    assert (np.abs(centres) <= 4).all()
    assert np.abs(np.diff(centres, axis=0)).max(axis=1).min() > 0.5


def test_random_start_of_parameters_differs_by_restart() -> None:
    parameters = {
        "n": {"integer": True, "low": 1, "high": 1000},
        "rate": {"low": 1e-4, "high": 1, "scale": "log"},
    }
    ends: dict[str, Any] = {"restarts": "ipop", "stops": {"tolflatfitness": 0}}
    es = hpc_es.Strategy(parameters=parameters, x0="random", seed=2, **ends)
    centres = []
    for _ in range(3):
        centres.append(es.theta.tolist())
        es.tell(np.zeros(len(es.ask())))
    assert all(0 <= number <= 1 for centre in centres for number in centre)
    assert len({tuple(centre) for centre in centres}) == 3 and [0.5, 0.5] not in centres


@pytest.mark.parametrize(
    ("values", "shape"), [([1.0] * 7, r"\(7,\)"), ([[1.0] * 8], r"\(1, 8\)"), (3.0, r"\(\)")]
)
def test_tell_refuses_another_number_of_values(values: Any, shape: str) -> None:
    es = strategy()
    with pytest.raises(ValueError, match=f"expected 8 values.*{shape}"):
        es.tell(values)
    es.tell(sphere(es.ask()))  # nothing was lost


def test_masked_values_are_failed_evaluations() -> None:
    """What is stored below a mask is not a value: here it is smaller than all others."""
    es = hpc_es.Strategy(x0=[1.0, 2.0], sigma0=0.5, population_size=8)
    x = es.ask()
    es.tell(np.ma.masked_array([-9.0, 4, 3, 7, 1.5, 2, 9, 8], mask=[1, 0, 0, 0, 0, 0, 0, 0]))
    assert es.best is not None and es.best.f == 1.5 and es.best.x.tolist() == x[4].tolist()


def test_generation_of_nan_values_keeps_the_centre() -> None:
    es = strategy()
    before = es.theta.tobytes()
    es.tell([np.nan] * 8)
    assert es.generation == 1 and es.theta.tobytes() == before and es.best is None
    es.tell(sphere(es.ask()))
    assert es.generation == 2 and es.theta.tobytes() != before


def test_default_strategy_is_cma_es() -> None:
    assert hpc_es.Strategy(x0=[1.0, 2.0]).config.algorithm.kind == "cma_es"
    with pytest.raises(
        ConfigError, match=r"square of 2,001 parameters: expected at most 2,000; try sep_cma_es"
    ):
        hpc_es.Strategy(x0=np.ones(2001))


def test_strategy_reports_the_end_of_a_search() -> None:
    """After two flat generations, the default of stops.tolflatfitness."""
    es = hpc_es.Strategy(x0=[1.0, 2.0])
    said = []
    for _ in range(2):
        said.append(es.stop())
        es.tell(np.ones(len(es.ask())))
    reason = es.stop()
    assert said == [None, None] and reason is not None and "tolflatfitness" in reason


def test_invalid_arguments_of_strategy_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        hpc_es.Strategy("es", x0=[1.0], sigma0=-1.0, populaton_size=3)
    text = str(caught.value)
    assert "sigma0: expected a number greater than 0" in text
    assert "populaton_size" in text
    with pytest.raises(
        ConfigError, match="expected a vector of numbers, found an array of shape \\(2, 1\\)"
    ):
        hpc_es.Strategy("es", x0=[[1.0], [2.0]], sigma0=0.1)
    with pytest.raises(ConfigError, match="expected x0, region or parameters, found neither"):
        hpc_es.Strategy("es")
    with pytest.raises(ConfigError, match="expected x0, region or parameters, found both"):
        hpc_es.Strategy("es", x0=[1.0], region=([0.0], 1.0))
    with pytest.raises(
        ConfigError, match=r"region: expected a vector of numbers, found an array of shape \(\)"
    ):
        hpc_es.Strategy("es", region=(-4.0, 4.0))
    with pytest.raises(ConfigError, match="region: expected low and high of the same length"):
        hpc_es.Strategy("es", region=([0.0, 0.0], [1.0, 1.0, 1.0]))
    with pytest.raises(ConfigError, match="searches programs"):
        hpc_es.Strategy("ga", x0=[1.0])
    with pytest.raises(
        ConfigError, match="delay: is 1, but the caller evaluates one generation after the other"
    ):
        hpc_es.Strategy("es", x0=[1.0], delay=1)


@pytest.mark.parametrize(
    ("bounds", "size", "expected"),
    [
        (None, 2, (None, None)),
        ((-1, 1), 2, (-1, 1)),
        ([-1, None], 2, (-1, None)),
        ((-1, [1.0, 2.0, 3.0]), 3, (-1, [1.0, 2.0, 3.0])),
        (([-1, -2, -3], [1, 2, 3]), 3, ([-1, -2, -3], [1, 2, 3])),
        ([(-1, 1), (-2, 2), (-3, 3)], 3, ([-1, -2, -3], [1, 2, 3])),
        (np.array([[-1.0, 1], [-2, 2], [-3, 3]]), 3, ([-1, -2, -3], [1, 2, 3])),
        (np.array([[-1.0, -2, -3], [1, 2, 3]]), 3, ([-1, -2, -3], [1, 2, 3])),
        ([(0, None), (None, 5), (-np.inf, np.inf)], 3, ([0, None, None], [None, 5, None])),
        ([(-np.inf, np.inf), (-np.inf, np.inf)], 2, ([None, None], [None, None])),
        ([(0, 1)], 1, ([0], [1])),
        (([0], [1]), 1, ([0], [1])),
        ({"low": [0, 1], "high": [2, 3]}, 2, ([0, 1], [2, 3])),
        ({"low": 0}, 2, (0, None)),
        # two pairs for two coordinates: only one reading has low < high
        ([(-5, 5), (-5, 5)], 2, ([-5, -5], [5, 5])),
        ([(0, 1), (-5, 5)], 2, ([0, -5], [1, 5])),
        (([-5, -5], [5, 5]), 2, ([-5, -5], [5, 5])),
        (([1, 0], [2, 3]), 2, ([1, 0], [2, 3])),
    ],
)
def test_bounds_are_accepted_in_both_forms(bounds: Any, size: int, expected: Any) -> None:
    assert read_bounds(bounds, size) == expected


def test_bounds_objects_of_scipy_are_accepted() -> None:
    class Bounds:  # as scipy.optimize.Bounds
        lb, ub = np.array([-1.0, -np.inf]), np.array([1.0, 2.0])

    assert read_bounds(Bounds(), 2) == ([-1.0, None], [1.0, 2.0])


@pytest.mark.parametrize(
    ("bounds", "size", "message"),
    [
        (
            [(0, 1), (2, 3)],
            2,
            r"for 2 coordinates \[\(0, 1\), \(2, 3\)\] can mean both; write {'low': \[\.\.\.\]",
        ),
        ([(0, None), (1, None)], 2, "can mean both"),
        ([(1, 1), (1, 1)], 2, "can mean both"),
        (
            [(0, 1), (2, 3)],
            3,
            r"or one pair \(low, high\) per coordinate \(3 pairs here\), found 2 items of length 2, 2",
        ),
        ([(0, 1, 2)], 1, "found 1 items of length 3"),
        ([0, 1, 2], 3, "found 3 items of length 1, 1, 1"),
        (7, 3, "found 7"),
        ({"lo": 7}, 3, "found {'lo': 7}"),
        ((np.inf, np.inf), 2, "is inf, so no number is within: expected -inf for none"),
        ((0, [1, 2, -np.inf]), 3, "is -inf, so no number is within: expected inf for none"),
    ],
)
def test_invalid_bounds_are_refused(bounds: Any, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_bounds(bounds, size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"algorithm": "cmaes"},
            r"algorithm: expected one of 'ars', .*, found 'cmaes'; did you mean 'cma_es'\?",
        ),
        ({"algorithm": "ga"}, "found 'ga', which searches programs"),
        (
            {"algorithm": Strategy},
            "algorithm: expected a name, found the class Strategy: "
            "write 'hpc_es.api.strategy:Strategy'",
        ),
        (
            {"algorithm": np.zeros(2)},
            "algorithm: expected a name, such as 'cma_es', found ndarray: .* the argument x0",
        ),
        ({"sigma0": -1}, "sigma0: expected a number greater than 0, or null, found -1"),
        ({"popsize": 4}, r"unknown argument 'popsize'; did you mean 'population_size'\?"),
        (
            {"algorithm": "es", "optimizer_lr": 4},
            r"unknown argument 'optimizer_lr'; did you mean 'learning_rate'\?",
        ),
        (
            {"bounds": (2, [1, 3, 3])},
            r"bounds \(high\): is 1 in coordinate 0: expected more than low, which is 2",
        ),
        ({"bounds": (2, 3)}, "x0: is 0 in coordinate 0: expected a number from 2 to 3"),
        (
            {"max_evaluations": 0},
            "max_evaluations: expected a whole number of at least 1, or null, found 0",
        ),
        ({"keep": "clipp"}, r"keep: .*did you mean 'clip'\?"),
        ({"noise": "counters"}, r"noise: .*did you mean 'counter'\?"),
        ({"x0": "random"}, "x0: expected a vector of numbers, found 'random' .* use region"),
        ({"x0": None, "region": (2, [1, 3, 3])}, "region: is 2 to 1 in coordinate 0"),
        (
            {"sigma0": [0.1, 0.2, 0.3]},
            "sigma0: expected one number for all coordinates, found a list of 3: .*parameters",
        ),
        (
            {"sigma0": np.full(3, 0.1)},
            "sigma0: expected one number for all coordinates, found a list of 3",
        ),
        ({"seed": len}, "seed: expected .*, found builtin_function_or_method"),
        (
            {"population_size": {4}},
            r"population_size: expected .*, found set \{4\}: a set has no order",
        ),
        (
            {"x0": None, "parameters": {"a": {"low": 0, "high": len}}},
            "parameters.a.high: expected .*, found builtin",
        ),
    ],
)
def test_errors_name_the_callers_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Strategy(**{"x0": np.zeros(3), "sigma0": 0.5, **arguments})
    assert not re.search(r"\b(task|stop|algorithm)\.", str(caught.value))


def test_module_in_place_of_its_class_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_search.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"a class in .*my_search.py is named 'my_search:Name'"):
        Strategy("my_search", x0=np.zeros(3))


def test_injected_vectors_are_the_first_ones_of_the_next_ask(tmp_path: Path) -> None:
    es = Strategy("cma_es", x0=np.zeros(3), sigma0=0.5, seed=1, population_size=6)
    plain = es.ask()
    # `ask` has been called: they wait for the next generation
    es.inject([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1]])
    assert np.array_equal(es.ask(), plain)
    es.save(tmp_path / "early.h5")
    es.tell(sphere(plain))
    asked = es.ask()
    assert asked[:2].tolist() == [[1.0, 2.0, 3.0], [0.1, 0.1, 0.1]]
    es.save(tmp_path / "late.h5")
    for name, values in (("early.h5", [plain]), ("late.h5", [])):
        loaded = Strategy.load(tmp_path / name)
        for vectors in values:
            assert np.array_equal(loaded.ask(), vectors)
            loaded.tell(sphere(vectors))
        assert np.array_equal(loaded.ask(), asked)
        loaded.tell(sphere(asked))
        if name == "early.h5":
            es.tell(sphere(asked))
        assert np.array_equal(loaded.ask(), es.ask()) and np.array_equal(loaded.theta, es.theta)
    es.inject([0.01, 0.0, 0.0])
    assert es.ask()[0].tolist() != [0.01, 0.0, 0.0]


def test_injected_vectors_have_the_types_of_the_parameters() -> None:
    parameters = {"n": {"integer": True, "low": 1, "high": 8}, "c": {"choices": ["a", "b"]}}
    es = Strategy(parameters=parameters, seed=1)
    es.inject([3, 1])
    assert es.named(es.ask()[0]) == [{"n": 3, "c": "b"}]
    for wrong, message in (
        ([2.5, 0], "n is 2.5"),
        ([2, 2], "c is 2"),
        ([[1, 0]] * 9, "at most 6"),
        ([1], r"float64\[k, 2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            es.inject(wrong)
    with pytest.raises(ValueError, match="expected the algorithm cma_es, sep_cma_es or random"):
        strategy().inject([0.0, 0.0, 0.0])


def test_vectors_of_ask_cannot_be_changed_in_place() -> None:
    es = hpc_es.Strategy(x0=[1.0, 2.0], sigma0=0.5, seed=1)
    vectors = es.ask()
    with pytest.raises(ValueError, match="read-only"):
        np.clip(vectors, -1, 1, out=vectors)
    for row in vectors:
        with pytest.raises(ValueError, match="read-only"):
            row[0] = 0.0
    es.tell([float(x @ x) for x in vectors])
    assert es.best is not None and es.best.f == float(es.best.x @ es.best.x)


@pytest.mark.parametrize(
    "options", [{"noise_handling": "reevaluate"}, {"noise_handling": "auto"}, {"repeats": 2}]
)
def test_target_is_not_reached_by_a_lucky_noisy_value(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """The values are 5 plus noise of variance 64, so that some of ten are below 0, and the mean of
    a generation is not; the mean of 10 values has the standard deviation 2.5.
    """
    rng = np.random.default_rng(0)

    def told(target: float) -> hpc_es.Strategy:
        es = hpc_es.Strategy(
            x0=np.zeros(3), sigma0=1.0, population_size=10, target=target, **options
        )
        while es.generation < 2:
            es.tell(5 + 8 * rng.standard_normal(len(es.ask())))
        return es

    es = told(target=0.0)
    assert es.best is not None and es.best.f < 0
    assert es.stop() is None
    assert told(target=10.0).stop() == "target: 10"
    es = told(target=10.0)
    es.save(tmp_path / "search.h5")
    assert hpc_es.Strategy.load(tmp_path / "search.h5").stop() == "target: 10"


def test_target_of_exact_values_is_reached_by_the_best_one_with_noise_handling() -> None:
    es = hpc_es.Strategy(x0=np.ones(3), sigma0=1.0, noise_handling="auto", target=0.5)
    while not es.stop():
        es.tell([float(x @ x) for x in es.ask()])
    assert es.best is not None and es.best.f <= 0.5 and es.stop() == "target: 0.5"
