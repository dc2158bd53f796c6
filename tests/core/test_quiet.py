"""Output that libraries write by themselves is suppressed: MUJOCO_LOG.TXT, colours,
start-up lines of TensorFlow.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from hpc_es.core import quiet
from hpc_es.core.quiet import quiet_stderr, show_once
from hpc_es.tasks.episodes import environments
from tests.helpers import runs
from tests.helpers.harness import mpiexec, python, script

SMALL = ("task.max_episode_steps=5", "noise={kind: counter}", "stop.generations=1")


def test_kept_lines_are_written_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_stderr(keep=lambda line: line.startswith("E")):
        os.write(2, b"I information\nE an error\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "E an error\n"


def test_kept_lines_are_written_after_an_exception(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), quiet_stderr(keep=lambda line: True):
        os.write(2, b"before\n")
        raise ZeroDivisionError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "before\nafter\n"


def test_each_kind_of_line_is_shown_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "_printed", set())
    for line, kind in (("at DOF 1", "at DOF"), ("at DOF 2", "at DOF"), ("at DOF 1", "")):
        show_once(line, kind)
    assert capsys.readouterr().err == "at DOF 1\nat DOF 1\n"


@pytest.mark.parametrize("stepping", ["native", "gymnasium"])
def test_mujoco_writes_no_log_file_and_no_deprecation_warnings(
    stepping: str, tmp_path: Path
) -> None:
    """HalfCheetah's model has settotalmass, about which every process would warn."""
    pytest.importorskip("mujoco")
    run = runs.command(
        tmp_path / "run", "task.env_id=HalfCheetah-v5", f"task.stepping={stepping}", *SMALL
    )
    done = mpiexec(2, run, cwd=tmp_path)
    assert done.status == 0 and "settotalmass" not in done.stdout + done.stderr, done
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()


def test_unstable_mujoco_simulation_is_reported_once(tmp_path: Path) -> None:
    """Three states that are not finite, at different joints and times."""
    pytest.importorskip("mujoco")
    text = """
        import mujoco
        from hpc_es.tasks.episodes.environments import make

        data = mujoco.MjData(model := make("Hopper-v5", {}).unwrapped.model)
        for joint in range(3):
            data.qvel[joint] = float("nan")
            mujoco.mj_step(model, data, 1 + joint)
    """
    done = python(script(text), cwd=tmp_path)
    assert done.status == 0, done
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "MuJoCo: Nan, Inf or huge value in QVEL at DOF 0. The simulation is unstable."
    )
    assert list(tmp_path.iterdir()) == []


def test_gymnasium_warns_in_plain_lines_once(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    done = mpiexec(2, runs.command(tmp_path / "run", "task.env_id=Hopper-v4", *SMALL), cwd=tmp_path)
    text = done.stdout + done.stderr
    assert done.status == 0 and "\x1b" not in text and "registration.py" not in text, done
    assert text.count("WARNING: The environment Hopper-v4 is out of date.") == 1, done


def test_other_warnings_of_an_environment_are_unchanged(
    monkeypatch: Any, recwarn: pytest.WarningsRecorder
) -> None:
    def make(*arguments: Any, **keywords: Any) -> Any:
        warnings.warn("the sensors are not calibrated", UserWarning, stacklevel=2)
        return "an environment"

    monkeypatch.setattr(gymnasium, "make", make)
    for _ in range(2):
        assert environments._make_registered("CartPole-v1", {}) == "an environment"
    assert [str(item.message) for item in recwarn] == ["the sensors are not calibrated"]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here"
)
def test_tensorflow_starts_without_output(tmp_path: Path) -> None:
    """Without suppression it writes 21 lines on three ranks without a GPU."""
    done = mpiexec(
        2, runs.command(tmp_path / "run", "policy.backend=tensorflow", *SMALL), cwd=tmp_path
    )
    assert done.status == 0 and done.stderr == "", done


@pytest.mark.parametrize("keep", ["None", "lambda line: True"])
def test_without_further_descriptors_nothing_is_dropped_and_nothing_fails(keep: str) -> None:
    code = f"""
import os, resource, sys
from hpc_es.core.quiet import quiet_stderr
used = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (used + {{more}}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with quiet_stderr(keep={keep}):
    print("said", file=sys.stderr)
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.close(os.dup(2))  # none was lost
"""
    for more in (0, 1):  # not even a copy of standard error; or a copy, but no file
        done = python(["-c", code.format(more=more)], 30)
        assert (done.status, done.stderr) == (0, "said\n"), str(done)
