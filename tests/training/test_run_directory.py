"""Run directories in which others have put something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_es.core.errors import UserError
from hpc_es.storage.run_lock import RunLock
from hpc_es.training.run_directory import require_own_entries

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
    with pytest.raises(UserError, match=f"{name} is a link of another user .uid {ANOTHER}., through which"):
        require_own_entries(directory)


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "status.json")
    with pytest.raises(UserError, match=r"expected files and directories in .*, found status.json"):
        require_own_entries(tmp_path)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o640), (0o002, 0o660), (0o077, 0o600)])
def test_lock_follows_the_umask_and_is_closed_to_strangers(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        with RunLock(tmp_path):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
