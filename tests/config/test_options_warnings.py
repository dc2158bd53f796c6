"""Options without effect are warned about, those with an effect are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_es.config.loading import load, validate
from hpc_es.config.options import warnings_of
from tests.helpers import runs
from tests.helpers.harness import ROOT

ES = {"task": {"env_id": "CartPole-v1"}, "stop": {"generations": 9}}
AC = {**ES, "algorithm": {"kind": "actor_critic"}}
PG = {
    "task": {"kind": "programs", "name": "add"},
    "algorithm": {"kind": "policy_gradient"},
    "stop": {"episodes": 9},
}
NOTHING: list[Any] = [
    (
        ES,
        "algorithm.optimizer.momentum",
        0.5,
        "is 0.5, but does nothing: it is for kind sgd or clipup, and this is ad",
    ),
    (
        ES,
        "algorithm.optimizer",
        {"kind": "sgd", "max_speed": 0.5},
        "max_speed: is 0.5, but does nothing: it is for k",
    ),
    (
        ES,
        "algorithm.optimizer",
        {"kind": "clipup", "max_speed": 0.5},
        "is 0.5, but does nothing: no step is that long",
    ),
    pytest.param(
        AC,
        "algorithm.optimizer",
        {"kind": "rmsprop", "beta1": 0.5},
        "beta1: is 0.5, but does nothing: it is for kind ad",
        marks=pytest.mark.satellite("actor_critic"),
    ),
    (
        ES,
        "task.observation_normalization",
        {"enabled": True, "probability": 0.0},
        "probability: is 0: no observations are added",
    ),
    (ES, "task.observation_normalization.clip", 3.0, "is 3.0, but does nothing: enabled is false"),
    pytest.param(
        AC,
        "algorithm.entropy.end",
        0.5,
        "is 0.5, but does nothing: episodes and timesteps are null",
        marks=pytest.mark.satellite("actor_critic"),
    ),
    (
        ES,
        "checkpoint",
        {"interval": 0, "interval_seconds": 0},
        ".interval: is 0, and interval_seconds too",
    ),
    pytest.param(
        AC,
        "noise.kind",
        "counter",
        "is 'counter', but does nothing: the algorithm actor_critic perturbs no parameters",
        marks=pytest.mark.satellite("actor_critic"),
    ),
    pytest.param(
        AC,
        "noise.table_size",
        1000,
        "is 1000, but does nothing: the algorithm actor_critic perturbs no parameters",
        marks=pytest.mark.satellite("actor_critic"),
    ),
    (ES, "repetition_groups", 2, "is 2, but does nothing: repetitions is 1"),
    (ES, "evaluation", {"interval": 0, "episodes": 5}, "is 5, but does nothing: interval is 0"),
    pytest.param(
        PG,
        "algorithm.topk",
        10,
        "is 10, but does nothing: topk_loss_hparam is 0",
        marks=pytest.mark.satellite("programs"),
    ),
    pytest.param(
        PG,
        "algorithm.replay_capacity",
        10,
        "is 10, but does nothing: alpha is 0",
        marks=pytest.mark.satellite("programs"),
    ),
    pytest.param(
        PG,
        "algorithm.vf_loss_hparam",
        0.1,
        "is 0.1, but does nothing: ema_baseline_decay is not 0",
        marks=pytest.mark.satellite("programs"),
    ),
]


def changed(data: Any, key: str, value: Any) -> Any:
    """A copy of the data with this value at a dotted key."""
    first, _, rest = key.partition(".")
    return {**data, first: changed(data.get(first, {}), rest, value) if rest else value}


@pytest.mark.parametrize(("data", "key", "value", "said"), NOTHING)
def test_options_without_effect_are_warned_about_once(
    data: Any, key: str, value: Any, said: str
) -> None:
    if isinstance(value, dict):
        value = {**data.get(key.partition(".")[0], {}), **value} if "." not in key else value
    (warning,) = warnings_of(validate(changed(data, key, value)))
    assert said in warning and warning.startswith(key)
    assert warnings_of(validate(data)) == []


@pytest.mark.parametrize(
    "config", sorted(path.name for path in ROOT.glob("configs/*.yaml") if path.name[:5] != "tune_")
)
def test_configs_of_the_repository_have_no_warnings(config: str) -> None:
    assert warnings_of(load(ROOT / "configs" / config)) == []


def test_check_and_the_start_print_warnings_and_continue(tmp_path: Path) -> None:
    why = "it is for kind sgd or clipup, and this is adam"
    said = f"WARNING: algorithm.optimizer.momentum: is 0.5, but does nothing: {why}\n"
    for more in (["--check"], ["stop.generations=1"]):
        done = runs.finished(0, tmp_path / "run", "algorithm.optimizer.momentum=0.5", *more)
        assert done.stdout.count(said) == 1


@pytest.mark.parametrize(
    "limit",
    [
        "generations",
        "timesteps",
        "episodes",
        "seconds",
        "target_return",
        "target_value",
        "patience",
    ],
)
def test_run_without_a_limit_is_warned_about(limit: str) -> None:
    """failed_generations is not a limit."""
    stop = {"failed_generations": 3}
    objective = {
        "task": {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 3}
    }
    data = objective if limit == "target_value" else ES
    (warning,) = warnings_of(validate({**data, "stop": stop}))
    assert warning.startswith("stop: has no limit") and limit in warning
    assert warnings_of(validate({**data, "stop": {**stop, limit: 5}})) == []
