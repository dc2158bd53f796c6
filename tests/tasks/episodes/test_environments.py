"""Creation of environments and errors if one cannot be created."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core.data import Box, Discrete, flat_observations
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes import environments, policy_spaces
from hpc_es.training.build import build_task
from tests.helpers.harness import python, script
from tests.helpers.toys import Survival, episodes, lifetime, played

TOYS = "tests.helpers.toys:"


def created(name: str, wrappers: tuple[Any, ...] = (), **keywords: Any) -> environments.Environment:
    return environments.make(f"{TOYS}{name}-v0", keywords, None, wrappers)


# Names.


@pytest.mark.parametrize(
    ("env_id", "text"),
    [
        ("CartPol-v1", r"found 'CartPol-v1'; did you mean 'CartPole-v1'\?"),
        ("cartpole-v1", r"did you mean 'CartPole-v1'\?"),
        ("CartPole-v77", r"did you mean 'CartPole-v\d'\?.*v77"),
        ("Zzzzzzzzzz-v0", r"expected a registered Gymnasium id, found 'Zzzzzzzzzz-v0' "),
        ("not a name", r"found 'not a name'"),
        (
            "no_such_module:Env-v0",
            r"found 'no_such_module:Env-v0', but module 'no_such_module' cannot be imported",
        ),
        ("tests.nothing:Env-v0", r"but module 'tests.nothing' cannot be imported"),
        (
            "tests.helpers.toys:Nothing-v0",
            r"expected a registered Gymnasium id, found 'tests.helpers.toys:Nothing-v0'",
        ),
    ],
)
def test_unknown_id_is_reported_with_the_nearest_one(env_id: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.env_id: " + ".*" + text) as caught:
        environments.make(env_id, {})
    assert [key for key, _ in caught.value.problems] == ["task.env_id"]


def test_id_unlike_all_others_has_no_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        environments.make("Zzzzzzzzzz-v0", {})
    assert "did you mean" not in str(caught.value)


def test_module_that_is_imported_registers_its_environments() -> None:
    assert created("Survival").reset(seed=9)[0].tolist() == [0, lifetime(9), 1]


def test_keywords_reach_the_environment_and_invalid_ones_are_reported() -> None:
    assert created("Reach", low=-3.0).action_space.low.tolist() == [-3, -3]
    with pytest.raises(
        ConfigError, match=r"task\.env_kwargs: .*Reach-v0 does not take these keywords: .*'height'"
    ):
        created("Reach", height=3)


def test_environment_that_fails_to_start_is_reported() -> None:
    with pytest.raises(
        ConfigError, match=r"task\.env_id: .*Strange-v0 cannot be created: KeyError: 'sounds'"
    ):
        created("Strange", observations="sounds")


# Wrappers.


def test_wrappers_apply_from_the_inside_out_in_both_forms() -> None:
    """A reward of 1: (1 + 1) * 3 = 6; in the other order (1 * 3) + 1 = 4."""
    plain, times = "tests.helpers.toys:Plus", {"tests.helpers.toys:Plus": {"by": 0.0, "times": 3.0}}
    for wrappers, reward in (
        ((plain, times), 6),
        ((times, plain), 4),
        (({plain: {}},), 2),
        (({plain: None},), 2),
    ):
        environment = created("Survival", wrappers)
        environment.reset(seed=9)
        assert environment.step(0)[1] == reward


def test_wrappers_of_gymnasium_with_keywords() -> None:
    wrappers = ({"gymnasium.wrappers:RescaleAction": {"min_action": -1.0, "max_action": 1.0}},)
    spaces = policy_spaces.spaces(created("Reach", wrappers, low=-9.0, high=9.0))
    assert isinstance(spaces.actions, Box)
    assert spaces.actions.high.tolist() == [1, 1]


def test_wrappers_are_part_of_the_task() -> None:
    task = episodes("Survival", wrappers=("tests.helpers.toys:Plus",))
    assert played(task, [9]).rows["return_"].tolist() == [20]


@pytest.mark.parametrize(
    ("wrapper", "text"),
    [
        (
            "no_such_module:Plus",
            "expected 'module:Class', found 'no_such_module:Plus', which cannot be imported",
        ),
        (
            "tests.helpers.toys:Minus",
            "expected 'module:Class', found 'tests.helpers.toys:Minus', which cannot be imported",
        ),
        (
            "tests.helpers.toys.Plus",
            "expected 'module:Class', found 'tests.helpers.toys.Plus', which cannot be imported: there is no ':'",
        ),
        (
            {"tests.helpers.toys:Plus": {"upwards": 3}},
            "tests.helpers.toys:Plus cannot be applied: TypeError: .*upwards",
        ),
        (
            {"tests.helpers.toys:Plus": {"times": 0.0}},
            "tests.helpers.toys:Plus cannot be applied: ValueError: times is 0",
        ),
        (
            {"tests.helpers.toys:Plus": {}, "tests.helpers.toys:Minus": {}},
            "expected 'module:Class' or one ",
        ),
        ({}, "expected 'module:Class' or one "),
    ],
)
def test_wrapper_that_cannot_be_applied_is_reported_with_its_position(
    wrapper: Any, text: str
) -> None:
    with pytest.raises(ConfigError, match=r"^task\.wrappers\[1\]: " + text):
        created("Survival", ("tests.helpers.toys:Plus", wrapper))


# Spaces.


def test_non_array_observations_are_refused_with_a_working_remedy() -> None:
    with pytest.raises(
        ConfigError,
        match=r"task\.env_id: expected observations that are one array.*found Discrete",
    ) as caught:
        policy_spaces.spaces(created("Strange", observations="discrete"))
    remedy = "gymnasium.wrappers:FlattenObservation"
    assert remedy in str(caught.value)
    spec = policy_spaces.spaces(created("Strange", (remedy,), observations="discrete")).observations
    assert spec == flat_observations(4)


def test_images_keep_their_shape_and_dtype() -> None:
    spec = policy_spaces.spaces(created("Strange", observations="image")).observations
    assert (spec.shape, spec.dtype, spec.is_flat, spec.statistics) == (
        (8, 8, 3),
        np.uint8,
        False,
        3,
    )


def test_remedy_states_the_number_of_observations_and_parameters() -> None:
    """Images of 8 x 8 x 3, and two layers of 64: (192 + 1) 64 + (64 + 1) 64 + (64 + 1) 2."""
    task = {"env_id": f"{TOYS}Strange-v0", "env_kwargs": {"observations": "image"}}
    with pytest.raises(ConfigError) as message:
        build_task(validate({"task": task}))
    assert "which makes 192 observations and a policy of 16,642 parameters" in str(message.value)
    assert "ResizeObservation': {shape: [42, 42]}" in str(message.value)


# Keywords.


class Picky(gymnasium.Env[Any, Any]):
    """Accepts only tuples of tuples."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape: Any, names: Any = ()) -> None:
        if not isinstance(shape, tuple) or not all(isinstance(part, tuple) for part in shape):
            raise TypeError(f"expected a tuple, got {type(shape)}")
        if names == ("wrong",):
            raise ValueError("a wrong name")
        self.options = shape, names


def test_lists_of_keywords_become_tuples_if_needed() -> None:
    gymnasium.register("Picky-v0", Picky, order_enforce=False)
    created = environments.make("Picky-v0", {"shape": [[1, 2], [3]], "names": ["a"]})
    assert created.unwrapped.options == (((1, 2), (3,)), ("a",))
    reshaped = (
        "tests.helpers.toys:Plus",
        {"gymnasium.wrappers:ReshapeObservation": {"shape": [1, 3]}},
    )
    assert environments.make(f"{TOYS}Survival-v0", {}, None, reshaped).observation_space.shape == (
        1,
        3,
    )
    with pytest.raises(ConfigError, match="ValueError: a wrong name"):
        environments.make("Picky-v0", {"shape": [[1]], "names": ["wrong"]})


def test_lists_of_keywords_stay_lists_if_accepted() -> None:
    options: list[Any] = []
    environments.with_tuples(lambda **keywords: options.append(keywords["names"]), {"names": ["a"]})
    assert options == [["a"]]


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
def test_atari_needs_no_module_before_its_id() -> None:
    """In a new process, in which no module has registered the ids."""
    program = "from hpc_es.tasks.episodes.environments import make\nprint(make('ALE/Pong-v5', {'obs_type': 'ram'}))"
    done = python(script(program))
    assert done.status == 0 and "ALE/Pong-v5" in done.stdout, str(done)


@pytest.mark.parametrize("actions", ["matrix", "integers"])
def test_unsupported_action_spaces_are_refused(actions: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"task\.env_id: expected Discrete or MultiDiscrete actions, or a Box of floats in one dimension",
    ):
        policy_spaces.spaces(created("Strange", actions=actions))


def test_spaces_of_a_discrete_environment() -> None:
    spaces = policy_spaces.spaces(created("Shifted"))
    assert spaces.actions == Discrete(3, start=5)
    assert spaces.observations.size == 3


@pytest.mark.parametrize("bound", [0.1, 0.3, 1.0, 1e300, np.inf])
def test_float64_bounds_are_rounded_inwards(bound: float) -> None:
    """To the nearest float32 inside the bounds: at most one spacing away."""
    actions = policy_spaces.spaces(
        created("Reach", low=-bound, high=bound, dtype="float64")
    ).actions
    assert isinstance(actions, Box)
    assert actions.high.dtype == actions.low.dtype == np.float32
    high = float(actions.high[0])
    assert high <= bound
    assert float(actions.low[0]) == -high
    with np.errstate(over="ignore"):
        above = float(np.nextafter(np.float32(high), np.float32(np.inf)))
    assert above > bound or high == bound == np.inf


class Draining(Survival):
    """Takes what it is made of out of its keywords."""

    def __init__(self, parts: list[str]) -> None:
        self.part = parts.pop()


def test_each_environment_gets_its_own_keywords() -> None:
    gymnasium.register("Draining-v0", Draining, order_enforce=False)
    keywords = {"parts": ["a"]}
    for _ in range(2):
        assert environments.make("Draining-v0", keywords).unwrapped.part == "a"
