"""Run directories in which others have put something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_es.core.errors import UserError
from hpc_es.core.run_files import require_own_entries
from hpc_es.storage.run_lock import RunLock
from tests.helpers.harness import python

ANOTHER = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create links of other users")
@pytest.mark.parametrize("name", ["metrics.jsonl", "lock", "scratch", "logs"])
def test_links_of_other_users_are_refused(name: str, tmp_path: Path) -> None:
    target = tmp_path / "thesis.txt"
    target.write_text("years of work")
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / name).symlink_to(target)
    require_own_entries(directory)  # a link of the user's own
    os.lchown(directory / name, ANOTHER, ANOTHER)
    with pytest.raises(
        UserError, match=f"{name} is a link of another user .uid {ANOTHER}., through which"
    ):
        require_own_entries(directory)


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "status.json")
    with pytest.raises(UserError, match=r"expected files and directories in .*, found status.json"):
        require_own_entries(tmp_path)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o640), (0o002, 0o660), (0o077, 0o600)])
def test_lock_follows_the_umask_and_is_closed_to_strangers(
    umask: int, mode: int, tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        with RunLock(tmp_path):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_repetition_that_is_a_link_of_a_stranger_is_refused(tmp_path: Path) -> None:
    """Also in the directory of an experiment and of a tuning,
    before anything is written through it.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    config = "task: {kind: function, function: 'statistics:fmean', dimension: 2}\nrepetitions: 2\nstop: {generations: 2}\n"
    (tmp_path / "fn.yaml").write_text(config)
    (tmp_path / "tune.yaml").write_text(
        "base: fn.yaml\nobjective: answer\nspace: {algorithm.sigma: [0.1, 0.2]}\n"
    )
    for command, name in (("train fn.yaml", "repetition_0000"), ("tune tune.yaml", "trial_0000")):
        target, output = tmp_path / f"target of {name}", tmp_path / f"output of {name}"
        target.mkdir()
        (target / "log.csv").write_text("mine\n")
        output.mkdir()
        (output / name).symlink_to(target)
        os.lchown(output / name, ANOTHER, ANOTHER)
        done = python(["-m", "hpc_es", *command.split(), "--output", str(output)], cwd=tmp_path)
        assert done.status == 2 and "is a link of another user" in done.stderr, str(done)
        assert [path.name for path in target.iterdir()] == ["log.csv"] and (
            target / "log.csv"
        ).read_text() == "mine\n"


@pytest.mark.parametrize("output", ["out/run", "out"])
def test_run_at_a_link_of_a_stranger_is_refused_before_it_begins(
    output: str, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    config = "task: {kind: function, function: 'statistics:fmean', dimension: 2}\nstop: {generations: 2}\n"
    (tmp_path / "fn.yaml").write_text(config)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "lock").write_text("mine\n")
    (tmp_path / "out").symlink_to("mine")
    os.lchown(tmp_path / "out", ANOTHER, ANOTHER)
    done = python(["-m", "hpc_es", "train", "fn.yaml", "--output", output], cwd=tmp_path)
    assert done.status == 2 and "choose another --output" in done.stderr, str(done)
    assert len(done.stderr.splitlines()) == 1
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["mine\n"]
