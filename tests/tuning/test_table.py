"""The table of trials is frozen by whoever comes first."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpc_es.core.errors import RunError, UserError
from hpc_es.tuning import table
from hpc_es.tuning.table import NAME, freeze, known

IDENTITY = {"base": {"seed": 1}, "space": {"algorithm.sigma": [0.1, 0.2]}, "trials": 2}
TRIALS = [{"algorithm.sigma": 0.1}, {"algorithm.sigma": 0.2}]


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    assert known(tmp_path, IDENTITY) is None
    assert freeze(tmp_path, IDENTITY, TRIALS) == TRIALS == known(tmp_path, IDENTITY)
    assert list(tmp_path.iterdir()) == [tmp_path / NAME]


def test_of_many_that_come_at_once_all_have_the_table_of_one(tmp_path: Path, monkeypatch: Any) -> None:
    """Other machines may compute other last bits: whoever is first decides."""
    pids = iter(range(100))
    monkeypatch.setattr(table.os, "getpid", lambda: next(pids))  # a temporary file each, as processes have
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: freeze(tmp_path, IDENTITY, [{"algorithm.sigma": n}]), range(16)))
    assert all(trials == found[0] for trials in found)
    assert list(tmp_path.iterdir()) == [tmp_path / NAME]


def test_without_hard_links_a_later_one_still_reads_the_first(tmp_path: Path, monkeypatch: Any) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(table.os, "link", refused)
    assert freeze(tmp_path, IDENTITY, TRIALS) == TRIALS
    assert freeze(tmp_path, IDENTITY, TRIALS[:1]) == TRIALS


def test_another_tuning_is_refused_with_what_differs(tmp_path: Path) -> None:
    freeze(tmp_path, IDENTITY, TRIALS)
    other = {**IDENTITY, "base": {"seed": 2}, "space": {"algorithm.sigma": [0.1, 0.3]}}
    with pytest.raises(UserError) as error:
        known(tmp_path, other)
    assert "base.seed: 1 in the directory, 2" in str(error.value)
    assert "space.algorithm.sigma: [0.1, 0.2] in the directory, [0.1, 0.3]" in str(error.value)
    assert "trials" not in str(error.value)


def test_a_damaged_table_is_noticed(tmp_path: Path) -> None:
    freeze(tmp_path, IDENTITY, TRIALS)
    path = tmp_path / NAME
    changed = json.loads(path.read_text())
    changed["identity"]["base"]["seed"] = 2
    for text in ("", "[]", json.dumps(changed)):
        path.write_text(text)
        with pytest.raises(UserError, match=r"trials\.json: expected the trials of a tuning"):
            known(tmp_path, IDENTITY)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"trials\.json: cannot be written"):
        freeze(tmp_path / "none", IDENTITY, TRIALS)
