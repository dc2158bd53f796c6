"""Hidden state: the comparison of a reused with a new environment,
and what the warning says and names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import hpc_es
from hpc_es.core import quiet
from hpc_es.core.errors import UserError
from hpc_es.tasks.episodes.hidden_state import COMPARED_EPISODES, hidden_state_difference
from tests.helpers import trained
from tests.helpers.toys import Faulty, Survival, episodes

NORMALIZE = "gymnasium.wrappers:NormalizeObservation"
RUNNING = "tests.helpers.odd_values:Running"
PLUS = "tests.helpers.toys:Plus"
REMEDY = (
    "set task.observation_normalization: {enabled: true}, whose statistics are part of checkpoints"
)


@pytest.mark.parametrize(
    "name", ["Survival", "Globals", "Chaos", "Shifted", "CartPole-v1", "Pendulum-v1"]
)
def test_environments_without_hidden_state_pass_the_probe(name: str) -> None:
    assert hidden_state_difference(episodes(name).environment, 30) is None


def test_reward_with_hidden_state_is_detected() -> None:
    """Hidden pays 1 in the first episode of an instance and 2 in the second,
    from the first step.
    """
    assert hidden_state_difference(episodes("Hidden").environment, 30) == "from step 1 of episode 1"


def test_episode_length_with_hidden_state_is_detected() -> None:
    """The first episode of an instance of Growing has 1 step, the second 2: with the reset,
    3 records instead of 2.
    """
    assert (
        hidden_state_difference(episodes("Growing").environment, 30)
        == "episode 1 has 3 steps instead of 2"
    )


def test_probe_closes_its_environments() -> None:
    environment = episodes("Faulty", env_kwargs={"bad_seed": -1}).environment
    created, closed = Faulty.created, Faulty.closed
    assert hidden_state_difference(environment, 30) is None
    assert Faulty.created - created == Faulty.closed - closed == COMPARED_EPISODES + 1


def test_probe_treats_nan_as_equal() -> None:
    """NaN in every episode is not hidden state."""
    nan = episodes("Survival", wrappers=({"tests.helpers.toys:Plus": {"by": float("nan")}},))
    assert hidden_state_difference(nan.environment, 30) is None


def warning(name: str = "Survival", seconds: float = 60.0, **options: Any) -> str:
    return episodes(name, **options).hidden_state_warning(seconds) or ""


def test_warning_says_what_depends_on_the_state_and_the_remedy() -> None:
    assert warning("Hidden") == (
        "tests.helpers.toys:Hidden-v0 gives other episodes when it is reused than when it is new (from step 1 of "
        "episode 1): it keeps state that reset does not clear, so results would depend on which rank ran which "
        "episode, and a resumed run, hpc-es eval and load_policy begin without that state. "
        "Set task.fresh_environment: true"
    )


@pytest.mark.parametrize(
    ("wrappers", "name", "remedy"),
    [
        ((NORMALIZE,), NORMALIZE, f"In place of it {REMEDY}"),
        (({NORMALIZE: {"epsilon": 1e-6}},), NORMALIZE, f"In place of it {REMEDY}"),
        ((PLUS, NORMALIZE, PLUS), NORMALIZE, f"In place of it {REMEDY}"),
        (
            ("gymnasium.wrappers:NormalizeReward",),
            "gymnasium.wrappers:NormalizeReward",
            "Leave it out, or set ",
        ),
        (
            (RUNNING,),
            RUNNING,
            f"Set task.fresh_environment: true; if it normalises observations, rather {REMEDY}",
        ),
    ],
    ids=str,
)
def test_warning_names_the_wrapper_with_the_state(wrappers: Any, name: str, remedy: str) -> None:
    text = warning(wrappers=wrappers)
    assert text.startswith(f"{name} gives other episodes") and remedy in text


def test_environment_with_state_is_named_before_its_wrappers() -> None:
    assert warning("Hidden", wrappers=(NORMALIZE,)).startswith(
        "tests.helpers.toys:Hidden-v0 gives other episodes"
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Hidden", {"fresh_environment": True}),
        ("CartPole-v1", {"stepping": "native"}),
        ("tests.helpers.vector_toys:Swarm-v0", {"stepping": "vector"}),
        ("Survival", {"wrappers": (PLUS,)}),
    ],
)
def test_no_warning_without_hidden_state(name: str, options: Any) -> None:
    assert warning(name, **options) == ""


def test_environment_that_fails_under_random_actions_is_reported() -> None:
    text = warning("Bare")
    assert "Bare-v0 fails under random actions: AssertionError (test_hidden_state.py:" in text
    assert text.endswith(" in step: raise AssertionError)")


class Bare(Survival):
    """Its steps fail without a text."""

    def step(self, action: Any) -> Any:
        raise AssertionError


@pytest.fixture(autouse=True)
def _bare() -> Iterator[None]:
    gymnasium.register("tests.helpers.toys:Bare-v0".rpartition(":")[2], Bare)
    yield
    gymnasium.registry.pop("Bare-v0")


def test_comparison_ends_after_its_time() -> None:
    """Each of up to 400 steps of Slow takes 20 ms."""
    started = time.monotonic()
    assert warning("Slow", 0.1, max_episode_steps=1000) == ""
    assert time.monotonic() - started < 4


# In a run, an evaluation and a loaded policy.


def test_start_of_a_run_and_its_evaluation_warn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quiet._printed.clear()
    config: dict[str, Any] = {
        **trained.CONFIG,
        "task": {**trained.CONFIG["task"], "wrappers": [NORMALIZE]},
    }
    for _ in range(2):
        for _ in hpc_es.train(config, output=tmp_path / "run"):
            pass
    text = f"WARNING: {NORMALIZE} gives other episodes when it is reused than when it is new"
    assert capfd.readouterr().out.count(text) == 1, "a resumed run has been warned at its start"
    with pytest.warns(UserWarning, match="gives other episodes when it is reused"):
        hpc_es.load_policy(tmp_path / "run", env="wrapped")
    with pytest.raises(UserError, match="has memory"):
        hpc_es.load_policy(tmp_path / "run")
    from hpc_es.api.evaluate import EvaluationRequest, evaluate
    from hpc_es.trained.stored import read_evaluated

    evaluate(read_evaluated(tmp_path / "run"), EvaluationRequest(2, 1))
    assert text in capfd.readouterr().err
