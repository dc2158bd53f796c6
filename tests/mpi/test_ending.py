"""The end of a program waits for what user code has left running, but not for long,
and keeps its status.
"""

from __future__ import annotations

import sys

import pytest

from tests.helpers.harness import Job, mpiexec, python, script

PROGRAM = """
    import atexit, multiprocessing, os, signal, sys, threading, time
    from hpc_es.mpi import ending
    from hpc_es.mpi.connect import connect
    from hpc_es.mpi.guard import guarded

    ending.END_SECONDS = 0.5

    def wait():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(100)

    def body():
        connect()
        {lines}
        return 75

    if __name__ == "__main__":
        print("text")
        guarded(body)
"""
LEFT = {
    "thread": (
        'threading.Thread(target=time.sleep, args=(100,), name="of sim").start()',
        "thread of sim",
    ),
    "child": (
        'multiprocessing.Process(target=wait, name="of sim").start()',
        "process of sim (pid ",
    ),
    "daemon": (
        'multiprocessing.Process(target=wait, name="of sim", daemon=True).start()',
        "process of sim (pid ",
    ),
    "exit handler": ("atexit.register(time.sleep, 100)", "an exit handler"),
}


@pytest.mark.parametrize("kind", LEFT)
def test_program_names_and_ends_what_is_left(kind: str) -> None:
    lines, named = LEFT[kind]
    with Job([sys.executable, *script(PROGRAM.format(lines=lines))]) as job:
        job.process.wait(30)
        assert job.alive() == []
        done = job.wait()
    assert done.status == 75 and not done.timed_out and done.seconds < 15, str(done)
    assert f"0.5 s later this is left: {named}" in done.stderr and done.stdout == "text\n", str(
        done
    )


@pytest.mark.long
def test_ranks_end_with_the_status_of_the_job() -> None:
    done = mpiexec(2, script(PROGRAM.format(lines=LEFT["thread"][0])), 30)
    assert done.status == 75 and not done.timed_out, str(done)
    assert "has ended, and 0.5 s later this is left: thread of sim" in done.stderr
    assert "hpc_es: rank " in done.stderr


def test_a_rank_that_leaves_something_behind_does_not_end_the_others() -> None:
    lines = """
        if connect().rank == 1:
            closing.close("simulator", lambda: time.sleep(100))
        else:
            atexit.register(time.sleep, 0.4)"""
    program = PROGRAM.replace(
        "ending.END_SECONDS", "ending.END_SECONDS = closing.CLOSE_SECONDS"
    ).format(lines=lines)
    program = program.replace(
        "from hpc_es.mpi import ending",
        "from hpc_es.core import closing; from hpc_es.mpi import ending",
    )
    done = mpiexec(3, script(program), 30)
    assert done.status == 75 and not done.timed_out and "Killed" not in done.stderr + done.stdout, (
        str(done)
    )
    assert "simulator: close() has not returned" in done.stderr


def test_children_that_end_in_time_are_waited_for() -> None:
    lines = "multiprocessing.Process(target=time.sleep, args=(0.2,)).start()"
    done = python(script(PROGRAM.format(lines=lines)), 30)
    assert (done.status, done.stdout, done.stderr) == (75, "text\n", ""), str(done)


SIM = """from hpc_es.core import closing
        closing.CLOSE_SECONDS = 0.1
        class Sim:
            def close(self): time.sleep(100)
            def __del__(self, sleep=time.sleep): sleep(100)
        closing.close("sim", Sim().close)"""


def test_objects_that_could_not_be_closed_are_not_deleted() -> None:
    done = python(script(PROGRAM.format(lines=SIM)), 30)
    assert done.status == 75 and done.seconds < 15, str(done)
    assert "sim: close() has not returned within 0.1 s" in done.stderr
