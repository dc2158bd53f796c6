"""An exception, exit or signal on one rank ends the job within seconds,
with a status and a message.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from hpc_es.core.handlers import HANDLED
from hpc_es.mpi.guard import Signals
from tests.helpers import runs
from tests.helpers.harness import mpiexec, python, script, start

HEAD = """
import os, sys, time
from hpc_es.core.errors import Exit, RunError, UserError
from hpc_es.mpi.guard import guarded
from hpc_es.mpi.connect import connect

def others_wait(world):
    world.barrier()
    world.barrier()  # never comes
    return 0
"""


def guarded(lines: str) -> list[str]:
    """A script whose guarded body is these lines."""
    indented = "".join(f"    {line}\n" for line in script(lines)[1].splitlines())
    return ["-c", f"{HEAD}\ndef body():\n{indented}\nguarded(body)"]


FAILING = """
    world = connect()
    world.barrier()
    if world.rank == 2:
        {statement}
    world.barrier()
    return 0
"""


def test_exception_on_one_rank_ends_all_ranks_and_names_it() -> None:
    done = mpiexec(3, guarded(FAILING.format(statement="raise ValueError('boom\\nbang')")), 20)
    assert done.status == 1 and done.seconds < 10 and not done.timed_out, str(done)
    said = [line for line in done.stderr.splitlines() if line.startswith("[rank 2 of 3 on ")]
    assert any("ValueError: boom" in line for line in said), done.stderr
    assert any(line.endswith("] bang") for line in said)
    assert any("Traceback" in line for line in said)
    assert f"on {os.uname().nodename} pid " in said[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("statement", "status", "text"),
    [
        ("raise UserError('wrong key')", 2, "] hpc_es: wrong key"),
        ("raise RunError('disk full')", 1, "] hpc_es: disk full"),
        ("raise KeyboardInterrupt", 130, "] interrupted"),
        ("sys.exit('bye')", 1, "but raised SystemExit: bye (<string>:"),
        ("sys.exit(75)", 1, "but raised SystemExit: 75 (<string>:"),
        ("sys.exit()", 1, "but raised SystemExit (<string>:"),
        ("raise BaseException('base')", 1, "but raised BaseException: base (<string>:"),
        (
            "import hpc_es.no_such_module",
            1,
            "] ModuleNotFoundError: No module named 'hpc_es.no_such_module'",
        ),
        ("world.abort(75)", 75, ""),
    ],
)
def test_any_exit_of_one_rank_ends_all_ranks(statement: str, status: int, text: str) -> None:
    done = mpiexec(3, guarded(FAILING.format(statement=statement)), 20)
    assert done.status == status and done.seconds < 10 and not done.timed_out, str(done)
    assert text in done.stderr
    assert ("Traceback" in done.stderr) == ("Error: No module" in text)


@pytest.mark.parametrize("rank", [0, 1])
def test_failing_import_before_mpi_ends_all_ranks(rank: int) -> None:
    body = f"""
        if os.environ["PMI_RANK"] == "{rank}":
            import hpc_es.no_such_module
        return others_wait(connect())
    """
    done = mpiexec(3, guarded(body), 20)
    assert done.status == 1 and done.seconds < 10 and not done.timed_out, str(done)
    assert f"[rank {rank} of 3 on " in done.stderr and "no_such_module" in done.stderr


@pytest.mark.parametrize("joined", [False, True])
def test_error_of_all_ranks_is_shown_once(joined: bool, tmp_path: Path) -> None:
    body = f"""
        import pathlib, time
        if {joined}:
            connect().barrier()
        else:  # on a loaded machine they start at different times
            here = pathlib.Path({str(tmp_path)!r})
            (here / os.environ["PMI_RANK"]).touch()
            while len(list(here.iterdir())) < 3:
                time.sleep(0.01)
        raise ValueError('boom')
    """
    done = mpiexec(3, guarded(body), 20)
    assert done.status == 1 and not done.timed_out, str(done)
    assert done.stderr.count("ValueError: boom") == 1, done.stderr
    assert "[rank 0 of 3 on " in done.stderr


def test_user_error_on_rank_0_prints_its_message_only() -> None:
    body = """
        world = connect()
        if world.rank == 0:
            raise UserError("sigma: expected > 0, found -1")
        return others_wait(world)
    """
    done = mpiexec(3, guarded(body), 20)
    assert done.status == 2 and not done.timed_out, str(done)
    assert (
        done.stderr.startswith("hpc_es: sigma: expected > 0, found -1\n")
        and "Traceback" not in done.stderr
    )


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("status", [0, 2, 75])
def test_job_has_the_status_that_all_ranks_return(ranks: int, status: int) -> None:
    done = mpiexec(ranks, guarded(f"connect()\nreturn {status}"), 20)
    assert (done.status, done.stderr) == (status, ""), str(done)
    assert "BAD TERMINATION" not in done.stdout


def test_finalizing_twice_is_harmless() -> None:
    done = mpiexec(2, guarded("connect().finalize()\nreturn 75"), 20)
    assert (done.status, done.stdout, done.stderr) == (75, "", ""), str(done)


def test_help_on_all_ranks_has_status_0() -> None:
    done = mpiexec(3, guarded("raise Exit(0)"), 20)
    assert (done.status, done.stdout, done.stderr) == (0, "", ""), str(done)


def test_rank_that_leaves_without_the_guard_does_not_hang_at_exit() -> None:
    body = "world = connect()\nif world.rank == 1: raise ValueError('unguarded')\nworld.barrier()"
    done = mpiexec(3, ["-c", f"{HEAD}\n{body}"], 20)
    assert done.status != 0 and not done.timed_out, str(done)


@pytest.mark.parametrize(
    ("statement", "status", "text"),
    [
        ("raise UserError('wrong key')", 2, "hpc_es: wrong key\n"),
        ("connect(); raise RunError('disk full')", 1, "hpc_es: disk full\n"),
        ("raise Exit(0)", 0, ""),
        ("return 75", 75, ""),
    ],
)
@pytest.mark.parametrize("launched", [False, True])
def test_single_process_has_the_status_and_message_of_the_error(
    statement: str, status: int, text: str, launched: bool
) -> None:
    done = mpiexec(1, guarded(statement), 20) if launched else python(guarded(statement), 20)
    assert (done.status, done.stderr) == (status, text), str(done)


def test_exception_in_a_single_process_is_a_plain_traceback() -> None:
    done = python(guarded("connect()\nraise ValueError('boom')"), 20)
    assert done.status == 1
    assert done.stderr.startswith("Traceback") and done.stderr.endswith("ValueError: boom\n")
    assert "guard.py" not in done.stderr


WAITING = """
    from hpc_es.mpi.guard import Signals
    world, signals = connect(), Signals()
    world.barrier()
    print(f"rank {world.rank} is ready", flush=True)
    if world.rank == 0:
        world.wait_until(lambda: signals.count() == 1)
    world.barrier()
    world.wait_until(lambda: signals.count() == 1)
    print(f"rank {world.rank} saw {signals.count()} {signals.name}", flush=True)
    return 75
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_ends_the_job(rank: int) -> None:
    with start(3, guarded(WAITING)) as job:
        for item in range(3):
            job.wait_for_output(f"rank {item} is ready")
        pids, since = job.pids(), time.monotonic()
        assert sorted(pids) == [0, 1, 2]
        job.signal(rank, signal.SIGKILL)
        done = job.wait(20)
    assert done.status == 9 and not done.timed_out and time.monotonic() - since < 10, str(done)
    # Hydra kills the others with the same signal, and names the first that it finds killed: not
    # always the right one.
    assert any(f"PID {pid} RUNNING AT" in done.stdout for pid in pids.values()), str(done)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_to_mpiexec_reach_waiting_ranks(number: signal.Signals) -> None:
    with start(3, guarded(WAITING)) as job:
        for item in range(3):
            job.wait_for_output(f"rank {item} is ready")
        job.process.send_signal(number)
        done = job.wait(20)
    assert done.status == 75 and not done.timed_out, str(done)
    for rank in range(3):
        assert f"rank {rank} saw 1 {number.name}" in done.stdout


def test_signals_are_counted_and_handlers_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {item: signal.getsignal(item) for item in HANDLED}
    signals = Signals()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (signals.count(), signals.name) == (1, "SIGUSR1")
        os.kill(os.getpid(), signal.SIGUSR1)  # delivered twice
        assert signals.count() == 1
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.count(), signals.name) == (2, "SIGTERM")
        monkeypatch.setattr("hpc_es.mpi.guard.REPEAT_SECONDS", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.count() == 3
    finally:
        signals.restore()
    assert {item: signal.getsignal(item) for item in HANDLED} == before


def test_failing_test_leaves_no_process() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        start(2, guarded("connect(); time.sleep(100); return 0")) as job,
    ):
        while len(job.pids()) < 2:
            time.sleep(0.01)
        raise ZeroDivisionError
    assert job.pids() == {} and job.process.poll() is not None


def test_harness_ends_hanging_processes() -> None:
    body = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nconnect(); time.sleep(100); return 0"
    with start(2, guarded(body)) as job:
        done = job.wait(2)
        assert done.timed_out and done.seconds < 5
        assert job.pids() == {}


AT_EXIT = """
    import signal
    import hpc_es.mpi.guard as guard
    guard.by_srun = lambda environ: True

    class Slow:
        def __del__(self, sleep=time.sleep):
            sleep(1.5)

    sys.modules["slow"] = Slow()  # deleted after Python has removed its signal handlers
    guard.Signals()
    os.kill(os.getpid(), signal.SIGTERM)
    return 75
"""


def test_timer_of_hang_checks_does_not_end_a_process_that_exits_slowly() -> None:
    """Under srun, SIGTERM starts a timer whose default action would be the exit status -14."""
    done = python(guarded(AT_EXIT), 30)
    assert done.status == 75 and done.seconds > 1.5, str(done)


def test_job_ends_if_a_rank_does_not_reach_mpi_init() -> None:
    lines = """
    if os.environ["PMI_RANK"] == "1":
        time.sleep(100)
    connect()
    return 0
    """
    done = mpiexec(2, guarded(lines), 60, {"HPC_ES_MPI_INIT_SECONDS": "1.5"})
    # mpiexec kills rank 1 as soon as rank 0 has closed its connection, before it has its status
    assert done.status in (1, 9) and not done.timed_out, str(done)
    assert "Timeout (0:00:01.5" in done.stderr and "in connect" in done.stderr, done.stderr


@pytest.mark.parametrize("seconds", ["soon", "0", "nan", "inf"])
def test_limit_of_mpi_init_must_be_a_number(seconds: str) -> None:
    done = python(guarded("connect()\nreturn 0"), 60, {"HPC_ES_MPI_INIT_SECONDS": seconds})
    assert done.status == 2 and f"positive number of seconds, not '{seconds}'" in done.stderr, str(
        done
    )


@pytest.mark.parametrize("statement", ["sys.exit(0)", "sys.exit()", "raise GeneratorExit"])
def test_code_of_the_user_that_ends_a_single_process_is_an_error(statement: str) -> None:
    done = python(guarded(statement), 20)
    name = "GeneratorExit" if "Generator" in statement else "SystemExit"
    assert done.status == 1 and len(done.stderr.splitlines()) == 1, str(done)
    assert done.stderr.startswith(
        f"hpc_es: code of yours must not end the program, but raised {name}"
    )


STARTING = """
    from hpc_es.mpi.guard import Signals
    Signals()
    print("ready", flush=True)
    while True:  # such as the constructor of a simulator that does not start
        try:
            time.sleep(100)
        except Exception:
            pass
"""


def test_second_signal_ends_a_job_that_does_not_get_to_its_first_generation() -> None:
    with start(1, guarded(STARTING)) as job:
        job.wait_for_output("ready")
        (pid,) = job.pids().values()
        os.kill(pid, signal.SIGTERM)
        runs.wait_for(
            lambda: "SIGTERM: the run stops after the generation in progress" in job.stderr
        )
        os.kill(pid, signal.SIGINT)
        done = job.wait(20)
    assert done.status == 75 and not done.timed_out, str(done)
    assert "before the first generation: nothing was done" in done.stderr


def test_exit_handlers_and_exception_hook_are_not_those_of_a_forked_child() -> None:
    """It would finalize MPI, or end all ranks, for its parent."""
    lines = """
    import hpc_es.mpi.guard as guard
    guard.install_hooks()
    world = connect()
    for fails in (False, True):
        child = os.fork()
        if child == 0 and fails:
            raise ValueError("of the child")
        if child == 0:
            sys.exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == (1 if fails else 3), status
        world.barrier()
    sys.stdout.write(f"end {world.rank}\\n")  # in one piece, since both ranks write
    """
    done = mpiexec(2, ["-c", f"{HEAD}\n{script(lines)[1]}"], 30)
    assert done.status == 0 and not done.timed_out, str(done)
    assert (
        "end 0" in done.stdout
        and "end 1" in done.stdout
        and "ValueError: of the child" in done.stderr
    )


EXITS = """
import multiprocessing, os

def cost(x):
    if x[0] > 0.1:
        os._exit(0)
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
    child.start()
    child.join()
    assert child.exitcode == 3
    if os.fork() == 0:
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 4
    return float(x @ x)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [1, 2])
def test_code_that_leaves_by_force_fails_its_evaluation(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(EXITS)
    config = tmp_path / "c.yaml"
    config.write_text(
        "task: {kind: function, function: 'leaving:cost', dimension: 2}\n"
        "algorithm: {kind: cma_es}\nstop: {generations: 2}\n"
    )
    words = ("-m", "hpc_es.main", str(config), "--output", str(tmp_path / "run"))
    done = mpiexec(ranks, words, 60) if ranks > 1 else python(words, 60)
    assert done.status == 0, str(done)
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 2 and sum(row["failed_evaluations"] for row in rows) > 0
    assert "SystemExit: os._exit(0)" in done.stdout + done.stderr


def test_module_that_leaves_by_force_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("import os\nos._exit(0)\n")
    config = tmp_path / "c.yaml"
    config.write_text(
        "task: {kind: function, function: 'leaving:cost', dimension: 2}\nstop: {generations: 2}\n"
    )
    done = python(("-m", "hpc_es.main", str(config), "--output", str(tmp_path / "run")), 60)
    assert done.status in {1, 2} and "os._exit(0)" in done.stderr, str(done)
