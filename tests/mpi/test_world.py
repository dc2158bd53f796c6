"""The world, on real ranks: scripts assert on every rank,
and a failing rank ends the job with a status.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpc_es.mpi import launch, world
from hpc_es.mpi.connect import library_name
from hpc_es.mpi.world import decode, encode, from_words, to_words
from tests.helpers.harness import Finished, mpiexec, python, script

BOTH = pytest.mark.parametrize("ranks", [1, 2, 3])

HEAD = """
import os, sys, time
from pathlib import Path
import numpy as np
from hpc_es.mpi import shared_memory as shared
from hpc_es.mpi.guard import guarded
from hpc_es.mpi.connect import connect
"""


def run(ranks: int, body: str) -> Finished:
    """Run the lines of `body` as a guarded function of `world` and `rank`."""
    lines = "".join(f"    {line}\n" for line in script(body)[1].splitlines())
    start = "def body():\n    world = connect(); rank, size = world.rank, world.size\n"
    code = f"{HEAD}\n{start}{lines}    return 0\nguarded(body)"
    done = mpiexec(ranks, ["-c", code], timeout_seconds=30)
    assert done.status == 0, str(done)
    return done


@pytest.mark.sampled(4)
@BOTH
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "<f8,<i4"])
def test_broadcast_gives_every_rank_the_array_of_rank_0(ranks: int, dtype: str) -> None:
    run(
        ranks,
        f"""
        sent = (np.arange(6000).astype("uint8").repeat(np.dtype("{dtype}").itemsize).view("{dtype}")).reshape(60, 100)
        array = sent.copy() if rank == 0 else np.zeros_like(sent)
        world.broadcast(array)
        assert array.tobytes() == sent.tobytes()
        number = np.array(rank + 7); world.broadcast(number); assert number == 7
        world.broadcast(np.zeros(0))
        """,
    )


def test_broadcast_of_a_large_array_is_sent_in_pieces() -> None:
    run(
        2,
        """
        import hpc_es.mpi.world as module
        module.MAX_BROADCAST_BYTES = 1000
        array = np.arange(3001.0) if rank == 0 else np.zeros(3001)
        world.broadcast(array)
        assert (array == np.arange(3001.0)).all()
        """,
    )


def test_broadcast_refuses_strides() -> None:
    with pytest.raises(AssertionError, match="C-contiguous"):
        world.World("none").broadcast(np.zeros((4, 4))[:, ::2])


@pytest.mark.sampled(3)
@BOTH
@pytest.mark.parametrize("text", ["", "Grüße, 世界\n"])
def test_broadcast_of_text(ranks: int, text: str) -> None:
    run(ranks, f"assert world.broadcast_text({text!r} if rank == 0 else None) == {text!r}")


@BOTH
def test_allgather_of_unequal_lengths(ranks: int) -> None:
    run(
        ranks,
        """
        for shift in range(size):  # each rank is once the empty one
            got = world.allgather(np.full((rank + shift) % size, rank, np.uint8))
            assert [list(each) for each in got] == [[r] * ((r + shift) % size) for r in range(size)]
        assert [each.size for each in world.allgather(np.zeros(0, np.uint8))] == [0] * size
        """,
    )


@BOTH
def test_gather_returns_all_arrays_on_rank_0_only(ranks: int) -> None:
    run(
        ranks,
        """
        got = world.gather(np.full(2 * rank, rank, np.uint8))
        if rank == 0:
            assert [list(each) for each in got] == [[r] * 2 * r for r in range(size)]
        else:
            assert got is None
        """,
    )


def test_messages_of_each_source_are_received_in_order() -> None:
    run(
        3,
        """
        seen = {1: [], 2: []}
        def take():
            got = world.receive_any()
            if got is not None:
                source, tag, values = got
                assert tag == 10 + source == 10 + values[0] and values.dtype == np.int64
                seen[source].append(int(values[1]))
            return len(seen[1]) + len(seen[2]) == 100
        if rank:
            for number in range(50):
                world.send(0, 10 + rank, [rank, number])
        else:
            world.wait_until(take)
            assert seen == {1: list(range(50)), 2: list(range(50))}
            assert world.receive_any() is None
        """,
    )


def test_all_messages_that_have_arrived_are_received_in_one_go(tmp_path: Path) -> None:
    """Rank 0 looks between the steps of an episode:
    with one message per look many ranks would wait for each other.
    """
    run(
        5,
        f"""
        sent = Path("{tmp_path}")
        if rank:
            world.send(0, 3, [rank])
            world.deliver(0.1)
            (sent / str(rank)).touch()
        else:
            while len(list(sent.iterdir())) < size - 1:
                time.sleep(0.01)
            received = []
            while (message := world.receive_any()) is not None:
                received.append(message[0])
            assert sorted(received) == [1, 2, 3, 4], received
        """,
    )


def test_buffers_of_completed_sends_are_released() -> None:
    run(
        2,
        """
        if rank == 0:
            for number in range(200):
                world.send(1, 1, [number])
            assert world.receive(1, 2) is not None  # rank 1 has received all of them
            world.wait_until(lambda: world.receive_any() is None and not world._sending)
        else:
            assert [int(world.receive(0, 1)[0]) for _ in range(200)] == list(range(200))
            world.send(0, 2, [])
        """,
    )


@BOTH
def test_receive_waits_for_its_tag(ranks: int) -> None:
    run(
        ranks,
        """
        following, preceding = (rank + 1) % size, (rank - 1) % size
        world.send(following, 1, [])
        world.send(following, 2, [rank, -(2**62)])
        assert list(world.receive(preceding, 2)) == [preceding, -(2**62)]
        assert list(world.receive(preceding, 1)) == []
        """,
    )


def test_waiting_rank_sleeps_counts_time_and_polls() -> None:
    run(
        2,
        """
        polls = []
        world.barrier()
        if rank == 0:
            time.sleep(2)
        cpu = time.process_time()
        world.waited = 0.0
        with world.polling(lambda: polls.append(1)):
            world.barrier()
        if rank == 1:
            cpu = time.process_time() - cpu
            assert cpu < 0.3, cpu
            assert 1.5 < world.waited < 10, world.waited
            assert len(polls) > 100
        """,
    )


def test_nested_waiting_is_counted_once_and_does_not_poll() -> None:
    alone = world.World("none")
    depth: list[int] = []

    def poll() -> None:
        depth.append(1)
        until = time.perf_counter() + 0.02
        alone.wait_until(lambda: time.perf_counter() > until)

    asked: list[float] = []

    def long_enough() -> bool:
        asked.append(time.perf_counter())
        return asked[-1] > asked[0] + 0.05

    begin = time.perf_counter()
    with alone.polling(poll):
        alone.wait_until(long_enough)
    elapsed = time.perf_counter() - begin
    # the wait begins after the first question and ends after the last one
    assert depth and asked[-1] - asked[1] <= alone.waited <= elapsed


@BOTH
def test_ranks_of_a_node_share_one_array(ranks: int) -> None:
    run(
        ranks,
        """
        array = world.shared_array("noise", 1000, np.float32)
        part, parts = world.filling(array)
        assert (part, parts) == (rank, size) and array.dtype == np.float32 and array.shape == (1000,)
        array[part::parts] = rank + 1
        world.node_barrier()
        assert (array == np.arange(1000) % size + 1).all()
        assert world.notes == []
        """,
    )


def test_each_rank_has_its_own_array_without_shared_memory() -> None:
    run(
        3,
        """
        shared.free_bytes = lambda: 1 << 20 if rank == 0 else 1 << 40  # the others hear of it
        array = world.shared_array("noise", 1 << 20)
        assert world.filling(array) == (0, 1)
        array[:] = rank
        world.node_barrier()
        assert (array == rank).all()
        assert len(world.notes) == 1 and "1 MiB free" in world.notes[0] and "4 MiB" in world.notes[0]
        """,
    )


@BOTH
def test_killed_job_leaves_no_shared_memory(ranks: int) -> None:
    run(
        ranks,
        """
        world.shared_array("noise", 1 << 20)
        world.barrier()
        mapped = [line for line in open("/proc/self/maps") if "/dev/shm/" in line]
        assert mapped and all("(deleted)" in line for line in mapped), mapped
        """,
    )


def test_table_of_ranks_names_every_rank() -> None:
    done = run(
        3,
        "assert world.table()[rank] == (rank, world.host, os.getpid())\nif rank == 0: print(world.table())",
    )
    assert len(set(re.findall(r"\((\d), '[^']+', (\d+)\)", done.stdout))) == 3


JOIN = HEAD + "guarded(lambda: print('joined', connect().size) or 0)"


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
@pytest.mark.parametrize("hide", ["", "import sys; sys.modules['mpi4py'] = None"])
def test_separate_worlds_of_one_task_each_are_refused(variable: str, hide: str) -> None:
    done = python(["-c", hide + JOIN], 20, {variable: "4"})
    assert done.status == 2 and "joined" not in done.stdout, str(done)
    assert "Traceback" not in done.stderr
    for remedy in ("srun --mpi=pmi2", "srun --mpi=list", "mpiexec -n RANKS", f"env -u {variable}"):
        assert remedy in done.stderr
    assert (
        ("there is no MPI library" in done.stderr)
        == ("pip install 'hpc_es[mpi]'" in done.stderr)
        == bool(hide)
    )


def test_only_one_of_several_separate_tasks_prints_the_error() -> None:
    done = python(["-c", JOIN], 20, {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"})
    assert (done.status, done.stdout, done.stderr) == (2, "", ""), str(done)


def test_mpi_library_without_pmix_is_refused_under_pmix() -> None:
    # MPICH's wheel itself ends the process, in MPI_Init
    done = python(["-c", JOIN], 20, {"PMIX_RANK": "1"})
    assert done.status != 0 and "joined" not in done.stdout, str(done)


def test_batch_shell_may_run_a_single_process() -> None:
    done = python(["-c", JOIN], 20, {"SLURM_NTASKS": "4"})
    assert done.status == 0 and "joined 1" in done.stdout, str(done)


def test_world_of_one_rank_needs_no_mpi() -> None:
    body = """
        import sys
        sys.modules["mpi4py"] = None
        import numpy as np
        from hpc_es.mpi.connect import connect
        world = connect()
        assert world.library.startswith("none: "), world.library
        assert (world.rank, world.size, world.node_rank, world.node_size) == (0, 1, 0, 1)
        assert world.broadcast_text("a") == "a" and [list(a) for a in world.allgather(np.ones(2, np.uint8))] == [[1, 1]]
        assert [list(a) for a in world.gather(np.ones(2, np.uint8))] == [[1, 1]]
        world.broadcast(np.zeros(3)); world.barrier(); world.node_barrier()
        world.send(0, 5, [1]); world.send(0, 6, [2])
        assert list(world.receive(0, 6)) == [2] and world.receive_any()[1] == 5 and world.receive_any() is None
        assert world.filling(world.shared_array("noise", 10)) == (0, 1)
        world.finalize(); world.finalize()
        assert connect() is world
        print("fine")
    """
    done = python(script(body))
    assert (done.status, done.stdout) == (0, "fine\n"), str(done)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: ...", "MPICH 5.0.2"),
        ("Open MPI v5.0.6, package: Open MPI root@x Distribution, ident: 5.0.6", "Open MPI 5.0.6"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS\n", "Intel(R) MPI 2021.13"),
        ("MPI VERSION    : CRAY MPICH version 8.1.28.29 (ANL base 3.4a2)", "CRAY MPICH 8.1.28.29"),
        ("Something else entirely", "Something else entirely"),
        ("", "unknown MPI"),
    ],
)
def test_name_of_the_mpi_library_is_recognised(said: str, name: str) -> None:
    assert library_name(said) == name


@pytest.mark.parametrize(
    ("variables", "tasks"),
    [
        ({}, (1, "")),
        ({"PMI_SIZE": "1", "PMIX_RANK": "0"}, (1, "")),
        ({"SLURM_NTASKS": "8"}, (1, "")),
        ({"SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "1"}, (4, "SLURM_STEP_NUM_TASKS")),
        ({"PMIX_RANK": "2"}, (3, "PMIX_RANK")),
        ({"PMI_SIZE": "many"}, (1, "")),
    ],
)
def test_number_of_tasks_is_read_from_launcher_variables(
    variables: dict[str, str], tasks: tuple[int, str]
) -> None:
    assert launch.tasks_started(variables) == tasks


def test_split_gives_independent_worlds() -> None:
    """Five ranks in three groups: 2, 2, 1; contiguous."""
    run(
        5,
        """
        group = world.split(3)
        told = [bytes(text).decode() for text in group.allgather(np.frombuffer(str(rank).encode(), np.uint8))]
        assert told == {0: ["0", "1"], 1: ["0", "1"], 2: ["2", "3"], 3: ["2", "3"], 4: ["4"]}[rank], told
        assert (group.rank, group.size) == (told.index(str(rank)), len(told))
        assert world.split(3) is group and world.split(1) is world
        group.send(0, 7, [rank])
        if group.rank == 0:
            assert [int(group.receive(source, 7)[0]) for source in range(group.size)] == [int(text) for text in told]
        world.barrier()
        """,
    )


def test_shared_array_of_the_same_name_is_reused() -> None:
    run(
        2,
        """
        first = world.shared_array("noise", 1000)
        assert world.shared_array("noise", 1000) is first
        assert world.shared_array("noise", 999) is not first and world.shared_array("other", 1000) is not first
        """,
    )


def test_ranks_with_a_core_each_wait_longer_before_they_sleep() -> None:
    run(
        2,
        """
        from dataclasses import replace
        from hpc_es.mpi import world as module
        mpi, node = world.comms.mpi, world.comms.node
        module.AVAILABLE_CORES = (3 + rank, 9999)  # of an unusual machine
        assert module.cores_of_node(mpi, node) == 2
        module.AVAILABLE_CORES = (7,)
        assert module.cores_of_node(mpi, node) == 1
        module.AVAILABLE_CORES = ()
        assert module.cores_of_node(mpi, node) == os.cpu_count()
        for own, seconds in ((True, module.OWN_CORE_SPIN_SECONDS), (False, module.SPIN_SECONDS)):
            world.use_comms(replace(world.comms, has_own_cores=own))
            assert world.spin_seconds == seconds
        """,
    )


DTYPES = st.sampled_from([np.dtype(t) for t in ("<f4", "<f8", ">f8", "i8", "u1", "?", "<i4")])
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))


@given(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=4))
def test_arrays_are_decoded_in_order(arrays: dict[str, np.ndarray]) -> None:
    coded = encode(arrays)
    assert coded.dtype == np.uint8
    again = decode(coded)
    assert list(again) == list(arrays)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        assert again[name].shape == array.shape
        assert again[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array", [np.arange(12).reshape(3, 4).T, np.arange(10)[::-3], np.array(3.5), np.zeros((0, 5))]
)
def test_arrays_of_any_memory_layout_are_encoded_by_value(array: np.ndarray) -> None:
    assert np.array_equal(decode(encode({"a": array, "b": array}))["b"], array)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"<f8", b"|O8"), (b"<f8", b"|S8"), (b"[3]", b"[9]"), (b"[3]", b"[-1]"), (b"[3]", b"[-3]")],
)
def test_header_that_does_not_fit_is_an_error(before: bytes, after: bytes) -> None:
    """The results of `encode` are also in checkpoints, which may be damaged."""
    coded = encode({"a": np.arange(3.0)}).tobytes()
    assert before in coded
    # the header keeps its length
    length = 8 + int.from_bytes(coded[:8], "little")
    header = coded[8:length].replace(before, after).strip().ljust(length - 8)
    changed = len(header).to_bytes(8, "little") + header
    changed += bytes(-len(changed) % 8) + coded[-24:]
    with pytest.raises(ValueError, match=r"expected a type of numbers|has .* bytes of|negative"):
        decode(np.frombuffer(changed, np.uint8))


def test_empty_mapping_is_encoded() -> None:
    assert decode(encode({})) == {}


def test_decoded_arrays_are_aligned_views() -> None:
    coded = encode(
        {"a": np.zeros(3, np.uint8), "b": np.arange(3.0), "c": np.arange(2, dtype=np.float32)}
    )
    decoded = decode(coded)
    assert len(coded) % 8 == 0
    for array in decoded.values():
        assert np.shares_memory(array, coded)
        assert (
            array.__array_interface__["data"][0] - coded.__array_interface__["data"][0]
        ) % 8 == 0


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_bytes_are_packed_into_64_bit_words(size: int) -> None:
    coded = np.arange(size).astype(np.uint8)
    words = to_words(coded)
    assert words.dtype == np.int64 and words[0] == size
    assert len(words) == 1 + -(-size // 8)
    assert (from_words(words) == coded).all() and len(from_words(words)) == size
