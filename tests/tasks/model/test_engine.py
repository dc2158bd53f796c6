"""`task: {kind: model, call: each}`: what is written into an engine, and wrong engines."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError, RunError
from hpc_es.core.keys import Keys
from hpc_es.core.population import (
    Directions,
    Explicit,
    Factorisation,
    Layout,
    LowRank,
    Perturbed,
    Population,
)
from hpc_es.noise.counter import CounterNoise
from hpc_es.tasks.model.engine import Engine, content_digest
from hpc_es.training.check import check
from tests.helpers import own_engines

ENGINES = "tests.helpers.own_engines"


def config(name: str = "Line", **sections: Any) -> Any:
    task = {"kind": "model", "model": f"{ENGINES}:{name}", "call": "each"}
    return validate(
        {
            "seed": 1,
            "task": {**task, **sections.pop("task", {})},
            "algorithm": {
                **{"kind": "es", "population_size": 8, "sigma": 0.1},
                "optimizer": {"kind": "sgd", "learning_rate": 0.2, "momentum": 0.0},
            },
            "noise": {"kind": "counter"},
            "evaluation": {"interval": 1},
            "report": {"plot_interval_seconds": 0},
            "stop": {"generations": 2},
            **sections,
        }
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Nothing", "without parameters and score and batch: write them"),
        ("Integers", "'table' of tests.helpers.own_engines:Integers is int8.3.: expected float16"),
        ("Vector", "found ndarray of shape .8.: take its mean"),
        ("Text", "found str: take its mean"),
        ("Infinite", "expected a finite score of the first weights, found nan"),
        ("Fails", "score of .*Fails fails on batch.0.: KeyError: 'solver'"),
        ("Random", "two calls of score .* with the same weights and batch return"),
        ("Stateful", "two calls of score .* return 1 and 2: expected no random numbers"),
        ("Adds", "expected load to replace the weight"),
        ("Growing", "'bias' of .* was float16.. and is now float16.1.: expected parameters"),
        ("Huge", "fits the memory .* found parameters float32.4000000000000000. 1.6e.07 GB"),
        ("Batches", "two calls of batch.0. of .*Batches differ: expected random numbers from"),
        ("Changing", "Changing returns other weights when it is called again"),
    ],
)
def test_wrong_engines_are_refused_with_the_remedy(
    name: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=expected):
        check(config(name), output=tmp_path / "run")


def test_check_reports_weights_and_their_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(config(), output=tmp_path / "run")
    text = capsys.readouterr().out
    assert "3 parameters in 2 arrays (float16, 6 bytes)" in text
    assert "base weights SHA-256" in text


def test_weights_are_written_from_float32_and_never_restored() -> None:
    """The centre after a thousand candidates is the one before, rounded once."""
    engine = Engine(made := own_engines.Line(), "Line")
    noise, centre = CounterNoise(Keys(1), 3), np.array([0.1, 0.2, 0.3], np.float32)
    rows, scales = np.zeros(2, np.intp), np.array([0.1, -0.1], np.float32)
    for generation in range(500):
        directions = Directions(noise, generation, [0])
        population = Perturbed(engine.layout, centre[np.newaxis], directions, rows, scales)
        for row in range(2):
            engine.write(population.only(row))
            expected = centre + scales[row] * noise.direction(generation, 0, 0, 3)
            assert made.weights["slope"].tobytes() == expected[:2].astype(np.float16).tobytes()
    engine.write(Explicit(engine.layout, centre[np.newaxis]))
    assert made.weights["slope"].tobytes() == centre[:2].astype(np.float16).tobytes()


def populations() -> list[Population]:
    layout, rng = Layout({"matrix": (6, 5), "bias": (7,)}), np.random.default_rng(1)
    noise, rows = CounterNoise(Keys(1), layout.size), np.array([0, 0, 1])
    scales, centres = np.array([0.5, -0.5, 0.25], np.float32), rng.random((2, 37), np.float32)
    of = np.array([0, 1, 1])
    factors = Factorisation(layout, 1)
    numbers = rng.random((2, factors.compact.size), np.float32)
    return [
        Explicit(layout, rng.random((3, 37), np.float32)),
        Perturbed(layout, centres, Directions(noise, 4, [2, 5]), rows, scales, of),
        Perturbed(layout, centres, rng.random((2, 37), np.float32), rows, scales),
        LowRank(factors, centres[0], numbers, rows, scales),
    ]


@pytest.mark.parametrize("kind", range(4))
def test_one_candidate_has_the_bits_that_it_has_among_others(kind: int) -> None:
    population = populations()[kind]
    for row in range(3):
        alone = population.only(row)
        assert len(alone) == 1
        assert alone.stacked().tobytes() == population.stacked()[row].tobytes()
        assert (alone.part("bias") == population.part("bias")[row : row + 1]).all()
    general = Population.only(population, 1)
    assert general.part("matrix").tobytes() == population.part("matrix")[1].tobytes()


def test_failed_candidates_are_left_out_with_their_reason(tmp_path: Path) -> None:
    rows = list(hpc_es.train(config("Sometimes"), tmp_path / "run"))
    assert rows[0]["failed_evaluations"] and rows[0]["failed_evaluations"] < 8
    assert "no convergence" in (tmp_path / "run" / "failures.log").read_text()


def test_failed_candidates_end_the_run_if_asked_for(tmp_path: Path) -> None:
    strict = config("Sometimes", task={"on_failed_evaluation": "abort"})
    with pytest.raises(RunError, match="no convergence"):
        list(hpc_es.train(strict, tmp_path / "run"))


def test_evaluations_of_the_centre_write_it_once(tmp_path: Path) -> None:
    from hpc_es.core.data import Jobs, ProblemState
    from hpc_es.core.population import unperturbed
    from hpc_es.tasks.model.task import build

    task = build(dataclasses.replace(config().task))
    problem = task.problem("vectors", None, Keys(1), 4)
    theta = problem.initial(np.random.default_rng(0))
    jobs = Jobs(0, range(3), [0, 1, 2], "evaluate")
    outcome = problem.evaluate(
        unperturbed(problem.layout, theta, 3), jobs, ProblemState(), lambda: None
    )
    assert task.model.created.loaded == ["slope", "bias"]
    # each on a batch of its own
    assert len(set(outcome.rows["return_"].tolist())) == 3


def test_digest_of_a_batch_depends_on_texts_numbers_and_arrays() -> None:
    batch = {"prompts": ["1+", "2*"], "x": np.arange(3), "k": 2}
    same = {"prompts": ["1+", "2*"], "x": np.arange(3), "k": 2}
    assert content_digest(batch) == content_digest(same)
    for change in ({"prompts": ["1+", "2-"]}, {"x": np.arange(3.0)}, {"k": 3}):
        assert content_digest({**batch, **change}) != content_digest(batch)
