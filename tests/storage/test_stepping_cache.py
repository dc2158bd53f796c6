"""Results of comparing native stepping are cached per user; the cache may be missing,
damaged or read-only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_es.storage import stepping_cache
from hpc_es.storage.stepping_cache import remembered
from hpc_es.tasks.episodes.stepping import stepping_differences


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache directory, with nothing compared in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = dict(stepping_differences)
    stepping_differences.clear()
    yield tmp_path / "hpc_es"
    stepping_differences.clear()
    stepping_differences.update(before)


def compare(**results: str) -> None:
    """Compare as a new process does, with these results."""
    stepping_differences.clear()
    with remembered():
        stepping_differences.update(results)


def known() -> dict[str, str]:
    """The cached results that the next process reads."""
    compare()
    return dict(stepping_differences)


def test_result_is_cached_for_the_next_process(folder: Path) -> None:
    compare(one="", two="the reward is 1.0 instead of 2.0")
    compare(three="")
    assert known() == {"one": "", "two": "the reward is 1.0 instead of 2.0", "three": ""}
    (file,) = folder.iterdir()
    assert file.name == f"stepping_{stepping_cache.platform_fingerprint()}.json"


@pytest.mark.parametrize("text", ["", "{", "[]", "\0\xff", '{"one": 1}', '"one"'])
def test_damaged_cache_file_is_replaced(text: str, folder: Path) -> None:
    compare(one="")
    (file,) = folder.iterdir()
    file.write_bytes(text.encode("latin1"))
    assert known() == {}
    compare(two="")
    assert json.loads(file.read_text()) == {"two": ""}


def test_unwritable_cache_directory_is_ignored(folder: Path) -> None:
    folder.write_text("a file")
    compare(one="")
    assert known() == {}


def test_missing_home_directory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    compare(one="")
    assert known() == {}


def test_other_versions_or_processors_have_separate_cache_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {stepping_cache.platform_fingerprint.__wrapped__()}
    for package in ("gymnasium", "mujoco", "numpy"):
        with monkeypatch.context() as patch:
            patch.setattr(
                stepping_cache,
                "_version",
                lambda name, package=package: "0" if name == package else "1",
            )
            names.add(stepping_cache.platform_fingerprint.__wrapped__())
    monkeypatch.setattr(stepping_cache, "processor_fingerprint", lambda: "another")
    names.add(stepping_cache.platform_fingerprint.__wrapped__())
    assert len(names) == 5


def test_user_models_are_compared_at_each_start(folder: Path) -> None:
    """The files that a model includes are unknown."""
    compare(**{'["Hopper-v5", {"xml_file": "my.xml"}, "12ab"]': ""})
    assert known() == {}
