"""States that delayed generations are drawn around, against numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core.data import State
from hpc_es.training.delay_line import DelayLine, without_earlier
from tests.helpers.stepping import generation, strategy


def newest(line: DelayLine, *thetas: float) -> State:
    """The state after updates that led to these theta, starting from the first."""
    state = line.start(State(0, {"theta": np.array([thetas[0]])}, {"slot": np.array([7.0])}))
    for number, theta in enumerate(thetas[1:], 1):
        state = line.advance(
            state, State(number, {"theta": np.array([theta])}, {"slot": np.array([7.0 + number])})
        )
    return state


@pytest.mark.parametrize(
    ("delay", "generation", "expected", "measured"),
    [
        (1, 2, 2.0, 1.0),  # of 0, 1, 3: theta_1 + (theta_1 - theta_0)
        (1, 3, 5.0, 3.0),  # theta_2 + (theta_2 - theta_1)
        (2, 2, 0.0, 0.0),  # theta_0, before which there is no step
        (2, 3, 3.0, 1.0),  # theta_1 + 2 (theta_1 - theta_0)
        (2, 4, 7.0, 3.0),
    ],
)
def test_lookahead_extrapolates_the_last_step(
    delay: int, generation: int, expected: float, measured: float
) -> None:
    state = newest(DelayLine(delay, True), 0.0, 1.0, 3.0)
    drawn = DelayLine(delay, True).drawn_around(state, generation)
    assert (drawn.generation, drawn.theta.tolist()) == (generation, [expected])
    assert DelayLine(delay, True).measured(state, generation).theta.tolist() == [measured]
    assert DelayLine(delay, False).drawn_around(state, generation).theta.tolist() == [measured]


def test_first_generations_are_drawn_around_the_initial_theta() -> None:
    line = DelayLine(2, True)
    state = newest(line, 4.0)
    assert [line.drawn_around(state, number).theta.tolist() for number in (0, 1, 2)] == [[4.0]] * 3


def test_state_has_the_same_arrays_in_every_generation() -> None:
    line = DelayLine(1, True)
    names = ["slot", "delayed/1/theta", "delayed/2/theta"]
    states = [newest(line, *thetas) for thetas in ([0.0], [0.0, 1.0], [0.0, 1.0, 3.0, 6.0])]
    assert [list(state.master) for state in states] == [names] * 3
    assert [float(states[-1].master[name][0]) for name in names[1:]] == [3.0, 1.0]
    assert without_earlier(states[-1]).master == {"slot": np.array([10.0])}


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"kind": "es", "delay": 1}, True),
        ({"kind": "es", "delay": 1, "optimizer": {"kind": "none"}}, False),
        ({"kind": "es", "delay": 1, "optimizer": {"kind": "sgd", "momentum": 0.0}}, False),
        ({"kind": "es", "delay": 1, "lookahead": False}, False),
        ({"kind": "pgpe", "delay": 2}, True),
        ({"kind": "ars", "delay": 1}, False),
        ({"kind": "ars", "delay": 1, "lookahead": True}, True),
    ],
)
def test_lookahead_is_on_if_the_optimizer_has_momentum(
    algorithm: dict[str, Any], expected: bool
) -> None:
    config = validate({"task": {"env_id": "CartPole-v1"}, "algorithm": algorithm})
    assert DelayLine.of(config.algorithm) == DelayLine(algorithm["delay"], expected)


def test_there_is_no_line_without_a_delay() -> None:
    assert DelayLine.of(validate({"task": {"env_id": "CartPole-v1"}}).algorithm) is None


def test_pgpe_uses_the_deviations_that_its_candidates_were_drawn_with() -> None:
    """grad_mu = s_a / P sum (F+ - F-) / 2 z doubles with s_a;
    s itself changes by at most a fifth of the present s.
    """
    options: dict[str, Any] = {"fitness_shaping": "none", "sigma": 0.5, "population_size": 4}
    options["optimizer"] = {"kind": "none", "learning_rate": 1.0}
    created = strategy("pgpe", [3.0, 1.0, 4.0, 1.5], [0.0, 0.0], **options)
    state = created.initial()
    results = generation(created, state)
    assert results.prepared.deviations is state.shared["deviations"]
    steps = []
    for factor in (1.0, 2.0, 100.0):
        older = replace(results.prepared, deviations=factor * results.prepared.deviations)
        after, _ = created.tell(state, replace(results, prepared=older))
        steps.append(after.theta)
        assert (np.abs(after.shared["deviations"] / 0.5 - 1) <= 0.2 + 1e-12).all()
    assert steps[1] == pytest.approx(2 * steps[0]) and steps[2] == pytest.approx(100 * steps[0])
