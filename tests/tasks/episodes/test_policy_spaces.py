"""Every space of Gymnasium, as observations and as actions: it works,
or the error names a wrapper that helps.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces

from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes import policy_spaces
from hpc_es.tasks.episodes.task import Episodes
from hpc_es.training.build import build_task
from tests.helpers.odd_values import LENGTH, Spacious
from tests.helpers.toys import Still, episodes, played

ENVIRONMENT = "tests.helpers.odd_values:Spacious-v0"
BOX = spaces.Box(-1, 1, (3,), np.float32)


class Mission(spaces.Space[str]):
    """A space of the user's, as that of MiniGrid."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    @property
    def is_np_flattenable(self) -> bool:
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "get to the green goal square"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


class Bounded(spaces.Box):
    """A subclass of the user's."""


def task(observations: Any = None, actions: Any = None, wrappers: tuple[Any, ...] = ()) -> Episodes:
    keywords = {"observations": observations, "actions": actions}
    return episodes(ENVIRONMENT, env_kwargs=keywords, wrappers=wrappers)


def refused(**keywords: Any) -> str:
    with pytest.raises(ConfigError) as error:
        task(**keywords)
    assert [key for key, _ in error.value.problems] == ["task.env_id"]
    return str(error.value)


def plays(created: Episodes) -> None:
    """Play two episodes; Discrete(n) and MultiDiscrete get zeros, a Box gets zeros of floats."""
    actions = created.spaces.actions
    size = len(actions.low) if hasattr(actions, "low") else len(getattr(actions, "counts", ()))
    actor: Any = Still(2, actions=size)
    if hasattr(actions, "counts"):
        act = actor.act
        actor.act = lambda observations: act(observations).astype(np.int64)
    outcome = played(created, [1, 2], actor)
    assert outcome.failures == [] and outcome.rows["length"].tolist() == [LENGTH, LENGTH]


def wrappers_of(text: str) -> tuple[Any, ...]:
    """The wrappers that an error names, as a config has them."""
    named = re.search(r"add (.*) to task\.wrappers", text)
    assert named, text
    return tuple(yaml.safe_load(item) for item in named[1].split(" and "))


# (space, size of the observation; after the wrappers that the error names; None: a wrapper of the
# user's own)
OBSERVATIONS: dict[str, list[tuple[Any, Any, Any]]] = {
    "Space": [(Mission(), None, None)],
    "Box": [
        (BOX, 3, ()),
        (Bounded(-1, 1, (3,)), 3, ()),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), 48, ()),
        (spaces.Box(-1, 1, (2, 2)), 4, ()),
        (spaces.Box(0, 5, (3,), np.int64), 3, ()),
        (spaces.Box(0, 1, (3,), bool), 3, ()),
        (spaces.Box(-1, 1, ()), 1, None),
    ],
    "Discrete": [(spaces.Discrete(4), 4, None)],
    "Text": [(spaces.Text(5), 5, None)],
    "MultiDiscrete": [(spaces.MultiDiscrete([2, 3]), 5, None)],
    "MultiBinary": [(spaces.MultiBinary(3), 3, None), (spaces.MultiBinary((2, 2)), 4, None)],
    "Graph": [(spaces.Graph(BOX, None), None, None)],
    "GraphInstance": [],  # a sample of Graph
    "Tuple": [
        (spaces.Tuple([BOX, spaces.Discrete(2)]), 5, ()),
        (spaces.Tuple([BOX, Mission()]), 3, None),
        (spaces.Tuple([Mission()]), None, None),
        (spaces.Tuple([]), None, None),
    ],
    "Sequence": [(spaces.Sequence(BOX), None, None)],
    "Dict": [
        (spaces.Dict(a=BOX, b=spaces.Text(2)), 5, None),
        (spaces.Dict(a=BOX, b=spaces.Dict(c=spaces.MultiBinary((2, 2)))), 7, ()),
        (
            spaces.Dict(
                image=spaces.Box(0, 255, (7, 7, 3), np.uint8),
                mission=Mission(),
                way=spaces.Discrete(4),
            ),
            151,
            None,
        ),
        (spaces.Dict(here=spaces.Dict(mission=Mission()), there=BOX), 3, None),
        (spaces.Dict(mission=Mission()), None, None),
        (spaces.Dict({}), None, None),
    ],
    "OneOf": [(spaces.OneOf([spaces.Discrete(2), BOX]), 4, None)],
}
# (space, whether it works: by itself, with FlatAction, or not)
ACTIONS: dict[str, list[tuple[Any, str]]] = {
    "Space": [(Mission(), "own")],
    "Box": [
        (spaces.Box(-1, 1, (2,)), "works"),
        (Bounded(-1, 1, (2,)), "works"),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), "works"),
        (spaces.Box(-1, 1, (2, 2)), "flat"),
        (spaces.Box(-1, 1, ()), "flat"),
        (spaces.Box(-2, 5, (2,), np.int64), "flat"),
        (spaces.Box(0, 1, (2,), bool), "flat"),
        (spaces.Box(-np.inf, np.inf, (2,), np.int64), "own"),
    ],
    "Discrete": [(spaces.Discrete(3), "works"), (spaces.Discrete(3, start=0), "works")],
    "Text": [(spaces.Text(5), "own")],
    "MultiDiscrete": [
        (spaces.MultiDiscrete([2, 3]), "works"),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), "flat"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "flat"),
    ],
    "MultiBinary": [(spaces.MultiBinary(3), "flat"), (spaces.MultiBinary((2, 2)), "flat")],
    "Graph": [(spaces.Graph(BOX, None), "own")],
    "GraphInstance": [],
    "Tuple": [(spaces.Tuple([spaces.Discrete(2)]), "own"), (spaces.Tuple([]), "own")],
    "Sequence": [(spaces.Sequence(BOX), "own")],
    "Dict": [(spaces.Dict(a=BOX), "own")],
    "OneOf": [(spaces.OneOf([spaces.Discrete(2), BOX]), "own")],
}


def name_of(value: Any) -> str:
    """An id of a test, the same in every process: texts of some spaces are not."""
    return type(value).__name__ if isinstance(value, spaces.Space) else str(value)


def test_every_space_of_gymnasium_is_tried() -> None:
    known = {name for name in gymnasium.spaces.__all__ if isinstance(getattr(spaces, name), type)}
    assert known == set(OBSERVATIONS) == set(ACTIONS)


@pytest.mark.parametrize(
    ("space", "size", "named"),
    [item for items in OBSERVATIONS.values() for item in items],
    ids=name_of,
)
def test_observations_of_every_space_work_or_get_a_wrapper(
    space: Any, size: int | None, named: Any
) -> None:
    if named == ():
        created = task(space)
        assert created.spaces.observations.size == size
        plays(created)
        return
    text = refused(observations=space)
    assert (
        "expected observations that are one array (a Box), or a Dict or Tuple of arrays, found"
        in text
    )
    if size is None:
        assert "add a gymnasium.ObservationWrapper of your own to task.wrappers" in text
        return
    created = task(space, wrappers=wrappers_of(text))
    assert created.spaces.observations.size == size and f" {size:,} observations" in text
    plays(created)


@pytest.mark.parametrize(
    ("space", "how"), [item for items in ACTIONS.values() for item in items], ids=name_of
)
def test_actions_of_every_space_work_or_get_a_wrapper(space: Any, how: str) -> None:
    if how == "works":
        plays(task(actions=space))
        return
    text = refused(actions=space)
    assert (
        "expected Discrete or MultiDiscrete actions, or a Box of floats in one dimension, found "
        in text
    )
    if how == "own":
        assert "a gymnasium.ActionWrapper of your own in task.wrappers" in text
        return
    plays(task(actions=space, wrappers=wrappers_of(text)))


def test_part_of_a_dict_that_is_left_out_is_named() -> None:
    text = refused(observations=spaces.Dict(image=BOX, mission=Mission()))
    filtered = "{'gymnasium.wrappers:FilterObservation': {filter_keys: ['image']}}"
    both = f"add {filtered} and 'gymnasium.wrappers:FlattenObservation' to task.wrappers"
    assert text.endswith(f"{both}, which make 3 observations without 'mission' (Mission)")


def test_long_space_is_shortened() -> None:
    assert (
        len(
            refused(
                observations=spaces.Dict({f"entry_{number}": Mission() for number in range(500)})
            )
        )
        < 600
    )


# Spaces that are empty, missing, or none.


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_observations_are_refused(shape: tuple[int, ...]) -> None:
    text = "task.env_id: expected observations of at least one number, found Box"
    assert refused(observations=spaces.Box(-1, 1, shape)).startswith(text)


def empty_discrete() -> Any:
    space = spaces.Discrete(2)
    space.n = np.int64(0)
    return space


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (0,)), spaces.MultiDiscrete([]), empty_discrete()], ids=name_of
)
def test_empty_actions_are_refused(space: Any) -> None:
    assert "expected at least one action to choose from, found " in refused(actions=space)


def nan_bounds() -> Any:
    space = spaces.Box(-1, 1, (2,))
    space.low[1] = np.nan
    return space


def test_nan_bounds_of_actions_are_refused() -> None:
    assert "expected numbers as bounds of the actions, or infinity, found NaN in Box" in refused(
        actions=nan_bounds()
    )


NAMES = ["observation_space", "action_space"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "found"),
    [
        ((3,), "found (3,)"),
        (4, "found 4"),
        ("Box", "found Box"),
        (spaces.Box, "found the class Box: create an instance"),
        ({"a": BOX}, "found {'a': Box"),
        (
            type("Box", (), {"__module__": "gym.spaces.box", "__str__": lambda self: "Box(2,)"})(),
            "Box(2,) of the old package gym",
        ),
    ],
)
def test_other_objects_are_no_spaces(name: str, value: Any, found: str) -> None:
    environment = Spacious()
    setattr(environment, name, value)
    with pytest.raises(ConfigError) as error:
        policy_spaces.spaces(environment)
    expected = (
        f"task.env_id: expected Spacious.{name} to be a space of gymnasium.spaces, such as Box, "
    )
    assert str(error.value).startswith(expected) and found in str(error.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_missing_space_is_reported_with_the_name_of_another_attribute(
    name: str, wrapped: bool
) -> None:
    environment: Any = Spacious()
    setattr(environment, f"{name[:-1]}_e", getattr(environment, name))
    delattr(environment, name)
    with pytest.raises(ConfigError) as error:
        policy_spaces.spaces(
            gymnasium.wrappers.TimeLimit(environment, 5) if wrapped else environment
        )
    assert str(error.value) == (
        f"task.env_id: expected Spacious.{name} to be a space of gymnasium.spaces, such as Box, but it is not set; "
        f"it has the space '{name[:-1]}_e': is that the name?"
    )


class Undecided(Spacious):
    """Its space is a property that fails."""

    @property  # type: ignore[override]
    def observation_space(self) -> Any:
        raise NotImplementedError("call set_map first")

    @observation_space.setter
    def observation_space(self, value: Any) -> None:
        pass


def test_space_that_raises_is_reported() -> None:
    with pytest.raises(ConfigError, match="found NotImplementedError: call set_map first"):
        policy_spaces.spaces(Undecided())


def test_error_of_a_space_is_among_all_errors_of_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    config = validate({"task": {"env_id": ENVIRONMENT}, "policy": {"action_bins": 1000}})
    monkeypatch.setattr(
        importlib.import_module("tests.helpers.odd_values").Spacious, "__init__", lambda self: None
    )
    with pytest.raises(ConfigError, match=r"expected Spacious\.observation_space to be a space"):
        build_task(config)
