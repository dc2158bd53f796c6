"""The version of the files that `hpc-es watch` shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_es.report.server import version_of


def test_folders_of_any_depth_do_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        folder = tmp_path
        for _ in range(1500):  # each level is a call of os.walk
            monkeypatch.chdir(folder)
            folder = Path("d")
            folder.mkdir()
        monkeypatch.chdir(tmp_path)
        (tmp_path / "run").mkdir()
        before = version_of([tmp_path])
        (tmp_path / "run" / "status.json").write_text("{}")
        assert version_of([tmp_path]) != before
    finally:  # pytest cannot remove them
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)
