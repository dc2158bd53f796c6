"""The store of trusted code is believed only where nobody else can have written it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_es.storage.trust_store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "trusted").mkdir(0o700)
    made = Store(tmp_path / "trusted")
    made.add("run-1", {"run": "a"})
    assert made.digests() == {"run-1"}
    return made


def refused(store: Store) -> None:
    assert store.digests() == frozenset()
    with pytest.raises(PermissionError, match="other users may write"):
        store.add("run-2", {})


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702])
def test_directory_that_others_may_write_is_not_believed(mode: int, store: Store) -> None:
    assert store.directory is not None
    store.directory.chmod(mode)
    refused(store)


def test_directory_of_another_user_is_not_believed(store: Store) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give directories away")
    assert store.directory is not None
    os.chown(store.directory, 12001, 12001)
    refused(store)


def test_directory_in_one_of_another_user_is_not_believed(store: Store, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give directories away")
    os.chown(tmp_path, 12001, 12001)
    refused(store)


def test_link_to_a_private_directory_is_not_believed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("trusted")
    refused(Store(tmp_path / "link"))


def test_link_of_another_user_above_the_directory_is_not_followed(tmp_path: Path) -> None:
    """XDG_STATE_HOME in a directory of all; the user has unpacked an archive of somebody else."""
    if os.geteuid() != 0:
        pytest.skip("only root can give links away")
    (tmp_path / "unpacked" / "trusted").mkdir(parents=True, mode=0o700)
    (tmp_path / "unpacked" / "trusted" / "run-1").touch()
    (tmp_path / "hpc_es").symlink_to("unpacked")
    store = Store(tmp_path / "hpc_es" / "trusted")
    assert store.digests() == {"run-1"}
    os.lchown(tmp_path / "hpc_es", 12001, 12001)
    assert store.digests() == frozenset()
    (tmp_path / "unpacked" / "trusted").rename(tmp_path / "away")
    with pytest.raises(OSError, match="a link of user 12001"):
        store.add("run-2", {})
    assert not [*(tmp_path / "unpacked").iterdir()]


def test_digest_is_not_written_through_a_link(store: Store, tmp_path: Path) -> None:
    assert store.directory is not None
    (store.directory / "run-2").symlink_to(tmp_path / "other")
    store.add("run-2", {"run": "b"})
    assert not (tmp_path / "other").exists()
