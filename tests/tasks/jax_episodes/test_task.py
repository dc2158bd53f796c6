"""Messages about options and environments that compiled episodes do not support, before the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.devices import jax_setup
from hpc_es.tasks.jax_episodes.task import (
    FinalObservationOptions,
    Options,
    behaviour_indices,
    build,
    sources,
)
from hpc_es.training import check as checking
from hpc_es.training.compatibility import missing_for_task
from tests.helpers.harness import python, script

WALK = "tests.helpers.jax_walk:walk"


def config(**task: Any) -> Any:
    return validate(
        {"task": {"kind": "jax_episodes", "env_id": WALK, **task}, "policy": {"hidden_dims": [4]}}
    )


def refused(**task: Any) -> str:
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    with pytest.raises(ConfigError) as caught:
        checking.check(config(**task))
    return str(caught.value)


def test_unknown_id_has_a_nearest_name() -> None:
    pytest.importorskip("gymnax", reason="gymnax is not installed here: make test-jax")
    text = refused(env_id="gymnax:Cartpole-v1")
    assert text.startswith(
        "task.env_id: expected an environment of gymnax, such as 'Acrobot-v1', found 'Cartpole-v1'"
    )
    assert text.endswith("did you mean 'CartPole-v1'?")


def test_id_without_a_library_is_refused() -> None:
    assert "expected 'library:name' with a library of 'gymnax', 'brax'" in refused(
        env_id="CartPole-v1"
    )


def test_dictionary_observations_are_refused() -> None:
    text = refused(env_id="tests.helpers.jax_walk:dictionary")
    assert "expected an environment whose observation is one array" in text
    assert "a dict with the keys 'picture', 'state'" in text


def test_environment_without_a_time_limit_is_refused() -> None:
    assert "task.max_episode_steps: is null, but" in refused(env_kwargs={"limit": None})


def test_invalid_keywords_are_refused() -> None:
    assert "task.env_kwargs: tests.helpers.jax_walk:walk does not take these keywords" in refused(
        env_kwargs={"colour": "red"}
    )


def test_policies_that_cannot_be_compiled_are_refused() -> None:
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    task = build(Options(env_id=WALK))
    with pytest.raises(ConfigError, match=r"policy\.kind: expected a policy with a method `pure`"):
        task.compiled(object())  # type: ignore[arg-type]


def test_policies_with_reference_observations_are_refused() -> None:
    class Referring:
        layout, action_noise_std, reference_frames = None, 0.0, 4
        initial = bind = with_reference = len

    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    with pytest.raises(
        ConfigError, match=r"policy\.normalisation: is virtual_batch, .* expected layer or none"
    ):
        build(Options(env_id=WALK)).compiled(Referring())  # type: ignore[arg-type]


def test_video_of_compiled_episodes_is_refused() -> None:
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    with pytest.raises(UserError, match="is compiled and cannot be rendered"):
        build(Options(env_id=WALK)).environment("rgb_array")


@pytest.mark.parametrize("key", ["wrappers", "episode_timeout_seconds", "fresh_environment"])
def test_options_of_gymnasium_are_refused(key: str) -> None:
    with pytest.raises(
        ConfigError, match=f"unknown key 'task.{key}'; it belongs to kind 'episodes'"
    ):
        config(**{key: 1})


def test_missing_jax_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    options = config()
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "jax" else object()
    )
    ((key, text),) = missing_for_task(options)
    assert key == "task.kind"
    assert (
        text
        == "is jax_episodes, which needs jax, which is not installed: pip install 'hpc_es[jax]'"
    )


def test_check_traces_and_compiles_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")

    monkeypatch.setattr(
        "hpc_es.tasks.jax_episodes.program.EpisodesCall._compile_segment",
        lambda self: pytest.fail("it was compiled"),
    )
    assert checking.check(config()) == 0
    assert "observations 2, actions Box of 1, parameters 17" in capsys.readouterr().out


def test_idle_lanes_are_warned_about() -> None:
    options = Options(env_id=WALK, lanes=16, jobs_per_call=2, episodes_per_job=3)
    assert list(options.warnings()) == [
        (
            "lanes",
            "is 16, but a call has 6 episodes: the other lanes are unused (try jobs_per_call: 22)",
        )
    ]
    assert not list(dataclasses.replace(options, jobs_per_call=6).warnings())


def test_indices_of_a_behaviour() -> None:
    assert behaviour_indices(None, 3) is None
    assert behaviour_indices(FinalObservationOptions(), 3) == (0, 1, 2)
    assert behaviour_indices(FinalObservationOptions(final_observation=(2,)), 3) == (2,)
    with pytest.raises(ConfigError, match="has 3, but an observation has 3 numbers"):
        behaviour_indices(FinalObservationOptions(final_observation=(0, 3)), 3)


def test_source_of_a_custom_environment_is_recorded() -> None:
    assert len(sources({"env_id": WALK}, Path())[WALK]) == 64
    assert sources({"env_id": "gymnax:CartPole-v1"}, Path()) == {}


def test_gpu_task_is_checked_anywhere_but_runs_on_gpus_only() -> None:
    """In a new process, because JAX is set up once."""
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    program = f"""
    from hpc_es.core.errors import ConfigError
    from hpc_es.tasks.jax_episodes.task import Options, build
    task = build(Options(env_id={WALK!r}, platform="gpu"))
    assert task.spaces.observations.size == 2
    try:
        task.require_device()
    except ConfigError as error:
        print(error)
    """
    done = python(script(program), env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.stdout.startswith(
        "task.platform: is gpu, but JAX already computes on the cpu in this process"
    ), str(done)


@pytest.mark.parametrize("command", ["check", "sbatch"])
@pytest.mark.parametrize("kind", ["jax_episodes", "network"])
def test_config_for_gpus_is_checked_where_jax_has_none(
    kind: str, command: str, tmp_path: Path
) -> None:
    """Also that of a custom network, which a check otherwise lets act."""
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    parts = {
        "jax_episodes": f'task: {{kind: jax_episodes, env_id: "{WALK}"}}',
        "network": "task: {env_id: CartPole-v1}\npolicy: {kind: network, network: 'tests.helpers.own_networks:plain'}",
    }
    path = tmp_path / "gpu.yaml"
    path.write_text(f"{parts[kind]}\ndevice: gpu\nstop: {{generations: 1}}\n")
    words = [command, str(path), *(["--dry-run"] if command == "sbatch" else [])]
    done = python(["-m", "hpc_es", *words], env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.status == 0, str(done)
    assert "config is valid: gpu" in done.stdout + done.stderr
    if not jax_setup.has_cuda():
        assert (
            "WARNING: device is gpu, but JAX is installed here without CUDA support"
            in done.stdout + done.stderr
        )
    assert [item.name for item in tmp_path.iterdir()] == ["gpu.yaml"]
