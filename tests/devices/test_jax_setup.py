"""Setup of JAX: the compilation cache, the GPU of a rank, flags and threads."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from hpc_es.core.errors import ConfigError
from hpc_es.devices import jax_setup

# The cache.


def test_jax_cache_is_private_for_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = Path(jax_setup.prepare_cache(tmp_path))
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert jax_setup.is_trusted(folder)


def test_jax_cache_owned_by_the_user_is_used(tmp_path: Path) -> None:
    folder = Path(jax_setup.prepare_cache(tmp_path))
    (folder / "code").write_text("compiled")
    assert Path(jax_setup.prepare_cache(tmp_path)) == folder
    assert (folder / "code").exists()


@pytest.mark.parametrize("trouble", ["copied", "open", "link"])
def test_jax_cache_writable_by_others_is_not_used(tmp_path: Path, trouble: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    folder = Path(jax_setup.prepare_cache(first))
    (folder / "code").write_text("anything")
    run = first
    if trouble == "open":
        folder.chmod(0o755)
    else:
        run = second
        there = second / jax_setup.NAME
        if trouble == "link":
            there.symlink_to(folder)
        else:
            there.mkdir(mode=0o700)
            for file in folder.iterdir():
                (there / file.name).write_bytes(file.read_bytes())
    result = Path(jax_setup.prepare_cache(run))
    assert not (result / "code").exists()
    assert jax_setup.is_trusted(result)
    assert not result.is_symlink()


def test_jax_cache_is_disabled_in_an_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert jax_setup.prepare_cache(tmp_path / "file") == ""


# The GPU; the test machine has none.


@dataclasses.dataclass
class Ranks:
    """The ranks of a node, as a rank knows them."""

    node_rank: int
    node_size: int
    size: int
    host: str = "node1"


def test_jax_ranks_share_gpus_if_there_are_more_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_setup, "joined", lambda: Ranks(1, 4, 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("SLURM_GPUS_PER_TASK", raising=False)
    with pytest.raises(ConfigError, match="node1 has 4 ranks and 2 GPUs: expected one rank for each"):
        jax_setup.gpu_of_this_rank()


def test_jax_rank_uses_the_gpu_of_its_local_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    for rank in range(2):
        monkeypatch.setattr(jax_setup, "joined", lambda rank=rank: Ranks(rank, 2, 2))
        assert jax_setup.gpu_of_this_rank() == rank


def test_jax_rank_uses_the_only_gpu_that_slurm_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_setup, "joined", lambda: Ranks(3, 4, 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    assert jax_setup.gpu_of_this_rank() == 0


def test_number_of_visible_gpus_is_read_from_the_environment(tmp_path: Path) -> None:
    assert jax_setup.visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1,5"}) == 3
    assert jax_setup.visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == 0
    assert jax_setup.visible_gpus({}, tmp_path / "none") == 0
    (tmp_path / "0000:01:00.0").mkdir()
    assert jax_setup.visible_gpus({}, tmp_path) == 1


def test_xla_flags_of_the_user_are_kept() -> None:
    environ = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true"}
    jax_setup._add_flags(environ, jax_setup.FLAGS["cpu"])
    assert environ["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=true"
    environ = {}
    jax_setup._add_flags(environ, jax_setup.FLAGS["cpu"])
    assert environ["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"


def test_setup_restores_the_cpu_affinity() -> None:
    before = os.sched_getaffinity(0)
    with jax_setup.one_core():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    assert np.all([os.sched_getaffinity(int(task.name)) == before for task in jax_setup.TASKS.iterdir()])
