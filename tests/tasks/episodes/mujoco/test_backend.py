"""Native stepping of MuJoCo environments is bit-identical to Gymnasium's."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from hpc_es.tasks.episodes import mujoco as mujoco_kind
from hpc_es.tasks.episodes.mujoco.models import MODELS
from tests.helpers.mujoco_traces import by_gymnasium, difference, is_reset, natively

pytest.importorskip("mujoco")

PLANAR = (
    {"forward_reward_weight": 0.3},
    {"ctrl_cost_weight": 0.7},
    {"reset_noise_scale": 0.2},
    {"exclude_current_positions_from_observation": False},
    {"frame_skip": 3, "max_episode_steps": 17},
)
HEALTHY = (
    {"healthy_reward": 3},
    {"terminate_when_unhealthy": False},
    {"healthy_z_range": [1.2, 1.249]},
    {"healthy_angle_range": (-0.02, 0.01)},
)
HUMANOID = (
    {"ctrl_cost_weight": 1},
    {"reset_noise_scale": 0.1},
    {"exclude_current_positions_from_observation": False},
    {"frame_skip": 2, "max_episode_steps": 9},
    {"include_cinert_in_observation": False},
    {"include_cvel_in_observation": False},
    {"include_qfrc_actuator_in_observation": False},
    {"include_cfrc_ext_in_observation": False},
)
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "HalfCheetah": PLANAR,
    "Swimmer": PLANAR,
    "Hopper": (*PLANAR, *HEALTHY, {"healthy_state_range": (-2.0, 2.0)}),
    "Walker2d": (*PLANAR, *HEALTHY),
    "Ant": (
        *PLANAR,
        {"healthy_reward": 0.1},
        {"terminate_when_unhealthy": False, "healthy_z_range": (0.5, 0.6)},
        {"healthy_z_range": (0.5, 0.6)},
        {"contact_cost_weight": 0.01},
        {"contact_cost_weight": 0, "include_cfrc_ext_in_observation": False},
        {"include_cfrc_ext_in_observation": False},
        {"contact_force_range": (0.0, 50.0)},
        {"main_body": "aux_1"},
        {"main_body": 4},
    ),
    "Humanoid": (
        *HUMANOID,
        {"forward_reward_weight": 0.7},
        {"contact_cost_weight": 0.01},
        {"contact_cost_weight": 0.0, "include_cfrc_ext_in_observation": False},
        {"contact_cost_weight": 0.01, "contact_cost_range": (1.0, 2.0)},
        {"healthy_reward": 1},
        {"terminate_when_unhealthy": False, "healthy_z_range": (1.39, 1.4)},
        {"healthy_z_range": (1.35, 1.4)},
    ),
    "HumanoidStandup": (
        *HUMANOID,
        {"uph_cost_weight": 3},  # which Gymnasium does not use
        {"impact_cost_weight": 0.01},
        {"impact_cost_weight": 0.01, "impact_cost_range": (2.0, 3.0)},
    ),
    "Reacher": (
        {"reward_dist_weight": 0.3},
        {"reward_control_weight": 3},
        {"frame_skip": 5, "max_episode_steps": 11},
    ),
    "Pusher": (
        {"reward_near_weight": 2},
        {"reward_dist_weight": 0.3},
        {"reward_control_weight": 0.7},
        {"frame_skip": 2, "max_episode_steps": 11},
    ),
    "InvertedPendulum": ({"reset_noise_scale": 0.1}, {"frame_skip": 1, "max_episode_steps": 5}),
    "InvertedDoublePendulum": (
        {"reset_noise_scale": 0.2},
        {"healthy_reward": 3},
        {"frame_skip": 2, "max_episode_steps": 5},
    ),
}
CASES = [(name, options) for name, several in OPTIONS.items() for options in several]
IDS = [f"{name}-{'-'.join(options)}" for name, options in CASES]
UNUSED = {"uph_cost_weight"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_thousand_native_steps_equal_gymnasiums(name: str) -> None:
    """Four environments in lockstep, 250 steps each; actions are up to 1.5 times their bounds."""
    arguments = f"{name}-v5", {"max_episode_steps": 60}, 4, 250, 1.5
    expected = by_gymnasium(*arguments)
    assert difference(natively(*arguments), expected) is None
    assert sum(is_reset(line) for row in expected for line in row) >= 4 * (1 + 250 // 60)


@pytest.mark.long
def test_squares_are_computed_as_in_gymnasium() -> None:
    """About one in 1,300 squares differs in its last bit
    between `scalar ** 2` and `scalar * scalar`.
    """
    arguments = "InvertedDoublePendulum-v5", {"healthy_reward": 0}, 4, 1500, 1.0
    assert difference(natively(*arguments), by_gymnasium(*arguments)) is None


@functools.cache
def plain(name: str) -> Any:
    """The steps of Gymnasium with default options."""
    return by_gymnasium(f"{name}-v5", {}, 3, 40, 1.0)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_every_option_equals_gymnasiums(name: str, options: dict[str, Any]) -> None:
    """The option changes the result of Gymnasium, and the native result is identical."""
    arguments = f"{name}-v5", options, 3, 40, 1.0
    expected = by_gymnasium(*arguments)
    assert difference(natively(*arguments), expected) is None
    assert (difference(expected, plain(name)) is None) == bool(UNUSED & options.keys())


def test_every_option_of_gymnasium_is_compared() -> None:
    """All keywords of the eleven classes, except those of rendering and the model file."""
    for name in MODELS:
        environment = gymnasium.make(f"{name}-v5", disable_env_checker=True)
        known = mujoco_kind._options(environment).keys() - {
            *mujoco_kind.RENDERING,
            "default_camera_config",
            "xml_file",
        }
        compared = {option for options in OPTIONS[name] for option in options} - {
            "max_episode_steps"
        }
        assert compared == known, name


# States that go wrong.


def model_file(name: str, directory: Path, old: str, new: str) -> str:
    """A model of Gymnasium with one change."""
    text = (Path(gymnasium.__file__).parent / "envs/mujoco/assets" / name).read_text()
    assert old in text
    path = directory / name
    path.write_text(text.replace(old, new))
    return str(path)


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """Warnings of MuJoCo."""
    import mujoco

    texts, before = list[str](), mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(texts.append)
    yield texts
    mujoco.set_mju_user_warning(before)


@pytest.mark.parametrize(("scale", "warning"), [(1e12, "CTRL"), (3e9, "QACC")])
@pytest.mark.parametrize(
    "name", ["HalfCheetah", "Ant", "Humanoid", "HumanoidStandup", "InvertedPendulum"]
)
def test_exploding_state_equals_gymnasiums(
    name: str, scale: float, warning: str, tmp_path: Path, warned: list[str]
) -> None:
    """Without control limits MuJoCo replaces huge controls by 0 or resets the state."""
    files = {"HalfCheetah": "half_cheetah.xml", "InvertedPendulum": "inverted_pendulum.xml"}
    file = model_file(
        files.get(name, f"{name.lower()}.xml"),
        tmp_path,
        'ctrllimited="true"',
        'ctrllimited="false"',
    )
    arguments = f"{name}-v5", {"xml_file": file, "frame_skip": 2}, 2, 20, scale
    expected = by_gymnasium(*arguments)
    assert difference(natively(*arguments), expected) is None
    assert any(f"Nan, Inf or huge value in {warning}" in text for text in warned)


@pytest.mark.usefixtures("warned")
def test_diverging_model_equals_gymnasiums(tmp_path: Path) -> None:
    """Time steps of 0.4 s."""
    file = model_file("half_cheetah.xml", tmp_path, 'timestep="0.01"', 'timestep="0.4"')
    arguments = "HalfCheetah-v5", {"xml_file": file}, 2, 40, 1.0
    expected = by_gymnasium(*arguments)
    assert difference(natively(*arguments), expected) is None
    assert difference(expected, plain("HalfCheetah")[:2]) is not None
