"""Worlds that survive the loss of ranks: regrouping, shared arrays, start and end."""

from __future__ import annotations

import pytest

from hpc_es.mpi.connect import INIT_LIMIT
from hpc_es.mpi.fault_tolerance import node_position
from tests.helpers.harness import Finished, script
from tests.helpers.ulfm import HANG_SECONDS, needs_ulfm, start

HEAD = """
import dataclasses, os, signal, sys, time
import numpy as np
from hpc_es.mpi import fault_tolerance, shared_memory as mapped
from hpc_es.mpi.connect import connect
from hpc_es.mpi.fault_tolerance import enable_fault_tolerance, node_position
from hpc_es.mpi.world import Regroup
from hpc_es.mpi.guard import guarded

def die(number):
    if rank == number:
        os.kill(os.getpid(), signal.SIGKILL)

def lose(number):
    die(number)
    try:
        for _ in range(1000): world.barrier()
    except Exception as error:
        assert world.fault_handler.is_rank_loss(error), error
        return True
"""
BODY = """
def body():
    global world, rank
    world = connect()
    enable_fault_tolerance(world)
    rank = world.rank
"""


def run(ranks: int, text: str) -> Finished:
    """Run the lines of `text` as a guarded function of a world that outlives its ranks."""
    lines = "".join(f"    {line}\n" for line in script(text)[1].splitlines())
    with start(ranks, ["-c", f"{HEAD}{BODY}{lines}    return 0\nguarded(body)"]) as job:
        return job.wait(HANG_SECONDS)


def assert_well(done: Finished) -> None:
    assert done.status == 0 and not done.timed_out, str(done)


@needs_ulfm
def test_survivors_regroup_with_new_rank_numbers() -> None:
    done = run(
        4,
        """
        pids = [pid for _, _, pid in world.table()]
        assert world.fault_handler.regroup(is_done=True, can_continue=True) is Regroup.DONE
        assert lose(1) and world.fault_handler.regroup(is_done=False, can_continue=True) is Regroup.CONTINUE
        assert [pid for _, _, pid in world.table()] == [pids[0], pids[2], pids[3]]
        assert world.rank == {0: 0, 2: 1, 3: 2}[rank] and (world.size, world.node_rank) == (3, world.rank)
        assert [int(each[0]) for each in world.allgather(np.full(1, rank, np.uint8))] == [0, 2, 3]
        assert lose(0) and world.fault_handler.regroup(is_done=False, can_continue=True) is Regroup.RESTART
        assert world.broadcast_text("from 2" if world.rank == 0 else None) == "from 2" and world.size == 2
        assert lose(3) and world.fault_handler.regroup(is_done=False, can_continue=rank != 2) is Regroup.RESTART
        assert (world.rank, world.size, len(world.fault_handler.lost)) == (0, 1, 3)
        print("alone", rank)
        """,
    )
    assert_well(done)
    assert done.stdout == "alone 2\n"


@needs_ulfm
def test_finished_rank_rejoins_the_others() -> None:
    done = run(
        3,
        """
        die(2)
        through = rank == 0     # as if it had heard nothing of the loss
        if not through:
            assert lose(2)
        def poll(): raise RuntimeError("nobody looks for signals in a meeting")
        with world.polling(poll):
            assert world.fault_handler.regroup(through, can_continue=True) is Regroup.CONTINUE and world.size == 2
        assert world.fault_handler.regroup(is_done=True, can_continue=rank == 0) is Regroup.DONE
        """,
    )
    assert_well(done)


@needs_ulfm
def test_rank_waiting_for_a_live_rank_is_interrupted() -> None:
    done = run(
        3,
        """
        die(2)
        try:
            world.receive(0, 9) if rank else lose(2)  # rank 0 never sends that
        except Exception as error:
            assert rank == 1 and world.fault_handler.is_rank_loss(error)
        assert world.fault_handler.regroup(is_done=False, can_continue=True) is Regroup.CONTINUE
        """,
    )
    assert_well(done)


@needs_ulfm
def test_all_ranks_restart_if_one_cannot_continue() -> None:
    done = run(
        3,
        "assert lose(2) and world.fault_handler.regroup(is_done=False, can_continue=rank == 0) is Regroup.RESTART",
    )
    assert_well(done)


@needs_ulfm
@pytest.mark.parametrize("number", [0, 1])
def test_rank_can_die_while_ranks_regroup(number: int) -> None:
    done = run(
        4,
        f"""
        assert lose(3)
        die({number})
        assert world.fault_handler.regroup(is_done=False, can_continue=True) in (Regroup.CONTINUE, Regroup.RESTART)
        try:
            world.barrier()     # where that was seen before the renewal its end is the end of this
        except Exception as error:
            assert world.fault_handler.is_rank_loss(error)
            assert world.fault_handler.regroup(is_done=False, can_continue=True)
        assert world.size == 2
        """,
    )
    assert_well(done)


@needs_ulfm
def test_shared_arrays_are_mapped_files_without_a_name() -> None:
    done = run(
        3,
        """
        array = world.shared_array("it", 300, np.float32)
        part, parts = world.filling(array)
        assert (part, parts) == (rank, 3)
        array[part::parts] = rank
        world.node_barrier()
        assert (array == np.tile([0, 1, 2], 100)).all()
        names = [line.split()[5:] for line in open("/proc/self/maps") if "hpc_es" in line and "/memfd" in line]
        assert names == [["/memfd:hpc_es", "(deleted)"]], names

        world.comms.memory.leaders = [0, 1, 0]  # as if rank 1 were on a node of its own
        world.use_comms(dataclasses.replace(world.comms, node_position=node_position([0, 1, 0], rank)))
        apart = world.shared_array("apart", 10)
        assert world.filling(apart) == [(0, 2), (0, 1), (1, 2)][rank]
        apart[:] = -1
        world.barrier()
        apart[rank] = rank
        world.barrier()
        assert list(apart[:3]) == ([-1, 1, -1] if rank == 1 else [0, -1, 2]) and world.notes == []
        """,
    )
    assert_well(done)


@needs_ulfm
@pytest.mark.parametrize("unseen", ["0 /proc/{}/fd/{}", "{} /no/such/file/{}"])
def test_ranks_have_private_arrays_if_one_cannot_map_the_file(unseen: str) -> None:
    done = run(
        3,
        f"""
        if rank == 0:
            mapped._location = lambda descriptor: {unseen!r}.format(os.getpid(), descriptor)  # another inode or no file
        assert world.filling(world.shared_array("private", 10)) == (0, 1)
        assert len(world.notes) == 1 and "cannot see each other's files" in world.notes[0]
        """,
    )
    assert_well(done)


@needs_ulfm
def test_array_is_shared_by_all_ranks_or_by_none() -> None:
    done = run(
        3,
        """
        if rank == 2:
            mapped._map_file = lambda location, size: None
        assert world.filling(world.shared_array("private", 10)) == (0, 1)
        """,
    )
    assert_well(done)


@needs_ulfm
def test_shared_array_that_some_ranks_lack_is_created_again() -> None:
    done = run(
        3,
        """
        world.shared_array("it", 10)
        die(2)
        if rank == 0:
            world._shared["half 10 float32"] = np.empty(10, np.float32)  # the others did not get that far
        assert lose(2) and world.fault_handler.regroup(is_done=False, can_continue=False) is Regroup.RESTART
        again = world.shared_array("half", 10, np.float32)
        assert world.filling(again) == (rank, 2)
        """,
    )
    assert_well(done)


@needs_ulfm
def test_exception_on_a_rank_is_not_a_lost_rank() -> None:
    done = run(3, "if rank == 1: raise ValueError('a bug')\nworld.barrier()")
    assert done.status != 0 and not done.timed_out, str(done)
    assert "[rank 1 of 3 on " in done.stderr and "ValueError: a bug" in done.stderr


@needs_ulfm
def test_rank_can_die_after_the_end() -> None:
    done = run(
        3,
        "assert world.fault_handler.regroup(is_done=True, can_continue=True) is Regroup.DONE\ndie(1)",
    )
    assert_well(done)
    assert done.seconds < HANG_SECONDS / 2


@needs_ulfm
def test_death_of_a_rank_during_the_start_ends_the_job() -> None:
    before = (
        f"os.environ['{INIT_LIMIT}'] = '4'\nrank = int(os.environ['OMPI_COMM_WORLD_RANK'])\ndie(1)"
    )
    with start(3, ["-c", f"{HEAD}\n{before}\n{BODY}    return 0\nguarded(body)"]) as job:
        done = job.wait(HANG_SECONDS)
    assert done.status != 0 and not done.timed_out, str(done)
    assert "connect.py" in done.stderr, str(done)


def test_node_and_rank_in_node_follow_from_the_leaders() -> None:
    assert [node_position([0, 1, 0, 1, 1], rank) for rank in range(5)] == [
        (0, 2),
        (0, 3),
        (1, 2),
        (1, 3),
        (2, 3),
    ]
