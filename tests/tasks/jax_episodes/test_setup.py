"""What a user reads where compiled episodes cannot be, before the run; whose cache is used; which GPU a rank takes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.tasks.jax_episodes import Options, build, setup, sources
from hpc_es.tasks.jax_episodes.task import FinalObservationOptions, behaviour_indices
from hpc_es.training import check as checking
from hpc_es.training.build import missing_for_task
from tests.helpers.harness import python, script

WALK = "tests.helpers.jax_walk:walk"


def config(**task: Any) -> Any:
    return validate({"task": {"kind": "jax_episodes", "env_id": WALK, **task}, "policy": {"hidden_dims": [4]}})


def refused(**task: Any) -> str:
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    with pytest.raises(ConfigError) as caught:
        checking.check(config(**task))
    return str(caught.value)


def test_an_unknown_id_has_a_nearest_name() -> None:
    pytest.importorskip("gymnax", reason="gymnax is not installed here: make test-jax")
    text = refused(env_id="gymnax:Cartpole-v1")
    assert text.startswith("task.env_id: expected an environment of gymnax, such as 'Acrobot-v1', found 'Cartpole-v1'")
    assert text.endswith("did you mean 'CartPole-v1'?")


def test_an_id_without_a_library_is_refused() -> None:
    assert "expected 'library:name' with a library of 'gymnax', 'brax'" in refused(env_id="CartPole-v1")


def test_dictionary_observations_are_refused() -> None:
    text = refused(env_id="tests.helpers.jax_walk:dictionary")
    assert "expected an environment whose observation is one array" in text
    assert "a dict with the keys 'picture', 'state'" in text


def test_an_environment_without_a_time_limit_is_refused() -> None:
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


def test_video_of_compiled_episodes_is_refused() -> None:
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    with pytest.raises(UserError, match="is compiled and cannot be rendered"):
        build(Options(env_id=WALK)).environment("rgb_array")


@pytest.mark.parametrize("key", ["wrappers", "episode_timeout_seconds", "fresh_environment"])
def test_options_of_gymnasium_are_unknown_here(key: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key 'task.{key}'; it belongs to kind 'episodes'"):
        config(**{key: 1})


def test_an_algorithm_that_learns_from_trajectories_is_refused() -> None:
    given = {"task": {"kind": "jax_episodes", "env_id": WALK}, "algorithm": {"kind": "actor_critic"}}
    from hpc_es.training.build import search_mismatches

    ((key, text),) = search_mismatches(validate({**given, "policy": {"kind": "lstm"}}))
    assert key == "task.kind"
    assert "searches trajectories: expected 'bandits' or 'episodes'" in text


def test_a_missing_jax_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jax" else object())
    ((key, text),) = missing_for_task(given)
    assert key == "task.kind"
    assert text == "is jax_episodes, which needs jax, which is not installed: pip install 'hpc_es[jax]'"


def test_check_traces_and_compiles_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")

    monkeypatch.setattr(
        "hpc_es.tasks.jax_episodes.program.CompiledCall._compile_segment", lambda self: pytest.fail("it was compiled")
    )
    assert checking.check(config()) == 0
    assert "observations 2, actions Box of 1, parameters 17" in capsys.readouterr().out


def test_idle_lanes_are_warned_of() -> None:
    given = Options(env_id=WALK, lanes=16, jobs_per_call=2, episodes_per_job=3)
    assert list(given.warnings()) == [
        ("lanes", "is 16, but a call has 6 episodes: the other lanes are unused (try jobs_per_call: 22)")
    ]
    assert not list(dataclasses.replace(given, jobs_per_call=6).warnings())


def test_places_of_a_behaviour() -> None:
    assert behaviour_indices(None, 3) is None
    assert behaviour_indices(FinalObservationOptions(), 3) == (0, 1, 2)
    assert behaviour_indices(FinalObservationOptions(final_observation=(2,)), 3) == (2,)
    with pytest.raises(ConfigError, match="has 3, but an observation has 3 numbers"):
        behaviour_indices(FinalObservationOptions(final_observation=(0, 3)), 3)


def test_the_source_of_ones_own_environment_is_known() -> None:
    assert len(sources({"env_id": WALK}, Path())[WALK]) == 64
    assert sources({"env_id": "gymnax:CartPole-v1"}, Path()) == {}


# The cache.


def test_a_cache_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = Path(setup.prepare_cache(tmp_path))
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert setup.is_trusted(folder)


def test_a_cache_of_ones_own_is_kept(tmp_path: Path) -> None:
    folder = Path(setup.prepare_cache(tmp_path))
    (folder / "code").write_text("compiled")
    assert Path(setup.prepare_cache(tmp_path)) == folder
    assert (folder / "code").exists()


@pytest.mark.parametrize("trouble", ["copied", "open", "link"])
def test_a_cache_that_somebody_may_have_written_is_not_used(tmp_path: Path, trouble: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    folder = Path(setup.prepare_cache(first))
    (folder / "code").write_text("anything")
    run = first
    if trouble == "open":
        folder.chmod(0o755)
    else:
        run = second
        there = second / setup.NAME
        if trouble == "link":
            there.symlink_to(folder)
        else:
            there.mkdir(mode=0o700)
            for file in folder.iterdir():
                (there / file.name).write_bytes(file.read_bytes())
    found = Path(setup.prepare_cache(run))
    assert not (found / "code").exists()
    assert setup.is_trusted(found)
    assert not found.is_symlink()


def test_a_directory_that_cannot_be_written_has_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert setup.prepare_cache(tmp_path / "file") == ""


# The GPU, of which there is none here.


@dataclasses.dataclass
class Ranks:
    """What a rank knows of its node."""

    node_rank: int
    node_size: int
    size: int
    host: str = "node1"


def test_a_task_for_gpus_is_checked_anywhere_but_runs_on_them_only() -> None:
    """In a process of its own, as JAX is set up once."""
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    program = f"""
    from hpc_es.core.errors import ConfigError
    from hpc_es.tasks.jax_episodes import Options, build
    task = build(Options(env_id={WALK!r}, platform="gpu"))
    assert task.spaces.observations.size == 2
    try:
        task.require_device()
    except ConfigError as error:
        print(error)
    """
    done = python(script(program), env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.stdout.startswith("task.platform: is gpu, but JAX already computes on the cpu in this process"), str(
        done
    )


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "joined", lambda: Ranks(1, 4, 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("SLURM_GPUS_PER_TASK", raising=False)
    with pytest.raises(ConfigError, match="node1 has 4 ranks and 2 GPUs: expected one rank for each"):
        setup.gpu_of_this_rank()


def test_a_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    for rank in range(2):
        monkeypatch.setattr(setup, "joined", lambda rank=rank: Ranks(rank, 2, 2))
        assert setup.gpu_of_this_rank() == rank


def test_gpus_that_were_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "joined", lambda: Ranks(3, 4, 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    assert setup.gpu_of_this_rank() == 0


def test_visible_gpus(tmp_path: Path) -> None:
    assert setup.visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1,5"}) == 3
    assert setup.visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == 0
    assert setup.visible_gpus({}, tmp_path / "none") == 0
    (tmp_path / "0000:01:00.0").mkdir()
    assert setup.visible_gpus({}, tmp_path) == 1


def test_flags_of_the_user_stay() -> None:
    environ = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true"}
    setup._add_flags(environ, setup.FLAGS["cpu"])
    assert environ["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=true"
    environ = {}
    setup._add_flags(environ, setup.FLAGS["cpu"])
    assert environ["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"


def test_the_threads_may_use_all_cores_afterwards() -> None:
    before = os.sched_getaffinity(0)
    with setup.one_core():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    assert np.all([os.sched_getaffinity(int(task.name)) == before for task in setup.TASKS.iterdir()])
