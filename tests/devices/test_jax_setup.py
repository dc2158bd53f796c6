"""Setup of JAX: the compilation cache, the device, flags and threads."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from hpc_es.core.interfaces import RunContext
from hpc_es.devices import jax_setup
from hpc_es.devices.backend import USED_BEFORE
from tests.helpers.harness import python, script

# Compilation.
from tests.helpers.runs import wait_for


@pytest.mark.parametrize(
    ("rank", "node_rank", "before"), [(0, 0, 0), (1, 1, 2), (2, 0, 1), (3, 1, 2)]
)
def test_one_rank_per_node_compiles_before_the_others(
    rank: int, node_rank: int, before: int, tmp_path: Path
) -> None:
    """There are two nodes with two ranks each: rank 0, then the first rank of the other node,
    then the others.
    """
    events: list[str] = []
    run = RunContext(
        tmp_path, rank, 4, lambda make: make(), node_rank, lambda: events.append("barrier")
    )
    jax_setup.compile_in_turn(run, lambda: events.append("compile"))
    assert events == ["barrier"] * before + ["compile"] + ["barrier"] * (3 - before)


def test_messages_are_answered_while_the_worker_thread_computes() -> None:
    polls: list[float] = []

    def compute() -> int:
        wait_for(lambda: len(polls) > 10)
        return 7

    assert jax_setup.in_thread(compute, lambda: polls.append(time.perf_counter())) == 7


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


@pytest.mark.parametrize("other", ["link", "directory"])
def test_folder_that_takes_the_place_of_a_new_jax_cache_is_not_written_to(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write the run may exchange it, also for one in which the mark is a link."""
    private, trap, made = tmp_path / "private", tmp_path / "trap", os.mkdir
    private.write_text("keep")
    trap.mkdir(mode=0o755)
    (trap / jax_setup.MARK).symlink_to(private)

    def exchanged(name: str, mode: int, *, dir_fd: int) -> None:
        made(name, mode, dir_fd=dir_fd)
        (tmp_path / name).rename(tmp_path / "gone")
        if other == "link":
            (tmp_path / name).symlink_to(trap)
        else:
            trap.rename(tmp_path / name)

    monkeypatch.setattr(os, "mkdir", exchanged)
    assert jax_setup.prepare_cache(tmp_path) == ""
    assert private.read_text() == "keep"
    assert (trap if other == "link" else tmp_path / jax_setup.NAME).stat().st_mode & 0o777 == 0o755


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


def test_jax_keeps_the_cache_that_was_checked(tmp_path: Path) -> None:
    """Another folder in its place, which may be a stranger's, is not read."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_compilation_cache_dir
    folder = Path(jax_setup.prepare_cache(tmp_path))
    jax_setup.use_cache(str(folder))
    used = Path(jax.config.jax_compilation_cache_dir)
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    try:
        (used / "code").write_text("compiled")
        assert [path.name for path in tmp_path.glob("*/*/code")] == ["code"]
        assert used.resolve().parent == tmp_path / "moved" and not [*folder.iterdir()]
        jax_setup.use_cache(str(folder))  # not this user's mark: the first one stays
        assert jax.config.jax_compilation_cache_dir == str(used)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_jax_cache_is_disabled_in_an_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert jax_setup.prepare_cache(tmp_path / "file") == ""


# The device.

FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


def jax_python(program: str, **env: str) -> str:
    """Return the output of a program in its own process, since JAX is set up once per process."""
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    # other tests set it in this process
    done = python(script(program), env={"XLA_FLAGS": "", **env})
    assert done.status == 0, str(done)
    return done.stdout


def test_compiled_episodes_use_the_chosen_device_with_identical_returns() -> None:
    """Four CPU devices stand for GPUs; the calls run in another thread."""
    program = """
    import os
    from hpc_es.devices import jax_setup
    jax = jax_setup.configured_jax("cpu")
    jax_setup.compute_on(jax.devices()[int(os.environ["NUMBER"])])
    from tests.helpers.jax_playing import parts, played
    made = parts((("hidden_dims", (4,)),))
    import numpy as np
    theta = np.linspace(-1, 1, 2 * made[1].layout.size, dtype=np.float32).reshape(2, -1)
    print(played(made, theta, [7, 8]).rows["return_"].tobytes().hex())
    (program,) = made[0]._programs.values()
    carry, _ = program._one_segment(program._carry(), program.no_inputs(), np.int32(1))
    print(*{device.id for leaf in jax.tree.leaves(carry) for device in leaf.devices()})
    """
    usual, first = jax_python(program, NUMBER="0").split()
    chosen, third = jax_python(program, NUMBER="2", **FOUR).split()
    assert (first, third) == ("0", "2")
    assert usual == chosen


@pytest.mark.parametrize("number", [0, 1])
def test_jax_that_was_used_before_is_named(number: int) -> None:
    """Its threads are those of all cores, and products that they divide have other last bits."""
    program = """
    import os, warnings
    import jax
    if os.environ["NUMBER"] == "1":
        jax.numpy.ones(3)
    from hpc_es.devices import jax_setup
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax_setup.configured_jax("cpu")
        jax_setup.configured_jax("cpu")
    print(*[warning.message for warning in caught if warning.category is RuntimeWarning])
    """
    assert (
        jax_python(program, NUMBER=str(number))
        == ["", USED_BEFORE.format(title="JAX")][number] + "\n"
    )


def test_second_device_in_one_process_is_refused() -> None:
    program = """
    from hpc_es.core.errors import ConfigError
    from hpc_es.devices import jax_setup
    jax_setup.configured_jax("cpu")
    jax_setup.choose("gpu", 0)
    try:
        jax_setup.configured_jax()
    except ConfigError as error:
        print(error)
    """
    text = "device: is gpu, but JAX already computes on the cpu in this process, which cannot be changed: start a new one"
    assert jax_python(program) == f"{text}\n"


def test_unusable_gpu_is_reported_with_the_device_of_jax() -> None:
    program = """
    from hpc_es.core.errors import ConfigError
    from hpc_es.devices import jax_setup
    jax_setup.choose("gpu", 1)
    try:
        jax_setup.configured_jax()
    except ConfigError as error:
        print(error)
    import os
    print(os.environ["XLA_FLAGS"], os.environ["CUBLAS_WORKSPACE_CONFIG"], os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"])
    import jax
    print(jax.config.values["jax_cuda_visible_devices"], jax.config.jax_default_matmul_precision)
    """
    error, flags, visible = jax_python(program, CUDA_VISIBLE_DEVICES="0,1").splitlines()
    reason = (
        "finds no such device"
        if jax_setup.has_cuda()
        else "computes on the cpu: its CUDA support is missing"
    )
    assert error.startswith(f"device: is gpu, but JAX {reason}")
    expected = "--xla_gpu_deterministic_ops=true --xla_gpu_exclude_nondeterministic_ops=true --xla_gpu_autotune_level=0"
    assert flags == f"{expected} :4096:8 false"
    assert visible == "1 highest"


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
    assert np.all(
        [os.sched_getaffinity(int(task.name)) == before for task in jax_setup.TASKS.iterdir()]
    )


def test_directory_that_never_was_a_cache_is_kept(tmp_path: Path) -> None:
    """Whoever may write the run may give this name to a private directory of the user in it."""
    (tmp_path / jax_setup.NAME).mkdir(mode=0o700)
    (tmp_path / jax_setup.NAME / "notes").write_text("private")
    assert jax_setup.prepare_cache(tmp_path) == ""
    assert (tmp_path / jax_setup.NAME / "notes").read_text() == "private"
