"""External programs as objectives: parameters, results, failures,
and processes that end with their rank.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.config.options import warnings_of
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import RunContext
from hpc_es.tasks.functions import supervisor
from hpc_es.tasks.functions.parameters import ParameterScale
from hpc_es.tasks.functions.program_environment import program_environment
from hpc_es.tasks.functions.program_runner import ProgramRunner
from hpc_es.tasks.functions.results import EvaluationResult
from hpc_es.tasks.functions.scratch import Scratch
from hpc_es.tasks.functions.subprocess_evaluator import Command, SubprocessEvaluator, escaped
from tests.helpers import runs

X = np.array([[0.1, -2e-300]])
SH = shutil.which("sh") or "/bin/sh"
Run = Callable[..., EvaluationResult]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a shell text; $1 is the path of the parameters and $2 that of the result."""
    created: list[SubprocessEvaluator] = []

    def run(
        text: str, words: tuple[str, ...] = ("{parameters}", "{result}"), **more: object
    ) -> EvaluationResult:
        external = SubprocessEvaluator(Command((SH, "-c", text, "sh", *words), tmp_path, **more))  # type: ignore[arg-type]
        external.open(RunContext(tmp_path, 0, 1, lambda make: make()))
        created.append(external)
        (result,) = external.evaluate(X, [7], lambda: None)
        assert (result.failure is None) == math.isfinite(result.value)
        return result

    yield run
    for item in created:
        item.close()


def why(result: EvaluationResult) -> str:
    """Reason of a failed evaluation."""
    assert result.failure is not None
    return result.failure.text


def test_program_reads_json_parameters_and_writes_a_number(run: Run, tmp_path: Path) -> None:
    assert run(f'cp "$1" {tmp_path}/told; echo 3.5e-1 > "$2"').value == 0.35
    assert (tmp_path / "told").read_text() == "[0.1, -2e-300]\n"
    assert not list((tmp_path / "scratch").iterdir())


def test_named_parameters_are_a_json_object_or_lines_of_text(run: Run, tmp_path: Path) -> None:
    copy = f'cp "$1" {tmp_path}/told; echo 1 > "$2"'
    run(copy, scales={"a": ParameterScale(0, 1), "b": ParameterScale(0, 1)})
    assert (tmp_path / "told").read_text() == '{"a": 0.1, "b": -2e-300}\n'
    run(copy, format="text")
    assert (tmp_path / "told").read_text() == "0.1\n-2e-300\n"


def test_placeholders_are_replaced_literally_in_all_arguments(run: Run, tmp_path: Path) -> None:
    words = ("--in={parameters}", "{result}", "{seed} {config} {other}", "$HOME; {result")
    run(f'printf "%s\\n" "$@" > {tmp_path}/told; echo 1 > "$2"', words)
    first, second, third, fourth = (tmp_path / "told").read_text().splitlines()
    scratch = Path(second).parent
    assert first == f"--in={scratch}/parameters" and scratch.parent == tmp_path / "scratch"
    assert (third, fourth) == (f"7 {tmp_path} {{other}}", "$HOME; {result")


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), (" 1.5e3\n\n", 1500), ('{"value": 2, "more": [1]}', 2), (".5", 0.5), ("+1.", 1)],
)
def test_results_are_parsed(run: Run, text: str, value: float) -> None:
    assert run(f"printf '{text}' > \"$2\"").value == value


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("exit 3", "ended with status 3"),
        ("kill -9 $$", "ended with signal 9"),
        ("sleep 60", "took longer than task.timeout_seconds: 0.3"),
        ("true", "no result was written"),
        ('echo nan > "$2"', "the value is nan"),
        ('echo inf > "$2"', "the value is inf"),
        (r'''printf '{"value": %0400d}' 1 | sed 's/: 0/: 9/' > "$2"''', "the value is inf"),
        (
            'echo true > "$2"',
            'the result is true: expected a number, or JSON such as {"value": 1.5}',
        ),
        ('printf "\\033[2J" > "$2"', r"the result is \x1b[2J"),
        ('head -c 1000001 /dev/zero > "$2"', "larger than 1,000,000 bytes"),
        ('mkdir "$2"', "Is a directory"),
        ('mkfifo "$2"', "expected a file, found a pipe"),
        ("rm stderr.txt; mkfifo stderr.txt; exit 1", "status 1; kept"),
        (
            'echo 1 > "$2"; echo one >&2; printf "two\\033[31m\\n" >&2; exit 1',
            r"status 1; stderr: one | two\x1b[31m; kept",
        ),
    ],
)
def test_failures_are_reported_with_their_reason(run: Run, text: str, failure: str) -> None:
    assert failure in why(run(text, timeout_seconds=0.3))


def test_output_of_failed_programs_is_kept_and_failures_are_grouped(run: Run) -> None:
    """By the status and the last line of stderr, without its numbers."""
    ends = [("seq 12", 1), ("seq 9", 1), ("seq 12", 3), ("echo mesh is too coarse: 7", 1)]
    failures = [run(f"{text} >&2; exit {status}").failure for text, status in ends]
    assert failures[0] is not None and failures[0].details == "".join(
        f"{number}\n" for number in range(1, 13)
    )
    assert failures[0].text.startswith(
        f"{SH} ended with status 1; stderr: 8 | 9 | 10 | 11 | 12; kept in "
    )
    kinds = [failure.kind for failure in failures if failure is not None]
    reasons = ["1; #", "1; #", "3; #", "1; mesh is too coarse: #"]
    assert kinds == [f"{SH} ended with status {reason}" for reason in reasons]


def test_nobody_else_may_open_the_directory_of_a_program(run: Run, tmp_path: Path) -> None:
    """The run may be in a directory that a group writes to. What is kept is for others, too."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o775)
    why(run("stat -c %a . > mode; exit 1"))
    kept = tmp_path / "scratch" / "failed_0"
    assert (kept / "mode").read_text() == "700\n" and kept.stat().st_mode & 0o777 == 0o775


def test_interrupted_evaluation_leaves_nothing_open(tmp_path: Path) -> None:
    """As many of a generation may be given up."""
    evaluator = SubprocessEvaluator(Command((SH, "-c", "sleep 60"), tmp_path))
    evaluator.open(RunContext(tmp_path, 0, 1, lambda make: make()))

    def poll() -> None:
        raise KeyboardInterrupt

    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(KeyboardInterrupt):
        evaluator.evaluate(X, [7], poll)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert not list((tmp_path / "scratch").iterdir())


def test_old_directories_are_not_removed_through_a_link_of_a_stranger(tmp_path: Path) -> None:
    """One that takes the place of the directory of a run in which others may write."""
    if os.geteuid() != 0:
        pytest.skip("only root can give links away")
    mine, scratch = tmp_path / "mine", tmp_path / "run" / "scratch"
    (mine / "rank_0").mkdir(parents=True)
    scratch.parent.mkdir()
    scratch.symlink_to(mine)
    os.lchown(scratch, 12001, 12001)
    evaluator = SubprocessEvaluator(Command(("x",), tmp_path))
    with pytest.raises(RunError, match="link of user 12001"):
        evaluator.open(RunContext(scratch.parent, 0, 1, lambda make: make()))
    assert (mine / "rank_0").is_dir()


@pytest.mark.parametrize("taken_by", ["link", "directory"])
def test_what_takes_the_place_of_a_new_directory_is_not_used(
    taken_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "scratch" / "rank_0_1_0", tmp_path / "other"
    other.mkdir()
    (other / "result").write_text("secret")
    make = os.mkdir

    def made(name: str, mode: int = 0o777, dir_fd: int | None = None) -> None:
        make(name, mode, dir_fd=dir_fd)
        if name == path.name:
            path.rmdir()
            path.symlink_to(other) if taken_by == "link" else other.rename(path)

    monkeypatch.setattr(os, "mkdir", made)
    with pytest.raises(OSError, match=r"Not a directory|has taken its place"):
        Scratch(path)


def test_program_does_not_run_in_what_has_taken_the_place_of_its_directory(
    programs: ProgramRunner, tmp_path: Path
) -> None:
    ended = programs.run(["touch", "here"], tmp_path, ENVIRONMENT, identity=(1, 2))
    assert ended.status is None and "has taken its place" in str(ended.error)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for name in (supervisor.STDOUT, supervisor.STDERR):
        (tmp_path / name).symlink_to(secret)
        assert programs.run(["touch", "here"], tmp_path, ENVIRONMENT).status is None
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        assert programs.run(["touch", "here"], tmp_path, ENVIRONMENT).status is None
        (tmp_path / name).unlink()
    assert not (tmp_path / "here").exists() and secret.read_text() == "secret"


def test_program_that_cannot_be_started_fails_its_job(tmp_path: Path) -> None:
    external = SubprocessEvaluator(Command(("/no/such",), tmp_path))
    (result,) = external.evaluate(X, [7], lambda: None)
    external.close()
    assert "/no/such could not be started" in why(result)


def test_last_ten_directories_of_failures_are_kept(run: Run, tmp_path: Path) -> None:
    said = [why(run('cat "$1" > seen; exit 1')) for _ in range(12)]
    kept = sorted(path.name for path in (tmp_path / "scratch").iterdir())
    assert kept == [f"failed_{number}" for number in range(10)]
    assert (tmp_path / "scratch" / "failed_9" / "seen").read_text() == "[0.1, -2e-300]\n"
    assert "kept in" in said[9] and "not kept" in said[10]


def test_directories_of_a_killed_run_are_removed_by_its_rank(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    for name in ("rank_0_11_0", "rank_1_12_0", "rank_5_13_0", "failed_3"):
        (scratch / name).mkdir(parents=True)
    SubprocessEvaluator(Command(("x",), tmp_path)).open(
        RunContext(tmp_path, 0, 2, lambda make: make())
    )
    assert sorted(path.name for path in scratch.iterdir()) == ["failed_3", "rank_1_12_0"]


def test_placeholders_of_environment_variables_are_replaced(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    assert run('echo $N${PMI_RANK:-0} > "$2"', environment={"N": "4"}).value == 40


def test_escaped_braces_are_literal() -> None:
    assert escaped("é\x1b\r\\") == "é\\x1b\\r\\"


ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def programs() -> Iterator[ProgramRunner]:
    started = ProgramRunner()
    yield started
    started.close()


def alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def gone(pid: int) -> bool:
    runs.wait_for(lambda: not alive(pid), 10)
    return True


def number(path: Path) -> int:
    runs.wait_for(lambda: path.exists() and path.read_text().endswith("\n"), 10)
    return int(path.read_text())


def test_status_output_and_directory_are_reported(programs: ProgramRunner, tmp_path: Path) -> None:
    ended = programs.run(["sh", "-c", "pwd; echo late >&2; exit 3"], tmp_path, ENVIRONMENT)
    assert (ended.status, ended.timed_out, ended.error) == (3, False, None)
    assert (tmp_path / "stdout.txt").read_text() == f"{tmp_path}\n"
    assert (tmp_path / "stderr.txt").read_text() == "late\n"
    assert programs.run(["sh", "-c", "kill -9 $$"], tmp_path, ENVIRONMENT).status == -signal.SIGKILL


def test_missing_program_is_reported(programs: ProgramRunner, tmp_path: Path) -> None:
    ended = programs.run(["/no/such/program"], tmp_path, ENVIRONMENT)
    assert ended.status is None and "No such file" in str(ended.error)
    assert programs.run(["true"], tmp_path, ENVIRONMENT).status == 0


def test_program_inherits_no_descriptors_and_signal_handlers(
    programs: ProgramRunner, tmp_path: Path
) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(descriptor, True)  # as PMI_FD is
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        code = "ls /proc/self/fd | wc -l; kill -USR2 $$; sleep 1; echo survived"
        assert programs.run(["sh", "-c", code], tmp_path, ENVIRONMENT).status == -signal.SIGUSR2
        assert (
            programs.run(["sh", "-c", "kill -USR1 $$"], tmp_path, ENVIRONMENT).status
            == -signal.SIGUSR1
        )
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGUSR1, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    programs.run(["grep", "SigBlk", "/proc/self/status"], tmp_path, ENVIRONMENT)
    assert int((tmp_path / "stdout.txt").read_text().split()[1], 16) == 0
    programs.run(["ls", "-l", "/proc/self/fd"], tmp_path, ENVIRONMENT)
    listed = (tmp_path / "stdout.txt").read_text()
    # 0, 1, 2 and the directory that ls reads
    assert listed.count("->") == 4 and "/dev/null" in listed


def test_time_limit_ends_the_process_group(programs: ProgramRunner, tmp_path: Path) -> None:
    since = time.monotonic()
    code = "sleep 60 & echo $! > child; wait"
    ended = programs.run(["sh", "-c", code], tmp_path, ENVIRONMENT, limit_seconds=0.3)
    assert ended.timed_out and ended.status == -signal.SIGKILL
    assert time.monotonic() - since < 10 and gone(number(tmp_path / "child"))


def test_background_processes_end_with_their_program(
    programs: ProgramRunner, tmp_path: Path
) -> None:
    code = "setsid sh -c 'echo $$ > daemon; exec sleep 60' & while [ ! -s daemon ]; do sleep 0.01; done"
    assert programs.run(["sh", "-c", code], tmp_path, ENVIRONMENT).status == 0
    assert gone(number(tmp_path / "daemon"))


def test_messages_are_answered_and_interruption_ends_the_program(
    programs: ProgramRunner, tmp_path: Path
) -> None:
    class GiveUp(BaseException):
        pass

    looks = []

    def poll() -> None:
        looks.append(1)
        if len(looks) > 20 and (tmp_path / "child").exists():
            raise GiveUp

    with pytest.raises(GiveUp):
        programs.run(
            ["sh", "-c", "echo $$ > child; exec sleep 60"], tmp_path, ENVIRONMENT, poll=poll
        )
    assert gone(number(tmp_path / "child"))
    assert programs.run(["true"], tmp_path, ENVIRONMENT).status == 0


def test_process_group_is_known_before_the_program_starts(tmp_path: Path) -> None:
    """Otherwise a supervisor killed right after the start
    would leave processes of an unknown group.
    """
    ours, theirs = socket.socketpair()
    order = {
        "command": ["/no/such"],
        "directory": str(tmp_path),
        "identity": [tmp_path.stat().st_dev, tmp_path.stat().st_ino],
        "environment": {},
        "cpus": [],
        "limit_seconds": None,
    }
    with theirs, ours.makefile("rb") as answers:
        command = [sys.executable, "-I", "-S", supervisor.__file__, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()]):
            ours.sendall(json.dumps(order).encode() + b"\n")
            message = [json.loads(answers.readline())]
            if "pid" in message[0]:
                message.append(json.loads(answers.readline()))
            ours.shutdown(socket.SHUT_RDWR)  # which ends it
    ours.close()
    assert message[0]["pid"] > 0 and "No such file" in message[1]["error"]


def test_death_of_the_supervisor_ends_the_process_group(
    programs: ProgramRunner, tmp_path: Path
) -> None:
    killed = []

    def poll() -> None:
        if not killed and (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            program = int((tmp_path / "program").read_text())
            killed.append(int(Path(f"/proc/{program}/stat").read_text().split()[3]))
            os.kill(killed[0], signal.SIGKILL)

    code = "echo $$ > program; sleep 60 & echo $! > child; wait"
    ended = programs.run(["sh", "-c", code], tmp_path, ENVIRONMENT, poll=poll)
    assert ended.status is None and "has died" in str(ended.error)
    assert gone(number(tmp_path / "program")) and gone(number(tmp_path / "child"))
    assert programs.run(["true"], tmp_path, ENVIRONMENT).status == 0


RANK = """
import pathlib, sys
from hpc_es.tasks.functions.program_runner import ProgramRunner
here = pathlib.Path(sys.argv[1])
inner = "echo $$ > grandchild; exec sleep 60"
ProgramRunner().run(["sh", "-c", "setsid sh -c '" + inner + "' & echo $$ > child; wait"], here, {"PATH": sys.argv[2]})
"""


@pytest.mark.parametrize("whom", ["rank", "group", "supervisor"])
def test_killed_rank_leaves_no_process(whom: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(RANK), str(tmp_path), os.environ["PATH"]]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as rank:
        child, grandchild = number(tmp_path / "child"), number(tmp_path / "grandchild")
        supervisor_pid = int(Path(f"/proc/{child}/stat").read_text().split()[3])
        assert alive(child) and alive(grandchild) and supervisor_pid != rank.pid
        if whom == "group":
            os.killpg(rank.pid, signal.SIGKILL)
        else:
            os.kill(rank.pid if whom == "rank" else supervisor_pid, signal.SIGKILL)
        assert gone(child) and gone(supervisor_pid)
        if whom == "supervisor":
            # it has its own session, and no process would end it
            os.kill(grandchild, signal.SIGKILL)
        assert gone(grandchild)


def test_program_environment_has_no_mpi_variables() -> None:
    launched = {
        "PMI_RANK": "1",
        "PMI_FD": "9",
        "PMIX_RANK": "1",
        "OMPI_COMM_WORLD_RANK": "1",
        "MPI_LOCALRANKID": "0",
    }
    launched |= {
        "HYDI_CONTROL_FD": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_PROCID": "1",
    }
    kept = {"SLURM_JOB_ID": "8", "SLURM_NTASKS": "2", "HOME": "/h", "MPICC": "cc"}
    assert program_environment({**launched, **kept}, {"OMP_NUM_THREADS": "4"}) == {
        **kept,
        "OMP_NUM_THREADS": "4",
    }


def test_words_that_a_shell_would_change_are_warned_of() -> None:
    section = {
        **{"kind": "command", "dimension": 1, "environment": {"A": "${HOME}/x", "B": "1"}},
        "command": ["~/solve", "{parameters}", "{result}", "~/data", "$HOME", "a~/b", "5$"],
    }
    config = validate({"task": section, "algorithm": {"kind": "cma_es"}})
    text = "which the program gets as it is: there is no shell that replaces it"
    assert warnings_of(config.task) == [
        *(f"command: has {word!r}, {text}" for word in ("~/data", "$HOME")),
        f"environment: has '${{HOME}}/x', {text}",
    ]
